//! Validation of defaults in a CRD's schema: they must be pruned and valid, including by CEL rules. Pure.

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

fn walk(schema: &Value, path: &str, root: bool, errors: &mut Vec<FieldError>) {
    if let Some(default) = get(schema, "default") {
        let resource;
        let schema = if root {
            // The root is a resource like the embedded ones.
            let mut whole = schema.clone();
            whole["x-kubernetes-embedded-resource"] = true.into();
            resource = whole;
            &resource
        } else {
            schema
        };
        one(schema, default, &format!("{path}.default"), errors);
    }
    if let Some(items) = get(schema, "items").filter(|items| items.is_object()) {
        walk(items, &format!("{path}.items"), false, errors);
    }
    for (name, property) in get(schema, "properties").and_then(Value::as_object).into_iter().flatten() {
        // Defaults in the root's metadata are rejected elsewhere.
        if !(root && matches!(name.as_str(), "apiVersion" | "kind" | "metadata")) {
            walk(property, &format!("{path}.properties[{name}]"), false, errors);
        }
    }
}

fn one(schema: &Value, default: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let typed = Schema::for_custom_resource(&serde_json::json!({"type": "object", "properties": {"value": schema}}));
    let mut wrapped = serde_json::json!({"value": default});
    if !prune(&typed, &mut wrapped).is_empty() {
        errors.push(FieldError::invalid(at, default, "must not have unknown fields"));
    }
    let mut found = embedded::validate(schema, default);
    if found.is_empty() {
        found = values::validate(schema, default, "");
    }
    let holds = found.is_empty();
    errors.extend(found.into_iter().map(|mut error| {
        error.field = match error.field.as_str() {
            "" => at.to_owned(),
            "<nil>" => "<nil>".to_owned(),
            below => format!("{at}.{below}"),
        };
        error
    }));
    let Some(rules) = Rules::compile(schema).filter(|_| holds) else { return };
    let (mut found, stored) = rules.check(schema, default, Some(default), "");
    found.extend(stored);
    if found.is_empty() {
        // Evaluated as a newly set value as well.
        found = rules.check(schema, default, None, "").0;
    }
    errors.extend(found.into_iter().map(|mut error| {
        error.field = match error.field.as_str() {
            "" | "<nil>" => at.to_owned(),
            below if below.starts_with('[') => format!("{at}{below}"),
            below => format!("{at}.{below}"),
        };
        error
    }));
}
