//! Strategic merge patch: a merge patch that knows the keys of lists, and directives.
//!
//! Directives: `$patch: delete | replace | merge` in a map or as an element of a list, `$retainKeys`,
//! `$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>`.

use serde_json::{Map, Value};

use crate::schema::{Field, Schema, Type};
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
    ApiError::unexplained(500, message)
}

fn no_merge_key(fields: &Map<String, Value>, key: &str) -> ApiError {
    failed(format!("map: {} does not contain declared merge key: {key}", go_map(fields)))
}

/// A map as Go's `%v` prints it: `map[a:1 b:map[c:d]]`.
fn go_map(fields: &Map<String, Value>) -> String {
    let parts: Vec<String> = fields.iter().map(|(key, value)| format!("{key}:{}", go_value(value))).collect();
    format!("map[{}]", parts.join(" "))
}

fn go_list(items: &[Value]) -> String {
    format!("[{}]", items.iter().map(go_value).collect::<Vec<_>>().join(" "))
}

/// Any value as Go's `%v` prints it.
pub(crate) fn go_value(value: &Value) -> String {
    match value {
        Value::Object(fields) => go_map(fields),
        Value::Array(items) => go_list(items),
        Value::String(text) => text.clone(),
        Value::Null => "<nil>".into(),
        other => other.to_string(),
    }
}

/// A patch as errors show it: its directives have been followed and are gone by then.
pub(super) fn shown(patch: &Value) -> String {
    fn plain(value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let kept = fields.iter().filter(|(key, _)| !is_directive(key));
                Value::Object(kept.map(|(key, value)| (key.clone(), plain(value))).collect())
            }
            Value::Array(items) => Value::Array(items.iter().map(plain).collect()),
            other => other.clone(),
        }
    }
    go_value(&plain(patch))
}

fn is_directive(key: &str) -> bool {
    key == PATCH
        || key == RETAIN_KEYS
        || key.starts_with(DELETE_FROM_PRIMITIVE_LIST)
        || key.starts_with(SET_ELEMENT_ORDER)
}

/// Go's name of the value's own kind.
fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "map",
        Value::Array(_) => "slice",
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::Null => "invalid",
    }
}

/// What in a merged object does not fit its Go type, in the words of the converter that puts it there. Types that decode
/// themselves (times, quantities) are left to the reader of JSON.
pub(super) fn unfit(schema: &Schema, value: &Value) -> Option<String> {
    let kind = go_kind(value);
    match (schema.ty, value) {
        (_, Value::Null) => None,
        (Type::Object, Value::Object(fields)) => {
            fields.iter().find_map(|(key, value)| unfit(schema.child(key)?, value))
        }
        (Type::Object, _) if schema.properties.is_empty() => Some(format!("cannot restore map from {kind}")),
        (Type::Object, _) => Some(format!("cannot restore struct from: {kind}")),
        (Type::Array, Value::Array(items)) => {
            let element = schema.items.as_deref()?;
            items.iter().find_map(|item| unfit(element, item))
        }
        (Type::Array, _) => Some(format!("cannot restore slice from {kind}")),
        (Type::String, Value::Number(_)) => Some(format!("cannot convert {kind} to string")),
        (Type::String, value) if !value.is_string() => Some("unrecognized type: string".into()),
        (Type::Boolean, value) if !value.is_boolean() => Some("unrecognized type: bool".into()),
        (Type::Integer, Value::Number(number)) if number.as_f64().is_some_and(|n| n.fract() != 0.0) => {
            Some(format!("cannot convert {kind} to {}", schema.format.as_deref().unwrap_or("int64")))
        }
        (Type::Integer, value) if !value.is_number() => {
            Some(format!("unrecognized type: {}", schema.format.as_deref().unwrap_or("int64")))
        }
        _ => None,
    }
}

/// Applies `patch` to `doc`.
pub(super) fn strategic(schema: &Schema, doc: &Value, patch: &Value) -> ApiResult<Value> {
    let (Value::Object(original), Value::Object(changes)) = (doc, patch) else {
        return Err(bad("invalid JSON document"));
    };
    merge_map(Some(schema), original.clone(), changes.clone()).map(Value::Object)
}

/// What `$patch` can ask of a map; lists word `merge` in their own way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Directive {
    Delete,
    Replace,
}

fn directive(changes: &mut Map<String, Value>) -> ApiResult<Option<Directive>> {
    let found = match changes.get(PATCH) {
        None => return Ok(None),
        Some(Value::String(word)) if word == "delete" => Directive::Delete,
        Some(Value::String(word)) if word == "replace" => Directive::Replace,
        Some(other) => {
            let word = match other {
                Value::String(word) => word.clone(),
                Value::Null => "%!s(<nil>)".into(),
                Value::Object(_) | Value::Array(_) => go_value(other),
                other => format!("%!s({}={other})", go_kind(other)),
            };
            return Err(failed(format!("unknown patch type: {word} in map: {}", go_map(changes))));
        }
    };
    changes.remove(PATCH);
    Ok(Some(found))
}

fn merge_map(
    schema: Option<&Schema>,
    mut original: Map<String, Value>,
    mut changes: Map<String, Value>,
) -> ApiResult<Map<String, Value>> {
    match directive(&mut changes)? {
        Some(Directive::Delete) => return Ok(Map::new()),
        Some(Directive::Replace) => return Ok(changes),
        None => {}
    }
    retain_keys(&mut original, &mut changes)?;

    // Lists of primitives lose what the patch names, whether or not it also adds.
    let order: Vec<String> = changes.keys().filter(|key| key.starts_with(SET_ELEMENT_ORDER)).cloned().collect();
    let deletions: Vec<String> =
        changes.keys().filter(|key| key.starts_with(DELETE_FROM_PRIMITIVE_LIST)).cloned().collect();
    for key in deletions {
        let (Some(field), Some(Value::Array(gone))) = (after_slash(&key), changes.remove(&key)) else {
            return Err(bad("invalid patch format of primitive list"));
        };
        if let Some(Value::Array(items)) = original.get_mut(&field) {
            items.retain(|item| !gone.contains(item));
        }
    }
    for key in order {
        let (Some(field), Some(Value::Array(wanted))) = (after_slash(&key), changes.remove(&key)) else {
            return Err(bad("invalid patch format of setElementOrder list"));
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
        check_order(&patch, &wanted, declared.and_then(|field| field.patch_merge_key.as_deref()))?;
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

/// What the patch lists must come in the wanted order, without anything the order does not name.
fn check_order(patch: &[Value], wanted: &[Value], key: Option<&str>) -> ApiResult<()> {
    let identity = |value: &Value| key.and_then(|key| value.get(key)).unwrap_or(value).clone();
    let stays = |item: &&Value| item.get(PATCH).is_none_or(|word| word != "delete");
    let mut order = wanted.iter().map(identity);
    let listed = patch.iter().filter(stays).map(identity).all(|item| order.any(|other| other == item));
    if listed {
        return Ok(());
    }
    let (patch, wanted) = (go_list(patch), go_list(wanted));
    Err(failed(format!("The order in patch list:\n{patch}\n doesn't match {SET_ELEMENT_ORDER} list:\n{wanted}\n")))
}

/// A map the original does not have. kube-apiserver drops one that is to be deleted or replaced, contents and all.
fn fresh_map(node: Option<&Schema>, mut change: Map<String, Value>) -> ApiResult<Option<Map<String, Value>>> {
    if directive(&mut change)?.is_some() {
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
        return Err(bad("invalid patch format of retainKeys"));
    };
    for key in changes.keys().filter(|key| !key.starts_with('$')) {
        if !changes[key].is_null() && !keep.iter().any(|kept| kept == key.as_str()) {
            return Err(bad("invalid patch format of retainKeys"));
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
        if fields.get(PATCH).is_some_and(|word| word == "merge") {
            return Err(failed("merging lists cannot yet be specified in the patch".into()));
        }
        match directive(&mut fields)? {
            Some(Directive::Replace) => {
                replace = true;
                if fields.contains_key(key) {
                    items.push(fields);
                }
            }
            Some(Directive::Delete) => {
                let Some(wanted) = fields.get(key) else {
                    return Err(no_merge_key(&fields, key));
                };
                original.retain(|item| item.get(key) != Some(wanted));
            }
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
        for (patch, code, message) in [
            (
                json!({"spec": {"containers": [{"image": "x"}]}}),
                500,
                "map: map[image:x] does not contain declared merge key: name",
            ),
            (
                json!({"metadata": {"labels": {"$patch": "nope", "a": "b"}}}),
                500,
                "unknown patch type: nope in map: map[$patch:nope a:b]",
            ),
            (
                json!({"metadata": {"labels": {"$patch": 5}}}),
                500,
                "unknown patch type: %!s(int64=5) in map: map[$patch:5]",
            ),
            (
                json!({"spec": {"containers": [{"name": "a", "$patch": "merge"}]}}),
                500,
                "merging lists cannot yet be specified in the patch",
            ),
            (json!({"spec": {"$retainKeys": "x"}}), 400, "invalid patch format of retainKeys"),
            (json!({"spec": {"$retainKeys": ["x"], "y": 1}}), 400, "invalid patch format of retainKeys"),
            (
                json!({"metadata": {"$deleteFromPrimitiveList/finalizers": "x"}}),
                400,
                "invalid patch format of primitive list",
            ),
            (
                json!({"metadata": {"$setElementOrder/finalizers": "x"}}),
                400,
                "invalid patch format of setElementOrder list",
            ),
            (
                json!({"metadata": {"$setElementOrder/finalizers": ["z"], "finalizers": ["w"]}}),
                500,
                "The order in patch list:\n[w]\n doesn't match $setElementOrder list:\n[z]\n",
            ),
        ] {
            let error = strategic(&schema, &doc, &patch).unwrap_err();
            assert_eq!((error.code, error.message.as_str()), (code, message), "{patch}");
        }
    }

    #[test]
    fn wrong_types_are_worded_as_the_converter_does() {
        let schema = SchemaSet::builtin().kind("", "v1", "Pod").unwrap();
        for (object, expected) in [
            (json!({"metadata": {"labels": {"a": 5}}}), Some("cannot convert int64 to string")),
            (json!({"metadata": {"labels": {"a": true}}}), Some("unrecognized type: string")),
            (json!({"metadata": {"labels": ["a"]}}), Some("cannot restore map from slice")),
            (json!({"spec": "x"}), Some("cannot restore struct from: string")),
            (json!({"spec": {"containers": {"a": "b"}}}), Some("cannot restore slice from map")),
            (json!({"spec": {"priority": "x"}}), Some("unrecognized type: int32")),
            (json!({"spec": {"hostNetwork": "x"}}), Some("unrecognized type: bool")),
            (json!({"spec": {"priority": 1, "hostNetwork": true, "unknown": []}}), None),
        ] {
            assert_eq!(unfit(&schema, &object).as_deref(), expected, "{object}");
        }
        assert_eq!(
            shown(&json!({"data": {"$patch": "replace", "x": 5, "y": ["a", null]}})),
            "map[data:map[x:5 y:[a <nil>]]]"
        );
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
