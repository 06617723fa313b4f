//! Objects within a custom resource that its schema declares to be resources of their own (`x-kubernetes-embedded-resource`).
//!
//! Pure. Read by `strategy`, after the schema itself was checked.

use crowsnest_api::field::FieldError;
use serde_json::Value;

use crate::registry::validation;
use crate::schema::decode::wrong_metadata;

/// Deeper objects than this are not walked further; the decoder refuses them long before.
const MAX_DEPTH: usize = 200;

/// What is wrong with the resources that stand in `value`.
pub(super) fn validate(schema: &Value, value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(schema, value, "", 0, &mut errors);
    errors
}

fn walk(schema: &Value, value: &Value, path: &str, depth: usize, errors: &mut Vec<FieldError>) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(members) => {
            if schema["x-kubernetes-embedded-resource"] == true {
                resource(value, path, errors);
            }
            for (key, member) in members {
                let named = schema["properties"].get(key);
                if let Some(schema) = named {
                    walk(schema, member, &child(path, key), depth + 1, errors);
                } else if schema["additionalProperties"].is_object() {
                    walk(&schema["additionalProperties"], member, &format!("{path}[{key}]"), depth + 1, errors);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(&schema["items"], item, &format!("{path}[{index}]"), depth + 1, errors);
            }
        }
        _ => {}
    }
}

fn child(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn resource(object: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let absent = ["apiVersion", "kind"].into_iter().filter(|key| object.get(key).is_none());
    errors.extend(absent.map(|key| FieldError::required(child(path, key), "")));
    for key in ["apiVersion", "kind"] {
        let Some(value) = object.get(key) else { continue };
        let why = match value.as_str() {
            None => Some("must be a string".to_owned()),
            Some("") => Some("must not be empty".into()),
            Some(text) if key == "apiVersion" => {
                (text.matches('/').count() > 1).then(|| format!("unexpected GroupVersion string: {text}"))
            }
            Some(text) => {
                let wrong = validation::dns1035_label(&text.to_lowercase());
                (!wrong.is_empty())
                    .then(|| format!("may have mixed case, but should otherwise match: {}", wrong.join(",")))
            }
        };
        errors.extend(why.map(|why| FieldError::invalid(child(path, key), value, why)));
    }
    let Some(metadata) = object.get("metadata") else { return };
    if let Some(why) = wrong_metadata(object) {
        errors.push(FieldError::invalid(child(path, "metadata"), metadata, why));
    } else if let Value::Object(metadata) = metadata {
        let mut metadata = metadata.clone();
        if metadata.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
            // The name may come later; everything else is checked now.
            metadata.insert("name".into(), "fakename".into());
        }
        let namespaced = metadata.get("namespace").and_then(Value::as_str).is_some_and(|name| !name.is_empty());
        for mut error in validation::object_meta(&metadata, namespaced, &validation::path_segment) {
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
    fn embedded_resources_say_what_they_are() {
        let embedded = json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"one": embedded, "many": {"type": "array", "items": embedded}}}}});
        for (spec, expected) in [
            (json!({"one": {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}}}), &[][..]),
            (json!({"one": {"foo": 1}}), &["spec.one.apiVersion: Required value", "spec.one.kind: Required value"][..]),
            (
                json!({"many": [{"apiVersion": "", "kind": 5}]}),
                &[
                    "spec.many[0].apiVersion: Invalid value: \"\": must not be empty",
                    "spec.many[0].kind: Invalid value: 5: must be a string",
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
        }
    }
}
