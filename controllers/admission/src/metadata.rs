//! Validation of object metadata, for all kinds.

use std::collections::BTreeMap;

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_apimachinery::names::format;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Maximum size of all annotations of an object in bytes.
const TOTAL_ANNOTATION_SIZE_LIMIT: usize = 256 * 1024;

/// Validates name, namespace, labels and annotations. `name_rule` returns the problems of a name.
pub(super) fn validate(
    metadata: &ObjectMeta,
    is_namespaced: bool,
    name_rule: impl Fn(&str) -> Vec<String>,
) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match metadata.name.as_deref().unwrap_or_default() {
        "" => errors.push(FieldError::required("metadata.name", "name or generateName is required")),
        name => errors
            .extend(name_rule(name).into_iter().map(|problem| FieldError::invalid("metadata.name", name, problem))),
    }
    match (metadata.namespace.as_deref().unwrap_or_default(), is_namespaced) {
        ("", true) => errors.push(FieldError::required("metadata.namespace", "")),
        (namespace, true) => errors.extend(
            format::validate_dns1123_label(namespace)
                .into_iter()
                .map(|problem| FieldError::invalid("metadata.namespace", namespace, problem)),
        ),
        ("", false) => {}
        (_, false) => errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type")),
    }
    if let Some(labels) = &metadata.labels {
        errors.extend(validate_labels(labels, "metadata.labels"));
    }
    if let Some(annotations) = &metadata.annotations {
        errors.extend(validate_annotations(annotations, "metadata.annotations"));
    }
    errors
}

/// Validates keys and values of labels.
pub(super) fn validate_labels(labels: &BTreeMap<String, String>, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in labels {
        errors.extend(validate_label_name(key, path));
        errors.extend(
            format::validate_label_value(value).into_iter().map(|problem| FieldError::invalid(path, value, problem)),
        );
    }
    errors
}

/// Validates the key of a label.
pub(super) fn validate_label_name(key: &str, path: &str) -> Vec<FieldError> {
    format::validate_qualified_name(key).into_iter().map(|problem| FieldError::invalid(path, key, problem)).collect()
}

/// Validates keys of annotations, which are case-insensitive, and their total size.
pub(super) fn validate_annotations(annotations: &BTreeMap<String, String>, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for key in annotations.keys() {
        let problems = format::validate_qualified_name(&key.to_lowercase());
        errors.extend(problems.into_iter().map(|problem| FieldError::invalid(path, key, problem)));
    }
    let size: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if size > TOTAL_ANNOTATION_SIZE_LIMIT {
        let detail = format!("may not be more than {TOTAL_ANNOTATION_SIZE_LIMIT} bytes");
        errors.push(FieldError::new(FieldErrorKind::TooLong, path, None, detail));
    }
    errors
}

/// Value of a label. Empty if it is missing.
pub(super) fn label<'m>(metadata: &'m ObjectMeta, key: &str) -> &'m str {
    metadata.labels.as_ref().and_then(|labels| labels.get(key)).map_or("", String::as_str)
}

pub(super) fn set_label(metadata: &mut ObjectMeta, key: &str, value: &str) {
    metadata.labels.get_or_insert_default().insert(key.to_owned(), value.to_owned());
}

pub(super) fn add_finalizer(metadata: &mut ObjectMeta, finalizer: &str) {
    let finalizers = metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|present| present == finalizer) {
        finalizers.push(finalizer.to_owned());
    }
}
