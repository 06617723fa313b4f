//! Which webhooks a request goes to. Pure.

use kube::core::cel::cel::Value as Cel;
use serde_json::Value;

use super::config::{MatchCondition, RuleWithOperations, Webhook};
use crate::admission::{Attributes, Operation};
use crate::crd::{cel_base, to_cel};
use crate::registry::resource::Gvr;

/// The version of the resource that a webhook asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matched {
    pub gvr: Gvr,
}

/// Never sent to webhooks: a broken one could not be mended otherwise.
pub fn exempt(gvr: &Gvr) -> bool {
    gvr.group == "admissionregistration.k8s.io"
        && matches!(
            gvr.resource.as_str(),
            "validatingwebhookconfigurations"
                | "mutatingwebhookconfigurations"
                | "validatingadmissionpolicies"
                | "validatingadmissionpolicybindings"
                | "mutatingadmissionpolicies"
                | "mutatingadmissionpolicybindings"
        )
}

/// Finds the rule for the request itself, or else, by policy `Equivalent`, for another version of the same resource.
pub fn rules(webhook: &Webhook, a: &Attributes<'_>, equivalents: &[Gvr]) -> Option<Matched> {
    let covered = |gvr: &Gvr| webhook.rules.iter().any(|rule| covers(rule, a, gvr));
    if covered(&a.resource.gvr) {
        return Some(Matched { gvr: a.resource.gvr.clone() });
    }
    if !webhook.equivalent {
        return None;
    }
    equivalents.iter().find(|gvr| covered(gvr)).map(|gvr| Matched { gvr: gvr.clone() })
}

fn covers(rule: &RuleWithOperations, a: &Attributes<'_>, gvr: &Gvr) -> bool {
    let any = |all: &[String], wanted: &str| all.iter().any(|v| v == "*" || v == wanted);
    let scope = match rule.scope.as_str() {
        "Cluster" => !namespaced(a),
        "Namespaced" => namespaced(a),
        _ => true,
    };
    scope
        && any(&rule.operations, a.operation.as_str())
        && any(&rule.groups, &gvr.group)
        && any(&rule.versions, &gvr.version)
        && rule.resources.iter().any(|r| resource_covers(r, &gvr.resource, &a.ctx.subresource))
}

/// Namespaces count as cluster-scoped, although requests for them carry their name as namespace.
fn namespaced(a: &Attributes<'_>) -> bool {
    a.resource.namespaced
}

/// `pods`, `pods/status`, `pods/*`, `*/scale`, `*`, `*/*`.
fn resource_covers(pattern: &str, resource: &str, subresource: &str) -> bool {
    let (wanted, wanted_sub) = pattern.split_once('/').unwrap_or((pattern, ""));
    (wanted == "*" || wanted == resource) && (wanted_sub == "*" || wanted_sub == subresource)
}

/// Evaluates the label selectors. `namespace` is the namespace object of a namespaced request.
pub fn selectors(webhook: &Webhook, a: &Attributes<'_>, object: Option<&Value>, namespace: Option<&Value>) -> bool {
    let labels = |object: Option<&Value>| object.and_then(|o| o.pointer("/metadata/labels")).cloned();
    let is_namespace = a.resource.gvr.group.is_empty() && a.resource.gvr.resource == "namespaces";
    let by_namespace = if webhook.namespaces.is_everything() {
        true
    } else if is_namespace {
        // A namespace is matched by its own labels.
        let own = if a.operation == Operation::Delete { a.old } else { object };
        webhook.namespaces.matches(labels(own).as_ref())
    } else if a.resource.namespaced {
        webhook.namespaces.matches(labels(namespace).as_ref())
    } else {
        true
    };
    if !by_namespace || webhook.objects.is_everything() {
        return by_namespace;
    }
    [object, a.old].into_iter().flatten().any(|o| webhook.objects.matches(labels(Some(o)).as_ref()))
}

/// Whether all match conditions hold; an error names the condition that could not be evaluated.
pub fn conditions(conditions: &[MatchCondition], variables: &Variables<'_>) -> Result<bool, String> {
    if conditions.is_empty() {
        return Ok(true);
    }
    let mut context = cel_base();
    let bind = |value: Option<&Value>| value.map_or(Cel::Null, |v| to_cel(&Value::Null, v));
    context.add_variable_from_value("object", bind(variables.object));
    context.add_variable_from_value("oldObject", bind(variables.old));
    context.add_variable_from_value("request", to_cel(&Value::Null, variables.request));
    let mut failure = None;
    for condition in conditions {
        let result = condition.program.as_ref().map(|program| program.execute(&context));
        match result {
            Some(Ok(Cel::Bool(true))) => {}
            // One false condition decides, whatever the others would fail with.
            Some(Ok(Cel::Bool(false))) => return Ok(false),
            Some(Ok(_)) => failure = Some("match condition must evaluate to bool".to_owned()),
            Some(Err(error)) => {
                failure = Some(format!("expression '{}' resulted in error: {error}", condition.expression))
            }
            None => {
                failure = Some(format!("expression '{}' resulted in error: compilation failed", condition.expression))
            }
        }
    }
    failure.map_or(Ok(true), Err)
}

/// What match conditions can read.
#[derive(Debug)]
pub struct Variables<'a> {
    pub object: Option<&'a Value>,
    pub old: Option<&'a Value>,
    /// The request as an AdmissionRequest without its objects.
    pub request: &'a Value,
}

#[cfg(test)]
mod tests {
    use super::resource_covers;
    use rstest::rstest;

    #[rstest]
    #[case("pods", "pods", "", true)]
    #[case("pods", "pods", "status", false)]
    #[case("pods/*", "pods", "", true)]
    #[case("pods/*", "pods", "status", true)]
    #[case("*", "pods", "", true)]
    #[case("*", "pods", "status", false)]
    #[case("*/*", "pods", "status", true)]
    #[case("*/scale", "deployments", "scale", true)]
    fn resources(#[case] pattern: &str, #[case] resource: &str, #[case] subresource: &str, #[case] covered: bool) {
        assert_eq!(resource_covers(pattern, resource, subresource), covered);
    }
}
