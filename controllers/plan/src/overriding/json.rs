//! Patches JSON text without reformatting the rest: values that the patch does not traverse keep their bytes, except
//! that white space between tokens is removed and characters special to HTML are escaped, as by Go's `encoding/json`.
//!
//! Fields keep their order; new ones are appended.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::patch::{self, NodeContents, Operation, PatchError, PatchNode};

/// A node of the document, parsed lazily when a patch traverses it.
pub enum Node {
    Text(String),
    Object(Fields),
    List(Vec<Node>),
}

/// Keys of an object in source order, including duplicates, and the last value of each.
#[derive(Default)]
pub struct Fields {
    keys: Vec<String>,
    values: HashMap<String, Node>,
}

/// Applies a patch. Empty text stays empty.
pub fn edit<'a>(text: &str, operations: impl IntoIterator<Item = Operation<'a>>) -> Result<String, PatchError> {
    if text.is_empty() {
        return Ok(String::new());
    }
    let raw: &RawValue = serde_json::from_str(text).map_err(|_| PatchError::NotJson)?;
    if raw.get().starts_with('[') && !text.starts_with('[') {
        return Err(PatchError::NotADocument("array"));
    }
    let mut document = Node::Text(raw.get().to_owned());
    patch::apply(&mut document, operations)?;
    let mut output = String::with_capacity(text.len());
    document.write(&mut output);
    Ok(output)
}

impl PatchNode for Node {
    type Fields = Fields;

    fn from_value(value: &Value) -> Self {
        Node::Text(value.to_string())
    }

    fn contents(&mut self) -> NodeContents<'_, Self> {
        if let Node::Text(text) = self
            && let Some(parsed) = parse_node(text)
        {
            *self = parsed;
        }
        match self {
            Node::Object(fields) => NodeContents::Object(fields),
            Node::List(list) => NodeContents::List(list),
            Node::Text(text) => match text.as_bytes().first() {
                Some(b'n') => NodeContents::Null,
                Some(b'"') => NodeContents::Scalar("string"),
                Some(b't' | b'f') => NodeContents::Scalar("bool"),
                _ => NodeContents::Scalar("number"),
            },
        }
    }
}

/// Splits an object or list into its elements, each as text.
fn parse_node(text: &str) -> Option<Node> {
    match text.as_bytes().first()? {
        b'{' => serde_json::from_str(text).ok().map(Node::Object),
        b'[' => {
            let items: Vec<Box<RawValue>> = serde_json::from_str(text).ok()?;
            Some(Node::List(items.into_iter().map(Node::from).collect()))
        }
        _ => None,
    }
}

impl From<Box<RawValue>> for Node {
    fn from(raw: Box<RawValue>) -> Self {
        Node::Text(Box::<str>::from(raw).into_string())
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;

        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Fields;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Fields::default();
                while let Some((key, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    fields.keys.push(key.clone());
                    fields.values.insert(key, value.into());
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_map(FieldsVisitor)
    }
}

impl patch::ObjectFields<Node> for Fields {
    fn find_child(&mut self, key: &str) -> Option<&mut Node> {
        self.values.get_mut(key)
    }

    fn set_field(&mut self, key: &str, value: Node) {
        if !self.keys.iter().any(|existing| existing == key) {
            self.keys.push(key.to_owned());
        }
        self.values.insert(key.to_owned(), value);
    }

    fn remove_field(&mut self, key: &str) -> bool {
        if self.values.remove(key).is_none() {
            return false;
        }
        if let Some(index) = self.keys.iter().position(|existing| existing == key) {
            self.keys.remove(index);
        }
        true
    }
}

impl Node {
    fn write(&self, out: &mut String) {
        match self {
            Node::Text(text) => write_compact(text, out),
            Node::List(list) => {
                out.push('[');
                for (index, item) in list.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Node::Object(fields) => {
                out.push('{');
                for (index, key) in fields.keys.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write_quoted(key, out);
                    out.push(':');
                    // Removing a duplicated key once leaves a key without value.
                    match fields.values.get(key) {
                        Some(value) => value.write(out),
                        None => out.push_str("null"),
                    }
                }
                out.push('}');
            }
        }
    }
}

/// JSON text in the form in which Go writes it as a standalone value, for example in an annotation.
pub fn escape_html(text: &str) -> String {
    let mut output = String::with_capacity(text.len());
    write_compact(text, &mut output);
    output
}

/// Removes white space between tokens. Escapes in strings are kept.
fn write_compact(text: &str, out: &mut String) {
    let (mut in_string, mut is_escaped) = (false, false);
    for character in text.chars() {
        match character {
            ' ' | '\t' | '\n' | '\r' if !in_string => continue,
            '"' if !is_escaped => in_string = !in_string,
            _ => {}
        }
        is_escaped = in_string && character == '\\' && !is_escaped;
        write_escaped(character, out);
    }
}

/// Writes one character, escaped if it is special in HTML or JavaScript.
fn write_escaped(character: char, out: &mut String) {
    match character {
        '<' => out.push_str(r"\u003c"),
        '>' => out.push_str(r"\u003e"),
        '&' => out.push_str(r"\u0026"),
        '\u{2028}' => out.push_str(r"\u2028"),
        '\u{2029}' => out.push_str(r"\u2029"),
        other => out.push(other),
    }
}

fn write_quoted(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str(r#"\""#),
            '\\' => out.push_str(r"\\"),
            '\n' => out.push_str(r"\n"),
            '\r' => out.push_str(r"\r"),
            '\t' => out.push_str(r"\t"),
            control if control < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(control))),
            other => write_escaped(other, out),
        }
    }
    out.push('"');
}
