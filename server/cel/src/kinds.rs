//! Comparison and concatenation of lists that are sets or maps (`x-kubernetes-list-type`). CEL values have no
//! schema, so [`super::rewrite`] determines the kind of each operand at compile time. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use kube::core::cel::cel::objects::{Key, Map, Opaque, OptionalValue};
use kube::core::cel::cel::{Context, ExecutionError, Value as Cel};
use serde_json::Value;

use super::functions::charge_or_fail;
use crate::json::escape;

/// Compares two values by the kind of the first.
pub(super) const EQUAL: &str = "@equal";
/// Concatenates lists.
pub(super) const CONCATENATE: &str = "@concatenate";
/// Tests membership in a list. Elements are compared by the kind of the list's elements; in a computed list, by the
/// kind of the value sought.
pub(super) const CONTAINS: &str = "@contains";

/// Kind of a value, derived from its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueKind {
    /// Contains no sets or maps.
    Plain,
    Set,
    /// A list of type map: its key fields, if expressions can refer to them, and the kind of its elements.
    Keyed(Arc<[Option<String>]>, Arc<ValueKind>),
    List(Arc<ValueKind>),
    /// A list created by the expression.
    Computed(Arc<ValueKind>),
    /// A map, with the kind of its values.
    Values(Arc<ValueKind>),
    /// An object, with its fields that are not plain.
    Fields(Arc<BTreeMap<String, ValueKind>>),
    Optional(Arc<ValueKind>),
    /// A pair of index and element, or of key and value.
    Pair(Arc<ValueKind>),
}

impl Opaque for ValueKind {
    fn runtime_type_name(&self) -> &str {
        "kind"
    }
}

impl ValueKind {
    pub fn from_schema(schema: &Value) -> Self {
        let nested =
            |key: &str| schema.get(key).filter(|nested| nested.is_object()).map_or(ValueKind::Plain, Self::from_schema);
        match schema.get("type").and_then(Value::as_str) {
            Some("array") => match schema.get("x-kubernetes-list-type").and_then(Value::as_str) {
                Some("set") => ValueKind::Set,
                Some("map") => {
                    let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
                    // The keys are used in escaped form, as in kube-apiserver, although elements contain them
                    // unescaped.
                    let key = |name: &str| Some(name.to_owned()).filter(|name| escape(name) == *name);
                    let keys = keys.into_iter().flatten().filter_map(Value::as_str).map(key);
                    ValueKind::Keyed(keys.collect(), Arc::new(nested("items")))
                }
                _ => nested("items").wrap_in(ValueKind::List),
            },
            Some("object") => match schema.get("properties").and_then(Value::as_object) {
                Some(properties) => Self::from_fields(properties),
                None => nested("additionalProperties").wrap_in(ValueKind::Values),
            },
            _ => ValueKind::Plain,
        }
    }

    fn from_fields(properties: &serde_json::Map<String, Value>) -> Self {
        let mut fields = BTreeMap::new();
        for (name, property) in properties {
            let kind = Self::from_schema(property);
            if !kind.is_plain() {
                fields.insert(escape(name), kind.clone());
                fields.insert(name.clone(), kind);
            }
        }
        if fields.is_empty() { ValueKind::Plain } else { ValueKind::Fields(Arc::new(fields)) }
    }

    pub fn is_plain(&self) -> bool {
        *self == ValueKind::Plain
    }

    /// The kind of a container of such values; plain if the values are plain.
    pub fn wrap_in(self, container: fn(Arc<ValueKind>) -> ValueKind) -> ValueKind {
        if self.is_plain() { ValueKind::Plain } else { container(Arc::new(self)) }
    }

    pub fn optional(self) -> ValueKind {
        ValueKind::Optional(Arc::new(self))
    }

    pub(super) fn is_optional(&self) -> bool {
        matches!(self, ValueKind::Optional(_))
    }

    /// The kind of a value that has one of two kinds.
    pub(super) fn or(self, other: ValueKind) -> ValueKind {
        match (self, other) {
            (ValueKind::Plain, other) => other,
            (ValueKind::Optional(one), ValueKind::Optional(other)) => {
                Arc::unwrap_or_clone(one).or(Arc::unwrap_or_clone(other)).optional()
            }
            (one, _) => one,
        }
    }

    pub(super) fn item(&self) -> ValueKind {
        match self {
            ValueKind::Keyed(_, inner) | ValueKind::List(inner) | ValueKind::Computed(inner) => (**inner).clone(),
            _ => ValueKind::Plain,
        }
    }

    /// The kind of a field or entry.
    pub(super) fn member(&self, name: &str) -> ValueKind {
        match self {
            ValueKind::Fields(fields) => fields.get(name).cloned().unwrap_or(ValueKind::Plain),
            ValueKind::Values(inner) => (**inner).clone(),
            ValueKind::Optional(inner) => inner.member(name).optional(),
            _ => ValueKind::Plain,
        }
    }

    fn in_optional(&self) -> &ValueKind {
        match self {
            ValueKind::Optional(inner) => inner,
            other => other,
        }
    }

    /// The kind of the value in an optional.
    pub(super) fn unwrap_optional(&self) -> ValueKind {
        self.in_optional().clone()
    }
}

type Outcome = Result<Cel, ExecutionError>;

pub(super) fn register(context: &mut Context<'_>) {
    context.add_function(EQUAL, |kind: Cel, one: Cel, other: Cel| -> Outcome {
        are_equal(downcast_kind(&kind), &one, &other).map(Cel::Bool)
    });
    context
        .add_function(CONCATENATE, |kind: Cel, one: Cel, other: Cel| concatenate(downcast_kind(&kind), &one, &other));
    context.add_function(CONTAINS, |kind: Cel, one: Cel, list: Cel| -> Outcome {
        let Cel::List(items) = &list else { return Err(ExecutionError::NoSuchOverload) };
        let kind = downcast_kind(&kind);
        for item in items.iter() {
            let same = match kind {
                ValueKind::Computed(kind) => are_equal(kind, &one, item)?,
                kind => are_equal(kind, item, &one)?,
            };
            if same {
                return Ok(Cel::Bool(true));
            }
        }
        Ok(Cel::Bool(false))
    });
}

fn downcast_kind(kind: &Cel) -> &ValueKind {
    match kind {
        Cel::Opaque(opaque) => opaque.downcast_ref::<ValueKind>().unwrap_or(&ValueKind::Plain),
        _ => &ValueKind::Plain,
    }
}

/// Compares two values by the kind of the first.
fn are_equal(kind: &ValueKind, one: &Cel, other: &Cel) -> Result<bool, ExecutionError> {
    let all = |kind: &ValueKind, these: &[Cel], those: &[Cel]| -> Result<bool, ExecutionError> {
        let mut pairs = these.iter().zip(those);
        Ok(these.len() == those.len() && pairs.try_fold(true, |same, (a, b)| Ok(same && are_equal(kind, a, b)?))?)
    };
    match (kind, one, other) {
        (ValueKind::Plain, ..) | (_, Cel::Null, _) | (_, _, Cel::Null) => Ok(one == other),
        (ValueKind::Set, Cel::List(these), Cel::List(those)) => {
            let set = hash_elements(these)?;
            Ok(these.len() == those.len() && those.iter().all(|one| scalar(one).is_some_and(|one| set.contains(&one))))
        }
        (ValueKind::Keyed(keys, item), Cel::List(these), Cel::List(those)) => {
            charge_or_fail(these.len() as u64 / 10)?;
            let by_key: HashMap<_, &Cel> = these.iter().map(|one| (element_key(keys, one), one)).collect();
            if these.len() != those.len() {
                return Ok(false);
            }
            for other in those.iter() {
                match by_key.get(&element_key(keys, other)) {
                    Some(one) if are_equal(item, one, other)? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
        (ValueKind::List(item) | ValueKind::Computed(item), Cel::List(these), Cel::List(those)) => {
            all(item, these, those)
        }
        (ValueKind::Values(_) | ValueKind::Fields(_), Cel::Map(these), Cel::Map(those)) => {
            are_maps_equal(kind, these, those)
        }
        (ValueKind::Optional(inner), Cel::Opaque(one), Cel::Opaque(other)) => {
            let value =
                |optional: &Arc<dyn Opaque>| optional.downcast_ref::<OptionalValue>().and_then(|o| o.value().cloned());
            match (value(one), value(other)) {
                (Some(one), Some(other)) => are_equal(inner, &one, &other),
                (one, other) => Ok(one.is_none() && other.is_none()),
            }
        }
        (ValueKind::Set | ValueKind::Keyed(..) | ValueKind::List(_), Cel::List(_), _) => {
            Err(ExecutionError::NoSuchOverload)
        }
        _ => Ok(one == other),
    }
}

fn are_maps_equal(kind: &ValueKind, these: &Map, those: &Map) -> Result<bool, ExecutionError> {
    if these.map.len() != those.map.len() {
        return Ok(false);
    }
    for (key, one) in these.map.iter() {
        let kind = match key {
            Key::String(name) => kind.member(name),
            _ => kind.member(""),
        };
        match those.map.get(key) {
            Some(other) if are_equal(&kind, one, other)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Appends to the first list the elements of the second that it lacks; in a list of type map, elements with equal
/// keys are replaced.
fn concatenate(kind: &ValueKind, one: &Cel, other: &Cel) -> Outcome {
    let (Cel::List(these), Cel::List(those)) = (one, other) else { return Err(ExecutionError::NoSuchOverload) };
    charge_or_fail(those.len() as u64 / 10)?;
    let mut all = (**these).clone();
    match kind {
        ValueKind::Keyed(keys, _) => {
            let positions: HashMap<_, usize> =
                these.iter().enumerate().map(|(at, one)| (element_key(keys, one), at)).collect();
            for other in those.iter() {
                match positions.get(&element_key(keys, other)) {
                    Some(at) if *at < all.len() => all[*at] = other.clone(),
                    _ => all.push(other.clone()),
                }
            }
        }
        _ => {
            let mut set = hash_elements(these)?;
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

/// Identity of an element of a computed list. Times have none: kube-apiserver compares them with the stored text, and
/// they never match.
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
fn stored_scalar(value: &Cel) -> Option<Scalar<'_>> {
    match value {
        Cel::Float(number) if number.fract() == 0.0 => Some(Scalar::Int(*number as i64)),
        value => scalar(value),
    }
}

/// Hashes the elements of a set. Fails for maps and lists, which Go cannot hash, with its run-time error.
fn hash_elements(elements: &[Cel]) -> Result<HashSet<Scalar<'_>>, ExecutionError> {
    charge_or_fail(elements.len() as u64 / 10)?;
    let unhashable = elements.iter().find_map(|element| match element {
        Cel::Map(_) => Some("map[string]interface {}"),
        Cel::List(_) => Some("[]interface {}"),
        _ => None,
    });
    match unhashable {
        Some(go_type) => {
            let why = format!("internal error: runtime error: hash of unhashable type {go_type}");
            Err(ExecutionError::function_error(EQUAL, why))
        }
        None => Ok(elements.iter().filter_map(stored_scalar).collect()),
    }
}

fn element_key<'a>(keys: &[Option<String>], element: &'a Cel) -> Vec<Option<Scalar<'a>>> {
    let Cel::Map(map) = element else { return Vec::new() };
    let key = |name: &Option<String>| scalar(map.map.get(&Key::String(Arc::new(name.clone()?)))?);
    keys.iter().map(key).collect()
}
