//! Operations on values with a schema: field sets, comparison, merge and removal.
//!
//! The rules are those of structured-merge-diff: structs and maps are granular unless atomic, lists are atomic
//! unless they are sets or maps. Without a schema, maps are granular and lists are atomic.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::path::{FieldSet, PathElement};
use crate::{ListType, Schema, Type};

/// Division of a value for ownership: none, or the parts that are owned separately.
enum Shape<'a> {
    /// Owned as one value.
    Leaf,
    Map(&'a Map<String, Value>),
    List(&'a Vec<Value>),
}

fn is_granular_map(schema: Option<&Schema>) -> bool {
    match schema {
        None => true,
        // Untyped parts are atomic in built-in kinds (RawExtension, JSON), but not in custom resources.
        Some(schema) => !schema.is_atomic && (schema.ty != Type::Any || schema.name.is_none()),
    }
}

fn is_associative_list(schema: Option<&Schema>) -> bool {
    schema.is_some_and(|schema| schema.ty == Type::Array && schema.list_type != ListType::Atomic)
}

fn shape<'a>(schema: Option<&Schema>, value: &'a Value) -> Shape<'a> {
    match value {
        Value::Object(fields) if is_granular_map(schema) => Shape::Map(fields),
        Value::Array(items) if is_associative_list(schema) => Shape::List(items),
        _ => Shape::Leaf,
    }
}

/// A [`Shape`] without the parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Leaf,
    Map,
    List,
}

fn kind(schema: Option<&Schema>, value: &Value) -> Kind {
    match shape(schema, value) {
        Shape::Leaf => Kind::Leaf,
        Shape::Map(_) => Kind::Map,
        Shape::List(_) => Kind::List,
    }
}

fn field_schema<'a>(schema: Option<&'a Schema>, key: &str) -> Option<&'a Schema> {
    schema.and_then(|schema| schema.child(key))
}

fn item_schema(schema: Option<&Schema>) -> Option<&Schema> {
    schema.and_then(|schema| schema.items.as_deref())
}

/// The path element of a list item; the error names the missing key.
pub(super) fn path_element(schema: Option<&Schema>, item: &Value, index: usize) -> Result<PathElement, String> {
    let Some(schema) = schema else { return Ok(PathElement::Index(index)) };
    match &schema.list_type {
        ListType::Atomic => Ok(PathElement::Index(index)),
        ListType::Set => match item {
            Value::Null => Err("associative list without keys has an element that's an explicit null".into()),
            Value::Array(_) => Err("not supported: associative list with lists as elements".into()),
            Value::Object(_) => Err("associative list without keys has an element that's a map type".into()),
            _ => Ok(PathElement::Value(item.clone())),
        },
        ListType::Map(keys) => {
            if item.is_null() {
                return Err("associative list with keys may not have a null element".into());
            }
            let Some(fields) = item.as_object() else {
                return Err("associative list with keys may not have non-map elements".into());
            };
            let mut key_fields = BTreeMap::new();
            for key in keys {
                let default =
                    || schema.items.as_ref().and_then(|node| node.field(key)).and_then(|field| field.default.clone());
                // A key without a value or default is omitted from the path element.
                if let Some(value) = fields.get(&**key).cloned().or_else(default) {
                    key_fields.insert(key.clone(), value);
                }
            }
            if key_fields.is_empty() {
                let quoted: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
                return Err(format!(
                    "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
                    quoted.join(" ")
                ));
            }
            Ok(PathElement::Key(key_fields.into_iter().collect()))
        }
    }
}

/// The items of a list with their path elements. Duplicates are kept, because live objects may contain them.
fn index_items<'a>(schema: Option<&Schema>, items: &'a [Value]) -> Vec<(PathElement, &'a Value)> {
    let element = |(index, item)| (path_element(schema, item, index).unwrap_or(PathElement::Index(index)), item);
    items.iter().enumerate().map(element).collect()
}

/// Items by path element; duplicates share one entry.
fn group_by_element<'i, 'a>(items: &'i [(PathElement, &'a Value)]) -> BTreeMap<&'i PathElement, Vec<&'a Value>> {
    let mut groups: BTreeMap<&PathElement, Vec<&Value>> = BTreeMap::new();
    for (element, item) in items {
        groups.entry(element).or_default().push(item);
    }
    groups
}

/// The fields that a manager owns after applying `value`.
pub fn field_set(schema: Option<&Schema>, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    match shape(schema, value) {
        Shape::Leaf => set.is_member = !matches!(value, Value::Null) || schema.is_some(),
        Shape::Map(fields) => {
            for (key, value) in fields {
                let mut child = field_set(field_schema(schema, key), value);
                let is_declared = schema.is_some_and(|schema| schema.field(key).is_some());
                let is_empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                child.is_member |= is_empty || !is_declared;
                if child.is_member || !child.children.is_empty() {
                    set.children.insert(PathElement::Field(key.as_str().into()), child);
                }
            }
        }
        Shape::List(items) => {
            for (element, items) in group_by_element(&index_items(schema, items)) {
                // For duplicates, only the element itself is owned, because fields cannot be attributed to one of
                // them.
                let mut child = match items.as_slice() {
                    [item] => field_set(item_schema(schema), item),
                    _ => FieldSet::default(),
                };
                child.is_member = true;
                set.children.insert(element.clone(), child);
            }
        }
    }
    set
}

/// Differences between two values.
#[derive(Debug, Default)]
pub struct Comparison {
    pub added: FieldSet,
    pub modified: FieldSet,
    pub removed: FieldSet,
}

impl Comparison {
    fn insert(&mut self, element: PathElement, child: Comparison) {
        for (set, child) in
            [(&mut self.added, child.added), (&mut self.modified, child.modified), (&mut self.removed, child.removed)]
        {
            if child.is_member || !child.children.is_empty() {
                set.children.insert(element.clone(), child);
            }
        }
    }
}

fn is_empty_value(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(fields)) => fields.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

/// Compares two values.
pub fn compare(schema: Option<&Schema>, old: Option<&Value>, new: Option<&Value>) -> Comparison {
    compare_except(schema, old, new, &[])
}

/// Like [`compare`], but ignores the field at the path `except`.
pub fn compare_except(
    schema: Option<&Schema>,
    old: Option<&Value>,
    new: Option<&Value>,
    except: &[&str],
) -> Comparison {
    let mut out = Comparison::default();
    if old.is_none() && new.is_none() {
        return out;
    }
    // Null equals an empty map or list if the other side is one.
    let kind_of = |value: Option<&'_ Value>| value.filter(|value| !value.is_null()).map(|value| kind(schema, value));
    let shapes = (kind_of(old), kind_of(new));
    let both_empty = is_empty_value(old) && is_empty_value(new);
    match shapes {
        (Some(Kind::Map) | None, Some(Kind::Map) | None) if !both_empty => {
            let none = Map::new();
            let (left, right) =
                (old.and_then(Value::as_object).unwrap_or(&none), new.and_then(Value::as_object).unwrap_or(&none));
            for key in left.keys().chain(right.keys().filter(|key| !left.contains_key(*key))) {
                let except_below = match except {
                    [name] if *name == key.as_str() => continue,
                    [name, rest @ ..] if *name == key.as_str() => rest,
                    _ => &[],
                };
                let child = compare_except(field_schema(schema, key), left.get(key), right.get(key), except_below);
                out.insert(PathElement::Field(key.as_str().into()), child);
            }
        }
        (Some(Kind::List) | None, Some(Kind::List) | None) if !both_empty => {
            fn items(value: Option<&Value>) -> &[Value] {
                value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
            }
            let (left, right) = (index_items(schema, items(old)), index_items(schema, items(new)));
            let (left, right) = (group_by_element(&left), group_by_element(&right));
            for element in left.keys().chain(right.keys().filter(|element| !left.contains_key(*element))) {
                let items_of = |groups: &BTreeMap<_, Vec<_>>| groups.get(element).cloned().unwrap_or_default();
                out.insert((*element).clone(), compare_items(schema, &items_of(&left), &items_of(&right)));
            }
        }
        _ if old.is_some() && new.is_some() => {
            out.modified.is_member = old != new;
            // If the structures differ, parts of the old one are removed, and those of the new one are added.
            if shapes.0 != shapes.1 {
                out.removed.children = compare_except(schema, old, None, except).removed.children;
                out.added.children = compare_except(schema, None, new, except).added.children;
            }
        }
        _ => {}
    }
    out.added.is_member = old.is_none();
    out.removed.is_member = new.is_none();
    out
}

/// Compares the items of one path element. Duplicates are compared as a whole.
fn compare_items(schema: Option<&Schema>, old: &[&Value], new: &[&Value]) -> Comparison {
    let node = item_schema(schema);
    let mut out = Comparison::default();
    match (old, new) {
        ([] | [_], [] | [_]) => out = compare(node, old.first().copied(), new.first().copied()),
        ([_, _, ..], [_, _, ..]) => out.modified.is_member = old != new,
        ([_, _, ..], _) => {
            out = compare(node, None, new.first().copied());
            out.removed.is_member = true;
        }
        (_, _) => {
            out = compare(node, old.first().copied(), None);
            out.added.is_member = true;
        }
    }
    out
}

/// Merges `config` into `live`.
pub fn merge(schema: Option<&Schema>, live: &Value, config: &Value) -> Value {
    match (shape(schema, live), shape(schema, config)) {
        (Shape::Map(left), Shape::Map(right)) => {
            let mut out = left.clone();
            for (key, value) in right {
                let merged = match left.get(key) {
                    Some(live) => merge(field_schema(schema, key), live, value),
                    None => value.clone(),
                };
                out.insert(key.clone(), merged);
            }
            Value::Object(out)
        }
        (Shape::List(left), Shape::List(right)) => Value::Array(merge_lists(schema, left, right)),
        // A null map or list is empty and removes nothing.
        (Shape::Map(left), _) if config.is_null() && !left.is_empty() => live.clone(),
        (Shape::List(left), _) if config.is_null() && !left.is_empty() => live.clone(),
        _ => config.clone(),
    }
}

/// Merges lists: items of `config` are in its order; other live items keep their position relative to their
/// neighbours.
fn merge_lists(schema: Option<&Schema>, live: &[Value], config: &[Value]) -> Vec<Value> {
    let (left, right) = (index_items(schema, live), index_items(schema, config));
    let (live_groups, config_groups) = (group_by_element(&left), group_by_element(&right));
    let is_live = |element: &PathElement| live_groups.contains_key(element);
    let is_configured = |element: &PathElement| config_groups.contains_key(element);
    let merge_item = |element: &PathElement, item: &Value| match live_groups.get(element).map(Vec::as_slice) {
        Some([live]) => merge(item_schema(schema), live, item),
        // Duplicate live items are replaced.
        _ => item.clone(),
    };
    // Common items in the order of the configuration.
    let mut shared = right.iter().map(|(e, _)| e).filter(|e| is_live(e));
    let mut next_shared = shared.next();
    let mut merged_elements: BTreeSet<&PathElement> = BTreeSet::new();
    let mut out = Vec::with_capacity(left.len() + right.len());
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if let (Some((a, _)), Some((b, item))) = (left.get(l), right.get(r)) {
            if a == b {
                out.push(merge_item(b, item));
                merged_elements.insert(b);
                (l, r) = (l + 1, r + 1);
                next_shared = shared.next();
                continue;
            }
            if is_configured(a) && next_shared.is_some_and(|next| next != a) {
                l += 1;
                continue;
            }
        }
        if let Some((a, item)) = left.get(l) {
            if !is_configured(a) {
                out.push((*item).clone());
                l += 1;
                continue;
            }
            if merged_elements.contains(a) {
                l += 1;
            }
        }
        if let Some((b, item)) = right.get(r) {
            out.push(merge_item(b, item));
            merged_elements.insert(b);
            r += 1;
            if next_shared == Some(b) {
                next_shared = shared.next();
            }
        }
    }
    out
}

/// Removes the members of `set` from `value`. As in structured-merge-diff, a map that loses all members becomes null, a
/// list becomes empty, and an atomic map or list becomes null if `set` contains a path inside it.
pub fn remove(schema: Option<&Schema>, value: &Value, set: &FieldSet) -> Value {
    if set.children.is_empty() {
        return value.clone();
    }
    match (shape(schema, value), value) {
        (Shape::Map(fields), _) => {
            let kept = fields.iter().filter_map(|(key, value)| {
                let left = remainder(field_schema(schema, key), value, set, &PathElement::Field(key.as_str().into()))?;
                Some((key.clone(), left))
            });
            let kept: Map<String, Value> = kept.collect();
            if kept.is_empty() { Value::Null } else { Value::Object(kept) }
        }
        (Shape::List(items), _) => {
            let items = index_items(schema, items).into_iter();
            let kept = items.filter_map(|(element, item)| remainder(item_schema(schema), item, set, &element));
            Value::Array(kept.collect())
        }
        (Shape::Leaf, Value::Object(_) | Value::Array(_)) => Value::Null,
        (Shape::Leaf, value) => value.clone(),
    }
}

/// Removes the members of `set` below `element` from `part`, the value at `element`; `None` if `set` contains
/// `element` itself.
fn remainder(schema: Option<&Schema>, part: &Value, set: &FieldSet, element: &PathElement) -> Option<Value> {
    match set.children.get(element) {
        Some(child) if child.is_member => None,
        Some(child) => Some(remove(schema, part, child)),
        None => Some(part.clone()),
    }
}
