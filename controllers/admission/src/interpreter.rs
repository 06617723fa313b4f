//! Admission of ResourceInterpreterWebhookConfigurations and ResourceInterpreterCustomizations.

use std::collections::BTreeSet;

use crowsnest_api::config::{
    InterpreterOperation, ResourceInterpreterCustomization, ResourceInterpreterWebhook,
    ResourceInterpreterWebhookConfiguration, RuleWithOperations,
};
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::format;
use crowsnest_apimachinery::webhook::{self, validate_review_versions};
use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;

use super::decode::decode;
use super::{AdmissionContext, Outcome, Refusal, Request};

/// Operations supported by webhooks, which exclude `Prune`.
const OPERATIONS: [&str; 9] = [
    "*",
    "AggregateStatus",
    "InterpretComponent",
    "InterpretDependency",
    "InterpretHealth",
    "InterpretReplica",
    "InterpretStatus",
    "Retain",
    "ReviseReplica",
];
const CONTEXT_VERSION: &str = "v1alpha1";
const HTTPS_PORT: i32 = 443;

pub(super) fn validate_webhooks(request: &Request) -> Result<Outcome, Refusal> {
    let configuration: ResourceInterpreterWebhookConfiguration = decode(&request.object)?;
    let mut errors = Vec::new();
    let mut names = BTreeSet::new();
    for (index, webhook) in configuration.webhooks.iter().enumerate() {
        let path = format!("webhooks[{index}]");
        errors.extend(validate_webhook(webhook, &path));
        if !names.insert(&webhook.name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), &webhook.name));
        }
    }
    Refusal::check(&errors).map(|()| Outcome::Unchanged)
}

fn validate_webhook(webhook: &ResourceInterpreterWebhook, path: &str) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = validate_domain(&webhook.name, format!("{path}.name")).into_iter().collect();
    for (index, rule) in webhook.rules.iter().enumerate() {
        errors.extend(validate_rule(rule, &format!("{path}.rules[{index}]")));
    }
    if let Some(seconds) = webhook.timeout_seconds.filter(|seconds| !(1..=30).contains(seconds)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        errors.push(FieldError::invalid(format!("{path}.timeoutSeconds"), &seconds, detail));
    }
    errors.extend(validate_client(&webhook.client_config, &format!("{path}.clientConfig")));
    let versions = format!("{path}.interpreterContextVersions");
    errors.extend(validate_review_versions(&webhook.interpreter_context_versions, &[CONTEXT_VERSION], &versions));
    errors
}

fn validate_domain(name: &str, field: String) -> Option<FieldError> {
    if name.is_empty() {
        return Some(FieldError::required(field, ""));
    }
    let domain = name.strip_suffix('.').unwrap_or(name);
    let problems = format::validate_dns1123_subdomain(domain);
    if !problems.is_empty() {
        return Some(FieldError::invalid(field, domain, problems.join(",")));
    }
    let detail = "should be a domain with at least two segments separated by dots";
    (!domain.contains('.')).then(|| FieldError::invalid(field, domain, detail))
}

fn validate_rule(rule: &RuleWithOperations, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let operations = format!("{path}.operations");
    if rule.operations.is_empty() {
        errors.push(FieldError::required(&operations, ""));
    }
    if rule.operations.len() > 1 && rule.operations.contains(&InterpreterOperation::All) {
        let detail = "if '*' is present, must not specify other operations";
        errors.push(FieldError::invalid(&operations, &rule.operations, detail));
    }
    for (index, operation) in rule.operations.iter().enumerate() {
        if !OPERATIONS.contains(&operation.as_str()) {
            errors.push(FieldError::not_supported(format!("{operations}[{index}]"), operation, &OPERATIONS));
        }
    }
    errors.extend(validate_names(&rule.api_groups, &format!("{path}.apiGroups"), "API groups", true));
    errors.extend(validate_names(&rule.api_versions, &format!("{path}.apiVersions"), "API versions", false));
    errors.extend(validate_names(&rule.kinds, &format!("{path}.kinds"), "kinds", false));
    errors
}

/// Validates a list of names, or `*` alone. The core group is the empty name.
fn validate_names(names: &[String], field: &str, plural: &str, may_be_empty: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if names.is_empty() {
        errors.push(FieldError::required(field, ""));
    }
    if names.len() > 1 && names.iter().any(|name| name == "*") {
        errors.push(FieldError::invalid(field, names, format!("if '*' is present, must not specify other {plural}")));
    }
    for (index, _) in names.iter().enumerate().filter(|(_, name)| !may_be_empty && name.is_empty()) {
        errors.push(FieldError::required(format!("{field}[{index}]"), ""));
    }
    errors
}

fn validate_client(client: &WebhookClientConfig, path: &str) -> Vec<FieldError> {
    match (&client.url, &client.service) {
        (Some(url), None) => webhook::validate_url(url, &format!("{path}.url")),
        (None, Some(service)) => {
            let service = webhook::ServiceReference {
                namespace: &service.namespace,
                name: &service.name,
                path: service.path.as_deref().unwrap_or_default(),
                port: service.port.unwrap_or(HTTPS_PORT).into(),
            };
            webhook::validate_service(service, &format!("{path}.service"))
        }
        _ => vec![FieldError::required(path, "exactly one of url or service is required")],
    }
}

pub(super) fn validate_customization(request: &Request, context: &AdmissionContext<'_>) -> Result<Outcome, Refusal> {
    let new: ResourceInterpreterCustomization = decode(&request.object)?;
    for other in context.customizations.iter().filter(|other| other.metadata.name != new.metadata.name) {
        if other.spec.target != new.spec.target {
            continue;
        }
        let script_pairs = new.spec.customizations.scripts().into_iter().zip(other.spec.customizations.scripts());
        // Dependencies of several customizations are merged, so they never conflict.
        let conflict = script_pairs
            .filter(|((operation, _), _)| *operation != InterpreterOperation::InterpretDependency)
            .find(|((_, new), (_, other))| new.is_some() && other.is_some());
        if let Some(((operation, _), _)) = conflict {
            return Err(Refusal::denied(format!(
                "conflicting with InterpreterOperation({}) of existing ResourceInterpreterCustomization({})",
                operation.as_str(),
                other.metadata.name.as_deref().unwrap_or_default()
            )));
        }
    }
    for (operation, script) in new.spec.customizations.scripts() {
        if let Some(Err(problem)) = script.map(context.compile_lua) {
            let message = format!("InterpreterOperation({}) Lua script error: {problem}", operation.as_str());
            return Err(Refusal::denied(message));
        }
    }
    Ok(Outcome::Unchanged)
}
