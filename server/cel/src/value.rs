//! Conversion of CEL values to JSON.

use base64::Engine;
use kube::core::cel::cel::Value as Cel;
use kube::core::cel::cel::objects::{Key, OptionalValue};
use serde_json::{Map, Number, Value};

/// Converts the result of a patch expression. An optional becomes its value or null.
pub fn to_json(value: &Cel) -> Result<Value, String> {
    Ok(match value {
        Cel::Null => Value::Null,
        Cel::Bool(value) => Value::Bool(*value),
        Cel::Int(value) => Value::from(*value),
        Cel::UInt(value) => Value::from(*value),
        Cel::Float(value) => Value::Number(Number::from_f64(*value).ok_or("a number must be finite")?),
        Cel::String(text) => Value::String(text.to_string()),
        Cel::Bytes(bytes) => Value::String(base64::engine::general_purpose::STANDARD.encode(bytes.as_slice())),
        Cel::List(items) => Value::Array(items.iter().map(to_json).collect::<Result<_, _>>()?),
        Cel::Map(map) => {
            let mut object = Map::new();
            for (key, value) in map.map.iter() {
                let Key::String(key) = key else {
                    return Err(format!("map key {} is not a string", format_key(key)));
                };
                object.insert(key.to_string(), to_json(value)?);
            }
            Value::Object(object)
        }
        Cel::Timestamp(time) => Value::String(time.to_rfc3339().replace("+00:00", "Z")),
        Cel::Opaque(opaque) => match opaque.downcast_ref::<OptionalValue>() {
            Some(optional) => optional.value().map_or(Ok(Value::Null), to_json)?,
            None => return Err(format!("cannot convert a {} to JSON", opaque.runtime_type_name())),
        },
        other => return Err(format!("cannot convert a {} to JSON", other.type_of())),
    })
}

pub(super) fn format_key(key: &Key) -> String {
    match key {
        Key::Int(key) => key.to_string(),
        Key::Uint(key) => key.to_string(),
        Key::Bool(key) => key.to_string(),
        Key::String(key) => key.to_string(),
    }
}
