//! Division of the objects in `objects` into fields, and the fields that each manager owns.

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_schema::apply::managed;
use crowsnest_schema::apply::path::{FieldSet, PathElement};
use serde_json::{Map, Value, json};

/// How a list is divided for ownership.
enum Division {
    /// The list is owned as one value.
    Atomic,
    /// Each value is owned.
    Set,
    /// Elements identified by keys, in the order of the key names, with the default of each key.
    Elements(&'static [(&'static str, Option<&'static str>)]),
}

fn division(kind: &str, field: &str) -> Division {
    match (kind, field) {
        ("Service", "ports") => Division::Elements(&[("port", None), ("protocol", Some("TCP"))]),
        ("Thing", "doors") => Division::Elements(&[("port", None), ("side", Some("left"))]),
        ("Thing", "locks") => Division::Elements(&[("id", None)]),
        ("Thing", "colours" | "keys") | (_, "finalizers") => Division::Set,
        (_, "ports") => Division::Elements(&[("containerPort", None), ("protocol", Some("TCP"))]),
        (_, "containers" | "env" | "volumes" | "imagePullSecrets") => Division::Elements(&[("name", None)]),
        (_, "volumeMounts") => Division::Elements(&[("mountPath", None)]),
        (_, "conditions") => Division::Elements(&[("type", None)]),
        (_, "hostAliases") => Division::Elements(&[("ip", None)]),
        (_, "ownerReferences") => Division::Elements(&[("uid", None)]),
        (_, "topologySpreadConstraints") => Division::Elements(&[("topologyKey", None), ("whenUnsatisfiable", None)]),
        _ => Division::Atomic,
    }
}

/// True for atomic maps.
fn is_atomic_map(field: &str) -> bool {
    const ATOMIC_MAPS: [&str; 7] =
        ["selector", "nodeSelector", "labelSelector", "marks", "secretKeyRef", "fieldRef", REFERENCE];
    ATOMIC_MAPS.contains(&field)
}

/// Field name of the elements of lists whose elements are owned as a whole.
const REFERENCE: &str = "an element of ownerReferences or imagePullSecrets";

/// The field name by which the elements of a list are classified; empty for elements that are divided into fields.
fn item_field(list: &str) -> &'static str {
    if matches!(list, "ownerReferences" | "imagePullSecrets") { REFERENCE } else { "" }
}

/// Name of an element in its list; `None` for atomic lists.
fn element_name(kind: &str, field: &str, item: &Value) -> Option<String> {
    match division(kind, field) {
        Division::Atomic => None,
        Division::Set => Some(format!("[={item}]")),
        Division::Elements(keys) => {
            let key = |(name, otherwise): &(&str, Option<&str>)| {
                let value = item.get(name).cloned().or_else(|| otherwise.map(Value::from)).unwrap();
                format!("{name}={value}")
            };
            Some(format!("[{}]", keys.iter().map(key).collect::<Vec<_>>().join(",")))
        }
    }
}

fn kind_of(object: &Value) -> &str {
    object["kind"].as_str().unwrap()
}

/// The fields of an object without those that identify it.
fn content(object: &Value) -> Value {
    let mut object = object.clone();
    let fields = object.as_object_mut().unwrap();
    fields.retain(|name, _| name != "apiVersion" && name != "kind");
    for name in ["name", "managedFields", "creationTimestamp"] {
        fields.get_mut("metadata").and_then(Value::as_object_mut).map(|metadata| metadata.remove(name));
    }
    fields.retain(|name, value| name != "metadata" || value.as_object().is_some_and(|metadata| !metadata.is_empty()));
    object
}

/// Fields that a manager owns after applying the object: values, elements, and empty maps.
pub fn applied_fields(object: &Value) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    collect(kind_of(object), "", &content(object), "", &mut out);
    out
}

fn collect(kind: &str, field: &str, value: &Value, path: &str, out: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if !is_atomic_map(field) && !fields.is_empty() => {
            fields.iter().for_each(|(name, value)| collect(kind, name, value, &format!("{path}.{name}"), out));
        }
        Value::Array(items) if !matches!(division(kind, field), Division::Atomic) => {
            for value in items {
                let path = format!("{path}{}", element_name(kind, field, value).unwrap());
                collect(kind, item_field(field), value, &path, out);
                out.insert(path);
            }
        }
        _ if path.is_empty() => {}
        _ => drop(out.insert(path.to_owned())),
    }
}

/// The object with list elements in a canonical order and without managed fields.
pub fn with_sorted_elements(object: &Value) -> Value {
    sort_elements(kind_of(object), "", &content(object))
}

fn sort_elements(kind: &str, field: &str, value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().map(|(name, value)| (name, value, sort_elements(kind, name, value)));
            // An empty list has no owner, and its presence depends on the first writer; so do maps that contain only
            // such lists.
            let kept = kept.filter(|(_, before, after)| **before == json!({}) || !is_empty(after));
            Value::Object(kept.map(|(name, _, value)| (name.clone(), value)).collect())
        }
        Value::Array(items) if !matches!(division(kind, field), Division::Atomic) => {
            let mut items: Vec<(String, Value)> = items
                .iter()
                .map(|value| (element_name(kind, field, value).unwrap(), sort_elements(kind, item_field(field), value)))
                .collect();
            items.sort_by(|(one, _), (other, _)| one.cmp(other));
            Value::Array(items.into_iter().map(|(_, item)| item).collect())
        }
        other => other.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    *value == json!([]) || *value == json!({})
}

/// True if the value contains an empty list.
pub fn has_empty_list(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty() || items.iter().any(has_empty_list),
        Value::Object(fields) => fields.values().any(has_empty_list),
        _ => false,
    }
}

/// Splits an object into two configurations that share no fields except the keys of elements.
pub fn split(object: &Value, mut coin: impl Iterator<Item = bool>) -> (Value, Value) {
    let parts = split_value(kind_of(object), "", &content(object), &mut coin);
    let (mut one, mut other) = parts.unwrap_or_default();
    for part in [&mut one, &mut other] {
        if part.is_null() {
            *part = Value::Object(Map::new());
        }
        for name in ["apiVersion", "kind"] {
            part[name] = object[name].clone();
        }
        part["metadata"]["name"] = object["metadata"]["name"].clone();
    }
    (one, other)
}

/// Splits a value; a part without any of it is null.
fn split_value(
    kind: &str,
    field: &str,
    value: &Value,
    coin: &mut impl Iterator<Item = bool>,
) -> Option<(Value, Value)> {
    let (mut one, mut other) = (Value::Null, Value::Null);
    match value {
        Value::Object(fields) if !is_atomic_map(field) && !fields.is_empty() => {
            for (name, value) in fields {
                let (left, right) = split_value(kind, name, value, coin)?;
                for (part, value) in [(&mut one, left), (&mut other, right)] {
                    if !value.is_null() {
                        part[name] = value;
                    }
                }
            }
        }
        Value::Array(items) if !items.is_empty() && !matches!(division(kind, field), Division::Atomic) => {
            let (mut left, mut right) = (Vec::new(), Vec::new());
            for value in items {
                let is_left = coin.next()?;
                let fields = value.as_object().filter(|_| !is_atomic_map(item_field(field))).cloned();
                let Some(fields) = fields else {
                    let list = if is_left { &mut left } else { &mut right };
                    list.push(value.clone());
                    continue;
                };
                let Division::Elements(keys) = division(kind, field) else { return None };
                let is_key = |name: &str| keys.iter().any(|(key, _)| *key == name);
                let (keys, rest): (Map<_, _>, Map<_, _>) = fields.into_iter().partition(|(name, _)| is_key(name));
                let (mut one, mut other) = split_value(kind, "", &Value::Object(rest), coin)?;
                // If neither part has fields of the element, one of them gets its keys.
                for (part, is_here, list) in [(&mut one, is_left, &mut left), (&mut other, !is_left, &mut right)] {
                    if is_here || part.is_object() {
                        keys.iter().for_each(|(name, value)| part[name] = value.clone());
                        list.push(part.take());
                    }
                }
            }
            for (part, list) in [(&mut one, left), (&mut other, right)] {
                if !list.is_empty() {
                    *part = Value::Array(list);
                }
            }
        }
        Value::Object(fields) if fields.is_empty() && field.is_empty() => {}
        whole => {
            let part = if coin.next()? { &mut one } else { &mut other };
            *part = whole.clone();
        }
    }
    Some((one, other))
}

/// Fields that a manager owns, by their display name.
pub type OwnedFields = BTreeMap<String, Vec<PathElement>>;

/// The fields that each manager owns, by the text of a conflict with the manager.
pub fn owners(object: &Value) -> BTreeMap<String, OwnedFields> {
    let entries = managed::decode(object).unwrap();
    let owned = entries.iter().map(|entry| {
        let mut owned = OwnedFields::new();
        collect_members(&entry.fields, &mut Vec::new(), &mut owned);
        (format!("conflict with {}", entry.describe()), owned)
    });
    owned.collect()
}

fn collect_members(set: &FieldSet, path: &mut Vec<PathElement>, out: &mut OwnedFields) {
    for (element, child) in &set.children {
        path.push(element.clone());
        if child.is_member {
            out.insert(path.iter().map(ToString::to_string).collect(), path.clone());
        }
        collect_members(child, path, out);
        path.pop();
    }
}

/// The value at a field of an object.
pub fn value_at<'v>(object: &'v Value, path: &[PathElement]) -> Option<&'v Value> {
    path.iter().try_fold(object, |value, element| match element {
        PathElement::Field(name) => value.get(&**name),
        PathElement::Key(keys) => {
            let is_default = |value: &Value| value == "TCP" || value == "left";
            let is_element = |item: &&Value| {
                keys.iter().all(|(name, key)| item.get(&**name).map_or(is_default(key), |found| found == key))
            };
            value.as_array()?.iter().find(is_element)
        }
        PathElement::Value(wanted) => value.as_array()?.iter().find(|item| *item == wanted),
        PathElement::Index(index) => value.get(index),
    })
}
