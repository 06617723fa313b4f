//! Structs as Go marshals them: members in their order of declaration. Read by messages that repeat a value.

use serde_json::Value;

use super::{Schema, set::SchemaSet};

/// A struct of the named definition as JSON in Go's order.
pub(crate) fn text_of(value: &Value, definition: &str) -> String {
    let schema = SchemaSet::builtin().definition(definition);
    let mut text = String::new();
    printed(schema.as_deref(), value, &mut text);
    text
}

fn printed(schema: Option<&Schema>, value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<&String> = fields.keys().collect();
            let order = |key: &str| {
                schema.and_then(|s| s.field(key)).and_then(|field| field.go.as_ref()).map_or(u16::MAX, |go| go.order)
            };
            keys.sort_by_key(|key| order(key));
            out.push('{');
            for (index, key) in keys.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                out.push_str(&format!("{key:?}:"));
                printed(schema.and_then(|schema| schema.child(key)), &fields[key], out);
            }
            out.push('}');
        }
        Value::Array(list) => {
            out.push('[');
            for (index, item) in list.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                printed(schema.and_then(|schema| schema.items.as_deref()), item, out);
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}
