//! Request bodies in `application/vnd.kubernetes.protobuf`, which Go clients (and `kubectl create`) send for built-in kinds.
//!
//! Decoding follows the typed schemas; `fields.txt` (written by `fields.py`) adds field numbers: per
//! package in brackets, a message per line, its JSON names in the order of their numbers (`-` for gaps). `+Type` is a message of
//! the same package whose fields JSON holds inline. Answers are never protobuf: clients take JSON as well.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_schema::set::SchemaSet;
use crowsnest_schema::{Schema, Type, normalise};
use serde_json::{Map, Value, json};

const MAGIC: &[u8] = b"k8s\0";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const EXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";
/// Nesting that no real object reaches. Each level of a JSON schema counts twice, so that bodies nest as deeply as in JSON.
const MAX_DEPTH: usize = 128;

type Fields = HashMap<String, Vec<&'static str>>;

/// Field names by number (from 1), by definition name.
static FIELDS: LazyLock<Fields> = LazyLock::new(|| {
    let mut fields = Fields::new();
    let mut package = "";
    for line in include_str!("fields.txt").lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            package = name;
        } else if let Some((message, names)) = line.split_once(' ') {
            fields.insert(format!("{package}.{message}"), names.split(' ').collect());
        }
    }
    fields
});

/// One field on the wire.
enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or("unexpected EOF")?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("integer overflow".into())
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        if count > self.0.len() {
            return Err("unexpected EOF".into());
        }
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        Ok(taken)
    }

    fn next(&mut self) -> Result<Option<(usize, Wire<'a>)>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = usize::try_from(tag >> 3).map_err(|_| "illegal tag")?;
        let wire = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| "short field")?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| "illegal length")?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().map_err(|_| "short field")?)),
            other => return Err(format!("illegal wire type {other}")),
        };
        Ok(Some((number, wire)))
    }
}

/// The object in a protobuf body, as JSON with its apiVersion and kind.
pub(super) fn object(body: &[u8]) -> ApiResult<Value> {
    decode(body)
        .map_err(|why| ApiError::bad_request(format!("the body of the request could not be read as protobuf: {why}")))
}

fn decode(body: &[u8]) -> Result<Value, String> {
    let unknown = body.strip_prefix(MAGIC).ok_or("provided data does not appear to be a protobuf message")?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    let mut reader = Reader(unknown);
    while let Some((number, wire)) = reader.next()? {
        match (number, wire) {
            (1, Wire::Bytes(meta)) => {
                let mut meta = Reader(meta);
                while let Some((number, wire)) = meta.next()? {
                    match (number, wire) {
                        (1, Wire::Bytes(text)) => api_version = text_of(text)?,
                        (2, Wire::Bytes(text)) => kind = text_of(text)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let set = SchemaSet::builtin();
    let schema = set.kind(group, version, &kind).or_else(|| set.definition(&format!("{META}.{kind}")));
    let schema = schema.ok_or_else(|| format!("no kind {kind:?} is registered for version {api_version:?}"))?;
    let mut object = Map::new();
    message(schema.name.as_deref().unwrap_or_default(), &schema, raw, &mut object, 0)?;
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    Ok(Value::Object(object))
}

fn text_of(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|e| e.to_string())
}

/// Reads a message of a definition into the JSON object that shows it.
fn message(
    name: &str,
    schema: &Schema,
    bytes: &[u8],
    out: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), String> {
    if depth > MAX_DEPTH {
        return Err("nested too deeply".into());
    }
    let none = Vec::new();
    let fields = match FIELDS.get(name) {
        Some(fields) => fields,
        None if schema.properties.is_empty() => &none,
        None => return Err(format!("{name} has no protobuf form here")),
    };
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.next()? {
        let Some(entry) = number.checked_sub(1).and_then(|i| fields.get(i)).filter(|f| **f != "-") else { continue };
        match (entry.strip_prefix('+'), wire) {
            (Some(inline), Wire::Bytes(bytes)) => {
                let package = name.rsplit_once('.').map_or("", |(package, _)| package);
                message(&format!("{package}.{inline}"), schema, bytes, out, depth + 1)?;
            }
            (Some(_), _) => {}
            (None, wire) => {
                if let Some(child) = schema.field(entry) {
                    put(out, entry, &child.node, wire, depth)?;
                }
            }
        }
    }
    Ok(())
}

/// Adds one occurrence of a field: lists and maps collect theirs.
fn put(out: &mut Map<String, Value>, field: &str, schema: &Schema, wire: Wire<'_>, depth: usize) -> Result<(), String> {
    match (schema.ty, wire) {
        (Type::Array, wire) => {
            let items = schema.items.as_ref().ok_or("a list without items")?;
            let list = out.entry(field).or_insert_with(|| json!([]));
            let Some(list) = list.as_array_mut() else { return Err("not a list".into()) };
            match wire {
                Wire::Bytes(packed) if matches!(items.ty, Type::Integer | Type::Boolean) => {
                    let mut packed = Reader(packed);
                    while !packed.0.is_empty() {
                        list.push(value(items, Wire::Varint(packed.varint()?), depth)?);
                    }
                }
                wire => list.push(value(items, wire, depth)?),
            }
        }
        (Type::Object, Wire::Bytes(bytes))
            if schema.is_map() && !FIELDS.contains_key(schema.name.as_deref().unwrap_or_default()) =>
        {
            let values = schema.additional.as_ref().ok_or("a map without values")?;
            let map = out.entry(field).or_insert_with(|| json!({}));
            let (key, entry) = map_entry(values, bytes, depth)?;
            map[key] = entry;
        }
        (_, wire) => {
            let value = value(schema, wire, depth)?;
            if !value.is_null() {
                out.insert(field.to_owned(), value);
            }
        }
    }
    Ok(())
}

fn map_entry(values: &Schema, bytes: &[u8], depth: usize) -> Result<(String, Value), String> {
    let mut key = String::new();
    let mut held = Map::new();
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.next()? {
        match (number, wire) {
            (1, Wire::Bytes(text)) => key = text_of(text)?,
            // A list as a map's value travels as a message with one repeated field.
            (2, Wire::Bytes(wrapped)) if values.ty == Type::Array => {
                let mut wrapped = Reader(wrapped);
                held.entry("value").or_insert_with(|| json!([]));
                while let Some((_, item)) = wrapped.next()? {
                    put(&mut held, "value", values, item, depth + 1)?;
                }
            }
            (2, wire) => {
                held.insert("value".into(), value(values, wire, depth + 1)?);
            }
            _ => {}
        }
    }
    let absent = || match values.ty {
        Type::String | Type::Bytes => json!(""),
        Type::Quantity => json!("0"),
        Type::Array => json!([]),
        Type::Object => json!({}),
        Type::Integer | Type::Number | Type::IntOrString => json!(0),
        Type::Boolean => json!(false),
        _ => Value::Null,
    };
    Ok((key, held.remove("value").unwrap_or_else(absent)))
}

fn value(schema: &Schema, wire: Wire<'_>, depth: usize) -> Result<Value, String> {
    let signed = |n: u64| n as i64;
    Ok(match (schema.ty, wire) {
        (Type::Boolean, Wire::Varint(n)) => json!(n != 0),
        (_, Wire::Varint(n)) => json!(signed(n)),
        (_, Wire::Fixed64(n)) => number(f64::from_bits(n)),
        (_, Wire::Fixed32(n)) => number(f64::from(f32::from_bits(n))),
        (Type::String, Wire::Bytes(text)) => json!(text_of(text)?),
        (Type::Bytes, Wire::Bytes(bytes)) => json!(STANDARD.encode(bytes)),
        (Type::Quantity, Wire::Bytes(bytes)) => json!(first_text(bytes)?),
        (Type::Time | Type::MicroTime, Wire::Bytes(bytes)) => time(bytes, schema.ty == Type::MicroTime)?,
        (Type::IntOrString, Wire::Bytes(bytes)) => int_or_string(bytes)?,
        (Type::Any, Wire::Bytes(bytes)) => match schema.name.as_deref().and_then(|name| name.rsplit('.').next()) {
            Some(name) if name.starts_with("JSONSchemaPropsOr") => schema_or_else(bytes, name, depth)?,
            _ => raw(bytes)?,
        },
        (_, Wire::Bytes(bytes)) => {
            let mut object = Map::new();
            message(schema.name.as_deref().unwrap_or_default(), schema, bytes, &mut object, depth + 1)?;
            Value::Object(object)
        }
    })
}

/// A whole number is written without a fraction, as Go does.
fn number(number: f64) -> Value {
    // Larger ones are not exact as integers.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.fract() == 0.0 && number.abs() <= EXACT { json!(number as i64) } else { json!(number) }
}

/// JSON in bytes: `JSON`, `RawExtension`, `FieldsV1`.
fn raw(bytes: &[u8]) -> Result<Value, String> {
    match first_text(bytes)?.as_str() {
        "" => Ok(Value::Null),
        text => serde_json::from_str(text).map_err(|e| e.to_string()),
    }
}

/// `JSONSchemaPropsOrArray`, `…OrBool` and `…OrStringArray`: a schema, a list of schemas or texts, or a flag. Field 1 of
/// `…OrBool` is the flag, of the others the schema; what field 2 is says its type.
fn schema_or_else(bytes: &[u8], name: &str, depth: usize) -> Result<Value, String> {
    let props = format!("{EXTENSIONS}.JSONSchemaProps");
    let schema = SchemaSet::builtin().definition(&props).ok_or("JSON schemas have no schema")?;
    let (mut flag, mut one, mut list) = (false, None, Vec::new());
    let mut reader = Reader(bytes);
    while let Some(field) = reader.next()? {
        match (name, field) {
            ("JSONSchemaPropsOrBool", (1, Wire::Varint(n))) => flag = n != 0,
            ("JSONSchemaPropsOrBool", (2, wire)) => one = Some(value(&schema, wire, depth + 1)?),
            (_, (1, wire)) => one = Some(value(&schema, wire, depth + 1)?),
            ("JSONSchemaPropsOrStringArray", (2, Wire::Bytes(text))) => list.push(json!(text_of(text)?)),
            (_, (2, wire)) => list.push(value(&schema, wire, depth + 1)?),
            _ => {}
        }
    }
    // Nobody else knows what is empty in them: to the schema of the field they are any JSON.
    list.iter_mut().chain(one.as_mut()).for_each(|props| normalise(&schema, props));
    Ok(match one {
        _ if !list.is_empty() => list.into(),
        Some(schema) => schema,
        None if name == "JSONSchemaPropsOrBool" => flag.into(),
        None => Value::Null,
    })
}

/// The text in field 1: quantities, raw JSON.
fn first_text(bytes: &[u8]) -> Result<String, String> {
    let mut reader = Reader(bytes);
    while let Some((number, wire)) = reader.next()? {
        if let (1, Wire::Bytes(text)) = (number, wire) {
            return text_of(text);
        }
    }
    Ok(String::new())
}

fn int_or_string(bytes: &[u8]) -> Result<Value, String> {
    let (mut is_text, mut number, mut text) = (false, 0i64, String::new());
    let mut reader = Reader(bytes);
    while let Some((field, wire)) = reader.next()? {
        match (field, wire) {
            (1, Wire::Varint(kind)) => is_text = kind == 1,
            (2, Wire::Varint(n)) => number = n as i64,
            (3, Wire::Bytes(bytes)) => text = text_of(bytes)?,
            _ => {}
        }
    }
    Ok(if is_text { json!(text) } else { json!(number) })
}

/// An empty message is the zero time, shown as nothing.
fn time(bytes: &[u8], micro: bool) -> Result<Value, String> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanos) = (0i64, 0i64);
    let mut reader = Reader(bytes);
    while let Some((field, wire)) = reader.next()? {
        match (field, wire) {
            (1, Wire::Varint(n)) => seconds = n as i64,
            (2, Wire::Varint(n)) => nanos = n as i64,
            _ => {}
        }
    }
    let at = jiff::Timestamp::new(seconds, i32::try_from(nanos).unwrap_or(0)).map_err(|e| e.to_string())?;
    let format = if micro { "%Y-%m-%dT%H:%M:%S.%6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Ok(json!(at.strftime(format).to_string()))
}
