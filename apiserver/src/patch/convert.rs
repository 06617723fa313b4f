//! `FromUnstructured`: how a merged object becomes a Go value.

use serde_json::Value;

use super::golang::kind_of;
use crate::schema::{Schema, Type};

/// What in a merged object does not fit its Go type, in the words of the converter that puts it there. Types that decode
/// themselves (times, quantities) are left to the reader of JSON.
pub(super) fn convert(schema: &Schema, value: &Value) -> Option<String> {
    let kind = kind_of(value);
    match (schema.ty, value) {
        (_, Value::Null) => None,
        (Type::Object, Value::Object(fields)) => {
            fields.iter().find_map(|(key, value)| convert(schema.child(key)?, value))
        }
        (Type::Object, _) if schema.properties.is_empty() => Some(format!("cannot restore map from {kind}")),
        (Type::Object, _) => Some(format!("cannot restore struct from: {kind}")),
        (Type::Array, Value::Array(items)) => {
            let element = schema.items.as_deref()?;
            items.iter().find_map(|item| convert(element, item))
        }
        (Type::Array, _) => Some(format!("cannot restore slice from {kind}")),
        (Type::String, Value::Number(_)) => Some(format!("cannot convert {kind} to string")),
        (Type::String, value) if !value.is_string() => Some("unrecognized type: string".into()),
        (Type::Boolean, value) if !value.is_boolean() => Some("unrecognized type: bool".into()),
        (Type::Integer, Value::Number(number)) if number.as_f64().is_some_and(|n| n.fract() != 0.0) => {
            Some(format!("cannot convert {kind} to {}", schema.format.as_deref().unwrap_or("int64")))
        }
        (Type::Integer, value) if !value.is_number() => {
            Some(format!("unrecognized type: {}", schema.format.as_deref().unwrap_or("int64")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::set::SchemaSet;

    #[test]
    fn wrong_types_are_worded_as_the_converter_does() {
        let schema = SchemaSet::builtin().kind("", "v1", "Pod").unwrap();
        for (object, expected) in [
            (json!({"metadata": {"labels": {"a": 5}}}), Some("cannot convert int64 to string")),
            (json!({"metadata": {"labels": {"a": true}}}), Some("unrecognized type: string")),
            (json!({"metadata": {"labels": ["a"]}}), Some("cannot restore map from slice")),
            (json!({"spec": "x"}), Some("cannot restore struct from: string")),
            (json!({"spec": {"containers": {"a": "b"}}}), Some("cannot restore slice from map")),
            (json!({"spec": {"priority": "x"}}), Some("unrecognized type: int32")),
            (json!({"spec": {"hostNetwork": "x"}}), Some("unrecognized type: bool")),
            (json!({"spec": {"priority": 1, "hostNetwork": true, "unknown": []}}), None),
        ] {
            assert_eq!(convert(&schema, &object).as_deref(), expected, "{object}");
        }
    }
}
