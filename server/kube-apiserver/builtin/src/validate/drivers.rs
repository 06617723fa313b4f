//! Validation of objects written by storage drivers: CSI drivers, nodes, attachments, capacities; and of volume
//! attributes classes.

use super::selector::validate_label_selector;
use super::{
    Errors, Value, at, fields, go, is_set, items, json, number, persistent_volume, storage, text,
    validate_dns1123_subdomain, validate_qualified_name, volume,
};

const FS_GROUP_POLICIES: [&str; 3] = ["File", "None", "ReadWriteOnceWithFSType"];
const LIFECYCLE_MODES: [&str; 2] = ["Persistent", "Ephemeral"];
const MAX_NODE_ID_BYTES: usize = 192;

pub(super) fn validate_create(e: &mut Errors, kind: &str, object: &Value) {
    match kind {
        "CSIDriver" => validate_csi_driver(e, at(object, "spec")),
        "CSINode" => validate_csi_node(e, items(object, "spec.drivers")),
        "VolumeAttachment" => validate_volume_attachment(e, at(object, "spec")),
        "CSIStorageCapacity" => validate_storage_capacity(e, object),
        "VolumeAttributesClass" => validate_volume_attributes_class(e, object),
        _ => {}
    }
}

pub(super) fn validate_update(e: &mut Errors, kind: &str, old: &Value, new: &Value) {
    match kind {
        "CSIDriver" => {
            validate_csi_driver(e, at(new, "spec"));
            // kube-apiserver reports `attachRequired` under this name.
            for (field, reported_field) in
                [("attachRequired", "spec.attachedRequired"), ("volumeLifecycleModes", "spec.volumeLifecycleModes")]
            {
                e.immutable(reported_field, at(at(old, "spec"), field), at(at(new, "spec"), field));
            }
        }
        "CSINode" => {
            validate_csi_node(e, items(new, "spec.drivers"));
            let immutable_part = |driver: &Value| (at(driver, "nodeID").clone(), at(driver, "topologyKeys").clone());
            for before in items(old, "spec.drivers") {
                for after in items(new, "spec.drivers").iter().filter(|after| after["name"] == before["name"]) {
                    if immutable_part(before) != immutable_part(after) {
                        // The number of volumes that a node supports can change.
                        let reported_driver = json!({"name": after["name"], "nodeID": after["nodeID"], "topologyKeys": after["topologyKeys"]});
                        e.push(go::invalid_struct(
                            "spec.drivers",
                            &reported_driver,
                            "storage.CSINodeDriver",
                            "field is immutable",
                        ));
                    }
                }
            }
        }
        "VolumeAttachment" => {
            validate_volume_attachment(e, at(new, "spec"));
            if at(old, "spec") != at(new, "spec") {
                e.push(go::invalid_struct(
                    "spec",
                    at(new, "spec"),
                    "storage.VolumeAttachmentSpec",
                    "field is immutable",
                ));
            }
        }
        "CSIStorageCapacity" => {
            validate_storage_capacity(e, new);
            for field in ["nodeTopology", "storageClassName"] {
                e.immutable(field, at(old, field), at(new, field));
            }
        }
        "VolumeAttributesClass" => {
            for field in ["driverName", "parameters"] {
                if at(old, field) != at(new, field) {
                    e.forbidden(field, &format!("updates to {field} are forbidden."));
                }
            }
            validate_volume_attributes_class(e, new);
        }
        _ => {}
    }
}

fn validate_csi_driver(e: &mut Errors, spec: &Value) {
    for (field, reported_field) in [
        ("attachRequired", "attachedRequired"),
        ("podInfoOnMount", "podInfoOnMount"),
        ("storageCapacity", "storageCapacity"),
    ] {
        if !is_set(spec, field) {
            e.required(format!("spec.{reported_field}"), "");
        }
    }
    let policy = at(spec, "fsGroupPolicy");
    if !policy.is_null() && !FS_GROUP_POLICIES.iter().any(|known| policy == known) {
        e.unsupported("spec.fsGroupPolicy", policy, &FS_GROUP_POLICIES);
    }
    let requests = items(spec, "tokenRequests");
    for (index, request) in requests.iter().enumerate() {
        let path = format!("spec.tokenRequests[{index}]");
        let audience = text(request, "audience");
        if requests[..index].iter().any(|other| text(other, "audience") == audience) {
            e.duplicate(format!("{path}.audience"), &json!(audience));
            continue;
        }
        let field = format!("{path}.expirationSeconds");
        match number(request, "expirationSeconds") {
            Some(seconds) if seconds < 600 => {
                e.invalid(field, &json!(seconds), "may not specify a duration less than 10 minutes");
            }
            Some(seconds) if seconds > 1 << 32 => {
                e.invalid(field, &json!(seconds), "may not specify a duration larger than 2^32 seconds");
            }
            _ => {}
        }
    }
    for mode in items(spec, "volumeLifecycleModes") {
        if !LIFECYCLE_MODES.iter().any(|known| mode == known) {
            e.unsupported("spec.volumeLifecycleModes", mode, &LIFECYCLE_MODES);
        }
    }
    if !is_set(spec, "seLinuxMount") {
        e.required("spec.seLinuxMount", "");
    }
    if let Some(seconds) = number(spec, "nodeAllocatableUpdatePeriodSeconds").filter(|seconds| *seconds < 10) {
        let reason = "must be greater than or equal to 10 seconds";
        e.invalid("spec.nodeAllocatableUpdatePeriodSeconds", &json!(seconds), reason);
    }
}

fn validate_csi_node(e: &mut Errors, drivers: &[Value]) {
    for (index, driver) in drivers.iter().enumerate() {
        let path = format!("spec.drivers[{index}]");
        volume::validate_driver_name(e, at(driver, "name"), &format!("{path}.name"));
        let id = text(driver, "nodeID");
        if id.is_empty() {
            e.required(format!("{path}.nodeID"), "");
        }
        if id.len() > MAX_NODE_ID_BYTES {
            e.invalid(format!("{path}.nodeID"), &json!(id), format!("must be {MAX_NODE_ID_BYTES} characters or less"));
        }
        e.non_negative(format!("{path}.allocatable.count"), at(driver, "allocatable.count"));
        if drivers[..index].iter().any(|other| other["name"] == driver["name"]) {
            e.duplicate(format!("{path}.name"), at(driver, "name"));
        }
        let keys = items(driver, "topologyKeys");
        for (position, key) in keys.iter().enumerate() {
            if key == "" {
                e.required(&path, "");
            }
            if keys[..position].contains(key) {
                e.duplicate(&path, key);
            }
            let key = key.as_str().unwrap_or_default();
            e.push_name_errors(&path, key, validate_qualified_name(key));
        }
    }
}

fn validate_volume_attachment(e: &mut Errors, spec: &Value) {
    const EXACTLY_ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    volume::validate_driver_name(e, at(spec, "attacher"), "spec.attacher");
    match (is_set(spec, "source.inlineVolumeSpec"), at(spec, "source.persistentVolumeName").as_str()) {
        (false, None) => e.required("spec.source", EXACTLY_ONE),
        (true, Some(_)) => e.forbidden("spec.source", EXACTLY_ONE),
        (false, Some("")) => {
            e.required("spec.source.persistentVolumeName", "must specify non empty persistentVolumeName");
        }
        (false, Some(_)) => {}
        (true, None) => persistent_volume::validate_inline_volume(
            e,
            at(spec, "source.inlineVolumeSpec"),
            "spec.source.inlineVolumeSpec",
        ),
    }
    let node = text(spec, "nodeName");
    e.push_name_errors("spec.nodeName", node, validate_dns1123_subdomain(node));
    if let Some(name) = at(spec, "source.persistentVolumeName").as_str() {
        e.push_name_errors("spec.source.persistentVolumeName", name, validate_dns1123_subdomain(name));
    }
}

fn validate_storage_capacity(e: &mut Errors, object: &Value) {
    if is_set(object, "nodeTopology") {
        validate_label_selector(e, at(object, "nodeTopology"), "nodeTopology");
    }
    let class = text(object, "storageClassName");
    e.push_name_errors("storageClassName", class, validate_dns1123_subdomain(class));
    let amount = at(object, "capacity");
    if super::resources::amount(amount).is_some_and(|amount| amount.sign() < 0) {
        e.invalid("capacity", amount, "must be greater than or equal to 0");
    }
}

fn validate_volume_attributes_class(e: &mut Errors, object: &Value) {
    storage::validate_provisioner(e, text(object, "driverName"), "driverName");
    if fields(object, "parameters").is_empty() {
        return e.required("parameters", "must contain at least one key/value pair");
    }
    storage::validate_parameters(e, fields(object, "parameters"));
}
