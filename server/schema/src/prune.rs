//! Pruning of fields that a schema does not define.

use serde_json::Value;

use super::{Schema, Type};

/// Removes unknown fields of structs, at any depth, and returns their paths (`spec.containers[0].bogus`).
pub fn prune(schema: &Schema, object: &mut Value) -> Vec<String> {
    let mut unknown = Vec::new();
    prune_value(Position::of(schema), object, &mut String::new(), &mut unknown);
    unknown
}

/// The paths that [`prune`] would remove; fields below them are not listed.
pub fn unknown_fields(schema: &Schema, object: &Value) -> Vec<String> {
    let mut unknown = Vec::new();
    collect_unknown(Position::of(schema), object, &mut String::new(), &mut unknown);
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

/// Position in a schema.
#[derive(Clone, Copy)]
struct Position<'s> {
    /// `None` below a value of another type than the schema expects: no field is known, at any depth.
    schema: Option<&'s Schema>,
    /// True for items of a list that preserves unknown fields, which applies to the fields of the items.
    is_in_preserving_list: bool,
}

impl<'s> Position<'s> {
    /// Position at which no field is known.
    const NOTHING: Self = Self { schema: None, is_in_preserving_list: false };

    fn of(schema: &'s Schema) -> Self {
        Self { schema: Some(schema), is_in_preserving_list: false }
    }

    /// The position of a field of an object with this schema; `None` if the field is unknown.
    fn field(schema: &'s Schema, key: &str) -> Option<Self> {
        match schema.child(key) {
            Some(node) => Some(Self::of(node)),
            None => schema.prunes_unknown_objects.then_some(Self::NOTHING),
        }
    }

    /// True if unknown fields are kept.
    fn keeps_unknown(self) -> bool {
        self.is_in_preserving_list || self.schema.is_some_and(|schema| schema.preserves_unknown_fields)
    }
}

/// The known fields of an object or list by its schema.
enum KnownFields<'s> {
    /// Fields of this schema; others are unknown, or kept.
    Fields(&'s Schema),
    /// Items at this position.
    Items(Position<'s>),
    /// No field is known, at any depth, because the schema expects a value of another type.
    Nothing,
    /// The value is not pruned.
    All,
}

fn known_fields<'s>(position: Position<'s>, value: &Value) -> KnownFields<'s> {
    let Some(schema) = position.schema else { return KnownFields::Nothing };
    let keeps_unknown = position.keeps_unknown();
    match (value, &schema.items) {
        (Value::Object(_), _) if schema.ty == Type::Object || !schema.properties.is_empty() => {
            KnownFields::Fields(schema)
        }
        (Value::Array(_), Some(items)) => {
            KnownFields::Items(Position { schema: Some(items), is_in_preserving_list: keeps_unknown })
        }
        (Value::Object(_) | Value::Array(_), _) if !keeps_unknown && expects_another_type(schema, value) => {
            KnownFields::Nothing
        }
        _ => KnownFields::All,
    }
}

/// True if a value, an object or a list, is not of the type that the schema of a custom resource expects. Validation
/// rejects such a value later; objects that were stored in another version can contain it.
fn expects_another_type(schema: &Schema, value: &Value) -> bool {
    match schema.ty {
        Type::Object => value.is_array(),
        Type::Array => value.is_object(),
        Type::String | Type::Integer | Type::Number | Type::Boolean | Type::IntOrString => true,
        Type::Any | Type::Quantity | Type::Time | Type::MicroTime | Type::Bytes => false,
    }
}

fn collect_unknown(position: Position<'_>, value: &Value, path: &mut String, unknown: &mut Vec<String>) {
    let length = path.len();
    match (value, known_fields(position, value)) {
        (Value::Object(fields), KnownFields::Fields(schema)) => {
            for (key, child) in fields {
                set_field_path(path, length, key);
                match Position::field(schema, key) {
                    Some(position) => collect_unknown(position, child, path, unknown),
                    None if position.keeps_unknown() => {}
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
        (Value::Array(items), KnownFields::Items(position)) => collect_unknown_in_items(position, items, path, unknown),
        (Value::Array(items), KnownFields::Nothing) => {
            collect_unknown_in_items(Position::NOTHING, items, path, unknown);
        }
        _ => {}
    }
    path.truncate(length);
}

fn collect_unknown_in_items(position: Position<'_>, items: &[Value], path: &mut String, unknown: &mut Vec<String>) {
    let length = path.len();
    for (index, item) in items.iter().enumerate() {
        set_item_path(path, length, index);
        collect_unknown(position, item, path, unknown);
    }
}

fn prune_value(position: Position<'_>, value: &mut Value, path: &mut String, unknown: &mut Vec<String>) {
    let length = path.len();
    let known = known_fields(position, value);
    match (value, known) {
        (Value::Object(fields), KnownFields::Fields(schema)) => {
            fields.retain(|key, child| {
                set_field_path(path, length, key);
                match Position::field(schema, key) {
                    Some(position) => prune_value(position, child, path, unknown),
                    None if position.keeps_unknown() => {}
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
        (Value::Array(items), KnownFields::Items(position)) => prune_items(position, items, path, unknown),
        (Value::Array(items), KnownFields::Nothing) => prune_items(Position::NOTHING, items, path, unknown),
        _ => {}
    }
    path.truncate(length);
}

fn prune_items(position: Position<'_>, items: &mut [Value], path: &mut String, unknown: &mut Vec<String>) {
    let length = path.len();
    for (index, item) in items.iter_mut().enumerate() {
        set_item_path(path, length, index);
        prune_value(position, item, path, unknown);
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
    #[case::any_members("any", json!({"a": 1, "b": {"c": 1}, "d": [{"e": 1}]}), json!({"a": 1, "b": {}, "d": [{}]}), &["any.b.c", "any.d[0].e"])]
    #[case::items_of_an_open_list("openList", json!([{"name": {"z": 1}, "a": {"b": 1}}]), json!([{"name": {}, "a": {"b": 1}}]), &["openList[0].name.z"])]
    #[case::list_in_an_open_list("openList", json!([[{"a": 1}]]), json!([[{"a": 1}]]), &[])]
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
            "any": {"type": "object", "additionalProperties": true},
            "openList": {"type": "array", "x-kubernetes-preserve-unknown-fields": true,
                "items": {"type": "object", "properties": {"name": {"type": "object", "properties": {"x": text}}}}},
        }}));
        let mut object = json!({field: value});
        assert_eq!(unknown_fields(&schema, &object), expected);
        assert_eq!(prune(&schema, &mut object), expected);
        assert_eq!(object, json!({field: kept}));
    }
}
