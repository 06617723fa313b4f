//! Dropping what a schema does not know.

use serde_json::Value;

use super::{Schema, Type};

/// Removes unknown fields of structs, at any depth, and returns their paths (`spec.containers[0].bogus`).
pub fn prune(schema: &Schema, object: &mut Value) -> Vec<String> {
    let mut unknown = Vec::new();
    walk(schema, object, &mut String::new(), &mut unknown);
    unknown
}

/// The paths that [`prune`] would remove; nothing below one of them is looked at.
pub fn unknown(schema: &Schema, object: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    look(schema, object, &mut String::new(), &mut unknown);
    unknown
}

fn look(schema: &Schema, value: &Value, path: &mut String, unknown: &mut Vec<String>) {
    let length = path.len();
    match value {
        Value::Object(fields) if schema.ty == Type::Object || !schema.properties.is_empty() => {
            for (key, child) in fields {
                path.truncate(length);
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(key);
                match schema.child(key) {
                    Some(node) => look(node, child, path, unknown),
                    None if schema.preserve_unknown => {}
                    None => unknown.push(path.clone()),
                }
            }
        }
        Value::Array(items) => {
            if let Some(node) = schema.items.as_deref() {
                for (index, item) in items.iter().enumerate() {
                    path.truncate(length);
                    path.push_str(&format!("[{index}]"));
                    look(node, item, path, unknown);
                }
            }
        }
        _ => {}
    }
    path.truncate(length);
}

fn walk(schema: &Schema, value: &mut Value, path: &mut String, unknown: &mut Vec<String>) {
    let length = path.len();
    match value {
        Value::Object(fields) if schema.ty == Type::Object || !schema.properties.is_empty() => {
            fields.retain(|key, child| {
                path.truncate(length);
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(key);
                match schema.child(key) {
                    Some(node) => walk(node, child, path, unknown),
                    None if schema.preserve_unknown => {}
                    None => {
                        unknown.push(path.clone());
                        return false;
                    }
                }
                true
            });
        }
        Value::Array(items) => {
            if let Some(node) = schema.items.as_deref() {
                for (index, item) in items.iter_mut().enumerate() {
                    path.truncate(length);
                    path.push_str(&format!("[{index}]"));
                    walk(node, item, path, unknown);
                }
            }
        }
        _ => {}
    }
    path.truncate(length);
}
