//! Merge of lists: scalars as sets, maps by their merge key.

use crowsnest_apimachinery::status::ApiResult;
use serde_json::{Map, Value};

use super::order::{in_order, partition};
use super::place::SchemaPosition;
use super::{PATCH, failed, merge_map, no_merge_key, unknown_directive};
use crate::patch::golang::{print_list, type_of};
use crate::patch::rejected;

/// Result of a list merge.
#[derive(Debug, Default)]
pub(super) struct Merged {
    pub(super) items: Vec<Value>,
    /// Contents of the array behind the server's list afterwards. Go deletes and appends in place, and
    /// `$setElementOrder` takes the server's order from it.
    pub(super) array: Vec<Value>,
}

/// True if the elements are maps; all must have the same type.
pub(super) fn of_maps(server: &[Value], patch: &[Value]) -> ApiResult<bool> {
    let mut elements = server.iter().chain(patch);
    let Some(first) = elements.next() else {
        return Err(failed("no elements in any of the given slices"));
    };
    match first {
        Value::Array(_) => return Err(rejected()),
        Value::Null => return Err(failed("runtime error: invalid memory address or nil pointer dereference")),
        _ => {}
    }
    if elements.all(|element| type_of(element) == type_of(first)) {
        return Ok(first.is_object());
    }
    let (server, patch) = (print_list(server), print_list(patch));
    Err(failed(format!("list element types are not identical: [{server} {patch}]")))
}

/// Merges `patch` into the server's list; with `deletes`, scalars of the patch are removed.
pub(super) fn merge(
    at: SchemaPosition<'_>,
    key: Option<&str>,
    server: Vec<Value>,
    patch: &mut [Value],
    deletes: bool,
) -> ApiResult<Merged> {
    if server.is_empty() && patch.is_empty() {
        return Ok(Merged::default());
    }
    if of_maps(&server, patch)? {
        let Some(key) = key else {
            return Err(failed(format!("cannot merge lists without merge key for {}", at.kind())));
        };
        return merge_maps(at, key, server, patch);
    }
    if deletes {
        let items = server.iter().filter(|item| !patch.contains(item)).cloned().collect();
        return Ok(Merged { items, array: server });
    }
    let mut all: Vec<Value> = Vec::with_capacity(server.len() + patch.len());
    for item in server.iter().chain(&*patch) {
        if !all.contains(item) {
            all.push(item.clone());
        }
    }
    let (named, others) = partition(all, patch, key)?;
    let items = in_order(named, others, patch, &server, key, false)?;
    Ok(Merged { items, array: server })
}

fn merge_maps(at: SchemaPosition<'_>, key: &str, server: Vec<Value>, patch: &mut [Value]) -> ApiResult<Merged> {
    let mut array = server;
    let mut kept = array.len();
    let mut replaces = false;
    let mut plain: Vec<&mut Map<String, Value>> = Vec::new();
    for fields in patch.iter_mut().filter_map(Value::as_object_mut) {
        match fields.get(PATCH) {
            None => plain.push(fields),
            Some(Value::String(word)) if word == "delete" => {
                let Some(gone) = fields.get(key) else { return Err(no_merge_key(fields, key)) };
                while let Some(found) = array[..kept].iter().position(|item| item.get(key) == Some(gone)) {
                    for slot in found..kept - 1 {
                        array[slot] = array[slot + 1].clone();
                    }
                    kept -= 1;
                }
            }
            Some(Value::String(word)) if word == "replace" => replaces = true,
            Some(Value::String(word)) if word == "merge" => {
                return Err(failed("merging lists cannot yet be specified in the patch"));
            }
            Some(other) => return Err(unknown_directive(other, fields)),
        }
    }
    if replaces {
        let items: Vec<Value> = plain.into_iter().map(|fields| Value::Object(fields.clone())).collect();
        let (named, others) = partition(items.clone(), &[], Some(key))?;
        return Ok(Merged { items: in_order(named, others, &[], &items, Some(key), true)?, array });
    }
    let server = array[..kept].to_vec();
    let mut items = server.clone();
    let mut added: Vec<usize> = Vec::new();
    for index in 0..plain.len() {
        let Some(id) = plain[index].get(key).cloned() else { return Err(no_merge_key(plain[index], key)) };
        match items.iter().position(|item| item.get(key) == Some(&id)) {
            Some(at_item) => {
                let before = items[at_item].as_object_mut().map(std::mem::take).unwrap_or_default();
                let merged = merge_map(at, before, plain[index])?;
                // In Go, an added element and that of the patch are the same map.
                if let Some(first) = at_item.checked_sub(kept) {
                    plain[added[first]].clone_from(&merged);
                }
                items[at_item] = Value::Object(merged);
            }
            None => {
                let element = Value::Object(plain[index].clone());
                if let Some(slot) = array.get_mut(items.len()) {
                    *slot = element.clone();
                }
                items.push(element);
                added.push(index);
            }
        }
    }
    let wanted: Vec<Value> = plain.into_iter().map(|fields| Value::Object(fields.clone())).collect();
    let (named, others) = partition(items, &wanted, Some(key))?;
    Ok(Merged { items: in_order(named, others, &wanted, &server, Some(key), true)?, array })
}
