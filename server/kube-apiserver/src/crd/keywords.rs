//! Validation of restricted schema keywords: unsupported ones, list and map types, and the positions of rules.
//!
//! The order is that of kube-apiserver: errors of schemas first, nested schemas before list and map types, then
//! errors of rules. Has no side effects.

use crowsnest_apimachinery::field::FieldError;
use serde_json::Value;

use super::rule_costs::RuleCosts;
use super::rules;
use super::structural::{get, is_non_empty, is_true, string};

const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];
const METADATA: &[&str] = &["apiVersion", "kind", "metadata"];

/// Position of a schema in the CRD's schema, and the rules that follow from it.
#[derive(Clone)]
pub(super) struct SchemaContext {
    pub is_root: bool,
    /// Path of the outermost list whose items cannot be correlated with those of the old object.
    pub uncorrelated_list: Option<String>,
    /// True inside `metadata` or the type fields of a resource.
    in_metadata: bool,
    /// Reason why a default is forbidden, with a leading space.
    forbidden_default_reason: Option<String>,
    /// True if rules are validated, which is not the case in junctors.
    validates_rules: bool,
    /// Upper bound of the number of values that this schema applies to in an object; `None` if unlimited.
    pub max_values: Option<u64>,
}

/// Errors of schemas and of rules.
#[derive(Default)]
pub(super) struct Findings {
    pub schemas: Vec<FieldError>,
    pub rules: Vec<FieldError>,
}

/// Validates the keywords of a schema recursively. Rules are compiled only if `costs` is given.
pub(super) fn check(schema: &Value, path: &str, costs: Option<&mut RuleCosts>) -> Vec<FieldError> {
    let mut found = Findings::default();
    let context = SchemaContext {
        is_root: true,
        uncorrelated_list: None,
        in_metadata: false,
        forbidden_default_reason: None,
        validates_rules: costs.is_some(),
        max_values: Some(1),
    };
    let mut unused_costs = RuleCosts::new(true);
    walk(schema, path, &context, costs.unwrap_or(&mut unused_costs), &mut found);
    found.schemas.extend(found.rules);
    found.schemas
}

fn walk(schema: &Value, path: &str, context: &SchemaContext, costs: &mut RuleCosts, found: &mut Findings) {
    let previous_error_count = found.schemas.len();
    check_unsupported(schema, path, context, &mut found.schemas);
    if is_true(schema, "uniqueItems") {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        found.schemas.push(FieldError::forbidden(format!("{path}.uniqueItems"), detail));
    }
    if is_non_empty(schema, "properties")
        && get(schema, "additionalProperties").is_some_and(|a| *a != Value::Bool(true))
    {
        let detail = "additionalProperties and properties are mutual exclusive";
        found.schemas.push(FieldError::forbidden(format!("{path}.additionalProperties"), detail));
    }
    check_children(schema, path, context, costs, found);
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        let field = format!("{path}.x-kubernetes-preserve-unknown-fields");
        found.schemas.push(FieldError::invalid(field, &Value::from(false), "must be true or undefined"));
    }
    check_list_and_map_types(schema, path, &mut found.schemas);
    rules::check_fields(schema, path, &mut found.schemas);
    if context.validates_rules && found.schemas.len() == previous_error_count {
        rules::check_expressions(schema, path, context, costs, &mut found.rules);
    }
}

/// Validates the direct children in kube-apiserver's order.
fn check_children(schema: &Value, path: &str, context: &SchemaContext, costs: &mut RuleCosts, found: &mut Findings) {
    let max_values =
        context.max_values.zip(max_elements(schema)).map(|(values, elements)| values.saturating_mul(elements));
    let inner = SchemaContext { is_root: false, max_values, ..context.clone() };
    if let Some(values) = get(schema, "additionalProperties").filter(|values| values.is_object()) {
        let mut inner = inner.clone();
        if context.in_metadata {
            inner.forbidden_default_reason =
                Some(" inside additionalProperties applying to object metadata".to_owned());
        }
        walk(values, &format!("{path}.additionalProperties"), &inner, costs, found);
    }
    let is_resource = context.is_root || is_true(schema, "x-kubernetes-embedded-resource");
    for (name, property) in get(schema, "properties").and_then(Value::as_object).into_iter().flatten() {
        let mut inner = inner.clone();
        if is_resource && METADATA.contains(&name.as_str()) {
            inner.in_metadata = true;
            if context.is_root {
                inner.forbidden_default_reason = Some(format!(" in top-level {name}"));
            }
        }
        walk(property, &format!("{path}.properties[{name}]"), &inner, costs, found);
    }
    let junctor_context = SchemaContext { validates_rules: false, ..inner.clone() };
    if let Some(not) = get(schema, "not") {
        walk(not, &format!("{path}.not"), &junctor_context, costs, found);
    }
    for key in ["allOf", "oneOf", "anyOf"] {
        for (index, branch) in get(schema, key).and_then(Value::as_array).into_iter().flatten().enumerate() {
            walk(branch, &format!("{path}.{key}[{index}]"), &junctor_context, costs, found);
        }
    }
    if let Some(items) = get(schema, "items").filter(|items| items.is_object()) {
        let breaks_correlation = string(schema, "x-kubernetes-list-type") != "map";
        let uncorrelated_list =
            context.uncorrelated_list.clone().or_else(|| breaks_correlation.then(|| path.to_owned()));
        let inner = SchemaContext { uncorrelated_list, ..inner };
        walk(items, &format!("{path}.items"), &inner, costs, found);
    }
}

/// Maximum number of elements per value of a list or map; `None` if unlimited.
fn max_elements(schema: &Value) -> Option<u64> {
    let limit = |key: &str| get(schema, key).and_then(Value::as_i64).map(|limit| u64::try_from(limit).unwrap_or(0));
    match string(schema, "type") {
        "object" if get(schema, "additionalProperties").is_some() => limit("maxProperties"),
        "array" => limit("maxItems"),
        _ => Some(1),
    }
}

fn check_unsupported(schema: &Value, path: &str, context: &SchemaContext, errors: &mut Vec<FieldError>) {
    let kind = string(schema, "type");
    if !kind.is_empty() && !TYPES.contains(&kind) {
        errors.push(FieldError::not_supported_sorted(format!("{path}.type"), &Value::from(kind), TYPES));
    }
    if let Some(reason) = context.forbidden_default_reason.as_ref().filter(|_| get(schema, "default").is_some()) {
        errors.push(FieldError::forbidden(format!("{path}.default"), format!("must not be set{reason}")));
    }
    for key in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        if is_non_empty(schema, key) || (matches!(key, "additionalItems" | "$ref") && get(schema, key).is_some()) {
            errors.push(FieldError::forbidden(format!("{path}.{key}"), format!("{key} is not supported")));
        }
    }
    if kind == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.push(FieldError::forbidden(format!("{path}.type"), detail));
    }
    if schema.get("items").is_some_and(Value::is_array) {
        let detail = "items must be a schema object and not an array";
        errors.push(FieldError::forbidden(format!("{path}.items"), detail));
    }
    if context.in_metadata && is_true(schema, "x-kubernetes-embedded-resource") {
        let field = format!("{path}.x-kubernetes-embedded-resource");
        errors.push(FieldError::forbidden(field, "must not be used inside of resource meta"));
    }
}

/// Validates `x-kubernetes-map-type`, `x-kubernetes-list-type` and the keys of list maps.
fn check_list_and_map_types(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let kind = string(schema, "type");
    let type_must_be = |expected: &str, key: &str| {
        let detail = format!("must be {expected} if {key} is specified");
        let field = format!("{path}.type");
        match kind {
            "" => FieldError::required(field, detail),
            _ => FieldError::invalid(field, &Value::from(kind), detail),
        }
    };
    let map_type = get(schema, "x-kubernetes-map-type");
    let list_type = get(schema, "x-kubernetes-list-type");
    if map_type.is_some() && kind != "object" {
        errors.push(type_must_be("object", "x-kubernetes-map-type"));
    }
    if let Some(map_type) = map_type.filter(|m| *m != "atomic" && *m != "granular") {
        let field = format!("{path}.x-kubernetes-map-type");
        errors.push(FieldError::not_supported_sorted(field, map_type, &["atomic", "granular"]));
    }
    if list_type.is_some() && kind != "array" {
        errors.push(type_must_be("array", "x-kubernetes-list-type"));
    } else if string(schema, "x-kubernetes-list-type") == "set" {
        check_list_set(schema, path, errors);
    }
    let list_path = format!("{path}.x-kubernetes-list-type");
    if let Some(list_type) = list_type.filter(|l| *l != "atomic" && *l != "set" && *l != "map") {
        errors.push(FieldError::not_supported(list_path.as_str(), list_type, &["atomic", "set", "map"]));
    }
    if is_non_empty(schema, "x-kubernetes-list-map-keys") {
        let detail = "must be map if x-kubernetes-list-map-keys is non-empty";
        match list_type {
            None => errors.push(FieldError::required(list_path.as_str(), detail)),
            Some(other) if other != "map" => errors.push(FieldError::invalid(list_path.as_str(), other, detail)),
            _ => {}
        }
    }
    match string(schema, "x-kubernetes-list-type") {
        "map" => check_list_map(schema, path, errors),
        "set" => {
            if let Some(items) = get(schema, "items").filter(|items| items.is_object()) {
                check_not_nullable(items, "set", path, errors);
            }
        }
        _ => {}
    }
}

fn check_list_map(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let keys_path = format!("{path}.x-kubernetes-list-map-keys");
    if !is_non_empty(schema, "x-kubernetes-list-map-keys") {
        errors.push(FieldError::required(keys_path.as_str(), "must not be empty if x-kubernetes-list-type is map"));
    }
    let Some(items) = get(schema, "items").filter(|i| i.is_object()) else {
        errors
            .push(FieldError::required(format!("{path}.items"), "must have a schema if x-kubernetes-list-type is map"));
        return;
    };
    if string(items, "type") != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.push(FieldError::invalid(format!("{path}.items.type"), string(items, "type"), detail));
    }
    let list = &schema["x-kubernetes-list-map-keys"];
    let keys: Vec<&str> = list.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let property = |key: &str| items.pointer("/properties").and_then(|properties| properties.get(key));
    if string(items, "type") == "object" {
        for (index, key) in keys.iter().enumerate() {
            match property(key) {
                None => {
                    let detail = "entries must all be names of item properties";
                    errors.push(FieldError::invalid(keys_path.as_str(), list, detail));
                }
                Some(found) if matches!(string(found, "type"), "array" | "object") => {
                    // kube-apiserver prints the type of the items.
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
    check_not_nullable(items, "map", path, errors);
    let required: Vec<&str> =
        items.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    const KEY_PROPERTY: &str = "this property is in x-kubernetes-list-map-keys, so it";
    for (key, found) in keys.iter().filter_map(|key| Some((key, property(key)?))) {
        let at = format!("{path}.items.properties[{key}]");
        if !required.contains(key) && found.get("default").is_none() {
            let detail = format!("{KEY_PROPERTY} must have a default or be a required property");
            errors.push(FieldError::required(format!("{at}.default"), detail));
        }
        if is_true(found, "nullable") {
            errors.push(FieldError::forbidden(format!("{at}.nullable"), format!("{KEY_PROPERTY} cannot be nullable")));
        }
    }
}

/// Validates that the items of a set or list map are not nullable.
fn check_not_nullable(items: &Value, kind: &str, path: &str, errors: &mut Vec<FieldError>) {
    if is_true(items, "nullable") {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {kind}");
        errors.push(FieldError::forbidden(format!("{path}.items.nullable"), detail));
    }
}

fn check_list_set(schema: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(items) = get(schema, "items") else { return };
    let (list_type, atomic) = (get(items, "x-kubernetes-list-type"), |key: &str| string(items, key) == "atomic");
    let key = match string(items, "type") {
        "object" if !atomic("x-kubernetes-map-type") => Some("x-kubernetes-map-type"),
        "array" if list_type.is_some() && !atomic("x-kubernetes-list-type") => Some("x-kubernetes-list-type"),
        _ => None,
    };
    if let Some(key) = key {
        // kube-apiserver prints the type of the list in both cases.
        let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
        errors.push(FieldError::invalid(format!("{path}.items.{key}"), list_type.unwrap_or(&Value::Null), detail));
    }
}
