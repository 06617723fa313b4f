//! Merge of lists: scalars as sets, maps by their merge key.

use crowsnest_apimachinery::status::ApiResult;
use serde_json::{Map, Value};

use super::order::{merge_in_order, partition};
use super::schema_position::SchemaPosition;
use super::{PATCH, internal_error, merge_map, missing_merge_key_error, unknown_directive_error};
use crate::patch::golang::{format_type, print_list};
use crate::patch::rejection;

/// Result of merging a list.
#[derive(Debug, Default)]
pub(super) struct MergedList {
    pub(super) items: Vec<Value>,
    /// Contents of the backing array of the server's list after the merge. Go deletes elements and appends to the slice in
    /// place, so `$setElementOrder` sees the changed array as the server's order.
    pub(super) server_array: Vec<Value>,
}

/// True if the elements of both lists are maps. Fails if they have different types.
pub(super) fn are_maps(server: &[Value], patch: &[Value]) -> ApiResult<bool> {
    let mut elements = server.iter().chain(patch);
    let Some(first) = elements.next() else {
        return Err(internal_error("no elements in any of the given slices"));
    };
    match first {
        Value::Array(_) => return Err(rejection()),
        Value::Null => return Err(internal_error("runtime error: invalid memory address or nil pointer dereference")),
        _ => {}
    }
    if elements.all(|element| format_type(element) == format_type(first)) {
        return Ok(first.is_object());
    }
    let (server, patch) = (print_list(server), print_list(patch));
    Err(internal_error(format!("list element types are not identical: [{server} {patch}]")))
}

/// Merges `patch` into the server's list; if `is_deletion`, the scalars of the patch are removed from it.
pub(super) fn merge(
    at: SchemaPosition<'_>,
    key: Option<&str>,
    server: Vec<Value>,
    patch: &mut [Value],
    is_deletion: bool,
) -> ApiResult<MergedList> {
    if server.is_empty() && patch.is_empty() {
        return Ok(MergedList::default());
    }
    if are_maps(&server, patch)? {
        let Some(key) = key else {
            return Err(internal_error(format!("cannot merge lists without merge key for {}", at.kind())));
        };
        return merge_maps(at, key, server, patch);
    }
    if is_deletion {
        let items = server.iter().filter(|item| !patch.contains(item)).cloned().collect();
        return Ok(MergedList { items, server_array: server });
    }
    let mut all: Vec<Value> = Vec::with_capacity(server.len() + patch.len());
    for item in server.iter().chain(&*patch) {
        if !all.contains(item) {
            all.push(item.clone());
        }
    }
    let (named, others) = partition(all, patch, key)?;
    let items = merge_in_order(named, others, patch, &server, key, false)?;
    Ok(MergedList { items, server_array: server })
}

fn merge_maps(at: SchemaPosition<'_>, key: &str, server: Vec<Value>, patch: &mut [Value]) -> ApiResult<MergedList> {
    let mut array = server;
    let mut length = array.len();
    let mut is_replacement = false;
    let mut changes: Vec<&mut Map<String, Value>> = Vec::new();
    for fields in patch.iter_mut().filter_map(Value::as_object_mut) {
        match fields.get(PATCH) {
            None => changes.push(fields),
            Some(Value::String(word)) if word == "delete" => {
                let Some(deleted) = fields.get(key) else { return Err(missing_merge_key_error(fields, key)) };
                while let Some(found) = array[..length].iter().position(|item| item.get(key) == Some(deleted)) {
                    for slot in found..length - 1 {
                        array[slot] = array[slot + 1].clone();
                    }
                    length -= 1;
                }
            }
            Some(Value::String(word)) if word == "replace" => is_replacement = true,
            Some(Value::String(word)) if word == "merge" => {
                return Err(internal_error("merging lists cannot yet be specified in the patch"));
            }
            Some(other) => return Err(unknown_directive_error(other, fields)),
        }
    }
    if is_replacement {
        let items: Vec<Value> = changes.into_iter().map(|fields| Value::Object(fields.clone())).collect();
        let (named, others) = partition(items.clone(), &[], Some(key))?;
        return Ok(MergedList {
            items: merge_in_order(named, others, &[], &items, Some(key), true)?,
            server_array: array,
        });
    }
    let server = array[..length].to_vec();
    let mut items = server.clone();
    let mut added: Vec<usize> = Vec::new();
    for index in 0..changes.len() {
        let Some(id) = changes[index].get(key).cloned() else {
            return Err(missing_merge_key_error(changes[index], key));
        };
        match items.iter().position(|item| item.get(key) == Some(&id)) {
            Some(at_item) => {
                let before = items[at_item].as_object_mut().map(std::mem::take).unwrap_or_default();
                let merged = merge_map(at, before, changes[index])?;
                // In Go, an added element is the same map as the element of the patch.
                if let Some(first) = at_item.checked_sub(length) {
                    changes[added[first]].clone_from(&merged);
                }
                items[at_item] = Value::Object(merged);
            }
            None => {
                let element = Value::Object(changes[index].clone());
                if let Some(slot) = array.get_mut(items.len()) {
                    *slot = element.clone();
                }
                items.push(element);
                added.push(index);
            }
        }
    }
    let patch_elements: Vec<Value> = changes.into_iter().map(|fields| Value::Object(fields.clone())).collect();
    let (named, others) = partition(items, &patch_elements, Some(key))?;
    Ok(MergedList {
        items: merge_in_order(named, others, &patch_elements, &server, Some(key), true)?,
        server_array: array,
    })
}
