//! Validation of structural schemas: types on all nodes, consistent extensions, unrestricted metadata, and junctions
//! that only validate declared fields. `keywords` checks the rest, `defaults` the default values. Pure.

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_schema::patterns;
use serde_json::{Value, json};

use super::rule_costs::RuleCosts;
use super::{defaults, internal, keywords};

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

/// The direct children of a schema with their paths.
pub(super) fn children<'a>(schema: &'a Value, path: &str) -> Vec<(String, &'a Value, SchemaRole)> {
    let mut found = Vec::new();
    for key in ["allOf", "anyOf", "oneOf"] {
        for (index, branch) in get(schema, key).and_then(Value::as_array).into_iter().flatten().enumerate() {
            found.push((format!("{path}.{key}[{index}]"), branch, SchemaRole::Junction));
        }
    }
    if let Some(not) = get(schema, "not") {
        found.push((format!("{path}.not"), not, SchemaRole::Junction));
    }
    if let Some(items) = get(schema, "items").filter(|i| i.is_object()) {
        found.push((format!("{path}.items"), items, SchemaRole::Item));
    }
    if let Some(values) = get(schema, "additionalProperties").filter(|a| a.is_object()) {
        found.push((format!("{path}.additionalProperties"), values, SchemaRole::Field));
    }
    for (name, property) in get(schema, "properties").and_then(Value::as_object).into_iter().flatten() {
        found.push((format!("{path}.properties[{name}]"), property, SchemaRole::Field));
    }
    found
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SchemaRole {
    Root,
    Field,
    Item,
    Junction,
}

/// Validates a version's `openAPIV3Schema`. `path` is its field path; `status` is true if the version has a status
/// subresource, `stored` if the schema is unchanged.
pub fn validate(schema: &Value, path: &str, status: bool, stored: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if status {
        errors.extend(root_with_status(schema, path));
    }
    if is(schema, "nullable") {
        errors.push(FieldError::forbidden(format!("{path}.nullable"), "nullable cannot be true at the root"));
    }
    let mut costs = None;
    let unconvertible = unconvertible(schema);
    if unconvertible.is_none() {
        let mut found = Vec::new();
        invariants(schema, path, SchemaRole::Root, &mut found);
        completeness(schema, Some(schema), path, path, &mut found);
        found.sort_by_key(ToString::to_string);
        if found.is_empty() {
            found = defaults::check(schema, path);
        }
        // Rules are validated only in an otherwise valid schema.
        costs = found.is_empty().then(|| RuleCosts::new(stored));
        errors.extend(found);
    }
    errors.extend(keywords::check(schema, path, costs.as_mut()));
    if errors.is_empty()
        && let Some(why) = unconvertible
    {
        errors.push(FieldError::invalid(path, "", why));
    }
    errors.extend(costs.map(|costs| costs.errors(path)).unwrap_or_default());
    errors
}

/// Error if Kubernetes cannot convert the schema. `keywords` reports most of these cases in more detail.
fn unconvertible(schema: &Value) -> Option<String> {
    let unsupported = [
        ("id", "id"),
        ("$schema", "schema"),
        ("$ref", "$ref"),
        ("patternProperties", "patternProperties"),
        ("dependencies", "dependencies"),
        ("additionalItems", "additionalItems"),
        ("definitions", "definitions"),
    ];
    let there = |key: &str| non_empty(schema, key) || (key == "additionalItems" && get(schema, key).is_some());
    if let Some((_, name)) = unsupported.iter().find(|(key, _)| there(key)) {
        return Some(format!("OpenAPIV3Schema '{name}' is not supported"));
    }
    if schema.get("items").is_some_and(Value::is_array) {
        return Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned());
    }
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        return Some("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined".to_owned());
    }
    children(schema, "").into_iter().find_map(|(_, child, _)| unconvertible(child))
}

/// Fields allowed at the root next to a status subresource, with their Go and JSON names.
const WITH_STATUS: &[(&str, &str)] = &[
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

fn root_with_status(schema: &Value, path: &str) -> Option<FieldError> {
    let kind = word(schema, "type");
    let stray = |key: &String| !WITH_STATUS.iter().any(|(_, name)| name == key);
    // Kubernetes checks these keywords before the type.
    let before_type = ["id", "$schema", "$ref"].iter().any(|key| non_empty(schema, key));
    if !kind.is_empty() && kind != "object" && !before_type {
        let detail =
            r#"only "object" is allowed as the type at the root of the schema if the status subresource is enabled"#;
        return Some(FieldError::invalid(format!("{path}.type"), &Value::from(kind), detail));
    }
    schema.as_object()?.keys().find(|key| stray(key) && non_empty(schema, key))?;
    let names: Vec<&str> = WITH_STATUS.iter().map(|(name, _)| *name).collect();
    let detail = format!(
        "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
        names.join(" ")
    );
    Some(FieldError::new(FieldErrorKind::Invalid, path, Some(internal::schema(schema)), detail))
}

fn invariants(schema: &Value, path: &str, role: SchemaRole, errors: &mut Vec<FieldError>) {
    let kind = word(schema, "type");
    let embedded = is(schema, "x-kubernetes-embedded-resource");
    let either = is(schema, "x-kubernetes-int-or-string");
    let preserve = is(schema, "x-kubernetes-preserve-unknown-fields");
    let type_path = format!("{path}.type");
    let additional = format!("{path}.additionalProperties");
    if kind == "array" && get(schema, "items").is_none() {
        errors.push(FieldError::required(format!("{path}.items"), "must be specified"));
    }
    let may_be_more = get(schema, "additionalProperties").is_some();
    if may_be_more && role == SchemaRole::Root {
        errors.push(FieldError::forbidden(additional.as_str(), "must not be used at the root"));
    }
    if either {
        for key in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
            if is(schema, key) {
                let detail = "must be false if x-kubernetes-int-or-string is true";
                errors.push(FieldError::invalid(format!("{path}.{key}"), &Value::from(true), detail));
            }
        }
    }
    junctions(schema, path, int_or_string_any_of(schema), int_or_string_all_of(schema), errors);
    if embedded && kind != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        errors.push(match kind {
            "" => FieldError::required(type_path.as_str(), detail),
            _ => FieldError::invalid(type_path.as_str(), &Value::from(kind), detail),
        });
    } else if kind.is_empty() && !either && !preserve {
        errors.push(FieldError::required(
            type_path.as_str(),
            match role {
                SchemaRole::Root => "must not be empty at the root",
                SchemaRole::Item => "must not be empty for specified array items",
                _ => "must not be empty for specified object fields",
            },
        ));
    }
    if embedded && may_be_more {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.push(FieldError::forbidden(additional.as_str(), detail));
    }
    if role == SchemaRole::Root && !kind.is_empty() && kind != "object" {
        errors.push(FieldError::invalid(type_path.as_str(), &Value::from(kind), "must be object at the root"));
    }
    metadata(schema, path, role == SchemaRole::Root, embedded, errors);
    if embedded && !preserve && !non_empty(schema, "properties") {
        errors.push(FieldError::required(
            format!("{path}.properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ));
    }
    for (path, child, role) in children(schema, path) {
        if role != SchemaRole::Junction {
            invariants(child, &path, role, errors);
        }
    }
}

/// True for `anyOf: [{type: integer}, {type: string}]`, which may accompany int-or-string.
fn int_or_string_any_of(schema: &Value) -> bool {
    get(schema, "anyOf").is_some_and(|any| *any == json!([{"type": "integer"}, {"type": "string"}]))
}

/// True if the first branch of `allOf` has that form.
fn int_or_string_all_of(schema: &Value) -> bool {
    get(schema, "allOf").and_then(|all| all.get(0)).is_some_and(int_or_string_any_of)
}

fn metadata(schema: &Value, path: &str, root: bool, embedded: bool, errors: &mut Vec<FieldError>) {
    let property = |name: &str| schema.pointer("/properties").and_then(|all| all.get(name));
    for (name, wanted) in [("kind", "string"), ("apiVersion", "string"), ("metadata", "object")] {
        let Some(property) = property(name).filter(|_| root || embedded) else { continue };
        if word(property, "type") != wanted {
            let field = format!("{path}.properties[{name}].type");
            errors.push(FieldError::invalid(field, &Value::from(word(property, "type")), format!("must be {wanted}")));
        }
    }
    let Some(meta) = property("metadata").and_then(Value::as_object).filter(|_| root) else { return };
    let named = meta
        .get("properties")
        .and_then(Value::as_object)
        .is_none_or(|all| all.is_empty() || all.keys().all(|name| name == "name" || name == "generateName"));
    let is_stray = |(key, value): (&String, &Value)| match key.as_str() {
        "properties" | "type" | "default" => false,
        // False is a restriction, too.
        "additionalProperties" => !value.is_null(),
        key => non_empty(&json!(meta), key),
    };
    if !named || meta.iter().any(is_stray) {
        errors.push(FieldError::forbidden(
            format!("{path}.properties[metadata]"),
            "must not specify anything other than name and generateName, but metadata is implicitly specified",
        ));
    }
}

/// Validates `anyOf`, `allOf`, `oneOf`, `not` and the pattern.
fn junctions(schema: &Value, path: &str, skip_any: bool, skip_first: bool, errors: &mut Vec<FieldError>) {
    let branches = |key: &'static str| get(schema, key).and_then(Value::as_array).into_iter().flatten().enumerate();
    for (index, branch) in branches("anyOf").filter(|_| !skip_any) {
        junction(branch, &format!("{path}.anyOf[{index}]"), false, errors);
    }
    for (index, branch) in branches("allOf") {
        junction(branch, &format!("{path}.allOf[{index}]"), skip_first && index == 0, errors);
    }
    for (index, branch) in branches("oneOf") {
        junction(branch, &format!("{path}.oneOf[{index}]"), false, errors);
    }
    if let Some(not) = get(schema, "not") {
        junction(not, &format!("{path}.not"), false, errors);
    }
    if let Some(pattern) = get(schema, "pattern").and_then(Value::as_str)
        && let Some(problem) = patterns::problem(pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {problem}");
        errors.push(FieldError::invalid(format!("{path}.pattern"), &Value::from(pattern), detail));
    }
}

/// Validates a junction, which may contain only value validations.
fn junction(schema: &Value, path: &str, skip_any: bool, errors: &mut Vec<FieldError>) {
    junctions(schema, path, skip_any, false, errors);
    for (path, child, role) in children(schema, path) {
        let more = path.ends_with(".additionalProperties");
        if role != SchemaRole::Junction && !more {
            junction(child, &path, false, errors);
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
        let there = if must_be == "undefined" { get(schema, key).is_some() } else { non_empty(schema, key) };
        if there {
            errors.push(FieldError::forbidden(format!("{path}.{key}"), format!("must be {must_be} to be structural")));
        }
    }
    if schema.pointer("/properties/metadata").is_some() {
        let field = format!("{path}.properties[metadata]");
        errors.push(FieldError::forbidden(field, "must not be specified in a nested context"));
    }
}

/// Checks that all fields in a junction are declared outside of it. `declared` is the schema at the same position.
fn completeness(schema: &Value, declared: Option<&Value>, at: &str, path: &str, errors: &mut Vec<FieldError>) {
    for (path, branch, _) in children(schema, path).into_iter().filter(|(_, _, role)| *role == SchemaRole::Junction) {
        nested_completeness(branch, declared, at, &path, errors);
    }
}

fn nested_completeness(branch: &Value, declared: Option<&Value>, at: &str, path: &str, errors: &mut Vec<FieldError>) {
    let Some(declared) = declared else {
        errors.push(FieldError::required(at, format!("because it is defined in {path}")));
        return;
    };
    completeness(branch, Some(declared), at, path, errors);
    if let Some(items) = get(branch, "items").filter(|items| items.is_object()) {
        let (at, path) = (format!("{at}.items"), format!("{path}.items"));
        nested_completeness(items, get(declared, "items"), &at, &path, errors);
    }
    for (name, property) in get(branch, "properties").and_then(Value::as_object).into_iter().flatten() {
        let (at, path) = (format!("{at}.properties[{name}]"), format!("{path}.properties[{name}]"));
        let declared = declared.get("properties").and_then(|all| all.get(name));
        nested_completeness(property, declared, &at, &path, errors);
    }
}
