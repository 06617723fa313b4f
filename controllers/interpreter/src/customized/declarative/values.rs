//! Conversion of JSON to Lua and back.
//!
//! Lua has doubles for all numbers, one type for lists and objects, and no null. Tables passed to a script are
//! therefore registered with their source values. Values that a script keeps, moves or copies retain their type,
//! exact number and nulls.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use mlua::{Lua, Table, Value};
use serde_json::{Map, Number, Value as Json};

use super::ScriptError;
use super::numbers::LargeIntegers;

/// Maximum nesting of a result. A recursive table exceeds it.
const MAX_DEPTH: usize = 128;
/// Maximum number of values and of string bytes in a result. A table can contain another one many times, so a small
/// Lua heap can describe a result that exceeds any memory.
const MAX_VALUES: usize = 1_000_000;
const MAX_TEXT_BYTES: usize = 16 << 20;
/// Maximum number of positions in the arguments that are searched for the type of an empty table.
const MAX_POSITIONS: usize = 256;

/// The arguments of one call, and the tables created from them.
pub(super) struct CallArguments<'a> {
    lua: &'a Lua,
    /// Maps tables to indexes into `sources`. It keeps the tables alive, so that no new table has the identity of an
    /// old one.
    identities: Table,
    sources: Vec<&'a Json>,
    large_integers: LargeIntegers,
}

impl<'a> CallArguments<'a> {
    /// `arguments` are all values that will be pushed.
    pub(super) fn new(lua: &'a Lua, arguments: &[&Json]) -> mlua::Result<Self> {
        let large_integers = LargeIntegers::collect(arguments);
        Ok(Self { lua, identities: lua.create_table()?, sources: Vec::new(), large_integers })
    }

    /// Converts JSON to a Lua value. Nulls in lists become null pointers, so that the list has no holes; other nulls
    /// become `nil`.
    pub(super) fn push(&mut self, json: &'a Json) -> mlua::Result<Value> {
        Ok(match json {
            Json::Null => Value::Nil,
            Json::Bool(flag) => Value::Boolean(*flag),
            Json::Number(number) => Value::Number(self.large_integers.to_double(number)),
            Json::String(text) => Value::String(self.lua.create_string(text)?),
            Json::Array(items) => {
                let table = self.create_table(json, items.len(), 0)?;
                for (index, item) in items.iter().enumerate() {
                    let item = if item.is_null() { Value::NULL } else { self.push(item)? };
                    table.raw_set(index + 1, item)?;
                }
                Value::Table(table)
            }
            Json::Object(fields) => {
                let table = self.create_table(json, 0, fields.len())?;
                for (key, value) in fields {
                    table.raw_set(key.as_str(), self.push(value)?)?;
                }
                Value::Table(table)
            }
        })
    }

    fn create_table(&mut self, source: &'a Json, items: usize, fields: usize) -> mlua::Result<Table> {
        let table = self.lua.create_table_with_capacity(items, fields)?;
        self.identities.raw_set(&table, self.sources.len())?;
        self.sources.push(source);
        Ok(table)
    }

    /// Converts a script's result to JSON. An empty table created by the script becomes `{}` or `[]` like the value
    /// in the same position of `references`. If there is none, the field is omitted, as in Karmada.
    pub(super) fn to_json(&self, value: &Value, references: &[&Json]) -> Result<Json, ScriptError> {
        let mut reader = ResultReader {
            call_arguments: self,
            references,
            path: Vec::new(),
            types: RefCell::default(),
            values: 0,
            text_bytes: 0,
        };
        Ok(reader.convert_value(value, None)?.unwrap_or_else(|| Json::Object(Map::new())))
    }

    fn find_source(&self, table: &Table) -> Result<Option<&'a Json>, ScriptError> {
        let index: Option<usize> = self.identities.raw_get(table)?;
        Ok(index.and_then(|index| self.sources.get(index)).copied())
    }
}

/// A step into a value. The index of a list item is irrelevant for its type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Step {
    Field(String),
    Item,
}

/// Type of an empty table.
#[derive(Debug, Clone, Copy)]
enum EmptyTable {
    Object,
    List,
}

impl EmptyTable {
    fn from_json(json: &Json) -> Option<Self> {
        match json {
            Json::Object(_) => Some(Self::Object),
            Json::Array(_) => Some(Self::List),
            _ => None,
        }
    }

    fn into_json(self) -> Json {
        match self {
            Self::Object => Json::Object(Map::new()),
            Self::List => Json::Array(Vec::new()),
        }
    }
}

/// Converter of one result of a script to JSON.
struct ResultReader<'a> {
    call_arguments: &'a CallArguments<'a>,
    references: &'a [&'a Json],
    /// Position of the current value.
    path: Vec<Step>,
    /// Types of empty tables by position.
    types: RefCell<HashMap<Vec<Step>, Option<EmptyTable>>>,
    /// Values and string bytes converted so far.
    values: usize,
    text_bytes: usize,
}

impl ResultReader<'_> {
    fn count_value(&mut self, text_bytes: usize) -> Result<(), ScriptError> {
        self.values += 1;
        self.text_bytes = self.text_bytes.saturating_add(text_bytes);
        match self.values > MAX_VALUES || self.text_bytes > MAX_TEXT_BYTES {
            true => Err(ScriptError::Lua(format!(
                "cannot encode more than {MAX_VALUES} values or {MAX_TEXT_BYTES} bytes to JSON"
            ))),
            false => Ok(()),
        }
    }

    /// `source` is the original value in the same position of the containing table. `None` for an empty table of
    /// unknown type.
    fn convert_value(&mut self, value: &Value, source: Option<&Json>) -> Result<Option<Json>, ScriptError> {
        let encoding_error = |text: &str| ScriptError::Lua(text.to_owned());
        self.count_value(value.as_string().map_or(0, |text| text.as_bytes().len()))?;
        Ok(Some(match value {
            Value::Nil => Json::Null,
            value if value.is_null() => Json::Null,
            Value::Boolean(flag) => Json::Bool(*flag),
            Value::Integer(integer) => {
                self.find_original_number(*integer as f64, source).unwrap_or_else(|| Json::from(*integer))
            }
            Value::Number(number) => match self.find_original_number(*number, source) {
                Some(original) => original,
                None => Number::from_f64(*number)
                    .map(Json::Number)
                    .ok_or_else(|| ScriptError::Lua(format!("cannot encode {number} to JSON")))?,
            },
            Value::String(text) => Json::String(
                text.to_str().map_err(|_| encoding_error("cannot encode a string that is not UTF-8"))?.to_owned(),
            ),
            Value::Table(_) if self.path.len() >= MAX_DEPTH => {
                return Err(encoding_error("cannot encode recursively nested tables to JSON"));
            }
            Value::Table(table) => return self.convert_table(table),
            other => return Err(ScriptError::Lua(format!("cannot encode {} to JSON", other.type_name()))),
        }))
    }

    /// Finds the number of the arguments that was converted to this double.
    fn find_original_number(&self, double: f64, source: Option<&Json>) -> Option<Json> {
        let source = source.and_then(Json::as_number);
        self.call_arguments.large_integers.to_number(double, source).map(Json::Number)
    }

    fn convert_table(&mut self, table: &Table) -> Result<Option<Json>, ScriptError> {
        let source = self.call_arguments.find_source(table)?;
        let mixed_keys_error = || ScriptError::Lua("cannot encode mixed or invalid key types".to_owned());
        let mut items: BTreeMap<i64, Json> = BTreeMap::new();
        let mut fields = Map::new();
        let mut is_empty = true;
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            is_empty = false;
            match key {
                Value::Integer(index) => {
                    let item_source = usize::try_from(index - 1).ok().and_then(|index| source?.get(index));
                    self.path.push(Step::Item);
                    // Omitting an item would shift the others.
                    let item =
                        self.convert_value(&value, item_source)?.unwrap_or_else(|| EmptyTable::Object.into_json());
                    items.insert(index, item);
                }
                Value::String(key) => {
                    self.count_value(key.as_bytes().len())?;
                    let key = key.to_str().map_err(ScriptError::from)?.to_owned();
                    self.path.push(Step::Field(key.clone()));
                    if let Some(value) = self.convert_value(&value, source.and_then(|source| source.get(&key)))? {
                        fields.insert(key, value);
                    }
                }
                _ => return Err(mixed_keys_error()),
            }
            self.path.pop();
        }
        for (key, _) in null_fields(source).filter(|_| items.is_empty()) {
            fields.entry(key.clone()).or_insert(Json::Null);
        }
        match (items.is_empty(), fields.is_empty()) {
            (true, true) if is_empty => {
                Ok(source.and_then(EmptyTable::from_json).or_else(|| self.find_empty_type()).map(EmptyTable::into_json))
            }
            (true, _) => Ok(Some(Json::Object(fields))),
            (false, false) => Err(mixed_keys_error()),
            (false, true) if items.keys().copied().eq((1..).take(items.len())) => {
                Ok(Some(Json::Array(items.into_values().collect())))
            }
            (false, true) => Err(ScriptError::Lua("cannot encode sparse array".to_owned())),
        }
    }

    /// Type of the empty table in the current position.
    fn find_empty_type(&self) -> Option<EmptyTable> {
        if let Some(cached) = self.types.borrow().get(&self.path) {
            return *cached;
        }
        let empty_type = self.values_at_path().into_iter().find_map(EmptyTable::from_json);
        self.types.borrow_mut().insert(self.path.clone(), empty_type);
        empty_type
    }

    /// Values of the references at the current path. A list on the path contributes the values of all its items.
    fn values_at_path(&self) -> Vec<&Json> {
        let mut values: Vec<&Json> = self.references.to_vec();
        for step in &self.path {
            values = values
                .into_iter()
                .flat_map(|value| match (step, value) {
                    (Step::Field(key), Json::Object(fields)) => Vec::from_iter(fields.get(key)),
                    (Step::Item, Json::Array(items)) => items.iter().collect(),
                    _ => Vec::new(),
                })
                .take(MAX_POSITIONS)
                .collect();
        }
        values
    }
}

/// Null fields of an object.
fn null_fields(source: Option<&Json>) -> impl Iterator<Item = (&String, &Json)> {
    source.and_then(Json::as_object).into_iter().flatten().filter(|(_, value)| value.is_null())
}
