//! Validation of admission policies and their bindings, with kube-apiserver's order and wording.

use std::collections::BTreeSet;

use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::format::{
    validate_dns1035_label, validate_dns1123_subdomain, validate_path_segment, validate_qualified_name,
};
use crowsnest_apimachinery::unstructured::{list, text};
use crowsnest_cel::typing::Type;
use crowsnest_registry::admission::expression::{
    AvailableVariables, ExpectedResult, check_expression, check_instantiation,
};
use serde_json::Value;

use crate::selector_errors;
use crate::validate::webhook::{validate_match_conditions, validate_rule};

const REASONS: &[&str] = &["Forbidden", "Invalid", "RequestEntityTooLarge"];

fn non_null<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    value.get(key).filter(|field| !field.is_null())
}

fn require_one_of(value: &Value, key: &str, path: &str, supported: &[&str], errors: &mut Vec<FieldError>) {
    match non_null(value, key) {
        None => errors.push(FieldError::required(format!("{path}.{key}"), "")),
        Some(one) if !supported.iter().any(|k| one == k) => {
            errors.push(FieldError::not_supported_sorted(format!("{path}.{key}"), one, supported));
        }
        Some(_) => {}
    }
}

/// Validates a ValidatingAdmissionPolicy.
pub fn validate_validating_policy(object: &Value) -> Vec<FieldError> {
    let (spec, mut errors) = (&object["spec"], Vec::new());
    let variables = validate_common_fields(spec, &[], &mut errors);
    let has_params = non_null(spec, "paramKind").is_some();
    let variables = (!variables.is_empty()).then_some(variables.as_slice());
    let available = AvailableVariables { has_params, has_authorizer: true, variables };
    let (validations, annotations) = (list(spec, "validations"), list(spec, "auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        for key in ["validations", "auditAnnotations"] {
            let reason = "validations or auditAnnotations must contain at least one item";
            errors.push(FieldError::required(format!("spec.{key}"), reason));
        }
    }
    for (index, validation) in validations.iter().enumerate() {
        validate_validation(validation, &format!("spec.validations[{index}]"), available, &mut errors);
    }
    let policy = object["metadata"]["name"].as_str().unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (index, annotation) in annotations.iter().enumerate() {
        let at = format!("spec.auditAnnotations[{index}]");
        let (field, key) = (format!("{at}.key"), text(annotation, "key"));
        let qualified_key = format!("{policy}/{key}");
        let problems = validate_qualified_name(&qualified_key);
        errors.extend(problems.into_iter().map(|reason| FieldError::invalid(field.as_str(), &qualified_key, reason)));
        if !seen.insert(key) {
            errors.push(FieldError::duplicate(field, key));
        }
        let missing = "valueExpression is not specified";
        validate_expression(
            annotation,
            "valueExpression",
            &at,
            missing,
            available,
            ExpectedResult::TextOrNull,
            &mut errors,
        );
    }
    errors
}

/// Validates a MutatingAdmissionPolicy.
pub fn validate_mutating_policy(object: &Value) -> Vec<FieldError> {
    let (spec, mut errors) = (&object["spec"], Vec::new());
    let variables = validate_common_fields(spec, &["*", "CONNECT", "CREATE", "UPDATE"], &mut errors);
    let has_params = non_null(spec, "paramKind").is_some();
    let available = AvailableVariables { has_params, has_authorizer: true, variables: Some(&variables) };
    let mutations = list(spec, "mutations");
    if mutations.is_empty() {
        errors.push(FieldError::required("spec.mutations", "mutations must contain at least one item"));
    }
    for (index, mutation) in mutations.iter().enumerate() {
        validate_mutation(mutation, &format!("spec.mutations[{index}]"), available, &mut errors);
    }
    match text(spec, "reinvocationPolicy") {
        "" => errors.push(FieldError::required("spec.reinvocationPolicy", "")),
        _ => require_one_of(spec, "reinvocationPolicy", "spec", &["IfNeeded", "Never"], &mut errors),
    }
    errors
}

/// Validates the fields common to both kinds of policy; returns the variables with their types. Empty `operations`
/// allow any.
fn validate_common_fields(spec: &Value, operations: &[&str], errors: &mut Vec<FieldError>) -> Vec<(String, Type)> {
    require_one_of(spec, "failurePolicy", "spec", &["Fail", "Ignore"], errors);
    let kind = non_null(spec, "paramKind");
    if let Some(kind) = kind {
        validate_param_kind(kind, "spec.paramKind", errors);
    }
    match non_null(spec, "matchConstraints") {
        None => errors.push(FieldError::required("spec.matchConstraints", "")),
        Some(constraints) => {
            validate_match_resources(constraints, "spec.matchConstraints", errors);
            if list(constraints, "resourceRules").is_empty() {
                errors.push(FieldError::required("spec.matchConstraints.resourceRules", ""));
            }
            if !operations.is_empty() {
                validate_operations(constraints, operations, errors);
            }
        }
    }
    validate_match_conditions(spec, "spec.matchConditions", kind.is_some(), errors);
    validate_variables(list(spec, "variables"), kind.is_some(), errors)
}

/// Checks that a policy uses only supported operations.
fn validate_operations(constraints: &Value, supported: &[&str], errors: &mut Vec<FieldError>) {
    for rule in list(constraints, "resourceRules") {
        for operation in list(rule, "operations") {
            if !supported.iter().any(|supported| operation == *supported) {
                let field = "spec.matchConstraints.resourceRules.operations";
                errors.push(FieldError::not_supported_sorted(field, operation, supported));
            }
        }
    }
}

fn validate_mutation(mutation: &Value, path: &str, available: AvailableVariables<'_>, errors: &mut Vec<FieldError>) {
    let kinds = [
        ("JSONPatch", "jsonPatch", ExpectedResult::JsonPatch),
        ("ApplyConfiguration", "applyConfiguration", ExpectedResult::ApplyConfiguration),
    ];
    let patch_type = text(mutation, "patchType");
    if patch_type.is_empty() {
        return errors.push(FieldError::required(format!("{path}.patchType"), ""));
    }
    if !kinds.iter().any(|(name, _, _)| *name == patch_type) {
        return require_one_of(mutation, "patchType", path, &["ApplyConfiguration", "JSONPatch"], errors);
    }
    for (name, key, expected) in kinds {
        let at = format!("{path}.{key}");
        match (name == patch_type, non_null(mutation, key)) {
            (true, None) => {
                errors.push(FieldError::required(at, format!("must be specified when patchType is {patch_type}")));
            }
            (true, Some(patch)) => {
                validate_expression(patch, "expression", &at, "", available, expected, errors);
            }
            (false, Some(_)) => {
                let reason = format!("must not be specified when patchType is {patch_type}");
                errors.push(FieldError::invalid(at, &format!("{{{key}}}"), reason));
            }
            (false, None) => {}
        }
    }
}

fn validate_match_resources(resources: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for key in ["namespaceSelector", "objectSelector"] {
        errors.extend(selector_errors(&resources[key], &format!("{path}.{key}")));
    }
    for key in ["resourceRules", "excludeResourceRules"] {
        for (index, one) in list(resources, key).iter().enumerate() {
            validate_rule(one, &format!("{path}.{key}[{index}]"), errors);
        }
    }
    require_one_of(resources, "matchPolicy", path, &["Equivalent", "Exact"], errors);
}

/// Validates a required expression; returns its type if it compiles.
fn validate_expression(
    value: &Value,
    key: &str,
    path: &str,
    missing: &str,
    available: AvailableVariables<'_>,
    expected: ExpectedResult,
    errors: &mut Vec<FieldError>,
) -> Option<Type> {
    let field = format!("{path}.{key}");
    let source = text(value, key);
    if source.trim().is_empty() {
        errors.push(FieldError::required(field, missing));
        return None;
    }
    match check_expression(source, available, expected) {
        Ok(result_type) => {
            errors.extend(check_instantiation(source, &field));
            Some(result_type)
        }
        Err(problem) => {
            errors.push(FieldError::invalid(field, source, problem));
            None
        }
    }
}

/// Validates variables: unique names, and expressions that can use preceding variables.
fn validate_variables(list: &[Value], has_params: bool, errors: &mut Vec<FieldError>) -> Vec<(String, Type)> {
    let mut variables: Vec<(String, Type)> = Vec::new();
    for (index, entry) in list.iter().enumerate() {
        let at = format!("spec.variables[{index}]");
        let (field, name) = (format!("{at}.name"), text(entry, "name"));
        if name.is_empty() {
            errors.push(FieldError::required(field, "name is not specified"));
        } else if !is_identifier(name) {
            errors.push(FieldError::invalid(field, name, "must be a valid CEL identifier"));
        } else if variables.iter().any(|(other, _)| other == name) {
            errors.push(FieldError::duplicate(field, name));
        }
        let available = AvailableVariables { has_params, has_authorizer: true, variables: Some(&variables) };
        let missing = "expression is not specified";
        let result_type =
            validate_expression(entry, "expression", &at, missing, available, ExpectedResult::Anything, errors);
        variables.push((name.to_owned(), result_type.unwrap_or(Type::Dyn)));
    }
    variables
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|next| next.is_ascii_alphanumeric() || next == '_')
}

fn validate_validation(
    validation: &Value,
    path: &str,
    available: AvailableVariables<'_>,
    errors: &mut Vec<FieldError>,
) {
    validate_expression(
        validation,
        "expression",
        path,
        "expression is not specified",
        available,
        ExpectedResult::Bool,
        errors,
    );
    if non_null(validation, "messageExpression").is_some() {
        let (missing, available) =
            ("must be non-empty if specified", AvailableVariables { has_authorizer: false, ..available });
        validate_expression(validation, "messageExpression", path, missing, available, ExpectedResult::Text, errors);
    }
    if let Some(message) = non_null(validation, "message").and_then(Value::as_str) {
        let field = format!("{path}.message");
        if !message.is_empty() && message.trim().is_empty() {
            errors.push(FieldError::invalid(field, message, "message must be non-empty if specified"));
        } else if message.trim().contains('\n') {
            errors.push(FieldError::invalid(field, message, "must not contain line breaks"));
        }
    }
    if non_null(validation, "reason").is_some() {
        require_one_of(validation, "reason", path, REASONS, errors);
    }
}

/// Validates a MutatingAdmissionPolicyBinding.
pub fn validate_mutating_binding(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    validate_common_binding_fields(&object["spec"], &mut errors);
    errors
}

/// Validates a ValidatingAdmissionPolicyBinding.
pub fn validate_validating_binding(object: &Value) -> Vec<FieldError> {
    let (spec, mut errors) = (&object["spec"], Vec::new());
    validate_common_binding_fields(spec, &mut errors);
    let actions = list(spec, "validationActions");
    if actions.is_empty() {
        errors.push(FieldError::required("spec.validationActions", "at least one validation action is required"));
    }
    let mut seen = Vec::new();
    for (index, action) in actions.iter().enumerate() {
        let field = format!("spec.validationActions[{index}]");
        if !["Audit", "Deny", "Warn"].iter().any(|known| action == known) {
            errors.push(FieldError::not_supported_sorted(field.as_str(), action, &["Audit", "Deny", "Warn"]));
        }
        if seen.contains(&action) {
            errors.push(FieldError::duplicate(field, action));
        }
        seen.push(action);
    }
    if ["Deny", "Warn"].iter().all(|one| actions.iter().any(|action| action == one)) {
        let reason = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(FieldError::invalid("spec.validationActions", &spec["validationActions"], reason));
    }
    errors
}

/// Validates the fields common to both kinds of binding.
fn validate_common_binding_fields(spec: &Value, errors: &mut Vec<FieldError>) {
    let policy = text(spec, "policyName");
    if policy.is_empty() {
        errors.push(FieldError::required("spec.policyName", ""));
    }
    for reason in Some(validate_dns1123_subdomain(policy)).filter(|_| !policy.is_empty()).into_iter().flatten() {
        errors.push(FieldError::invalid("spec.policyName", policy, reason));
    }
    if let Some(param_ref) = non_null(spec, "paramRef") {
        validate_param_ref(param_ref, "spec.paramRef", errors);
    }
    if let Some(resources) = non_null(spec, "matchResources") {
        validate_match_resources(resources, "spec.matchResources", errors);
    }
}

/// `validateParamRef`.
fn validate_param_ref(param_ref: &Value, path: &str, errors: &mut Vec<FieldError>) {
    const EXCLUSIVE: &str = "name and selector are mutually exclusive";
    let (name, selector) = (text(param_ref, "name"), non_null(param_ref, "selector"));
    if !name.is_empty() {
        let field = format!("{path}.name");
        errors.extend(
            validate_path_segment(name, false)
                .into_iter()
                .map(|reason| FieldError::invalid(field.as_str(), name, reason)),
        );
        if selector.is_some() {
            errors.push(FieldError::forbidden(field, EXCLUSIVE));
        }
    }
    if let Some(selector) = selector {
        let field = format!("{path}.selector");
        errors.extend(selector_errors(selector, &field));
        if !name.is_empty() {
            errors.push(FieldError::forbidden(field, EXCLUSIVE));
        }
    } else if name.is_empty() {
        errors.push(FieldError::required(path, "one of name or selector must be specified"));
    }
    let (known, field) = (["Deny", "Allow"], format!("{path}.parameterNotFoundAction"));
    match text(param_ref, "parameterNotFoundAction") {
        "" => errors.push(FieldError::required(field, "")),
        action if known.contains(&action) => {}
        action => errors.push(FieldError::not_supported(field, action, &known)),
    }
}

/// `validateParamKind`.
fn validate_param_kind(kind: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let (field, api_version) = (format!("{path}.apiVersion"), text(kind, "apiVersion"));
    let mut invalid = |value: &str, reason: Vec<String>| {
        if !reason.is_empty() {
            errors.push(FieldError::invalid(field.as_str(), value, reason.join(",")));
        }
    };
    match api_version.split('/').collect::<Vec<_>>().as_slice() {
        [""] => errors.push(FieldError::required(field, "")),
        ["", ""] => invalid(api_version, vec!["version must be specified".into()]),
        [version] => invalid(version, validate_dns1035_label(version)),
        [group, version] => {
            if !group.is_empty() {
                invalid(group, validate_dns1123_subdomain(group));
            }
            match *version {
                "" => invalid(api_version, vec!["version must be specified".into()]),
                version => invalid(version, validate_dns1035_label(version)),
            }
        }
        _ => invalid(api_version, vec![format!("unexpected GroupVersion string: {api_version}")]),
    }
    let (field, name) = (format!("{path}.kind"), text(kind, "kind"));
    if name.is_empty() {
        errors.push(FieldError::required(field, ""));
    } else {
        let reason = validate_dns1035_label(&name.to_lowercase());
        if !reason.is_empty() {
            let reason = format!("may have mixed case, but should otherwise match: {}", reason.join(","));
            errors.push(FieldError::invalid(field, name, reason));
        }
    }
}
