//! Go's names and text forms of JSON values, for error messages.

use crowsnest_apimachinery::yaml::format_float;
use serde_json::{Map, Number, Value};

/// The Go type into which a value is decoded.
pub fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "map[string]interface {}",
        Value::Array(_) => "[]interface {}",
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::Null => "<nil>",
    }
}

/// Formats the Go type of a value; Go prints a nil type with `%s` as `%!s(<nil>)`.
pub(super) fn format_type(value: &Value) -> &'static str {
    if value.is_null() { "%!s(<nil>)" } else { go_type(value) }
}

/// `reflect.Kind` of a value.
pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "map",
        Value::Array(_) => "slice",
        Value::Null => "invalid",
        other => format_type(other),
    }
}

/// A map in Go's `%v` format: `map[a:1 b:map[c:d]]`.
pub(super) fn print_map(fields: &Map<String, Value>) -> String {
    let parts: Vec<String> = fields.iter().map(|(key, value)| format!("{key}:{}", go_value(value))).collect();
    format!("map[{}]", parts.join(" "))
}

pub(super) fn print_list(items: &[Value]) -> String {
    format!("[{}]", items.iter().map(go_value).collect::<Vec<_>>().join(" "))
}

/// A value in Go's `%v` format.
pub fn go_value(value: &Value) -> String {
    match value {
        Value::Object(fields) => print_map(fields),
        Value::Array(items) => print_list(items),
        Value::String(text) => text.clone(),
        Value::Number(number) => print_number(number),
        Value::Null => "<nil>".into(),
        Value::Bool(bool) => bool.to_string(),
    }
}

/// A number in Go's `%v` format.
fn print_number(number: &Number) -> String {
    match number.as_f64().filter(|_| !number.is_i64()) {
        Some(float) => format_float(float),
        None => number.to_string(),
    }
}

/// `%s` of a value that is expected to be a string.
pub(super) fn print_text(value: &Value) -> String {
    if value.is_null() { "%!s(<nil>)".into() } else { print_nested_text(value) }
}

fn print_nested_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::Bool(_) | Value::Number(_) => format!("%!s({}={})", format_type(value), go_value(value)),
        Value::Array(items) => format!("[{}]", items.iter().map(print_nested_text).collect::<Vec<_>>().join(" ")),
        Value::Object(fields) => {
            let parts = fields.iter().map(|(key, value)| format!("{key}:{}", print_nested_text(value)));
            format!("map[{}]", parts.collect::<Vec<_>>().join(" "))
        }
        Value::String(text) => text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_print_as_in_go() {
        for (value, printed) in [
            (json!({"b": ["x", null, true], "a": {"c": 5}}), "map[a:map[c:5] b:[x <nil> true]]"),
            (json!(55.0), "55"),
            (json!(1.5), "1.5"),
            (json!(0.0001), "0.0001"),
            (json!(0.00001), "1e-05"),
            (json!(1_234_567.5), "1.2345675e+06"),
            (json!(-2.5e30), "-2.5e+30"),
            (json!(18_446_744_073_709_551_615_u64), "1.8446744073709552e+19"),
        ] {
            assert_eq!(go_value(&value), printed, "{value}");
        }
        assert_eq!(print_text(&json!({"a": [null, 5, "x"]})), "map[a:[<nil> %!s(int64=5) x]]");
        assert_eq!(print_text(&Value::Null), "%!s(<nil>)");
    }
}
