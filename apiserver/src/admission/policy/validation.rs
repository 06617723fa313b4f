//! Validation of ValidatingAdmissionPolicies and their bindings, in kube-apiserver's order and wording.

use std::collections::BTreeSet;

use crowsnest_api::field::FieldError;
use serde_json::Value;

use crate::admission::expression::Expression;
use crate::admission::webhook::validation::{conditions, rule, selector};
use crate::registry::validation::{dns1123_subdomain, qualified_name};

const REASONS: &[&str] = &["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"];

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("")
}

fn entries<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn given<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    value.get(key).filter(|given| !given.is_null())
}

fn choice(value: &Value, key: &str, path: &str, known: &[&str], errors: &mut Vec<FieldError>) {
    match given(value, key) {
        None => errors.push(FieldError::required(format!("{path}.{key}"), "")),
        Some(one) if !known.iter().any(|k| one == k) => {
            errors.push(FieldError::not_supported_sorted(format!("{path}.{key}"), one, known));
        }
        Some(_) => {}
    }
}

/// Everything wrong with a policy.
pub fn policy(object: &Value) -> Vec<FieldError> {
    let (spec, mut errors) = (&object["spec"], Vec::new());
    choice(spec, "failurePolicy", "spec", &["Fail", "Ignore"], &mut errors);
    if let Some(kind) = given(spec, "paramKind") {
        for key in ["apiVersion", "kind"] {
            if text(kind, key).is_empty() {
                errors.push(FieldError::required(format!("spec.paramKind.{key}"), ""));
            }
        }
    }
    match given(spec, "matchConstraints") {
        None => errors.push(FieldError::required("spec.matchConstraints", "")),
        Some(constraints) => {
            matching(constraints, "spec.matchConstraints", &mut errors);
            if entries(constraints, "resourceRules").is_empty() {
                errors.push(FieldError::required("spec.matchConstraints.resourceRules", ""));
            }
        }
    }
    conditions(spec, "spec.matchConditions", &mut errors);
    named(entries(spec, "variables"), "name", "expression", "spec.variables", &mut errors);
    let (validations, annotations) = (entries(spec, "validations"), entries(spec, "auditAnnotations"));
    if validations.is_empty() && annotations.is_empty() {
        for key in ["validations", "auditAnnotations"] {
            let why = "validations or auditAnnotations must be specified";
            errors.push(FieldError::required(format!("spec.{key}"), why));
        }
    }
    for (index, validation) in validations.iter().enumerate() {
        self::validation(validation, &format!("spec.validations[{index}]"), &mut errors);
    }
    named(annotations, "key", "valueExpression", "spec.auditAnnotations", &mut errors);
    errors
}

fn matching(resources: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for key in ["namespaceSelector", "objectSelector"] {
        selector(&resources[key], &format!("{path}.{key}"), errors);
    }
    for key in ["resourceRules", "excludeResourceRules"] {
        for (index, one) in entries(resources, key).iter().enumerate() {
            rule(one, &format!("{path}.{key}[{index}]"), errors);
        }
    }
    choice(resources, "matchPolicy", path, &["Equivalent", "Exact"], errors);
}

/// An expression that must be there and compile.
fn expression(value: &Value, key: &str, path: &str, missing: &str, errors: &mut Vec<FieldError>) {
    let field = format!("{path}.{key}");
    let source = text(value, key);
    if source.trim().is_empty() {
        errors.push(FieldError::required(field, missing));
    } else if let Some(problem) = Expression::compile(source).problem() {
        errors.push(FieldError::invalid(field, source, problem));
    }
}

/// Variables and audit annotations: names once, with an expression each.
fn named(list: &[Value], name: &str, source: &str, path: &str, errors: &mut Vec<FieldError>) {
    let mut seen = BTreeSet::new();
    for (index, entry) in list.iter().enumerate() {
        let at = format!("{path}[{index}]");
        let (field, called) = (format!("{at}.{name}"), text(entry, name));
        if called.is_empty() {
            errors.push(FieldError::required(field, if name == "name" { "name is not specified" } else { "" }));
        } else if name == "name" && !is_identifier(called) {
            errors.push(FieldError::invalid(field, called, "name is not a valid CEL identifier"));
        } else if name == "key" && !qualified_name(called).is_empty() {
            errors
                .extend(qualified_name(called).into_iter().map(|why| FieldError::invalid(field.as_str(), called, why)));
        } else if !seen.insert(called) {
            errors.push(FieldError::duplicate(field, called));
        }
        expression(entry, source, &at, if name == "name" { "expression is not specified" } else { "" }, errors);
    }
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|next| next.is_ascii_alphanumeric() || next == '_')
}

fn validation(validation: &Value, path: &str, errors: &mut Vec<FieldError>) {
    expression(validation, "expression", path, "expression is not specified", errors);
    if given(validation, "messageExpression").is_some() {
        expression(validation, "messageExpression", path, "must be non-empty if specified", errors);
    }
    if let Some(message) = given(validation, "message").and_then(Value::as_str) {
        let field = format!("{path}.message");
        if !message.is_empty() && message.trim().is_empty() {
            errors.push(FieldError::invalid(field, message, "message must be non-empty if specified"));
        } else if message.trim().contains('\n') {
            errors.push(FieldError::invalid(field, message, "message must not contain line breaks"));
        }
    }
    if given(validation, "reason").is_some() {
        choice(validation, "reason", path, REASONS, errors);
    }
}

/// Everything wrong with a binding.
pub fn binding(object: &Value) -> Vec<FieldError> {
    let (spec, mut errors) = (&object["spec"], Vec::new());
    let policy = text(spec, "policyName");
    if policy.is_empty() {
        errors.push(FieldError::required("spec.policyName", ""));
    }
    for why in Some(dns1123_subdomain(policy)).filter(|_| !policy.is_empty()).into_iter().flatten() {
        errors.push(FieldError::invalid("spec.policyName", policy, why));
    }
    if let Some(param_ref) = given(spec, "paramRef") {
        self::param_ref(param_ref, "spec.paramRef", &mut errors);
    }
    if let Some(resources) = given(spec, "matchResources") {
        matching(resources, "spec.matchResources", &mut errors);
    }
    let actions = entries(spec, "validationActions");
    if actions.is_empty() {
        errors.push(FieldError::required("spec.validationActions", ""));
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
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        errors.push(FieldError::invalid("spec.validationActions", &spec["validationActions"], why));
    }
    errors
}

fn param_ref(param_ref: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let name = text(param_ref, "name");
    match (name.is_empty(), given(param_ref, "selector")) {
        (false, Some(_)) => {
            for key in ["name", "selector"] {
                errors.push(FieldError::forbidden(format!("{path}.{key}"), "name and selector are mutually exclusive"));
            }
        }
        (true, None) => errors.push(FieldError::required(path, "one of name or selector must be specified")),
        (_, of) => self::selector(of.unwrap_or(&Value::Null), &format!("{path}.selector"), errors),
    }
    choice(param_ref, "parameterNotFoundAction", path, &["Allow", "Deny"], errors);
}
