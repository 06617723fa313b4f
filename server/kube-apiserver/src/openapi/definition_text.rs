//! Texts of OpenAPI v3 definitions. Most of a custom resource's schema is copied from its stored text, because parsing
//! and printing a large schema takes more time and memory than everything else in its document.

use std::collections::BTreeMap;

use crowsnest_schema::compressed::CompressedJson;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::definitions::{SpecVersion, add_implied_keywords};

/// Keywords whose schemas are published with other fields than the stored ones.
const EXPANDED_KEYWORDS: [&str; 2] = ["x-kubernetes-int-or-string", "x-kubernetes-embedded-resource"];

/// A definition, or a part of one.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum DefinitionText {
    Value(Value),
    Text(Box<RawValue>),
    Fields(BTreeMap<String, DefinitionText>),
}

impl From<Value> for DefinitionText {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

/// The definition of a schema. `complete` adds the fields of the definition to a schema; it must not depend on the
/// declared properties, and the properties that it adds replace declared ones.
pub(super) fn complete_schema(schema: &CompressedJson, complete: impl Fn(Value) -> Value) -> DefinitionText {
    complete_text(&schema.decompress(), &complete).unwrap_or_else(|| DefinitionText::Value(complete(schema.decode())))
}

/// Completes the text of a schema without a tree of its properties; `None` if it is not that of an object schema.
fn complete_text(text: &[u8], complete: impl Fn(Value) -> Value) -> Option<DefinitionText> {
    let mut declared: BTreeMap<String, &RawValue> = serde_json::from_slice(text).ok()?;
    let properties: BTreeMap<String, Box<RawValue>> = match declared.remove("properties") {
        Some(properties) => serde_json::from_str(properties.get()).ok()?,
        None => BTreeMap::new(),
    };
    let properties = properties.into_iter().map(|(name, property)| Some((name, publish_property(property)?)));
    let mut properties = properties.collect::<Option<BTreeMap<_, _>>>()?;
    let root = declared.into_iter().map(|(key, value)| Some((key, serde_json::from_str(value.get()).ok()?)));
    let Value::Object(mut root) = complete(Value::Object(root.collect::<Option<Map<_, _>>>()?)) else { return None };
    if let Some(Value::Object(added)) = root.remove("properties") {
        properties.extend(added.into_iter().map(|(name, property)| (name, property.into())));
    }
    let mut fields: BTreeMap<String, DefinitionText> =
        root.into_iter().map(|(key, value)| (key, value.into())).collect();
    fields.insert("properties".to_owned(), DefinitionText::Fields(properties));
    Some(DefinitionText::Fields(fields))
}

/// A property as it is published: its stored text, unless that may contain keywords that imply other fields.
fn publish_property(stored: Box<RawValue>) -> Option<DefinitionText> {
    if !EXPANDED_KEYWORDS.iter().any(|keyword| stored.get().contains(keyword)) {
        return Some(DefinitionText::Text(stored));
    }
    let mut property: Value = serde_json::from_str(stored.get()).ok()?;
    add_implied_keywords(&mut property, SpecVersion::V3);
    Some(DefinitionText::Value(property))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::definitions::custom_schema;
    use super::*;

    #[rstest]
    #[case::empty(json!({}))]
    #[case::properties(json!({"type": "object", "description": "é \"quoted\" <b>", "required": ["spec"],
        "properties": {"status": {"type": "object"}, "spec": {"type": "object", "properties": {
            "size": {"type": "number", "maximum": 1.5, "default": 0}, "a\"b": {"enum": ["x", null, 1e30]}}}}}))]
    #[case::replaced_properties(json!({"properties": {"apiVersion": {"type": "integer"}, "kind": {"enum": ["x"]},
        "metadata": {"type": "object", "properties": {"name": {"maxLength": 5}}}}}))]
    #[case::int_or_string(json!({"properties": {"spec": {"properties": {
        "port": {"x-kubernetes-int-or-string": true}, "other": {"type": "string"}}}}}))]
    #[case::embedded(json!({"properties": {"spec": {"items": {"type": "object", "x-kubernetes-embedded-resource": true,
        "required": ["kind"]}}, "status": {"type": "object"}}}))]
    #[case::keywords_as_names(json!({"properties": {"x-kubernetes-int-or-string": {"type": "boolean"}, "spec": {
        "description": "\"x-kubernetes-embedded-resource\": true\n\u{1}", "properties": {
            "x-kubernetes-embedded-resource": {"type": "string", "default": {"x-kubernetes-int-or-string": true}}}}}}))]
    #[case::keywords_of_the_root(json!({"x-kubernetes-embedded-resource": true, "x-kubernetes-int-or-string": true,
        "additionalProperties": {"x-kubernetes-int-or-string": true}}))]
    #[case::without_properties(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}))]
    #[case::wrong_properties(json!({"type": "object", "properties": ["a"]}))]
    fn texts_equal_those_of_completed_trees(#[case] schema: Value) {
        let complete = |schema| custom_schema(schema, SpecVersion::V3);
        let text = complete_schema(&CompressedJson::from_text(&schema.to_string()), complete);
        assert_eq!(serde_json::to_string(&text).unwrap(), complete(schema).to_string());
    }

    #[test]
    fn properties_without_implied_fields_are_copied() {
        let text = json!({"properties": {"spec": {"type": "object"}, "port": {"x-kubernetes-int-or-string": true}}});
        let copied = complete_text(text.to_string().as_bytes(), |schema| custom_schema(schema, SpecVersion::V3));
        let Some(DefinitionText::Fields(mut fields)) = copied else { panic!("{copied:?}") };
        let Some(DefinitionText::Fields(properties)) = fields.remove("properties") else { panic!("{fields:?}") };
        let is_copied = |name: &str| matches!(properties[name], DefinitionText::Text(_));
        assert_eq!(["spec", "port", "metadata"].map(is_copied), [true, false, false]);
    }
}
