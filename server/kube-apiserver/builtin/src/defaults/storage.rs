//! Defaults of volumes, claims and the storage group.

use serde_json::{Value, json};

use super::{default, default_pointer, inside, is_set, pod, put};

pub(super) fn claim(object: &mut Value) {
    if !is_set(object, "status") {
        put(object, "status", json!({}));
    }
    if let Some(status) = inside(object, "status") {
        default(status, "phase", "Pending");
    }
    if let Some(spec) = inside(object, "spec") {
        default(spec, "volumeMode", "Filesystem");
    }
}

pub(super) fn persistent_volume(object: &mut Value) {
    if !is_set(object, "status") {
        put(object, "status", json!({}));
    }
    if let Some(status) = inside(object, "status") {
        default(status, "phase", "Pending");
    }
    let Some(spec) = inside(object, "spec") else { return };
    default(spec, "persistentVolumeReclaimPolicy", "Retain");
    default(spec, "volumeMode", "Filesystem");
    if let Some(path) = inside(spec, "hostPath") {
        default(path, "type", "");
    }
    if let Some(iscsi) = inside(spec, "iscsi") {
        default(iscsi, "iscsiInterface", "default");
    }
    if let Some(rbd) = inside(spec, "rbd") {
        pod::rbd_source(rbd);
    }
    if let Some(disk) = inside(spec, "azureDisk") {
        pod::azure_disk(disk);
    }
    if let Some(scale) = inside(spec, "scaleIO") {
        default(scale, "storageMode", "ThinProvisioned");
        default(scale, "fsType", "xfs");
    }
}

pub(super) fn storage(kind: &str, object: &mut Value) {
    match kind {
        "StorageClass" => {
            default_pointer(object, "reclaimPolicy", "Delete");
            default_pointer(object, "volumeBindingMode", "Immediate");
        }
        "CSIDriver" => {
            let Some(spec) = inside(object, "spec") else { return };
            default(spec, "attachRequired", true);
            default(spec, "podInfoOnMount", false);
            default(spec, "storageCapacity", false);
            default_pointer(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
            default(spec, "requiresRepublish", false);
            default(spec, "seLinuxMount", false);
            if !is_set(spec, "volumeLifecycleModes") {
                put(spec, "volumeLifecycleModes", json!(["Persistent"]));
            }
        }
        _ => {}
    }
}
