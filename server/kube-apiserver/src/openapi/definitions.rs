//! OpenAPI definitions of served kinds, in v2 and v3.

use std::collections::BTreeMap;

use crowsnest_registry::resource::ResourceRef;
use crowsnest_schema::compressed::CompressedSchema;
use crowsnest_schema::schema_set::SchemaSet;
use serde_json::{Map, Value, json};

use super::document_text::{DocumentText, complete_schema};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
/// Kinds of `meta/v1` whose definitions every document with resources contains.
const COMMON_KINDS: [&str; 5] = ["APIResourceList", "DeleteOptions", "Patch", "Status", "WatchEvent"];
/// Descriptions of the type fields of custom resources.
const TYPE_FIELDS: [(&str, &str); 2] = [
    (
        "apiVersion",
        "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources",
    ),
    (
        "kind",
        "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds",
    ),
];

/// Fields of all custom resources, whose published schemas replace declared ones.
const COMMON_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];
const STANDARD_METADATA: &str = "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

/// Version of the OpenAPI specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpecVersion {
    V2,
    V3,
}

impl SpecVersion {
    /// Prefix of references to definitions.
    fn reference_prefix(self) -> &'static str {
        match self {
            SpecVersion::V2 => "#/definitions/",
            SpecVersion::V3 => "#/components/schemas/",
        }
    }
}

/// Name of a kind's definition: Go's package path for built-in kinds, the reversed group for others.
pub(super) fn definition_name(resource: &ResourceRef) -> String {
    let schema = if resource.is_custom() { None } else { resource.strategy.schema() };
    match schema.and_then(|schema| schema.name.clone()) {
        Some(name) => name.into(),
        None => {
            let group: Vec<&str> = resource.gvr.group.split('.').rev().collect();
            format!("{}.{}.{}", group.join("."), resource.gvr.version, resource.kind)
        }
    }
}

pub(super) fn reference(name: &str, spec_version: SpecVersion) -> Value {
    json!({"$ref": format!("{}{name}", spec_version.reference_prefix())})
}

/// The v2 definitions of the resources, those with the given names, and all types that they reference.
pub(super) fn collect_v2(resources: &[&ResourceRef], names: Vec<String>) -> Map<String, Value> {
    let definitions: BTreeMap<String, Value> = collect(resources, names, SpecVersion::V2, |resource, schema| {
        custom_definition(resource, schema.decode(), SpecVersion::V2)
    });
    definitions.into_iter().collect()
}

/// The v3 definitions of the resources, those with the given names, and all types that they reference.
pub(super) fn collect_v3<'a>(resources: &[&'a ResourceRef], names: Vec<String>) -> BTreeMap<String, DocumentText<'a>> {
    collect(resources, names, SpecVersion::V3, |resource, schema| {
        complete_schema(schema, |rest| custom_definition(resource, rest, SpecVersion::V3))
    })
}

/// Collects definitions; `custom` makes those of custom resources from their published schemas.
fn collect<'a, D: From<Value>>(
    resources: &[&'a ResourceRef],
    names: Vec<String>,
    spec_version: SpecVersion,
    custom: impl Fn(&'a ResourceRef, &'a CompressedSchema) -> D,
) -> BTreeMap<String, D> {
    let mut pending = names;
    if !resources.is_empty() {
        pending.extend(COMMON_KINDS.iter().map(|name| format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}")));
    }
    let mut out = BTreeMap::new();
    for &resource in resources {
        let kind = definition_name(resource);
        if let Some(schema) = resource.strategy.published_schema() {
            let list = format!("{kind}List");
            out.insert(list, custom_list_definition(resource, &kind, spec_version).into());
            out.insert(kind, custom(resource, schema));
            pending.extend([OBJECT_META.to_owned(), LIST_META.to_owned()]);
        } else {
            pending.extend([format!("{kind}List"), kind]);
        }
        for subresource in &resource.subresources {
            if let Some(schema) = SchemaSet::builtin().kind(&subresource.group, &subresource.version, &subresource.kind)
            {
                pending.extend(schema.name.as_deref().map(str::to_owned));
            }
        }
    }
    while let Some(name) = pending.pop() {
        if out.contains_key(&name) {
            continue;
        }
        let Some(definition) = SchemaSet::raw_definition(&name) else { continue };
        collect_references(&definition, &mut pending);
        let converted = match name.as_str() {
            QUANTITY if spec_version == SpecVersion::V3 => with_one_of(&definition, &["string", "number"]),
            INT_OR_STRING if spec_version == SpecVersion::V3 => with_one_of(&definition, &["integer", "string"]),
            _ => convert_definition(&definition, spec_version),
        };
        out.insert(name, converted.into());
    }
    out
}

/// Adds the names of the definitions that a schema references.
fn collect_references(node: &Value, out: &mut Vec<String>) {
    match node {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(name) if key == "$ref" => out.push(name.clone()),
                    value => collect_references(value, out),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_references(item, out)),
        _ => {}
    }
}

/// The definition with alternative types instead of its own type.
fn with_one_of(definition: &Value, types: &[&str]) -> Value {
    let mut out = definition.clone();
    if let Some(fields) = out.as_object_mut() {
        fields.remove("type");
        fields.insert("oneOf".into(), types.iter().map(|name| json!({"type": name})).collect());
    }
    out
}

/// Converts a definition of a built-in type to the given version of the specification.
fn convert_definition(node: &Value, spec_version: SpecVersion) -> Value {
    let Some(fields) = node.as_object() else { return node.clone() };
    let mut out = Map::new();
    for (key, value) in fields {
        let value = match key.as_str() {
            "x-go" => continue,
            "default" if spec_version == SpecVersion::V2 => continue,
            "properties" => {
                let properties = value.as_object().into_iter().flatten();
                Value::Object(
                    properties.map(|(name, node)| (name.clone(), convert_definition(node, spec_version))).collect(),
                )
            }
            "items" | "additionalProperties" if value.is_object() => convert_element(value, spec_version),
            "$ref" => json!(format!("{}{}", spec_version.reference_prefix(), value.as_str().unwrap_or_default())),
            _ => value.clone(),
        };
        out.insert(key.clone(), value);
    }
    // OpenAPI v3 ignores the siblings of a reference.
    if spec_version == SpecVersion::V3
        && out.len() > 1
        && let Some(target) = out.remove("$ref")
    {
        out.insert("allOf".into(), json!([{"$ref": target}]));
    }
    Value::Object(out)
}

/// Converts the element of a list or map. Elements are values, not pointers, so v3 gives them Go's zero value as
/// default.
fn convert_element(node: &Value, spec_version: SpecVersion) -> Value {
    let mut out = convert_definition(node, spec_version);
    if spec_version == SpecVersion::V2 {
        return out;
    }
    let Some(fields) = out.as_object_mut() else { return out };
    if let Some(target) = fields.remove("$ref") {
        return json!({"allOf": [{"$ref": target}], "default": {}});
    }
    let zero_value = match fields.get("type").and_then(Value::as_str) {
        Some("string") if fields.get("format").is_none() => json!(""),
        Some("integer" | "number") => json!(0),
        Some("boolean") => json!(false),
        _ => return out,
    };
    fields.insert("default".into(), zero_value);
    out
}

/// The value of `x-kubernetes-group-version-kind`.
fn group_version_kinds(resource: &ResourceRef, kind: &str) -> Value {
    json!([{"group": resource.gvr.group, "version": resource.gvr.version, "kind": kind}])
}

fn add_type_fields(properties: &mut Map<String, Value>) {
    for (field, text) in TYPE_FIELDS {
        properties.insert(field.into(), json!({"type": "string", "description": text}));
    }
}

fn reference_with_description(name: &str, text: &str, spec_version: SpecVersion) -> Value {
    let reference = reference(name, spec_version);
    let mut out = match spec_version {
        SpecVersion::V2 => reference,
        SpecVersion::V3 => json!({"allOf": [reference]}),
    };
    out["description"] = text.into();
    out
}

fn custom_definition(resource: &ResourceRef, schema: Value, spec_version: SpecVersion) -> Value {
    let mut out = custom_schema(schema, spec_version);
    out["x-kubernetes-group-version-kind"] = group_version_kinds(resource, &resource.kind);
    let selectable = resource.strategy.selectable_fields(&Value::Null);
    if spec_version == SpecVersion::V3 && !selectable.is_empty() {
        let fields: Vec<Value> = selectable.into_iter().map(|(path, _)| json!({"fieldPath": path})).collect();
        out["x-kubernetes-selectable-fields"] = fields.into();
    }
    out
}

/// The published schema of a custom resource.
pub(super) fn custom_schema(schema: Value, spec_version: SpecVersion) -> Value {
    let any_object = || json!({"type": "object"});
    // With published fields, v2 clients would reject unknown fields that the kind preserves.
    if spec_version == SpecVersion::V2 && schema.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true)) {
        return any_object();
    }
    let mut out = if spec_version == SpecVersion::V2 { convert_to_v2(&schema) } else { schema };
    add_implied_keywords(&mut out, spec_version);
    let Some(fields) = out.as_object_mut() else { return any_object() };
    fields.insert("type".into(), json!("object"));
    let properties = fields.entry("properties").or_insert_with(|| json!({}));
    if let Some(properties) = properties.as_object_mut() {
        add_type_fields(properties);
        properties.insert("metadata".into(), reference_with_description(OBJECT_META, STANDARD_METADATA, spec_version));
    }
    out
}

/// True if v3 documents contain a property of a custom resource as it is declared.
pub(crate) fn publishes_unchanged(name: &str, property: &Value) -> bool {
    !COMMON_FIELDS.contains(&name) && !implies_keywords(property)
}

/// True if [`add_implied_keywords`] may change a schema in v3.
fn implies_keywords(node: &Value) -> bool {
    let Some(fields) = node.as_object() else { return false };
    let flag = |key: &str| fields.get(key).and_then(Value::as_bool) == Some(true);
    let declares_types = fields.contains_key("allOf") || fields.contains_key("anyOf");
    let properties = fields.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::values);
    let elements = ["items", "additionalProperties"].into_iter().filter_map(|key| fields.get(key));
    (flag("x-kubernetes-int-or-string") && !declares_types)
        || flag("x-kubernetes-embedded-resource")
        || properties.chain(elements).any(implies_keywords)
}

/// Adds what a schema's extensions imply: fields of embedded resources, and the two types of `int-or-string`.
fn add_implied_keywords(node: &mut Value, spec_version: SpecVersion) {
    const CONVENTIONS: &str = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md";
    let Some(fields) = node.as_object_mut() else { return };
    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(|node| add_implied_keywords(node, spec_version));
    }
    for key in ["items", "additionalProperties"] {
        fields.get_mut(key).into_iter().for_each(|node| add_implied_keywords(node, spec_version));
    }
    let flag = |fields: &Map<String, Value>, key: &str| fields.get(key) == Some(&json!(true));
    if spec_version == SpecVersion::V3 && flag(fields, "x-kubernetes-int-or-string") && !fields.contains_key("allOf") {
        fields.entry("anyOf").or_insert_with(|| json!([{"type": "integer"}, {"type": "string"}]));
    }
    // Next to declared fields, v2 clients would reject unknown ones.
    let allows_any_field = spec_version == SpecVersion::V2 && flag(fields, "x-kubernetes-preserve-unknown-fields");
    if allows_any_field || !flag(fields, "x-kubernetes-embedded-resource") {
        return;
    }
    let properties = fields.entry("properties").or_insert_with(|| json!({}));
    let string_field = |description: &str, section: &str| json!({"type": "string", "description": format!("{description} More info: {CONVENTIONS}#{section}")});
    let version =
        string_field("apiVersion defines the versioned schema of this representation of an object.", "resources");
    properties["apiVersion"] = version;
    let description = "kind is a string value representing the type of this object. In CamelCase.";
    properties["kind"] = string_field(description, "types-kinds");
    properties["metadata"] = reference_with_description(OBJECT_META, STANDARD_METADATA, spec_version);
    let required = fields.entry("required").or_insert_with(|| json!([]));
    if let Some(required) = required.as_array_mut() {
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|found| found == name) {
                required.push(name.into());
            }
        }
    }
}

/// Drops keywords that OpenAPI v2 does not support, recursively.
fn convert_to_v2(node: &Value) -> Value {
    const UNSUPPORTED: [&str; 7] =
        ["oneOf", "anyOf", "allOf", "not", "nullable", "default", "x-kubernetes-validations"];
    let Some(fields) = node.as_object() else { return node.clone() };
    let flag = |key: &str| fields.get(key) == Some(&json!(true));
    let mut out = Map::new();
    for (key, value) in fields {
        let value = match key.as_str() {
            key if UNSUPPORTED.contains(&key) => continue,
            "properties" if flag("x-kubernetes-preserve-unknown-fields") => continue,
            "properties" => {
                let properties = value.as_object().into_iter().flatten();
                Value::Object(properties.map(|(name, node)| (name.clone(), convert_to_v2(node))).collect())
            }
            "items" | "additionalProperties" => convert_to_v2(value),
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

fn custom_list_definition(resource: &ResourceRef, kind: &str, spec_version: SpecVersion) -> Value {
    let mut properties = Map::new();
    add_type_fields(&mut properties);
    properties.insert(
        "items".into(),
        json!({
            "type": "array",
            "description": format!("List of {}. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md", resource.gvr.resource),
            "items": reference(kind, spec_version),
        }),
    );
    let text = "Standard list metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
    properties.insert("metadata".into(), reference_with_description(LIST_META, text, spec_version));
    json!({
        "description": format!("{} is a list of {}", resource.list_kind, resource.kind),
        "type": "object",
        "required": ["items"],
        "properties": properties,
        "x-kubernetes-group-version-kind": group_version_kinds(resource, &resource.list_kind),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn preserved_unknown_fields_hide_declared_ones_in_v2() {
        let schema = json!({"type": "object", "description": "d", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"spec": {"type": "object"}}});
        assert_eq!(custom_schema(schema.clone(), SpecVersion::V2), json!({"type": "object"}));
        let v3 = custom_schema(schema, SpecVersion::V3);
        assert_eq!(v3["x-kubernetes-preserve-unknown-fields"], true);
        let names: Vec<&String> = v3["properties"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["apiVersion", "kind", "metadata", "spec"]);
    }

    #[test]
    fn extensions_imply_fields_and_types() {
        let embedded = json!({"type": "object", "x-kubernetes-embedded-resource": true, "required": ["kind"]});
        let schema = json!({"properties": {"a": {"items": embedded}, "b": {"x-kubernetes-int-or-string": true}}});
        let after = |spec_version: SpecVersion| {
            let mut schema = schema.clone();
            add_implied_keywords(&mut schema, spec_version);
            schema
        };
        let (v2, v3) = (after(SpecVersion::V2), after(SpecVersion::V3));
        for published in [&v2, &v3] {
            let embedded = &published["properties"]["a"]["items"];
            assert_eq!(embedded["required"], json!(["kind", "apiVersion"]));
            let names: Vec<&String> = embedded["properties"].as_object().unwrap().keys().collect();
            assert_eq!(names, ["apiVersion", "kind", "metadata"]);
        }
        assert_eq!(v3["properties"]["b"]["anyOf"], json!([{"type": "integer"}, {"type": "string"}]));
        assert_eq!(v2["properties"]["b"].get("anyOf"), None);
    }

    #[rstest]
    #[case::plain(json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": false}), true)]
    #[case::int_or_string(json!({"x-kubernetes-int-or-string": true}), false)]
    #[case::with_types(json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}), true)]
    #[case::with_all_of(json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": [{"type": "string"}]}]}), true)]
    #[case::switched_off(json!({"x-kubernetes-int-or-string": false, "x-kubernetes-embedded-resource": false}), true)]
    #[case::embedded(json!({"type": "object", "x-kubernetes-embedded-resource": true}), false)]
    #[case::in_properties(json!({"properties": {"a": {"properties": {"b": {"x-kubernetes-int-or-string": true}}}}}), false)]
    #[case::in_items(json!({"items": {"items": {"x-kubernetes-embedded-resource": true}}}), false)]
    #[case::in_a_map(json!({"additionalProperties": {"x-kubernetes-int-or-string": true}}), false)]
    #[case::as_names(json!({"properties": {"x-kubernetes-int-or-string": {"type": "boolean"}},
        "default": {"x-kubernetes-int-or-string": true}}), true)]
    #[case::in_any_of(json!({"anyOf": [{"x-kubernetes-int-or-string": true}]}), true)]
    #[case::not_an_object(json!(["x"]), true)]
    fn properties_without_implied_keywords_are_published_unchanged(#[case] property: Value, #[case] expected: bool) {
        assert_eq!(publishes_unchanged("spec", &property), expected);
        assert!(!publishes_unchanged("metadata", &property));
        let mut published = property.clone();
        add_implied_keywords(&mut published, SpecVersion::V3);
        assert_eq!(published == property, expected);
    }
}
