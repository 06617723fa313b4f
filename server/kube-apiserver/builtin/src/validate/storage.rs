//! Validation of claims and storage classes.

use std::collections::{BTreeMap, BTreeSet};

use super::difference::format_difference;
use super::resources::amount;
use super::selector::validate_label_selector;
use super::{
    Errors, Value, are_equal, at, fields, is_set, items, json, text, validate_dns1123_label,
    validate_dns1123_subdomain, validate_qualified_name,
};
use crate::object;

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const CLAIM_UPDATE: &str =
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";

pub(super) fn validate_access_modes(e: &mut Errors, spec: &Value, path: &str) {
    let modes = items(spec, "accessModes");
    for mode in modes.iter().filter(|mode| !MODES.iter().any(|known| mode == known)) {
        e.unsupported(path, mode, &MODES);
    }
    let is_other = |mode: &Value| mode != "ReadWriteOncePod" && MODES.iter().any(|known| mode == known);
    if modes.iter().any(is_other) && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        e.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

pub(super) fn validate_claim_spec(e: &mut Errors, spec: &Value, path: &str) {
    if items(spec, "accessModes").is_empty() {
        e.required(format!("{path}.accessModes"), "at least 1 access mode is required");
    }
    if is_set(spec, "selector") {
        validate_label_selector(e, at(spec, "selector"), &format!("{path}.selector"));
    }
    validate_access_modes(e, spec, &format!("{path}.accessModes"));
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
        e.push_name_errors(&format!("{path}.storageClassName"), class, validate_dns1123_subdomain(class));
    }
    e.optional_one_of(&format!("{path}.volumeMode"), at(spec, "volumeMode"), &["Block", "Filesystem"]);
    validate_data_source(e, spec, path);
    let attributes = text(spec, "volumeAttributesClassName");
    if !attributes.is_empty() {
        e.push_name_errors(
            &format!("{path}.volumeAttributesClassName"),
            attributes,
            validate_dns1123_subdomain(attributes),
        );
    }
}

/// Validates `dataSource` and `dataSourceRef` of a claim.
fn validate_data_source(e: &mut Errors, spec: &Value, path: &str) {
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
            let reason = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            e.invalid(&path, &json!(kind), reason);
        }
        if !group.is_empty() {
            e.push_name_errors(&format!("{path}.apiGroup"), group, validate_dns1123_subdomain(group));
        }
        let namespace = text(source, "namespace");
        if field == "dataSourceRef" && !namespace.is_empty() {
            e.push_name_errors(&format!("{path}.namespace"), namespace, validate_dns1123_label(namespace));
        }
    }
    let (source, reference) = (at(spec, "dataSource"), at(spec, "dataSourceRef"));
    if source.is_null() || reference.is_null() {
        return;
    }
    // kube-apiserver prints its path object, which has no public fields, as the value.
    let value = json!({});
    if !text(reference, "namespace").is_empty() {
        e.invalid(path, &value, "may not be specified when dataSourceRef.namespace is specified");
    } else if ["apiGroup", "kind", "name"].iter().any(|part| at(source, part) != at(reference, part)) {
        e.invalid(path, &value, "must match dataSourceRef");
    }
}

const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub(super) fn validate_claim_update(e: &mut Errors, old: &Value, new: &Value) {
    validate_claim_spec(e, at(new, "spec"), "spec");
    // The new spec with permitted changes reverted; any remaining difference is an error.
    let mut new_spec = at(new, "spec").clone();
    let before = at(old, "spec");
    // The class can be moved from the deprecated annotation to the field.
    let annotated_class =
        |object| fields(object, "metadata.annotations").get(BETA_CLASS).and_then(Value::as_str).unwrap_or_default();
    let (old_class, new_class) = (annotated_class(old), annotated_class(new));
    if !is_set(before, "storageClassName")
        && !old_class.is_empty()
        && text(&new_spec, "storageClassName") == old_class
        && (new_class.is_empty() || new_class == old_class)
    {
        object::remove_field(&mut new_spec, "storageClassName");
    } else if old_class != new_class {
        e.invalid(format!("metadata.annotations.{BETA_CLASS}"), &json!(new_class), "field is immutable");
    }
    // The binder sets the volume name; a bound claim can be expanded.
    if text(before, "volumeName").is_empty() {
        object::copy_field(before, &mut new_spec, "volumeName");
    }
    // Claims created before there was a default class receive it later.
    if !is_set(before, "storageClassName") {
        object::copy_field(before, &mut new_spec, "storageClassName");
    }
    let bound = text(old, "status.phase") == "Bound";
    let request = |spec: &Value| fields(spec, "resources.requests").get("storage").and_then(amount);
    if bound {
        object::copy_field(before, &mut new_spec, "volumeAttributesClassName");
    }
    let (old_request, new_request) = (request(before), request(&new_spec));
    if (bound || old_request == new_request) && is_set(before, "resources") {
        object::copy_field(before, &mut new_spec, "resources");
    }
    if !are_equal(&new_spec, before) {
        let difference = format_difference("core.PersistentVolumeClaimSpec", before, &new_spec);
        e.forbidden("spec", &format!("{CLAIM_UPDATE}\n{difference}"));
    }
    let capacity = fields(old, "status.capacity").get("storage").and_then(amount);
    if request(at(new, "spec")) < old_request && request(at(new, "spec")) <= capacity {
        e.forbidden("spec.resources.requests.storage", "field can not be less than status.capacity");
    }
    e.immutable("volumeMode", at(before, "volumeMode"), at(new, "spec.volumeMode"));
    const FIELD: &str = "spec.volumeAttributesClassName";
    if at(old, FIELD) != at(new, FIELD) && is_set(old, "status.currentVolumeAttributesClassName") {
        let reason = |value: &str| {
            format!("update to {value} is forbidden when status.currentVolumeAttributesClassName is not nil")
        };
        match at(new, FIELD).as_str() {
            None => e.forbidden(FIELD, &reason("nil")),
            Some("") => e.forbidden(FIELD, &reason("empty string")),
            Some(_) => {}
        }
    }
}

pub(super) fn validate_storage_class(e: &mut Errors, object: &Value) {
    validate_provisioner(e, text(object, "provisioner"), "provisioner");
    validate_parameters(e, fields(object, "parameters"));
    e.optional_one_of("reclaimPolicy", at(object, "reclaimPolicy"), &["Delete", "Retain"]);
    if !is_set(object, "volumeBindingMode") {
        e.required("volumeBindingMode", "");
    } else if !matches!(text(object, "volumeBindingMode"), "Immediate" | "WaitForFirstConsumer") {
        e.unsupported("volumeBindingMode", at(object, "volumeBindingMode"), &["Immediate", "WaitForFirstConsumer"]);
    }
    validate_topologies(e, items(object, "allowedTopologies"));
}

/// Validates a driver name.
pub(super) fn validate_provisioner(e: &mut Errors, name: &str, field: &str) {
    if name.is_empty() {
        e.required(field, "");
    } else {
        let name = name.to_lowercase();
        e.push_name_errors(field, &name, validate_qualified_name(&name));
    }
}

pub(super) fn validate_parameters(e: &mut Errors, parameters: &serde_json::Map<String, Value>) {
    const MAX_PARAMETERS: usize = 512;
    const MAX_BYTES: usize = 256 * 1024;
    if parameters.len() > MAX_PARAMETERS {
        return e.push(super::FieldError::too_long("parameters", MAX_PARAMETERS));
    }
    for name in parameters.keys().filter(|name| name.is_empty()) {
        e.invalid("parameters", &json!(name), "field can not be empty.");
    }
    let size: usize = parameters.iter().map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
    if size > MAX_BYTES {
        e.push(super::FieldError::too_long("parameters", MAX_BYTES));
    }
}

fn validate_topologies(e: &mut Errors, terms: &[Value]) {
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
            e.push_name_errors(&format!("{path}.key"), key, validate_qualified_name(key));
            if expressions[..position].iter().any(|other| text(other, "key") == key) {
                e.duplicate(format!("{path}.key"), &json!(key));
            }
        }
        // kube-apiserver compares an empty term with all terms, and other terms with those before them.
        let empty = if expressions.is_empty() { terms.len() } else { 0 };
        let same = terms[..index].iter().filter(|other| requirements(other) == requirements(term)).count();
        for _ in 0..empty + same {
            let kind = super::FieldErrorKind::Duplicate;
            e.push(super::FieldError::new(kind, format!("{path}.matchLabelExpressions"), Some("\"\"".into()), ""));
        }
    }
}

/// Values by key; the last of duplicate keys counts.
fn requirements(term: &Value) -> BTreeMap<&str, BTreeSet<&str>> {
    let values = |expression| items(expression, "values").iter().filter_map(Value::as_str).collect();
    items(term, "matchLabelExpressions").iter().map(|one| (text(one, "key"), values(one))).collect()
}

pub(super) fn validate_storage_class_update(e: &mut Errors, old: &Value, new: &Value) {
    validate_storage_class(e, new);
    for field in ["parameters", "provisioner", "reclaimPolicy"] {
        e.immutable(field, at(old, field), at(new, field));
    }
    e.immutable("volumeBindingMode", at(old, "volumeBindingMode"), at(new, "volumeBindingMode"));
}
