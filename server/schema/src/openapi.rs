//! OpenAPI documents of extension servers: published unchanged as v3, or converted from their v2; converted to v2
//! for the v2 document.

mod upgrade;

use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// Hash of a document, as in its URL.
pub fn digest(text: &[u8]) -> String {
    hex(&Sha256::digest(text))
}

/// Upper-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// OpenAPI document of an extension server for one group version.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// `apis/<group>/<version>`
    pub path: String,
    /// Changes with the document.
    pub hash: String,
    pub document: Arc<Value>,
}

impl Published {
    /// Parses a document; `None` if it is neither OpenAPI v3 nor v2.
    pub fn read(group: &str, version: &str, bytes: &[u8]) -> Option<Self> {
        let document: Value = serde_json::from_slice(bytes).ok()?;
        let is_v3 = document.get("openapi").and_then(Value::as_str).is_some_and(|form| form.starts_with("3."));
        let document = if is_v3 { document } else { upgrade::upgrade(&document)? };
        Some(Self { path: format!("apis/{group}/{version}"), hash: digest(bytes), document: Arc::new(document) })
    }

    pub fn index_entry(&self) -> (String, Value) {
        let url = format!("/openapi/v3/{}?hash={}", self.path, self.hash);
        (self.path.clone(), json!({"serverRelativeURL": url}))
    }

    /// Adds paths and definitions to a v2 document; existing ones are kept.
    pub fn merge_into(&self, paths: &mut Map<String, Value>, definitions: &mut Map<String, Value>) {
        let of = |pointer: &str| self.document.pointer(pointer).and_then(Value::as_object).into_iter().flatten();
        for (name, schema) in of("/components/schemas") {
            definitions.entry(name.clone()).or_insert_with(|| downgrade(schema));
        }
        // Paths outside of `/apis/` concern the extension server as a whole.
        for (path, item) in of("/paths").filter(|(path, _)| path.starts_with("/apis/")) {
            paths.entry(path.clone()).or_insert_with(|| path_item(item));
        }
    }
}

/// Converts a schema to v2: changes references and drops unsupported keywords.
fn downgrade(node: &Value) -> Value {
    match node {
        Value::Object(fields) => {
            // In v3, a reference with a description or default is wrapped in `allOf`.
            if let Some([only]) = fields.get("allOf").and_then(Value::as_array).map(Vec::as_slice)
                && only.get("$ref").is_some()
            {
                let mut out = downgrade(only);
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
                value => (key.clone(), downgrade(value)),
            })
            .collect::<Map<_, _>>()
            .into()
        }
        Value::Array(items) => items.iter().map(downgrade).collect(),
        other => other.clone(),
    }
}

/// Converts operations to v2 parameters, bodies and responses.
fn path_item(item: &Value) -> Value {
    let fields = item.as_object().into_iter().flatten();
    fields
        .map(|(method, value)| match value {
            Value::Array(shared) => (method.clone(), shared.iter().map(parameter).collect()),
            operation => (method.clone(), self::operation(operation)),
        })
        .collect::<Map<_, _>>()
        .into()
}

fn parameter(parameter: &Value) -> Value {
    let mut out = parameter.clone();
    if let Some(fields) = out.as_object_mut()
        && let Some(Value::Object(schema)) = fields.remove("schema")
    {
        fields.extend(schema);
    }
    out
}

/// The schema of a body or response, regardless of its media type.
fn content(holder: &Value) -> Option<Value> {
    holder.get("content")?.as_object()?.values().next()?.get("schema").map(downgrade)
}

fn operation(operation: &Value) -> Value {
    let mut out = operation.clone();
    let Some(fields) = out.as_object_mut() else { return out };
    let mut parameters: Vec<Value> = operation["parameters"].as_array().into_iter().flatten().map(parameter).collect();
    if let Some(body) = fields.remove("requestBody") {
        let media: Vec<&String> = body["content"].as_object().into_iter().flatten().map(|(media, _)| media).collect();
        fields.insert("consumes".into(), json!(media));
        let required = body["required"].as_bool().unwrap_or_default();
        parameters.push(json!({"name": "body", "in": "body", "required": required, "schema": content(&body)}));
    }
    if !parameters.is_empty() {
        fields.insert("parameters".into(), Value::Array(parameters));
    }
    for answer in fields.get_mut("responses").and_then(Value::as_object_mut).into_iter().flatten().map(|(_, v)| v) {
        let schema = content(answer);
        *answer = json!({"description": answer["description"]});
        if let Some(schema) = schema {
            answer["schema"] = schema;
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
        let published = Published::read("g.io", "v1", v3.to_string().as_bytes()).unwrap();
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
    fn other_responses_are_rejected() {
        for text in ["", "{}", "not found", r#"{"swagger": "1.2"}"#, r#"{"openapi": "2.9"}"#] {
            assert_eq!(Published::read("g.io", "v1", text.as_bytes()), None, "{text}");
        }
    }
}
