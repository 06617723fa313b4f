//! Texts of OpenAPI v3 documents, written as gzip data. Most of a custom resource's schema is copied from its compressed
//! parts, because parsing, printing and compressing a large schema takes more time than everything else in its document.

use std::collections::BTreeMap;
use std::io::Write;

use crowsnest_schema::compressed::{CompressedSchema, DeflatedText, GzipWriter};
use serde::Serialize;
use serde_json::Value;

/// A document, or a part of one.
#[derive(Debug)]
pub(super) enum DocumentText<'a> {
    Value(Value),
    Copied(&'a DeflatedText),
    Fields(BTreeMap<String, DocumentText<'a>>),
}

impl From<Value> for DocumentText<'_> {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

impl<'a> DocumentText<'a> {
    /// An object with these fields.
    pub(super) fn object<const N: usize>(fields: [(&str, DocumentText<'a>); N]) -> Self {
        Self::Fields(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// The text as gzip data.
    pub(super) fn to_gzip(&self) -> Vec<u8> {
        let mut out = GzipWriter::default();
        self.write(&mut out);
        out.finish()
    }

    fn write(&self, out: &mut GzipWriter) {
        match self {
            Self::Value(value) => write_json(out, value),
            Self::Copied(text) => out.append(text),
            Self::Fields(fields) => {
                write_text(out, "{");
                for (nth, (key, field)) in fields.iter().enumerate() {
                    write_text(out, if nth == 0 { "" } else { "," });
                    write_json(out, key);
                    write_text(out, ":");
                    field.write(out);
                }
                write_text(out, "}");
            }
        }
    }
}

fn write_text(out: &mut GzipWriter, text: &str) {
    out.write_all(text.as_bytes()).expect("the writer keeps every text in memory");
}

fn write_json(out: &mut GzipWriter, value: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(out, value).expect("JSON values with text keys can be printed");
}

/// The definition of a schema. `complete` adds the fields of the definition to a schema; it must not depend on the
/// declared properties, and the properties that it adds replace declared ones.
pub(super) fn complete_schema(schema: &CompressedSchema, complete: impl Fn(Value) -> Value) -> DocumentText<'_> {
    let mut fields = match complete(schema.decode_rest()) {
        Value::Object(fields) if fields.get("properties").is_some_and(Value::is_object) => fields,
        definition => return definition.into(),
    };
    let mut published: BTreeMap<String, DocumentText<'_>> =
        schema.parts().iter().map(|(name, part)| (name.clone(), DocumentText::Copied(part))).collect();
    if let Some(Value::Object(properties)) = fields.remove("properties") {
        published.extend(properties.into_iter().map(|(name, property)| (name, property.into())));
    }
    let mut definition: BTreeMap<String, DocumentText<'_>> =
        fields.into_iter().map(|(key, value)| (key, value.into())).collect();
    definition.insert("properties".to_owned(), DocumentText::Fields(published));
    DocumentText::Fields(definition)
}

#[cfg(test)]
mod tests {
    use crowsnest_schema::compressed::{SchemaText, decompress};
    use rstest::rstest;
    use serde_json::json;

    use super::super::definitions::{SpecVersion, custom_schema, publishes_unchanged};
    use super::*;

    fn compressed(schema: &Value) -> CompressedSchema {
        let text = SchemaText::new(schema);
        CompressedSchema::new(&text, text.hash(), publishes_unchanged)
    }

    /// Fields with descriptions of about 10 KB.
    fn large() -> Value {
        let field = json!({"type": "string", "description": "The name of the issuer. ".repeat(20)});
        (0..20).map(|nth| (format!("field{nth}"), field.clone())).collect::<serde_json::Map<_, _>>().into()
    }

    #[rstest]
    #[case::empty(json!({}))]
    #[case::properties(json!({"type": "object", "description": "é \"quoted\" <b>", "required": ["spec"],
        "properties": {"status": {"type": "object"}, "spec": {"type": "object", "properties": {
            "size": {"type": "number", "maximum": 1.5, "default": 0}, "a\"b": {"enum": ["x", null, 1e30]}}}}}))]
    #[case::large_properties(json!({"type": "object", "required": ["spec"], "properties": {
        "a\"b": {"properties": large()}, "spec": {"properties": large()}, "status": {"items": {"properties": large()}}}}))]
    #[case::replaced_properties(json!({"properties": {"apiVersion": {"type": "integer"}, "kind": {"enum": ["x"]},
        "metadata": {"type": "object", "properties": large()}}}))]
    #[case::int_or_string(json!({"properties": {"spec": {"properties": {
        "port": {"x-kubernetes-int-or-string": true}, "other": {"properties": large()}}}}}))]
    #[case::embedded(json!({"properties": {"spec": {"items": {"type": "object", "x-kubernetes-embedded-resource": true,
        "required": ["kind"], "properties": large()}}, "status": {"properties": large()}}}))]
    #[case::keywords_as_names(json!({"properties": {"x-kubernetes-int-or-string": {"type": "boolean"}, "spec": {
        "description": "\"x-kubernetes-embedded-resource\": true\n\u{1}", "properties": {
            "x-kubernetes-embedded-resource": {"type": "string", "default": {"x-kubernetes-int-or-string": true}}}}}}))]
    #[case::keywords_of_the_root(json!({"x-kubernetes-embedded-resource": true, "x-kubernetes-int-or-string": true,
        "additionalProperties": {"x-kubernetes-int-or-string": true}, "properties": {"spec": {"properties": large()}}}))]
    #[case::without_properties(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}))]
    #[case::wrong_properties(json!({"type": "object", "properties": ["a"]}))]
    fn texts_equal_those_of_completed_trees(#[case] schema: Value) {
        let complete = |schema| custom_schema(schema, SpecVersion::V3);
        let gzip = complete_schema(&compressed(&schema), complete).to_gzip();
        assert_eq!(String::from_utf8(decompress(&gzip)).unwrap(), complete(schema).to_string());
    }

    #[test]
    fn large_properties_without_implied_fields_are_copied() {
        let schema = json!({"properties": {"spec": {"properties": large()}, "small": {"type": "string"},
            "port": {"x-kubernetes-int-or-string": true, "properties": large()}}});
        let schema = compressed(&schema);
        let definition = complete_schema(&schema, |rest| custom_schema(rest, SpecVersion::V3));
        let DocumentText::Fields(mut fields) = definition else { panic!("{definition:?}") };
        let Some(DocumentText::Fields(properties)) = fields.remove("properties") else { panic!("{fields:?}") };
        let copied = properties.iter().filter(|(_, property)| matches!(property, DocumentText::Copied(_)));
        assert_eq!(copied.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["spec"]);
        assert_eq!(properties.len(), 6);
    }
}
