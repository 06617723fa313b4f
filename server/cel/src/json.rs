//! Conversion of JSON to CEL values, and escaping of field names.

use std::collections::HashMap;
use std::sync::Arc;

use crowsnest_schema::formats;
use jiff::SignedDuration;
use kube::core::cel::cel::Value as Cel;
use kube::core::cel::cel::objects::{Key, Map};
use serde_json::Value;

use super::typing::RESERVED;
use super::{Budget, Program, with_base_scope};

/// Literals and operators; fields with these or reserved names are written `__name__` in rules.
const LITERALS_AND_OPERATORS: [&str; 4] = ["true", "false", "null", "in"];

/// True for reserved words of CEL.
pub fn is_reserved(name: &str) -> bool {
    LITERALS_AND_OPERATORS.contains(&name) || RESERVED.contains(&name)
}

/// Escapes a field name for use in rules.
pub fn escape(name: &str) -> String {
    if is_reserved(name) {
        return format!("__{name}__");
    }
    name.replace("__", "__underscores__").replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__")
}

/// Escapes a field name; `None` if rules cannot refer to it.
pub fn escape_field(name: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/');
    let starts_without_digit = name.chars().next().is_some_and(|first| !first.is_ascii_digit());
    (starts_without_digit && name.chars().all(is_plain)).then(|| escape(name))
}

/// Converts JSON by its schema: dates, durations and bytes become CEL values, field names of structs are escaped.
pub fn to_cel(schema: &Value, value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(b) => Cel::Bool(*b),
        Value::Number(n) => match (n.as_i64(), schema.get("type").and_then(Value::as_str)) {
            (Some(i), Some("number")) => Cel::Float(i as f64),
            (Some(i), _) => Cel::Int(i),
            (None, _) => Cel::Float(n.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => string_to_cel(schema, text),
        Value::Array(items) => {
            let item_schema = schema.get("items").unwrap_or(&Value::Null);
            Cel::List(Arc::new(items.iter().map(|item| to_cel(item_schema, item)).collect()))
        }
        Value::Object(members) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let additional = schema.get("additionalProperties").filter(|a| a.is_object());
            let mut map: HashMap<Key, Cel> = members
                .iter()
                // A null field counts as absent.
                .filter(|(_, member)| properties.is_none() || !member.is_null())
                .map(|(name, member)| {
                    let (key, sub) = match (properties.and_then(|p| p.get(name)), additional) {
                        (Some(sub), _) => (escape(name), sub),
                        (None, Some(sub)) => (name.clone(), sub),
                        (None, None) => (escape(name), &Value::Null),
                    };
                    (Key::String(Arc::new(key)), to_cel(sub, member))
                })
                .collect();
            // Reserved words can also be used without escaping.
            for name in members.keys().filter(|name| properties.is_some() && is_reserved(name)) {
                if let Some(value) = map.get(&Key::String(Arc::new(escape(name)))).cloned() {
                    map.insert(Key::String(Arc::new(name.clone())), value);
                }
            }
            Cel::Map(Map { map: Arc::new(map) })
        }
    }
}

/// Converts JSON without a schema: names are not escaped.
pub fn untyped_to_cel(value: &Value) -> Cel {
    match value {
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(untyped_to_cel).collect())),
        Value::Object(members) => {
            let entry =
                |(name, member): (&String, &Value)| (Key::String(Arc::new(name.clone())), untyped_to_cel(member));
            Cel::Map(Map { map: Arc::new(members.iter().map(entry).collect()) })
        }
        scalar => to_cel(&Value::Null, scalar),
    }
}

fn string_to_cel(schema: &Value, text: &str) -> Cel {
    let plain = || Cel::String(Arc::new(text.to_owned()));
    let function = match schema.get("format").and_then(Value::as_str) {
        Some("date-time") => "timestamp(v)",
        Some("date") => return convert("timestamp(v)", &format!("{text}T00:00:00Z")).unwrap_or_else(plain),
        Some("duration") => {
            let duration =
                formats::parse_duration(text).and_then(|duration| convert("duration(v)", &format_duration(duration)));
            return duration.unwrap_or_else(plain);
        }
        Some("byte") => {
            use base64::Engine;
            let decoded = base64::engine::general_purpose::STANDARD.decode(text);
            return decoded.map_or_else(|_| plain(), |bytes| Cel::Bytes(Arc::new(bytes)));
        }
        _ => return plain(),
    };
    convert(function, text).unwrap_or_else(plain)
}

/// Formats a duration in Go's notation, with exact seconds and nanoseconds.
fn format_duration(duration: SignedDuration) -> String {
    let sign = if duration.is_negative() { "-" } else { "" };
    format!("{sign}{}s{}ns", duration.as_secs().unsigned_abs(), duration.subsec_nanos().unsigned_abs())
}

/// Parses with CEL's own functions, so that values and literals in rules are equal.
fn convert(function: &str, text: &str) -> Option<Cel> {
    let program = Program::compile(function).ok()?;
    with_base_scope(|base| {
        let mut scope = base.new_inner_scope();
        scope.add_variable_from_value("v", Cel::String(Arc::new(text.to_owned())));
        program.execute(&scope, &mut Budget::for_rules()).ok()
    })
}
