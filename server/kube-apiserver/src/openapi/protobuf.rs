//! The OpenAPI v2 document in gnostic's protobuf form, which kubectl requires when it falls back from v3.
//!
//! Contains the parts that clients read: complete definitions, and the kinds and parameters of PATCH operations. Field
//! numbers are those of gnostic's `OpenAPIv2.proto`.

use serde_json::{Map, Value};

/// Encoder of a protobuf message.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
            value >>= 7;
        }
        self.0.push(u8::try_from(value).unwrap_or(0));
    }

    fn bytes(&mut self, number: u64, bytes: &[u8]) {
        self.varint(number << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, number: u64, text: &str) {
        if !text.is_empty() {
            self.bytes(number, text.as_bytes());
        }
    }

    fn message(&mut self, number: u64, inner: Message) {
        self.bytes(number, &inner.0);
    }

    fn flag(&mut self, number: u64, flag: bool) {
        if flag {
            self.varint(number << 3);
            self.varint(1);
        }
    }
}

fn text<'a>(node: &'a Map<String, Value>, key: &str) -> &'a str {
    node.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Encodes the document of `openapi::v2`.
pub(super) fn encode_document(document: &Value) -> Vec<u8> {
    let mut out = Message::default();
    let none = Map::new();
    let object = |key: &str| document.get(key).and_then(Value::as_object).unwrap_or(&none);
    out.text(1, document.get("swagger").and_then(Value::as_str).unwrap_or_default());
    let mut info = Message::default();
    info.text(1, text(object("info"), "title"));
    info.text(2, text(object("info"), "version"));
    out.message(2, info);
    let mut paths = Message::default();
    for (name, item) in object("paths") {
        let mut path = Message::default();
        let mut value = Message::default();
        if let Some(operation) = item.get("patch").and_then(Value::as_object) {
            value.message(8, encode_operation(operation));
        }
        path.text(1, name);
        path.message(2, value);
        paths.message(2, path);
    }
    out.message(8, paths);
    out.message(9, encode_named_schemas(object("definitions")));
    out.0
}

fn encode_operation(node: &Map<String, Value>) -> Message {
    let mut out = Message::default();
    out.text(5, text(node, "operationId"));
    for kind in node.get("consumes").and_then(Value::as_array).into_iter().flatten() {
        out.text(7, kind.as_str().unwrap_or_default());
    }
    for parameter in node.get("parameters").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
    {
        if text(parameter, "in") != "query" {
            continue;
        }
        let mut query = Message::default();
        query.text(2, "query");
        query.text(4, text(parameter, "name"));
        query.text(6, text(parameter, "type"));
        query.flag(20, true);
        let (mut non_body, mut holder, mut item) = (Message::default(), Message::default(), Message::default());
        non_body.message(3, query);
        holder.message(2, non_body);
        item.message(1, holder);
        out.message(8, item);
    }
    // Clients cannot parse an operation without responses.
    out.message(9, Message::default());
    encode_extensions(node, 13, &mut out);
    out
}

fn encode_extensions(node: &Map<String, Value>, number: u64, out: &mut Message) {
    for (name, value) in node.iter().filter(|(name, _)| name.starts_with("x-")) {
        let (mut extension, mut any) = (Message::default(), Message::default());
        // JSON is valid YAML.
        any.text(2, &format!("{value}\n"));
        extension.text(1, name);
        extension.message(2, any);
        out.message(number, extension);
    }
}

fn encode_named_schemas(schemas: &Map<String, Value>) -> Message {
    let mut out = Message::default();
    for (name, node) in schemas {
        let mut named_value = Message::default();
        named_value.text(1, name);
        named_value.message(2, encode_schema(node));
        out.message(1, named_value);
    }
    out
}

fn encode_schema(node: &Value) -> Message {
    let mut out = Message::default();
    let Some(node) = node.as_object() else { return out };
    out.text(1, text(node, "$ref"));
    out.text(2, text(node, "format"));
    out.text(3, text(node, "title"));
    out.text(4, text(node, "description"));
    out.text(13, text(node, "pattern"));
    for name in node.get("required").and_then(Value::as_array).into_iter().flatten() {
        out.text(19, name.as_str().unwrap_or_default());
    }
    match node.get("additionalProperties") {
        Some(Value::Bool(allowed)) => {
            let mut item = Message::default();
            item.flag(2, *allowed);
            out.message(21, item);
        }
        Some(inner) => {
            let mut item = Message::default();
            item.message(1, encode_schema(inner));
            out.message(21, item);
        }
        None => {}
    }
    if let Some(kind) = node.get("type").and_then(Value::as_str) {
        let mut item = Message::default();
        item.text(1, kind);
        out.message(22, item);
    }
    if let Some(inner) = node.get("items") {
        let mut item = Message::default();
        item.message(1, encode_schema(inner));
        out.message(23, item);
    }
    if let Some(properties) = node.get("properties").and_then(Value::as_object) {
        out.message(25, encode_named_schemas(properties));
    }
    encode_extensions(node, 31, &mut out);
    out
}
