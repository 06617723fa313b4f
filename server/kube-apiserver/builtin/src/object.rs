//! Helpers that read and set fields of an object.

use crowsnest_apimachinery::quantity::Quantity;
pub(super) use crowsnest_apimachinery::unstructured::{
    at_or_null as at, flag, integer as number, list as items, map as fields, text,
};
use serde_json::Value;

/// True if the value is absent, null or an empty string.
pub(super) fn is_unset(value: &Value, path: &str) -> bool {
    let found = at(value, path);
    found.is_null() || found == ""
}

/// True if the path holds a non-null value.
pub(super) fn is_set(value: &Value, path: &str) -> bool {
    !at(value, path).is_null()
}

/// A mutable reference to the non-null value at a path.
pub(super) fn at_mut<'a>(value: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(value, |node, name| node.get_mut(name)).filter(|found| !found.is_null())
}

/// Calls `f` for each element of a list, if there is one.
pub(super) fn for_each_item(value: &mut Value, path: &str, f: impl FnMut(&mut Value)) {
    if let Some(Value::Array(list)) = at_mut(value, path) {
        list.iter_mut().for_each(f);
    }
}

/// Sets a field that is absent, null or an empty string.
pub(super) fn set_default(value: &mut Value, field: &str, new_value: impl Into<Value>) {
    if is_unset(value, field)
        && let Some(fields) = value.as_object_mut()
    {
        fields.insert(field.to_owned(), new_value.into());
    }
}

/// Sets a field that is absent or null: for pointer fields of Go, an empty string is a value.
pub(super) fn set_pointer_default(value: &mut Value, field: &str, new_value: impl Into<Value>) {
    if at(value, field).is_null() {
        set_field(value, field, new_value);
    }
}

/// Sets or overwrites a field of an object.
pub(super) fn set_field(value: &mut Value, field: &str, new_value: impl Into<Value>) {
    if let Some(fields) = value.as_object_mut() {
        fields.insert(field.to_owned(), new_value.into());
    }
}

/// Removes a field of an object and returns its value.
pub(super) fn remove_field(value: &mut Value, field: &str) -> Option<Value> {
    value.as_object_mut().and_then(|fields| fields.remove(field))
}

/// A copy of an object without some fields.
pub(super) fn without_fields(value: &Value, fields: &[&str]) -> Value {
    let mut copy = value.clone();
    for field in fields {
        remove_field(&mut copy, field);
    }
    copy
}

/// Copies a field, or removes it if it is absent.
pub(super) fn copy_field(from: &Value, to: &mut Value, field: &str) {
    match from.get(field) {
        Some(value) => set_field(to, field, value.clone()),
        None => drop(remove_field(to, field)),
    }
}

/// `apiequality.Semantic.DeepEqual`: resource quantities are compared by value.
pub(super) fn are_equal(one: &Value, other: &Value) -> bool {
    const RESOURCE_LISTS: [&str; 9] =
        ["limits", "requests", "overhead", "podFixed", "capacity", "allocatable", "hard", "used", "allocatedResources"];
    fn equal(one: &Value, other: &Value, are_quantities: bool) -> bool {
        match (one, other) {
            (Value::Object(one), Value::Object(other)) => {
                let field = |(name, value): (&String, &Value)| {
                    other.get(name).is_some_and(|found| {
                        equal(value, found, are_quantities || RESOURCE_LISTS.contains(&name.as_str()))
                    })
                };
                one.len() == other.len() && one.iter().all(field)
            }
            (Value::Array(one), Value::Array(other)) => {
                one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other, false))
            }
            (Value::String(one), Value::String(other)) if are_quantities && one != other => {
                matches!((Quantity::parse(one), Quantity::parse(other)), (Ok(one), Ok(other)) if one == other)
            }
            _ => one == other,
        }
    }
    equal(one, other, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_compared_by_value() {
        let pod = |cpu: &str, label: &str| serde_json::json!({"labels": {"a": label}, "containers": [{"resources": {"limits": {"cpu": cpu}}}]});
        assert!(are_equal(&pod("1.500", "1"), &pod("1500m", "1")));
        assert!(!are_equal(&pod("1.500", "1"), &pod("1", "1")));
        assert!(!are_equal(&pod("1", "1.500"), &pod("1", "1500m")));
    }
}
