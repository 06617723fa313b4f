//! Internal functions that compiled expressions call, and library functions whose result can be much larger than
//! their arguments.

use std::collections::HashMap;
use std::sync::Arc;

use kube::core::cel::cel::extractors::{Arguments, This};
use kube::core::cel::cel::objects::{Key, Map, Opaque};
use kube::core::cel::cel::{Context, ExecutionError, Value as Cel};

use super::budget::charge;
use super::value;

/// Charges steps to the budget.
pub(super) const CHARGE: &str = "@charge";
/// Returns its argument and charges steps in proportion to its size.
pub(super) const CHARGE_SIZE: &str = "@charge_size";
/// Returns pairs of index and element, or of key and value.
pub(super) const PAIRS: &str = "@pairs";
/// Converts pairs to a map.
pub(super) const PAIRS_TO_MAP: &str = "@pairs_to_map";
/// Adds the entries of one map to another.
pub(super) const INSERT: &str = "@insert";
/// Sorts a list by a list of keys.
pub(super) const SORT_BY: &str = "@sort_by";

type Outcome = Result<Cel, ExecutionError>;

pub(super) fn register(context: &mut Context<'_>) {
    context.add_function("dyn", |value: Cel| -> Outcome { Ok(value) });
    context.add_function(CHARGE, |steps: i64| -> Outcome {
        charge_or_fail(u64::try_from(steps).unwrap_or(u64::MAX))?;
        Ok(Cel::Bool(true))
    });
    context.add_function(CHARGE_SIZE, |value: Cel| -> Outcome {
        charge_or_fail(byte_size(&value) / 10)?;
        Ok(value)
    });
    context.add_function(PAIRS, pairs);
    context.add_function(PAIRS_TO_MAP, pairs_to_map);
    context.add_function("replace", replace);
    context.add_function("join", join);
    context.add_function("split", split);
    context.add_function("size", |This(value): This<Cel>| -> Outcome { length(&value).map(Cel::Int) });
    context.add_function("sum", sum);
    context.add_function("type", |value: Cel| -> Outcome { Ok(TypeName::of_value(&value)) });
    context.add_function("bool", to_bool);
    context.add_function("int", to_int);
    context.add_function("uint", to_uint);
    context.add_function("double", to_double);
    context.add_function(INSERT, insert_entries);
    context.add_function(SORT_BY, sort_by_keys);
    for name in TYPES {
        context.add_variable_from_value(*name, Cel::Opaque(Arc::new(TypeName((*name).to_owned()))));
    }
    let google = |name: &str| {
        let type_value = Cel::Opaque(Arc::new(TypeName(format!("google.protobuf.{name}"))));
        (Key::String(Arc::new(name.to_owned())), type_value)
    };
    let protobuf = Cel::Map(Map { map: Arc::new(HashMap::from([google("Timestamp"), google("Duration")])) });
    let protobuf = HashMap::from([(Key::String(Arc::new("protobuf".to_owned())), protobuf)]);
    context.add_variable_from_value("google", Cel::Map(Map { map: Arc::new(protobuf) }));
}

/// Type names that expressions compare with the result of `type`.
const TYPES: &[&str] =
    &["bool", "bytes", "double", "int", "list", "map", "null_type", "optional_type", "string", "type", "uint"];

/// A type as a value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TypeName(String);

impl Opaque for TypeName {
    fn runtime_type_name(&self) -> &str {
        "type"
    }
}

/// Name of the type that a value is; `None` if the value is not a type.
pub(super) fn named_type(value: &Cel) -> Option<String> {
    let Cel::Opaque(opaque) = value else { return None };
    opaque.downcast_ref::<TypeName>().map(|TypeName(name)| name.clone())
}

/// Name of a value's type.
pub(super) fn type_name(value: &Cel) -> &str {
    match value {
        Cel::Null => "null_type",
        Cel::Bool(_) => "bool",
        Cel::Int(_) => "int",
        Cel::UInt(_) => "uint",
        Cel::Float(_) => "double",
        Cel::String(_) => "string",
        Cel::Bytes(_) => "bytes",
        Cel::List(_) => "list",
        Cel::Map(_) => "map",
        Cel::Timestamp(_) => "google.protobuf.Timestamp",
        Cel::Duration(_) => "google.protobuf.Duration",
        Cel::Opaque(opaque) => opaque.runtime_type_name(),
        _ => "dyn",
    }
}

impl TypeName {
    fn of_value(value: &Cel) -> Cel {
        Cel::Opaque(Arc::new(TypeName(type_name(value).to_owned())))
    }
}

fn conversion_error(from: &str, to: &str) -> ExecutionError {
    ExecutionError::function_error(to, format!("type conversion error from '{from}' to '{to}'"))
}

fn to_bool(value: Cel) -> Outcome {
    match &value {
        Cel::Bool(_) => Ok(value),
        Cel::String(text) => match text.as_str() {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Cel::Bool(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Cel::Bool(false)),
            _ => Err(conversion_error("string", "bool")),
        },
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

fn int_overflow() -> ExecutionError {
    ExecutionError::function_error("int", "integer overflow")
}

fn uint_overflow() -> ExecutionError {
    ExecutionError::function_error("uint", "unsigned integer overflow")
}

fn to_int(value: Cel) -> Outcome {
    match &value {
        Cel::Int(_) => Ok(value),
        Cel::UInt(number) => i64::try_from(*number).map(Cel::Int).map_err(|_| int_overflow()),
        Cel::Float(number) if number.abs() < 9.223_372_036_854_775e18 => Ok(Cel::Int(*number as i64)),
        Cel::Float(_) => Err(int_overflow()),
        Cel::String(text) => text.parse().map(Cel::Int).map_err(|_| conversion_error("string", "int")),
        Cel::Timestamp(time) => Ok(Cel::Int(time.timestamp())),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

fn to_uint(value: Cel) -> Outcome {
    match &value {
        Cel::UInt(_) => Ok(value),
        Cel::Int(number) => u64::try_from(*number).map(Cel::UInt).map_err(|_| uint_overflow()),
        Cel::Float(number) if (0.0..1.844_674_407_370_955_2e19).contains(number) => Ok(Cel::UInt(*number as u64)),
        Cel::Float(_) => Err(uint_overflow()),
        Cel::String(text) => text.parse().map(Cel::UInt).map_err(|_| conversion_error("string", "uint")),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

fn to_double(value: Cel) -> Outcome {
    match &value {
        Cel::Float(_) => Ok(value),
        Cel::Int(number) => Ok(Cel::Float(*number as f64)),
        Cel::UInt(number) => Ok(Cel::Float(*number as f64)),
        Cel::String(text) => text.parse().map(Cel::Float).map_err(|_| conversion_error("string", "double")),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

/// Adds the entries of a map, whose keys must not exist.
fn insert_entries(into: Cel, more: Cel) -> Outcome {
    let (Cel::Map(into), Cel::Map(more)) = (&into, &more) else { return Err(ExecutionError::NoSuchOverload) };
    let mut map = (*into.map).clone();
    for (key, value) in more.map.iter() {
        if map.insert(key.clone(), value.clone()).is_some() {
            let reason = format!("insert failed: key {} already exists", value::format_key(key));
            return Err(ExecutionError::function_error(INSERT, reason));
        }
    }
    Ok(Cel::Map(Map { map: Arc::new(map) }))
}

/// Sorts a list by the keys of its elements.
fn sort_by_keys(items: Cel, keys: Cel) -> Outcome {
    let (Cel::List(items), Cel::List(keys)) = (&items, &keys) else { return Err(ExecutionError::NoSuchOverload) };
    charge_or_fail(items.len() as u64 * 2)?;
    let mut pairs: Vec<(&Cel, &Cel)> = keys.iter().zip(items.iter()).collect();
    let comparable = pairs.windows(2).all(|two| two[0].0.partial_cmp(two[1].0).is_some());
    if !comparable {
        return Err(ExecutionError::NoSuchOverload);
    }
    pairs.sort_by(|left, right| left.0.partial_cmp(right.0).unwrap_or(std::cmp::Ordering::Equal));
    Ok(Cel::List(Arc::new(pairs.into_iter().map(|(_, item)| item.clone()).collect())))
}

pub(super) fn charge_or_fail(steps: u64) -> Result<(), ExecutionError> {
    match charge(steps) {
        true => Ok(()),
        false => Err(ExecutionError::function_error(CHARGE, "operation cancelled: actual cost limit exceeded")),
    }
}

/// Approximate size in bytes.
fn byte_size(value: &Cel) -> u64 {
    let element_size = |value: &Cel| 10 + byte_size(value);
    match value {
        Cel::String(text) => text.len() as u64,
        Cel::Bytes(bytes) => bytes.len() as u64,
        Cel::List(items) => items.iter().map(element_size).sum(),
        Cel::Map(map) => map.map.values().map(element_size).sum(),
        _ => 0,
    }
}

fn text(value: Option<&Cel>) -> Result<Arc<String>, ExecutionError> {
    match value {
        Some(Cel::String(text)) => Ok(Arc::clone(text)),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

/// `text.replace(old, new[, count])`.
fn replace(This(this): This<Cel>, Arguments(args): Arguments) -> Outcome {
    let this = text(Some(&this))?;
    let (old, new) = (text(args.first())?, text(args.get(1))?);
    let max_count = match args.get(2) {
        None => usize::MAX,
        // A negative count means all.
        Some(Cel::Int(count)) => usize::try_from(*count).unwrap_or(usize::MAX),
        Some(_) => return Err(ExecutionError::NoSuchOverload),
    };
    let match_count = if old.is_empty() { this.chars().count() + 1 } else { this.matches(old.as_str()).count() };
    charge_or_fail((this.len() as u64 + match_count.min(max_count) as u64 * new.len() as u64) / 10)?;
    Ok(Cel::String(Arc::new(this.replacen(old.as_str(), &new, max_count))))
}

/// `texts.join([separator])`.
fn join(This(this): This<Cel>, Arguments(args): Arguments) -> Outcome {
    let Cel::List(items) = &this else { return Err(ExecutionError::NoSuchOverload) };
    let separator = match args.first() {
        None => Arc::default(),
        separator => text(separator)?,
    };
    charge_or_fail((byte_size(&this) + items.len() as u64 * separator.len() as u64) / 10)?;
    let items: Vec<Arc<String>> = items.iter().map(|item| text(Some(item))).collect::<Result<_, _>>()?;
    let items: Vec<&str> = items.iter().map(|item| item.as_str()).collect();
    Ok(Cel::String(Arc::new(items.join(&separator))))
}

/// `text.split(separator[, limit])`; an empty separator splits into characters.
fn split(This(this): This<Cel>, Arguments(args): Arguments) -> Outcome {
    let (this, separator) = (text(Some(&this))?, text(args.first())?);
    charge_or_fail(this.len() as u64 / 10 + 1)?;
    let limit = match args.get(1) {
        None => usize::MAX,
        // A negative limit means no limit.
        Some(Cel::Int(limit)) => usize::try_from(*limit).unwrap_or(usize::MAX),
        Some(_) => return Err(ExecutionError::NoSuchOverload),
    };
    let mut parts: Vec<String> = Vec::new();
    match separator.as_str() {
        _ if limit == 0 => {}
        "" => {
            let mut rest = this.chars();
            while parts.len() + 1 < limit {
                let Some(next) = rest.next() else { break };
                parts.push(next.to_string());
            }
            if !rest.as_str().is_empty() {
                parts.push(rest.as_str().to_owned());
            }
        }
        separator => parts.extend(this.splitn(limit, separator).map(str::to_owned)),
    }
    let parts = parts.into_iter().map(|part| Cel::String(Arc::new(part)));
    Ok(Cel::List(Arc::new(parts.collect())))
}

/// Number of characters, bytes, elements or entries.
fn length(value: &Cel) -> Result<i64, ExecutionError> {
    let length = match value {
        Cel::String(text) => text.chars().count(),
        Cel::Bytes(bytes) => bytes.len(),
        Cel::List(items) => items.len(),
        Cel::Map(map) => map.map.len(),
        _ => return Err(ExecutionError::NoSuchOverload),
    };
    i64::try_from(length).map_err(|_| overflow("integer"))
}

fn overflow(kind: &str) -> ExecutionError {
    ExecutionError::function_error("sum", format!("{kind} overflow"))
}

/// `list.sum()` of numbers or durations.
fn sum(This(this): This<Cel>) -> Outcome {
    let Cel::List(items) = &this else { return Err(ExecutionError::NoSuchOverload) };
    charge_or_fail(items.len() as u64)?;
    let add = |sum: Option<Cel>, item: &Cel| -> Result<Option<Cel>, ExecutionError> {
        Ok(Some(match (sum, item) {
            (None, Cel::Int(_) | Cel::UInt(_) | Cel::Float(_) | Cel::Duration(_)) => item.clone(),
            (Some(Cel::Int(sum)), Cel::Int(more)) => {
                Cel::Int(sum.checked_add(*more).ok_or_else(|| overflow("integer"))?)
            }
            (Some(Cel::UInt(sum)), Cel::UInt(more)) => {
                Cel::UInt(sum.checked_add(*more).ok_or_else(|| overflow("unsigned integer"))?)
            }
            (Some(Cel::Float(sum)), Cel::Float(more)) => Cel::Float(sum + more),
            (Some(Cel::Duration(sum)), Cel::Duration(more)) => {
                Cel::Duration(sum.checked_add(more).ok_or_else(|| overflow("integer"))?)
            }
            _ => return Err(ExecutionError::NoSuchOverload),
        }))
    };
    Ok(items.iter().try_fold(None, add)?.unwrap_or(Cel::Int(0)))
}

fn pairs(collection: Cel) -> Outcome {
    charge_or_fail(byte_size(&collection) / 10)?;
    let pair = |first: Cel, second: &Cel| Cel::List(Arc::new(vec![first, second.clone()]));
    let all = match &collection {
        Cel::List(items) => items.iter().zip(0..).map(|(item, index)| pair(Cel::Int(index), item)).collect(),
        Cel::Map(map) => map.map.iter().map(|(key, value)| pair(key_value(key), value)).collect(),
        _ => return Err(ExecutionError::NoSuchOverload),
    };
    Ok(Cel::List(Arc::new(all)))
}

fn key_value(key: &Key) -> Cel {
    match key {
        Key::Int(key) => Cel::Int(*key),
        Key::Uint(key) => Cel::UInt(*key),
        Key::Bool(key) => Cel::Bool(*key),
        Key::String(key) => Cel::String(Arc::clone(key)),
    }
}

fn pairs_to_map(pairs: Cel) -> Outcome {
    let Cel::List(pairs) = pairs else { return Err(ExecutionError::NoSuchOverload) };
    let mut map = HashMap::with_capacity(pairs.len());
    for pair in pairs.iter() {
        let Cel::List(pair) = pair else { return Err(ExecutionError::NoSuchOverload) };
        let [key, value] = pair.as_slice() else { return Err(ExecutionError::NoSuchOverload) };
        let key = match key {
            Cel::Int(key) => Key::Int(*key),
            Cel::UInt(key) => Key::Uint(*key),
            Cel::Bool(key) => Key::Bool(*key),
            Cel::String(key) => Key::String(Arc::clone(key)),
            _ => return Err(ExecutionError::NoSuchOverload),
        };
        map.insert(key, value.clone());
    }
    Ok(Cel::Map(Map { map: Arc::new(map) }))
}
