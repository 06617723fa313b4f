//! Strategic merge patch: a merge patch with list merge keys and directives.
//!
//! Directives: `$patch: delete | replace | merge` in a map or list element, `$retainKeys`,
//! `$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>`.
//!
//! As in Kubernetes' library (`strategicpatch`), a merge consumes the patch, and errors about the result print what is
//! left of it.

use crowsnest_apimachinery::status::{ApiError, ApiResult};
use serde_json::{Map, Value};

use self::place::SchemaPosition;
use super::golang::{print_map, print_text, type_of};
use crate::{PatchStrategy, Schema};

mod list;
mod order;
mod place;
#[cfg(test)]
mod tests;

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_PRIMITIVE_LIST: &str = "$deleteFromPrimitiveList";
const SET_ELEMENT_ORDER: &str = "$setElementOrder";

/// A contradictory patch: a 400 error with the library's message.
fn bad(why: impl Into<String>) -> ApiError {
    ApiError::bad_request(why)
}

/// Other errors of the library, which reach the client as 500 without a reason.
fn failed(message: impl Into<String>) -> ApiError {
    ApiError::without_reason(500, message)
}

/// Kubernetes' library panics in this case, which closes the connection.
fn unhashable(value: &Value) -> ApiError {
    failed(format!("runtime error: hash of unhashable type {}", type_of(value)))
}

fn bad_type(expected: &str, actual: &Value) -> ApiError {
    failed(format!("expected a {expected}, but received a {}", type_of(actual)))
}

fn no_merge_key(fields: &Map<String, Value>, key: &str) -> ApiError {
    failed(format!("map: {} does not contain declared merge key: {key}", print_map(fields)))
}

fn unknown_directive(word: &Value, fields: &Map<String, Value>) -> ApiError {
    failed(format!("unknown patch type: {} in map: {}", print_text(word), print_map(fields)))
}

/// Applies `patch` to `doc`.
pub(super) fn strategic(schema: &Schema, doc: &Value, patch: &mut Value) -> ApiResult<Value> {
    let (Value::Object(original), Value::Object(changes)) = (doc, patch) else {
        return Err(bad("invalid JSON document"));
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
        Some(other) => return Err(unknown_directive(other, patch)),
    }
    retain_keys(&mut original, patch)?;
    order::set_orders(at, &mut original, patch)?;

    // Kubernetes has no defined order here. This implementation deletes from lists before it adds to them: `$` sorts
    // before letters.
    for (key, change) in patch.iter_mut() {
        let listed = match key.starts_with(DELETE_FROM_PRIMITIVE_LIST) {
            true => Some(
                target(key, DELETE_FROM_PRIMITIVE_LIST).ok_or_else(|| bad("invalid patch format of primitive list"))?,
            ),
            false => None,
        };
        let (field, deletes) = (listed.unwrap_or(key), listed.is_some());
        if change.is_null() {
            original.remove(field);
            continue;
        }
        let before = original.remove(field);
        let merged = match (before, change) {
            (Some(Value::Object(before)), Value::Object(change)) => {
                let (node, declared) = at.map(field)?;
                Some(Value::Object(match declared.strategy {
                    PatchStrategy::Replace => change.clone(),
                    _ => merge_map(node, before, change)?,
                }))
            }
            (Some(Value::Array(before)), Value::Array(change)) => {
                let (node, declared) = at.list(field)?;
                Some(Value::Array(match deletes || declared.strategy.merges() {
                    true => list::merge(node, declared.merge_key, before, change, deletes)?.items,
                    false => change.clone(),
                }))
            }
            (before, change) => {
                let alike = before.as_ref().is_some_and(|before| type_of(before) == type_of(change));
                if deletes && !alike { before } else { added_value(change) }
            }
        };
        if let Some(merged) = merged {
            original.insert(field.to_owned(), merged);
        }
    }
    Ok(original)
}

/// The field of a directive's key: `$setElementOrder/containers`.
fn target<'k>(key: &'k str, directive: &str) -> Option<&'k str> {
    key.strip_prefix(directive)?.strip_prefix('/')
}

/// A value that is added or replaces one of another type: without nulls and without maps that have `$patch`.
fn added_value(change: &mut Value) -> Option<Value> {
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
        return Err(bad("invalid patch format of retainKeys"));
    };
    if let Some(value) = keep.iter().find(|value| value.is_object() || value.is_array()) {
        return Err(unhashable(value));
    }
    let kept = |key: &str| keep.iter().any(|kept| kept == key);
    let parallel = |key: &str| key.starts_with(DELETE_FROM_PRIMITIVE_LIST) || key.starts_with(SET_ELEMENT_ORDER);
    if patch.iter().any(|(key, value)| !value.is_null() && !parallel(key) && !kept(key)) {
        return Err(bad("invalid patch format of retainKeys"));
    }
    original.retain(|key, _| kept(key));
    Ok(())
}
