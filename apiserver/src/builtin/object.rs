//! Reading and completing parts of an object.

use serde_json::{Map, Value};

static NULL: Value = Value::Null;

/// The value at a dotted path of field names, null when absent.
pub(super) fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').try_fold(value, |node, name| node.get(name)).unwrap_or(&NULL)
}

pub(super) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

pub(super) fn number(value: &Value, path: &str) -> Option<i64> {
    at(value, path).as_i64()
}

pub(super) fn flag(value: &Value, path: &str) -> bool {
    at(value, path).as_bool().unwrap_or(false)
}

pub(super) fn items<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    at(value, path).as_array().map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn fields<'a>(value: &'a Value, path: &str) -> &'a Map<String, Value> {
    static EMPTY: std::sync::LazyLock<Map<String, Value>> = std::sync::LazyLock::new(Map::new);
    at(value, path).as_object().unwrap_or(&EMPTY)
}

/// Absent, null, or Go's empty string.
pub(super) fn unset(value: &Value, path: &str) -> bool {
    let found = at(value, path);
    found.is_null() || found == ""
}

/// True when the path holds a non-null value.
pub(super) fn set(value: &Value, path: &str) -> bool {
    !at(value, path).is_null()
}

/// An existing object or list below `value`.
pub(super) fn inside<'a>(value: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(value, |node, name| node.get_mut(name)).filter(|found| !found.is_null())
}

/// Runs on each element of a list, when there is one.
pub(super) fn each(value: &mut Value, path: &str, f: impl FnMut(&mut Value)) {
    if let Some(Value::Array(list)) = inside(value, path) {
        list.iter_mut().for_each(f);
    }
}

/// Sets a field that is absent, null or an empty string.
pub(super) fn default(value: &mut Value, field: &str, wanted: impl Into<Value>) {
    if unset(value, field)
        && let Some(fields) = value.as_object_mut()
    {
        fields.insert(field.to_owned(), wanted.into());
    }
}

/// Sets or overwrites a field of an object.
pub(super) fn put(value: &mut Value, field: &str, wanted: impl Into<Value>) {
    if let Some(fields) = value.as_object_mut() {
        fields.insert(field.to_owned(), wanted.into());
    }
}

pub(super) fn take(value: &mut Value, field: &str) -> Option<Value> {
    value.as_object_mut().and_then(|fields| fields.remove(field))
}

/// Copies a field, or its absence.
pub(super) fn copy(from: &Value, to: &mut Value, field: &str) {
    match from.get(field) {
        Some(value) => put(to, field, value.clone()),
        None => drop(take(to, field)),
    }
}
