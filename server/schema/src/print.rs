//! Encodes structs like Go's `encoding/json`, with fields in the order of their declaration. Used for messages
//! that contain a value.

use serde_json::Value;

use super::ordered_json::Json;
use super::{Schema, schema_set::SchemaSet};

/// Formats a value of the named definition as JSON in the order of Go's fields.
pub fn format_definition(value: &Value, definition: &str) -> String {
    encode_compact(&definition_to_json(value, definition))
}

/// Like [`format_definition`], without encoding the JSON.
pub(super) fn definition_to_json(value: &Value, definition: &str) -> Json {
    let schema = SchemaSet::builtin().definition(definition);
    order_fields(schema.as_deref(), value)
}

fn order_fields(schema: Option<&Schema>, value: &Value) -> Json {
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<&String> = fields.keys().collect();
            let order = |key: &str| {
                schema
                    .and_then(|s| s.field(key))
                    .and_then(|field| field.go_field.as_ref())
                    .map_or(u16::MAX, |go_field| go_field.order)
            };
            keys.sort_by_key(|key| order(key));
            let member =
                |key: &String| (key.clone(), order_fields(schema.and_then(|schema| schema.child(key)), &fields[key]));
            Json::Object(keys.into_iter().map(member).collect())
        }
        Value::Array(list) => {
            let element = schema.and_then(|schema| schema.items.as_deref());
            Json::Array(list.iter().map(|item| order_fields(element, item)).collect())
        }
        other => Json::from_value(other.clone()),
    }
}

/// Encodes like `json.Marshal`.
pub(super) fn encode_compact(json: &Json) -> String {
    let mut out = String::new();
    write(json, None, &mut out);
    out
}

/// Encodes like `json.MarshalIndent` with one space per level.
pub(super) fn encode_pretty(json: &Json) -> String {
    let mut out = String::new();
    write(json, Some(0), &mut out);
    out
}

fn write(json: &Json, depth: Option<usize>, out: &mut String) {
    let inner = depth.map(|depth| depth + 1);
    let write_line_break = |depth: Option<usize>, out: &mut String| {
        if let Some(depth) = depth {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', depth));
        }
    };
    match json {
        Json::Null => out.push_str("null"),
        Json::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Json::Number(number) => out.push_str(&number.to_string()),
        Json::String(text) => write_quoted(text, out),
        Json::Array(items) if items.is_empty() => out.push_str("[]"),
        Json::Object(fields) if fields.is_empty() => out.push_str("{}"),
        Json::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_line_break(inner, out);
                write(item, inner, out);
            }
            write_line_break(depth, out);
            out.push(']');
        }
        Json::Object(fields) => {
            out.push('{');
            for (index, (key, value)) in fields.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_line_break(inner, out);
                write_quoted(key, out);
                out.push_str(if depth.is_some() { ": " } else { ":" });
                write(value, inner, out);
            }
            write_line_break(depth, out);
            out.push('}');
        }
    }
}

/// Writes a quoted string with the escapes of Go, which make JSON safe for HTML.
fn write_quoted(text: &str, out: &mut String) {
    for c in Value::from(text).to_string().chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
}
