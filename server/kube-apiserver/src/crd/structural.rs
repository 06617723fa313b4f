//! Validation of structural schemas: types on all nodes, consistent extensions, unrestricted metadata, and logical
//! junctors (`allOf`, `anyOf`, `oneOf`, `not`) that only validate declared fields. `keywords` checks the rest,
//! `defaults` the default values. Has no side effects.

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_schema::go_regexp_errors;
use serde_json::{Value, json};

use super::rule_costs::RuleCosts;
use super::{defaults, internal_types, keywords};

/// The value of a keyword; `None` if it is missing or null.
pub(super) fn get<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    schema.get(key).filter(|v| !v.is_null())
}

/// True if the boolean keyword is set.
pub(super) fn is_true(schema: &Value, key: &str) -> bool {
    schema.get(key).and_then(Value::as_bool).unwrap_or(false)
}

/// The value of a string keyword; empty if it is missing.
pub(super) fn string<'a>(schema: &'a Value, key: &str) -> &'a str {
    schema.get(key).and_then(Value::as_str).unwrap_or("")
}

/// True if the keyword has a value other than null, false and an empty string, list or object.
pub(super) fn is_non_empty(schema: &Value, key: &str) -> bool {
    match schema.get(key) {
        Some(Value::Object(map)) => !map.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Bool(set)) => *set,
        Some(Value::Null) | None => false,
        Some(Value::Number(_)) => true,
    }
}

/// The direct children of a schema with their paths and roles.
pub(super) fn children<'a>(schema: &'a Value, path: &str) -> Vec<(String, &'a Value, SchemaRole)> {
    let mut children = Vec::new();
    for key in ["allOf", "anyOf", "oneOf"] {
        for (index, branch) in get(schema, key).and_then(Value::as_array).into_iter().flatten().enumerate() {
            children.push((format!("{path}.{key}[{index}]"), branch, SchemaRole::Junctor));
        }
    }
    if let Some(not) = get(schema, "not") {
        children.push((format!("{path}.not"), not, SchemaRole::Junctor));
    }
    if let Some(items) = get(schema, "items").filter(|i| i.is_object()) {
        children.push((format!("{path}.items"), items, SchemaRole::Item));
    }
    if let Some(values) = get(schema, "additionalProperties").filter(|a| a.is_object()) {
        children.push((format!("{path}.additionalProperties"), values, SchemaRole::Field));
    }
    for (name, property) in get(schema, "properties").and_then(Value::as_object).into_iter().flatten() {
        children.push((format!("{path}.properties[{name}]"), property, SchemaRole::Field));
    }
    children
}

/// Position of a schema in its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SchemaRole {
    Root,
    Field,
    Item,
    Junctor,
}

/// Validates a version's `openAPIV3Schema`. `path` is its field path; `has_status` is true if the version has a status
/// subresource, `is_stored` if the stored CRD has the same schema.
pub fn validate(schema: &Value, path: &str, has_status: bool, is_stored: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if has_status {
        errors.extend(check_root_with_status(schema, path));
    }
    if is_true(schema, "nullable") {
        errors.push(FieldError::forbidden(format!("{path}.nullable"), "nullable cannot be true at the root"));
    }
    let mut costs = None;
    let conversion_error = find_conversion_error(schema);
    if conversion_error.is_none() {
        let mut found = Vec::new();
        check_invariants(schema, path, SchemaRole::Root, &mut found);
        check_completeness(schema, Some(schema), path, path, &mut found);
        found.sort_by_key(ToString::to_string);
        if found.is_empty() {
            found = defaults::check(schema, path);
        }
        // Rules are validated only in an otherwise valid schema.
        costs = found.is_empty().then(|| RuleCosts::new(is_stored));
        errors.extend(found);
    }
    errors.extend(keywords::check(schema, path, costs.as_mut()));
    if errors.is_empty()
        && let Some(reason) = conversion_error
    {
        errors.push(FieldError::invalid(path, "", reason));
    }
    errors.extend(costs.map(|costs| costs.errors(path)).unwrap_or_default());
    errors
}

/// The error with which Kubernetes fails to convert the schema to a structural one. `keywords` reports most of these
/// cases in more detail.
fn find_conversion_error(schema: &Value) -> Option<String> {
    let unsupported = [
        ("id", "id"),
        ("$schema", "schema"),
        ("$ref", "$ref"),
        ("patternProperties", "patternProperties"),
        ("dependencies", "dependencies"),
        ("additionalItems", "additionalItems"),
        ("definitions", "definitions"),
    ];
    let is_present = |key: &str| is_non_empty(schema, key) || (key == "additionalItems" && get(schema, key).is_some());
    if let Some((_, name)) = unsupported.iter().find(|(key, _)| is_present(key)) {
        return Some(format!("OpenAPIV3Schema '{name}' is not supported"));
    }
    if schema.get("items").is_some_and(Value::is_array) {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    }
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        return Some("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined".to_owned());
    }
    children(schema, "").into_iter().find_map(|(_, child, _)| find_conversion_error(child))
}

/// Fields allowed at the root next to a status subresource, with their Go and JSON names.
const ROOT_FIELDS_WITH_STATUS: &[(&str, &str)] = &[
    ("Description", "description"),
    ("Type", "type"),
    ("Format", "format"),
    ("Title", "title"),
    ("Maximum", "maximum"),
    ("ExclusiveMaximum", "exclusiveMaximum"),
    ("Minimum", "minimum"),
    ("ExclusiveMinimum", "exclusiveMinimum"),
    ("MaxLength", "maxLength"),
    ("MinLength", "minLength"),
    ("Pattern", "pattern"),
    ("MaxItems", "maxItems"),
    ("MinItems", "minItems"),
    ("UniqueItems", "uniqueItems"),
    ("MultipleOf", "multipleOf"),
    ("Required", "required"),
    ("Items", "items"),
    ("Properties", "properties"),
    ("ExternalDocs", "externalDocs"),
    ("Example", "example"),
    ("XPreserveUnknownFields", "x-kubernetes-preserve-unknown-fields"),
    ("XValidations", "x-kubernetes-validations"),
];

/// Error if the root has fields that are forbidden next to a status subresource.
fn check_root_with_status(schema: &Value, path: &str) -> Option<FieldError> {
    let kind = string(schema, "type");
    let is_forbidden = |key: &String| !ROOT_FIELDS_WITH_STATUS.iter().any(|(_, name)| name == key);
    // Kubernetes checks these keywords before the type.
    let before_type = ["id", "$schema", "$ref"].iter().any(|key| is_non_empty(schema, key));
    if !kind.is_empty() && kind != "object" && !before_type {
        let detail =
            r#"only "object" is allowed as the type at the root of the schema if the status subresource is enabled"#;
        return Some(FieldError::invalid(format!("{path}.type"), &Value::from(kind), detail));
    }
    schema.as_object()?.keys().find(|key| is_forbidden(key) && is_non_empty(schema, key))?;
    let names: Vec<&str> = ROOT_FIELDS_WITH_STATUS.iter().map(|(name, _)| *name).collect();
    let detail = format!(
        "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
        names.join(" ")
    );
    Some(FieldError::new(FieldErrorKind::Invalid, path, Some(internal_types::print_schema(schema)), detail))
}

/// Validates a schema and its children outside of junctors.
fn check_invariants(schema: &Value, path: &str, role: SchemaRole, errors: &mut Vec<FieldError>) {
    let kind = string(schema, "type");
    let is_embedded = is_true(schema, "x-kubernetes-embedded-resource");
    let is_int_or_string = is_true(schema, "x-kubernetes-int-or-string");
    let preserves_unknown_fields = is_true(schema, "x-kubernetes-preserve-unknown-fields");
    let type_path = format!("{path}.type");
    let additional = format!("{path}.additionalProperties");
    if kind == "array" && get(schema, "items").is_none() {
        errors.push(FieldError::required(format!("{path}.items"), "must be specified"));
    }
    let has_additional_properties = get(schema, "additionalProperties").is_some();
    if has_additional_properties && role == SchemaRole::Root {
        errors.push(FieldError::forbidden(additional.as_str(), "must not be used at the root"));
    }
    if is_int_or_string {
        for key in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
            if is_true(schema, key) {
                let detail = "must be false if x-kubernetes-int-or-string is true";
                errors.push(FieldError::invalid(format!("{path}.{key}"), &Value::from(true), detail));
            }
        }
    }
    check_junctors(schema, path, has_int_or_string_any_of(schema), has_int_or_string_all_of(schema), errors);
    if is_embedded && kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(match kind {
            "" => FieldError::required(type_path.as_str(), detail),
            _ => FieldError::invalid(type_path.as_str(), &Value::from(kind), detail),
        });
    } else if kind.is_empty() && !is_int_or_string && !preserves_unknown_fields {
        errors.push(FieldError::required(
            type_path.as_str(),
            match role {
                SchemaRole::Root => "must not be empty at the root",
                SchemaRole::Item => "must not be empty for specified array items",
                _ => "must not be empty for specified object fields",
            },
        ));
    }
    if is_embedded && has_additional_properties {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(FieldError::forbidden(additional.as_str(), detail));
    }
    if role == SchemaRole::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(type_path.as_str(), &Value::from(kind), "must be object at the root"));
    }
    check_metadata(schema, path, role == SchemaRole::Root, is_embedded, errors);
    if is_embedded && !preserves_unknown_fields && !is_non_empty(schema, "properties") {
        errors.push(FieldError::required(
            format!("{path}.properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ));
    }
    for (path, child, role) in children(schema, path) {
        if role != SchemaRole::Junctor {
            check_invariants(child, &path, role, errors);
        }
    }
}

/// True for `anyOf: [{type: integer}, {type: string}]`, which may accompany int-or-string.
fn has_int_or_string_any_of(schema: &Value) -> bool {
    get(schema, "anyOf").is_some_and(|any| *any == json!([{"type": "integer"}, {"type": "string"}]))
}

/// True if the first branch of `allOf` has such an `anyOf`.
fn has_int_or_string_all_of(schema: &Value) -> bool {
    get(schema, "allOf").and_then(|all| all.get(0)).is_some_and(has_int_or_string_any_of)
}

/// Validates the types of `kind`, `apiVersion` and `metadata` of a resource. At the root, `metadata` can restrict only
/// `name` and `generateName`.
fn check_metadata(schema: &Value, path: &str, is_root: bool, is_embedded: bool, errors: &mut Vec<FieldError>) {
    let property = |name: &str| schema.pointer("/properties").and_then(|all| all.get(name));
    for (name, expected) in [("kind", "string"), ("apiVersion", "string"), ("metadata", "object")] {
        let Some(property) = property(name).filter(|_| is_root || is_embedded) else { continue };
        if string(property, "type") != expected {
            let field = format!("{path}.properties[{name}].type");
            errors.push(FieldError::invalid(
                field,
                &Value::from(string(property, "type")),
                format!("must be {expected}"),
            ));
        }
    }
    let Some(meta) = property("metadata").and_then(Value::as_object).filter(|_| is_root) else { return };
    let restricts_only_names = meta
        .get("properties")
        .and_then(Value::as_object)
        .is_none_or(|all| all.is_empty() || all.keys().all(|name| name == "name" || name == "generateName"));
    let is_forbidden = |(key, value): (&String, &Value)| match key.as_str() {
        "properties" | "type" | "default" => false,
        // False is a restriction, too.
        "additionalProperties" => !value.is_null(),
        key => is_non_empty(&json!(meta), key),
    };
    if !restricts_only_names || meta.iter().any(is_forbidden) {
        errors.push(FieldError::forbidden(
            format!("{path}.properties[metadata]"),
            "must not specify anything other than name and generateName, but metadata is implicitly specified",
        ));
    }
}

/// Validates the junctors of a schema, and its pattern. `skips_any_of` and `skips_first_any_of` exempt the `anyOf` of
/// the schema, or of the first branch of its `allOf`.
fn check_junctors(
    schema: &Value,
    path: &str,
    skips_any_of: bool,
    skips_first_any_of: bool,
    errors: &mut Vec<FieldError>,
) {
    let branches = |key: &'static str| get(schema, key).and_then(Value::as_array).into_iter().flatten().enumerate();
    for (index, branch) in branches("anyOf").filter(|_| !skips_any_of) {
        check_junctor_branch(branch, &format!("{path}.anyOf[{index}]"), false, errors);
    }
    for (index, branch) in branches("allOf") {
        check_junctor_branch(branch, &format!("{path}.allOf[{index}]"), skips_first_any_of && index == 0, errors);
    }
    for (index, branch) in branches("oneOf") {
        check_junctor_branch(branch, &format!("{path}.oneOf[{index}]"), false, errors);
    }
    if let Some(not) = get(schema, "not") {
        check_junctor_branch(not, &format!("{path}.not"), false, errors);
    }
    if let Some(pattern) = get(schema, "pattern").and_then(Value::as_str)
        && let Some(problem) = go_regexp_errors::pattern_error(pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {problem}");
        errors.push(FieldError::invalid(format!("{path}.pattern"), &Value::from(pattern), detail));
    }
}

/// Validates a branch of a junctor, which may contain only value validations.
fn check_junctor_branch(schema: &Value, path: &str, skips_any_of: bool, errors: &mut Vec<FieldError>) {
    check_junctors(schema, path, skips_any_of, false, errors);
    for (path, child, role) in children(schema, path) {
        let is_additional = path.ends_with(".additionalProperties");
        if role != SchemaRole::Junctor && !is_additional {
            check_junctor_branch(child, &path, false, errors);
        }
    }
    for (key, must_be) in [
        ("type", "empty"),
        ("additionalProperties", "undefined"),
        ("default", "undefined"),
        ("title", "empty"),
        ("description", "empty"),
        ("nullable", "false"),
        ("x-kubernetes-preserve-unknown-fields", "false"),
        ("x-kubernetes-embedded-resource", "false"),
        ("x-kubernetes-int-or-string", "false"),
        ("x-kubernetes-list-map-keys", "empty"),
        ("x-kubernetes-list-type", "undefined"),
        ("x-kubernetes-map-type", "undefined"),
        ("x-kubernetes-validations", "empty"),
    ] {
        let is_present = if must_be == "undefined" { get(schema, key).is_some() } else { is_non_empty(schema, key) };
        if is_present {
            errors.push(FieldError::forbidden(format!("{path}.{key}"), format!("must be {must_be} to be structural")));
        }
    }
    if schema.pointer("/properties/metadata").is_some() {
        let field = format!("{path}.properties[metadata]");
        errors.push(FieldError::forbidden(field, "must not be specified in a nested context"));
    }
}

/// Checks that all fields in a junctor are declared outside of it. `declared` is the schema at the same position.
fn check_completeness(schema: &Value, declared: Option<&Value>, at: &str, path: &str, errors: &mut Vec<FieldError>) {
    for (path, branch, _) in children(schema, path).into_iter().filter(|(_, _, role)| *role == SchemaRole::Junctor) {
        check_nested_completeness(branch, declared, at, &path, errors);
    }
}

fn check_nested_completeness(
    branch: &Value,
    declared: Option<&Value>,
    at: &str,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let Some(declared) = declared else {
        errors.push(FieldError::required(at, format!("because it is defined in {path}")));
        return;
    };
    check_completeness(branch, Some(declared), at, path, errors);
    if let Some(items) = get(branch, "items").filter(|items| items.is_object()) {
        let (at, path) = (format!("{at}.items"), format!("{path}.items"));
        check_nested_completeness(items, get(declared, "items"), &at, &path, errors);
    }
    for (name, property) in get(branch, "properties").and_then(Value::as_object).into_iter().flatten() {
        let (at, path) = (format!("{at}.properties[{name}]"), format!("{path}.properties[{name}]"));
        let declared = declared.get("properties").and_then(|all| all.get(name));
        check_nested_completeness(property, declared, &at, &path, errors);
    }
}
