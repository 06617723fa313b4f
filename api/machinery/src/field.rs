//! Field errors in the wording and order of API servers. Admission and the aggregated APIs collect them and respond with
//! a `Status` that has a cause for each.

use std::fmt;

use serde::Serialize;

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
    pub fn cause(self) -> &'static str {
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
        Self::new(FieldErrorKind::Invalid, field, Some(go_json(value)), detail)
    }

    pub fn type_invalid<V: Serialize + ?Sized>(field: impl Into<String>, value: &V, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::TypeInvalid, field, Some(go_json(value)), detail)
    }

    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Required, field, None, detail)
    }

    pub fn duplicate<V: Serialize + ?Sized>(field: impl Into<String>, value: &V) -> Self {
        Self::new(FieldErrorKind::Duplicate, field, Some(go_json(value)), "")
    }

    /// Replaces the detail.
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Forbidden, field, None, detail)
    }

    /// `supported` is printed in the given order.
    pub fn not_supported<V: Serialize + ?Sized>(field: impl Into<String>, value: &V, supported: &[&str]) -> Self {
        let list: Vec<String> = supported.iter().map(|word| format!("{word:?}")).collect();
        let detail = if list.is_empty() { String::new() } else { format!("supported values: {}", list.join(", ")) };
        Self::new(FieldErrorKind::NotSupported, field, Some(go_json(value)), detail)
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
        Self::new(FieldErrorKind::NotFound, field, Some(go_json(value)), "")
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

/// A value as Go's JSON encoder prints it, with fields in declaration order.
pub fn go_json<V: Serialize + ?Sized>(value: &V) -> String {
    let text = serde_json::to_string(value).unwrap_or_else(|error| format!("<{error}>"));
    if text.starts_with('"') {
        return text;
    }
    // Go's encoder makes JSON safe for HTML unless the value is a bare string.
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}
