//! The keywords of a schema that the API restricts: unsupported ones, list and map types, CEL rules.

use crowsnest_api::field::FieldError;
use serde_json::Value;

use super::cel_types;
use super::structural::{Place, children, get, is, non_empty, word};

const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];
const REASONS: &[&str] = &["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"];

/// Where a schema stands, as far as its rules care.
pub(super) struct Around {
    pub root: bool,
    pub in_junction: bool,
    /// Path of the list or junction that breaks the correlation with the old object.
    pub uncorrelated: Option<String>,
    /// Whether CEL rules are compiled: only over structurally sound schemas.
    pub rules: bool,
}

/// Checks the keywords of a schema and of everything below it.
pub(super) fn walk(schema: &Value, path: &str, around: &Around, errors: &mut Vec<FieldError>) {
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
        walk(child, &at, &Around { root: false, in_junction, uncorrelated, rules: around.rules }, errors);
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
        errors.push(FieldError::not_supported_sorted(format!("{path}.type"), &Value::from(kind), TYPES));
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
        errors.push(FieldError::not_supported_sorted(field, map_type, &["atomic", "granular"]));
    }
    let list_path = format!("{path}.x-kubernetes-list-type");
    if let Some(list_type) = list_type.filter(|l| *l != "atomic" && *l != "set" && *l != "map") {
        errors.push(FieldError::not_supported(list_path.as_str(), list_type, &["atomic", "set", "map"]));
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
        errors.push(FieldError::invalid(format!("{path}.items.type"), word(items, "type"), detail));
    }
    let list = &schema["x-kubernetes-list-map-keys"];
    let keys: Vec<&str> = list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let property = |key: &str| items.pointer("/properties").and_then(|properties| properties.get(key));
    if word(items, "type") == "object" {
        for (index, key) in keys.iter().enumerate() {
            match property(key) {
                None => {
                    let detail = "entries must all be names of item properties";
                    errors.push(FieldError::invalid(keys_path.as_str(), list, detail));
                }
                Some(found) if matches!(word(found, "type"), "array" | "object") => {
                    // The type that kube-apiserver shows is that of the items.
                    let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                    let field = format!("{path}.items.properties[{key}].type");
                    errors.push(FieldError::invalid(field, "object", detail));
                }
                Some(_) => {}
            }
            if keys[..index].contains(key) {
                errors.push(FieldError::invalid(keys_path.as_str(), list, "must not contain duplicate entries"));
            }
        }
    }
    never_null(items, "map", path, errors);
    let required: Vec<&str> =
        items.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    const KEY: &str = "this property is in x-kubernetes-list-map-keys, so it";
    for (key, found) in keys.iter().filter_map(|key| Some((key, property(key)?))) {
        let at = format!("{path}.items.properties[{key}]");
        if !required.contains(key) && found.get("default").is_none() {
            let detail = format!("{KEY} must have a default or be a required property");
            errors.push(FieldError::required(format!("{at}.default"), detail));
        }
        if is(found, "nullable") {
            errors.push(FieldError::forbidden(format!("{at}.nullable"), format!("{KEY} cannot be nullable")));
        }
    }
}

/// What is told apart in a list can't be null.
fn never_null(items: &Value, kind: &str, path: &str, errors: &mut Vec<FieldError>) {
    if is(items, "nullable") {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {kind}");
        errors.push(FieldError::forbidden(format!("{path}.items.nullable"), detail));
    }
}

fn list_set(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(items) = get(schema, "items") else { return };
    let (list_type, atomic) = (get(items, "x-kubernetes-list-type"), |key: &str| word(items, key) == "atomic");
    let key = match word(items, "type") {
        "object" if !atomic("x-kubernetes-map-type") => Some("x-kubernetes-map-type"),
        "array" if list_type.is_some() && !atomic("x-kubernetes-list-type") => Some("x-kubernetes-list-type"),
        _ => None,
    };
    if let Some(key) = key {
        // kube-apiserver shows the type of the list in both cases.
        let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
        errors.push(FieldError::invalid(format!("{path}.items.{key}"), list_type.unwrap_or(&Value::Null), detail));
    }
    never_null(items, "set", path, errors);
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
            let detail = "must be non-empty if specified";
            errors.push(FieldError::invalid(format!("{at}.message"), &Value::from(message), detail));
        } else if message.trim().contains('\n') {
            let detail = "must not contain line breaks";
            errors.push(FieldError::invalid(format!("{at}.message"), &Value::from(message), detail));
        } else if source.contains('\n') && message.trim().is_empty() {
            let detail = "message must be specified if rule contains line breaks";
            errors.push(FieldError::required(format!("{at}.message"), detail));
        }
        if let Some(reason) = get(rule, "reason").filter(|r| !REASONS.iter().any(|known| *r == known)) {
            errors.push(FieldError::not_supported_sorted(format!("{at}.reason"), reason, REASONS));
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
        if let Some(given) = get(rule, "optionalOldSelf").filter(|_| !cel_types::uses_old(source)) {
            let detail = "may not be set if oldSelf is not used in rule";
            errors.push(FieldError::invalid(format!("{at}.optionalOldSelf"), given, detail));
        }
        message_expression(schema, rule, &at, around, errors);
    }
}

fn message_expression(schema: &Value, rule: &Value, at: &str, around: &Around, errors: &mut Vec<FieldError>) {
    let Some(expression) = get(rule, "messageExpression").filter(|expression| *expression != "") else { return };
    let (field, source) = (format!("{at}.messageExpression"), expression.as_str().unwrap_or("").trim());
    if source.is_empty() {
        errors.push(FieldError::required(field, "messageExpression must be non-empty if specified"));
    } else if let Err(text) = cel_types::check_rule(source, schema, around.root, is(rule, "optionalOldSelf"), "string")
    {
        let detail = if text.starts_with("ERROR") { format!("compilation failed: {text}") } else { text };
        errors.push(FieldError::invalid(field, expression, detail));
    }
}

/// A rule's `fieldPath` must name declared fields.
fn field_path(schema: &Value, rule: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(given) = get(rule, "fieldPath").filter(|f| *f != "") else { return };
    let text = given.as_str().unwrap_or("");
    let field = format!("{at}.fieldPath");
    if text.trim().is_empty() {
        errors.push(FieldError::invalid(field.as_str(), given, "must be non-empty if specified"));
    }
    if text.contains(['\n', '\r']) {
        errors.push(FieldError::invalid(field.as_str(), given, "must not contain line breaks"));
    }
    let path = crowsnest_api::jsonpath::JsonPath::parse(text).ok();
    let mut current = Some(schema);
    for field in path.as_ref().and_then(|p| p.fields()).unwrap_or_default() {
        current = current.and_then(|s| {
            s.pointer("/properties").and_then(|p| p.get(field)).or_else(|| s.get("additionalProperties"))
        });
    }
    let parses = path.as_ref().is_some_and(|p| p.fields().is_some_and(|f| !f.is_empty()));
    if !parses || current.is_none() {
        errors.push(FieldError::invalid(field, given, "must be a valid path"));
    }
}
