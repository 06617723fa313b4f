//! Parsed webhooks of webhook configurations.

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
    /// Name of the configuration.
    pub configuration: String,
    pub name: String,
    /// `clientConfig`, or the reason why it is invalid.
    pub target: Result<Target, String>,
    pub rules: Vec<RuleWithOperations>,
    /// True for `failurePolicy: Ignore`.
    pub ignores_failure: bool,
    /// True for `matchPolicy: Equivalent`.
    pub matches_equivalents: bool,
    pub selectors: Selectors,
    /// True if `sideEffects` allows calls for dry-run requests.
    pub supports_dry_run: bool,
    pub timeout: Duration,
    /// First supported version in `admissionReviewVersions`: `v1` or `v1beta1`.
    pub review_version: Option<&'static str>,
    /// True for `reinvocationPolicy: IfNeeded`.
    pub can_reinvoke: bool,
    /// `matchConditions`.
    pub conditions: Vec<Expression>,
}

fn string_list(value: &Value, key: &str) -> Vec<String> {
    value[key].as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// Parses the webhooks of configurations, in order. Webhooks are called in the order of their configurations' names.
pub fn parse_webhooks<'a>(configurations: impl IntoIterator<Item = &'a Value>) -> Vec<Webhook> {
    let mut webhooks = Vec::new();
    for configuration in configurations {
        let name = configuration.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("");
        webhooks.extend(configuration["webhooks"].as_array().into_iter().flatten().map(|w| parse_webhook(name, w)));
    }
    webhooks
}

fn parse_webhook(configuration: &str, webhook: &Value) -> Webhook {
    let text = |key: &str| webhook[key].as_str().unwrap_or("").to_owned();
    let review_versions = string_list(webhook, "admissionReviewVersions");
    Webhook {
        configuration: configuration.to_owned(),
        name: text("name"),
        target: Target::parse(&webhook["clientConfig"]).map_err(|e| e.to_string()),
        rules: webhook["rules"].as_array().into_iter().flatten().map(parse_rule).collect(),
        ignores_failure: text("failurePolicy") == "Ignore",
        matches_equivalents: text("matchPolicy") != "Exact",
        selectors: parse_selectors(webhook),
        supports_dry_run: matches!(text("sideEffects").as_str(), "None" | "NoneOnDryRun"),
        timeout: Duration::from_secs(webhook["timeoutSeconds"].as_u64().unwrap_or(10).clamp(1, 30)),
        review_version: review_versions.iter().find_map(|v| match v.as_str() {
            "v1" => Some("v1"),
            "v1beta1" => Some("v1beta1"),
            _ => None,
        }),
        can_reinvoke: text("reinvocationPolicy") == "IfNeeded",
        conditions: parse_conditions(webhook),
    }
}

/// Parses `namespaceSelector` and `objectSelector`; an absent selector matches everything.
pub(crate) fn parse_selectors(owner: &Value) -> Selectors {
    let selector = |key: &str| match owner.get(key).filter(|s| s.is_object()) {
        Some(selector) => Selector::from_json(Some(selector)).unwrap_or_default(),
        None => Selector::default(),
    };
    Selectors { namespaces: selector("namespaceSelector"), objects: selector("objectSelector") }
}

pub(crate) fn parse_rule(rule: &Value) -> RuleWithOperations {
    RuleWithOperations {
        operations: string_list(rule, "operations"),
        groups: string_list(rule, "apiGroups"),
        versions: string_list(rule, "apiVersions"),
        resources: string_list(rule, "resources"),
        scope: rule["scope"].as_str().unwrap_or("*").to_owned(),
        names: string_list(rule, "resourceNames"),
    }
}

/// Parses the `matchConditions` of a webhook or policy.
pub(crate) fn parse_conditions(owner: &Value) -> Vec<Expression> {
    let conditions = owner["matchConditions"].as_array().into_iter().flatten();
    conditions.map(|condition| Expression::compile(condition["expression"].as_str().unwrap_or(""))).collect()
}
