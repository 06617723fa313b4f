//! Pruning of fields that a schema does not define.

use serde_json::Value;

use super::{Schema, Type};

/// Removes unknown fields of structs, at any depth, and returns their paths (`spec.containers[0].bogus`).
pub fn prune(schema: &Schema, object: &mut Value) -> Vec<String> {
    let mut unknown = Vec::new();
    walk(schema, object, &mut String::new(), &mut unknown);
    unknown
}

/// The paths that [`prune`] would remove; fields below them are not listed.
pub fn unknown(schema: &Schema, object: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    look(schema, object, &mut String::new(), &mut unknown);
    unknown
}

/// Sets `path` to that of a field; the object's path is the first `length` bytes.
fn name_field(path: &mut String, length: usize, key: &str) {
    path.truncate(length);
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}

/// Sets `path` to that of a list item; the list's path is the first `length` bytes.
fn name_item(path: &mut String, length: usize, index: usize) {
    path.truncate(length);
    path.push_str(&format!("[{index}]"));
}

fn look(schema: &Schema, value: &Value, path: &mut String, unknown: &mut Vec<String>) {
    let length = path.len();
    match value {
        Value::Object(fields) if schema.ty == Type::Object || !schema.properties.is_empty() => {
            for (key, child) in fields {
                name_field(path, length, key);
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
                    name_item(path, length, index);
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
                name_field(path, length, key);
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
                    name_item(path, length, index);
                    walk(node, item, path, unknown);
                }
            }
        }
        _ => {}
    }
    path.truncate(length);
}
