//! Matches requests with webhooks and policies. Pure.

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::selector::Selector;
use crowsnest_registry::admission::{Attributes, GROUP, Operation};
use serde_json::Value;

use super::config::RuleWithOperations;

/// The version of the resource that a webhook's rules name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matched {
    pub gvr: Gvr,
}

/// True for webhook configurations and admission policies, which are never sent to webhooks or evaluated by
/// policies: otherwise a broken one could not be repaired.
pub fn exempt(gvr: &Gvr) -> bool {
    &*gvr.group == GROUP
        && matches!(
            &*gvr.resource,
            "validatingwebhookconfigurations"
                | "mutatingwebhookconfigurations"
                | "validatingadmissionpolicies"
                | "validatingadmissionpolicybindings"
                | "mutatingadmissionpolicies"
                | "mutatingadmissionpolicybindings"
        )
}

/// Finds a rule for the request or, with match policy `Equivalent`, for another version of the resource.
pub fn rules(
    rules: &[RuleWithOperations],
    equivalent: bool,
    a: &Attributes<'_>,
    equivalents: &[Gvr],
) -> Option<Matched> {
    let covered = |gvr: &Gvr| rules.iter().any(|rule| covers(rule, a, gvr));
    if covered(&a.resource.gvr) {
        return Some(Matched { gvr: a.resource.gvr.clone() });
    }
    if !equivalent {
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
        && (rule.names.is_empty() || rule.names.iter().any(|name| name == a.name))
        && any(&rule.operations, a.operation.as_str())
        && any(&rule.groups, &gvr.group)
        && any(&rule.versions, &gvr.version)
        && rule.resources.iter().any(|r| resource_covers(r, &gvr.resource, &a.ctx.subresource))
}

/// Namespaces are cluster-scoped, although requests for them carry their name as namespace.
fn namespaced(a: &Attributes<'_>) -> bool {
    a.resource.namespaced
}

/// Matches patterns such as `pods`, `pods/status`, `pods/*`, `*/scale`, `*` and `*/*`.
fn resource_covers(pattern: &str, resource: &str, subresource: &str) -> bool {
    let (wanted, wanted_sub) = pattern.split_once('/').unwrap_or((pattern, ""));
    (wanted == "*" || wanted == resource) && (wanted_sub == "*" || wanted_sub == subresource)
}

/// Label selectors for an object and its namespace.
#[derive(Debug, Default)]
pub struct Selectors {
    pub namespaces: Selector,
    pub objects: Selector,
}

/// Evaluates the selectors. `namespace` is the namespace object of a namespaced request.
pub fn selectors(selectors: &Selectors, a: &Attributes<'_>, object: Option<&Value>, namespace: Option<&Value>) -> bool {
    let labels = |object: Option<&Value>| object.and_then(|o| o.pointer("/metadata/labels")).cloned();
    let is_namespace = a.resource.gvr.group.is_empty() && &*a.resource.gvr.resource == "namespaces";
    let by_namespace = if selectors.namespaces.is_empty() {
        true
    } else if is_namespace {
        // A Namespace is matched by its own labels.
        let own = if a.operation == Operation::Delete { a.old } else { object };
        selectors.namespaces.matches_json(labels(own).as_ref())
    } else if a.resource.namespaced {
        selectors.namespaces.matches_json(labels(namespace).as_ref())
    } else {
        true
    };
    if !by_namespace || selectors.objects.is_empty() {
        return by_namespace;
    }
    let labelled = |object: &&Value| object.get("metadata").is_some();
    [object, a.old]
        .into_iter()
        .flatten()
        .filter(labelled)
        .any(|o| selectors.objects.matches_json(labels(Some(o)).as_ref()))
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
