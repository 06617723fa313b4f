//! The structs that kube-apiserver itself works with, as its messages repeat them: with Go's names, and nothing left out.
//!
//! Which there are is read once from `schemas/internal.json.gz`; what stands in one is read from the object of the API. Read by
//! validation, and by what the old autoscaling API keeps in annotations.

use std::collections::HashMap;
use std::io::Read;
use std::sync::LazyLock;

use serde_json::Value;

use super::ordered::Json;
use super::print::{compact, of_definition, pretty};

static PACKED: &[u8] = include_bytes!("../schemas/internal.json.gz");

/// (Go name, empty for an embedded struct; Go type; the field of the API).
type Field = (String, String, String);

static STRUCTS: LazyLock<HashMap<String, Vec<Field>>> = LazyLock::new(|| {
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(PACKED).read_to_end(&mut text).expect("the committed file is whole");
    serde_json::from_slice(&text).expect("the committed file is as internal.py writes it")
});

/// `name` is a struct (`core.PodSpec`), or a list of one (`[]core.Taint`).
pub fn internal_text(name: &str, value: &Value) -> String {
    compact(&told(name, value, value))
}

/// The same over as many lines as there are members.
pub fn internal_lines(name: &str, value: &Value) -> String {
    pretty(&told(name, value, value))
}

fn told(go: &str, value: &Value, owner: &Value) -> Json {
    if let Some(target) = go.strip_prefix('*') {
        return if value.is_null() { Json::Null } else { told(target, value, owner) };
    }
    if let Some(element) = go.strip_prefix("[]") {
        let Some(items) = value.as_array() else { return Json::Null };
        return Json::Array(items.iter().map(|item| told(element, item, item)).collect());
    }
    if let Some(element) = go.strip_prefix("map:") {
        let Some(fields) = value.as_object() else { return Json::Null };
        let mut fields: Vec<_> = fields.iter().collect();
        fields.sort_by_key(|(key, _)| key.as_str());
        let member = |(key, value): (&String, &Value)| (key.clone(), told(element, value, value));
        return Json::Object(fields.into_iter().map(member).collect());
    }
    let zero = match go {
        _ if !value.is_null() => None,
        "string" => Some("".into()),
        "bool" => Some(false.into()),
        "number" | "intorstring" => Some(0.into()),
        "quantity" => Some("0".into()),
        _ => None,
    };
    match STRUCTS.get(go) {
        Some(fields) => members(fields, value, owner),
        None if go.starts_with("io.k8s.") => of_definition(value, go),
        None => Json::from_value(zero.unwrap_or_else(|| value.clone())),
    }
}

fn members(fields: &[Field], value: &Value, owner: &Value) -> Json {
    let mut out = Vec::with_capacity(fields.len());
    for (name, go, field) in fields {
        let stands = match field.strip_prefix('^') {
            Some(field) => owner.get(field),
            None if field.is_empty() => Some(value),
            None => value.get(field),
        };
        let read = told(go, stands.unwrap_or(&Value::Null), value);
        match read {
            Json::Object(embedded) if name.is_empty() => out.extend(embedded),
            _ if name.is_empty() => {}
            read => out.push((name.clone(), read)),
        }
    }
    Json::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn structs_are_told_with_names_of_go_and_whole() {
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
            // Embedded, and a type of the API below.
            (
                "core.EnvFromSource",
                json!({"configMapRef": {"name": "a"}}),
                r#"{"Prefix":"","ConfigMapRef":{"Name":"a","Optional":null},"SecretRef":null}"#,
            ),
            ("core.ScopeSelector", json!({"matchExpressions": []}), r#"{"MatchExpressions":[]}"#),
        ];
        for (name, value, wanted) in cases {
            assert_eq!(internal_text(name, &value), wanted, "{name}");
        }
        let pod = json!({"hostNetwork": true, "securityContext": {"runAsUser": 5}});
        let told = internal_text("core.PodSpec", &pod);
        assert!(told.contains(r#""SecurityContext":{"HostNetwork":true,"HostPID":false,"#), "{told}");
        let template = json!({"metadata": {"labels": {"a": "b"}}});
        let told = internal_text("core.PodTemplateSpec", &template);
        assert!(told.starts_with(r#"{"labels":{"a":"b"},"Spec":{"Volumes":null,"#), "{told}");
        assert_eq!(internal_lines("core.PodIP", &json!({})), "{\n \"IP\": \"\"\n}");
    }
}
