//! What a schema must keep to: the structural rules, the keywords of the API, list types, defaults, CEL rules.

use serde_json::Value;

use super::{cel_types, defaulting, values};
use crate::schema::Schema;
use crate::status::{FieldError, FieldErrorKind};

const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];
const REASONS: &[&str] = &["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"];
const METADATA: &[&str] = &["apiVersion", "kind", "metadata"];

fn get<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    schema.get(key).filter(|v| !v.is_null())
}

fn is(schema: &Value, key: &str) -> bool {
    schema.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn word<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema.get(key).and_then(Value::as_str).unwrap_or("")
}

fn non_empty(schema: &Value, key: &str) -> bool {
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
fn children<'a>(schema: &'a Value, path: &str) -> Vec<(String, &'a Value, Place)> {
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
enum Place {
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
    walk_keywords(
        schema,
        path,
        &Around { root: true, in_junction: false, uncorrelated: None, rules: rules_too },
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

struct Around {
    root: bool,
    in_junction: bool,
    /// Path of the list or junction that breaks the correlation with the old object.
    uncorrelated: Option<String>,
    /// Whether CEL rules are compiled: only over structurally sound schemas.
    rules: bool,
}

fn walk_keywords(schema: &Value, path: &str, around: &Around, errors: &mut Vec<FieldError>) {
    unsupported(schema, path, errors);
    if is(schema, "uniqueItems") {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.push(FieldError::forbidden(format!("{path}.uniqueItems"), detail));
    }
    if non_empty(schema, "properties") && get(schema, "additionalProperties").is_some_and(|a| *a != Value::Bool(true)) {
        let detail = "additionalProperties and properties are mutual exclusive";
        errors.push(FieldError::forbidden(format!("{path}.additionalProperties"), detail));
    }
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        let field = format!("{path}.x-kubernetes-preserve-unknown-fields");
        errors.push(FieldError::invalid(field, &Value::from(false), "must be true or undefined"));
    }
    if let Some(pattern) = get(schema, "pattern").and_then(Value::as_str)
        && let Err(error) = regex::Regex::new(pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        errors.push(FieldError::invalid(format!("{path}.pattern"), &Value::from(pattern), detail));
    }
    collections(schema, path, errors);
    if around.rules {
        rules(schema, path, around, errors);
    }
    let list_of_maps = word(schema, "x-kubernetes-list-type") == "map";
    for (at, child, place) in children(schema, path) {
        let breaks = match place {
            Place::Junction => true,
            Place::Item => !list_of_maps,
            _ => false,
        };
        let uncorrelated = around.uncorrelated.clone().or_else(|| breaks.then(|| at.clone()));
        let in_junction = around.in_junction || place == Place::Junction;
        walk_keywords(child, &at, &Around { root: false, in_junction, uncorrelated, rules: around.rules }, errors);
    }
}

fn unsupported(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for key in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        if non_empty(schema, key) {
            errors.push(FieldError::forbidden(format!("{path}.{key}"), format!("{key} is not supported")));
        }
    }
    let kind = word(schema, "type");
    if kind == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.push(FieldError::forbidden(format!("{path}.type"), detail));
    } else if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported(format!("{path}.type"), &Value::from(kind), TYPES));
    }
    if schema.get("items").is_some_and(Value::is_array) {
        let detail = "items must be a schema object and not an array";
        errors.push(FieldError::forbidden(format!("{path}.items"), detail));
    }
}

/// `x-kubernetes-map-type`, `x-kubernetes-list-type` and the keys of list maps.
fn collections(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let kind = word(schema, "type");
    let mut type_must_be = |wanted: &str, key: &str| {
        let detail = format!("must be {wanted} if {key} is specified");
        let field = format!("{path}.type");
        errors.push(match kind {
            "" => FieldError::required(field, detail),
            _ => FieldError::invalid(field, &Value::from(kind), detail),
        });
    };
    let map_type = get(schema, "x-kubernetes-map-type");
    let list_type = get(schema, "x-kubernetes-list-type");
    if map_type.is_some() && kind != "object" {
        type_must_be("object", "x-kubernetes-map-type");
    }
    if list_type.is_some() && kind != "array" {
        type_must_be("array", "x-kubernetes-list-type");
    }
    if let Some(map_type) = map_type.filter(|m| *m != "atomic" && *m != "granular") {
        let field = format!("{path}.x-kubernetes-map-type");
        errors.push(FieldError::not_supported(field, map_type, &["atomic", "granular"]));
    }
    let list_path = format!("{path}.x-kubernetes-list-type");
    if let Some(list_type) = list_type.filter(|l| *l != "atomic" && *l != "set" && *l != "map") {
        errors.push(FieldError::not_supported(list_path.as_str(), list_type, &["atomic", "map", "set"]));
    }
    if non_empty(schema, "x-kubernetes-list-map-keys") {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        match list_type {
            None => errors.push(FieldError::required(list_path.as_str(), detail)),
            Some(other) if other != "map" => errors.push(FieldError::invalid(list_path.as_str(), other, detail)),
            _ => {}
        }
    }
    match list_type.and_then(Value::as_str) {
        Some("map") => list_map(schema, path, errors),
        Some("set") => list_set(schema, path, errors),
        _ => {}
    }
}

fn list_map(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let keys_path = format!("{path}.x-kubernetes-list-map-keys");
    if !non_empty(schema, "x-kubernetes-list-map-keys") {
        errors.push(FieldError::required(keys_path.as_str(), "must not be empty if x-kubernetes-list-type is map"));
    }
    let Some(items) = get(schema, "items").filter(|i| i.is_object()) else {
        errors
            .push(FieldError::required(format!("{path}.items"), "must have a schema if x-kubernetes-list-type is map"));
        return;
    };
    if word(items, "type") != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(format!("{path}.items.type"), &Value::from(word(items, "type")), detail));
    }
    let required: Vec<&str> =
        items.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let mut seen: Vec<&Value> = Vec::new();
    for (index, key) in
        schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array).into_iter().flatten().enumerate()
    {
        let name = key.as_str().unwrap_or("");
        match items.pointer("/properties").and_then(|p| p.get(name)) {
            None => {
                let detail = "entries must all be names of item properties";
                errors.push(FieldError::invalid(format!("{keys_path}[{index}]"), key, detail));
            }
            Some(property) => {
                let at = format!("{path}.items.properties[{name}]");
                if matches!(word(property, "type"), "array" | "object") {
                    let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                    errors.push(FieldError::invalid(
                        format!("{at}.type"),
                        &Value::from(word(property, "type")),
                        detail,
                    ));
                }
                if !required.contains(&name) && property.get("default").is_none() {
                    let detail = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                    errors.push(FieldError::required(format!("{at}.default"), detail));
                }
            }
        }
        if seen.contains(&key) {
            let mut error = FieldError::duplicate(format!("{keys_path}[{index}]"), key);
            error.detail = "must be unique".to_owned();
            errors.push(error);
        }
        seen.push(key);
    }
}

fn list_set(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(items) = get(schema, "items") else { return };
    if is(items, "nullable") {
        errors.push(FieldError::forbidden(
            format!("{path}.items.nullable"),
            "cannot be nullable when x-kubernetes-list-type is set",
        ));
    }
    match word(items, "type") {
        "object" if word(items, "x-kubernetes-map-type") != "atomic" => {
            let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
            let field = format!("{path}.items.x-kubernetes-map-type");
            errors.push(match get(items, "x-kubernetes-map-type") {
                Some(other) => FieldError::invalid(field, other, detail),
                None => FieldError::required(field, detail),
            });
        }
        "array" if !matches!(word(items, "x-kubernetes-list-type"), "" | "atomic") => {
            let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
            let field = format!("{path}.items.x-kubernetes-list-type");
            errors.push(FieldError::invalid(field, &items["x-kubernetes-list-type"], detail));
        }
        _ => {}
    }
}

fn rules(schema: &Value, path: &str, around: &Around, errors: &mut Vec<FieldError>) {
    let Some(rules) = get(schema, "x-kubernetes-validations").and_then(Value::as_array).filter(|r| !r.is_empty())
    else {
        return;
    };
    if around.in_junction {
        errors
            .push(FieldError::forbidden(format!("{path}.x-kubernetes-validations"), "must be empty to be structural"));
        return;
    }
    for (index, rule) in rules.iter().enumerate() {
        let at = format!("{path}.x-kubernetes-validations[{index}]");
        let (source, message) = (word(rule, "rule").trim(), word(rule, "message"));
        if source.is_empty() {
            errors.push(FieldError::required(format!("{at}.rule"), "rule is not specified"));
        } else if !message.is_empty() && message.trim().is_empty() {
            let detail = "message must be non-empty if specified";
            errors.push(FieldError::invalid(format!("{at}.message"), &Value::from(message), detail));
        } else if message.trim().contains('\n') {
            let detail = "message must not contain line breaks";
            errors.push(FieldError::invalid(format!("{at}.message"), &Value::from(message), detail));
        } else if source.contains('\n') && message.trim().is_empty() {
            let detail = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(format!("{at}.message"), detail));
        }
        if let Some(reason) = get(rule, "reason").filter(|r| !REASONS.iter().any(|known| *r == known)) {
            errors.push(FieldError::not_supported(format!("{at}.reason"), reason, REASONS));
        }
        field_path(schema, rule, &at, errors);
        if source.is_empty() {
            continue;
        }
        let optional = is(rule, "optionalOldSelf");
        if let Err(text) = cel_types::check_rule(source, schema, around.root, optional, "bool") {
            let detail = if text.starts_with("ERROR") { format!("compilation failed: {text}") } else { text };
            errors.push(FieldError::invalid(format!("{at}.rule"), &rule["rule"], detail));
        }
        if let Some(outside) = around.uncorrelated.as_deref().filter(|_| cel_types::uses_old(source)) {
            let detail = format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {outside}");
            errors.push(FieldError::invalid(format!("{at}.rule"), &rule["rule"], detail));
        }
        if let Some(expression) = get(rule, "messageExpression") {
            let text = expression.as_str().unwrap_or("");
            let outcome = match text.trim() {
                "" => Err("must be non-empty if specified".to_owned()),
                source => cel_types::check_rule(source, schema, around.root, optional, "string"),
            };
            if let Err(text) = outcome {
                let field = format!("{at}.messageExpression");
                let detail = if text.starts_with("ERROR") { format!("compilation failed: {text}") } else { text };
                errors.push(FieldError::invalid(field, expression, detail));
            }
        }
    }
}

/// A rule's `fieldPath` must name declared fields.
fn field_path(schema: &Value, rule: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(given) = get(rule, "fieldPath").filter(|f| *f != "") else { return };
    let text = given.as_str().unwrap_or("");
    let path = crate::table::jsonpath::JsonPath::parse(text).ok();
    let mut current = Some(schema);
    for field in path.as_ref().and_then(|p| p.fields()).unwrap_or_default() {
        current = current.and_then(|s| {
            s.pointer("/properties").and_then(|p| p.get(field)).or_else(|| s.get("additionalProperties"))
        });
    }
    let parses = path.as_ref().is_some_and(|p| p.fields().is_some_and(|f| !f.is_empty()));
    if !parses || current.is_none() {
        let detail = "fieldPath must be a valid path";
        errors.push(FieldError::invalid(format!("{at}.fieldPath"), given, detail));
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
