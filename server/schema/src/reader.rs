//! Single-pass decoder of a document by its schema: normalizes values and produces the errors of Go's decoder. Used
//! by `decode`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_apimachinery::quantity::Quantity;
use serde_json::{Map, Number, Value};

use super::decode::is_valid_integer;
use super::ordered_json::Json;
use super::{GoField, Schema, Type, canonical_micro_time, canonical_time};

/// Maximum number of reported strict decoding errors.
const MAX_STRICT_ERRORS: usize = 100;

/// State of the decoder.
#[derive(Default)]
pub(super) struct Reader<'a> {
    pub(super) strict_errors: Vec<String>,
    /// The first value of a wrong type; as in Go, decoding continues.
    pub(super) type_error: Option<String>,
    /// Error of a Go type with its own decoder. It ends decoding.
    pub(super) fatal_error: Option<String>,
    /// Innermost struct, and the fields on the path to the current value.
    structure: &'a str,
    fields: Vec<&'a str>,
}

impl<'a> Reader<'a> {
    fn add_strict_error(&mut self, what: &str, path: &str, key: &str) {
        let error =
            if path.is_empty() { format!("{what} field \"{key}\"") } else { format!("{what} field \"{path}.{key}\"") };
        if self.strict_errors.len() < MAX_STRICT_ERRORS && !self.strict_errors.contains(&error) {
            self.strict_errors.push(error);
        }
    }

    fn unmarshal_error(&self, value: &str, go_type: &str) -> String {
        let go_type = go_type.trim_start_matches('*');
        if self.fields.is_empty() {
            return format!("json: cannot unmarshal {value} into Go value of type {go_type}");
        }
        let field = self.fields.join(".");
        format!("json: cannot unmarshal {value} into Go struct field {}.{field} of type {go_type}", self.structure)
    }

    fn record_type_error(&mut self, value: &str, go_type: &str) {
        if self.type_error.is_none() {
            self.type_error = Some(self.unmarshal_error(value, go_type));
        }
    }

    /// Records an error that ends decoding.
    fn fail(&mut self, reason: String) -> Option<Value> {
        self.fatal_error.get_or_insert(reason);
        None
    }

    /// Decodes a value; `None` leaves the field absent.
    pub(super) fn read(&mut self, schema: &'a Schema, json: Json, go_type: &str, path: &mut String) -> Option<Value> {
        if self.fatal_error.is_some() {
            return None;
        }
        match (schema.ty, json) {
            (Type::Any, json) => match &schema.object_form {
                Some(node) => self.read_forms(node_ref(node), json, path),
                None => Some(self.read_untyped(json, path)),
            },
            (_, Json::Null) => Some(Value::Null),
            (Type::Object, Json::Object(fields)) => Some(self.read_object(schema, fields, go_type, path)),
            (Type::Array, Json::Array(items)) => Some(self.read_array(schema, items, go_type, path)),
            (Type::String, Json::String(text)) => Some(Value::String(text)),
            (Type::Boolean, Json::Bool(flag)) => Some(Value::Bool(flag)),
            (Type::Integer, Json::Number(number)) => self.read_integer(schema, number, go_type),
            (Type::Number, Json::Number(number)) => Some(Value::Number(number)),
            (Type::Bytes, Json::String(text)) => self.read_bytes(&text),
            (Type::IntOrString, Json::String(text)) => Some(Value::String(text)),
            (Type::IntOrString, Json::Number(number)) => match number.as_i64().filter(|n| i32::try_from(*n).is_ok()) {
                Some(_) => Some(Value::Number(number)),
                None => self.fail(self.unmarshal_error(&format!("number {number}"), "int32")),
            },
            (Type::IntOrString, json) => self.fail(self.unmarshal_error(json.kind(), "int32")),
            (Type::Quantity, json) => self.read_quantity(json),
            (Type::Time | Type::MicroTime, Json::String(text)) => {
                let read = if schema.ty == Type::Time { canonical_time(&text) } else { canonical_micro_time(&text) };
                match read {
                    Ok(text) => Some(Value::String(text)),
                    Err(reason) => self.fail(reason),
                }
            }
            (Type::Time | Type::MicroTime, json) => self.fail(self.unmarshal_error(json.kind(), "string")),
            (_, json) => {
                self.record_type_error(json.kind(), go_type);
                None
            }
        }
    }

    /// Decodes a type that accepts several JSON forms, such as `JSONSchemaPropsOrArray`. Such a type has its own
    /// decoder in Go, which reports type errors relative to the object, and no strict decoding errors.
    fn read_forms(&mut self, object: &'a Schema, json: Json, path: &mut String) -> Option<Value> {
        let outer = (std::mem::take(&mut self.structure), std::mem::take(&mut self.fields));
        let length = self.strict_errors.len();
        let read = match json {
            json @ Json::Object(_) => self.read(object, json, object.short_name(), path),
            Json::Array(items) => {
                let read = |item| self.read(object, item, object.short_name(), path).unwrap_or(Value::Null);
                Some(Value::Array(items.into_iter().map(read).collect()))
            }
            other => Some(other.into_value()),
        };
        self.strict_errors.truncate(length);
        (self.structure, self.fields) = outer;
        read
    }

    fn read_integer(&mut self, schema: &Schema, number: Number, go_type: &str) -> Option<Value> {
        if is_valid_integer(schema, &number) {
            return Some(Value::Number(number));
        }
        self.record_type_error(&format!("number {number}"), go_type);
        None
    }

    fn read_bytes(&mut self, text: &str) -> Option<Value> {
        let clean: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
        match STANDARD.decode(&clean) {
            Ok(bytes) => Some(Value::String(STANDARD.encode(bytes))),
            Err(error) => {
                let at = match error {
                    base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
                    base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => clean.len() / 4 * 4,
                };
                self.type_error.get_or_insert_with(|| format!("illegal base64 data at input byte {at}"));
                None
            }
        }
    }

    fn read_quantity(&mut self, json: Json) -> Option<Value> {
        let text = match json {
            Json::String(text) => text.trim().to_owned(),
            Json::Number(number) => number.to_string(),
            _ => String::from("?"),
        };
        match Quantity::canonicalize(&text) {
            Ok(text) => Some(Value::String(text)),
            Err(error) => self.fail(error.to_string()),
        }
    }

    fn read_array(&mut self, schema: &'a Schema, items: Vec<Json>, go_type: &str, path: &mut String) -> Value {
        let element = go_type.trim_start_matches('*').trim_start_matches("[]");
        let length = path.len();
        let mut out = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            path.push_str(&format!("[{index}]"));
            let read = match schema.items.as_ref() {
                Some(node) => self.read(node_ref(node), item, element, path),
                None => Some(self.read_untyped(item, path)),
            };
            path.truncate(length);
            out.push(read.unwrap_or(Value::Null));
        }
        Value::Array(out)
    }

    fn read_object(
        &mut self,
        schema: &'a Schema,
        fields: Vec<(String, Json)>,
        go_type: &str,
        path: &mut String,
    ) -> Value {
        let mut out = Map::new();
        let length = path.len();
        for (key, json) in fields {
            if out.contains_key(&key) {
                self.add_strict_error("duplicate", path, &key);
            }
            if let Some((name, field)) = schema.properties.get_key_value(&*key) {
                let outer = std::mem::replace(&mut self.structure, schema.short_name());
                let outer_length = self.fields.len();
                self.fields.extend(field.go_field.as_ref().and_then(|go_field| go_field.embedded_path.as_deref()));
                self.fields.push(name);
                push_field(path, &key);
                let field_type = field
                    .go_field
                    .as_ref()
                    .map_or_else(|| fallback_go_type(&field.node), |go_field: &GoField| go_field.ty.to_string());
                let read = self.read(node_ref(&field.node), json, &field_type, path);
                path.truncate(length);
                self.fields.truncate(outer_length);
                self.structure = outer;
                let read = merge_duplicate(node_ref(&field.node), out.remove(&key), read.unwrap_or(Value::Null));
                out.insert(key, read);
            } else if let Some(node) = &schema.additional_properties {
                let element = go_type.trim_start_matches('*');
                let element = match element.strip_prefix("map[").and_then(|rest| rest.split_once(']')) {
                    Some((_, element)) => element.to_owned(),
                    None => fallback_go_type(node),
                };
                push_field(path, &key);
                let read = self.read(node_ref(node), json, &element, path);
                path.truncate(length);
                let read = if node.ty == Type::Quantity { read.map(round_up_to_milli) } else { read };
                out.insert(key, read.unwrap_or(Value::Null));
            } else if schema.properties.is_empty() && schema.preserves_unknown_fields {
                let value = self.read_untyped(json, path);
                out.insert(key, value);
            } else {
                self.add_strict_error("unknown", path, &key);
            }
        }
        Value::Object(out)
    }

    pub(super) fn read_untyped(&mut self, json: Json, path: &mut String) -> Value {
        let length = path.len();
        match json {
            Json::Object(fields) => {
                let mut out = Map::new();
                for (key, json) in fields {
                    if out.contains_key(&key) {
                        self.add_strict_error("duplicate", path, &key);
                    }
                    push_field(path, &key);
                    let value = self.read_untyped(json, path);
                    path.truncate(length);
                    out.insert(key, value);
                }
                Value::Object(out)
            }
            Json::Array(items) => {
                let mut out = Vec::with_capacity(items.len());
                for (index, item) in items.into_iter().enumerate() {
                    path.push_str(&format!("[{index}]"));
                    out.push(self.read_untyped(item, path));
                    path.truncate(length);
                }
                Value::Array(out)
            }
            other => other.into_value(),
        }
    }
}

/// Merges a duplicate field: Go decodes into the existing struct or map.
fn merge_duplicate(schema: &Schema, before: Option<Value>, value: Value) -> Value {
    match (before, value) {
        (Some(Value::Object(mut fields)), Value::Object(more)) => {
            for (key, value) in more {
                let value = match schema.field(&key) {
                    Some(field) => merge_duplicate(&field.node, fields.remove(&key), value),
                    None => value,
                };
                fields.insert(key, value);
            }
            Value::Object(fields)
        }
        (_, value) => value,
    }
}

/// Rounds a resource quantity up to thousandths, as Go does when it decodes a resource list.
fn round_up_to_milli(amount: Value) -> Value {
    let quantity = amount.as_str().and_then(|text| Quantity::parse(text).ok());
    match quantity.map(|quantity| (quantity, quantity.round_up(-3))) {
        Some((exact, rounded)) if exact != rounded => rounded.to_string().into(),
        _ => amount,
    }
}

fn push_field(path: &mut String, key: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}

fn node_ref(node: &super::Node) -> &Schema {
    node
}

/// Go type of a node without a known declaration.
fn fallback_go_type(node: &Schema) -> String {
    match (node.ty, &node.format) {
        (Type::Integer, Some(format)) => format.to_string(),
        (Type::Integer, None) => "int64".into(),
        (Type::Boolean, _) => "bool".into(),
        (Type::Number, _) => "float64".into(),
        (Type::Object, _) if node.name.is_some() => format!("v1.{}", node.short_name()),
        (Type::Object, _) => "map[string]interface {}".into(),
        (Type::Array, _) => {
            node.items.as_ref().map(|items| format!("[]{}", fallback_go_type(items))).unwrap_or_default()
        }
        _ => "string".into(),
    }
}
