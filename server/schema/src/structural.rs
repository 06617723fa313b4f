//! Conversion of a CRD's structural `openAPIV3Schema` to typed nodes.

use std::sync::Arc;

use serde_json::Value;

use super::{Field, ListType, Node, Schema, SchemaRef, Type, schema_set::SchemaSet};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Converts the `openAPIV3Schema` of a CRD, and adds `apiVersion`, `kind` and `metadata`.
pub(super) fn convert_custom_resource(schema: &Value) -> SchemaRef {
    let mut root = convert(schema);
    if root.ty == Type::Any {
        root.ty = Type::Object;
    }
    add_type_meta(&mut root);
    Arc::new(root)
}

fn add_type_meta(root: &mut Schema) {
    let text = || Field::new(Node::Own(Arc::new(Schema { ty: Type::String, ..Schema::default() })));
    root.properties.insert("apiVersion".into(), text());
    root.properties.insert("kind".into(), text());
    if let Some(meta) = SchemaSet::builtin().node(OBJECT_META) {
        root.properties.insert("metadata".into(), Field::new(meta));
    }
}

fn is_true(schema: &Value, key: &str) -> bool {
    schema.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn convert(schema: &Value) -> Schema {
    let text = |key: &str| schema.get(key).and_then(Value::as_str);
    let child = |node: &Value| Node::Own(Arc::new(convert(node)));
    let mut out = Schema {
        format: text("format").map(Box::from),
        preserves_unknown_fields: is_true(schema, "x-kubernetes-preserve-unknown-fields"),
        is_embedded_resource: is_true(schema, "x-kubernetes-embedded-resource"),
        is_nullable: is_true(schema, "nullable"),
        is_atomic: text("x-kubernetes-map-type") == Some("atomic"),
        enumeration: schema.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
        ..Schema::default()
    };
    // As in structured-merge-diff, a declared type has precedence over `x-kubernetes-int-or-string`.
    out.ty = match text("type") {
        Some("string") => Type::String,
        Some("integer") => Type::Integer,
        Some("number") => Type::Number,
        Some("boolean") => Type::Boolean,
        Some("array") => Type::Array,
        Some("object") => Type::Object,
        _ if is_true(schema, "x-kubernetes-int-or-string") => Type::IntOrString,
        _ => Type::Any,
    };
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        for (name, node) in properties {
            let field = Field { default: node.get("default").cloned(), ..Field::new(child(node)) };
            out.properties.insert(name.as_str().into(), field);
        }
    }
    match schema.get("additionalProperties") {
        Some(node @ Value::Object(_)) => out.additional_properties = Some(child(node)),
        Some(Value::Bool(true)) => (out.preserves_unknown_fields, out.prunes_unknown_objects) = (true, true),
        _ => {}
    }
    out.items = schema.get("items").filter(|node| node.is_object()).map(child);
    out.required = string_list(schema.get("required"));
    out.list_type = match text("x-kubernetes-list-type") {
        Some("map") => ListType::Map(string_list(schema.get("x-kubernetes-list-map-keys"))),
        Some("set") => ListType::Set,
        _ => ListType::Atomic,
    };
    if out.is_embedded_resource {
        add_type_meta(&mut out);
    }
    out
}

fn string_list(value: Option<&Value>) -> Vec<Box<str>> {
    let list = value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).map(Box::from).collect()
}
