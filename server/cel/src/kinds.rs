//! Comparison and concatenation of lists that are sets or maps (`x-kubernetes-list-type`). CEL values have no
//! schema, so [`super::rewrite`] determines the kind of each operand at compile time. Has no side effects.

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
            (ValueKind::Optional(left), ValueKind::Optional(right)) => {
                Arc::unwrap_or_clone(left).or(Arc::unwrap_or_clone(right)).optional()
            }
            (kind, _) => kind,
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

    fn optional_value_kind(&self) -> &ValueKind {
        match self {
            ValueKind::Optional(inner) => inner,
            other => other,
        }
    }

    /// The kind of the value in an optional.
    pub(super) fn unwrap_optional(&self) -> ValueKind {
        self.optional_value_kind().clone()
    }
}

type Outcome = Result<Cel, ExecutionError>;

pub(super) fn register(context: &mut Context<'_>) {
    context.add_function(EQUAL, |kind: Cel, left: Cel, right: Cel| -> Outcome {
        are_equal(downcast_kind(&kind), &left, &right).map(Cel::Bool)
    });
    context
        .add_function(CONCATENATE, |kind: Cel, left: Cel, right: Cel| concatenate(downcast_kind(&kind), &left, &right));
    context.add_function(CONTAINS, |kind: Cel, value: Cel, list: Cel| -> Outcome {
        let Cel::List(items) = &list else { return Err(ExecutionError::NoSuchOverload) };
        let kind = downcast_kind(&kind);
        for item in items.iter() {
            let same = match kind {
                ValueKind::Computed(kind) => are_equal(kind, &value, item)?,
                kind => are_equal(kind, item, &value)?,
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
fn are_equal(kind: &ValueKind, left: &Cel, right: &Cel) -> Result<bool, ExecutionError> {
    let are_lists_equal = |kind: &ValueKind, left: &[Cel], right: &[Cel]| -> Result<bool, ExecutionError> {
        let mut pairs = left.iter().zip(right);
        Ok(left.len() == right.len() && pairs.try_fold(true, |same, (a, b)| Ok(same && are_equal(kind, a, b)?))?)
    };
    match (kind, left, right) {
        (ValueKind::Plain, ..) | (_, Cel::Null, _) | (_, _, Cel::Null) => Ok(left == right),
        (ValueKind::Set, Cel::List(left), Cel::List(right)) => {
            let set = hash_elements(left)?;
            Ok(left.len() == right.len()
                && right.iter().all(|item| scalar(item).is_some_and(|scalar| set.contains(&scalar))))
        }
        (ValueKind::Keyed(keys, item), Cel::List(left), Cel::List(right)) => {
            charge_or_fail(left.len() as u64 / 10)?;
            let by_key: HashMap<_, &Cel> = left.iter().map(|element| (element_key(keys, element), element)).collect();
            if left.len() != right.len() {
                return Ok(false);
            }
            for element in right.iter() {
                match by_key.get(&element_key(keys, element)) {
                    Some(counterpart) if are_equal(item, counterpart, element)? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
        (ValueKind::List(item) | ValueKind::Computed(item), Cel::List(left), Cel::List(right)) => {
            are_lists_equal(item, left, right)
        }
        (ValueKind::Values(_) | ValueKind::Fields(_), Cel::Map(left), Cel::Map(right)) => {
            are_maps_equal(kind, left, right)
        }
        (ValueKind::Optional(inner), Cel::Opaque(left), Cel::Opaque(right)) => {
            let value =
                |optional: &Arc<dyn Opaque>| optional.downcast_ref::<OptionalValue>().and_then(|o| o.value().cloned());
            match (value(left), value(right)) {
                (Some(left), Some(right)) => are_equal(inner, &left, &right),
                (left, right) => Ok(left.is_none() && right.is_none()),
            }
        }
        (ValueKind::Set | ValueKind::Keyed(..) | ValueKind::List(_), Cel::List(_), _) => {
            Err(ExecutionError::NoSuchOverload)
        }
        _ => Ok(left == right),
    }
}

fn are_maps_equal(kind: &ValueKind, left: &Map, right: &Map) -> Result<bool, ExecutionError> {
    if left.map.len() != right.map.len() {
        return Ok(false);
    }
    for (key, value) in left.map.iter() {
        let kind = match key {
            Key::String(name) => kind.member(name),
            _ => kind.member(""),
        };
        match right.map.get(key) {
            Some(counterpart) if are_equal(&kind, value, counterpart)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Appends to the first list the elements of the second that it lacks; in a list of type map, elements with equal
/// keys are replaced.
fn concatenate(kind: &ValueKind, left: &Cel, right: &Cel) -> Outcome {
    let (Cel::List(left), Cel::List(right)) = (left, right) else { return Err(ExecutionError::NoSuchOverload) };
    charge_or_fail(right.len() as u64 / 10)?;
    let mut elements = (**left).clone();
    match kind {
        ValueKind::Keyed(keys, _) => {
            let positions: HashMap<_, usize> =
                left.iter().enumerate().map(|(at, element)| (element_key(keys, element), at)).collect();
            for element in right.iter() {
                match positions.get(&element_key(keys, element)) {
                    Some(at) if *at < elements.len() => elements[*at] = element.clone(),
                    _ => elements.push(element.clone()),
                }
            }
        }
        _ => {
            let mut set = hash_elements(left)?;
            elements.extend(
                right.iter().filter(|element| scalar(element).is_none_or(|scalar| set.insert(scalar))).cloned(),
            );
        }
    }
    Ok(Cel::List(Arc::new(elements)))
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
            let reason = format!("internal error: runtime error: hash of unhashable type {go_type}");
            Err(ExecutionError::function_error(EQUAL, reason))
        }
        None => Ok(elements.iter().filter_map(stored_scalar).collect()),
    }
}

fn element_key<'a>(keys: &[Option<String>], element: &'a Cel) -> Vec<Option<Scalar<'a>>> {
    let Cel::Map(map) = element else { return Vec::new() };
    let key = |name: &Option<String>| scalar(map.map.get(&Key::String(Arc::new(name.clone()?)))?);
    keys.iter().map(key).collect()
}
