//! Matches requests with webhooks and policies. Has no side effects.

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::selector::Selector;
use crowsnest_registry::admission::{Attributes, GROUP, Operation};
use serde_json::Value;

use super::config::RuleWithOperations;

/// True for webhook configurations and admission policies, which are never sent to webhooks or evaluated by
/// policies: otherwise a broken one could not be repaired.
pub fn is_exempt(gvr: &Gvr) -> bool {
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

/// The version of the resource for which a rule matches the request: that of the request or, with match policy
/// `Equivalent`, another one. `None` if no rule matches.
pub fn find_matching_version(
    rules: &[RuleWithOperations],
    matches_equivalents: bool,
    a: &Attributes<'_>,
    equivalents: &[Gvr],
) -> Option<Gvr> {
    if rules.iter().any(|rule| rule_covers(rule, a, &a.resource.gvr)) {
        return Some(a.resource.gvr.clone());
    }
    if !matches_equivalents {
        return None;
    }
    // The first rule that covers another version decides.
    rules.iter().find_map(|rule| equivalents.iter().find(|gvr| rule_covers(rule, a, gvr))).cloned()
}

fn rule_covers(rule: &RuleWithOperations, a: &Attributes<'_>, gvr: &Gvr) -> bool {
    let contains = |patterns: &[String], value: &str| patterns.iter().any(|pattern| pattern == "*" || pattern == value);
    // Namespaces are cluster-scoped, although requests for them carry their name as namespace.
    let has_scope = match rule.scope.as_str() {
        "Cluster" => !a.resource.namespaced,
        "Namespaced" => a.resource.namespaced,
        _ => true,
    };
    has_scope
        && (rule.names.is_empty() || rule.names.iter().any(|name| name == a.name))
        && contains(&rule.operations, a.operation.as_str())
        && contains(&rule.groups, &gvr.group)
        && contains(&rule.versions, &gvr.version)
        && rule.resources.iter().any(|pattern| pattern_covers(pattern, &gvr.resource, &a.ctx.subresource))
}

/// Matches patterns such as `pods`, `pods/status`, `pods/*`, `*/scale`, `*` and `*/*`.
fn pattern_covers(pattern: &str, resource: &str, subresource: &str) -> bool {
    let (resource_pattern, subresource_pattern) = pattern.split_once('/').unwrap_or((pattern, ""));
    (resource_pattern == "*" || resource_pattern == resource)
        && (subresource_pattern == "*" || subresource_pattern == subresource)
}

/// Label selectors for an object and its namespace.
#[derive(Debug, Default)]
pub struct Selectors {
    pub namespaces: Selector,
    pub objects: Selector,
}

/// True if both selectors match. `namespace` is the namespace object of a namespaced request.
pub fn selectors_match(
    selectors: &Selectors,
    a: &Attributes<'_>,
    object: Option<&Value>,
    namespace: Option<&Value>,
) -> bool {
    let labels = |object: Option<&Value>| object.and_then(|o| o.pointer("/metadata/labels")).cloned();
    let is_namespace = a.resource.gvr.group.is_empty() && &*a.resource.gvr.resource == "namespaces";
    let namespace_matches = if selectors.namespaces.is_empty() {
        true
    } else if is_namespace {
        // A Namespace is matched by its own labels.
        let namespace_object = if a.operation == Operation::Delete { a.old } else { object };
        selectors.namespaces.matches_json(labels(namespace_object).as_ref())
    } else if a.resource.namespaced {
        selectors.namespaces.matches_json(labels(namespace).as_ref())
    } else {
        true
    };
    if !namespace_matches || selectors.objects.is_empty() {
        return namespace_matches;
    }
    let has_metadata = |object: &&Value| object.get("metadata").is_some();
    [object, a.old]
        .into_iter()
        .flatten()
        .filter(has_metadata)
        .any(|object| selectors.objects.matches_json(labels(Some(object)).as_ref()))
}

#[cfg(test)]
mod tests {
    use super::pattern_covers;
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
    fn patterns_cover_resources(
        #[case] pattern: &str,
        #[case] resource: &str,
        #[case] subresource: &str,
        #[case] expected: bool,
    ) {
        assert_eq!(pattern_covers(pattern, resource, subresource), expected);
    }
}
