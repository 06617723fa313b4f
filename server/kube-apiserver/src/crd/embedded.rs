//! Embedded resources: objects in a custom resource that its schema marks with `x-kubernetes-embedded-resource`.
//!
//! Has no side effects. Used by `strategy`: wrong types of metadata are rejected when the object is decoded, other
//! errors after schema validation.

use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::format;
use crowsnest_registry::validation;
use crowsnest_schema::decode::{metadata_error, normalize_metadata};
use serde_json::Value;

use super::traversal::{MAX_DEPTH, visit_mut};
use super::values::child_path;

/// True if a schema contains embedded resources.
pub(super) fn contains_embedded_resources(schema: &Value) -> bool {
    let any_child = |key: &str| {
        schema[key].as_object().into_iter().flat_map(serde_json::Map::values).any(contains_embedded_resources)
    };
    let child = |key: &str| schema[key].is_object() && contains_embedded_resources(&schema[key]);
    schema["x-kubernetes-embedded-resource"] == true
        || any_child("properties")
        || child("additionalProperties")
        || child("items")
}

/// Validates the embedded resources in `value`.
pub(super) fn validate(schema: &Value, value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(schema, value, "", 0, &mut |value, path| validate_resource(value, path, &mut errors));
    errors
}

/// The error of the first embedded resource that cannot be decoded, because `apiVersion`, `kind` or a metadata field
/// has a wrong type.
pub(super) fn find_decode_error(schema: &Value, value: &Value) -> Option<FieldError> {
    let mut found = None;
    walk(schema, value, "", 0, &mut |value, path| {
        found = found.take().or_else(|| decode_error(value, path));
    });
    found
}

/// Normalizes the metadata of the embedded resources in `value` like Go, which decodes it and encodes it again.
pub(super) fn normalize(schema: &Value, value: &mut Value) {
    visit_mut(schema, value, &mut |schema, value| {
        if schema["x-kubernetes-embedded-resource"] == true
            && let Some(metadata) = value.get_mut("metadata")
        {
            if metadata.is_null() {
                *metadata = Value::Object(serde_json::Map::new());
            }
            if metadata_error(value).is_none() {
                normalize_metadata(value);
            }
        }
    });
}

/// Calls `visit` with each embedded resource and its path.
fn walk(schema: &Value, value: &Value, path: &str, depth: usize, visit: &mut impl FnMut(&Value, &str)) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(members) => {
            if schema["x-kubernetes-embedded-resource"] == true {
                visit(value, path);
            }
            for (key, member) in members {
                let property = schema["properties"].get(key);
                if let Some(schema) = property {
                    walk(schema, member, &child_path(path, key), depth + 1, visit);
                } else if schema["additionalProperties"].is_object() {
                    walk(&schema["additionalProperties"], member, &format!("{path}[{key}]"), depth + 1, visit);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(&schema["items"], item, &format!("{path}[{index}]"), depth + 1, visit);
            }
        }
        _ => {}
    }
}

fn decode_error(object: &Value, path: &str) -> Option<FieldError> {
    let type_error = ["apiVersion", "kind"].into_iter().find_map(|key| {
        let value = object.get(key).filter(|value| !value.is_string())?;
        Some(FieldError::invalid(child_path(path, key), value, "must be a string"))
    });
    type_error.or_else(|| {
        let reason = metadata_error(object)?;
        Some(FieldError::invalid(child_path(path, "metadata"), &object["metadata"], reason))
    })
}

fn validate_resource(object: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let absent = ["apiVersion", "kind"].into_iter().filter(|key| object.get(key).is_none());
    errors.extend(absent.map(|key| FieldError::required(child_path(path, key), "")));
    errors.extend(decode_error(object, path));
    for key in ["apiVersion", "kind"] {
        let Some(value) = object.get(key) else { continue };
        let reason = match value.as_str() {
            None => None,
            Some("") => Some("must not be empty".to_owned()),
            Some(text) if key == "apiVersion" => {
                (text.matches('/').count() > 1).then(|| format!("unexpected GroupVersion string: {text}"))
            }
            Some(text) => {
                let messages = format::validate_dns1035_label(&text.to_lowercase());
                (!messages.is_empty())
                    .then(|| format!("may have mixed case, but should otherwise match: {}", messages.join(",")))
            }
        };
        errors.extend(reason.map(|reason| FieldError::invalid(child_path(path, key), value, reason)));
    }
    if let (Some(Value::Object(metadata)), None) = (object.get("metadata"), metadata_error(object)) {
        let mut metadata = metadata.clone();
        if metadata.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
            // As in kube-apiserver: the name may be missing, the other metadata is validated with a placeholder.
            metadata.insert("name".into(), "fakename".into());
        }
        let namespaced = metadata.get("namespace").and_then(Value::as_str).is_some_and(|name| !name.is_empty());
        for mut error in validation::validate_object_meta(&metadata, namespaced, &format::validate_path_segment) {
            error.field = child_path(path, &error.field);
            errors.push(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_is_normalized_like_in_go() {
        let embedded = json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
        let schema = json!({"type": "object", "properties": {
            "one": embedded, "many": {"type": "array", "items": embedded}, "map": {"type": "object", "additionalProperties": embedded},
            "plain": {"type": "object"},
        }});
        for (metadata, expected) in [
            (json!({"name": "a", "labels": {}}), json!({"name": "a"})),
            (json!({"name": "a", "annotations": null}), json!({"name": "a"})),
            (Value::Null, json!({})),
            (json!({"labels": {"a": "b"}}), json!({"labels": {"a": "b"}})),
            (json!({"labels": 5}), json!({"labels": 5})),
        ] {
            let object = |metadata: &Value| {
                let pod = json!({"kind": "Pod", "metadata": metadata});
                json!({"one": pod, "many": [pod], "map": {"a": pod}, "plain": {"metadata": {"labels": {}}}})
            };
            let mut value = object(&metadata);
            normalize(&schema, &mut value);
            assert_eq!(value, object(&expected));
        }
    }

    #[test]
    fn embedded_resources_are_validated() {
        let embedded = json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"one": embedded, "many": {"type": "array", "items": embedded}}}}});
        assert!(
            contains_embedded_resources(&schema)
                && !contains_embedded_resources(&json!({"properties": {"spec": {"items": {"type": "object"}}}}))
        );
        for (spec, expected) in [
            (json!({"one": {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}}}), &[][..]),
            (json!({"one": {"foo": 1}}), &["spec.one.apiVersion: Required value", "spec.one.kind: Required value"][..]),
            (
                json!({"many": [{"apiVersion": "", "kind": 5}]}),
                &[
                    "spec.many[0].kind: Invalid value: 5: must be a string",
                    "spec.many[0].apiVersion: Invalid value: \"\": must not be empty",
                ][..],
            ),
            (
                json!({"one": {"apiVersion": "a/b/c", "kind": "Pod"}}),
                &["spec.one.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c"][..],
            ),
            (
                json!({"one": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": 5}}}),
                &[
                    "spec.one.metadata: Invalid value: {\"name\":5}: json: cannot unmarshal number into Go struct field ObjectMeta.name of type string",
                ][..],
            ),
            (
                json!({"one": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a/b"}}}),
                &["spec.one.metadata.name: Invalid value: \"a/b\": may not contain '/'"][..],
            ),
        ] {
            let found = validate(&schema, &json!({"spec": spec}));
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{spec}");
            let decode_error = find_decode_error(&schema, &json!({"spec": spec})).map(|error| error.to_string());
            let is_decode_error = |text: &&&str| text.contains("must be a string") || text.contains("cannot unmarshal");
            assert_eq!(decode_error.as_deref(), expected.iter().find(is_decode_error).copied(), "{spec}");
        }
    }
}
