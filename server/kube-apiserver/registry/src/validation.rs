//! Validation of labels, annotations and generic object metadata, as in apimachinery's `validation` package.
//!
//! Has no side effects. Used by every create and update of the registry, and by the strategies of built-in kinds and
//! custom resources.

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_apimachinery::names::format::{validate_dns1123_label, validate_label_value, validate_qualified_name};
use serde_json::{Map, Value, json};

const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;

/// `ValidateLabels`.
pub fn validate_labels(labels: Option<&Value>, field: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in labels.and_then(Value::as_object).into_iter().flatten() {
        errors.extend(validate_qualified_name(key).into_iter().map(|e| FieldError::invalid(field, &json!(key), e)));
        let text = value.as_str().unwrap_or_default();
        errors.extend(validate_label_value(text).into_iter().map(|e| FieldError::invalid(field, &json!(text), e)));
    }
    errors
}

/// `ValidateAnnotations`.
pub fn validate_annotations(annotations: Option<&Value>, field: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in annotations.and_then(Value::as_object).into_iter().flatten() {
        errors.extend(
            validate_qualified_name(&key.to_lowercase())
                .into_iter()
                .map(|e| FieldError::invalid(field, &json!(key), e)),
        );
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > MAX_ANNOTATIONS_BYTES {
        errors.push(FieldError::too_long(field, MAX_ANNOTATIONS_BYTES));
    }
    errors
}

fn validate_finalizers(metadata: &Map<String, Value>) -> Vec<FieldError> {
    const FIELD: &str = "metadata.finalizers";
    let names: Vec<&str> = strings(metadata.get("finalizers"));
    let name_errors = |name: &&str| {
        let name = json!(name);
        let reasons = validate_qualified_name(name.as_str().unwrap_or_default());
        reasons.into_iter().map(move |reason| FieldError::invalid(FIELD, &name, reason))
    };
    let mut errors: Vec<FieldError> = names.iter().flat_map(name_errors).collect();
    if names.contains(&"orphan") && names.contains(&"foregroundDeletion") {
        let text = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(FIELD, &json!(names), text));
    }
    errors
}

/// `validateKubeFinalizerName`: built-in kinds accept only the standard finalizers without a domain.
pub fn validate_kubernetes_finalizers(object: &Value) -> Vec<FieldError> {
    const STANDARD: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
    let names = strings(object.pointer("/metadata/finalizers"));
    let unknown = names.iter().enumerate().filter(|(_, name)| !name.contains('/') && !STANDARD.contains(name));
    let text = "name is neither a standard finalizer name nor is it fully qualified";
    unknown.map(|(i, name)| FieldError::invalid(format!("metadata.finalizers[{i}]"), &json!(name), text)).collect()
}

fn validate_owner_references(metadata: &Map<String, Value>) -> Vec<FieldError> {
    const FIELD: &str = "metadata.ownerReferences";
    let mut errors = Vec::new();
    let mut controller: Option<String> = None;
    let Some(all) = metadata.get("ownerReferences").and_then(Value::as_array) else { return errors };
    for reference in all {
        let text = |key: &str| reference.get(key).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind, name, uid) = (text("apiVersion"), text("kind"), text("name"), text("uid"));
        // An apiVersion with two slashes has neither group nor version.
        let parts: Vec<&str> = api_version.split('/').collect();
        let version = if parts.len() > 2 { "" } else { parts.last().copied().unwrap_or_default() };
        for (key, value, message) in [
            ("apiVersion", if version.is_empty() { "" } else { api_version }, "version must not be empty"),
            ("kind", kind, "must not be empty"),
            ("name", name, "must not be empty"),
            ("uid", uid, "must not be empty"),
        ] {
            if value.is_empty() {
                let rejected = if key == "apiVersion" { api_version } else { "" };
                errors.push(FieldError::invalid(format!("{FIELD}.{key}"), &json!(rejected), message));
            }
        }
        if (api_version, kind) == ("v1", "Event") {
            let message = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(FIELD, reference, message));
        }
        if reference.get("controller") == Some(&Value::Bool(true)) {
            let owner = format!("{kind}/{name}");
            match &controller {
                None => controller = Some(owner),
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {owner}"
                    );
                    let references = all.iter().map(print_owner).collect::<Vec<_>>().join(",");
                    let value = Some(format!("[{references}]"));
                    errors.push(FieldError::new(FieldErrorKind::Invalid, FIELD, value, detail));
                }
            }
        }
    }
    errors
}

/// Formats an owner reference as Go marshals it, with fields in the order of the struct.
fn print_owner(reference: &Value) -> String {
    let order = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
    let members: Vec<String> =
        order.iter().filter_map(|k| reference.get(k).map(|v| format!("{}:{v}", json!(k)))).collect();
    format!("{{{}}}", members.join(","))
}

fn strings(value: Option<&Value>) -> Vec<&str> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// `ValidateObjectMeta`. `check_name` is the kind's rule for names; its flag is true for prefixes.
pub fn validate_object_meta(
    metadata: &Map<String, Value>,
    namespaced: bool,
    check_name: &dyn Fn(&str, bool) -> Vec<String>,
) -> Vec<FieldError> {
    let text = |key: &str| metadata.get(key).and_then(Value::as_str).unwrap_or_default();
    let mut errors = Vec::new();
    let generate = text("generateName");
    if !generate.is_empty() {
        let messages = check_name(generate, true);
        errors.extend(messages.into_iter().map(|e| FieldError::invalid("metadata.generateName", &json!(generate), e)));
    }
    let name = text("name");
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else {
        let messages = check_name(name, false);
        errors.extend(messages.into_iter().map(|e| FieldError::invalid("metadata.name", &json!(name), e)));
    }
    errors.extend(validate_common_object_meta(metadata, namespaced));
    errors
}

/// Validates the metadata that all writes contain.
pub fn validate_common_object_meta(metadata: &Map<String, Value>, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let namespace = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
    if namespaced {
        if namespace.is_empty() {
            errors.push(FieldError::required("metadata.namespace", ""));
        } else {
            let messages = validate_dns1123_label(namespace);
            errors
                .extend(messages.into_iter().map(|e| FieldError::invalid("metadata.namespace", &json!(namespace), e)));
        }
    } else if !namespace.is_empty() {
        errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type"));
    }
    if let Some(generation) = metadata.get("generation")
        && generation.as_i64().is_some_and(|g| g < 0)
    {
        errors.push(FieldError::invalid("metadata.generation", generation, "must be greater than or equal to 0"));
    }
    errors.extend(validate_labels(metadata.get("labels"), "metadata.labels"));
    errors.extend(validate_annotations(metadata.get("annotations"), "metadata.annotations"));
    errors.extend(validate_owner_references(metadata));
    errors.extend(validate_finalizers(metadata));
    errors
}

/// `ValidateObjectMetaUpdate`.
pub fn validate_object_meta_update(new: &Map<String, Value>, old: &Map<String, Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if old.get("deletionTimestamp").is_some_and(|t| !t.is_null()) {
        let before = strings(old.get("finalizers"));
        let added: Vec<String> = strings(new.get("finalizers"))
            .into_iter()
            .filter(|f| !before.contains(f))
            .map(|f| format!("{f:?}"))
            .collect();
        if !added.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            errors.push(FieldError::forbidden("metadata.finalizers", detail));
        }
    }
    let number = |m: &Map<String, Value>| m.get("generation").and_then(Value::as_i64).unwrap_or(0);
    if number(new) < number(old) {
        let detail = "must not be decremented";
        errors.push(FieldError::invalid("metadata.generation", &json!(number(new)), detail));
    }
    for key in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let (a, b) = (non_empty(new.get(key)), non_empty(old.get(key)));
        if a != b {
            let value = a.cloned().unwrap_or(if key.starts_with("deletion") { Value::Null } else { json!("") });
            errors.push(FieldError::invalid(format!("metadata.{key}"), &value, "field is immutable"));
        }
    }
    errors.extend(validate_labels(new.get("labels"), "metadata.labels"));
    errors.extend(validate_annotations(new.get("annotations"), "metadata.annotations"));
    errors.extend(validate_owner_references(new));
    errors
}

fn non_empty(value: Option<&Value>) -> Option<&Value> {
    value.filter(|v| !v.is_null() && v.as_str() != Some(""))
}
