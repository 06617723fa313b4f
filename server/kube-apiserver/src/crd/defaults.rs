//! Validation of defaults in a CRD's schema: they must have no unknown fields and be valid, including by CEL rules.
//! Has no side effects.

use crowsnest_apimachinery::field::FieldError;
use crowsnest_schema::{Schema, prune};
use serde_json::Value;

use super::cel::Rules;
use super::structural::get;
use super::{embedded, values};

/// Validates the defaults in a schema.
pub(super) fn check(schema: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(schema, path, true, &mut errors);
    errors
}

fn walk(schema: &Value, path: &str, is_root: bool, errors: &mut Vec<FieldError>) {
    if let Some(default) = get(schema, "default") {
        let root_schema;
        let schema = if is_root {
            // The root is validated like an embedded resource.
            let mut marked = schema.clone();
            marked["x-kubernetes-embedded-resource"] = true.into();
            root_schema = marked;
            &root_schema
        } else {
            schema
        };
        check_default(schema, default, &format!("{path}.default"), errors);
    }
    if let Some(items) = get(schema, "items").filter(|items| items.is_object()) {
        walk(items, &format!("{path}.items"), false, errors);
    }
    for (name, property) in get(schema, "properties").and_then(Value::as_object).into_iter().flatten() {
        // `keywords` rejects defaults in the type fields and metadata of the root.
        if !(is_root && matches!(name.as_str(), "apiVersion" | "kind" | "metadata")) {
            walk(property, &format!("{path}.properties[{name}]"), false, errors);
        }
    }
}

/// Validates one default; `path` is its path in the CRD.
fn check_default(schema: &Value, default: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let typed = Schema::for_custom_resource(&serde_json::json!({"type": "object", "properties": {"value": schema}}));
    let mut wrapped = serde_json::json!({"value": default});
    if !prune(&typed, &mut wrapped).is_empty() {
        errors.push(FieldError::invalid(path, default, "must not have unknown fields"));
    }
    let mut value_errors = embedded::validate(schema, default);
    if value_errors.is_empty() {
        value_errors = values::validate(schema, default, "");
    }
    let is_valid = value_errors.is_empty();
    errors.extend(value_errors.into_iter().map(|mut error| {
        error.field = match error.field.as_str() {
            "" => path.to_owned(),
            "<nil>" => "<nil>".to_owned(),
            field => format!("{path}.{field}"),
        };
        error
    }));
    let Some(rules) = Rules::compile(schema).filter(|_| is_valid) else { return };
    // The default is also passed as the old value, so that transition rules are evaluated. It is unchanged, so violations
    // are reported as warnings; in a default they are errors.
    let (mut rule_errors, warnings) = rules.check(schema, default, Some(default), "");
    rule_errors.extend(warnings);
    if rule_errors.is_empty() {
        // The rules must also accept the default as a new value.
        rule_errors = rules.check(schema, default, None, "").0;
    }
    errors.extend(rule_errors.into_iter().map(|mut error| {
        error.field = match error.field.as_str() {
            "" | "<nil>" => path.to_owned(),
            field if field.starts_with('[') => format!("{path}{field}"),
            field => format!("{path}.{field}"),
        };
        error
    }));
}
