//! JSON text of generated values. `serde_json` would normalize numbers such as `1e3` and lose digits of long ones, hence
//! the generator represents them as strings with a prefix.

use serde_json::Value;

const PREFIX: &str = "@number:";

/// A number whose text is sent as it is.
pub fn number(text: &str) -> Value {
    format!("{PREFIX}{text}").into()
}

/// Name of a value's type in schemas. A number without fraction and exponent is an integer.
pub fn type_name(value: &Value) -> &'static str {
    let literal = value.as_str().and_then(|text| text.strip_prefix(PREFIX));
    match (literal, value) {
        (Some(text), _) => match text.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit()) {
            true => "integer",
            false => "number",
        },
        (None, Value::Null) => "null",
        (None, Value::Bool(_)) => "boolean",
        (None, Value::Number(number)) if number.is_f64() => "number",
        (None, Value::Number(_)) => "integer",
        (None, Value::String(_)) => "string",
        (None, Value::Array(_)) => "array",
        (None, Value::Object(_)) => "object",
    }
}

/// JSON text with the texts of numbers.
pub fn to_text(value: &Value) -> String {
    let text = value.to_string();
    let opening = format!("\"{PREFIX}");
    let mut parts = text.split(&opening);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // Texts of numbers contain no quotes.
        let (number, rest) = part.split_once('"').unwrap_or((part, ""));
        out.push_str(number);
        out.push_str(rest);
    }
    out
}
