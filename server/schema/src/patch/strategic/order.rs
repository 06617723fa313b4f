//! Order of merged lists: by `$setElementOrder`, then by the patch, then by the server.

use crowsnest_apimachinery::status::ApiResult;
use serde_json::{Map, Value};

use super::place::SchemaPosition;
use super::{
    PATCH, SET_ELEMENT_ORDER, bad, bad_type, failed, list, no_merge_key, target, unhashable, without_directives,
};
use crate::patch::golang::{print_list, type_of};

const LIST: &str = "[]interface {}";
const MAP: &str = "map[string]interface {}";

/// Applies the `$setElementOrder` directives of a patch and removes them with their lists.
pub(super) fn set_orders(
    at: SchemaPosition<'_>,
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> ApiResult<()> {
    let directives: Vec<String> = patch.keys().filter(|key| key.starts_with(SET_ELEMENT_ORDER)).cloned().collect();
    for directive in directives {
        let wanted = match patch.remove(&directive) {
            Some(Value::Array(wanted)) => wanted,
            other => return Err(bad_type(LIST, &other.unwrap_or_default())),
        };
        let Some(field) = target(&directive, SET_ELEMENT_ORDER) else {
            return Err(bad("invalid patch format of setElementOrder list"));
        };
        let server = match original.get(field) {
            None => None,
            Some(Value::Array(items)) => Some(items.clone()),
            Some(other) => return Err(bad_type(LIST, other)),
        };
        let change = match patch.get_mut(field) {
            None => None,
            Some(Value::Array(items)) => Some(items),
            Some(other) => return Err(bad_type(LIST, other)),
        };
        let (elements, declared) = at.list(field)?;
        let key = declared.merge_key;
        check_order(change.as_deref().map_or(&[], Vec::as_slice), &wanted, key)?;

        let (merged, server, change) = match (server, change) {
            (None, None) => continue,
            (Some(server), None) => (server.clone(), server, Vec::new()),
            (None, Some(change)) => {
                (change.iter_mut().filter_map(without_directives).collect(), Vec::new(), change.clone())
            }
            (Some(server), Some(change)) if declared.strategy.merges() => {
                let merged = list::merge(elements, key, server, change, false)?;
                (merged.items, merged.array, change.clone())
            }
            (Some(server), Some(change)) => (change.clone(), server, change.clone()),
        };
        let (named, others) = partition(merged, &wanted, key)?;
        let maps = list::of_maps(&server, &change)?;
        let ordered = in_order(named, others, &wanted, &server, key, maps)?;
        original.insert(field.to_owned(), Value::Array(ordered));
        patch.remove(field);
    }
    Ok(())
}

fn as_map(value: &Value) -> ApiResult<&Map<String, Value>> {
    value.as_object().ok_or_else(|| bad_type(MAP, value))
}

fn identity<'v>(value: &'v Value, key: &str) -> ApiResult<&'v Value> {
    let fields = as_map(value)?;
    fields.get(key).ok_or_else(|| no_merge_key(fields, key))
}

fn is_deletion(value: &Value) -> bool {
    value.get(PATCH).is_some_and(|word| word == "delete")
}

/// The elements of the patch must be in the given order, which must name all of them.
fn check_order(patch: &[Value], wanted: &[Value], key: Option<&str>) -> ApiResult<()> {
    if patch.is_empty() || wanted.is_empty() {
        return Ok(());
    }
    let same = |left: &Value, right: &Value| match key {
        Some(key) => {
            as_map(right)?;
            Ok(identity(left, key)? == identity(right, key)?)
        }
        None if type_of(left) == type_of(right) && (left.is_object() || left.is_array()) => Err(unhashable(left)),
        None => Ok(left == right),
    };
    let mut rest = patch;
    let not_deleted: Vec<Value>;
    if key.is_some() {
        if let Some(other) = patch.iter().find(|item| !item.is_object()) {
            return Err(bad_type(MAP, other));
        }
        not_deleted = patch.iter().filter(|item| !is_deletion(item)).cloned().collect();
        rest = &not_deleted;
    }
    let mut order = wanted;
    while let ([item, after @ ..], [next, later @ ..]) = (rest, order) {
        if item.get(PATCH).is_some() {
            rest = after;
            continue;
        }
        if same(item, next)? {
            rest = after;
        }
        order = later;
    }
    if rest.is_empty() {
        return Ok(());
    }
    let (patch, wanted) = (print_list(patch), print_list(wanted));
    Err(failed(format!("The order in patch list:\n{patch}\n doesn't match {SET_ELEMENT_ORDER} list:\n{wanted}\n")))
}

/// Separates the elements that `wanted` names from those that only the server has.
pub(super) fn partition(
    merged: Vec<Value>,
    wanted: &[Value],
    key: Option<&str>,
) -> ApiResult<(Vec<Value>, Vec<Value>)> {
    let (mut named, mut others) = (Vec::new(), Vec::new());
    let Some(key) = key else {
        if let Some(value) = wanted.iter().chain(&merged).find(|value| value.is_object() || value.is_array()) {
            return Err(unhashable(value));
        }
        return Ok(merged.into_iter().partition(|item| wanted.contains(item)));
    };
    for item in merged {
        let id = identity(&item, key)?;
        let mut found = false;
        for (index, other) in wanted.iter().enumerate() {
            let Value::Object(other) = other else {
                return Err(failed(format!("value for key {index} is not a map")));
            };
            if other.get(key) == Some(id) {
                found = true;
                break;
            }
        }
        if found { named.push(item) } else { others.push(item) }
    }
    Ok((named, others))
}

/// Merges the parts of [`partition`]: elements of the server keep their position before the elements that follow
/// them there.
pub(super) fn in_order(
    named: Vec<Value>,
    others: Vec<Value>,
    wanted: &[Value],
    server: &[Value],
    key: Option<&str>,
    maps: bool,
) -> ApiResult<Vec<Value>> {
    let named = sort(named, wanted, key, maps)?;
    let others = sort(others, server, key, maps)?;
    let mut out = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().map(|item| (position_in(server, &item, key, maps), item)).peekable();
    for item in named {
        let here = position_in(server, &item, key, maps);
        while let Some((_, other)) = others.next_if(|(there, _)| there.is_some() && here.is_some() && *there < here) {
            out.push(other);
        }
        out.push(item);
    }
    out.extend(others.map(|(_, item)| item));
    Ok(out)
}

/// Position of an equal element in a list.
fn position_in(list: &[Value], item: &Value, key: Option<&str>, maps: bool) -> Option<usize> {
    if !maps {
        return list.iter().position(|other| other == item);
    }
    let key = key.unwrap_or_default();
    list.iter().position(|other| other.get(key) == item.get(key))
}

fn sort(items: Vec<Value>, order: &[Value], key: Option<&str>, maps: bool) -> ApiResult<Vec<Value>> {
    let mut deleted = Vec::new();
    let mut kept = items;
    if maps {
        let key = key.unwrap_or_default();
        for item in kept.iter().chain(order) {
            identity(item, key)?;
        }
        (deleted, kept) = kept.into_iter().partition(is_deletion);
    }
    let mut placed: Vec<(Option<usize>, Value)> =
        kept.into_iter().map(|item| (position_in(order, &item, key, maps), item)).collect();
    // Kubernetes sorts elements without a position before all others, and its insertion sort reverses them. Lists of
    // more than twenty elements are sorted with another algorithm, on which nothing relies.
    match placed.iter().all(|(position, _)| position.is_some()) {
        true => placed.sort_by_key(|(position, _)| *position),
        false if placed.len() <= 20 => {
            for end in 1..placed.len() {
                for at in (1..=end).rev() {
                    let (Some(left), Some(right)) = (placed[at].0, placed[at - 1].0) else {
                        placed.swap(at, at - 1);
                        continue;
                    };
                    if left >= right {
                        break;
                    }
                    placed.swap(at, at - 1);
                }
            }
        }
        false => placed.sort_by_key(|(position, _)| *position),
    }
    Ok(placed.into_iter().map(|(_, item)| item).chain(deleted).collect())
}
