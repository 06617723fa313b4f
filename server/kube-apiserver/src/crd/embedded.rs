//! Embedded resources: objects in a custom resource that its schema marks with `x-kubernetes-embedded-resource`.
//!
//! Pure. Used by `strategy`: wrong types of metadata are rejected when the object is decoded, other errors after
//! schema validation.

use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::format;
use crowsnest_registry::validation;
use crowsnest_schema::decode::metadata_error;
use serde_json::Value;

/// Depth at which the walk ends; the decoder rejects such objects earlier.
const MAX_DEPTH: usize = 200;

/// True if a schema contains embedded resources.
pub(super) fn are_in(schema: &Value) -> bool {
    let of = |key: &str| schema[key].as_object().into_iter().flat_map(serde_json::Map::values).any(are_in);
    let single = |key: &str| schema[key].is_object() && are_in(&schema[key]);
    schema["x-kubernetes-embedded-resource"] == true
        || of("properties")
        || single("additionalProperties")
        || single("items")
}

/// Validates the embedded resources in `value`.
pub(super) fn validate(schema: &Value, value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(schema, value, "", 0, &mut |value, path| resource(value, path, &mut errors));
    errors
}

/// Error if a type or metadata field of an embedded resource has a wrong type, so that the object cannot be decoded.
pub(super) fn unreadable(schema: &Value, value: &Value) -> Option<FieldError> {
    let mut found = None;
    walk(schema, value, "", 0, &mut |value, path| {
        found = found.take().or_else(|| wrong_type(value, path));
    });
    found
}

/// Calls `see` with each embedded resource and its path.
fn walk(schema: &Value, value: &Value, path: &str, depth: usize, see: &mut impl FnMut(&Value, &str)) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(members) => {
            if schema["x-kubernetes-embedded-resource"] == true {
                see(value, path);
            }
            for (key, member) in members {
                let named = schema["properties"].get(key);
                if let Some(schema) = named {
                    walk(schema, member, &child(path, key), depth + 1, see);
                } else if schema["additionalProperties"].is_object() {
                    walk(&schema["additionalProperties"], member, &format!("{path}[{key}]"), depth + 1, see);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(&schema["items"], item, &format!("{path}[{index}]"), depth + 1, see);
            }
        }
        _ => {}
    }
}

fn child(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn wrong_type(object: &Value, path: &str) -> Option<FieldError> {
    let not_text = ["apiVersion", "kind"].into_iter().find_map(|key| {
        let value = object.get(key).filter(|value| !value.is_string())?;
        Some(FieldError::invalid(child(path, key), value, "must be a string"))
    });
    not_text.or_else(|| {
        let why = metadata_error(object)?;
        Some(FieldError::invalid(child(path, "metadata"), &object["metadata"], why))
    })
}

fn resource(object: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let absent = ["apiVersion", "kind"].into_iter().filter(|key| object.get(key).is_none());
    errors.extend(absent.map(|key| FieldError::required(child(path, key), "")));
    errors.extend(wrong_type(object, path));
    for key in ["apiVersion", "kind"] {
        let Some(value) = object.get(key) else { continue };
        let why = match value.as_str() {
            None => None,
            Some("") => Some("must not be empty".to_owned()),
            Some(text) if key == "apiVersion" => {
                (text.matches('/').count() > 1).then(|| format!("unexpected GroupVersion string: {text}"))
            }
            Some(text) => {
                let wrong = format::dns1035_label(&text.to_lowercase());
                (!wrong.is_empty())
                    .then(|| format!("may have mixed case, but should otherwise match: {}", wrong.join(",")))
            }
        };
        errors.extend(why.map(|why| FieldError::invalid(child(path, key), value, why)));
    }
    if let (Some(Value::Object(metadata)), None) = (object.get("metadata"), metadata_error(object)) {
        let mut metadata = metadata.clone();
        if metadata.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
            // The name may be generated later; everything else is validated now.
            metadata.insert("name".into(), "fakename".into());
        }
        let namespaced = metadata.get("namespace").and_then(Value::as_str).is_some_and(|name| !name.is_empty());
        for mut error in validation::validate_object_meta(&metadata, namespaced, &format::path_segment) {
            error.field = child(path, &error.field);
            errors.push(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn embedded_resources_need_kind_and_version() {
        let embedded = json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"one": embedded, "many": {"type": "array", "items": embedded}}}}});
        assert!(are_in(&schema) && !are_in(&json!({"properties": {"spec": {"items": {"type": "object"}}}})));
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
            let unreadable = unreadable(&schema, &json!({"spec": spec})).map(|error| error.to_string());
            let wrong = |text: &&&str| text.contains("must be a string") || text.contains("cannot unmarshal");
            assert_eq!(unreadable.as_deref(), expected.iter().find(wrong).copied(), "{spec}");
        }
    }
}
