//! `FromUnstructured`: conversion of a merged object to a Go value.

use serde_json::Value;

use super::golang::kind_of;
use crate::{Schema, Type};

/// Converts numbers to their Go types and returns the error of a value that cannot be converted, in the converter's
/// wording. Types with their own decoder are only checked for their JSON kind.
pub(super) fn convert(schema: &Schema, value: &mut Value) -> Option<String> {
    convert_as(schema, "", value)
}

fn convert_as(schema: &Schema, go_type: &str, value: &mut Value) -> Option<String> {
    if value.is_null() {
        return None;
    }
    let kind = kind_of(value);
    match schema.ty {
        Type::Object => match value {
            // Fields are converted in the order of their declaration.
            Value::Object(fields) if !schema.properties.is_empty() => {
                let mut declared: Vec<_> = schema.properties.iter().collect();
                declared.sort_by_key(|(_, field)| field.go_field.as_ref().map(|go_field| go_field.order));
                declared.into_iter().find_map(|(name, field)| {
                    let go_type = field.go_field.as_ref().map_or("", |go_field| &*go_field.ty);
                    convert_as(&field.node, go_type, fields.get_mut(&**name)?)
                })
            }
            Value::Object(fields) => {
                let node = schema.additional_properties.as_deref()?;
                fields.values_mut().find_map(|value| convert_as(node, element_type(go_type), value))
            }
            _ if schema.properties.is_empty() => Some(format!("cannot restore map from {kind}")),
            _ => Some(format!("cannot restore struct from: {kind}")),
        },
        Type::Array => match value {
            Value::Array(items) => {
                let node = schema.items.as_deref()?;
                items.iter_mut().find_map(|item| convert_as(node, element_type(go_type), item))
            }
            _ => Some(format!("cannot restore slice from {kind}")),
        },
        Type::String => match value {
            Value::String(_) => None,
            // Go can convert integers to strings, as runes, but the converter rejects them.
            Value::Number(number) if number.is_i64() => {
                Some(format!("cannot convert {kind} to {}", go_type_name(go_type, "string")))
            }
            _ => Some("unrecognized type: string".into()),
        },
        Type::Boolean if !value.is_boolean() => Some("unrecognized type: bool".into()),
        Type::Integer => {
            let format = schema.format.as_deref().unwrap_or("int64");
            let Value::Number(number) = &*value else { return Some(format!("unrecognized type: {format}")) };
            let integer = match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => integer,
                (None, Some(float)) if float.fract() == 0.0 => to_i64(float),
                _ => return Some(format!("cannot convert {kind} to {}", go_type_name(go_type, format))),
            };
            *value = if format == "int32" { Value::from(integer as i32) } else { Value::from(integer) };
            None
        }
        Type::Number if !value.is_number() => Some("unrecognized type: float64".into()),
        Type::IntOrString => match &*value {
            Value::String(_) => None,
            Value::Number(number) if number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) => None,
            other => Some(unmarshal_error(other, "int32")),
        },
        Type::Time | Type::MicroTime if !value.is_string() => Some(unmarshal_error(value, "string")),
        _ => None,
    }
}

/// The error of Go's JSON decoder for a value of a wrong type.
fn unmarshal_error(value: &Value, go_type: &str) -> String {
    let json_kind = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(number) if go_type == "int32" => format!("number {number}"),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) => "array".to_owned(),
        Value::Object(_) => "object".to_owned(),
    };
    format!("json: cannot unmarshal {json_kind} into Go value of type {go_type}")
}

/// Converts a float like Go on amd64: values out of range become the smallest integer.
fn to_i64(float: f64) -> i64 {
    let fits = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&float);
    if fits { float as i64 } else { i64::MIN }
}

/// Element type of `[]v1.Container` or `map[string]string`; empty for named types.
fn element_type(go_type: &str) -> &str {
    let go_type = go_type.trim_start_matches('*');
    match go_type.strip_prefix("[]") {
        Some(element) => element,
        None => go_type.strip_prefix("map[").and_then(|rest| rest.split_once(']')).map_or("", |(_, element)| element),
    }
}

/// Name of the Go type `go_type`; `plain` if it is unknown.
fn go_type_name<'g>(go_type: &'g str, plain: &'g str) -> &'g str {
    match go_type.trim_start_matches('*') {
        "" => plain,
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema_set::SchemaSet;

    #[test]
    fn type_errors_match_the_converter() {
        let schema = SchemaSet::builtin().kind("", "v1", "Pod").unwrap();
        for (object, expected) in [
            (json!({"metadata": {"labels": {"a": 5}}}), Some("cannot convert int64 to string")),
            (json!({"metadata": {"labels": {"a": true}}}), Some("unrecognized type: string")),
            (json!({"metadata": {"labels": ["a"]}}), Some("cannot restore map from slice")),
            (json!({"metadata": {"ownerReferences": [{"uid": 5}]}}), Some("cannot convert int64 to types.UID")),
            (json!({"spec": "x"}), Some("cannot restore struct from: string")),
            (json!({"spec": {"containers": {"a": "b"}}}), Some("cannot restore slice from map")),
            (json!({"spec": {"priority": "x"}}), Some("unrecognized type: int32")),
            (json!({"spec": {"priority": 1.5}}), Some("cannot convert float64 to int32")),
            (json!({"spec": {"hostNetwork": "x"}}), Some("unrecognized type: bool")),
            (json!({"spec": {"restartPolicy": 5}}), Some("cannot convert int64 to v1.RestartPolicy")),
            (json!({"spec": {"restartPolicy": true}}), Some("unrecognized type: string")),
            (
                json!({"metadata": {"creationTimestamp": 5}}),
                Some("json: cannot unmarshal number into Go value of type string"),
            ),
            (
                json!({"spec": {"containers": [{"livenessProbe": {"httpGet": {"port": true}}}]}}),
                Some("json: cannot unmarshal bool into Go value of type int32"),
            ),
            (json!({"spec": {"containers": [{"args": ["x", 1.5]}]}}), Some("unrecognized type: string")),
            (
                json!({"spec": {"containers": [{"securityContext": {"capabilities": {"add": [5]}}}]}}),
                Some("cannot convert int64 to v1.Capability"),
            ),
            (json!({"spec": {"priority": 1, "hostNetwork": true, "unknown": [], "nodeName": null}}), None),
        ] {
            assert_eq!(convert(&schema, &mut object.clone()).as_deref(), expected, "{object}");
        }
    }

    #[test]
    fn numbers_are_converted() {
        let schema = SchemaSet::builtin().kind("apps", "v1", "Deployment").unwrap();
        for (replicas, expected) in [
            (json!(3), 3),
            (json!(3.0), 3),
            (json!(4_294_967_297_i64), 1),
            (json!(2_147_483_648_i64), i32::MIN),
            (json!(1e30), 0),
            (json!(18_446_744_073_709_551_615_u64), 0),
        ] {
            let mut object = json!({"spec": {"replicas": replicas}});
            assert_eq!(convert(&schema, &mut object), None, "{replicas}");
            assert_eq!(object, json!({"spec": {"replicas": expected}}), "{replicas}");
        }
    }
}
