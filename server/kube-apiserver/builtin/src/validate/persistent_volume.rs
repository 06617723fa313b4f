//! Validation of persistent volumes and of inline volumes in attachments: sources and immutable fields. From
//! `ValidatePersistentVolumeSpec` and `pkg/volume/validation`.

use super::difference::format_difference;
use super::resources::amount;
use super::selector::validate_node_selector;
use super::storage::validate_access_modes;
use super::{
    Errors, Value, at, fields, go, is_set, items, text, validate_dns1123_label, validate_dns1123_subdomain, volume,
    volume_sources,
};
use crate::object;

const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
/// Sources that support the mount options annotation.
const SOURCES_WITH_MOUNT_OPTIONS: [&str; 13] = [
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "nfs",
    "rbd",
    "quobyte",
    "iscsi",
    "cinder",
    "cephfs",
    "azureFile",
    "vsphereVolume",
    "azureDisk",
    "photonPersistentDisk",
];
/// Deprecated node labels and their replacements.
const RENAMED_LABELS: [(&str, &str); 5] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
];

pub(super) fn validate_persistent_volume(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    validate_spec(e, spec);
    let has_mount_options = at(object, "metadata.annotations").get(MOUNT_OPTIONS).is_some();
    if has_mount_options && !SOURCES_WITH_MOUNT_OPTIONS.iter().any(|kind| is_set(spec, kind)) {
        let path = format!("metadata.annotations.{MOUNT_OPTIONS}");
        e.forbidden(path, "may not specify mount options for this volume type");
    }
}

fn validate_spec(e: &mut Errors, spec: &Value) {
    if items(spec, "accessModes").is_empty() {
        e.required("spec.accessModes", "");
    }
    validate_access_modes(e, spec, "spec.accessModes");
    let capacity = fields(spec, "capacity");
    if capacity.is_empty() {
        e.required("spec.capacity", "");
    }
    if !capacity.contains_key("storage") || capacity.len() > 1 {
        e.unsupported("spec.capacity", at(spec, "capacity"), &["storage"]);
    }
    for (name, value) in capacity {
        if amount(value).is_some_and(|quantity| quantity.sign() <= 0) {
            e.invalid(format!("spec.capacity[{name}]"), value, "must be greater than zero");
        }
    }
    e.optional_one_of(
        "spec.persistentVolumeReclaimPolicy",
        at(spec, "persistentVolumeReclaimPolicy"),
        &["Delete", "Recycle", "Retain"],
    );
    if is_set(spec, "nodeAffinity") {
        if is_set(spec, "nodeAffinity.required") {
            validate_node_selector(e, at(spec, "nodeAffinity.required"), "spec.nodeAffinity.required");
        } else {
            e.required("spec.nodeAffinity.required", "must specify required node constraints");
        }
    }
    validate_source(e, spec, "spec");
    validate_reclaim_policy(e, spec, "spec");
    let class = text(spec, "storageClassName");
    if !class.is_empty() {
        e.push_name_errors("spec.storageClassName", class, validate_dns1123_subdomain(class));
    }
    e.optional_one_of("spec.volumeMode", at(spec, "volumeMode"), &["Block", "Filesystem"]);
    validate_attributes_class(e, spec, "spec");
}

fn validate_reclaim_policy(e: &mut Errors, spec: &Value, path: &str) {
    let is_recycled = text(spec, "persistentVolumeReclaimPolicy") == "Recycle";
    let host = text(spec, "hostPath.path");
    if is_recycled && host.starts_with('/') && host.split('/').all(|part| part.is_empty() || part == ".") {
        let reason = "may not be 'recycle' for a hostPath mount of '/'";
        e.forbidden(format!("{path}.persistentVolumeReclaimPolicy"), reason);
    }
}

fn validate_attributes_class(e: &mut Errors, spec: &Value, path: &str) {
    let Some(class) = at(spec, "volumeAttributesClassName").as_str() else { return };
    let field = format!("{path}.volumeAttributesClassName");
    if class.is_empty() {
        e.required(field, "an empty string is disallowed");
    } else {
        e.push_name_errors(&field, class, validate_dns1123_subdomain(class));
    }
    if !is_set(spec, "csi") {
        e.required(format!("{path}.csi"), "has to be specified when using volumeAttributesClassName");
    }
}

/// Validates an inline volume in an attachment, which may contain only the fields that a driver needs.
pub(super) fn validate_inline_volume(e: &mut Errors, spec: &Value, path: &str) {
    let forbid = |e: &mut Errors, field: &str| {
        e.forbidden(format!("{path}.{field}"), "may not be specified in the context of inline volumes");
    };
    for field in ["claimRef", "capacity"].into_iter().filter(|field| is_set(spec, field)) {
        forbid(e, field);
    }
    if !is_set(spec, "csi") {
        e.required(format!("{path}.csi"), "has to be specified in the context of inline volumes");
    }
    if items(spec, "accessModes").is_empty() {
        e.required(format!("{path}.accessModes"), "");
    }
    validate_access_modes(e, spec, &format!("{path}.accessModes"));
    if !matches!(text(spec, "persistentVolumeReclaimPolicy"), "" | "Retain") {
        let reason = "may only be Retain in the context of inline volumes";
        e.forbidden(format!("{path}.persistentVolumeReclaimPolicy"), reason);
    }
    if is_set(spec, "nodeAffinity") {
        forbid(e, "nodeAffinity");
    }
    validate_source(e, spec, path);
    validate_reclaim_policy(e, spec, path);
    if !text(spec, "storageClassName").is_empty() {
        forbid(e, "storageClassName");
    }
    if !matches!(at(spec, "volumeMode").as_str(), None | Some("Filesystem")) {
        let reason = "may not specify volumeMode other than Filesystem in the context of inline volumes";
        e.forbidden(format!("{path}.volumeMode"), reason);
    }
}

/// Volume sources in the order of validation.
const SOURCES: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

fn validate_source(e: &mut Errors, spec: &Value, parent: &str) {
    let mut has_source = false;
    for kind in SOURCES.into_iter().filter(|kind| is_set(spec, kind)) {
        let path = format!("{parent}.{kind}");
        if has_source {
            let path = if kind == "cephfs" { format!("{parent}.cephFS") } else { path };
            e.forbidden(path, "may not specify more than 1 volume type");
            continue;
        }
        has_source = true;
        let source = at(spec, kind);
        match kind {
            "csi" => {
                volume::validate_driver_name(e, at(source, "driver"), &format!("{path}.driver"));
                volume::require_fields(e, source, &["volumeHandle"], &path);
                validate_secret_references(e, source, &path);
            }
            "azureFile" => volume::require_fields(e, source, &["secretName", "shareName"], &path),
            "gcePersistentDisk" => {
                volume_sources::validate_shared_source(e, kind, source, &format!("{parent}.persistentDisk"))
            }
            _ => volume_sources::validate_shared_source(e, kind, source, &path),
        }
        if kind == "local" && !is_set(spec, "nodeAffinity") {
            e.required(format!("{parent}.nodeAffinity"), "Local volume requires node affinity");
        }
    }
    if !has_source {
        e.required(parent, "must specify a volume type");
    }
}

/// `validatePVSecretReference` for all secrets of a driver.
fn validate_secret_references(e: &mut Errors, source: &Value, path: &str) {
    let kinds = ["controllerPublish", "controllerExpand", "nodePublish", "nodeExpand"];
    for field in kinds.iter().map(|kind| format!("{kind}SecretRef")).filter(|field| is_set(source, field)) {
        let (secret, path) = (at(source, &field), format!("{path}.{field}"));
        volume::require_fields(e, secret, &["name"], &path);
        if !text(secret, "name").is_empty() {
            e.push_name_errors(
                &format!("{path}.name"),
                text(secret, "name"),
                validate_dns1123_subdomain(text(secret, "name")),
            );
        }
        volume::require_fields(e, secret, &["namespace"], &path);
        if !text(secret, "namespace").is_empty() {
            e.push_name_errors(
                &format!("{path}.namespace"),
                text(secret, "namespace"),
                validate_dns1123_label(text(secret, "namespace")),
            );
        }
    }
}

pub(super) fn validate_persistent_volume_update(e: &mut Errors, old: &Value, new: &Value) {
    const MUTABLE_FIELDS: [&str; 9] = [
        "capacity",
        "accessModes",
        "claimRef",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "mountOptions",
        "volumeMode",
        "nodeAffinity",
        "volumeAttributesClassName",
    ];
    let source = |object: &Value| object::without_fields(at(object, "spec"), &MUTABLE_FIELDS);
    let (before, mut after) = (source(old), source(new));
    // A secret for expansion can be added later.
    const SECRET: &str = "controllerExpandSecretRef";
    if is_set(&before, "csi") && !is_set(at(&before, "csi"), SECRET) && is_set(at(&after, "csi"), SECRET) {
        object::remove_field(&mut after["csi"], SECRET);
    }
    if before != after {
        let difference = format_difference("core.PersistentVolumeSource", &before, &after);
        let reason = format!("spec.persistentvolumesource is immutable after creation\n{difference}");
        e.forbidden("spec.persistentvolumesource", &reason);
    }
    // The path of this field lacks its parent in kube-apiserver as well.
    e.immutable("volumeMode", at(old, "spec.volumeMode"), at(new, "spec.volumeMode"));
    let (affinity, new_affinity) = (at(old, "spec.nodeAffinity"), at(new, "spec.nodeAffinity"));
    if !affinity.is_null() && with_renamed_labels(affinity, new_affinity) != *new_affinity {
        let reason = "field is immutable, except for updating from beta label to GA";
        match new_affinity {
            Value::Null => e.invalid("nodeAffinity", new_affinity, reason),
            _ => e.push(go::invalid_struct("nodeAffinity", new_affinity, "core.VolumeNodeAffinity", reason)),
        }
    }
    if is_set(old, "spec.volumeAttributesClassName") && !is_set(new, "spec.volumeAttributesClassName") {
        e.forbidden("spec.volumeAttributesClassName", "update from non-nil value to nil is forbidden");
    }
}

/// The old affinity with deprecated labels replaced where the new affinity has the replacement.
fn with_renamed_labels(affinity: &Value, new_affinity: &Value) -> Value {
    let mut affinity = affinity.clone();
    let terms = affinity.pointer_mut("/required/nodeSelectorTerms").and_then(Value::as_array_mut).into_iter().flatten();
    for (index, term) in terms.enumerate() {
        for list in ["matchExpressions", "matchFields"] {
            let others =
                at(new_affinity, "required.nodeSelectorTerms").get(index).map_or(&[][..], |term| items(term, list));
            let requirements = term.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
            for (requirement, other) in requirements.zip(others) {
                if RENAMED_LABELS.contains(&(text(requirement, "key"), text(other, "key"))) {
                    requirement["key"] = other["key"].clone();
                }
            }
        }
    }
    affinity
}
