//! Strategic merge patch: a merge patch that knows the keys of lists, and directives.
//!
//! Directives: `$patch: delete | replace | merge` in a map or as an element of a list, `$retainKeys`,
//! `$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>`.

use serde_json::{Map, Value};

use crate::schema::{Field, Schema};
use crate::status::{ApiError, ApiResult};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_PRIMITIVE_LIST: &str = "$deleteFromPrimitiveList";
const SET_ELEMENT_ORDER: &str = "$setElementOrder";

/// A patch that contradicts itself or the schema: 400 with the library's words.
fn bad(why: impl Into<String>) -> ApiError {
    ApiError::bad_request(why)
}

/// What the library fails with otherwise reaches the client as a bare 500.
fn failed(message: String) -> ApiError {
    ApiError { code: 500, reason: String::new(), message, details: None }
}

fn no_merge_key(fields: &Map<String, Value>, key: &str) -> ApiError {
    failed(format!("map: {} does not contain declared merge key: {key}", go_map(fields)))
}

/// A map as Go's `%v` prints it: `map[a:1 b:map[c:d]]`.
fn go_map(fields: &Map<String, Value>) -> String {
    fn print(value: &Value) -> String {
        match value {
            Value::Object(fields) => go_map(fields),
            Value::Array(items) => format!("[{}]", items.iter().map(print).collect::<Vec<_>>().join(" ")),
            Value::String(text) => text.clone(),
            Value::Null => "<nil>".into(),
            other => other.to_string(),
        }
    }
    let parts: Vec<String> = fields.iter().map(|(key, value)| format!("{key}:{}", print(value))).collect();
    format!("map[{}]", parts.join(" "))
}

/// Applies `patch` to `doc`.
pub(super) fn strategic(schema: &Schema, doc: &Value, patch: &Value) -> ApiResult<Value> {
    let (Value::Object(original), Value::Object(changes)) = (doc, patch) else {
        return Err(bad("invalid JSON document"));
    };
    merge_map(Some(schema), original.clone(), changes.clone()).map(Value::Object)
}

fn directive(changes: &mut Map<String, Value>) -> ApiResult<Option<String>> {
    match changes.remove(PATCH) {
        None => Ok(None),
        Some(Value::String(word)) if matches!(word.as_str(), "delete" | "replace" | "merge") => Ok(Some(word)),
        Some(Value::String(word)) => {
            Err(bad(format!("unknown patch type found in patch: {word:?}: {:?} is not a valid value", PATCH)))
        }
        Some(other) => Err(bad(format!("invalid patch: {PATCH} must be a string, got {other}"))),
    }
}

fn merge_map(
    schema: Option<&Schema>,
    mut original: Map<String, Value>,
    mut changes: Map<String, Value>,
) -> ApiResult<Map<String, Value>> {
    match directive(&mut changes)?.as_deref() {
        Some("delete") => return Ok(Map::new()),
        Some("replace") => return Ok(changes),
        _ => {}
    }
    retain_keys(&mut original, &mut changes)?;

    // Lists of primitives lose what the patch names, whether or not it also adds.
    let order: Vec<String> = changes.keys().filter(|key| key.starts_with(SET_ELEMENT_ORDER)).cloned().collect();
    let deletions: Vec<String> =
        changes.keys().filter(|key| key.starts_with(DELETE_FROM_PRIMITIVE_LIST)).cloned().collect();
    for key in deletions {
        let (Some(field), Some(Value::Array(gone))) = (after_slash(&key), changes.remove(&key)) else {
            return Err(bad(format!("invalid patch format of {key}")));
        };
        if let Some(Value::Array(items)) = original.get_mut(&field) {
            items.retain(|item| !gone.contains(item));
        }
    }
    for key in order {
        let (Some(field), Some(Value::Array(wanted))) = (after_slash(&key), changes.remove(&key)) else {
            return Err(bad(format!("invalid patch format of {key}")));
        };
        let declared = schema.and_then(|schema| schema.field(&field));
        let patch = match changes.remove(&field) {
            Some(Value::Array(items)) => items,
            Some(other) => {
                changes.insert(field, other);
                continue;
            }
            None => Vec::new(),
        };
        let Some(Value::Array(items)) = original.remove(&field) else {
            if !patch.is_empty() {
                let added = merge_list(declared, Vec::new(), patch)?;
                original.insert(field, Value::Array(added));
            }
            continue;
        };
        let server_order = items.clone();
        let merged = merge_list(declared, items, patch)?;
        let key = declared.and_then(|field| field.patch_merge_key.as_deref());
        original.insert(field, Value::Array(in_order(merged, &wanted, &server_order, key)));
    }

    for (key, change) in changes {
        if change.is_null() {
            original.remove(&key);
            continue;
        }
        let declared = schema.and_then(|schema| schema.field(&key));
        let node = schema.and_then(|schema| schema.child(&key));
        let merged = match (original.remove(&key), change) {
            (Some(Value::Object(before)), Value::Object(change)) => Value::Object(merge_map(node, before, change)?),
            (Some(Value::Array(before)), Value::Array(change)) => Value::Array(merge_list(declared, before, change)?),
            (_, Value::Object(change)) => match fresh_map(node, change)? {
                Some(map) => Value::Object(map),
                None => continue,
            },
            (_, Value::Array(change)) => Value::Array(merge_list(declared, Vec::new(), change)?),
            (_, scalar) => scalar,
        };
        original.insert(key, merged);
    }
    Ok(original)
}

/// A map the original does not have. kube-apiserver drops one that is to be deleted or replaced, contents and all.
fn fresh_map(node: Option<&Schema>, mut change: Map<String, Value>) -> ApiResult<Option<Map<String, Value>>> {
    if matches!(directive(&mut change)?.as_deref(), Some("delete" | "replace")) {
        return Ok(None);
    }
    merge_map(node, Map::new(), change).map(Some)
}

fn after_slash(key: &str) -> Option<String> {
    key.split_once('/').map(|(_, field)| field.to_owned())
}

fn retain_keys(original: &mut Map<String, Value>, changes: &mut Map<String, Value>) -> ApiResult<()> {
    let Some(list) = changes.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(keep) = list else {
        return Err(bad(format!("invalid patch format of {RETAIN_KEYS}")));
    };
    for key in changes.keys().filter(|key| !key.starts_with('$')) {
        if !changes[key].is_null() && !keep.iter().any(|kept| kept == key.as_str()) {
            return Err(bad(format!("{RETAIN_KEYS} list must contain all the keys in the patch: {key:?} is missing")));
        }
    }
    original.retain(|key, _| keep.iter().any(|kept| kept == key.as_str()));
    Ok(())
}

fn merge_list(field: Option<&Field>, before: Vec<Value>, change: Vec<Value>) -> ApiResult<Vec<Value>> {
    let strategy = field.map(|field| field.patch_strategy).unwrap_or_default();
    if !strategy.merges() {
        return Ok(change.into_iter().map(strip).collect());
    }
    let maps = before.iter().chain(&change).any(Value::is_object);
    if !maps {
        let mut out = before.clone();
        for item in &change {
            if !out.contains(item) {
                out.push(item.clone());
            }
        }
        return Ok(in_order(out, &change, &before, None));
    }
    let Some(key) = field.and_then(|field| field.patch_merge_key.as_deref()) else {
        return Err(bad("cannot merge lists of maps without a merge key"));
    };
    let node = field.and_then(|field| field.node.items.as_deref());
    let order = change.clone();
    let server = before.clone();
    merge_list_of_maps(node, key, before, change).map(|merged| in_order(merged, &order, &server, Some(key)))
}

/// Directives left in what is taken over whole.
fn strip(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .filter(|(key, _)| !key.starts_with("$patch") && key != RETAIN_KEYS)
                .map(|(k, v)| (k, strip(v)))
                .collect(),
        ),
        other => other,
    }
}

fn merge_list_of_maps(
    node: Option<&Schema>,
    key: &str,
    mut original: Vec<Value>,
    change: Vec<Value>,
) -> ApiResult<Vec<Value>> {
    let mut items: Vec<Map<String, Value>> = Vec::new();
    let mut replace = false;
    for element in change {
        let Value::Object(mut fields) = element else {
            return Err(bad(format!(
                "delete patch type with no merge key defined: element is not a map for key {key:?}"
            )));
        };
        match directive(&mut fields)?.as_deref() {
            Some("replace") => {
                replace = true;
                if fields.contains_key(key) {
                    items.push(fields);
                }
            }
            Some("delete") => {
                let Some(wanted) = fields.get(key) else {
                    return Err(no_merge_key(&fields, key));
                };
                original.retain(|item| item.get(key) != Some(wanted));
            }
            Some(_) => return Err(bad(format!("unknown or invalid patch type for a list element of key {key:?}"))),
            None => items.push(fields),
        }
    }
    if replace {
        return Ok(items.into_iter().map(Value::Object).collect());
    }
    for fields in items {
        let Some(wanted) = fields.get(key).cloned() else {
            return Err(no_merge_key(&fields, key));
        };
        match original.iter_mut().find(|item| item.get(key) == Some(&wanted)) {
            Some(slot) => {
                let before = slot.as_object().cloned().unwrap_or_default();
                *slot = Value::Object(merge_map(node, before, fields)?);
            }
            None => original.push(Value::Object(merge_map(node, Map::new(), fields)?)),
        }
    }
    Ok(original)
}

/// Sorts by the wanted order; what it does not name keeps its place relative to its neighbours on the server.
fn in_order(merged: Vec<Value>, wanted: &[Value], server: &[Value], key: Option<&str>) -> Vec<Value> {
    let identity = |value: &Value| match (key, value) {
        (Some(key), Value::Object(fields)) => fields.get(key).cloned().unwrap_or(Value::Null),
        _ => value.clone(),
    };
    let wanted: Vec<Value> = wanted.iter().map(&identity).collect();
    let server: Vec<Value> = server.iter().map(&identity).collect();
    let rank = |id: &Value| wanted.iter().position(|w| w == id);
    let (mut named, others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| rank(&identity(item)).is_some());
    named.sort_by_key(|item| rank(&identity(item)));
    let place = |id: &Value| server.iter().position(|s| s == id);
    let mut out: Vec<Value> = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for item in named {
        // A server-only element that stood before this one stays before it.
        while let Some(other) = others.peek() {
            match (place(&identity(other)), place(&identity(&item))) {
                (Some(a), Some(b)) if a < b => out.extend(others.next()),
                _ => break,
            }
        }
        out.push(item);
    }
    out.extend(others);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::schema::set::SchemaSet;

    #[test]
    fn directives() {
        let schema = SchemaSet::builtin().kind("", "v1", "Pod").unwrap();
        let doc = json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["x", "y"]},
            "spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b"}], "volumes": [{"name": "v", "emptyDir": {}}]}});
        for (patch, path, expected) in [
            (
                json!({"spec": {"containers": [{"name": "a", "image": "2"}]}}),
                "/spec/containers",
                json!([{"name": "a", "image": "2"}, {"name": "b"}]),
            ),
            (json!({"spec": {"containers": [{"name": "c"}]}}), "/spec/containers/0", json!({"name": "c"})),
            (
                json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}),
                "/spec/containers",
                json!([{"name": "b"}]),
            ),
            (
                json!({"spec": {"containers": [{"name": "z"}, {"$patch": "replace"}]}}),
                "/spec/containers",
                json!([{"name": "z"}]),
            ),
            (
                json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}),
                "/spec/containers",
                json!([{"name": "b"}, {"name": "a", "image": "1"}]),
            ),
            (
                json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]}}),
                "/spec/volumes",
                json!([{"name": "v", "hostPath": {"path": "/"}}]),
            ),
            (json!({"metadata": {"labels": {"$patch": "replace", "c": "d"}}}), "/metadata/labels", json!({"c": "d"})),
            (
                json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"], "finalizers": ["z"]}}),
                "/metadata/finalizers",
                json!(["z", "y"]),
            ),
        ] {
            assert_eq!(strategic(&schema, &doc, &patch).unwrap().pointer(path), Some(&expected), "{patch}");
        }
        let error = strategic(&schema, &doc, &json!({"spec": {"containers": [{"image": "x"}]}})).unwrap_err();
        assert_eq!(error.message, "map: map[image:x] does not contain declared merge key: name");
    }

    proptest! {
        #[test]
        fn applying_twice_is_applying_once(names in prop::collection::vec("[a-d]", 0..4), images in prop::collection::vec("[x-z]", 4)) {
            let schema = SchemaSet::builtin().kind("", "v1", "Pod").unwrap();
            let doc = json!({"spec": {"containers": [{"name": "a", "image": "0"}, {"name": "b", "image": "0"}]}});
            let mut seen = Vec::new();
            let containers: Vec<Value> = names.iter().zip(&images).filter(|(name, _)| !seen.contains(name) && { seen.push(name); true })
                .map(|(name, image)| json!({"name": name, "image": image})).collect();
            let patch = json!({"spec": {"containers": containers}});
            let once = strategic(&schema, &doc, &patch).unwrap();
            prop_assert_eq!(strategic(&schema, &once, &patch).unwrap(), once);
        }
    }
}
