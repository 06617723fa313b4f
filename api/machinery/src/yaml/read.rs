//! Parses YAML into JSON. The last of duplicate keys wins, a merge key (`<<`) overwrites preceding keys, and only the
//! first document is read.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use granit_parser::{Event, Options, Parser, ScalarStyle};
use serde_json::{Map, Value};

use super::scalar::{ScalarValue, format_float, json_number, resolve_scalar};

/// Error of parsing YAML or of converting it to JSON, in the wording of Go's yaml and json packages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("yaml: line {line}: {problem}")]
    Syntax { line: usize, problem: String },
    #[error("yaml: cannot decode {actual} `{text}` as a {tag}")]
    Tag { actual: &'static str, text: String, tag: String },
    #[error("yaml: !!binary value contains invalid base64 data")]
    Binary,
    #[error("yaml: map merge requires map or sequence of maps as the value")]
    Merge,
    #[error("yaml: anchor value contains itself")]
    SelfReference,
    #[error("yaml: document contains excessive aliasing")]
    Aliasing,
    #[error("yaml: document is nested too deeply")]
    Depth,
    #[error("yaml: invalid map key: a map or a list")]
    CollectionAsKey,
    #[error("unsupported map key of type: {0}")]
    UnsupportedKey(&'static str),
    /// A float that JSON cannot represent.
    #[error("json: unsupported value: {0}")]
    NotFinite(&'static str),
}

/// A parsed document, and the duplicate keys in its text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Document {
    /// The last of duplicate keys wins.
    pub value: Value,
    /// Messages about duplicate keys in document order, in go-yaml's wording: `line 2: key "a" already set in map`.
    pub duplicate_keys: Vec<String>,
}

/// The value of the first document of the text. Null if there is none. Duplicate keys are not reported.
pub fn parse(text: &str) -> Result<Value, ReadError> {
    parse_document(text).map(|document| document.value)
}

/// The first document of the text, with its duplicate keys. The value is null if there is none.
pub fn parse_document(text: &str) -> Result<Document, ReadError> {
    let tree = Tree::parse(text)?;
    let Some(root) = tree.root else { return Ok(Document::default()) };
    let mut decoder = Decoder {
        tree: &tree,
        nodes_decoded: 0,
        nodes_decoded_by_alias: 0,
        aliases: BTreeSet::new(),
        depth: 0,
        duplicate_keys: Vec::new(),
    };
    let value = decoder.decode_value(root)?;
    Ok(Document { value, duplicate_keys: decoder.duplicate_keys })
}

/// Index into [`Tree::nodes`].
type NodeId = usize;

enum Node {
    Scalar {
        text: String,
        is_quoted: bool,
        tag: Option<String>,
    },
    List(Vec<NodeId>),
    /// Alternating keys and values.
    Map(Vec<NodeId>),
    Alias(NodeId),
}

#[derive(Default)]
struct Tree {
    nodes: Vec<Node>,
    /// Line of each node, from 1.
    lines: Vec<usize>,
    /// Line of the current event, from 1.
    line: usize,
    root: Option<NodeId>,
    /// Unfinished lists and maps, outermost first.
    parents: Vec<NodeId>,
    /// Anchored nodes by the parser's anchor ID.
    anchors: BTreeMap<usize, NodeId>,
}

impl Tree {
    fn parse(text: &str) -> Result<Self, ReadError> {
        let mut options = Options::default();
        options.set_emit_comments(false);
        let mut tree = Tree::default();
        for event in Parser::new_from_str_with_options(text, options) {
            let (event, span) =
                event.map_err(|error| ReadError::Syntax { line: error.marker().line(), problem: error.info() })?;
            tree.line = span.start.line();
            match event {
                Event::DocumentEnd => break,
                Event::Scalar(text, style, anchor, tag) => {
                    let tag = tag.map(|tag| format!("{}{}", tag.handle(), tag.suffix()));
                    let is_quoted = style != ScalarStyle::Plain;
                    tree.add(Node::Scalar { text: text.into_owned(), is_quoted, tag }, anchor);
                }
                Event::SequenceStart(_, anchor, _) => tree.begin(Node::List(Vec::new()), anchor),
                Event::MappingStart(_, anchor, _) => tree.begin(Node::Map(Vec::new()), anchor),
                Event::SequenceEnd | Event::MappingEnd => {
                    tree.parents.pop();
                }
                Event::Alias(anchor) => {
                    if let Some(target) = tree.anchors.get(&anchor).copied() {
                        tree.add(Node::Alias(target), 0);
                    }
                }
                _ => {}
            }
        }
        Ok(tree)
    }

    fn add(&mut self, node: Node, anchor: usize) -> NodeId {
        let id = self.nodes.len();
        self.nodes.push(node);
        self.lines.push(self.line);
        if anchor > 0 {
            self.anchors.insert(anchor, id);
        }
        match self.parents.last().and_then(|parent| self.nodes.get_mut(*parent)) {
            Some(Node::List(children) | Node::Map(children)) => children.push(id),
            _ => self.root = Some(id),
        }
        id
    }

    fn begin(&mut self, node: Node, anchor: usize) {
        let id = self.add(node, anchor);
        self.parents.push(id);
    }
}

struct Decoder<'t> {
    tree: &'t Tree,
    nodes_decoded: u32,
    /// Number of the decoded nodes that are part of the target of an alias.
    nodes_decoded_by_alias: u32,
    /// Targets of the aliases being decoded.
    aliases: BTreeSet<NodeId>,
    depth: u32,
    duplicate_keys: Vec<String>,
}

/// Maximum nesting depth. It is greater than the parser's own limit, so only nested aliases exceed it.
const MAX_DEPTH: u32 = 600;

impl<'t> Decoder<'t> {
    fn node(&self, id: NodeId) -> &'t Node {
        &self.tree.nodes[id]
    }

    fn decode_value(&mut self, id: NodeId) -> Result<Value, ReadError> {
        self.count_node()?;
        match self.node(id) {
            Node::Scalar { text, is_quoted, tag } => {
                let (resolved, text) = resolve_scalar_node(text, *is_quoted, tag.as_deref())?;
                to_json(resolved, &text)
            }
            Node::List(children) => self
                .decode_nested(|this| children.iter().map(|child| this.decode_value(*child)).collect())
                .map(Value::Array),
            Node::Map(children) => {
                let mut fields = Map::new();
                self.decode_nested(|this| this.decode_fields(children, &mut fields))?;
                Ok(Value::Object(fields))
            }
            Node::Alias(target) => self.decode_alias(*target, |this| this.decode_value(*target)),
        }
    }

    fn decode_fields(&mut self, children: &[NodeId], fields: &mut Map<String, Value>) -> Result<(), ReadError> {
        for pair in children.chunks_exact(2) {
            if self.is_merge(pair[0]) {
                self.merge(pair[1], fields)?;
            } else {
                let key = self.decode_key(pair[0])?;
                let value = self.decode_value(pair[1])?;
                if fields.contains_key(&key) {
                    self.duplicate_keys
                        .push(format!("line {}: key {key:?} already set in map", self.tree.lines[pair[1]]));
                }
                fields.insert(key, value);
            }
        }
        Ok(())
    }

    fn is_merge(&self, key: NodeId) -> bool {
        match self.node(key) {
            Node::Scalar { text, is_quoted, tag } => {
                text == "<<" && tag.as_deref().map_or(!is_quoted, |tag| tag == format!("{YAML_ORG}merge"))
            }
            _ => false,
        }
    }

    /// Adds the fields of a merge key's value, a map or a list of maps. In a list, the first map wins.
    fn merge(&mut self, from: NodeId, into: &mut Map<String, Value>) -> Result<(), ReadError> {
        self.count_node()?;
        match self.node(from) {
            Node::Map(children) => self.decode_nested(|this| this.decode_fields(children, into)),
            Node::Alias(target) if matches!(self.node(*target), Node::Map(_)) => {
                self.decode_alias(*target, |this| this.merge(*target, into))
            }
            Node::List(maps) => maps.iter().rev().try_for_each(|map| match self.node(*map) {
                Node::List(_) => Err(ReadError::Merge),
                _ => self.merge(*map, into),
            }),
            _ => Err(ReadError::Merge),
        }
    }

    fn decode_key(&mut self, id: NodeId) -> Result<String, ReadError> {
        let (text, is_quoted, tag) = match self.node(id) {
            Node::Scalar { text, is_quoted, tag } => (text, *is_quoted, tag.as_deref()),
            Node::Alias(target) => return self.decode_alias(*target, |this| this.decode_key(*target)),
            Node::List(_) | Node::Map(_) => return Err(ReadError::CollectionAsKey),
        };
        let (resolved, text) = resolve_scalar_node(text, is_quoted, tag)?;
        match resolved {
            ScalarValue::Null => Err(ReadError::UnsupportedKey("null")),
            ScalarValue::Unsigned(_) => Err(ReadError::UnsupportedKey("uint64")),
            ScalarValue::Bool(value) => Ok(value.to_string()),
            ScalarValue::Integer(value) => Ok(value.to_string()),
            ScalarValue::Float(value) => Ok(float_key(value)),
            ScalarValue::Time | ScalarValue::Text => Ok(text.into_owned()),
        }
    }

    fn decode_alias<T>(
        &mut self,
        target: NodeId,
        decode: impl FnOnce(&mut Self) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        if !self.aliases.insert(target) {
            return Err(ReadError::SelfReference);
        }
        let decoded = self.decode_nested(decode);
        self.aliases.remove(&target);
        decoded
    }

    fn decode_nested<T>(&mut self, decode: impl FnOnce(&mut Self) -> Result<T, ReadError>) -> Result<T, ReadError> {
        self.depth += 1;
        let decoded = if self.depth > MAX_DEPTH { Err(ReadError::Depth) } else { decode(self) };
        self.depth -= 1;
        decoded
    }

    /// Counts a node. Rejects documents that consist mainly of aliases, which could expand to gigabytes.
    fn count_node(&mut self) -> Result<(), ReadError> {
        self.nodes_decoded += 1;
        self.nodes_decoded_by_alias += u32::from(!self.aliases.is_empty());
        let share = f64::from(self.nodes_decoded_by_alias) / f64::from(self.nodes_decoded);
        let is_excessive =
            self.nodes_decoded_by_alias > 100 && self.nodes_decoded > 1000 && share > allowed_share(self.nodes_decoded);
        if is_excessive { Err(ReadError::Aliasing) } else { Ok(()) }
    }
}

/// Allowed share of aliased nodes: 99 % in small documents, 10 % in large ones, as in yaml.v2.
fn allowed_share(decoded: u32) -> f64 {
    const SMALL: f64 = 400_000.0;
    const LARGE: f64 = 4_000_000.0;
    let fraction = (f64::from(decoded) - SMALL) / (LARGE - SMALL);
    0.99 - 0.89 * fraction.clamp(0.0, 1.0)
}

const YAML_ORG: &str = "tag:yaml.org,2002:";

/// Resolves a scalar by its tag. Without one, a quoted scalar is a string, and a plain one is resolved by its text.
fn resolve_scalar_node<'t>(
    text: &'t str,
    is_quoted: bool,
    tag: Option<&str>,
) -> Result<(ScalarValue, Cow<'t, str>), ReadError> {
    let as_text = (ScalarValue::Text, Cow::Borrowed(text));
    let kind = match tag {
        None if is_quoted => return Ok(as_text),
        None => return Ok((resolve_scalar(text), Cow::Borrowed(text))),
        Some(tag) => match tag.strip_prefix(YAML_ORG) {
            Some(kind) => kind,
            // Other tags, such as `!`, make any scalar a string.
            None => return Ok(as_text),
        },
    };
    let plain = resolve_scalar(text);
    let (actual, matches_tag) = match plain {
        ScalarValue::Null => ("!!null", kind == "null"),
        ScalarValue::Bool(_) => ("!!bool", kind == "bool"),
        ScalarValue::Integer(_) => ("!!int", kind == "int" || kind == "float"),
        ScalarValue::Unsigned(_) => ("!!int", kind == "int"),
        ScalarValue::Float(_) => ("!!float", kind == "float"),
        ScalarValue::Time => ("!!timestamp", kind == "timestamp"),
        ScalarValue::Text => ("!!str", false),
    };
    match kind {
        "bool" | "int" | "float" | "null" | "timestamp" if !matches_tag => {
            Err(ReadError::Tag { actual, text: text.to_owned(), tag: format!("!!{kind}") })
        }
        "bool" | "int" | "float" | "null" | "timestamp" => Ok((plain, Cow::Borrowed(text))),
        "binary" => Ok((ScalarValue::Text, Cow::Owned(decode_binary(text)?))),
        _ => Ok(as_text),
    }
}

fn decode_binary(text: &str) -> Result<String, ReadError> {
    let lines: String = text.chars().filter(|character| !matches!(character, '\n' | '\r')).collect();
    let bytes = base64::engine::general_purpose::STANDARD.decode(lines).map_err(|_| ReadError::Binary)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn to_json(resolved: ScalarValue, text: &str) -> Result<Value, ReadError> {
    Ok(match resolved {
        ScalarValue::Null => Value::Null,
        ScalarValue::Bool(value) => Value::Bool(value),
        ScalarValue::Integer(value) => value.into(),
        ScalarValue::Unsigned(value) => value.into(),
        ScalarValue::Float(value) if value.is_nan() => return Err(ReadError::NotFinite("NaN")),
        ScalarValue::Float(value) if value.is_infinite() => {
            return Err(ReadError::NotFinite(if value > 0.0 { "+Inf" } else { "-Inf" }));
        }
        ScalarValue::Float(value) => json_number(value),
        ScalarValue::Time | ScalarValue::Text => Value::String(text.to_owned()),
    })
}

/// A float as a map key: formatted in single precision, as by sigs.k8s.io/yaml.
fn float_key(value: f64) -> String {
    let single = value as f32;
    match value {
        _ if value.is_nan() => ".nan".to_owned(),
        _ if single.is_infinite() => if value > 0.0 { ".inf" } else { "-.inf" }.to_owned(),
        _ => format_float(single.to_string().parse().unwrap_or(value)),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// Values as sigs.k8s.io/yaml converts them to JSON.
    #[rstest]
    #[case::octal("a: 0644", json!({"a": 420}))]
    #[case::signed_octal("a: -0755", json!({"a": -493}))]
    #[case::tagged_octal("a: !!int 0755", json!({"a": 493}))]
    #[case::invalid_octal("a: 08", json!({"a": 8}))]
    #[case::separators("a: [1__0, 0x_1F, 1_0.5]", json!({"a": [10, 31, 10.5]}))]
    #[case::whole_floats("a: [1.0, 1e3]", json!({"a": [1, 1000]}))]
    #[case::out_of_range("a: 1e400", json!({"a": "1e400"}))]
    #[case::letter_case("a: [tRue, nULL, True, NULL]", json!({"a": ["tRue", "nULL", true, null]}))]
    #[case::boolean_key("y: 1", json!({"true": 1}))]
    #[case::empty("", json!(null))]
    fn scalars_are_resolved_as_by_go(#[case] text: &str, #[case] expected: Value) {
        assert_eq!(parse(text), Ok(expected));
    }

    #[rstest]
    #[case::none("a: 1\nb: 2", json!({"a": 1, "b": 2}), &[])]
    #[case::nested("a:\n  b: 1\n  b: 2\nc: 3\nc: 4", json!({"a": {"b": 2}, "c": 4}),
        &["line 3: key \"b\" already set in map", "line 5: key \"c\" already set in map"])]
    fn duplicate_keys_are_reported(#[case] text: &str, #[case] value: Value, #[case] findings: &[&str]) {
        let document = parse_document(text).unwrap();
        assert_eq!(document.value, value);
        assert_eq!(document.duplicate_keys, findings);
    }
}
