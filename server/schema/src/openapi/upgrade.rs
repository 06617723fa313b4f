//! Conversion of OpenAPI v2 documents to v3, for extension servers without v3, as in kube-aggregator. Has no side effects.

use serde_json::{Map, Value, json};

const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];
/// Fields of a parameter outside of its schema.
const PARAMETER_FIELDS: [&str; 5] = ["name", "description", "in", "required", "allowEmptyValue"];
/// Fields of an operation that are the same in both versions.
const OPERATION_FIELDS: [&str; 6] = ["description", "externalDocs", "tags", "summary", "deprecated", "operationId"];

/// Converts a document; `None` if it is not v2. References to parameters are inlined.
pub(super) fn convert_to_v3(v2: &Value) -> Option<Value> {
    v2.get("swagger")?.as_str()?.starts_with("2.").then_some(())?;
    let mut components = Map::new();
    if let Some(definitions) = v2["definitions"].as_object() {
        components.insert("schemas".into(), map_values(definitions, convert_schema));
    }
    if let Some(schemes) = v2["securityDefinitions"].as_object() {
        components.insert("securitySchemes".into(), map_values(schemes, convert_security_scheme));
    }
    if let Some(responses) = v2["responses"].as_object() {
        components.insert("responses".into(), map_values(responses, |node| convert_response(node, &v2["produces"])));
    }
    let mut out = json!({"openapi": "3.0.0", "info": v2["info"], "components": components});
    if let Some(paths) = v2["paths"].as_object() {
        out["paths"] = map_values(paths, |item| convert_path_item(item, v2));
    }
    Some(out)
}

fn map_values(fields: &Map<String, Value>, convert: impl Fn(&Value) -> Value) -> Value {
    fields.iter().map(|(key, value)| (key.clone(), convert(value))).collect::<Map<_, _>>().into()
}

/// Converts a schema; a reference with sibling fields is wrapped in `allOf`.
fn convert_schema(node: &Value) -> Value {
    match node {
        Value::Object(fields) => {
            let mut out: Map<String, Value> = Map::new();
            let mut reference = None;
            for (key, value) in fields {
                match value {
                    Value::String(target) if key == "$ref" => {
                        reference = Some(target.replace("#/definitions/", "#/components/schemas/"));
                    }
                    value => _ = out.insert(key.clone(), convert_schema(value)),
                }
            }
            match reference {
                Some(target) if out.is_empty() => _ = out.insert("$ref".into(), target.into()),
                Some(target) => _ = out.insert("allOf".into(), json!([{"$ref": target}])),
                None => {}
            }
            out.into()
        }
        Value::Array(items) => items.iter().map(convert_schema).collect(),
        other => other.clone(),
    }
}

fn convert_security_scheme(scheme: &Value) -> Value {
    let mut out: Map<String, Value> = Map::new();
    let (mut flow, mut kind) = (Map::new(), None);
    for (key, value) in scheme.as_object().into_iter().flatten() {
        match key.as_str() {
            "flow" => kind = value.as_str(),
            "authorizationUrl" | "tokenUrl" | "scopes" => _ = flow.insert(key.clone(), value.clone()),
            _ => _ = out.insert(key.clone(), value.clone()),
        }
    }
    if let Some(kind) = kind {
        out.insert("flows".into(), json!({kind: flow}));
    }
    out.into()
}

fn is_extension(key: &str) -> bool {
    key.starts_with("x-")
}

fn convert_path_item(item: &Value, v2: &Value) -> Value {
    let mut out = Map::new();
    for (key, value) in item.as_object().into_iter().flatten() {
        let value = match key.as_str() {
            method if METHODS.contains(&method) => convert_operation(value, v2),
            "parameters" => {
                let shared = value.as_array().into_iter().flatten().map(|parameter| resolve_parameter(parameter, v2));
                shared.filter(|parameter| !is_body(parameter)).map(convert_parameter).collect()
            }
            key if is_extension(key) || key == "$ref" => value.clone(),
            _ => continue,
        };
        out.insert(key.clone(), value);
    }
    out.into()
}

/// The parameter that a reference points to, or the parameter itself if it is not a reference.
fn resolve_parameter<'a>(parameter: &'a Value, v2: &'a Value) -> &'a Value {
    let target = parameter["$ref"].as_str().and_then(|target| target.strip_prefix('#'));
    target.and_then(|pointer| v2.pointer(pointer)).unwrap_or(parameter)
}

fn is_body(parameter: &Value) -> bool {
    parameter["in"] == "body"
}

fn convert_parameter(parameter: &Value) -> Value {
    let (mut out, mut schema_fields) = (Map::new(), Map::new());
    for (key, value) in parameter.as_object().into_iter().flatten() {
        let is_parameter_field = PARAMETER_FIELDS.contains(&key.as_str()) || is_extension(key);
        if is_parameter_field { &mut out } else { &mut schema_fields }.insert(key.clone(), value.clone());
    }
    let schema_node = schema_fields.remove("schema").unwrap_or(Value::Object(schema_fields));
    out.insert("schema".into(), convert_schema(&schema_node));
    out.into()
}

fn convert_operation(operation: &Value, v2: &Value) -> Value {
    let mut out = Map::new();
    for (key, value) in operation.as_object().into_iter().flatten() {
        if OPERATION_FIELDS.contains(&key.as_str()) || is_extension(key) {
            out.insert(key.clone(), value.clone());
        }
    }
    let mut parameters = Vec::new();
    for declared in operation["parameters"].as_array().into_iter().flatten() {
        let parameter = resolve_parameter(declared, v2);
        if is_body(parameter) {
            let content = build_content(&parameter["schema"], &operation["consumes"], &v2["consumes"]);
            let mut body = json!({"content": content});
            if parameter["required"] == true {
                body["required"] = true.into();
            }
            out.insert("requestBody".into(), body);
        } else {
            parameters.push(convert_parameter(parameter));
        }
    }
    if !parameters.is_empty() {
        out.insert("parameters".into(), parameters.into());
    }
    let produces = if operation["produces"].is_array() { &operation["produces"] } else { &v2["produces"] };
    let responses = operation["responses"]
        .as_object()
        .map(|responses| map_values(responses, |response| convert_response(response, produces)));
    out.insert("responses".into(), responses.unwrap_or_default());
    out.into()
}

fn convert_response(node: &Value, produces: &Value) -> Value {
    if let Some(target) = node["$ref"].as_str() {
        return json!({"$ref": target.replace("#/responses/", "#/components/responses/")});
    }
    let mut out = json!({"description": node["description"]});
    for (key, value) in node.as_object().into_iter().flatten().filter(|(key, _)| is_extension(key)) {
        out[key] = value.clone();
    }
    if node["schema"].is_object() {
        out["content"] = build_content(&node["schema"], produces, &Value::Null);
    }
    out
}

/// Builds the `content` of a body: one entry with the schema per media type. Without `media`, `default_media` is used.
fn build_content(schema_node: &Value, media: &Value, default_media: &Value) -> Value {
    let media = media.as_array().or(default_media.as_array());
    let media = media.into_iter().flatten().filter_map(Value::as_str);
    media.map(|media| (media.to_owned(), json!({"schema": convert_schema(schema_node)}))).collect::<Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v2_documents_are_converted() {
        let v2 = json!({"swagger": "2.0", "info": {"title": "Things", "version": "v1"},
            "parameters": {"pretty": {"name": "pretty", "in": "query", "type": "string", "uniqueItems": true},
                           "body-1": {"name": "body", "in": "body", "required": true, "schema": {"$ref": "#/definitions/Thing"}}},
            "securityDefinitions": {"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"},
                "Web": {"type": "oauth2", "flow": "implicit", "authorizationUrl": "https://x/a", "scopes": {"read": "reads"}}},
            "paths": {"/apis/g.io/v1/things": {
                "parameters": [{"$ref": "#/parameters/pretty"}],
                "post": {"operationId": "create", "tags": ["g_v1"], "consumes": ["application/json", "application/yaml"],
                    "produces": ["application/json"], "schemes": ["https"], "x-kubernetes-action": "post",
                    "parameters": [{"$ref": "#/parameters/body-1"}, {"name": "dryRun", "in": "query", "description": "not for long", "type": "string"}],
                    "responses": {"201": {"description": "Created", "schema": {"$ref": "#/definitions/Thing"}}, "401": {"description": "Unauthorized"}}}}},
            "definitions": {
                "Thing": {"type": "object", "x-kubernetes-group-version-kind": [{"group": "g.io", "kind": "Thing", "version": "v1"}],
                    "properties": {
                        "metadata": {"description": "its own", "$ref": "#/definitions/Meta"},
                        "$ref": {"type": "string"},
                        "parts": {"type": "array", "items": {"$ref": "#/definitions/Part"}},
                        "more": {"additionalProperties": {"default": {}, "$ref": "#/definitions/Part"}}}},
                "Part": {"type": "string"}}});
        let thing = json!({"$ref": "#/components/schemas/Thing"});
        let expected = json!({"openapi": "3.0.0", "info": {"title": "Things", "version": "v1"},
            "paths": {"/apis/g.io/v1/things": {
                "parameters": [{"name": "pretty", "in": "query", "schema": {"type": "string", "uniqueItems": true}}],
                "post": {"operationId": "create", "tags": ["g_v1"], "x-kubernetes-action": "post",
                    "requestBody": {"required": true, "content": {"application/json": {"schema": thing}, "application/yaml": {"schema": thing}}},
                    "parameters": [{"name": "dryRun", "in": "query", "description": "not for long", "schema": {"type": "string"}}],
                    "responses": {"201": {"description": "Created", "content": {"application/json": {"schema": thing}}},
                                  "401": {"description": "Unauthorized"}}}}},
            "components": {
                "securitySchemes": {"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"},
                    "Web": {"type": "oauth2", "flows": {"implicit": {"authorizationUrl": "https://x/a", "scopes": {"read": "reads"}}}}},
                "schemas": {
                    "Thing": {"type": "object", "x-kubernetes-group-version-kind": [{"group": "g.io", "kind": "Thing", "version": "v1"}],
                        "properties": {
                            "metadata": {"description": "its own", "allOf": [{"$ref": "#/components/schemas/Meta"}]},
                            "$ref": {"type": "string"},
                            "parts": {"type": "array", "items": {"$ref": "#/components/schemas/Part"}},
                            "more": {"additionalProperties": {"default": {}, "allOf": [{"$ref": "#/components/schemas/Part"}]}}}},
                    "Part": {"type": "string"}}}});
        assert_eq!(convert_to_v3(&v2), Some(expected));
        for none in [json!({}), json!({"openapi": "3.0.0"}), json!({"swagger": 2})] {
            assert_eq!(convert_to_v3(&none), None, "{none}");
        }
    }
}
