//! Defaults of structural schemas for custom resources, and removal of invalid nulls.

use serde_json::Value;

fn child<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    schema
        .get("properties")
        .and_then(|p| p.get(key))
        .or_else(|| schema.get("additionalProperties").filter(|a| a.is_object()))
}

fn default_of(schema: &Value) -> Option<&Value> {
    schema.get("default").filter(|d| !d.is_null())
}

fn nullable(schema: &Value) -> bool {
    schema.get("nullable").and_then(Value::as_bool).unwrap_or(false)
}

/// Sets absent fields that have a default, and replaces nulls of non-nullable ones. Idempotent.
pub fn fill(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(members) => {
            if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
                for (key, property) in properties {
                    let Some(default) = default_of(property) else { continue };
                    match members.get(key) {
                        None => {}
                        Some(Value::Null) if !nullable(property) => {}
                        Some(_) => continue,
                    }
                    members.insert(key.clone(), default.clone());
                }
            }
            for (key, member) in members.iter_mut() {
                if let Some(sub) = child(schema, key) {
                    fill_null(sub, member);
                    fill(sub, member);
                }
            }
        }
        Value::Array(items) => {
            if let Some(each) = schema.get("items").filter(|i| i.is_object()) {
                for item in items {
                    fill_null(each, item);
                    fill(each, item);
                }
            }
        }
        _ => {}
    }
}

fn fill_null(schema: &Value, value: &mut Value) {
    if value.is_null()
        && !nullable(schema)
        && let Some(default) = default_of(schema)
    {
        *value = default.clone();
    }
}

/// Removes null fields that are neither nullable nor have a default.
pub fn drop_nulls(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|key, member| match child(schema, key) {
                Some(sub) => !member.is_null() || nullable(sub) || default_of(sub).is_some(),
                None => true,
            });
            for (key, member) in members.iter_mut() {
                if let Some(sub) = child(schema, key) {
                    drop_nulls(sub, member);
                }
            }
        }
        Value::Array(items) => {
            if let Some(each) = schema.get("items").filter(|i| i.is_object()) {
                items.iter_mut().for_each(|item| drop_nulls(each, item));
            }
        }
        _ => {}
    }
}
