//! Kubernetes' JSON in Lua and back.
//!
//! Lua knows one kind of number and one of table, so what comes back is ambiguous: whole numbers become integers, and an
//! empty table means what stood at its place in the objects the script was given, or nothing.

use std::collections::BTreeMap;

use mlua::{Lua, Table, Value};
use serde_json::{Map, Number, Value as Json};

use super::ScriptError;

/// Deeper nesting than any object has; a table that holds itself ends here.
const DEEPEST: usize = 128;
/// Maximum number of values and of text bytes in one result. A table may contain another one many times, so a small
/// machine could describe a result that exceeds any memory.
const MOST_VALUES: usize = 1_000_000;
const MOST_TEXT: usize = 16 << 20;

pub(super) fn to_lua(lua: &Lua, json: &Json) -> mlua::Result<Value> {
    Ok(match json {
        Json::Null => Value::Nil,
        Json::Bool(flag) => Value::Boolean(*flag),
        Json::Number(number) => Value::Number(number.as_f64().unwrap_or_default()),
        Json::String(text) => Value::String(lua.create_string(text)?),
        Json::Array(items) => {
            let table = lua.create_table_with_capacity(items.len(), 0)?;
            for (index, item) in items.iter().enumerate() {
                table.raw_set(index + 1, to_lua(lua, item)?)?;
            }
            Value::Table(table)
        }
        Json::Object(fields) => {
            let table = lua.create_table_with_capacity(0, fields.len())?;
            for (key, value) in fields {
                table.raw_set(key.as_str(), to_lua(lua, value)?)?;
            }
            Value::Table(table)
        }
    })
}

/// The JSON of what a script returned. An empty table becomes what `references` have in its place: `{}` or `[]`; where
/// they have neither, the field is left out.
pub(super) fn to_json(value: &Value, references: &[&Json]) -> Result<Json, ScriptError> {
    let mut json = Encoding::default().value(value, 0)?;
    if is_empty(&json) {
        return Ok(empty_like(references).unwrap_or_else(|| Json::Object(Map::new())));
    }
    settle(&mut json, references);
    Ok(json)
}

/// Values and bytes that have been read of a result.
#[derive(Default)]
struct Encoding {
    values: usize,
    text: usize,
}

impl Encoding {
    fn count(&mut self, text: usize) -> Result<(), ScriptError> {
        self.values += 1;
        self.text = self.text.saturating_add(text);
        match self.values > MOST_VALUES || self.text > MOST_TEXT {
            true => Err(ScriptError::Lua(format!(
                "cannot encode more than {MOST_VALUES} values or {MOST_TEXT} bytes to JSON"
            ))),
            false => Ok(()),
        }
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<Json, ScriptError> {
        let refused = |text: &str| ScriptError::Lua(text.to_owned());
        self.count(value.as_string().map_or(0, |text| text.as_bytes().len()))?;
        Ok(match value {
            Value::Nil => Json::Null,
            Value::Boolean(flag) => Json::Bool(*flag),
            Value::Integer(whole) => Json::from(*whole),
            Value::Number(number) => Json::Number(
                Number::from_f64(*number).ok_or_else(|| ScriptError::Lua(format!("cannot encode {number} to JSON")))?,
            ),
            Value::String(text) => {
                Json::String(text.to_str().map_err(|_| refused("cannot encode a string that is not UTF-8"))?.to_owned())
            }
            Value::Table(_) if depth >= DEEPEST => {
                return Err(refused("cannot encode recursively nested tables to JSON"));
            }
            Value::Table(table) => self.table(table, depth)?,
            other => return Err(ScriptError::Lua(format!("cannot encode {} to JSON", other.type_name()))),
        })
    }

    fn table(&mut self, table: &Table, depth: usize) -> Result<Json, ScriptError> {
        let mut items: BTreeMap<i64, Json> = BTreeMap::new();
        let mut fields = Map::new();
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            let value = self.value(&value, depth + 1)?;
            match key {
                Value::Integer(index) => drop(items.insert(index, value)),
                Value::String(key) => {
                    self.count(key.as_bytes().len())?;
                    let key = key.to_str().map_err(ScriptError::from)?.to_owned();
                    fields.insert(key, value);
                }
                _ => return Err(ScriptError::Lua("cannot encode mixed or invalid key types".to_owned())),
            }
        }
        match (items.is_empty(), fields.is_empty()) {
            (true, true) => Ok(Json::Array(Vec::new())),
            (true, false) => Ok(Json::Object(fields)),
            (false, false) => Err(ScriptError::Lua("cannot encode mixed or invalid key types".to_owned())),
            (false, true) if items.keys().copied().eq((1..).take(items.len())) => {
                Ok(Json::Array(items.into_values().collect()))
            }
            (false, true) => Err(ScriptError::Lua("cannot encode sparse array".to_owned())),
        }
    }
}

fn is_empty(json: &Json) -> bool {
    json.as_array().is_some_and(Vec::is_empty)
}

fn empty_like(references: &[&Json]) -> Option<Json> {
    references.iter().find_map(|reference| match reference {
        Json::Object(fields) if fields.is_empty() => Some(Json::Object(Map::new())),
        Json::Array(items) if items.is_empty() => Some(Json::Array(Vec::new())),
        _ => None,
    })
}

/// Gives every empty table below `json` its meaning.
fn settle(json: &mut Json, references: &[&Json]) {
    match json {
        Json::Object(fields) => fields.retain(|key, value| {
            let below: Vec<&Json> = references.iter().filter_map(|reference| reference.get(key)).collect();
            settle_child(value, &below).is_some()
        }),
        Json::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                let below: Vec<&Json> = references.iter().filter_map(|reference| reference.get(index)).collect();
                // Leaving an item out would move the others.
                if settle_child(item, &below).is_none() {
                    *item = Json::Object(Map::new());
                }
            }
        }
        _ => {}
    }
}

/// `None` for an empty table of which no reference says what it is.
fn settle_child(value: &mut Json, references: &[&Json]) -> Option<()> {
    if is_empty(value) {
        *value = empty_like(references)?;
    } else {
        settle(value, references);
    }
    Some(())
}
