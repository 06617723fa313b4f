//! Type and size limits of the values that an expression reads, from their schema. Has no side effects.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_apimachinery::request::MAX_REQUEST_BODY_BYTES;
use serde_json::Value;

use super::types::Type;
use crate::json::escape_field;

/// Maximum size of a request in bytes.
pub const MAX_REQUEST_BYTES: i64 = MAX_REQUEST_BODY_BYTES as i64;
/// Length of the quotes of a JSON string.
const QUOTES_SIZE: i64 = 2;
/// Maximum length of a date-time or duration in JSON, with quotes.
const MAX_TIME_SIZE: i64 = 32;
/// Length of a date in JSON, with quotes.
const DATE_SIZE: i64 = 12;

/// Type and size limits of a value that a schema declares.
#[derive(Debug, Clone)]
pub struct DeclType {
    pub cel_type: Type,
    /// Maximum number of elements of a list or map, characters of a text, or bytes.
    pub max_elements: i64,
    /// Minimum size in a request in bytes.
    pub min_serialized_size: i64,
    fields: BTreeMap<String, DeclType>,
    element: Option<Box<DeclType>>,
    is_map: bool,
}

/// Fields of objects by object name.
pub type ObjectTypes = BTreeMap<Arc<str>, BTreeMap<String, Type>>;

fn string_keyword<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema.get(key).and_then(Value::as_str).unwrap_or("")
}

fn flag(schema: &Value, key: &str) -> bool {
    schema.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// A limit, at least zero.
fn limit(schema: &Value, key: &str) -> Option<i64> {
    schema.get(key).and_then(Value::as_i64).map(|limit| limit.max(0))
}

impl DeclType {
    /// Derives the declaration from a schema; `None` if expressions cannot access it. A resource always has kind and
    /// metadata. Objects are named by their path, which starts with `name`.
    pub fn from_schema(schema: &Value, is_resource: bool, name: &str) -> Option<Self> {
        if flag(schema, "x-kubernetes-int-or-string") {
            let max = limit(schema, "maxLength")
                .map_or(MAX_REQUEST_BYTES - QUOTES_SIZE, |max_chars| max_chars.saturating_mul(4));
            return Some(Self::simple(Type::Dyn, max, 1));
        }
        let with_metadata_fields;
        let schema = if is_resource && !declares_metadata(schema) {
            with_metadata_fields = with_metadata(schema);
            &with_metadata_fields
        } else {
            schema
        };
        match string_keyword(schema, "type") {
            "array" => Self::list(schema, name),
            "object" => match schema.get("additionalProperties").filter(|values| values.is_object()) {
                Some(values) => Self::map(schema, values, name),
                None => Some(Self::object(schema, name)),
            },
            "string" => Some(Self::text(schema)),
            "boolean" => Some(Self::simple(Type::Bool, 0, 4)),
            "number" => Some(Self::simple(Type::Double, 0, 1)),
            "integer" => Some(Self::simple(Type::Int, 0, 1)),
            _ => None,
        }
    }

    fn simple(cel_type: Type, max_elements: i64, min_serialized_size: i64) -> Self {
        Self { cel_type, max_elements, min_serialized_size, fields: BTreeMap::new(), element: None, is_map: false }
    }

    fn list(schema: &Value, name: &str) -> Option<Self> {
        let items = schema.get("items").filter(|items| items.is_object())?;
        let item = Self::from_schema(items, flag(items, "x-kubernetes-embedded-resource"), &format!("{name}.@idx"))?;
        let max = limit(schema, "maxItems").unwrap_or((MAX_REQUEST_BYTES - 2) / (item.min_serialized_size + 1));
        let list = Self::simple(Type::list(item.cel_type.clone()), max, 2);
        Some(Self { element: Some(Box::new(item)), ..list })
    }

    fn map(schema: &Value, values: &Value, name: &str) -> Option<Self> {
        let value =
            Self::from_schema(values, flag(values, "x-kubernetes-embedded-resource"), &format!("{name}.@elem"))?;
        // Each entry also has a key, two quotes, a colon and a comma.
        let max = limit(schema, "maxProperties").unwrap_or((MAX_REQUEST_BYTES - 2) / (value.min_serialized_size + 6));
        let map = Self::simple(Type::map(Type::String, value.cel_type.clone()), max, 2);
        Some(Self { element: Some(Box::new(value)), is_map: true, ..map })
    }

    fn object(schema: &Value, name: &str) -> Self {
        let required: Vec<&str> =
            schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let mut min_serialized_size = 2;
        let mut fields = BTreeMap::new();
        for (key, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let escaped = escape_field(key);
            let is_embedded = flag(property, "x-kubernetes-embedded-resource");
            let path = format!("{name}.{}", escaped.as_deref().unwrap_or(key));
            let Some(field) = Self::from_schema(property, is_embedded, &path) else { continue };
            let has_default = property.get("default").is_some_and(|default| !default.is_null());
            if required.contains(&key.as_str()) && !has_default {
                min_serialized_size += i64::try_from(key.len()).unwrap_or(i64::MAX / 4) + field.min_serialized_size + 4;
            }
            fields.extend(escaped.map(|escaped| (escaped, field)));
        }
        Self { fields, ..Self::simple(Type::object(name), 0, min_serialized_size) }
    }

    fn text(schema: &Value) -> Self {
        match string_keyword(schema, "format") {
            "byte" => Self::simple(
                Type::Bytes,
                limit(schema, "maxLength").unwrap_or(MAX_REQUEST_BYTES - QUOTES_SIZE),
                QUOTES_SIZE,
            ),
            "duration" => Self::simple(Type::Duration, MAX_TIME_SIZE, 3),
            "date" => Self::simple(Type::Timestamp, DATE_SIZE, DATE_SIZE),
            "date-time" => Self::simple(Type::Timestamp, MAX_TIME_SIZE, 21),
            _ => {
                let values = schema.get("enum").and_then(Value::as_array).filter(|all| !all.is_empty());
                let longest = |all: &Vec<Value>| all.iter().filter_map(Value::as_str).map(str::len).max().unwrap_or(0);
                // A character takes up to four bytes.
                let max = match (limit(schema, "maxLength"), values) {
                    (Some(max_chars), _) => max_chars.saturating_mul(4),
                    (None, Some(all)) => i64::try_from(longest(all)).unwrap_or(i64::MAX),
                    (None, None) => MAX_REQUEST_BYTES - QUOTES_SIZE,
                };
                Self::simple(Type::String, max, QUOTES_SIZE)
            }
        }
    }

    /// Maximum number of such values in a request.
    pub fn max_count_per_request(&self) -> u64 {
        u64::try_from(MAX_REQUEST_BYTES / (self.min_serialized_size + 1)).unwrap_or(0)
    }

    /// Adds the types of all objects in the value, with their fields, to `all`.
    pub fn collect_objects(&self, all: &mut ObjectTypes) {
        if let Type::Object(name) = &self.cel_type {
            let fields = self.fields.iter().map(|(field, declared)| (field.clone(), declared.cel_type.clone()));
            all.insert(name.clone(), fields.collect());
        }
        for inner in self.fields.values().chain(self.element.as_deref()) {
            inner.collect_objects(all);
        }
    }

    /// Maximum size of the value at the end of a path; the variable name is ignored.
    pub(super) fn size(&self, path: &[String]) -> Option<u64> {
        let mut current = self;
        for step in path.get(1..)? {
            current = match step.as_str() {
                "@items" | "@values" => current.element.as_deref()?,
                // Keys have no size.
                "@keys" if current.is_map => return Some(0),
                field => current.fields.get(field)?,
            };
        }
        u64::try_from(current.max_elements).ok()
    }
}

/// True if the schema of a resource declares kind and metadata itself.
fn declares_metadata(schema: &Value) -> bool {
    let type_of = |pointer: &str| schema.pointer(pointer).map_or("", |property| string_keyword(property, "type"));
    type_of("/properties/kind") == "string"
        && type_of("/properties/apiVersion") == "string"
        && type_of("/properties/metadata") == "object"
        && type_of("/properties/metadata/properties/name") == "string"
        && type_of("/properties/metadata/properties/generateName") == "string"
}

fn with_metadata(schema: &Value) -> Value {
    let text = || serde_json::json!({"type": "string"});
    let mut schema = schema.clone();
    if !schema["properties"].is_object() {
        schema["properties"] = serde_json::json!({});
    }
    schema["properties"]["kind"] = text();
    schema["properties"]["apiVersion"] = text();
    schema["properties"]["metadata"] =
        serde_json::json!({"type": "object", "properties": {"name": text(), "generateName": text()}});
    schema
}
