//! Order of merged lists: by `$setElementOrder`, then by the patch, then by the server.

use crowsnest_apimachinery::status::ApiResult;
use serde_json::{Map, Value};

use super::schema_position::SchemaPosition;
use super::{
    PATCH, SET_ELEMENT_ORDER, bad_request, directive_field, internal_error, list, missing_merge_key_error, type_error,
    unhashable_error, without_directives,
};
use crate::patch::golang::{format_type, print_list};

/// Go types in error messages.
const GO_LIST: &str = "[]interface {}";
const GO_MAP: &str = "map[string]interface {}";

/// Applies the `$setElementOrder` directives of a patch and removes them with their lists.
pub(super) fn apply_element_orders(
    at: SchemaPosition<'_>,
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> ApiResult<()> {
    let directives: Vec<String> = patch.keys().filter(|key| key.starts_with(SET_ELEMENT_ORDER)).cloned().collect();
    for directive in directives {
        let element_order = match patch.remove(&directive) {
            Some(Value::Array(order)) => order,
            other => return Err(type_error(GO_LIST, &other.unwrap_or_default())),
        };
        let Some(field) = directive_field(&directive, SET_ELEMENT_ORDER) else {
            return Err(bad_request("invalid patch format of setElementOrder list"));
        };
        let server = match original.get(field) {
            None => None,
            Some(Value::Array(items)) => Some(items.clone()),
            Some(other) => return Err(type_error(GO_LIST, other)),
        };
        let change = match patch.get_mut(field) {
            None => None,
            Some(Value::Array(items)) => Some(items),
            Some(other) => return Err(type_error(GO_LIST, other)),
        };
        let (elements, tags) = at.list(field)?;
        let key = tags.merge_key;
        check_order(change.as_deref().map_or(&[], Vec::as_slice), &element_order, key)?;

        let (merged, server, change) = match (server, change) {
            (None, None) => continue,
            (Some(server), None) => (server.clone(), server, Vec::new()),
            (None, Some(change)) => {
                (change.iter_mut().filter_map(without_directives).collect(), Vec::new(), change.clone())
            }
            (Some(server), Some(change)) if tags.strategy.is_merge() => {
                let merged = list::merge(elements, key, server, change, false)?;
                (merged.items, merged.server_array, change.clone())
            }
            (Some(server), Some(change)) => (change.clone(), server, change.clone()),
        };
        let (named, others) = partition(merged, &element_order, key)?;
        let are_maps = list::are_maps(&server, &change)?;
        let ordered = merge_in_order(named, others, &element_order, &server, key, are_maps)?;
        original.insert(field.to_owned(), Value::Array(ordered));
        patch.remove(field);
    }
    Ok(())
}

fn as_map(value: &Value) -> ApiResult<&Map<String, Value>> {
    value.as_object().ok_or_else(|| type_error(GO_MAP, value))
}

fn merge_key_value<'v>(value: &'v Value, key: &str) -> ApiResult<&'v Value> {
    let fields = as_map(value)?;
    fields.get(key).ok_or_else(|| missing_merge_key_error(fields, key))
}

fn is_deletion(value: &Value) -> bool {
    value.get(PATCH).is_some_and(|directive| directive == "delete")
}

/// Checks that the elements of the patch are in the order of `$setElementOrder`, which must name all of them.
fn check_order(patch: &[Value], element_order: &[Value], key: Option<&str>) -> ApiResult<()> {
    if patch.is_empty() || element_order.is_empty() {
        return Ok(());
    }
    let is_same = |left: &Value, right: &Value| match key {
        Some(key) => {
            as_map(right)?;
            Ok(merge_key_value(left, key)? == merge_key_value(right, key)?)
        }
        None if format_type(left) == format_type(right) && (left.is_object() || left.is_array()) => {
            Err(unhashable_error(left))
        }
        None => Ok(left == right),
    };
    let mut remaining = patch;
    let not_deleted: Vec<Value>;
    if key.is_some() {
        if let Some(other) = patch.iter().find(|item| !item.is_object()) {
            return Err(type_error(GO_MAP, other));
        }
        not_deleted = patch.iter().filter(|item| !is_deletion(item)).cloned().collect();
        remaining = &not_deleted;
    }
    let mut order = element_order;
    while let ([item, after @ ..], [next, later @ ..]) = (remaining, order) {
        if item.get(PATCH).is_some() {
            remaining = after;
            continue;
        }
        if is_same(item, next)? {
            remaining = after;
        }
        order = later;
    }
    if remaining.is_empty() {
        return Ok(());
    }
    let (patch, element_order) = (print_list(patch), print_list(element_order));
    Err(internal_error(format!(
        "The order in patch list:\n{patch}\n doesn't match {SET_ELEMENT_ORDER} list:\n{element_order}\n"
    )))
}

/// Separates the elements that `element_order` names from those that only the server has.
pub(super) fn partition(
    merged: Vec<Value>,
    element_order: &[Value],
    key: Option<&str>,
) -> ApiResult<(Vec<Value>, Vec<Value>)> {
    let (mut named, mut others) = (Vec::new(), Vec::new());
    let Some(key) = key else {
        if let Some(value) = element_order.iter().chain(&merged).find(|value| value.is_object() || value.is_array()) {
            return Err(unhashable_error(value));
        }
        return Ok(merged.into_iter().partition(|item| element_order.contains(item)));
    };
    for item in merged {
        let id = merge_key_value(&item, key)?;
        let mut is_named = false;
        for (index, other) in element_order.iter().enumerate() {
            let Value::Object(other) = other else {
                return Err(internal_error(format!("value for key {index} is not a map")));
            };
            if other.get(key) == Some(id) {
                is_named = true;
                break;
            }
        }
        if is_named { named.push(item) } else { others.push(item) }
    }
    Ok((named, others))
}

/// Merges the parts of [`partition`]: an element that only the server has comes before the first named element that
/// follows it in the server's list.
pub(super) fn merge_in_order(
    named: Vec<Value>,
    others: Vec<Value>,
    element_order: &[Value],
    server: &[Value],
    key: Option<&str>,
    are_maps: bool,
) -> ApiResult<Vec<Value>> {
    let named = sort_by_order(named, element_order, key, are_maps)?;
    let others = sort_by_order(others, server, key, are_maps)?;
    let mut out = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().map(|item| (position_in(server, &item, key, are_maps), item)).peekable();
    for item in named {
        let position = position_in(server, &item, key, are_maps);
        while let Some((_, other)) =
            others.next_if(|(other, _)| other.is_some() && position.is_some() && *other < position)
        {
            out.push(other);
        }
        out.push(item);
    }
    out.extend(others.map(|(_, item)| item));
    Ok(out)
}

/// Position of an equal element in a list.
fn position_in(list: &[Value], item: &Value, key: Option<&str>, are_maps: bool) -> Option<usize> {
    if !are_maps {
        return list.iter().position(|other| other == item);
    }
    let key = key.unwrap_or_default();
    list.iter().position(|other| other.get(key) == item.get(key))
}

fn sort_by_order(items: Vec<Value>, order: &[Value], key: Option<&str>, are_maps: bool) -> ApiResult<Vec<Value>> {
    let mut deleted = Vec::new();
    let mut kept = items;
    if are_maps {
        let key = key.unwrap_or_default();
        for item in kept.iter().chain(order) {
            merge_key_value(item, key)?;
        }
        (deleted, kept) = kept.into_iter().partition(is_deletion);
    }
    let mut positioned: Vec<(Option<usize>, Value)> =
        kept.into_iter().map(|item| (position_in(order, &item, key, are_maps), item)).collect();
    // Kubernetes sorts elements without a position before all others, and its insertion sort reverses them. Lists of
    // more than twenty elements are sorted with another algorithm, on which nothing relies.
    match positioned.iter().all(|(position, _)| position.is_some()) {
        true => positioned.sort_by_key(|(position, _)| *position),
        false if positioned.len() <= 20 => {
            for end in 1..positioned.len() {
                for at in (1..=end).rev() {
                    let (Some(left), Some(right)) = (positioned[at].0, positioned[at - 1].0) else {
                        positioned.swap(at, at - 1);
                        continue;
                    };
                    if left >= right {
                        break;
                    }
                    positioned.swap(at, at - 1);
                }
            }
        }
        false => positioned.sort_by_key(|(position, _)| *position),
    }
    Ok(positioned.into_iter().map(|(_, item)| item).chain(deleted).collect())
}
