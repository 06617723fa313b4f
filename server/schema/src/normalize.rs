//! Normalization of objects to the form that Go encodes after decoding them.

use serde_json::{Map, Value, json};

use super::{Field, GoField, Omit, Schema, Type};

/// Adds what Go encodes for absent values (`status: {}`, `name: ""`), and drops what `omitempty` omits. Idempotent;
/// for custom resources only nulls are dropped.
pub fn normalize(schema: &Schema, value: &mut Value) {
    if let Some(object) = schema.object_form.as_deref() {
        match value {
            Value::Object(_) => normalize(object, value),
            Value::Array(items) => items.iter_mut().for_each(|item| normalize(object, item)),
            _ => {}
        }
        return;
    }
    match value {
        Value::Object(fields) if schema.ty == Type::Object => {
            if let Some(node) = schema.additional_properties.as_deref() {
                fields.values_mut().for_each(|child| normalize_element(node, child));
            } else {
                normalize_struct(schema, fields);
            }
        }
        Value::Array(items) => {
            if let Some(node) = schema.items.as_deref() {
                items.iter_mut().for_each(|item| normalize_element(node, item));
            }
        }
        _ => {}
    }
}

fn normalize_element(node: &Schema, value: &mut Value) {
    if value.is_null()
        && let Some(zero) = zero_value(node)
    {
        *value = zero;
    }
    normalize(node, value);
}

fn normalize_struct(schema: &Schema, fields: &mut Map<String, Value>) {
    for (name, field) in &schema.properties {
        let Some(go_field) = &field.go_field else {
            match fields.get_mut(&**name) {
                Some(Value::Null) if !field.node.is_nullable => drop(fields.remove(&**name)),
                Some(value) => normalize(&field.node, value),
                None => {}
            }
            continue;
        };
        if let Some(value) = normalize_field(field, go_field, fields.remove(&**name)) {
            fields.insert(name.to_string(), value);
        }
    }
}

/// The encoded value of a field; `None` if it is omitted.
fn normalize_field(field: &Field, go_field: &GoField, value: Option<Value>) -> Option<Value> {
    let node = &*field.node;
    let present = value.filter(|v| !v.is_null());
    if go_field.is_pointer() {
        return match present {
            Some(mut value) => {
                normalize(node, &mut value);
                Some(value)
            }
            None => (go_field.omit == Omit::Never).then_some(Value::Null),
        };
    }
    match node.ty {
        // Without `omitempty`, Go encodes an empty byte slice as `""`, but a nil one as `null`.
        Type::Bytes if go_field.omit == Omit::Never && present.as_ref().is_some_and(|text| text == "") => present,
        Type::Array | Type::Bytes => normalize_slice_or_map(node, go_field, present),
        Type::Object if node.is_map() => normalize_slice_or_map(node, go_field, present),
        Type::Object if !node.properties.is_empty() => {
            let mut value = present.unwrap_or_else(|| json!({}));
            normalize(node, &mut value);
            (go_field.omit != Omit::Zero || !is_zero_value(&value)).then_some(value)
        }
        Type::Time | Type::MicroTime => present.or_else(|| (go_field.omit != Omit::Zero).then_some(Value::Null)),
        Type::Quantity | Type::IntOrString => {
            present.or_else(|| (go_field.omit != Omit::Zero).then(|| zero_value(node)).flatten())
        }
        Type::Any | Type::Object => present.or_else(|| {
            (go_field.omit != Omit::Zero && &*go_field.ty == "runtime.RawExtension").then_some(Value::Null)
        }),
        Type::String | Type::Integer | Type::Number | Type::Boolean => {
            let value = present.or_else(|| zero_value(node))?;
            (go_field.omit == Omit::Never || !is_zero_value(&value)).then_some(value)
        }
    }
}

/// The encoded value of a list, map or byte slice. An empty one is encoded like an absent one.
fn normalize_slice_or_map(node: &Schema, go_field: &GoField, present: Option<Value>) -> Option<Value> {
    match present.filter(|v| !is_zero_value(v)) {
        Some(mut value) => {
            normalize(node, &mut value);
            Some(value)
        }
        None => (go_field.omit == Omit::Never).then_some(Value::Null),
    }
}

/// The zero value of a Go type that is not a pointer, slice or map.
pub fn zero_value(node: &Schema) -> Option<Value> {
    Some(match node.ty {
        Type::Object if node.is_map() => return None,
        Type::Object => json!({}),
        Type::String => json!(""),
        Type::Integer | Type::Number | Type::IntOrString => json!(0),
        Type::Boolean => json!(false),
        Type::Quantity => json!("0"),
        Type::Bytes => json!(""),
        _ => return None,
    })
}

/// True for the encoding of a zero value in Go. An object counts only if it is empty.
pub fn is_zero_value(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}
