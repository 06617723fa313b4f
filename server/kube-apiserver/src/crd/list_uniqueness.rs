//! Uniqueness in lists of type `set` and `map` of a custom resource. Has no side effects.

use std::collections::HashMap;

use crowsnest_apimachinery::field::FieldError;
use serde_json::Value;

use super::traversal::MAX_DEPTH;
use super::values::{child_path, keyword};

/// Validates uniqueness in lists of type `set` and `map`. `field` is the path of `value`.
pub(super) fn validate_list_uniqueness(schema: &Value, value: &Value, field: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_uniqueness(schema, value, field, 0, &mut errors);
    errors
}

fn check_uniqueness(schema: &Value, value: &Value, field: &str, depth: usize, errors: &mut Vec<FieldError>) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Array(items) => {
            match keyword(schema, "x-kubernetes-list-type").and_then(Value::as_str) {
                Some("set") => check_duplicates(items.iter().cloned(), field, errors),
                Some("map") => {
                    let keys: Vec<&str> = keyword(schema, "x-kubernetes-list-map-keys")
                        .and_then(Value::as_array)
                        .map_or_else(Vec::new, |keys| keys.iter().filter_map(Value::as_str).collect());
                    match items.iter().position(|item| !item.is_object() && !item.is_null()) {
                        Some(index) => errors.push(FieldError::invalid(
                            format!("{field}[{index}]"),
                            &items[index],
                            "must be an object for an array of list-type map",
                        )),
                        None => check_duplicates(items.iter().map(|item| key_of(item, &keys)), field, errors),
                    }
                }
                _ => {}
            }
            if let Some(each) = keyword(schema, "items") {
                for (index, item) in items.iter().enumerate() {
                    check_uniqueness(each, item, &format!("{field}[{index}]"), depth + 1, errors);
                }
            }
        }
        Value::Object(members) => {
            let properties = keyword(schema, "properties").and_then(Value::as_object);
            let additional = keyword(schema, "additionalProperties").filter(|a| a.is_object());
            for (key, member) in members {
                if let Some(sub) = properties.and_then(|p| p.get(key)) {
                    check_uniqueness(sub, member, &child_path(field, key), depth + 1, errors);
                } else if let Some(sub) = additional {
                    check_uniqueness(sub, member, &format!("{field}[{key}]"), depth + 1, errors);
                }
            }
        }
        _ => {}
    }
}

/// The key fields of an item.
fn key_of(item: &Value, keys: &[&str]) -> Value {
    let present = keys.iter().filter_map(|key| item.get(key).map(|v| ((*key).to_owned(), v.clone())));
    Value::Object(present.collect())
}

/// Adds one error for each duplicate key, at its second occurrence.
fn check_duplicates(keys: impl Iterator<Item = Value>, field: &str, errors: &mut Vec<FieldError>) {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for (index, key) in keys.enumerate() {
        let count = counts.entry(key.to_string()).or_default();
        *count += 1;
        if *count == 2 {
            errors.push(FieldError::duplicate(format!("{field}[{index}]"), &key));
        }
    }
}
