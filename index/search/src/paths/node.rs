//! Nodes of a pattern as conditions on objects.

use crate::document::columns::Keyword;
use crate::plan::kinds::{GroupKind, KindPattern, kind_objects};
use crate::plan::predicate::{Match, Test};
use crate::plan::{KindsByName, PlanningContext, TimeScope, plan};
use crowsnest_apimachinery::references::canonical_kind;
use crowsnest_query::path::{NodePattern, PathPattern, Property};
use crowsnest_query::{Limits, parse};
use std::collections::BTreeSet;

/// The condition of a node. Fails if its query cannot be evaluated; other findings are added to the notices.
pub(crate) fn node_match(
    node: &NodePattern,
    planning_context: &PlanningContext,
    notices: &mut BTreeSet<String>,
) -> Result<Match, String> {
    let mut parts = Vec::new();
    let group = node.property(Property::ApiGroup);
    match (&node.label, group) {
        (Some(label), Some(group)) => parts.push(kind_match(&format!("{label}.{group}"), planning_context, notices)),
        (Some(label), None) => parts.push(kind_match(label, planning_context, notices)),
        (None, Some("")) => parts.push(Match::has(Keyword::Group.name()).negated()),
        (None, Some(group)) => parts.push(Match::Keyword(Keyword::Group, Test::Equals(group.to_lowercase()))),
        (None, None) => {}
    }
    for (property, value) in &node.properties {
        let keyword = match property {
            Property::ApiGroup => continue,
            Property::Q => {
                parts.push(query_match(value, planning_context, notices)?);
                continue;
            }
            Property::Cluster => Keyword::Cluster,
            Property::Name => Keyword::Name,
            Property::Namespace => Keyword::Namespace,
            Property::Status => Keyword::Status,
            Property::Uid => Keyword::Uid,
        };
        parts.push(match value.as_str() {
            "" => Match::has(keyword.name()).negated(),
            value => Match::Exact(keyword, value.to_owned()),
        });
    }
    Ok(match parts.len() {
        0 => Match::All,
        1 => parts.remove(0),
        _ => Match::And(parts),
    })
}

fn kind_match(label: &str, planning_context: &PlanningContext, notices: &mut BTreeSet<String>) -> Match {
    let kind_patterns = KindPattern::resolve(label, &planning_context.kinds);
    let is_unknown = kind_patterns.iter().any(|kind| matches!(kind, KindPattern::Unknown(_)));
    let is_workload = label.eq_ignore_ascii_case("workload");
    if is_unknown && !is_workload && !planning_context.kinds.is_empty() {
        notices.insert(format!("no cluster serves the kind {label}, or it cannot be listed and watched"));
    }
    kind_objects(label, &planning_context.kinds)
}

/// A query on current objects.
fn query_match(
    text: &str,
    planning_context: &PlanningContext,
    notices: &mut BTreeSet<String>,
) -> Result<Match, String> {
    let query = parse(text, &Limits::default()).map_err(|error| format!("invalid q {text:?}: {error}"))?;
    let planned = plan(&query, planning_context);
    notices.extend(query.notices.iter().chain(&planned.notices).map(|notice| format!("q: {}", notice.message)));
    if planned.scope != TimeScope::Now {
        notices.insert("q: paths are evaluated on current objects".to_owned());
    }
    Ok(planned.matches)
}

/// The pattern as graph databases read it: with the types of each hop, and kinds in the spelling of labels, such as
/// `Deployment` for `deploy`. `spelling` returns that of a kind that is not well known.
pub(crate) fn canonicalize(
    pattern: PathPattern,
    kinds: &KindsByName,
    spelling: &dyn Fn(&GroupKind) -> Option<String>,
) -> PathPattern {
    let mut pattern = pattern.with_stated_types();
    for node in pattern.nodes_mut() {
        let group = node.property(Property::ApiGroup).map(str::to_owned);
        if let Some(label) = &mut node.label
            && let Some(written) = label_spelling(label, group.as_deref(), kinds, spelling)
        {
            *label = written;
        }
    }
    pattern
}

/// Spelling of the kind with a name; None if there are several or none. Kinds of several groups with the same spelling, such
/// as the two of Events, have one label.
fn label_spelling(
    label: &str,
    group: Option<&str>,
    kinds: &KindsByName,
    spelling: &dyn Fn(&GroupKind) -> Option<String>,
) -> Option<String> {
    let lower = label.to_lowercase();
    let found = kinds.get(&lower)?.iter().filter(|kind| group.is_none_or(|group| kind.group == group));
    let found: Vec<&GroupKind> = found.collect();
    let kind = &found.first()?.kind;
    if found.iter().any(|other| other.kind != *kind) {
        return None;
    }
    let spell =
        |kind: &&GroupKind| canonical_kind(&kind.group, &kind.kind).map(str::to_owned).or_else(|| spelling(kind));
    let spellings: BTreeSet<String> = found.iter().filter_map(spell).collect();
    match spellings.len() {
        // The label may already be spelled as in the definition of the kind.
        0 => (*kind != lower).then(|| kind.clone()),
        1 => spellings.into_iter().next(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::sync::Arc;

    fn planning_context() -> PlanningContext {
        let kind = |group: &str, kind: &str| GroupKind { group: group.to_owned(), kind: kind.to_owned() };
        let mut kinds = KindsByName::new();
        for (name, kinds_of_name) in [
            ("deploy", vec![kind("apps", "deployment")]),
            ("deployment", vec![kind("apps", "deployment")]),
            ("gateways", vec![kind("gateway.networking.k8s.io", "gateway"), kind("mesh.io", "gateway")]),
            ("wd", vec![kind("x.io", "widget")]),
            ("widget", vec![kind("x.io", "widget")]),
            ("widgets", vec![kind("x.io", "widget")]),
            ("event", vec![kind("", "event"), kind("events.k8s.io", "event")]),
            ("ev", vec![kind("", "event"), kind("events.k8s.io", "event")]),
            ("service", vec![kind("", "service"), kind("serving.knative.dev", "service")]),
            ("gadgets", vec![kind("x.io", "widget"), kind("y.io", "gizmo")]),
            ("parts", vec![kind("x.io", "part"), kind("y.io", "part")]),
            ("gz", vec![kind("x.io", "gizmo")]),
            ("gizmo", vec![kind("x.io", "gizmo")]),
        ] {
            kinds.insert(name.to_owned(), kinds_of_name.into_iter().collect());
        }
        PlanningContext { kinds: Arc::new(kinds), ..PlanningContext::default() }
    }

    #[rstest]
    #[case::short_name("deploy -USES-> (:Deployment)", "(:Deployment)-[:USES]->(:Deployment)")]
    #[case::group("gateways.mesh.io -USES-> *", r#"(:gateway {apiGroup: "mesh.io"})-[:USES]->()"#)]
    #[case::well_known(
        "gateways.gateway.networking.k8s.io -USES-> *",
        r#"(:Gateway {apiGroup: "gateway.networking.k8s.io"})-[:USES]->()"#
    )]
    #[case::kinds_of_one_spelling("gateways -USES-> *", "(:Gateway)-[:USES]->()")]
    #[case::events_of_two_groups("event -ABOUT-> ev", "(:Event)-[:ABOUT]->(:Event)")]
    #[case::kind_that_an_extension_has_too("service -SELECTS-> *", "(:Service)-[:SELECTS]->()")]
    #[case::several_kinds("gadgets -USES-> *", "(:gadgets)-[:USES]->()")]
    #[case::several_spellings("parts -USES-> *", "(:parts)-[:USES]->()")]
    #[case::custom("wd -USES-> (:widgets)", "(:Widget)-[:USES]->(:Widget)")]
    #[case::custom_without_spelling("gz -USES-> (:Gizmo)", "(:gizmo)-[:USES]->(:Gizmo)")]
    #[case::unknown("gadget -OWNS*-> *", "(:gadget)-[:OWNS*1..5]->()")]
    #[case::any_type("wd --> *", "(:Widget)-[:OWNS|PROPAGATED_TO|ROLE_REF|ROUTES_TO|SELECTS|SUBJECT|USES]->()")]
    fn kinds_are_spelled_as_labels(#[case] text: &str, #[case] expected: &str) {
        let spelling = |kind: &GroupKind| match (kind.group.as_str(), kind.kind.as_str()) {
            (_, "widget") => Some("Widget".to_owned()),
            ("x.io", "part") => Some("Part".to_owned()),
            ("y.io", "part") => Some("PART".to_owned()),
            _ => None,
        };
        assert_eq!(canonicalize(text.parse().unwrap(), &planning_context().kinds, &spelling).to_string(), expected);
    }

    #[rstest]
    #[case::served("(:deploy)", &[])]
    #[case::not_served("(:gadget)", &["no cluster serves the kind gadget, or it cannot be listed and watched"])]
    #[case::at(r#"({q: "at:now-1h web"})"#, &["q: paths are evaluated on current objects"])]
    fn notices_concern_the_node(#[case] text: &str, #[case] expected: &[&str]) {
        let pattern: PathPattern = text.parse().unwrap();
        let mut notices = BTreeSet::new();
        assert!(node_match(&pattern.first, &planning_context(), &mut notices).is_ok());
        assert_eq!(notices.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn queries_beyond_limits_fail() {
        let mut node = NodePattern::default();
        node.properties.push((Property::Q, "(".repeat(100)));
        let failed = node_match(&node, &planning_context(), &mut BTreeSet::new()).unwrap_err();
        assert!(failed.contains("nests deeper"), "{failed}");
    }
}
