//! Validation of config maps and secrets.

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};

use super::{Errors, Value, at, fields, json, text};

const MAX_SIZE_BYTES: usize = 1024 * 1024;
const KEY_ERROR: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

/// `IsConfigMapKey`.
pub(super) fn key_errors(key: &str) -> Vec<String> {
    let mut reasons = Vec::new();
    if key.len() > 253 {
        reasons.push("must be no more than 253 characters".to_owned());
    }
    if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
        reasons.push(KEY_ERROR.to_owned());
    }
    match key {
        "." => reasons.push("must not be '.'".to_owned()),
        ".." => reasons.push("must not be '..'".to_owned()),
        _ if key.starts_with("..") => reasons.push("must not start with '..'".to_owned()),
        _ => {}
    }
    reasons
}

fn size_bytes(value: &Value) -> usize {
    value.as_str().map_or(0, str::len)
}

pub(super) fn validate_config_map(e: &mut Errors, object: &Value) {
    let mut total = 0;
    for (name, value) in fields(object, "data") {
        e.push_name_errors(&format!("data[{name}]"), name, key_errors(name));
        if fields(object, "binaryData").contains_key(name) {
            e.invalid(format!("data[{name}]"), &json!(name), "duplicate of key present in binaryData");
        }
        total += size_bytes(value);
    }
    for (name, value) in fields(object, "binaryData") {
        e.push_name_errors(&format!("binaryData[{name}]"), name, key_errors(name));
        total += size_bytes(value) / 4 * 3;
    }
    if total > MAX_SIZE_BYTES {
        // kube-apiserver reports an oversized config map with an empty path.
        e.push(FieldError::new(
            FieldErrorKind::TooLong,
            "",
            None,
            format!("may not be more than {MAX_SIZE_BYTES} bytes"),
        ));
    }
}

pub(super) fn validate_secret(e: &mut Errors, object: &Value) {
    let mut total = 0;
    for (name, value) in fields(object, "data") {
        e.push_name_errors(&format!("data[{name}]"), name, key_errors(name));
        total += size_bytes(value) / 4 * 3;
    }
    if total > MAX_SIZE_BYTES {
        e.push(FieldError::too_long("data", MAX_SIZE_BYTES));
    }
    let data = fields(object, "data");
    let mut require_key = |name: &str| {
        if !data.contains_key(name) {
            e.required(format!("data[{name}]"), "");
        }
    };
    match text(object, "type") {
        "kubernetes.io/service-account-token" => {
            let name = fields(object, "metadata.annotations").get("kubernetes.io/service-account.name");
            if name.and_then(Value::as_str).unwrap_or_default().is_empty() {
                e.required("metadata.annotations[kubernetes.io/service-account.name]", "");
            }
        }
        kind @ ("kubernetes.io/dockercfg" | "kubernetes.io/dockerconfigjson") => {
            let name = if kind.ends_with("json") { ".dockerconfigjson" } else { ".dockercfg" };
            require_key(name);
            if let Some(Value::String(encoded)) = data.get(name)
                && let Ok(decoded) = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, encoded)
                && let Err(reason) = crowsnest_schema::decode::parse_json(&decoded)
            {
                e.invalid(format!("data[{name}]"), &json!("<secret contents redacted>"), reason);
            }
        }
        "kubernetes.io/basic-auth" if !data.contains_key("username") && !data.contains_key("password") => {
            e.required("data[username]", "");
            e.required("data[password]", "");
        }
        "kubernetes.io/ssh-auth" if data.get("ssh-privatekey").is_none_or(|key| key == "") => {
            e.required("data[ssh-privatekey]", "");
        }
        "kubernetes.io/tls" => {
            require_key("tls.crt");
            require_key("tls.key");
        }
        _ => {}
    }
}

pub(super) fn validate_update(e: &mut Errors, kind: &str, old: &Value, new: &Value) {
    if kind == "Secret" {
        e.immutable("type", at(old, "type"), at(new, "type"));
    }
    if at(old, "immutable") != true {
        return;
    }
    const REASON: &str = "field is immutable when `immutable` is set";
    if at(new, "immutable") != true {
        e.forbidden("immutable", REASON);
    }
    for field in ["data", "binaryData"] {
        if at(old, field) != at(new, field) {
            e.forbidden(field, REASON);
        }
    }
}
