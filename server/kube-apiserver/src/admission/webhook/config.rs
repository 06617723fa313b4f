//! Webhook configurations as this server reads them: parsed once per change, in the order they are called.

use std::time::Duration;

use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::format::dns1123_subdomain;
use crowsnest_apimachinery::selector::Selector;
use serde_json::Value;

use super::matching::Selectors;
use crate::admission::expression::Expression;
use crate::outbound::Target;

/// What one `rules` entry covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleWithOperations {
    pub operations: Vec<String>,
    pub groups: Vec<String>,
    pub versions: Vec<String>,
    pub resources: Vec<String>,
    pub scope: String,
    /// Of policies: the names of the objects, of any when empty.
    pub names: Vec<String>,
}

/// One webhook of one configuration.
#[derive(Debug)]
pub struct Webhook {
    pub configuration: String,
    pub name: String,
    pub target: Result<Target, String>,
    pub rules: Vec<RuleWithOperations>,
    pub ignore_failure: bool,
    pub equivalent: bool,
    pub selectors: Selectors,
    pub dry_run_safe: bool,
    pub timeout: Duration,
    pub review_version: Option<&'static str>,
    pub reinvoke: bool,
    /// `matchConditions`
    pub conditions: Vec<Expression>,
}

fn texts(value: &Value, key: &str) -> Vec<String> {
    value[key].as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// The webhooks of configurations that are given in the order of their names.
pub fn parse_all<'a>(configurations: impl IntoIterator<Item = &'a Value>) -> Vec<Webhook> {
    let mut webhooks = Vec::new();
    for configuration in configurations {
        let owner = configuration.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("");
        webhooks.extend(configuration["webhooks"].as_array().into_iter().flatten().map(|w| parse(owner, w)));
    }
    webhooks
}

fn parse(configuration: &str, webhook: &Value) -> Webhook {
    let text = |key: &str| webhook[key].as_str().unwrap_or("").to_owned();
    let known = texts(webhook, "admissionReviewVersions");
    Webhook {
        configuration: configuration.to_owned(),
        name: text("name"),
        target: Target::parse(&webhook["clientConfig"]).map_err(|e| e.to_string()),
        rules: webhook["rules"].as_array().into_iter().flatten().map(parse_rule).collect(),
        ignore_failure: text("failurePolicy") == "Ignore",
        equivalent: text("matchPolicy") != "Exact",
        selectors: parse_selectors(webhook),
        dry_run_safe: matches!(text("sideEffects").as_str(), "None" | "NoneOnDryRun"),
        timeout: Duration::from_secs(webhook["timeoutSeconds"].as_u64().unwrap_or(10).clamp(1, 30)),
        review_version: known.iter().find_map(|v| match v.as_str() {
            "v1" => Some("v1"),
            "v1beta1" => Some("v1beta1"),
            _ => None,
        }),
        reinvoke: text("reinvocationPolicy") == "IfNeeded",
        conditions: parse_conditions(webhook),
    }
}

/// The `namespaceSelector` and the `objectSelector`; an absent one selects everything.
pub(in crate::admission) fn parse_selectors(of: &Value) -> Selectors {
    let selector = |key: &str| match of.get(key).filter(|s| s.is_object()) {
        Some(selector) => Selector::from_json(Some(selector)).unwrap_or_default(),
        None => Selector::default(),
    };
    Selectors { namespaces: selector("namespaceSelector"), objects: selector("objectSelector") }
}

pub(in crate::admission) fn parse_rule(rule: &Value) -> RuleWithOperations {
    RuleWithOperations {
        operations: texts(rule, "operations"),
        groups: texts(rule, "apiGroups"),
        versions: texts(rule, "apiVersions"),
        resources: texts(rule, "resources"),
        scope: rule["scope"].as_str().unwrap_or("*").to_owned(),
        names: texts(rule, "resourceNames"),
    }
}

/// The `matchConditions` of a webhook or a policy.
pub(in crate::admission) fn parse_conditions(of: &Value) -> Vec<Expression> {
    let conditions = of["matchConditions"].as_array().into_iter().flatten();
    conditions.map(|condition| Expression::compile(condition["expression"].as_str().unwrap_or(""))).collect()
}

/// Checks a `clientConfig`: exactly one of url and service, https, a caBundle that is PEM.
pub fn webhook_client_config(config: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let url = config.get("url").and_then(Value::as_str);
    let service = config.get("service").filter(|s| s.is_object());
    match (url, service) {
        (None, None) | (Some(_), Some(_)) => {
            errors.push(FieldError::required(path, "exactly one of url or service is required"));
        }
        (Some(url), None) => errors.extend(check_url(url, &format!("{path}.url"))),
        (None, Some(service)) => check_service(service, &format!("{path}.service"), &mut errors),
    }
    errors
}

fn check_service(service: &Value, path: &str, errors: &mut Vec<FieldError>) {
    // kube-apiserver takes the one for the other.
    for (key, named) in [("namespace", "name"), ("name", "namespace")] {
        if service[key].as_str().unwrap_or("").is_empty() {
            errors.push(FieldError::required(format!("{path}.{named}"), ""));
        }
    }
    let port = service["port"].as_i64().unwrap_or(443);
    if !(1..=65535).contains(&port) {
        let detail = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(FieldError::invalid(format!("{path}.port"), &Value::from(port), detail));
    }
    let written = service["path"].as_str().unwrap_or("");
    let mut invalid = |detail: String| errors.push(FieldError::invalid(format!("{path}.path"), written, detail));
    match written {
        "" | "/" => return,
        "//" => return invalid("segment[0] may not be empty".to_owned()),
        _ if !written.starts_with('/') => invalid("must start with a '/'".to_owned()),
        _ => {}
    }
    let segments: String = written.chars().skip(1).collect();
    for (index, segment) in segments.strip_suffix('/').unwrap_or(&segments).split('/').enumerate() {
        if segment.is_empty() {
            invalid(format!("segment[{index}] may not be empty"));
            continue;
        }
        for why in dns1123_subdomain(segment) {
            invalid(format!("segment[{index}]: {why}"));
        }
    }
}

fn check_url(url: &str, path: &str) -> Vec<FieldError> {
    const FORM: &str = "; desired format: https://host[/path]";
    let (rest, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let scheme = rest.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    let scheme = if is_scheme { scheme.as_str() } else { "" };
    let after = if scheme.is_empty() { rest } else { &rest[scheme.len() + 1..] };
    let authority = after.strip_prefix("//").map_or("", |after| after.split('/').next().unwrap_or(""));
    let (user, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    if let Some(odd) = host.chars().find(|c| c.is_whitespace() || c.is_control()) {
        let why = format!("parse {url:?}: invalid character {:?} in host name", odd.to_string());
        return vec![FieldError::required(path, format!("url must be a valid URL: {why}{FORM}"))];
    }
    let mut errors = Vec::new();
    let mut invalid = |value: &str, detail: String| errors.push(FieldError::invalid(path, value, detail));
    if scheme != "https" {
        invalid(scheme, format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if host.is_empty() {
        invalid("", format!("host must be specified{FORM}"));
    }
    if let Some(user) = user {
        invalid(user, "user information is not permitted in the URL".to_owned());
    }
    if !fragment.is_empty() {
        invalid(fragment, "fragments are not permitted in the URL".to_owned());
    }
    if !query.is_empty() {
        invalid(query, "query parameters are not permitted in the URL".to_owned());
    }
    errors
}
