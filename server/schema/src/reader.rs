//! Single-pass decoder of a document by its schema: normalizes values and produces the errors of Go's decoder. Used
//! by `decode`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_apimachinery::quantity::Quantity;
use serde_json::{Map, Number, Value};

use super::decode::fits_integer;
use super::ordered::Json;
use super::{GoField, Schema, Type, canonical_micro_time, canonical_time};

/// Maximum number of reported strict findings.
const MAX_STRICT: usize = 100;

#[derive(Default)]
pub(super) struct Reader<'a> {
    pub(super) strict: Vec<String>,
    /// The first value of a wrong type; as in Go, decoding continues.
    pub(super) type_error: Option<String>,
    /// Error of a type's own decoder, which ends decoding.
    pub(super) fatal: Option<String>,
    /// Innermost struct, and the fields on the path to the current value.
    structure: &'a str,
    fields: Vec<&'a str>,
}

impl<'a> Reader<'a> {
    fn finding(&mut self, what: &str, path: &str, key: &str) {
        let finding =
            if path.is_empty() { format!("{what} field \"{key}\"") } else { format!("{what} field \"{path}.{key}\"") };
        if self.strict.len() < MAX_STRICT && !self.strict.contains(&finding) {
            self.strict.push(finding);
        }
    }

    fn unfit(&self, value: &str, go_type: &str) -> String {
        let go_type = go_type.trim_start_matches('*');
        if self.fields.is_empty() {
            return format!("json: cannot unmarshal {value} into Go value of type {go_type}");
        }
        let field = self.fields.join(".");
        format!("json: cannot unmarshal {value} into Go struct field {}.{field} of type {go_type}", self.structure)
    }

    fn mismatch(&mut self, value: &str, go_type: &str) {
        if self.type_error.is_none() {
            self.type_error = Some(self.unfit(value, go_type));
        }
    }

    fn fail(&mut self, why: String) -> Option<Value> {
        self.fatal.get_or_insert(why);
        None
    }

    /// Decodes a value; `None` leaves the field absent.
    pub(super) fn read(&mut self, schema: &'a Schema, json: Json, go_type: &str, path: &mut String) -> Option<Value> {
        if self.fatal.is_some() {
            return None;
        }
        match (schema.ty, json) {
            (Type::Any, json) => match &schema.variant {
                Some(node) => self.variant(node_ref(node), json, path),
                None => Some(self.untyped(json, path)),
            },
            (_, Json::Null) => Some(Value::Null),
            (Type::Object, Json::Object(fields)) => Some(self.object(schema, fields, go_type, path)),
            (Type::Array, Json::Array(items)) => Some(self.array(schema, items, go_type, path)),
            (Type::String, Json::String(text)) => Some(Value::String(text)),
            (Type::Boolean, Json::Bool(flag)) => Some(Value::Bool(flag)),
            (Type::Integer, Json::Number(number)) => self.integer(schema, number, go_type),
            (Type::Number, Json::Number(number)) => Some(Value::Number(number)),
            (Type::Bytes, Json::String(text)) => self.bytes(&text),
            (Type::IntOrString, Json::String(text)) => Some(Value::String(text)),
            (Type::IntOrString, Json::Number(number)) => match number.as_i64().filter(|n| i32::try_from(*n).is_ok()) {
                Some(_) => Some(Value::Number(number)),
                None => self.fail(self.unfit(&format!("number {number}"), "int32")),
            },
            (Type::IntOrString, json) => self.fail(self.unfit(json.kind(), "int32")),
            (Type::Quantity, json) => self.quantity(json),
            (Type::Time | Type::MicroTime, Json::String(text)) => {
                let read = if schema.ty == Type::Time { canonical_time(&text) } else { canonical_micro_time(&text) };
                match read {
                    Ok(text) => Some(Value::String(text)),
                    Err(why) => self.fail(why),
                }
            }
            (Type::Time | Type::MicroTime, json) => self.fail(self.unfit(json.kind(), "string")),
            (_, json) => {
                self.mismatch(json.kind(), go_type);
                None
            }
        }
    }

    /// Decodes a type with several forms. Its own decoder in Go reports wrong types below the object, and no strict
    /// findings.
    fn variant(&mut self, object: &'a Schema, json: Json, path: &mut String) -> Option<Value> {
        let outer = (std::mem::take(&mut self.structure), std::mem::take(&mut self.fields));
        let findings = self.strict.len();
        let read = match json {
            json @ Json::Object(_) => self.read(object, json, object.short_name(), path),
            Json::Array(items) => {
                let read = |item| self.read(object, item, object.short_name(), path).unwrap_or(Value::Null);
                Some(Value::Array(items.into_iter().map(read).collect()))
            }
            other => Some(other.into_value()),
        };
        self.strict.truncate(findings);
        (self.structure, self.fields) = outer;
        read
    }

    fn integer(&mut self, schema: &Schema, number: Number, go_type: &str) -> Option<Value> {
        if fits_integer(schema, &number) {
            return Some(Value::Number(number));
        }
        self.mismatch(&format!("number {number}"), go_type);
        None
    }

    fn bytes(&mut self, text: &str) -> Option<Value> {
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

    fn quantity(&mut self, json: Json) -> Option<Value> {
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

    fn array(&mut self, schema: &'a Schema, items: Vec<Json>, go_type: &str, path: &mut String) -> Value {
        let element = go_type.trim_start_matches('*').trim_start_matches("[]");
        let length = path.len();
        let mut out = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            path.push_str(&format!("[{index}]"));
            let read = match schema.items.as_ref() {
                Some(node) => self.read(node_ref(node), item, element, path),
                None => Some(self.untyped(item, path)),
            };
            path.truncate(length);
            out.push(read.unwrap_or(Value::Null));
        }
        Value::Array(out)
    }

    fn object(&mut self, schema: &'a Schema, fields: Vec<(String, Json)>, go_type: &str, path: &mut String) -> Value {
        let mut out = Map::new();
        let length = path.len();
        for (key, json) in fields {
            if out.contains_key(&key) {
                self.finding("duplicate", path, &key);
            }
            if let Some((name, field)) = schema.properties.get_key_value(&*key) {
                let outer = std::mem::replace(&mut self.structure, schema.short_name());
                let outside = self.fields.len();
                self.fields.extend(field.go.as_ref().and_then(|go| go.via.as_deref()));
                self.fields.push(name);
                push(path, &key);
                let go = field.go.as_ref().map_or_else(|| fallback(&field.node), |go: &GoField| go.ty.to_string());
                let read = self.read(node_ref(&field.node), json, &go, path);
                path.truncate(length);
                self.fields.truncate(outside);
                self.structure = outer;
                let read = joined(node_ref(&field.node), out.remove(&key), read.unwrap_or(Value::Null));
                out.insert(key, read);
            } else if let Some(node) = &schema.additional {
                let element = go_type.trim_start_matches('*');
                let element = match element.strip_prefix("map[").and_then(|rest| rest.split_once(']')) {
                    Some((_, element)) => element.to_owned(),
                    None => fallback(node),
                };
                push(path, &key);
                let read = self.read(node_ref(node), json, &element, path);
                path.truncate(length);
                let read = if node.ty == Type::Quantity { read.map(in_thousandths) } else { read };
                out.insert(key, read.unwrap_or(Value::Null));
            } else if schema.properties.is_empty() && schema.preserve_unknown {
                let value = self.untyped(json, path);
                out.insert(key, value);
            } else {
                self.finding("unknown", path, &key);
            }
        }
        Value::Object(out)
    }

    pub(super) fn untyped(&mut self, json: Json, path: &mut String) -> Value {
        let length = path.len();
        match json {
            Json::Object(fields) => {
                let mut out = Map::new();
                for (key, json) in fields {
                    if out.contains_key(&key) {
                        self.finding("duplicate", path, &key);
                    }
                    push(path, &key);
                    let value = self.untyped(json, path);
                    path.truncate(length);
                    out.insert(key, value);
                }
                Value::Object(out)
            }
            Json::Array(items) => {
                let mut out = Vec::with_capacity(items.len());
                for (index, item) in items.into_iter().enumerate() {
                    path.push_str(&format!("[{index}]"));
                    out.push(self.untyped(item, path));
                    path.truncate(length);
                }
                Value::Array(out)
            }
            other => other.into_value(),
        }
    }
}

/// Merges a duplicate field: Go decodes into the existing struct or map.
fn joined(schema: &Schema, before: Option<Value>, value: Value) -> Value {
    match (before, value) {
        (Some(Value::Object(mut fields)), Value::Object(more)) => {
            for (key, value) in more {
                let value = match schema.field(&key) {
                    Some(field) => joined(&field.node, fields.remove(&key), value),
                    None => value,
                };
                fields.insert(key, value);
            }
            Value::Object(fields)
        }
        (_, value) => value,
    }
}

/// Rounds resource quantities up to thousandths.
fn in_thousandths(amount: Value) -> Value {
    let quantity = amount.as_str().and_then(|text| Quantity::parse(text).ok());
    match quantity.map(|quantity| (quantity, quantity.round_up(-3))) {
        Some((exact, rounded)) if exact != rounded => rounded.to_string().into(),
        _ => amount,
    }
}

fn push(path: &mut String, key: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(key);
}

fn node_ref(node: &super::Node) -> &Schema {
    node
}

/// Go type of a node without a known declaration.
fn fallback(node: &Schema) -> String {
    match (node.ty, &node.format) {
        (Type::Integer, Some(format)) => format.to_string(),
        (Type::Integer, None) => "int64".into(),
        (Type::Boolean, _) => "bool".into(),
        (Type::Number, _) => "float64".into(),
        (Type::Object, _) if node.name.is_some() => format!("v1.{}", node.short_name()),
        (Type::Object, _) => "map[string]interface {}".into(),
        (Type::Array, _) => node.items.as_ref().map(|items| format!("[]{}", fallback(items))).unwrap_or_default(),
        _ => "string".into(),
    }
}
