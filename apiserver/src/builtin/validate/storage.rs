//! Claims, volumes, storage classes.

use super::resources::amount;
use super::selector::{label_selector, node_selector};
use super::{Errors, Value, at, dns1123_subdomain, fields, items, json, set, text};
use crate::builtin::object;

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const CLAIM_UPDATE: &str =
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";

fn access_modes(e: &mut Errors, spec: &Value, path: &str) {
    let modes = items(spec, "accessModes");
    for mode in modes.iter().filter(|mode| !MODES.iter().any(|known| mode == known)) {
        e.unsupported(path, mode, &MODES);
    }
    if modes.len() > 1 && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
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
    if &wanted != before {
        e.forbidden("spec", CLAIM_UPDATE);
    } else if bound && wants < was {
        e.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity");
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
        e.unsupported("spec.capacity", &json!(capacity), &["storage"]);
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
    if set(spec, "nodeAffinity.required") {
        node_selector(e, at(spec, "nodeAffinity.required"), "spec.nodeAffinity.required");
    }
    const PLAIN: [&str; 10] = [
        "capacity",
        "accessModes",
        "claimRef",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "mountOptions",
        "volumeMode",
        "nodeAffinity",
        "volumeAttributesClassName",
        "none",
    ];
    let sources: Vec<&String> = spec
        .as_object()
        .into_iter()
        .flat_map(|s| s.iter())
        .filter(|(k, v)| !PLAIN.contains(&k.as_str()) && !v.is_null())
        .map(|(k, _)| k)
        .collect();
    if sources.is_empty() {
        e.required("spec", "must specify a volume type");
    }
    for extra in sources.iter().skip(1) {
        e.forbidden(format!("spec.{extra}"), "may not specify more than 1 volume type");
    }
    if set(spec, "hostPath") && text(spec, "hostPath.path").is_empty() {
        e.required("spec.hostPath.path", "");
    }
    if set(spec, "local") && !set(spec, "nodeAffinity") {
        e.required("spec.nodeAffinity", "Local volume requires node affinity");
    }
    let class = text(spec, "storageClassName");
    if !class.is_empty() {
        e.names("spec.storageClassName", class, dns1123_subdomain(class));
    }
    e.optional_one_of("spec.volumeMode", at(spec, "volumeMode"), &["Block", "Filesystem"]);
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
    if source(old) != source(new) {
        e.forbidden("spec.persistentvolumesource", "spec.persistentvolumesource is immutable after creation");
    }
    e.immutable("spec.volumeMode", at(old, "spec.volumeMode"), at(new, "spec.volumeMode"));
}

pub(super) fn class(e: &mut Errors, object: &Value) {
    if text(object, "provisioner").is_empty() {
        e.required("provisioner", "");
    }
    e.optional_one_of("reclaimPolicy", at(object, "reclaimPolicy"), &["Delete", "Retain"]);
    if !set(object, "volumeBindingMode") {
        e.required("volumeBindingMode", "");
    } else if !matches!(text(object, "volumeBindingMode"), "Immediate" | "WaitForFirstConsumer") {
        e.unsupported("volumeBindingMode", at(object, "volumeBindingMode"), &["Immediate", "WaitForFirstConsumer"]);
    }
}

pub(super) fn class_update(e: &mut Errors, old: &Value, new: &Value) {
    if at(old, "parameters") != at(new, "parameters") {
        e.forbidden("parameters", "updates to parameters are forbidden.");
    }
    if at(old, "provisioner") != at(new, "provisioner") {
        e.forbidden("provisioner", "updates to provisioner are forbidden.");
    }
    if at(old, "reclaimPolicy") != at(new, "reclaimPolicy") {
        e.forbidden("reclaimPolicy", "updates to reclaimPolicy are forbidden.");
    }
    e.immutable("volumeBindingMode", at(old, "volumeBindingMode"), at(new, "volumeBindingMode"));
}
