//! Sets of field paths, and their `fieldsV1` encoding.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value, json};

use crate::Schema;

/// An element of a path.
#[derive(Debug, Clone, PartialEq)]
pub enum PathElement {
    /// A field of a struct, or a key of a map.
    Field(Box<str>),
    /// An element of a list of maps, by its key fields ordered by name.
    Key(Vec<(Box<str>, Value)>),
    /// An element of a set.
    Value(Value),
    Index(usize),
}

impl Eq for PathElement {}

impl PathElement {
    fn kind_rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (tag, rest) = text.split_once(':')?;
        Some(match tag {
            "f" => Self::Field(rest.into()),
            "k" => {
                let keys: BTreeMap<Box<str>, Value> = serde_json::from_str(rest).ok()?;
                Self::Key(keys.into_iter().collect())
            }
            "v" => Self::Value(serde_json::from_str(rest).ok()?),
            "i" => Self::Index(rest.parse().ok()?),
            _ => return None,
        })
    }

    fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(keys) => {
                let object: Map<String, Value> = keys.iter().map(|(k, v)| (k.to_string(), v.clone())).collect();
                format!("k:{}", to_escaped_json(&Value::Object(object)))
            }
            Self::Value(value) => format!("v:{}", to_escaped_json(value)),
            Self::Index(index) => format!("i:{index}"),
        }
    }
}

/// JSON with the escapes of Go's encoder. These characters occur only inside of strings.
fn to_escaped_json(value: &Value) -> String {
    let mut text = String::new();
    for c in value.to_string().chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
    }
    text
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => a.cmp(b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            (Self::Value(a), Self::Value(b)) => compare_values(a, b),
            (Self::Key(a), Self::Key(b)) => {
                for ((name_a, a), (name_b, b)) in a.iter().zip(b) {
                    let ordering = name_a.cmp(name_b).then_with(|| compare_values(a, b));
                    if ordering != Ordering::Equal {
                        return ordering;
                    }
                }
                a.len().cmp(&b.len())
            }
            _ => self.kind_rank().cmp(&other.kind_rank()),
        }
    }
}

/// Total order of JSON values: numbers before strings before other values.
fn compare_values(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            _ => x.as_f64().partial_cmp(&y.as_f64()).unwrap_or(Ordering::Equal),
        },
        (Value::Number(_), _) => Ordering::Less,
        (_, Value::Number(_)) => Ordering::Greater,
        _ => a.to_string().cmp(&b.to_string()),
    }
}

/// Formats as `[name="c"]`, `.spec`, `[="x"]`, `[0]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(keys) => {
                let text: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
                write!(f, "[{}]", text.join(","))
            }
            Self::Value(value) => write!(f, "[={value}]"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A set of paths as a tree; nodes with `is_member` are in the set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    pub is_member: bool,
    pub children: BTreeMap<PathElement, FieldSet>,
}

impl FieldSet {
    /// Decodes `fieldsV1`; `None` if it is malformed.
    pub fn parse(fields: &Value) -> Option<FieldSet> {
        let mut set = FieldSet::default();
        for (key, value) in fields.as_object()? {
            if key == "." {
                set.is_member = true;
                continue;
            }
            let mut child = FieldSet::parse(value)?;
            if child.children.is_empty() {
                child.is_member = true;
            }
            set.children.insert(PathElement::parse(key)?, child);
        }
        Some(set)
    }

    /// Encodes as `fieldsV1`.
    pub fn encode(&self) -> Value {
        let mut fields = Map::new();
        for (element, child) in &self.children {
            let mut value = child.encode();
            if child.is_member && !child.children.is_empty() {
                value["."] = json!({});
            }
            fields.insert(element.encode(), value);
        }
        Value::Object(fields)
    }

    /// True if the set is empty or contains only the root.
    pub fn is_empty(&self) -> bool {
        self.children.is_empty()
    }

    pub fn child_mut(&mut self, element: PathElement) -> &mut FieldSet {
        self.children.entry(element).or_default()
    }

    /// Adds a path of field names.
    pub fn insert_fields(&mut self, path: &[&str]) {
        let node = path.iter().fold(self, |node, name| node.child_mut(PathElement::Field((*name).into())));
        node.is_member = true;
    }

    /// True if a path of field names is in the set.
    pub fn contains_fields(&self, path: &[&str]) -> bool {
        let found = path.iter().try_fold(self, |set, name| set.children.get(&PathElement::Field((*name).into())));
        found.is_some_and(|set| set.is_member)
    }

    pub fn add_all(&mut self, other: &FieldSet) {
        self.is_member |= other.is_member;
        for (element, child) in &other.children {
            self.child_mut(element.clone()).add_all(child);
        }
    }

    /// Removes the members of `other`, but not their descendants.
    pub fn subtract(&mut self, other: &FieldSet) {
        self.is_member &= !other.is_member;
        self.children.retain(|element, child| {
            if let Some(other) = other.children.get(element) {
                child.subtract(other);
            }
            child.is_member || !child.children.is_empty()
        });
    }

    /// Removes the members of `other` and their descendants.
    pub fn subtract_recursively(&mut self, other: &FieldSet) {
        self.children.retain(|element, child| match other.children.get(element) {
            Some(other) if other.is_member => false,
            Some(other) => {
                child.subtract_recursively(other);
                child.is_member || !child.children.is_empty()
            }
            None => true,
        });
    }

    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        let mut out = FieldSet { is_member: self.is_member && other.is_member, ..FieldSet::default() };
        for (element, child) in &self.children {
            if let Some(other) = other.children.get(element) {
                let both = child.intersection(other);
                if both.is_member || !both.children.is_empty() {
                    out.children.insert(element.clone(), both);
                }
            }
        }
        out
    }

    /// The set extended by the declared fields on the paths to its members.
    pub fn with_declared_parents(&self, schema: Option<&Schema>) -> FieldSet {
        let mut out = FieldSet { is_member: self.is_member, ..FieldSet::default() };
        for (element, child) in &self.children {
            let node = schema.and_then(|schema| match element {
                PathElement::Field(name) => schema.child(name),
                _ => schema.items.as_deref(),
            });
            let mut child = child.with_declared_parents(node);
            if let PathElement::Field(name) = element {
                child.is_member |= schema.is_some_and(|schema| schema.field(name).is_some());
            }
            out.children.insert(element.clone(), child);
        }
        out
    }

    /// The paths of all members: `.spec.containers[name="c"].image`.
    pub fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect_paths(&mut String::new(), &mut out);
        out
    }

    fn collect_paths(&self, path: &mut String, out: &mut Vec<String>) {
        let length = path.len();
        // As in structured-merge-diff, members of a level precede those below it.
        for (element, child) in &self.children {
            if child.is_member {
                out.push(format!("{path}{element}"));
            }
        }
        for (element, child) in &self.children {
            path.push_str(&element.to_string());
            child.collect_paths(path, out);
            path.truncate(length);
        }
    }
}
