//! Field errors in the wording and order of API servers. Admission and the aggregated APIs collect them and respond with
//! a `Status` that has a cause for each.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::yaml::format_float;

/// Types of field errors, as in Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldErrorKind {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    TypeInvalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    Internal,
}

impl FieldErrorKind {
    /// Beginning of the message.
    pub fn title(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
        }
    }

    /// The `reason` of the cause in a `Status`.
    pub fn cause_reason(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::Internal => "InternalError",
        }
    }
}

/// An error about one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    pub kind: FieldErrorKind,
    /// The path in Kubernetes' notation: `spec.containers[0].name`, `metadata.labels[a/b]`.
    pub field: String,
    /// The invalid value in JSON; None for types of errors without a value.
    pub value: Option<String>,
    pub detail: String,
}

impl FieldError {
    pub fn new(
        kind: FieldErrorKind,
        field: impl Into<String>,
        value: Option<String>,
        detail: impl Into<String>,
    ) -> Self {
        Self { kind, field: field.into(), value, detail: detail.into() }
    }

    pub fn invalid<V: Serialize + ?Sized>(field: impl Into<String>, value: &V, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Invalid, field, Some(go_value(value)), detail)
    }

    pub fn type_invalid<V: Serialize + ?Sized>(field: impl Into<String>, value: &V, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::TypeInvalid, field, Some(go_value(value)), detail)
    }

    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Required, field, None, detail)
    }

    /// Checks that a selector's requirement has values if and only if its operator needs them. `path` is that of the
    /// requirement.
    pub fn check_requirement_values(operator: &str, has_values: bool, path: &str) -> Option<Self> {
        match operator {
            "In" | "NotIn" if !has_values => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                Some(Self::required(format!("{path}.values"), detail))
            }
            "Exists" | "DoesNotExist" if has_values => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                Some(Self::forbidden(format!("{path}.values"), detail))
            }
            _ => None,
        }
    }

    pub fn duplicate<V: Serialize + ?Sized>(field: impl Into<String>, value: &V) -> Self {
        Self::new(FieldErrorKind::Duplicate, field, Some(go_value(value)), "")
    }

    /// Replaces the detail.
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Forbidden, field, None, detail)
    }

    /// `supported` is printed in the order of the slice.
    pub fn not_supported<V: Serialize + ?Sized>(field: impl Into<String>, value: &V, supported: &[&str]) -> Self {
        let list: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        let detail = if list.is_empty() { String::new() } else { format!("supported values: {}", list.join(", ")) };
        Self::new(FieldErrorKind::NotSupported, field, Some(go_value(value)), detail)
    }

    /// Like [`FieldError::not_supported`], with sorted values.
    pub fn not_supported_sorted<V: Serialize + ?Sized>(
        field: impl Into<String>,
        value: &V,
        supported: &[&str],
    ) -> Self {
        let mut sorted = supported.to_vec();
        sorted.sort_unstable();
        Self::not_supported(field, value, &sorted)
    }

    pub fn not_found<V: Serialize + ?Sized>(field: impl Into<String>, value: &V) -> Self {
        Self::new(FieldErrorKind::NotFound, field, Some(go_value(value)), "")
    }

    pub fn too_long(field: impl Into<String>, max_bytes: usize) -> Self {
        let bytes = if max_bytes == 1 { "byte" } else { "bytes" };
        Self::new(FieldErrorKind::TooLong, field, None, format!("may not be more than {max_bytes} {bytes}"))
    }

    /// The message without the field, as in a cause (`ErrorBody` in Kubernetes).
    pub fn body(&self) -> String {
        let mut body = self.kind.title().to_owned();
        for part in self.value.iter().chain((!self.detail.is_empty()).then_some(&self.detail)) {
            body.push_str(": ");
            body.push_str(part);
        }
        body
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.field, self.body())
    }
}

/// Aggregates errors in one message: a single one unchanged, several in brackets without duplicates.
pub fn aggregate(errors: &[FieldError]) -> String {
    let mut messages: Vec<String> = Vec::with_capacity(errors.len());
    for error in errors {
        let message = error.to_string();
        if !messages.contains(&message) {
            messages.push(message);
        }
    }
    match messages.len() {
        1 => messages.remove(0),
        _ => format!("[{}]", messages.join(", ")),
    }
}

/// Formats a value in an error as Go does: strings like `%q`, floats like `%v`, everything else as JSON. Go also decodes
/// integers that do not fit `int64` as floats.
pub fn go_value<V: Serialize + ?Sized>(value: &V) -> String {
    let json = go_json(value);
    match serde_json::from_str::<Value>(&json) {
        Ok(Value::String(text)) => go_quote(&text),
        Ok(Value::Number(number)) if !number.is_i64() => number.as_f64().map_or(json, format_float),
        _ => json,
    }
}

/// `strconv.Quote`.
fn go_quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        let code = u32::from(c);
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            _ if c.is_ascii() => out.push_str(&format!("\\x{code:02x}")),
            _ if is_printable(c) => out.push(c),
            _ if code > 0xffff => out.push_str(&format!("\\U{code:08x}")),
            _ => out.push_str(&format!("\\u{code:04x}")),
        }
    }
    out.push('"');
    out
}

/// True for characters that neither Rust nor Go escapes. A letter in front keeps Rust from escaping combining marks,
/// which it escapes only at the beginning of a text.
fn is_printable(c: char) -> bool {
    !format!("a{c}").escape_debug().to_string().contains("\\u{")
}

/// A value as Go's JSON encoder prints it, with fields in declaration order. A single string is not escaped for HTML.
pub fn go_json<V: Serialize + ?Sized>(value: &V) -> String {
    let text = serde_json::to_string(value).unwrap_or_else(|error| format!("<{error}>"));
    if text.starts_with('"') {
        return text;
    }
    // Go's encoder makes JSON safe for HTML and JavaScript. Single strings are returned above without this, because
    // `go_value` quotes them with `go_quote`.
    let escapes =
        [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")];
    escapes.into_iter().fold(text, |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::integral_float(json!(1000.0), "1000")]
    #[case::small_float(json!(1e-7), "1e-07")]
    #[case::float(json!(0.25), "0.25")]
    #[case::integer(json!(1_000_000), "1000000")]
    #[case::long_integer(json!(u64::MAX), "1.8446744073709552e+19")]
    #[case::float_in_a_list(json!([1e-7]), "[1e-7]")]
    #[case::markup_in_an_object(
        json!({"a": "<b>&\"\\\u{2028}\u{2029}\u{7f}"}),
        "{\"a\":\"\\u003cb\\u003e\\u0026\\\"\\\\\\u2028\\u2029\u{7f}\"}"
    )]
    #[case::combining_mark(json!("a\u{301}"), "\"a\u{301}\"")]
    #[case::unprintable(json!("\u{200b}"), "\"\\u200b\"")]
    #[case::control(json!("\u{7f}"), "\"\\x7f\"")]
    fn values_print_as_in_go(#[case] value: Value, #[case] expected: &str) {
        assert_eq!(go_value(&value), expected);
    }
}
