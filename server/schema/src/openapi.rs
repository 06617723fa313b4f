//! OpenAPI documents of extension API servers. A v3 document is published unchanged, a v2 document is converted to v3.
//! The v2 document of this server includes the paths and definitions of these documents, converted to v2.

mod upgrade;

use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// Hash of a document, as in its URL.
pub fn hash_document(text: &[u8]) -> String {
    to_upper_hex(&Sha256::digest(text))
}

/// Upper-case hexadecimal digits.
pub fn to_upper_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// OpenAPI document of an extension server for one group version.
#[derive(Debug, Clone, PartialEq)]
pub struct PublishedDocument {
    /// `apis/<group>/<version>`
    pub path: String,
    /// Changes whenever the document changes.
    pub hash: String,
    pub document: Arc<Value>,
}

impl PublishedDocument {
    /// Parses a document; `None` if it is neither OpenAPI v3 nor v2.
    pub fn parse(group: &str, version: &str, bytes: &[u8]) -> Option<Self> {
        let document: Value = serde_json::from_slice(bytes).ok()?;
        let is_v3 = document.get("openapi").and_then(Value::as_str).is_some_and(|version| version.starts_with("3."));
        let document = if is_v3 { document } else { upgrade::convert_to_v3(&document)? };
        Some(Self { path: format!("apis/{group}/{version}"), hash: hash_document(bytes), document: Arc::new(document) })
    }

    /// Path and entry of the document in the index of `/openapi/v3`.
    pub fn index_entry(&self) -> (String, Value) {
        let url = format!("/openapi/v3/{}?hash={}", self.path, self.hash);
        (self.path.clone(), json!({"serverRelativeURL": url}))
    }

    /// Adds paths and definitions to a v2 document; existing ones are kept.
    pub fn merge_into(&self, paths: &mut Map<String, Value>, definitions: &mut Map<String, Value>) {
        let fields_at = |pointer: &str| self.document.pointer(pointer).and_then(Value::as_object).into_iter().flatten();
        for (name, schema) in fields_at("/components/schemas") {
            definitions.entry(name.clone()).or_insert_with(|| schema_to_v2(schema));
        }
        // Paths outside of `/apis/`, such as `/healthz`, are those of the extension server itself.
        for (path, item) in fields_at("/paths").filter(|(path, _)| path.starts_with("/apis/")) {
            paths.entry(path.clone()).or_insert_with(|| path_item_to_v2(item));
        }
    }
}

/// Converts a schema to v2: changes references and drops unsupported keywords.
fn schema_to_v2(node: &Value) -> Value {
    match node {
        Value::Object(fields) => {
            // In v3, a reference with a description or default is wrapped in `allOf`.
            if let Some([only]) = fields.get("allOf").and_then(Value::as_array).map(Vec::as_slice)
                && only.get("$ref").is_some()
            {
                let mut out = schema_to_v2(only);
                if let Some(description) = fields.get("description") {
                    out["description"] = description.clone();
                }
                return out;
            }
            let kept = fields.iter().filter(|(key, _)| !matches!(key.as_str(), "oneOf" | "anyOf" | "not" | "nullable"));
            kept.map(|(key, value)| match value {
                Value::String(target) if key == "$ref" => {
                    (key.clone(), target.replace("#/components/schemas/", "#/definitions/").into())
                }
                value => (key.clone(), schema_to_v2(value)),
            })
            .collect::<Map<_, _>>()
            .into()
        }
        Value::Array(items) => items.iter().map(schema_to_v2).collect(),
        other => other.clone(),
    }
}

/// Converts operations to v2 parameters, bodies and responses.
fn path_item_to_v2(item: &Value) -> Value {
    let fields = item.as_object().into_iter().flatten();
    fields
        .map(|(method, value)| match value {
            Value::Array(shared) => (method.clone(), shared.iter().map(parameter_to_v2).collect()),
            operation => (method.clone(), operation_to_v2(operation)),
        })
        .collect::<Map<_, _>>()
        .into()
}

fn parameter_to_v2(parameter: &Value) -> Value {
    let mut out = parameter.clone();
    if let Some(fields) = out.as_object_mut()
        && let Some(Value::Object(schema)) = fields.remove("schema")
    {
        fields.extend(schema);
    }
    out
}

/// The schema of a body or response, regardless of its media type.
fn body_schema(body: &Value) -> Option<Value> {
    body.get("content")?.as_object()?.values().next()?.get("schema").map(schema_to_v2)
}

fn operation_to_v2(operation: &Value) -> Value {
    let mut out = operation.clone();
    let Some(fields) = out.as_object_mut() else { return out };
    let mut parameters: Vec<Value> =
        operation["parameters"].as_array().into_iter().flatten().map(parameter_to_v2).collect();
    if let Some(body) = fields.remove("requestBody") {
        let media: Vec<&String> = body["content"].as_object().into_iter().flatten().map(|(media, _)| media).collect();
        fields.insert("consumes".into(), json!(media));
        let required = body["required"].as_bool().unwrap_or_default();
        parameters.push(json!({"name": "body", "in": "body", "required": required, "schema": body_schema(&body)}));
    }
    if !parameters.is_empty() {
        fields.insert("parameters".into(), Value::Array(parameters));
    }
    for response in fields.get_mut("responses").and_then(Value::as_object_mut).into_iter().flatten().map(|(_, v)| v) {
        let schema = body_schema(response);
        *response = json!({"description": response["description"]});
        if let Some(schema) = schema {
            response["schema"] = schema;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v3_documents_are_merged_into_v2() {
        let v3 = json!({"openapi": "3.0.0",
            "paths": {"/apis/g.io/v1/things/{name}": {
                "parameters": [{"name": "name", "in": "path", "required": true, "schema": {"type": "string"}}],
                "patch": {
                    "parameters": [{"name": "dryRun", "in": "query", "schema": {"type": "string"}}],
                    "requestBody": {"required": true, "content": {"application/merge-patch+json": {"schema": {"$ref": "#/components/schemas/io.g.v1.Thing"}}}},
                    "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/io.g.v1.Thing"}}}}},
                }}},
            "components": {"schemas": {"io.g.v1.Thing": {"type": "object", "properties": {
                "metadata": {"description": "its own", "allOf": [{"$ref": "#/components/schemas/Meta"}], "default": {}},
                "count": {"nullable": true, "type": "integer"}}}}}});
        let published = PublishedDocument::parse("g.io", "v1", v3.to_string().as_bytes()).unwrap();
        let (mut paths, mut definitions) = (Map::new(), Map::new());
        published.merge_into(&mut paths, &mut definitions);
        let thing = json!({"$ref": "#/definitions/io.g.v1.Thing"});
        assert_eq!(
            Value::Object(paths),
            json!({"/apis/g.io/v1/things/{name}": {
            "parameters": [{"name": "name", "in": "path", "required": true, "type": "string"}],
            "patch": {
                "consumes": ["application/merge-patch+json"],
                "parameters": [{"name": "dryRun", "in": "query", "type": "string"},
                               {"name": "body", "in": "body", "required": true, "schema": thing}],
                "responses": {"200": {"description": "OK", "schema": thing}},
            }}})
        );
        assert_eq!(
            Value::Object(definitions),
            json!({"io.g.v1.Thing": {"type": "object", "properties": {
                "metadata": {"description": "its own", "$ref": "#/definitions/Meta"}, "count": {"type": "integer"}}}})
        );
    }

    #[test]
    fn documents_that_are_not_openapi_are_rejected() {
        for text in ["", "{}", "not found", r#"{"swagger": "1.2"}"#, r#"{"openapi": "2.9"}"#] {
            assert_eq!(PublishedDocument::parse("g.io", "v1", text.as_bytes()), None, "{text}");
        }
    }
}
