//! Comparison and concatenation of lists that are sets or maps (`x-kubernetes-list-type`). CEL values have no
//! schema, so [`super::rewrite`] determines the kind of each operand at compile time. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use kube::core::cel::cel::objects::{Key, Map, Opaque, OptionalValue};
use kube::core::cel::cel::{Context, ExecutionError, Value as Cel};
use serde_json::Value;

use super::functions::spend;
use crate::json::escape;

/// Compares two values by the kind of the first.
pub(super) const EQUAL: &str = "@equal";
/// Concatenates lists.
pub(super) const ADDED: &str = "@added";
/// Tests membership, with an element or list of a kind.
pub(super) const CONTAINED: &str = "@contained";

/// Kind of a value, derived from its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Contains no sets or maps.
    Plain,
    Set,
    /// A list of type map: its key fields, if expressions can refer to them, and the kind of its elements.
    Keyed(Arc<[Option<String>]>, Arc<Kind>),
    List(Arc<Kind>),
    /// A list created by the expression.
    Made(Arc<Kind>),
    /// A map, with the kind of its values.
    Values(Arc<Kind>),
    /// An object, with its fields that are not plain.
    Fields(Arc<BTreeMap<String, Kind>>),
    Optional(Arc<Kind>),
    /// A pair of index and element, or of key and value.
    Pair(Arc<Kind>),
}

impl Opaque for Kind {
    fn runtime_type_name(&self) -> &str {
        "kind"
    }
}

impl Kind {
    pub fn of_schema(schema: &Value) -> Self {
        let below = |key: &str| schema.get(key).filter(|below| below.is_object()).map_or(Kind::Plain, Self::of_schema);
        match schema.get("type").and_then(Value::as_str) {
            Some("array") => match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
                Some("set") => Kind::Set,
                Some("map") => {
                    let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
                    // The keys are used in escaped form, as in kube-apiserver, although elements contain them
                    // unescaped.
                    let key = |name: &str| Some(name.to_owned()).filter(|name| escape(name) == *name);
                    let keys = keys.into_iter().flatten().filter_map(Value::as_str).map(key);
                    Kind::Keyed(keys.collect(), Arc::new(below("items")))
                }
                _ => below("items").within(Kind::List),
            },
            Some("object") => match schema.get("properties").and_then(Value::as_object) {
                Some(properties) => Self::of_fields(properties),
                None => below("additionalProperties").within(Kind::Values),
            },
            _ => Kind::Plain,
        }
    }

    fn of_fields(properties: &serde_json::Map<String, Value>) -> Self {
        let mut fields = BTreeMap::new();
        for (name, property) in properties {
            let kind = Self::of_schema(property);
            if !kind.is_plain() {
                fields.insert(escape(name), kind.clone());
                fields.insert(name.clone(), kind);
            }
        }
        if fields.is_empty() { Kind::Plain } else { Kind::Fields(Arc::new(fields)) }
    }

    pub fn is_plain(&self) -> bool {
        *self == Kind::Plain
    }

    /// The kind of a container of such values; plain if the values are plain.
    pub fn within(self, holder: fn(Arc<Kind>) -> Kind) -> Kind {
        if self.is_plain() { Kind::Plain } else { holder(Arc::new(self)) }
    }

    pub fn optional(self) -> Kind {
        Kind::Optional(Arc::new(self))
    }

    pub(super) fn is_optional(&self) -> bool {
        matches!(self, Kind::Optional(_))
    }

    /// The kind of a value that has one of two kinds.
    pub(super) fn or(self, other: Kind) -> Kind {
        match (self, other) {
            (Kind::Plain, other) => other,
            (Kind::Optional(one), Kind::Optional(other)) => {
                Arc::unwrap_or_clone(one).or(Arc::unwrap_or_clone(other)).optional()
            }
            (one, _) => one,
        }
    }

    pub(super) fn item(&self) -> Kind {
        match self {
            Kind::Keyed(_, of) | Kind::List(of) | Kind::Made(of) => (**of).clone(),
            _ => Kind::Plain,
        }
    }

    /// The kind of a field or entry.
    pub(super) fn member(&self, name: &str) -> Kind {
        match self {
            Kind::Fields(fields) => fields.get(name).cloned().unwrap_or(Kind::Plain),
            Kind::Values(of) => (**of).clone(),
            Kind::Optional(of) => of.member(name).optional(),
            _ => Kind::Plain,
        }
    }

    fn in_optional(&self) -> &Kind {
        match self {
            Kind::Optional(of) => of,
            other => other,
        }
    }

    /// The kind of the value in an optional.
    pub(super) fn unwrapped(&self) -> Kind {
        self.in_optional().clone()
    }
}

type Outcome = Result<Cel, ExecutionError>;

pub(super) fn add(context: &mut Context<'_>) {
    context.add_function(EQUAL, |kind: Cel, one: Cel, other: Cel| -> Outcome {
        equal(of(&kind), &one, &other).map(Cel::Bool)
    });
    context.add_function(ADDED, |kind: Cel, one: Cel, other: Cel| added(of(&kind), &one, &other));
    context.add_function(CONTAINED, |kind: Cel, one: Cel, list: Cel| -> Outcome {
        let Cel::List(items) = &list else { return Err(ExecutionError::NoSuchOverload) };
        let kind = of(&kind);
        for item in items.iter() {
            let same = match kind {
                Kind::Made(kind) => equal(kind, &one, item)?,
                kind => equal(kind, item, &one)?,
            };
            if same {
                return Ok(Cel::Bool(true));
            }
        }
        Ok(Cel::Bool(false))
    });
}

fn of(kind: &Cel) -> &Kind {
    match kind {
        Cel::Opaque(opaque) => opaque.downcast_ref::<Kind>().unwrap_or(&Kind::Plain),
        _ => &Kind::Plain,
    }
}

/// Compares two values by the kind of the first.
fn equal(kind: &Kind, one: &Cel, other: &Cel) -> Result<bool, ExecutionError> {
    let all = |kind: &Kind, these: &[Cel], those: &[Cel]| -> Result<bool, ExecutionError> {
        let mut pairs = these.iter().zip(those);
        Ok(these.len() == those.len() && pairs.try_fold(true, |same, (a, b)| Ok(same && equal(kind, a, b)?))?)
    };
    match (kind, one, other) {
        (Kind::Plain, ..) | (_, Cel::Null, _) | (_, _, Cel::Null) => Ok(one == other),
        (Kind::Set, Cel::List(these), Cel::List(those)) => {
            let set = set_of(these)?;
            Ok(these.len() == those.len() && those.iter().all(|one| scalar(one).is_some_and(|one| set.contains(&one))))
        }
        (Kind::Keyed(keys, item), Cel::List(these), Cel::List(those)) => {
            spend(these.len() as u64 / 10)?;
            let by_key: HashMap<_, &Cel> = these.iter().map(|one| (key_of(keys, one), one)).collect();
            if these.len() != those.len() {
                return Ok(false);
            }
            for other in those.iter() {
                match by_key.get(&key_of(keys, other)) {
                    Some(one) if equal(item, one, other)? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
        (Kind::List(item) | Kind::Made(item), Cel::List(these), Cel::List(those)) => all(item, these, those),
        (Kind::Values(_) | Kind::Fields(_), Cel::Map(these), Cel::Map(those)) => entries(kind, these, those),
        (Kind::Optional(of), Cel::Opaque(one), Cel::Opaque(other)) => {
            let value =
                |optional: &Arc<dyn Opaque>| optional.downcast_ref::<OptionalValue>().and_then(|o| o.value().cloned());
            match (value(one), value(other)) {
                (Some(one), Some(other)) => equal(of, &one, &other),
                (one, other) => Ok(one.is_none() && other.is_none()),
            }
        }
        (Kind::Set | Kind::Keyed(..) | Kind::List(_), Cel::List(_), _) => Err(ExecutionError::NoSuchOverload),
        _ => Ok(one == other),
    }
}

fn entries(kind: &Kind, these: &Map, those: &Map) -> Result<bool, ExecutionError> {
    if these.map.len() != those.map.len() {
        return Ok(false);
    }
    for (key, one) in these.map.iter() {
        let kind = match key {
            Key::String(name) => kind.member(name),
            _ => kind.member(""),
        };
        match those.map.get(key) {
            Some(other) if equal(&kind, one, other)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Appends to the first list the elements of the second that it lacks; in a list of type map, elements with equal
/// keys are replaced.
fn added(kind: &Kind, one: &Cel, other: &Cel) -> Outcome {
    let (Cel::List(these), Cel::List(those)) = (one, other) else { return Err(ExecutionError::NoSuchOverload) };
    spend(those.len() as u64 / 10)?;
    let mut all = (**these).clone();
    match kind {
        Kind::Keyed(keys, _) => {
            let places: HashMap<_, usize> = these.iter().enumerate().map(|(at, one)| (key_of(keys, one), at)).collect();
            for other in those.iter() {
                match places.get(&key_of(keys, other)) {
                    Some(at) if *at < all.len() => all[*at] = other.clone(),
                    _ => all.push(other.clone()),
                }
            }
        }
        _ => {
            let mut set = set_of(these)?;
            all.extend(those.iter().filter(|one| scalar(one).is_none_or(|one| set.insert(one))).cloned());
        }
    }
    Ok(Cel::List(Arc::new(all)))
}

/// Identity of a set's element.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Scalar<'a> {
    Text(&'a str),
    Int(i64),
    Uint(u64),
    Bool(bool),
    Double(u64),
}

/// Identity of an element of a computed list. Times are compared with their original text and never match.
fn scalar(value: &Cel) -> Option<Scalar<'_>> {
    match value {
        Cel::String(text) => Some(Scalar::Text(text)),
        Cel::Int(number) => Some(Scalar::Int(*number)),
        Cel::UInt(number) => Some(Scalar::Uint(*number)),
        Cel::Bool(value) => Some(Scalar::Bool(*value)),
        Cel::Float(number) => Some(Scalar::Double(number.to_bits())),
        _ => None,
    }
}

/// Identity of a stored element. An integral number is stored as an integer, even if the schema has doubles.
fn stored(value: &Cel) -> Option<Scalar<'_>> {
    match value {
        Cel::Float(number) if number.fract() == 0.0 => Some(Scalar::Int(*number as i64)),
        value => scalar(value),
    }
}

/// Go cannot hash maps and slices, which causes an error at run time.
fn set_of(elements: &[Cel]) -> Result<HashSet<Scalar<'_>>, ExecutionError> {
    spend(elements.len() as u64 / 10)?;
    let unhashable = elements.iter().find_map(|element| match element {
        Cel::Map(_) => Some("map[string]interface {}"),
        Cel::List(_) => Some("[]interface {}"),
        _ => None,
    });
    match unhashable {
        Some(of) => {
            let why = format!("internal error: runtime error: hash of unhashable type {of}");
            Err(ExecutionError::function_error(EQUAL, why))
        }
        None => Ok(elements.iter().filter_map(stored).collect()),
    }
}

fn key_of<'a>(keys: &[Option<String>], element: &'a Cel) -> Vec<Option<Scalar<'a>>> {
    let Cel::Map(map) = element else { return Vec::new() };
    let key = |name: &Option<String>| scalar(map.map.get(&Key::String(Arc::new(name.clone()?)))?);
    keys.iter().map(key).collect()
}
