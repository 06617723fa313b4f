//! Access to fields for the rules. Null counts as missing; in results, so do empty maps and lists.

use serde_json::{Map, Value};

use super::RuleError;
use crowsnest_apimachinery::unstructured::{at, integer};

/// The value at `path`. `None` if it is null.
pub(super) fn value_at<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    at(object, path).filter(|value| !value.is_null())
}

/// The value at `path`, or an error if it is missing or null.
pub(super) fn require<'a>(object: &'a Value, path: &[&str]) -> Result<&'a Value, RuleError> {
    value_at(object, path).ok_or_else(|| RuleError::Missing(path.join(".")))
}

/// The integer at `path`, or an error if it is missing or not an integer.
pub(super) fn require_integer(object: &Value, path: &[&str]) -> Result<i64, RuleError> {
    require(object, path)?;
    integer(object, path).ok_or_else(|| RuleError::Number(path.join(".")))
}

pub(super) fn require_replicas(object: &Value, path: &[&str]) -> Result<i32, RuleError> {
    require_integer(object, path).map(|count| i32::try_from(count).unwrap_or(i32::MAX))
}

pub(super) fn replicas_or_one(object: &Value, path: &[&str]) -> Result<i32, RuleError> {
    match value_at(object, path) {
        Some(_) => require_replicas(object, path),
        None => Ok(1),
    }
}

/// The integer at `path`, or 0.
pub(super) fn count(object: &Value, path: &[&str]) -> i64 {
    integer(object, path).unwrap_or_default()
}

/// A number, possibly as a string.
pub(super) fn number(value: Option<&Value>) -> Option<f64> {
    let number = match value? {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    number.filter(|number| number.is_finite())
}

/// The number of replicas at `path`, possibly as a string.
pub(super) fn replicas_or(object: &Value, path: &[&str], default: i32) -> Result<i32, RuleError> {
    number(value_at(object, path)).map_or(Ok(default), |count| to_replica_count(count, path))
}

pub(super) fn to_replica_count(count: f64, path: &[&str]) -> Result<i32, RuleError> {
    match count.fract() == 0.0 {
        true => Ok(count as i32),
        false => Err(RuleError::Number(path.join("."))),
    }
}

pub(super) fn list<'a>(object: &'a Value, path: &[&str]) -> impl Iterator<Item = &'a Value> + use<'a> {
    at(object, path).and_then(Value::as_array).into_iter().flatten()
}

pub(super) fn fields<'a>(object: &'a Value, path: &[&str]) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    at(object, path).and_then(Value::as_object).into_iter().flatten()
}

fn is_blank(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// Removes nulls, then maps and lists that were empty. Containers that contained only those are kept.
pub(super) fn remove_blanks(value: Value) -> Value {
    drop_blanks(drop_nulls(value), None)
}

/// Like [`remove_blanks`], but keeps empty maps and lists in fields that are empty in the stored value as well.
pub(super) fn remove_new_blanks(value: Value, stored: Option<&Value>) -> Value {
    drop_blanks(drop_nulls(value), stored)
}

fn drop_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let remaining = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(remaining.map(|(key, value)| (key, drop_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().filter(|item| !item.is_null()).map(drop_nulls).collect()),
        other => other,
    }
}

fn drop_blanks(value: Value, stored: Option<&Value>) -> Value {
    match value {
        Value::Object(fields) => {
            let stored = |key: &str| stored.and_then(|stored| stored.get(key));
            let remaining =
                fields.into_iter().filter(|(key, value)| !is_blank(value) || stored(key).is_some_and(is_blank));
            let remaining = remaining.map(|(key, value)| {
                let value = drop_blanks(value, stored(&key));
                (key, value)
            });
            Value::Object(remaining.collect())
        }
        Value::Array(items) => {
            let remaining = items.into_iter().filter(|item| !is_blank(item));
            Value::Array(remaining.map(|item| drop_blanks(item, None)).collect())
        }
        other => other,
    }
}

/// Removes nulls and empty values recursively and, with `zeros`, also 0, `""` and `"0s"`. `None` if nothing is left.
pub(super) fn without_empty_values(value: Value, zeros: bool) -> Option<Value> {
    let remaining = match value {
        Value::Null => return None,
        Value::Object(fields) => {
            let remaining =
                fields.into_iter().filter_map(|(key, value)| Some((key, without_empty_values(value, zeros)?)));
            Value::Object(remaining.collect())
        }
        Value::Array(items) => {
            Value::Array(items.into_iter().filter_map(|item| without_empty_values(item, zeros)).collect())
        }
        Value::Number(number) if zeros && number.as_f64() == Some(0.0) => return None,
        Value::String(text) if zeros && (text.is_empty() || text == "0s") => return None,
        other => return Some(other),
    };
    (!is_blank(&remaining)).then_some(remaining)
}
