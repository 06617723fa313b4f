//! Pruning of fields that a schema does not define.

use serde_json::Value;

use super::{Schema, Type};

/// Removes unknown fields of structs, at any depth, and returns their paths (`spec.containers[0].bogus`).
pub fn prune(schema: &Schema, object: &mut Value) -> Vec<String> {
    let mut unknown = Vec::new();
    walk(Some(schema), object, &mut String::new(), &mut unknown);
    unknown
}

/// The paths that [`prune`] would remove; fields below them are not listed.
pub fn unknown_fields(schema: &Schema, object: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    look(Some(schema), object, &mut String::new(), &mut unknown);
    unknown
}

/// Sets `path` to that of a field; the object's path is the first `length` bytes.
fn name_field(path: &mut String, length: usize, key: &str) {
    path.truncate(length);
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}

/// Sets `path` to that of a list item; the list's path is the first `length` bytes.
fn name_item(path: &mut String, length: usize, index: usize) {
    path.truncate(length);
    path.push_str(&format!("[{index}]"));
}

/// The known fields of an object or list by its schema.
enum Known<'s> {
    /// Fields of this schema; others are unknown, or kept.
    Fields(&'s Schema),
    /// Items of this schema.
    Items(&'s Schema),
    /// All fields, at any depth, because the schema wants a value of another type.
    Nothing,
    /// The value is not pruned.
    All,
}

fn known<'s>(schema: Option<&'s Schema>, value: &Value) -> Known<'s> {
    let Some(schema) = schema else { return Known::Nothing };
    match value {
        Value::Object(_) if schema.ty == Type::Object || !schema.properties.is_empty() => Known::Fields(schema),
        Value::Array(_) if schema.items.is_some() => schema.items.as_deref().map_or(Known::All, Known::Items),
        Value::Object(_) | Value::Array(_) if !schema.preserve_unknown && wants_another(schema, value) => {
            Known::Nothing
        }
        _ => Known::All,
    }
}

/// True if the schema of a custom resource wants another type than that of an object or list. Such values are refused,
/// or occur in other versions of an object.
fn wants_another(schema: &Schema, value: &Value) -> bool {
    match schema.ty {
        Type::Object => value.is_array(),
        Type::Array => value.is_object(),
        Type::String | Type::Integer | Type::Number | Type::Boolean | Type::IntOrString => true,
        Type::Any | Type::Quantity | Type::Time | Type::MicroTime | Type::Bytes => false,
    }
}

fn look(schema: Option<&Schema>, value: &Value, path: &mut String, unknown: &mut Vec<String>) {
    let length = path.len();
    match (value, known(schema, value)) {
        (Value::Object(fields), Known::Fields(schema)) => {
            for (key, child) in fields {
                name_field(path, length, key);
                match schema.child(key) {
                    Some(node) => look(Some(node), child, path, unknown),
                    None if schema.preserve_unknown => {}
                    None => unknown.push(path.clone()),
                }
            }
        }
        (Value::Object(fields), Known::Nothing) => {
            for key in fields.keys() {
                name_field(path, length, key);
                unknown.push(path.clone());
            }
        }
        (Value::Array(items), Known::Items(node)) => look_at_items(Some(node), items, path, unknown),
        (Value::Array(items), Known::Nothing) => look_at_items(None, items, path, unknown),
        _ => {}
    }
    path.truncate(length);
}

fn look_at_items(schema: Option<&Schema>, items: &[Value], path: &mut String, unknown: &mut Vec<String>) {
    let length = path.len();
    for (index, item) in items.iter().enumerate() {
        name_item(path, length, index);
        look(schema, item, path, unknown);
    }
}

fn walk(schema: Option<&Schema>, value: &mut Value, path: &mut String, unknown: &mut Vec<String>) {
    let length = path.len();
    let known = known(schema, value);
    match (value, known) {
        (Value::Object(fields), Known::Fields(schema)) => {
            fields.retain(|key, child| {
                name_field(path, length, key);
                match schema.child(key) {
                    Some(node) => walk(Some(node), child, path, unknown),
                    None if schema.preserve_unknown => {}
                    None => {
                        unknown.push(path.clone());
                        return false;
                    }
                }
                true
            });
        }
        (Value::Object(fields), Known::Nothing) => {
            for key in fields.keys() {
                name_field(path, length, key);
                unknown.push(path.clone());
            }
            fields.clear();
        }
        (Value::Array(items), Known::Items(node)) => walk_items(Some(node), items, path, unknown),
        (Value::Array(items), Known::Nothing) => walk_items(None, items, path, unknown),
        _ => {}
    }
    path.truncate(length);
}

fn walk_items(schema: Option<&Schema>, items: &mut [Value], path: &mut String, unknown: &mut Vec<String>) {
    let length = path.len();
    for (index, item) in items.iter_mut().enumerate() {
        name_item(path, length, index);
        walk(schema, item, path, unknown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::list_where_a_map_is_wanted("zones", json!([{"name": "x"}, "y", [{"z": 1}]]), json!([{}, "y", [{}]]),
        &["zones[0].name", "zones[2][0].z"])]
    #[case::map_where_a_list_is_wanted("args", json!({"a": {"b": 1}}), json!({}), &["args.a"])]
    #[case::map_where_a_string_is_wanted("mode", json!({"a": 1}), json!({}), &["mode.a"])]
    #[case::list_where_a_string_is_wanted("mode", json!([1, {"a": 1}]), json!([1, {}]), &["mode[1].a"])]
    #[case::map_where_a_port_is_wanted("port", json!({"a": 1}), json!({}), &["port.a"])]
    #[case::string_where_a_map_is_wanted("zones", json!("x"), json!("x"), &[])]
    #[case::open("open", json!([{"a": {"b": 1}}]), json!([{"a": {"b": 1}}]), &[])]
    #[case::list_where_an_open_map_is_wanted("place", json!([{"a": 1}]), json!([{"a": 1}]), &[])]
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
            "place": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }}));
        let mut object = json!({field: value});
        assert_eq!(unknown_fields(&schema, &object), expected);
        assert_eq!(prune(&schema, &mut object), expected);
        assert_eq!(object, json!({field: kept}));
    }
}
