//! Errors whose value is a struct as Go prints it.

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_schema::internal_structs::format_internal_struct;
use crowsnest_schema::print::format_definition;
use serde_json::Value;

/// An `Invalid` error whose value is a struct of the named definition.
pub(super) fn invalid(field: &str, value: &Value, definition: &str, detail: &str) -> FieldError {
    FieldError::new(FieldErrorKind::Invalid, field, Some(format_definition(value, definition)), detail)
}

/// An `Invalid` error whose value is an internal struct of kube-apiserver (`core.Taint`), or a list of them
/// (`[]core.PodIP`).
pub(super) fn invalid_struct(field: &str, value: &Value, name: &str, detail: &str) -> FieldError {
    FieldError::new(FieldErrorKind::Invalid, field, Some(format_internal_struct(name, value)), detail)
}

/// A `NotSupported` error whose value is an internal struct of kube-apiserver.
pub(super) fn unsupported_struct(field: &str, value: &Value, name: &str, supported: &[&str]) -> FieldError {
    let supported_names: Vec<String> = supported.iter().map(|name| format!("{name:?}")).collect();
    let detail = format!("supported values: {}", supported_names.join(", "));
    FieldError::new(FieldErrorKind::NotSupported, field, Some(format_internal_struct(name, value)), detail)
}
