//! Untyped Kubernetes objects: reading and writing fields of a `serde_json::Value` by path.
//!
//! Every reader returns `None` or an empty value for a missing or wrongly typed field, as a dynamic client would.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::names::NamespacedName;

/// A path of field names: a list of keys, a JSON pointer (`/spec/replicas`) or names joined by dots (`spec.replicas`).
/// Keys with dots or slashes, such as labels, need the list or an escaped pointer.
pub trait FieldPath {
    /// The value at this path.
    fn value_in<'a>(&self, object: &'a Value) -> Option<&'a Value>;
}

impl FieldPath for [&str] {
    fn value_in<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        self.iter().try_fold(object, |value, key| value.get(*key))
    }
}

impl<const N: usize> FieldPath for [&str; N] {
    fn value_in<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        self.as_slice().value_in(object)
    }
}

impl FieldPath for str {
    fn value_in<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        match self.starts_with('/') {
            true => object.pointer(self),
            false => self.split('.').try_fold(object, |value, key| value.get(key)),
        }
    }
}

impl<P: FieldPath + ?Sized> FieldPath for &P {
    fn value_in<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        (**self).value_in(object)
    }
}

impl FieldPath for String {
    fn value_in<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        self.as_str().value_in(object)
    }
}

/// The value at `path`.
pub fn at<'a>(object: &'a Value, path: &(impl FieldPath + ?Sized)) -> Option<&'a Value> {
    path.value_in(object)
}

/// The value at `path`, or null.
pub fn at_or_null<'a>(object: &'a Value, path: &(impl FieldPath + ?Sized)) -> &'a Value {
    static NULL: Value = Value::Null;
    at(object, path).unwrap_or(&NULL)
}

/// The string at `path`, or `""`.
pub fn text<'a>(object: &'a Value, path: &(impl FieldPath + ?Sized)) -> &'a str {
    at(object, path).and_then(Value::as_str).unwrap_or_default()
}

/// The integer at `path`.
pub fn integer(object: &Value, path: &(impl FieldPath + ?Sized)) -> Option<i64> {
    at(object, path).and_then(Value::as_i64)
}

/// The boolean at `path`, or false.
pub fn flag(object: &Value, path: &(impl FieldPath + ?Sized)) -> bool {
    at(object, path).and_then(Value::as_bool).unwrap_or_default()
}

/// The items of the list at `path`.
pub fn list<'a>(object: &'a Value, path: &(impl FieldPath + ?Sized)) -> &'a [Value] {
    at(object, path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The strings in the list at `path`.
pub fn texts<'a>(object: &'a Value, path: &(impl FieldPath + ?Sized)) -> impl Iterator<Item = &'a str> {
    list(object, path).iter().filter_map(Value::as_str)
}

/// The members of the object at `path`.
pub fn map<'a>(object: &'a Value, path: &(impl FieldPath + ?Sized)) -> &'a Map<String, Value> {
    static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
    at(object, path).and_then(Value::as_object).unwrap_or(&EMPTY)
}

/// Sets `path` to `value`; missing parent objects are created, other parent values are replaced.
pub fn set(object: &mut Value, path: &[&str], value: Value) {
    let Some((last, parents)) = path.split_last() else { return };
    let mut current = object;
    for key in parents {
        current = entry(current, key);
    }
    ensure_map(current).insert((*last).to_owned(), value);
}

/// Removes the field at `path`; empty parents are kept.
pub fn remove(object: &mut Value, path: &[&str]) -> Option<Value> {
    let (last, parents) = path.split_last()?;
    let mut current = object;
    for key in parents {
        current = current.get_mut(*key)?;
    }
    current.as_object_mut()?.remove(*last)
}

fn ensure_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("the value was replaced by an object above"),
    }
}

fn entry<'a>(value: &'a mut Value, key: &str) -> &'a mut Value {
    ensure_map(value).entry(key.to_owned()).or_insert_with(|| Value::Object(Map::new()))
}

pub fn api_version(object: &Value) -> &str {
    text(object, &["apiVersion"])
}

pub fn kind(object: &Value) -> &str {
    text(object, &["kind"])
}

pub fn name(object: &Value) -> &str {
    text(object, &["metadata", "name"])
}

pub fn namespace(object: &Value) -> &str {
    text(object, &["metadata", "namespace"])
}

/// Namespace and name.
pub fn key(object: &Value) -> NamespacedName {
    NamespacedName::new(namespace(object), name(object))
}

pub fn uid(object: &Value) -> &str {
    text(object, &["metadata", "uid"])
}

pub fn resource_version(object: &Value) -> &str {
    text(object, &["metadata", "resourceVersion"])
}

pub fn generation(object: &Value) -> i64 {
    integer(object, &["metadata", "generation"]).unwrap_or_default()
}

/// True if the object is being deleted (`metadata.deletionTimestamp`).
pub fn is_terminating(object: &Value) -> bool {
    at(object, &["metadata", "deletionTimestamp"]).is_some_and(|time| !time.is_null())
}

pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    at(object, &["metadata", "labels", key]).and_then(Value::as_str)
}

pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    at(object, &["metadata", "annotations", key]).and_then(Value::as_str)
}

pub fn labels(object: &Value) -> BTreeMap<String, String> {
    string_map(at(object, &["metadata", "labels"]))
}

pub fn annotations(object: &Value) -> BTreeMap<String, String> {
    string_map(at(object, &["metadata", "annotations"]))
}

fn string_map(value: Option<&Value>) -> BTreeMap<String, String> {
    let Some(map) = value.and_then(Value::as_object) else { return BTreeMap::new() };
    map.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

pub fn set_label(object: &mut Value, key: &str, value: &str) {
    set(object, &["metadata", "labels", key], Value::String(value.to_owned()));
}

pub fn set_annotation(object: &mut Value, key: &str, value: &str) {
    set(object, &["metadata", "annotations", key], Value::String(value.to_owned()));
}

pub fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    finalizers(object).any(|existing| existing == finalizer)
}

pub fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    at(object, &["metadata", "finalizers"]).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// The value without null fields, at any depth, as a JSON merge patch (RFC 7386) stores it. Nulls in lists are kept.
pub fn remove_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let remaining = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(remaining.map(|(key, value)| (key, remove_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(remove_nulls).collect()),
        other => other,
    }
}

/// Kubernetes' semantic equality: an absent field equals an empty map, an empty list and null.
pub fn semantically_equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            left.iter().all(|(key, value)| match right.get(key) {
                Some(other) => semantically_equal(value, other),
                None => is_empty(value),
            }) && right.iter().all(|(key, value)| left.contains_key(key) || is_empty(value))
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| semantically_equal(left, right))
        }
        (Value::Number(left), Value::Number(right)) => left == right || left.as_f64() == right.as_f64(),
        (left, right) => left == right || (is_empty(left) && is_empty(right)),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_have_three_forms() {
        let object = json!({"spec": {"a.b": "x", "n": 3, "on": true, "l": ["y", 1]}});
        assert_eq!(
            [text(&object, &["spec", "a.b"]), text(&object, "/spec/a.b"), text(&object, "spec.a.b")],
            ["x", "x", ""]
        );
        assert_eq!(
            (integer(&object, "spec.n"), flag(&object, "/spec/on"), text(&object, "/spec/l/0")),
            (Some(3), true, "y")
        );
        assert_eq!(texts(&object, "spec.l").collect::<Vec<_>>(), ["y"]);
        assert_eq!(
            (list(&object, "spec").len(), map(&object, "spec").len(), at_or_null(&object, "")),
            (0, 4, &Value::Null)
        );
    }

    #[test]
    fn fields_are_set_and_removed_by_path() {
        let mut object = json!({"metadata": {"name": "a"}});
        set_label(&mut object, "x.io/y", "1");
        assert_eq!(label(&object, "x.io/y"), Some("1"));
        remove(&mut object, &["metadata", "labels", "x.io/y"]);
        assert_eq!(object, json!({"metadata": {"name": "a", "labels": {}}}));
    }

    #[test]
    fn null_fields_are_removed_at_any_depth() {
        let value = json!({"a": null, "b": {"c": null}, "list": [null, {"d": null, "e": 1}], "f": ""});
        assert_eq!(remove_nulls(value), json!({"b": {}, "list": [null, {"e": 1}], "f": ""}));
        assert_eq!(remove_nulls(Value::Null), Value::Null);
    }

    #[test]
    fn empty_equals_absent() {
        assert!(semantically_equal(&json!({"a": {"b": []}, "n": 1}), &json!({"a": {}, "n": 1, "z": null})));
        assert!(!semantically_equal(&json!({"a": ""}), &json!({})));
    }
}
