//! Formats API objects as kube-apiserver's messages print its internal structs: with Go's names and all fields.
//!
//! The definitions are loaded from `schemas/internal.json.gz`; values are taken from API objects. Used by
//! validation, and for the annotations of the old autoscaling API.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::Value;

use super::compressed::decompress;
use super::ordered_json::Json;
use super::print::{definition_to_json, encode_compact, encode_pretty};

static COMPRESSED: &[u8] = include_bytes!("../schemas/internal.json.gz");

/// Go name (empty for an embedded struct), Go type, field of the API: empty for the object itself, with the prefix `^` for
/// a field of the enclosing object.
type Field = (String, String, String);

static STRUCTS: LazyLock<HashMap<String, Vec<Field>>> = LazyLock::new(|| {
    serde_json::from_slice(&decompress(COMPRESSED)).expect("internal.json.gz has the format of internal.py")
});

/// Formats a value as a struct (`core.PodSpec`) or a list of structs (`[]core.Taint`).
pub fn format_internal_struct(name: &str, value: &Value) -> String {
    encode_compact(&go_value(name, value, value))
}

/// Like [`format_internal_struct`], with one line per field.
pub fn format_internal_struct_lines(name: &str, value: &Value) -> String {
    encode_pretty(&go_value(name, value, value))
}

/// Converts a value to the JSON of the Go type `go_type`. `owner` is the object that contains the value.
fn go_value(go_type: &str, value: &Value, owner: &Value) -> Json {
    if let Some(target) = go_type.strip_prefix('*') {
        return if value.is_null() { Json::Null } else { go_value(target, value, owner) };
    }
    if let Some(element) = go_type.strip_prefix("[]") {
        let Some(items) = value.as_array() else { return Json::Null };
        return Json::Array(items.iter().map(|item| go_value(element, item, item)).collect());
    }
    if let Some(element) = go_type.strip_prefix("map:") {
        let Some(fields) = value.as_object() else { return Json::Null };
        let mut fields: Vec<_> = fields.iter().collect();
        fields.sort_by_key(|(key, _)| key.as_str());
        let member = |(key, value): (&String, &Value)| (key.clone(), go_value(element, value, value));
        return Json::Object(fields.into_iter().map(member).collect());
    }
    let zero = match go_type {
        _ if !value.is_null() => None,
        "string" => Some("".into()),
        "bool" => Some(false.into()),
        "number" | "intorstring" => Some(0.into()),
        "quantity" => Some("0".into()),
        _ => None,
    };
    match STRUCTS.get(go_type) {
        Some(fields) => struct_fields(fields, value, owner),
        None if go_type.starts_with("io.k8s.") => definition_to_json(value, go_type),
        None => Json::from_value(zero.unwrap_or_else(|| value.clone())),
    }
}

fn struct_fields(fields: &[Field], value: &Value, owner: &Value) -> Json {
    let mut out = Vec::with_capacity(fields.len());
    for (name, go_type, field) in fields {
        let source = match field.strip_prefix('^') {
            Some(field) => owner.get(field),
            None if field.is_empty() => Some(value),
            None => value.get(field),
        };
        let converted = go_value(go_type, source.unwrap_or(&Value::Null), value);
        match converted {
            Json::Object(embedded) if name.is_empty() => out.extend(embedded),
            _ if name.is_empty() => {}
            other => out.push((name.clone(), other)),
        }
    }
    Json::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn structs_are_printed_with_all_go_fields() {
        let cases = [
            (
                "core.Taint",
                json!({"key": "a", "effect": "NoSchedule"}),
                r#"{"Key":"a","Value":"","Effect":"NoSchedule","TimeAdded":null}"#,
            ),
            (
                "apps.DaemonSetUpdateStrategy",
                json!({"type": "a", "rollingUpdate": {"maxUnavailable": "5%"}}),
                r#"{"Type":"a","RollingUpdate":{"MaxUnavailable":"5%","MaxSurge":0}}"#,
            ),
            ("[]core.PodIP", json!([{"ip": "<"}]), r#"[{"IP":"\u003c"}]"#),
            ("[]core.PodIP", Value::Null, "null"),
            // Embedded struct with an API type inside.
            (
                "core.EnvFromSource",
                json!({"configMapRef": {"name": "a"}}),
                r#"{"Prefix":"","ConfigMapRef":{"Name":"a","Optional":null},"SecretRef":null}"#,
            ),
            ("core.ScopeSelector", json!({"matchExpressions": []}), r#"{"MatchExpressions":[]}"#),
        ];
        for (name, value, expected) in cases {
            assert_eq!(format_internal_struct(name, &value), expected, "{name}");
        }
        let pod = json!({"hostNetwork": true, "securityContext": {"runAsUser": 5}});
        let text = format_internal_struct("core.PodSpec", &pod);
        assert!(text.contains(r#""SecurityContext":{"HostNetwork":true,"HostPID":false,"#), "{text}");
        let template = json!({"metadata": {"labels": {"a": "b"}}});
        let text = format_internal_struct("core.PodTemplateSpec", &template);
        assert!(text.starts_with(r#"{"labels":{"a":"b"},"Spec":{"Volumes":null,"#), "{text}");
        assert_eq!(format_internal_struct_lines("core.PodIP", &json!({})), "{\n \"IP\": \"\"\n}");
    }
}
