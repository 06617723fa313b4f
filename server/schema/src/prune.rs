//! Pruning of fields that a schema does not define.

use serde_json::Value;

use super::{Schema, Type};

/// Removes unknown fields of structs, at any depth, and returns their paths (`spec.containers[0].bogus`).
pub fn prune(schema: &Schema, object: &mut Value) -> Vec<String> {
    let mut unknown = Vec::new();
    prune_value(Some(schema), object, &mut String::new(), &mut unknown);
    unknown
}

/// The paths that [`prune`] would remove; fields below them are not listed.
pub fn unknown_fields(schema: &Schema, object: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    collect_unknown(Some(schema), object, &mut String::new(), &mut unknown);
    unknown
}

/// Sets `path` to that of a field; the object's path is the first `length` bytes.
fn set_field_path(path: &mut String, length: usize, key: &str) {
    path.truncate(length);
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}

/// Sets `path` to that of a list item; the list's path is the first `length` bytes.
fn set_item_path(path: &mut String, length: usize, index: usize) {
    path.truncate(length);
    path.push_str(&format!("[{index}]"));
}

/// The known fields of an object or list by its schema.
enum KnownFields<'s> {
    /// Fields of this schema; others are unknown, or kept.
    Fields(&'s Schema),
    /// Items of this schema.
    Items(&'s Schema),
    /// No field is known, at any depth, because the schema expects a value of another type.
    Nothing,
    /// The value is not pruned.
    All,
}

fn known_fields<'s>(schema: Option<&'s Schema>, value: &Value) -> KnownFields<'s> {
    let Some(schema) = schema else { return KnownFields::Nothing };
    match value {
        Value::Object(_) if schema.ty == Type::Object || !schema.properties.is_empty() => KnownFields::Fields(schema),
        Value::Array(_) if schema.items.is_some() => {
            schema.items.as_deref().map_or(KnownFields::All, KnownFields::Items)
        }
        Value::Object(_) | Value::Array(_)
            if !schema.preserves_unknown_fields && expects_another_type(schema, value) =>
        {
            KnownFields::Nothing
        }
        _ => KnownFields::All,
    }
}

/// True if the schema of a custom resource expects another type than that of an object or list. Such values are
/// rejected by validation, or occur in other versions of an object.
fn expects_another_type(schema: &Schema, value: &Value) -> bool {
    match schema.ty {
        Type::Object => value.is_array(),
        Type::Array => value.is_object(),
        Type::String | Type::Integer | Type::Number | Type::Boolean | Type::IntOrString => true,
        Type::Any | Type::Quantity | Type::Time | Type::MicroTime | Type::Bytes => false,
    }
}

fn collect_unknown(schema: Option<&Schema>, value: &Value, path: &mut String, unknown: &mut Vec<String>) {
    let length = path.len();
    match (value, known_fields(schema, value)) {
        (Value::Object(fields), KnownFields::Fields(schema)) => {
            for (key, child) in fields {
                set_field_path(path, length, key);
                match schema.child(key) {
                    Some(node) => collect_unknown(Some(node), child, path, unknown),
                    None if schema.preserves_unknown_fields => {}
                    None => unknown.push(path.clone()),
                }
            }
        }
        (Value::Object(fields), KnownFields::Nothing) => {
            for key in fields.keys() {
                set_field_path(path, length, key);
                unknown.push(path.clone());
            }
        }
        (Value::Array(items), KnownFields::Items(node)) => collect_unknown_in_items(Some(node), items, path, unknown),
        (Value::Array(items), KnownFields::Nothing) => collect_unknown_in_items(None, items, path, unknown),
        _ => {}
    }
    path.truncate(length);
}

fn collect_unknown_in_items(schema: Option<&Schema>, items: &[Value], path: &mut String, unknown: &mut Vec<String>) {
    let length = path.len();
    for (index, item) in items.iter().enumerate() {
        set_item_path(path, length, index);
        collect_unknown(schema, item, path, unknown);
    }
}

fn prune_value(schema: Option<&Schema>, value: &mut Value, path: &mut String, unknown: &mut Vec<String>) {
    let length = path.len();
    let known = known_fields(schema, value);
    match (value, known) {
        (Value::Object(fields), KnownFields::Fields(schema)) => {
            fields.retain(|key, child| {
                set_field_path(path, length, key);
                match schema.child(key) {
                    Some(node) => prune_value(Some(node), child, path, unknown),
                    None if schema.preserves_unknown_fields => {}
                    None => {
                        unknown.push(path.clone());
                        return false;
                    }
                }
                true
            });
        }
        (Value::Object(fields), KnownFields::Nothing) => {
            for key in fields.keys() {
                set_field_path(path, length, key);
                unknown.push(path.clone());
            }
            fields.clear();
        }
        (Value::Array(items), KnownFields::Items(node)) => prune_items(Some(node), items, path, unknown),
        (Value::Array(items), KnownFields::Nothing) => prune_items(None, items, path, unknown),
        _ => {}
    }
    path.truncate(length);
}

fn prune_items(schema: Option<&Schema>, items: &mut [Value], path: &mut String, unknown: &mut Vec<String>) {
    let length = path.len();
    for (index, item) in items.iter_mut().enumerate() {
        set_item_path(path, length, index);
        prune_value(schema, item, path, unknown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::list_where_a_map_is_expected("zones", json!([{"name": "x"}, "y", [{"z": 1}]]), json!([{}, "y", [{}]]),
        &["zones[0].name", "zones[2][0].z"])]
    #[case::map_where_a_list_is_expected("args", json!({"a": {"b": 1}}), json!({}), &["args.a"])]
    #[case::map_where_a_string_is_expected("mode", json!({"a": 1}), json!({}), &["mode.a"])]
    #[case::list_where_a_string_is_expected("mode", json!([1, {"a": 1}]), json!([1, {}]), &["mode[1].a"])]
    #[case::map_where_a_port_is_expected("port", json!({"a": 1}), json!({}), &["port.a"])]
    #[case::string_where_a_map_is_expected("zones", json!("x"), json!("x"), &[])]
    #[case::open("open", json!([{"a": {"b": 1}}]), json!([{"a": {"b": 1}}]), &[])]
    #[case::list_where_an_open_map_is_expected("location", json!([{"a": 1}]), json!([{"a": 1}]), &[])]
    #[case::known("args", json!([{"name": "a", "other": 1}]), json!([{"name": "a"}]), &["args[0].other"])]
    fn values_of_other_types_are_pruned(
        #[case] field: &str,
        #[case] value: Value,
        #[case] kept: Value,
        #[case] expected: &[&str],
    ) {
        let text = json!({"type": "string"});
        let schema = Schema::for_custom_resource(&json!({"type": "object", "properties": {
            "zones": {"type": "object", "additionalProperties": {"type": "object", "properties": {"primary": text}}},
            "args": {"type": "array", "items": {"type": "object", "properties": {"name": text}}},
            "mode": text,
            "port": {"x-kubernetes-int-or-string": true},
            "open": {"x-kubernetes-preserve-unknown-fields": true},
            "location": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }}));
        let mut object = json!({field: value});
        assert_eq!(unknown_fields(&schema, &object), expected);
        assert_eq!(prune(&schema, &mut object), expected);
        assert_eq!(object, json!({field: kept}));
    }
}
