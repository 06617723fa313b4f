//! Strategic merge patch: a merge patch with list merge keys and directives.
//!
//! Directives: `$patch: delete | replace | merge` in a map or list element, `$retainKeys`,
//! `$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>`.
//!
//! As in Kubernetes' library (`strategicpatch`), a merge consumes the patch, and errors about the result print what is
//! left of the patch.

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use serde_json::{Map, Value};

use self::schema_position::SchemaPosition;
use super::golang::{format_type, print_map, print_text};
use crate::{PatchStrategy, Schema};

mod list;
mod order;
mod schema_position;
#[cfg(test)]
mod tests;

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_PRIMITIVE_LIST: &str = "$deleteFromPrimitiveList";
const SET_ELEMENT_ORDER: &str = "$setElementOrder";

/// A contradictory patch: a 400 error with the message of `strategicpatch`.
fn bad_request(reason: impl Into<String>) -> ApiError {
    ApiError::bad_request(reason)
}

/// Other errors of `strategicpatch`, which reach the client as 500 without a reason.
fn internal_error(message: impl Into<String>) -> ApiError {
    ApiError::without_reason(500, message)
}

/// Error in place of a panic of `strategicpatch`, which would close the connection.
fn unhashable_error(value: &Value) -> ApiError {
    internal_error(format!("runtime error: hash of unhashable type {}", format_type(value)))
}

fn type_error(expected: &str, actual: &Value) -> ApiError {
    internal_error(format!("expected a {expected}, but received a {}", format_type(actual)))
}

fn missing_merge_key_error(fields: &Map<String, Value>, key: &str) -> ApiError {
    internal_error(format!("map: {} does not contain declared merge key: {key}", print_map(fields)))
}

fn unknown_directive_error(word: &Value, fields: &Map<String, Value>) -> ApiError {
    internal_error(format!("unknown patch type: {} in map: {}", print_text(word), print_map(fields)))
}

/// Applies `patch` to `doc`.
pub(super) fn apply(schema: &Schema, doc: &Value, patch: &mut Value) -> ApiResult<Value> {
    let (Value::Object(original), Value::Object(changes)) = (doc, patch) else {
        return Err(bad_request("invalid JSON document"));
    };
    merge_map(SchemaPosition::root(schema), original.clone(), changes).map(Value::Object)
}

fn merge_map(
    at: SchemaPosition<'_>,
    mut original: Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> ApiResult<Map<String, Value>> {
    match patch.get(PATCH) {
        None => {}
        Some(Value::String(word)) if word == "delete" => return Ok(Map::new()),
        Some(Value::String(word)) if word == "replace" => {
            patch.remove(PATCH);
            return Ok(patch.clone());
        }
        Some(other) => return Err(unknown_directive_error(other, patch)),
    }
    retain_keys(&mut original, patch)?;
    order::apply_element_orders(at, &mut original, patch)?;

    // Kubernetes has no defined order here. This implementation deletes from lists before it adds to them: `$` sorts
    // before letters.
    for (key, change) in patch.iter_mut() {
        let deletion_field = match key.starts_with(DELETE_FROM_PRIMITIVE_LIST) {
            true => Some(
                directive_field(key, DELETE_FROM_PRIMITIVE_LIST)
                    .ok_or_else(|| bad_request("invalid patch format of primitive list"))?,
            ),
            false => None,
        };
        let (field, is_deletion) = (deletion_field.unwrap_or(key), deletion_field.is_some());
        if change.is_null() {
            original.remove(field);
            continue;
        }
        let before = original.remove(field);
        let merged = match (before, change) {
            (Some(Value::Object(before)), Value::Object(change)) => {
                let (node, tags) = at.map(field)?;
                Some(Value::Object(match tags.strategy {
                    PatchStrategy::Replace => change.clone(),
                    _ => merge_map(node, before, change)?,
                }))
            }
            (Some(Value::Array(before)), Value::Array(change)) => {
                let (node, tags) = at.list(field)?;
                Some(Value::Array(match is_deletion || tags.strategy.is_merge() {
                    true => list::merge(node, tags.merge_key, before, change, is_deletion)?.items,
                    false => change.clone(),
                }))
            }
            (before, change) => {
                let has_same_type = before.as_ref().is_some_and(|before| format_type(before) == format_type(change));
                if is_deletion && !has_same_type { before } else { clean_added_value(change) }
            }
        };
        if let Some(merged) = merged {
            original.insert(field.to_owned(), merged);
        }
    }
    Ok(original)
}

/// The field of a directive's key: `$setElementOrder/containers`.
fn directive_field<'k>(key: &'k str, directive: &str) -> Option<&'k str> {
    key.strip_prefix(directive)?.strip_prefix('/')
}

/// Cleans a value that is added or that replaces a value of another type: removes nulls and maps with `$patch`.
fn clean_added_value(change: &mut Value) -> Option<Value> {
    discard_nulls(change);
    without_directives(change)
}

fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.retain(|_, value| {
            discard_nulls(value);
            !value.is_null()
        }),
        Value::Array(items) => items.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

/// `None` for a map with `$patch`. Other directives are kept, as unknown fields.
fn without_directives(value: &mut Value) -> Option<Value> {
    match value {
        Value::Object(fields) if fields.contains_key(PATCH) => None,
        Value::Object(fields) => {
            fields.retain(|_, value| match without_directives(value) {
                Some(kept) => {
                    *value = kept;
                    true
                }
                None => false,
            });
            Some(Value::Object(fields.clone()))
        }
        Value::Array(items) => Some(items.iter_mut().filter_map(without_directives).collect()),
        scalar => Some(scalar.clone()),
    }
}

fn retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> ApiResult<()> {
    let Some(list) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(keep) = list else {
        return Err(bad_request("invalid patch format of retainKeys"));
    };
    if let Some(value) = keep.iter().find(|value| value.is_object() || value.is_array()) {
        return Err(unhashable_error(value));
    }
    let is_kept = |key: &str| keep.iter().any(|kept| kept == key);
    let is_list_directive =
        |key: &str| key.starts_with(DELETE_FROM_PRIMITIVE_LIST) || key.starts_with(SET_ELEMENT_ORDER);
    if patch.iter().any(|(key, value)| !value.is_null() && !is_list_directive(key) && !is_kept(key)) {
        return Err(bad_request("invalid patch format of retainKeys"));
    }
    original.retain(|key, _| is_kept(key));
    Ok(())
}
