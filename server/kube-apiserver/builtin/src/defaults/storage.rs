//! Defaults of volumes, claims and the storage group.

use serde_json::{Value, json};

use super::{at_mut, is_set, pod, set_default, set_field, set_pointer_default};

pub(super) fn set_claim_defaults(object: &mut Value) {
    if !is_set(object, "status") {
        set_field(object, "status", json!({}));
    }
    if let Some(status) = at_mut(object, "status") {
        set_default(status, "phase", "Pending");
    }
    if let Some(spec) = at_mut(object, "spec") {
        set_default(spec, "volumeMode", "Filesystem");
    }
}

pub(super) fn set_persistent_volume_defaults(object: &mut Value) {
    if !is_set(object, "status") {
        set_field(object, "status", json!({}));
    }
    if let Some(status) = at_mut(object, "status") {
        set_default(status, "phase", "Pending");
    }
    let Some(spec) = at_mut(object, "spec") else { return };
    set_default(spec, "persistentVolumeReclaimPolicy", "Retain");
    set_default(spec, "volumeMode", "Filesystem");
    pod::set_shared_source_defaults(spec);
}

pub(super) fn set_storage_group_defaults(kind: &str, object: &mut Value) {
    match kind {
        "StorageClass" => {
            set_pointer_default(object, "reclaimPolicy", "Delete");
            set_pointer_default(object, "volumeBindingMode", "Immediate");
        }
        "CSIDriver" => {
            let Some(spec) = at_mut(object, "spec") else { return };
            set_default(spec, "attachRequired", true);
            set_default(spec, "podInfoOnMount", false);
            set_default(spec, "storageCapacity", false);
            set_pointer_default(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
            set_default(spec, "requiresRepublish", false);
            set_default(spec, "seLinuxMount", false);
            if !is_set(spec, "volumeLifecycleModes") {
                set_field(spec, "volumeLifecycleModes", json!(["Persistent"]));
            }
        }
        _ => {}
    }
}
