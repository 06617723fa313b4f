//! Claims, volumes, storage classes.

use super::difference::difference;
use super::resources::amount;
use super::selector::{label_selector, node_selector};
use super::{
    Errors, Value, at, dns1123_label, dns1123_subdomain, fields, items, json, qualified_name, same, set, text, volume,
};
use crate::builtin::object;

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const CLAIM_UPDATE: &str =
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";

fn access_modes(e: &mut Errors, spec: &Value, path: &str) {
    let modes = items(spec, "accessModes");
    for mode in modes.iter().filter(|mode| !MODES.iter().any(|known| mode == known)) {
        e.unsupported(path, mode, &MODES);
    }
    let other = |mode: &Value| mode != "ReadWriteOncePod" && MODES.iter().any(|known| mode == known);
    if modes.iter().any(other) && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        e.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

pub(super) fn claim(e: &mut Errors, spec: &Value, path: &str) {
    if items(spec, "accessModes").is_empty() {
        e.required(format!("{path}.accessModes"), "at least 1 access mode is required");
    }
    if set(spec, "selector") {
        label_selector(e, at(spec, "selector"), &format!("{path}.selector"));
    }
    access_modes(e, spec, &format!("{path}.accessModes"));
    match fields(spec, "resources.requests").get("storage") {
        None => e.required(format!("{path}.resources[storage]"), ""),
        Some(value) => {
            if amount(value).is_some_and(|quantity| quantity.sign() <= 0) {
                e.invalid(format!("{path}.resources[storage]"), value, "must be greater than zero");
            }
        }
    }
    let class = text(spec, "storageClassName");
    if !class.is_empty() {
        e.names(&format!("{path}.storageClassName"), class, dns1123_subdomain(class));
    }
    e.optional_one_of(&format!("{path}.volumeMode"), at(spec, "volumeMode"), &["Block", "Filesystem"]);
    data_source(e, spec, path);
    let attributes = text(spec, "volumeAttributesClassName");
    if !attributes.is_empty() {
        e.names(&format!("{path}.volumeAttributesClassName"), attributes, dns1123_subdomain(attributes));
    }
}

/// Where the first content of a claim comes from, which may be told in two ways.
fn data_source(e: &mut Errors, spec: &Value, path: &str) {
    for field in ["dataSource", "dataSourceRef"] {
        let (source, path) = (at(spec, field), format!("{path}.{field}"));
        if source.is_null() {
            continue;
        }
        for part in ["name", "kind"] {
            if text(source, part).is_empty() {
                e.required(format!("{path}.{part}"), "");
            }
        }
        let (group, kind) = (text(source, "apiGroup"), text(source, "kind"));
        if group.is_empty() && kind != "PersistentVolumeClaim" {
            let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            e.invalid(&path, &json!(kind), why);
        }
        if !group.is_empty() {
            e.names(&format!("{path}.apiGroup"), group, dns1123_subdomain(group));
        }
        let namespace = text(source, "namespace");
        if field == "dataSourceRef" && !namespace.is_empty() {
            e.names(&format!("{path}.namespace"), namespace, dns1123_label(namespace));
        }
    }
    let (source, reference) = (at(spec, "dataSource"), at(spec, "dataSourceRef"));
    if source.is_null() || reference.is_null() {
        return;
    }
    // The value kube-apiserver prints is the path itself, a structure without public fields.
    let shown = json!({});
    if !text(reference, "namespace").is_empty() {
        e.invalid(path, &shown, "may not be specified when dataSourceRef.namespace is specified");
    } else if ["apiGroup", "kind", "name"].iter().any(|part| at(source, part) != at(reference, part)) {
        e.invalid(path, &shown, "must match dataSourceRef");
    }
}

pub(super) fn claim_update(e: &mut Errors, old: &Value, new: &Value) {
    claim(e, at(new, "spec"), "spec");
    let mut wanted = at(new, "spec").clone();
    let before = at(old, "spec");
    // The binder fills the volume's name; a bound claim may grow.
    if text(before, "volumeName").is_empty() {
        object::copy(before, &mut wanted, "volumeName");
    }
    // A claim made before there was a default class gets it later.
    if !set(before, "storageClassName") {
        object::copy(before, &mut wanted, "storageClassName");
    }
    let bound = text(old, "status.phase") == "Bound";
    let request = |spec: &Value| fields(spec, "resources.requests").get("storage").and_then(amount);
    if bound {
        object::copy(before, &mut wanted, "volumeAttributesClassName");
    }
    let (was, wants) = (request(before), request(&wanted));
    if (bound || was == wants) && set(before, "resources") {
        object::copy(before, &mut wanted, "resources");
    }
    if !same(&wanted, before) {
        let differs = difference("core.PersistentVolumeClaimSpec", before, &wanted);
        e.forbidden("spec", &format!("{CLAIM_UPDATE}\n{differs}"));
    }
    let held = fields(old, "status.capacity").get("storage").and_then(amount);
    if request(at(new, "spec")) < was && request(at(new, "spec")) <= held {
        e.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity");
    }
    e.immutable("volumeMode", at(before, "volumeMode"), at(new, "spec.volumeMode"));
    const FIELD: &str = "spec.volumeAttributesClassName";
    if at(old, FIELD) != at(new, FIELD) && set(old, "status.currentVolumeAttributesClassName") {
        let why = |value: &str| {
            format!("update to {value} is forbidden when status.currentVolumeAttributesClassName is not nil")
        };
        match at(new, FIELD).as_str() {
            None => e.forbidden(FIELD, &why("nil")),
            Some("") => e.forbidden(FIELD, &why("empty string")),
            Some(_) => {}
        }
    }
}

pub(super) fn volume(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    if items(spec, "accessModes").is_empty() {
        e.required("spec.accessModes", "");
    }
    access_modes(e, spec, "spec.accessModes");
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
    if set(spec, "nodeAffinity") {
        if set(spec, "nodeAffinity.required") {
            node_selector(e, at(spec, "nodeAffinity.required"), "spec.nodeAffinity.required");
        } else {
            e.required("spec.nodeAffinity.required", "must specify required node constraints");
        }
    }
    source(e, spec);
    let recycled = text(spec, "persistentVolumeReclaimPolicy") == "Recycle";
    let path = text(spec, "hostPath.path");
    if recycled && path.starts_with('/') && path.split('/').all(|part| part.is_empty() || part == ".") {
        let why = "may not be 'recycle' for a hostPath mount of '/'";
        e.forbidden("spec.persistentVolumeReclaimPolicy", why);
    }
    let class = text(spec, "storageClassName");
    if !class.is_empty() {
        e.names("spec.storageClassName", class, dns1123_subdomain(class));
    }
    e.optional_one_of("spec.volumeMode", at(spec, "volumeMode"), &["Block", "Filesystem"]);
}

/// In the order the sources are looked at.
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

fn source(e: &mut Errors, spec: &Value) {
    let mut found = false;
    for kind in SOURCES.into_iter().filter(|kind| set(spec, kind)) {
        let path = format!("spec.{kind}");
        if found {
            let path = if kind == "cephfs" { "spec.cephFS".to_owned() } else { path };
            e.forbidden(path, "may not specify more than 1 volume type");
            continue;
        }
        found = true;
        let source = at(spec, kind);
        match kind {
            "csi" => {
                volume::driver(e, at(source, "driver"), "spec.csi.driver");
                volume::needs(e, source, &["volumeHandle"], &path);
                secrets(e, source);
            }
            "azureFile" => volume::needs(e, source, &["secretName", "shareName"], &path),
            "gcePersistentDisk" => volume::shared(e, kind, source, "spec.persistentDisk"),
            _ => volume::shared(e, kind, source, &path),
        }
        if kind == "local" && !set(spec, "nodeAffinity") {
            e.required("spec.nodeAffinity", "Local volume requires node affinity");
        }
    }
    if !found {
        e.required("spec", "must specify a volume type");
    }
}

/// `validatePVSecretReference` of every secret a driver may need.
fn secrets(e: &mut Errors, source: &Value) {
    let kinds = ["controllerPublish", "controllerExpand", "nodePublish", "nodeExpand"];
    for field in kinds.iter().map(|kind| format!("{kind}SecretRef")).filter(|field| set(source, field)) {
        let (secret, path) = (at(source, &field), format!("spec.csi.{field}"));
        volume::needs(e, secret, &["name"], &path);
        if !text(secret, "name").is_empty() {
            e.names(&format!("{path}.name"), text(secret, "name"), dns1123_subdomain(text(secret, "name")));
        }
        volume::needs(e, secret, &["namespace"], &path);
        if !text(secret, "namespace").is_empty() {
            e.names(&format!("{path}.namespace"), text(secret, "namespace"), dns1123_label(text(secret, "namespace")));
        }
    }
}

pub(super) fn volume_update(e: &mut Errors, old: &Value, new: &Value) {
    const OPEN: [&str; 9] = [
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
    let source = |object: &Value| {
        let mut spec = at(object, "spec").clone();
        for field in OPEN {
            object::take(&mut spec, field);
        }
        spec
    };
    let (before, after) = (source(old), source(new));
    if before != after {
        let differs = difference("core.PersistentVolumeSource", &before, &after);
        let why = format!("spec.persistentvolumesource is immutable after creation\n{differs}");
        e.forbidden("spec.persistentvolumesource", &why);
    }
    // The path of this field lacks its parent in kube-apiserver too.
    e.immutable("volumeMode", at(old, "spec.volumeMode"), at(new, "spec.volumeMode"));
    if set(old, "spec.volumeAttributesClassName") && !set(new, "spec.volumeAttributesClassName") {
        e.forbidden("spec.volumeAttributesClassName", "update from non-nil value to nil is forbidden");
    }
}

pub(super) fn class(e: &mut Errors, object: &Value) {
    provisioner(e, text(object, "provisioner"), "provisioner");
    parameters(e, fields(object, "parameters"));
    e.optional_one_of("reclaimPolicy", at(object, "reclaimPolicy"), &["Delete", "Retain"]);
    if text(object, "volumeBindingMode").is_empty() {
        e.required("volumeBindingMode", "");
    } else if !matches!(text(object, "volumeBindingMode"), "Immediate" | "WaitForFirstConsumer") {
        e.unsupported("volumeBindingMode", at(object, "volumeBindingMode"), &["Immediate", "WaitForFirstConsumer"]);
    }
    topologies(e, items(object, "allowedTopologies"));
}

/// A driver by its name.
pub(super) fn provisioner(e: &mut Errors, name: &str, field: &str) {
    if name.is_empty() {
        e.required(field, "");
    } else {
        e.names(field, name, qualified_name(&name.to_lowercase()));
    }
}

pub(super) fn parameters(e: &mut Errors, parameters: &serde_json::Map<String, Value>) {
    const MOST: usize = 512;
    const SIZE: usize = 256 * 1024;
    if parameters.len() > MOST {
        return e.push(super::FieldError::too_long("parameters", MOST));
    }
    for name in parameters.keys().filter(|name| name.is_empty()) {
        e.invalid("parameters", &json!(name), "field can not be empty.");
    }
    let size: usize = parameters.iter().map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
    if size > SIZE {
        e.push(super::FieldError::too_long("parameters", SIZE));
    }
}

fn topologies(e: &mut Errors, terms: &[Value]) {
    for (index, term) in terms.iter().enumerate() {
        let path = format!("allowedTopologies[{index}]");
        let expressions = items(term, "matchLabelExpressions");
        for (position, expression) in expressions.iter().enumerate() {
            let path = format!("{path}.matchLabelExpressions[{position}]");
            let (key, values) = (text(expression, "key"), items(expression, "values"));
            if values.is_empty() {
                e.required(format!("{path}.values"), "");
            }
            for (v, value) in values.iter().enumerate().filter(|(v, value)| values[..*v].contains(value)) {
                e.duplicate(format!("{path}.values[{v}]"), value);
            }
            e.names(&format!("{path}.key"), key, qualified_name(key));
            if expressions[..position].iter().any(|other| text(other, "key") == key) {
                e.duplicate(format!("{path}.key"), &json!(key));
            }
        }
        if terms[..index].contains(term) {
            let kind = super::FieldErrorKind::Duplicate;
            e.push(super::FieldError::new(kind, format!("{path}.matchLabelExpressions"), Some("\"\"".into()), ""));
        }
    }
}

pub(super) fn class_update(e: &mut Errors, old: &Value, new: &Value) {
    for field in ["parameters", "provisioner", "reclaimPolicy"] {
        e.immutable(field, at(old, field), at(new, field));
    }
    e.immutable("volumeBindingMode", at(old, "volumeBindingMode"), at(new, "volumeBindingMode"));
}
