//! What a schema must keep to: the structural rules and its defaults; `keywords` checks the rest.

use crowsnest_api::field::{FieldError, FieldErrorKind};
use serde_json::Value;

use super::{defaulting, keywords, values};
use crate::schema::Schema;

const METADATA: &[&str] = &["apiVersion", "kind", "metadata"];

pub(super) fn get<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    schema.get(key).filter(|v| !v.is_null())
}

pub(super) fn is(schema: &Value, key: &str) -> bool {
    schema.get(key).and_then(Value::as_bool).unwrap_or(false)
}

pub(super) fn word<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema.get(key).and_then(Value::as_str).unwrap_or("")
}

pub(super) fn non_empty(schema: &Value, key: &str) -> bool {
    match schema.get(key) {
        Some(Value::Object(map)) => !map.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Bool(set)) => *set,
        Some(Value::Null) | None => false,
        Some(Value::Number(_)) => true,
    }
}

/// Every schema directly below, with the path it is found at.
pub(super) fn children<'a>(schema: &'a Value, path: &str) -> Vec<(String, &'a Value, Place)> {
    let mut found = Vec::new();
    for key in ["allOf", "anyOf", "oneOf"] {
        for (index, branch) in get(schema, key).and_then(Value::as_array).into_iter().flatten().enumerate() {
            found.push((format!("{path}.{key}[{index}]"), branch, Place::Junction));
        }
    }
    if let Some(not) = get(schema, "not") {
        found.push((format!("{path}.not"), not, Place::Junction));
    }
    if let Some(items) = get(schema, "items").filter(|i| i.is_object()) {
        found.push((format!("{path}.items"), items, Place::Item));
    }
    if let Some(values) = get(schema, "additionalProperties").filter(|a| a.is_object()) {
        found.push((format!("{path}.additionalProperties"), values, Place::Field));
    }
    for (name, property) in get(schema, "properties").and_then(Value::as_object).into_iter().flatten() {
        found.push((format!("{path}.properties[{name}]"), property, Place::Field));
    }
    found
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Root,
    Field,
    Item,
    Junction,
}

/// Checks a version's `openAPIV3Schema`. `path` is its field path, `status` whether the version has a status subresource.
pub fn validate(schema: &Value, path: &str, status: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if status {
        errors.extend(root_with_status(schema, path));
    }
    if is(schema, "nullable") {
        errors.push(FieldError::forbidden(format!("{path}.nullable"), "nullable cannot be true at the root"));
    }
    let mut structural = Vec::new();
    invariants(schema, path, Place::Root, &mut structural);
    let mut keywords = Vec::new();
    let rules_too = structural.is_empty();
    keywords::walk(
        schema,
        path,
        &keywords::Around { root: true, in_junction: false, uncorrelated: None, rules: rules_too },
        &mut keywords,
    );
    errors.extend(keywords);
    structural.sort_by_key(ToString::to_string);
    let sound = structural.is_empty();
    errors.extend(structural);
    if sound {
        defaults(schema, schema, path, &mut errors);
    }
    errors
}

fn root_with_status(schema: &Value, path: &str) -> Option<FieldError> {
    const ALLOWED: &[&str] = &[
        "description",
        "type",
        "format",
        "title",
        "maximum",
        "exclusiveMaximum",
        "minimum",
        "exclusiveMinimum",
        "maxLength",
        "minLength",
        "pattern",
        "maxItems",
        "minItems",
        "uniqueItems",
        "multipleOf",
        "required",
        "items",
        "properties",
        "externalDocs",
        "example",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
        "additionalProperties",
        "enum",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "maxProperties",
        "minProperties",
        "nullable",
        "default",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
        "x-kubernetes-map-type",
    ];
    let kind = word(schema, "type");
    if !kind.is_empty() && kind != "object" {
        let detail =
            r#"only "object" is allowed as the type at the root of the schema if the status subresource is enabled"#;
        return Some(FieldError::invalid(format!("{path}.type"), &Value::from(kind), detail));
    }
    let stray = schema.as_object()?.keys().find(|key| !ALLOWED.contains(&key.as_str()) && non_empty(schema, key))?;
    let detail = format!(
        "only {ALLOWED:?} fields are allowed at the root of the schema if the status subresource is enabled ({stray})"
    );
    Some(FieldError::invalid(path, schema, detail))
}

/// Types everywhere, no contradictions between the extensions, metadata left alone.
fn invariants(schema: &Value, path: &str, place: Place, errors: &mut Vec<FieldError>) {
    let kind = word(schema, "type");
    let embedded = is(schema, "x-kubernetes-embedded-resource");
    let either = is(schema, "x-kubernetes-int-or-string");
    let preserve = is(schema, "x-kubernetes-preserve-unknown-fields");
    let type_path = format!("{path}.type");
    if embedded && kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(match kind {
            "" => FieldError::required(type_path.as_str(), detail),
            _ => FieldError::invalid(type_path.as_str(), &Value::from(kind), detail),
        });
    } else if kind.is_empty() && !either && !preserve {
        errors.push(FieldError::required(
            type_path.as_str(),
            match place {
                Place::Root => "must not be empty at the root",
                Place::Item => "must not be empty for specified array items",
                _ => "must not be empty for specified object fields",
            },
        ));
    }
    if place == Place::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(type_path.as_str(), &Value::from(kind), "must be object at the root"));
    }
    if either {
        for key in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
            if is(schema, key) {
                let detail = "must be false if x-kubernetes-int-or-string is true";
                errors.push(FieldError::invalid(format!("{path}.{key}"), &Value::from(true), detail));
            }
        }
        if !kind.is_empty() {
            let detail = "must be empty if x-kubernetes-int-or-string is true";
            errors.push(FieldError::invalid(type_path.as_str(), &Value::from(kind), detail));
        }
    }
    let additional = format!("{path}.additionalProperties");
    if get(schema, "additionalProperties").is_some() {
        if embedded {
            errors.push(FieldError::forbidden(
                additional.as_str(),
                "must not be used if x-kubernetes-embedded-resource is set",
            ));
        }
        if place == Place::Root {
            errors.push(FieldError::forbidden(additional.as_str(), "must not be used at the root"));
        }
    }
    if embedded && !preserve && !non_empty(schema, "properties") {
        errors.push(FieldError::required(
            format!("{path}.properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ));
    }
    if kind == "array" && get(schema, "items").is_none() {
        errors.push(FieldError::required(format!("{path}.items"), "must be specified"));
    }
    if place == Place::Root || embedded {
        metadata(schema, path, errors);
    }
    completeness(schema, path, errors);
    for (path, child, place) in children(schema, path) {
        if place == Place::Junction {
            junction(child, &path, either, errors);
        } else {
            invariants(child, &path, place, errors);
        }
    }
}

fn metadata(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (name, wanted) in [("kind", "string"), ("apiVersion", "string"), ("metadata", "object")] {
        let Some(property) = schema.pointer("/properties").and_then(|p| p.get(name)) else { continue };
        if word(property, "type") != wanted {
            let field = format!("{path}.properties[{name}].type");
            errors.push(FieldError::invalid(field, &Value::from(word(property, "type")), format!("must be {wanted}")));
        }
    }
    let Some(meta) = schema.pointer("/properties/metadata") else { return };
    for name in meta.get("properties").and_then(Value::as_object).into_iter().flat_map(|p| p.keys()) {
        if name != "name" && name != "generateName" {
            errors.push(FieldError::forbidden(
                format!("{path}.properties[metadata]"),
                "must not specify anything other than name and generateName, but metadata is implicitly specified",
            ));
            return;
        }
    }
}

/// Inside anyOf, allOf, oneOf and not, only validations may stand.
fn junction(schema: &Value, path: &str, int_or_string: bool, errors: &mut Vec<FieldError>) {
    for (key, must_be) in [
        ("title", "empty"),
        ("description", "empty"),
        ("default", "undefined"),
        ("additionalProperties", "undefined"),
        ("nullable", "false"),
        ("x-kubernetes-preserve-unknown-fields", "false"),
        ("x-kubernetes-embedded-resource", "false"),
        ("x-kubernetes-int-or-string", "false"),
        ("x-kubernetes-list-type", "undefined"),
        ("x-kubernetes-list-map-keys", "empty"),
        ("x-kubernetes-map-type", "undefined"),
    ] {
        if non_empty(schema, key) {
            errors.push(FieldError::forbidden(format!("{path}.{key}"), format!("must be {must_be} to be structural")));
        }
    }
    if non_empty(schema, "type") && !int_or_string {
        errors.push(FieldError::forbidden(format!("{path}.type"), "must be empty to be structural"));
    }
    for (path, child, _) in children(schema, path) {
        junction(child, &path, int_or_string, errors);
    }
}

/// Fields named in junctions must be declared in the schema itself.
fn completeness(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (at, branch, place) in children(schema, path) {
        if place != Place::Junction {
            continue;
        }
        let declared = schema.get("properties");
        for name in branch.get("properties").and_then(Value::as_object).into_iter().flat_map(|p| p.keys()) {
            if declared.and_then(|d| d.get(name)).is_none() {
                let detail = format!("because it is defined in {at}.properties[{name}]");
                errors.push(FieldError::required(format!("{path}.properties[{name}]"), detail));
            }
        }
        if branch.get("items").is_some() && schema.get("items").is_none() {
            errors.push(FieldError::required(format!("{path}.items"), format!("because it is defined in {at}.items")));
        }
    }
}

/// Defaults must be valid, pruned values of their own schema.
fn defaults(root: &Value, schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if let Some(default) = get(schema, "default") {
        let at = format!("{path}.default");
        let mut filled = default.clone();
        let own = Schema::for_custom_resource(&serde_json::json!({"type": "object", "properties": {"value": schema}}));
        let mut wrapped = serde_json::json!({"value": filled});
        let unknown = crate::schema::prune(&own, &mut wrapped);
        if !unknown.is_empty() {
            errors.push(FieldError::invalid(at.as_str(), default, "must not have unknown fields"));
        }
        defaulting::fill(schema, &mut filled);
        let mut found = values::validate(schema, &filled, "");
        found.extend(values::list_uniqueness(schema, &filled, ""));
        for mut error in found {
            error.field = match error.field.as_str() {
                "" => at.clone(),
                "<nil>" => "<nil>".to_owned(),
                below if below.starts_with('[') => format!("{at}{below}"),
                below => format!("{at}.{below}"),
            };
            errors.push(error);
        }
    } else if schema.get("default").is_some_and(Value::is_null) && !is(schema, "nullable") {
        errors.push(FieldError::new(
            FieldErrorKind::Invalid,
            format!("{path}.default"),
            Some("null".into()),
            "must not be null if nullable is not true",
        ));
    }
    let top = std::ptr::eq(root, schema);
    for (at, child, place) in children(schema, path) {
        let of_metadata = (top || is(schema, "x-kubernetes-embedded-resource"))
            && METADATA.iter().any(|name| at == format!("{path}.properties[{name}]"));
        if place != Place::Junction && !(of_metadata && top) {
            defaults(root, child, &at, errors);
        }
    }
}
