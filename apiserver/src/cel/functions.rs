//! Functions that compiled expressions call and nobody can write, and those of the libraries whose answer may be much larger
//! than what they are given.

use std::collections::HashMap;
use std::sync::Arc;

use kube::core::cel::cel::extractors::{Arguments, This};
use kube::core::cel::cel::objects::{Key, Map};
use kube::core::cel::cel::{Context, ExecutionError, Value as Cel};

use super::budget::charge;

/// Takes steps from the budget.
pub(super) const CHARGE: &str = "@charge";
/// Its argument, charged by its size.
pub(super) const SIZED: &str = "@sized";
/// Pairs of index and element, or of key and value.
pub(super) const PAIRS: &str = "@pairs";
/// A map of pairs.
pub(super) const MAP_OF: &str = "@map_of";

type Outcome = Result<Cel, ExecutionError>;

pub(super) fn add(context: &mut Context<'_>) {
    context.add_function("dyn", |value: Cel| -> Outcome { Ok(value) });
    context.add_function(CHARGE, |steps: i64| -> Outcome {
        spend(u64::try_from(steps).unwrap_or(u64::MAX))?;
        Ok(Cel::Bool(true))
    });
    context.add_function(SIZED, |value: Cel| -> Outcome {
        spend(size(&value) / 10)?;
        Ok(value)
    });
    context.add_function(PAIRS, pairs);
    context.add_function(MAP_OF, map_of);
    context.add_function("replace", replace);
    context.add_function("join", join);
}

fn spend(steps: u64) -> Result<(), ExecutionError> {
    match charge(steps) {
        true => Ok(()),
        false => Err(ExecutionError::function_error(CHARGE, "operation cancelled: actual cost limit exceeded")),
    }
}

/// About as many bytes as it has.
fn size(value: &Cel) -> u64 {
    let each = |value: &Cel| 10 + size(value);
    match value {
        Cel::String(text) => text.len() as u64,
        Cel::Bytes(bytes) => bytes.len() as u64,
        Cel::List(items) => items.iter().map(each).sum(),
        Cel::Map(map) => map.map.values().map(each).sum(),
        _ => 0,
    }
}

fn text(value: Option<&Cel>) -> Result<Arc<String>, ExecutionError> {
    match value {
        Some(Cel::String(text)) => Ok(Arc::clone(text)),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

/// `text.replace(old, new[, times])`.
fn replace(This(this): This<Cel>, Arguments(given): Arguments) -> Outcome {
    let this = text(Some(&this))?;
    let (old, new) = (text(given.first())?, text(given.get(1))?);
    let times = match given.get(2) {
        None => usize::MAX,
        // Less than none means all.
        Some(Cel::Int(times)) => usize::try_from(*times).unwrap_or(usize::MAX),
        Some(_) => return Err(ExecutionError::NoSuchOverload),
    };
    let found = if old.is_empty() { this.chars().count() + 1 } else { this.matches(old.as_str()).count() };
    spend((this.len() as u64 + found.min(times) as u64 * new.len() as u64) / 10)?;
    Ok(Cel::String(Arc::new(this.replacen(old.as_str(), &new, times))))
}

/// `texts.join([between])`.
fn join(This(this): This<Cel>, Arguments(given): Arguments) -> Outcome {
    let Cel::List(items) = &this else { return Err(ExecutionError::NoSuchOverload) };
    let between = match given.first() {
        None => Arc::default(),
        given => text(given)?,
    };
    spend((size(&this) + items.len() as u64 * between.len() as u64) / 10)?;
    let items: Vec<Arc<String>> = items.iter().map(|item| text(Some(item))).collect::<Result<_, _>>()?;
    let items: Vec<&str> = items.iter().map(|item| item.as_str()).collect();
    Ok(Cel::String(Arc::new(items.join(&between))))
}

fn pairs(of: Cel) -> Outcome {
    spend(size(&of) / 10)?;
    let pair = |first: Cel, second: &Cel| Cel::List(Arc::new(vec![first, second.clone()]));
    let all = match &of {
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

fn map_of(pairs: Cel) -> Outcome {
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
