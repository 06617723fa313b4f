//! Validation of applied configurations, with the wording of structured-merge-diff.

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use serde_json::Value;

use super::path::PathElement;
use super::typed::path_element;
use crate::{ListType, Schema, Type};

/// Collects the messages of errors.
#[derive(Default)]
struct Errors {
    messages: Vec<String>,
    /// True if lists may contain duplicates.
    allows_duplicates: bool,
}

impl Errors {
    fn push(&mut self, error: String) {
        self.messages.push(error);
    }
}

/// All errors of a value as one message, with the wording of structured-merge-diff; `None` if it is valid.
pub fn validation_error(schema: Option<&Schema>, value: &Value) -> Option<String> {
    join(&validation_errors(schema, value))
}

/// Errors of a whole object that prevent computing the owners of its fields: those of [`validation_error`], except
/// duplicate list items.
pub fn object_error(schema: Option<&Schema>, value: &Value) -> Option<String> {
    let mut errors = Errors { allows_duplicates: true, ..Errors::default() };
    validate(schema, value, "", false, &mut errors);
    join(&errors.messages)
}

/// Reason why the fields of a custom resource cannot be compared: it does not match its schema. Objects of built-in
/// kinds match theirs, because they have been decoded.
pub(super) fn comparison_error(schema: Option<&Schema>, object: &Value) -> Option<String> {
    let schema = schema.filter(|schema| schema.is_of_custom_resource())?;
    object_error(Some(schema), object)
}

/// Validates an applied configuration; errors have status 500, as in kube-apiserver.
pub fn validate_config(schema: Option<&Schema>, config: &Value) -> ApiResult<()> {
    let Some(reason) = validation_error(schema, config) else { return Ok(()) };
    let message = format!("failed to create typed patch object ({}): {reason}", describe_object(config));
    Err(ApiError::without_reason(500, message))
}

/// Name and kind of an object, as errors of server-side apply contain them.
pub(super) fn describe_object(object: &Value) -> String {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let api_version = text("/apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let (namespace, name, kind) = (text("/metadata/namespace"), text("/metadata/name"), text("/kind"));
    format!("{namespace}/{name}; {group}/{version}, Kind={kind}")
}

fn join(errors: &[String]) -> Option<String> {
    match errors {
        [] => None,
        [one] => Some(one.clone()),
        several => Some(format!("errors:\n  {}", several.join("\n  "))),
    }
}

/// All errors of an applied configuration.
pub fn validation_errors(schema: Option<&Schema>, value: &Value) -> Vec<String> {
    let mut errors = Errors::default();
    validate(schema, value, "", false, &mut errors);
    errors.messages
}

/// Validates an applied configuration: undeclared fields, wrong types, duplicate list items. `accepts_unknown` is true
/// below a schema that preserves unknown fields: there all objects accept undeclared fields.
fn validate(schema: Option<&Schema>, value: &Value, path: &str, accepts_unknown: bool, errors: &mut Errors) {
    let Some(schema) = schema else { return };
    // Definitions do not inherit this from the schema that refers to them.
    let accepts_unknown = schema.preserves_unknown_fields || accepts_unknown && schema.name.is_none();
    let type_error = |expected: &str, got: String| {
        let reason = format!("expected {expected}, got {got}");
        if path.is_empty() { reason } else { format!("{path}: {reason}") }
    };
    match (schema.ty, value) {
        (_, Value::Null) | (Type::Any, _) => {}
        _ if is_untyped(schema) && (!is_compound(value) || schema.ty == Type::IntOrString) => {}
        (Type::String, _) if is_untyped(schema) => errors.push(type_error("any scalar", format_pointer(value))),
        (Type::Object, Value::Object(fields)) => {
            for (key, value) in fields {
                let field_path = format!("{path}.{key}");
                match schema.child(key) {
                    Some(node) => validate(Some(node), value, &field_path, accepts_unknown, errors),
                    None if accepts_unknown || schema.has_no_declared_fields() => {}
                    // As in structured-merge-diff, validation of this map ends here.
                    None => return errors.push(format!("{field_path}: field not declared in schema")),
                }
            }
        }
        (Type::Array, Value::Array(items)) => validate_list(schema, items, path, accepts_unknown, errors),
        (Type::Object, _) => errors.push(type_error("map", format_pointer(value))),
        (Type::Array, _) => errors.push(type_error("list", format_pointer(value))),
        (Type::String | Type::Bytes, value) if !value.is_string() => {
            errors.push(type_error("string", format_go_syntax(value)))
        }
        (Type::Boolean, value) if !value.is_boolean() => errors.push(type_error("boolean", format_pointer(value))),
        (Type::Integer | Type::Number, value) if !value.is_number() => {
            errors.push(type_error("numeric (int or float)", crate::patch::go_type(value).into()));
        }
        // Times are strings in structured-merge-diff; quantities and ports can also be numbers.
        (Type::Time | Type::MicroTime, value) if !value.is_string() => {
            errors.push(type_error("string", format_go_syntax(value)))
        }
        (_, Value::Object(_) | Value::Array(_)) => errors.push(type_error("any scalar", format_pointer(value))),
        _ => {}
    }
}

/// True for fields of custom resources without a type in structured-merge-diff: int-or-string accepts any value, and a
/// string with a format any scalar. Validation of the object rejects invalid ones.
fn is_untyped(schema: &Schema) -> bool {
    match (schema.ty, schema.format.as_deref()) {
        _ if schema.name.is_some() => false,
        // Built-in kinds have this format.
        (Type::IntOrString, format) => format != Some("int-or-string"),
        (Type::String, Some(format)) => !matches!(format, "" | "byte"),
        _ => false,
    }
}

fn is_compound(value: &Value) -> bool {
    value.is_object() || value.is_array()
}

fn validate_list(schema: &Schema, items: &[Value], path: &str, accepts_unknown: bool, errors: &mut Errors) {
    let mut seen: Vec<PathElement> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let item_path = match path_element(Some(schema), item, index) {
            Ok(element) => {
                let item_path = format!("{path}{element}");
                if !errors.allows_duplicates && schema.list_type != ListType::Atomic && seen.contains(&element) {
                    errors.push(format!("{path}: duplicate entries for key {element}"));
                }
                seen.push(element);
                item_path
            }
            // As in structured-merge-diff, validation of the list ends here.
            Err(reason) => {
                errors.push(format!("{path}: element {index}: {reason}"));
                return;
            }
        };
        validate(schema.items.as_deref(), item, &item_path, accepts_unknown, errors);
    }
}

/// Formats a value as structured-merge-diff does with `%v`: as a pointer to a struct that contains the value.
fn format_pointer(value: &Value) -> String {
    format!("&{{{}}}", crate::patch::go_value(value))
}

/// Formats a value as structured-merge-diff does with `%#v`: in Go syntax.
fn format_go_syntax(value: &Value) -> String {
    format!("&value.valueUnstructured{{Value:{}}}", format_literal(value))
}

fn format_literal(value: &Value) -> String {
    let list = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Object(fields) => {
            let parts = fields.iter().map(|(key, value)| format!("{key:?}:{}", format_literal(value)));
            format!("map[string]interface {{}}{{{}}}", list(parts.collect()))
        }
        Value::Array(items) => format!("[]interface {{}}{{{}}}", list(items.iter().map(format_literal).collect())),
        Value::String(text) => format!("{text:?}"),
        Value::Null => "interface {}(nil)".into(),
        other => other.to_string(),
    }
}
