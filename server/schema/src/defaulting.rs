//! Defaults of structural schemas for custom resources, and removal of invalid nulls.

use serde_json::Value;

fn child_schema<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    schema
        .get("properties")
        .and_then(|p| p.get(key))
        .or_else(|| schema.get("additionalProperties").filter(|a| a.is_object()))
}

fn default_value(schema: &Value) -> Option<&Value> {
    schema.get("default").filter(|d| !d.is_null())
}

fn is_nullable(schema: &Value) -> bool {
    schema.get("nullable").and_then(Value::as_bool).unwrap_or(false)
}

/// Sets absent fields that have a default, and replaces nulls of non-nullable ones. Idempotent.
pub fn apply_defaults(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(members) => {
            if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
                for (key, property) in properties {
                    let Some(default) = default_value(property) else { continue };
                    match members.get(key) {
                        None => {}
                        Some(Value::Null) if !is_nullable(property) => {}
                        Some(_) => continue,
                    }
                    members.insert(key.clone(), default.clone());
                }
            }
            for (key, member) in members.iter_mut() {
                if let Some(sub_schema) = child_schema(schema, key) {
                    replace_null(sub_schema, member);
                    apply_defaults(sub_schema, member);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item_schema) = schema.get("items").filter(|i| i.is_object()) {
                for item in items {
                    replace_null(item_schema, item);
                    apply_defaults(item_schema, item);
                }
            }
        }
        _ => {}
    }
}

fn replace_null(schema: &Value, value: &mut Value) {
    if value.is_null()
        && !is_nullable(schema)
        && let Some(default) = default_value(schema)
    {
        *value = default.clone();
    }
}

/// Removes null fields that are not nullable and have no default.
pub fn drop_nulls(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|key, member| match child_schema(schema, key) {
                Some(sub_schema) => !member.is_null() || is_nullable(sub_schema) || default_value(sub_schema).is_some(),
                None => true,
            });
            for (key, member) in members.iter_mut() {
                if let Some(sub_schema) = child_schema(schema, key) {
                    drop_nulls(sub_schema, member);
                }
            }
        }
        Value::Array(items) => {
            if let Some(item_schema) = schema.get("items").filter(|i| i.is_object()) {
                items.iter_mut().for_each(|item| drop_nulls(item_schema, item));
            }
        }
        _ => {}
    }
}
