//! Builders of JSON Schemas for OpenAPI documents.

use serde_json::{Map, Value, json};

pub const JSON: &str = "application/json";

/// Name of the schema of a `Status`.
pub const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";

pub fn string() -> Value {
    json!({"type": "string"})
}

pub fn integer() -> Value {
    json!({"type": "integer", "format": "int64"})
}

pub fn boolean() -> Value {
    json!({"type": "boolean"})
}

pub fn date_time() -> Value {
    json!({"type": "string", "format": "date-time"})
}

pub fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

/// A reference to a schema of the document.
pub fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

pub fn status() -> Value {
    reference(STATUS)
}

/// An object whose fields are required, except for the optional ones.
pub fn object(fields: Value, optional: &[&str]) -> Value {
    let names = fields.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    let required: Vec<&str> = names.filter(|name| !optional.contains(name)).collect();
    json!({"type": "object", "properties": fields, "required": required})
}

/// An object with `kind` and `apiVersion`.
pub fn body(kind: &str, mut fields: Value, optional: &[&str]) -> Value {
    fields["kind"] = json!({"type": "string", "enum": [kind]});
    fields["apiVersion"] = string();
    object(fields, optional)
}

/// A parameter that is a segment of the path.
pub fn in_path(name: &str, description: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "description": description, "schema": string()})
}

/// An optional query parameter.
pub fn in_query(name: &str, description: &str) -> Value {
    json!({"name": name, "in": "query", "description": description, "schema": string()})
}

/// Responses of an operation: the successful one with its content, and `failures`, each with a Status.
pub fn responses(code: &str, content: Value, failures: &[(&str, &str)]) -> Value {
    let mut responses = json!({code: {"description": "OK", "content": content}});
    for (code, description) in failures {
        responses[code] = json!({"description": description, "content": {JSON: {"schema": status()}}});
    }
    responses
}

/// The schema of a `Status` with its name.
pub fn status_schema() -> Map<String, Value> {
    let cause =
        object(json!({"reason": string(), "message": string(), "field": string()}), &["reason", "message", "field"]);
    let details = json!({"name": string(), "group": string(), "kind": string(), "uid": string(), "causes": list(cause),
        "retryAfterSeconds": {"type": "integer", "format": "int32"}});
    let details = object(details, &["name", "group", "kind", "uid", "causes", "retryAfterSeconds"]);
    let fields = json!({"metadata": {"type": "object"}, "status": string(), "message": string(), "reason": string(),
        "details": details, "code": {"type": "integer", "format": "int32"}});
    Map::from_iter([(STATUS.to_owned(), body("Status", fields, &["message", "reason", "details", "code"]))])
}
