//! OpenAPI definitions of served kinds, in v2 and v3.

use crowsnest_registry::resource::ResourceRef;
use crowsnest_schema::set::SchemaSet;
use serde_json::{Map, Value, json};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
/// Definitions that every document contains.
const META: [&str; 5] = ["APIResourceList", "DeleteOptions", "Patch", "Status", "WatchEvent"];
const DOCUMENTATION: [(&str, &str); 2] = [
    (
        "apiVersion",
        "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources",
    ),
    (
        "kind",
        "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds",
    ),
];

const STANDARD_METADATA: &str = "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    V2,
    V3,
}

impl Form {
    fn prefix(self) -> &'static str {
        match self {
            Form::V2 => "#/definitions/",
            Form::V3 => "#/components/schemas/",
        }
    }
}

/// Name of a kind's definition: Go's package path for built-in kinds, the reversed group for others.
pub(super) fn name(resource: &ResourceRef) -> String {
    match resource.strategy.schema().and_then(|schema| schema.name.clone()) {
        Some(name) => name.into(),
        None => {
            let group: Vec<&str> = resource.gvr.group.split('.').rev().collect();
            format!("{}.{}.{}", group.join("."), resource.gvr.version, resource.kind)
        }
    }
}

pub(super) fn reference(name: &str, form: Form) -> Value {
    json!({"$ref": format!("{}{name}", form.prefix())})
}

/// The definitions of the resources, those `named`, and all types that they reference.
pub(super) fn collect(resources: &[&ResourceRef], named: Vec<String>, form: Form) -> Map<String, Value> {
    let raw = SchemaSet::raw_definitions();
    let mut todo = named;
    if !resources.is_empty() {
        todo.extend(META.iter().map(|name| format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}")));
    }
    let mut out = Map::new();
    for resource in resources {
        let kind = name(resource);
        if let Some(schema) = resource.strategy.published_schema() {
            let list = format!("{kind}List");
            out.insert(list, custom_list(resource, &kind, form));
            out.insert(kind, custom(resource, &schema, form));
            todo.extend([OBJECT_META.to_owned(), LIST_META.to_owned()]);
        } else {
            todo.extend([format!("{kind}List"), kind]);
        }
        for subresource in &resource.subresources {
            if let Some(schema) = SchemaSet::builtin().kind(&subresource.group, &subresource.version, &subresource.kind)
            {
                todo.extend(schema.name.as_deref().map(str::to_owned));
            }
        }
    }
    while let Some(name) = todo.pop() {
        let Some(definition) = raw.get(&name).filter(|_| !out.contains_key(&name)) else { continue };
        references(definition, &mut todo);
        let published = match name.as_str() {
            QUANTITY if form == Form::V3 => one_of(definition, &["string", "number"]),
            INT_OR_STRING if form == Form::V3 => one_of(definition, &["integer", "string"]),
            _ => publish(definition, form),
        };
        out.insert(name, published);
    }
    out
}

fn references(node: &Value, out: &mut Vec<String>) {
    match node {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(name) if key == "$ref" => out.push(name.clone()),
                    value => references(value, out),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, out)),
        _ => {}
    }
}

fn one_of(definition: &Value, types: &[&str]) -> Value {
    let mut out = definition.clone();
    if let Some(fields) = out.as_object_mut() {
        fields.remove("type");
        fields.insert("oneOf".into(), types.iter().map(|name| json!({"type": name})).collect());
    }
    out
}

/// Converts a stored definition to the given version.
fn publish(node: &Value, form: Form) -> Value {
    let Some(fields) = node.as_object() else { return node.clone() };
    let mut out = Map::new();
    for (key, value) in fields {
        let value = match key.as_str() {
            "x-go" => continue,
            "default" if form == Form::V2 => continue,
            "properties" => {
                let properties = value.as_object().into_iter().flatten();
                Value::Object(properties.map(|(name, node)| (name.clone(), publish(node, form))).collect())
            }
            "items" | "additionalProperties" if value.is_object() => element(value, form),
            "$ref" => json!(format!("{}{}", form.prefix(), value.as_str().unwrap_or_default())),
            _ => value.clone(),
        };
        out.insert(key.clone(), value);
    }
    // OpenAPI v3 ignores the siblings of a reference.
    if form == Form::V3
        && out.len() > 1
        && let Some(target) = out.remove("$ref")
    {
        out.insert("allOf".into(), json!([{"$ref": target}]));
    }
    Value::Object(out)
}

/// Converts the element of a list or map. Elements are values, not pointers, so v3 gives them Go's zero value as
/// default.
fn element(node: &Value, form: Form) -> Value {
    let mut out = publish(node, form);
    if form == Form::V2 {
        return out;
    }
    let Some(fields) = out.as_object_mut() else { return out };
    if let Some(target) = fields.remove("$ref") {
        return json!({"allOf": [{"$ref": target}], "default": {}});
    }
    let zero = match fields.get("type").and_then(Value::as_str) {
        Some("string") if fields.get("format").is_none() => json!(""),
        Some("integer" | "number") => json!(0),
        Some("boolean") => json!(false),
        _ => return out,
    };
    fields.insert("default".into(), zero);
    out
}

fn kinds(resource: &ResourceRef, kind: &str) -> Value {
    json!([{"group": resource.gvr.group, "version": resource.gvr.version, "kind": kind}])
}

fn type_meta(properties: &mut Map<String, Value>) {
    for (field, text) in DOCUMENTATION {
        properties.insert(field.into(), json!({"type": "string", "description": text}));
    }
}

fn described(name: &str, text: &str, form: Form) -> Value {
    match form {
        Form::V2 => json!({"$ref": format!("{}{name}", form.prefix()), "description": text}),
        Form::V3 => json!({"allOf": [{"$ref": format!("{}{name}", form.prefix())}], "description": text}),
    }
}

fn custom(resource: &ResourceRef, schema: &Value, form: Form) -> Value {
    let mut out = published(schema, form);
    out["x-kubernetes-group-version-kind"] = kinds(resource, &resource.kind);
    let selectable = resource.strategy.selectable_fields(&Value::Null);
    if form == Form::V3 && !selectable.is_empty() {
        let fields: Vec<Value> = selectable.into_iter().map(|(path, _)| json!({"fieldPath": path})).collect();
        out["x-kubernetes-selectable-fields"] = fields.into();
    }
    out
}

/// The published schema of a custom resource.
fn published(schema: &Value, form: Form) -> Value {
    let bare = || json!({"type": "object"});
    // With published fields, v2 clients would reject unknown fields that the kind preserves.
    if form == Form::V2 && schema.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true)) {
        return bare();
    }
    let mut out = if form == Form::V2 { version_two(schema) } else { schema.clone() };
    implied(&mut out, form);
    let Some(fields) = out.as_object_mut() else { return bare() };
    fields.insert("type".into(), json!("object"));
    let properties = fields.entry("properties").or_insert_with(|| json!({}));
    if let Some(properties) = properties.as_object_mut() {
        type_meta(properties);
        properties.insert("metadata".into(), described(OBJECT_META, STANDARD_METADATA, form));
    }
    out
}

/// Adds what a schema's extensions imply: fields of embedded resources, and the two types of `int-or-string`.
fn implied(node: &mut Value, form: Form) {
    const CONVENTIONS: &str = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";
    let Some(fields) = node.as_object_mut() else { return };
    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(|node| implied(node, form));
    }
    for below in ["items", "additionalProperties"] {
        fields.get_mut(below).into_iter().for_each(|node| implied(node, form));
    }
    let flag = |fields: &Map<String, Value>, key: &str| fields.get(key) == Some(&json!(true));
    if form == Form::V3 && flag(fields, "x-kubernetes-int-or-string") && !fields.contains_key("allOf") {
        fields.entry("anyOf").or_insert_with(|| json!([{"type": "integer"}, {"type": "string"}]));
    }
    // Next to declared fields, clients would reject unknown ones.
    let open = form == Form::V2 && flag(fields, "x-kubernetes-preserve-unknown-fields");
    if open || !flag(fields, "x-kubernetes-embedded-resource") {
        return;
    }
    let properties = fields.entry("properties").or_insert_with(|| json!({}));
    let text = |what: &str, section: &str| json!({"type": "string", "description": format!("{what} More info: {CONVENTIONS}#{section}")});
    let version = text("apiVersion defines the versioned schema of this representation of an object.", "resources");
    properties["apiVersion"] = version;
    let what = "kind is a string value representing the type of this object. In CamelCase.";
    properties["kind"] = text(what, "types-kinds");
    properties["metadata"] = described(OBJECT_META, STANDARD_METADATA, form);
    let required = fields.entry("required").or_insert_with(|| json!([]));
    if let Some(required) = required.as_array_mut() {
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|found| found == name) {
                required.push(name.into());
            }
        }
    }
}

/// Drops what OpenAPI v2 does not support, including the schemas below.
fn version_two(node: &Value) -> Value {
    const UNKNOWN: [&str; 7] = ["oneOf", "anyOf", "allOf", "not", "nullable", "default", "x-kubernetes-validations"];
    let Some(fields) = node.as_object() else { return node.clone() };
    let flag = |key: &str| fields.get(key) == Some(&json!(true));
    let mut out = Map::new();
    for (key, value) in fields {
        let value = match key.as_str() {
            key if UNKNOWN.contains(&key) => continue,
            "properties" if flag("x-kubernetes-preserve-unknown-fields") => continue,
            "properties" => {
                let properties = value.as_object().into_iter().flatten();
                Value::Object(properties.map(|(name, node)| (name.clone(), version_two(node))).collect())
            }
            "items" | "additionalProperties" => version_two(value),
            "type"
                if flag("nullable")
                    || flag("x-kubernetes-int-or-string")
                    || flag("x-kubernetes-preserve-unknown-fields") =>
            {
                continue;
            }
            _ => value.clone(),
        };
        out.insert(key.clone(), value);
    }
    Value::Object(out)
}

fn custom_list(resource: &ResourceRef, kind: &str, form: Form) -> Value {
    let mut properties = Map::new();
    type_meta(&mut properties);
    properties.insert(
        "items".into(),
        json!({
            "type": "array",
            "description": format!("List of {}. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md", resource.gvr.resource),
            "items": reference(kind, form),
        }),
    );
    let text = "Standard list metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
    properties.insert("metadata".into(), described(LIST_META, text, form));
    json!({
        "description": format!("{} is a list of {}", resource.list_kind, resource.kind),
        "type": "object",
        "required": ["items"],
        "properties": properties,
        "x-kubernetes-group-version-kind": kinds(resource, &resource.list_kind),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preserved_unknown_fields_hide_declared_ones_in_v2() {
        let schema = json!({"type": "object", "description": "d", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"spec": {"type": "object"}}});
        assert_eq!(published(&schema, Form::V2), json!({"type": "object"}));
        let three = published(&schema, Form::V3);
        assert_eq!(three["x-kubernetes-preserve-unknown-fields"], true);
        let names: Vec<&String> = three["properties"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["apiVersion", "kind", "metadata", "spec"]);
    }

    #[test]
    fn extensions_imply_fields_and_types() {
        let embedded = json!({"type": "object", "x-kubernetes-embedded-resource": true, "required": ["kind"]});
        let schema = json!({"properties": {"a": {"items": embedded}, "b": {"x-kubernetes-int-or-string": true}}});
        let after = |form: Form| {
            let mut schema = schema.clone();
            implied(&mut schema, form);
            schema
        };
        let (two, three) = (after(Form::V2), after(Form::V3));
        for published in [&two, &three] {
            let embedded = &published["properties"]["a"]["items"];
            assert_eq!(embedded["required"], json!(["kind", "apiVersion"]));
            let names: Vec<&String> = embedded["properties"].as_object().unwrap().keys().collect();
            assert_eq!(names, ["apiVersion", "kind", "metadata"]);
        }
        assert_eq!(three["properties"]["b"]["anyOf"], json!([{"type": "integer"}, {"type": "string"}]));
        assert_eq!(two["properties"]["b"].get("anyOf"), None);
    }
}
