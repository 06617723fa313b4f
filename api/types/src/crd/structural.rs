//! Converts schemars' schema of a type to a structural schema: without references and unions with null, with
//! defaults only where the API has them, and with Kubernetes' extensions that clients rely on.

use serde_json::{Map, Value, json};

/// Validation pattern of quantities.
const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Keys of schemars' output that a structural schema must not contain.
const UNSUPPORTED_KEYS: [&str; 5] = ["default", "title", "$schema", "nullable", "examples"];

/// Converts a schema to a structural schema. References are resolved recursively.
///
/// Types mark fields with extensions of this crate, which are removed here: `x-default` is the field's default, `x-raw` a field
/// whose content is not validated, `x-items-raw` a list of such values, and `x-optional` a field that is always serialized
/// but not required.
pub(super) fn convert(schema: Value, definitions: &Map<String, Value>) -> Value {
    let Value::Object(mut schema) = schema else {
        return json!({ "x-kubernetes-preserve-unknown-fields": true });
    };
    remove_null_alternatives(&mut schema);
    if let Some(Value::String(reference)) = schema.remove("$ref") {
        let name = reference.rsplit('/').next().unwrap_or_default().replace("~1", "/");
        let mut target = kubernetes_schema(&name).unwrap_or_else(|| match definitions.get(&name) {
            Some(definition) => {
                let mut target = convert(definition.clone(), definitions);
                super::markers::refine(&name, &mut target);
                target
            }
            None => json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true }),
        });
        // Keys beside a reference describe the field and take precedence over the description of the type.
        if let (Some(target), Value::Object(field_keys)) =
            (target.as_object_mut(), convert(Value::Object(schema), definitions))
        {
            target.extend(field_keys);
        }
        return target;
    }
    for key in UNSUPPORTED_KEYS {
        schema.remove(key);
    }
    if let Some(default) = schema.remove("x-default") {
        schema.insert("default".into(), default);
    }
    if schema.remove("x-raw").is_some() {
        return build_raw_schema(&schema);
    }
    let has_raw_items = schema.remove("x-items-raw").is_some();
    if let Some(Value::Object(properties)) = schema.remove("properties") {
        let (properties, optional) = convert_fields(properties, definitions);
        remove_from_required(&mut schema, &optional);
        // Removed, because the schema of a flattened structure must not be closed.
        schema.remove("unevaluatedProperties");
        schema.insert("properties".into(), Value::Object(properties));
    }
    for key in ["items", "additionalProperties"] {
        match schema.remove(key) {
            None | Some(Value::Bool(_)) => {}
            Some(_) if has_raw_items => {
                schema.insert(key.into(), json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true }));
            }
            Some(inner) => {
                schema.insert(key.into(), convert(inner, definitions));
            }
        }
    }
    Value::Object(schema)
}

/// The fields in structural form, and the names of those that are always written but not required.
fn convert_fields(
    properties: Map<String, Value>,
    definitions: &Map<String, Value>,
) -> (Map<String, Value>, Vec<String>) {
    let mut optional = Vec::new();
    let properties = properties
        .into_iter()
        .map(|(name, mut property)| {
            if property.as_object_mut().is_some_and(|property| property.remove("x-optional").is_some()) {
                optional.push(name.clone());
            }
            (name, convert(property, definitions))
        })
        .collect();
    (properties, optional)
}

fn remove_from_required(schema: &mut Map<String, Value>, optional: &[String]) {
    let Some(Value::Array(required)) = schema.get_mut("required") else { return };
    required.retain(|name| !name.as_str().is_some_and(|name| optional.iter().any(|optional| optional == name)));
    if required.is_empty() {
        schema.remove("required");
    }
}

/// Removes `required` from a structural schema recursively.
pub(super) fn remove_required(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    schema.remove("required");
    for property in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        remove_required(property);
    }
    for inner in ["items", "additionalProperties"] {
        schema.get_mut(inner).into_iter().for_each(remove_required);
    }
}

/// Removes required fields and limits of values recursively; only quantities keep their pattern. Times may be null, as
/// in Go.
pub(super) fn remove_limits(schema: &mut Value) {
    const LIMITS: [&str; 5] = ["required", "minLength", "maxLength", "minimum", "enum"];
    let Some(schema) = schema.as_object_mut() else { return };
    LIMITS.iter().for_each(|limit| drop(schema.remove(*limit)));
    if !schema.contains_key("x-kubernetes-int-or-string") {
        schema.remove("pattern");
    }
    if schema.get("format").is_some_and(|format| format == "date-time") {
        schema.insert("nullable".into(), true.into());
    }
    for property in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        remove_limits(property);
    }
    for inner in ["items", "additionalProperties"] {
        schema.get_mut(inner).into_iter().for_each(remove_limits);
    }
}

/// Sorts `required` recursively: an API server reports missing fields in that order.
pub(super) fn sort_required(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
    }
    schema
        .get_mut("properties")
        .and_then(Value::as_object_mut)
        .into_iter()
        .flat_map(Map::values_mut)
        .for_each(sort_required);
    for inner in ["items", "additionalProperties"] {
        schema.get_mut(inner).into_iter().for_each(sort_required);
    }
}

/// schemars represents an optional field as a union with null; API servers expect it to be absent.
fn remove_null_alternatives(schema: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [single] = types.as_slice() {
            let single = single.clone();
            schema.insert("type".into(), single);
        }
    }
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    let Some(Value::Array(mut alternatives)) = schema.remove("anyOf") else { return };
    alternatives.retain(|alternative| alternative["type"] != "null");
    match alternatives.as_slice() {
        [Value::Object(single)] => {
            for (key, value) in single {
                schema.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        _ => {
            schema.insert("anyOf".into(), Value::Array(alternatives));
        }
    }
}

/// Schema of a Kubernetes type that schemars cannot derive from its Rust form; `None` for other types.
fn kubernetes_schema(name: &str) -> Option<Value> {
    let int_or_string = json!({
        "anyOf": [{ "type": "integer" }, { "type": "string" }],
        "x-kubernetes-int-or-string": true,
    });
    if name.ends_with(".api.resource.Quantity") {
        let mut quantity = int_or_string;
        quantity["pattern"] = QUANTITY_PATTERN.into();
        return Some(quantity);
    }
    if name.ends_with(".util.intstr.IntOrString") {
        return Some(int_or_string);
    }
    name.ends_with(".apiextensions.v1.JSON").then(|| json!({ "x-kubernetes-preserve-unknown-fields": true }))
}

fn build_raw_schema(schema: &Map<String, Value>) -> Value {
    let mut raw = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    if let Some(description) = schema.get("description") {
        raw["description"] = description.clone();
    }
    raw
}
