//! Parsed webhook configurations in the order of calls, cached until they change.

use std::time::Duration;

use crowsnest_apimachinery::selector::Selector;
use crowsnest_apiserver::outbound::Target;
use crowsnest_registry::admission::expression::Expression;
use serde_json::Value;

use super::matching::Selectors;

/// An entry of `rules` in a webhook, or of `resourceRules` in a policy or binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleWithOperations {
    pub operations: Vec<String>,
    pub groups: Vec<String>,
    pub versions: Vec<String>,
    pub resources: Vec<String>,
    pub scope: String,
    /// `resourceNames`, only in admission policies. Empty matches all names.
    pub names: Vec<String>,
}

/// A webhook of a configuration.
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
    /// `matchConditions`.
    pub conditions: Vec<Expression>,
}

fn texts(value: &Value, key: &str) -> Vec<String> {
    value[key].as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// Parses the webhooks of configurations that are sorted by name.
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

/// Parses `namespaceSelector` and `objectSelector`; an absent selector matches everything.
pub(crate) fn parse_selectors(of: &Value) -> Selectors {
    let selector = |key: &str| match of.get(key).filter(|s| s.is_object()) {
        Some(selector) => Selector::from_json(Some(selector)).unwrap_or_default(),
        None => Selector::default(),
    };
    Selectors { namespaces: selector("namespaceSelector"), objects: selector("objectSelector") }
}

pub(crate) fn parse_rule(rule: &Value) -> RuleWithOperations {
    RuleWithOperations {
        operations: texts(rule, "operations"),
        groups: texts(rule, "apiGroups"),
        versions: texts(rule, "apiVersions"),
        resources: texts(rule, "resources"),
        scope: rule["scope"].as_str().unwrap_or("*").to_owned(),
        names: texts(rule, "resourceNames"),
    }
}

/// Parses the `matchConditions` of a webhook or policy.
pub(crate) fn parse_conditions(of: &Value) -> Vec<Expression> {
    let conditions = of["matchConditions"].as_array().into_iter().flatten();
    conditions.map(|condition| Expression::compile(condition["expression"].as_str().unwrap_or(""))).collect()
}
