//! Validation of webhook configurations, with kube-apiserver's order and wording.

use std::collections::BTreeSet;

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_apimachinery::names::format::{validate_dns1123_subdomain, validate_qualified_name};
use crowsnest_apimachinery::webhook::{ServiceReference, validate_review_versions, validate_service, validate_url};
use crowsnest_registry::admission::expression::{
    AvailableVariables, ExpectedResult, check_expression, check_instantiation,
};
use serde_json::Value;

use crate::selector_errors;

const MAX_CONDITIONS: usize = 64;
/// AdmissionReview versions that this server sends.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

fn texts(value: &Value, key: &str) -> Vec<String> {
    value[key].as_array().into_iter().flatten().map(|v| v.as_str().unwrap_or("").to_owned()).collect()
}

/// Validates a ValidatingWebhookConfiguration or MutatingWebhookConfiguration.
pub fn validate_webhooks(configuration: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for (index, webhook) in configuration["webhooks"].as_array().into_iter().flatten().enumerate() {
        let path = format!("webhooks[{index}]");
        validate_webhook(webhook, &path, &mut errors);
        let versions = texts(webhook, "admissionReviewVersions");
        let field = format!("{path}.admissionReviewVersions");
        errors.extend(validate_review_versions(&versions, &REVIEW_VERSIONS, &field));
        let name = webhook["name"].as_str().unwrap_or("");
        if !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), &Value::from(name)));
        }
    }
    errors
}

fn validate_webhook(webhook: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let name = webhook["name"].as_str().unwrap_or("");
    let name_path = format!("{path}.name");
    if name.is_empty() {
        errors.push(FieldError::required(name_path, ""));
    } else {
        let problems = validate_dns1123_subdomain(name);
        if problems.is_empty() && name.split('.').count() < 3 {
            let detail = "should be a domain with at least three segments separated by dots";
            errors.push(FieldError::invalid(name_path, &Value::from(name), detail));
        } else if !problems.is_empty() {
            errors.push(FieldError::invalid(name_path, &Value::from(name), problems.join(",")));
        }
    }
    for (index, rule) in webhook["rules"].as_array().into_iter().flatten().enumerate() {
        validate_rule(rule, &format!("{path}.rules[{index}]"), errors);
    }
    let mut choice = |key: &str, supported: &[&str]| {
        if let Some(value) = webhook.get(key).filter(|v| !v.is_null() && !supported.iter().any(|s| *v == s)) {
            errors.push(FieldError::not_supported_sorted(format!("{path}.{key}"), value, supported));
        }
    };
    choice("failurePolicy", &["Fail", "Ignore"]);
    choice("matchPolicy", &["Equivalent", "Exact"]);
    match webhook.get("sideEffects").filter(|v| !v.is_null()) {
        None => {
            errors.push(FieldError::required(format!("{path}.sideEffects"), "must specify one of None, NoneOnDryRun"))
        }
        Some(value) if *value != "None" && *value != "NoneOnDryRun" => {
            let field = format!("{path}.sideEffects");
            errors.push(FieldError::not_supported_sorted(field, value, &["None", "NoneOnDryRun"]));
        }
        Some(_) => {}
    }
    if let Some(seconds) = webhook["timeoutSeconds"].as_i64().filter(|s| !(1..=30).contains(s)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.push(FieldError::invalid(format!("{path}.timeoutSeconds"), &Value::from(seconds), detail));
    }
    for key in ["namespaceSelector", "objectSelector"] {
        errors.extend(selector_errors(&webhook[key], &format!("{path}.{key}")));
    }
    let reinvocation = webhook.get("reinvocationPolicy").filter(|v| !v.is_null());
    if let Some(value) = reinvocation.filter(|v| **v != "Never" && **v != "IfNeeded") {
        errors.push(FieldError::not_supported_sorted(
            format!("{path}.reinvocationPolicy"),
            value,
            &["IfNeeded", "Never"],
        ));
    }
    errors.extend(validate_client_config(&webhook["clientConfig"], &format!("{path}.clientConfig")));
    validate_match_conditions(webhook, &format!("{path}.matchConditions"), false, errors);
}

pub(super) fn validate_rule(rule: &Value, path: &str, errors: &mut Vec<FieldError>) {
    const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
    let mut list = |key: &str, what: &str| {
        let all = texts(rule, key);
        let field = format!("{path}.{key}");
        if all.is_empty() {
            errors.push(FieldError::required(field.as_str(), ""));
        }
        if all.len() > 1 && all.iter().any(|v| v == "*") {
            let detail = format!("if '*' is present, must not specify other {what}");
            errors.push(FieldError::invalid(field.as_str(), &serde_json::json!(all), detail));
        }
        for (index, value) in all.iter().enumerate() {
            if key == "operations" && !OPERATIONS.contains(&value.as_str()) {
                let item_path = format!("{field}[{index}]");
                errors.push(FieldError::not_supported_sorted(item_path, &Value::from(value.as_str()), OPERATIONS));
            }
            if key == "apiVersions" && value.is_empty() {
                errors.push(FieldError::required(format!("{field}[{index}]"), ""));
            }
        }
    };
    list("operations", "operations");
    list("apiGroups", "API groups");
    list("apiVersions", "API versions");
    validate_resources(rule, &format!("{path}.resources"), errors);
    let scope = rule.get("scope").filter(|s| !s.is_null());
    if let Some(scope) = scope.filter(|s| !["*", "Cluster", "Namespaced"].iter().any(|known| *s == known)) {
        errors.push(FieldError::not_supported_sorted(format!("{path}.scope"), scope, &["*", "Cluster", "Namespaced"]));
    }
}

fn validate_resources(rule: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let resources = texts(rule, "resources");
    if resources.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    let mut is_last_specific = false;
    // Resources in `pods/*`, and subresources in `*/scale`.
    let (mut wildcard_parents, mut wildcard_subresources) = (BTreeSet::new(), BTreeSet::new());
    for (index, resource) in resources.iter().enumerate() {
        let item_path = format!("{path}[{index}]");
        if resource.is_empty() {
            errors.push(FieldError::required(item_path, ""));
            continue;
        }
        let Some((parent, sub)) = resource.split_once('/') else {
            // As in kube-apiserver, the last entry decides.
            is_last_specific = resource != "*";
            continue;
        };
        let mut report_overlap = |by: String| {
            let reason = format!("if '{by}' is present, must not specify {resource}");
            errors.push(FieldError::invalid(item_path.as_str(), resource.as_str(), reason));
        };
        if wildcard_parents.contains(parent) {
            report_overlap(format!("{parent}/*"));
        }
        if wildcard_subresources.contains(sub) {
            report_overlap(format!("*/{sub}"));
        }
        if sub == "*" {
            wildcard_parents.insert(parent);
        }
        if parent == "*" {
            wildcard_subresources.insert(sub);
        }
    }
    let has = |name: &str| resources.iter().any(|resource| resource == name);
    let value = serde_json::json!(resources);
    if has("*/*") && resources.len() > 1 {
        errors.push(FieldError::invalid(path, &value, "if '*/*' is present, must not specify other resources"));
    }
    if has("*") && is_last_specific {
        let detail = "if '*' is present, must not specify other resources without subresources";
        errors.push(FieldError::invalid(path, &value, detail));
    }
}

pub(super) fn validate_match_conditions(webhook: &Value, path: &str, params: bool, errors: &mut Vec<FieldError>) {
    let available = AvailableVariables { has_params: params, has_authorizer: true, ..AvailableVariables::default() };
    let all = webhook["matchConditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if all.len() > MAX_CONDITIONS {
        let count = Some(all.len().to_string());
        let detail = format!("must have at most {MAX_CONDITIONS} items");
        errors.push(FieldError::new(FieldErrorKind::TooMany, path, count, detail));
    }
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for (index, condition) in all.iter().enumerate() {
        let condition_path = format!("{path}[{index}]");
        let (name, expression) =
            (condition["name"].as_str().unwrap_or(""), condition["expression"].as_str().unwrap_or(""));
        if expression.trim().is_empty() {
            errors.push(FieldError::required(format!("{condition_path}.expression"), ""));
        } else if let Err(detail) = check_expression(expression, available, ExpectedResult::Bool) {
            errors.push(FieldError::invalid(format!("{condition_path}.expression"), &condition["expression"], detail));
        } else {
            errors.extend(check_instantiation(expression, &format!("{condition_path}.expression")));
        }
        if name.is_empty() {
            errors.push(FieldError::required(format!("{condition_path}.name"), ""));
        } else {
            for problem in validate_qualified_name(name) {
                errors.push(FieldError::invalid(format!("{condition_path}.name"), &condition["name"], problem));
            }
            if !names.insert(name) {
                errors.push(FieldError::duplicate(format!("{condition_path}.name"), &condition["name"]));
            }
        }
    }
}

/// Validates a `clientConfig`: exactly one of url and service, https, a caBundle in PEM.
pub fn validate_client_config(config: &Value, path: &str) -> Vec<FieldError> {
    let url = config.get("url").and_then(Value::as_str);
    let service = config.get("service").filter(|s| s.is_object());
    match (url, service) {
        (None, None) | (Some(_), Some(_)) => {
            vec![FieldError::required(path, "exactly one of url or service is required")]
        }
        (Some(url), None) => validate_url(url, &format!("{path}.url")),
        (None, Some(service)) => {
            let text = |key: &str| service[key].as_str().unwrap_or_default();
            // kube-apiserver confuses namespace and name here.
            let (namespace, name) = (text("name"), text("namespace"));
            let port = service["port"].as_i64().unwrap_or(443);
            validate_service(ServiceReference { namespace, name, path: text("path"), port }, &format!("{path}.service"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::validate_webhooks;

    #[test]
    fn invalid_webhooks_are_rejected() {
        let sound = json!({"name": "a.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": "https://x/y"},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods", "pods/status"]}]});
        assert!(validate_webhooks(&json!({"webhooks": [sound]})).is_empty());
        let bad = json!({"webhooks": [
            {"name": "short", "sideEffects": "Some", "timeoutSeconds": 40, "failurePolicy": "Try", "clientConfig": {},
             "rules": [{"operations": ["*", "MAKE"], "apiGroups": [], "apiVersions": [""], "resources": ["*", "pods", "pods/*", "pods/status"], "scope": "All"}]},
            sound, sound,
            {"name": "b.example.com", "admissionReviewVersions": ["v2", "v2"], "clientConfig": {"url": "http://x?y", "service": {"name": ""}},
             "matchConditions": [{"name": "", "expression": "a +"}]},
        ]});
        let lines: Vec<String> = validate_webhooks(&bad).iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(lines.join("\n"));
    }
}
