//! Conditions that find the objects at the other ends of the edges of a step.

use super::stored_links::{NamespaceRef, Node, NodeLink, NodeTarget};
use super::traversal::StepEdges;
use crate::document::columns::{Key, Keyword};
use crate::plan::kinds::{kinds_in_group, objects_of_kinds};
use crate::plan::predicate::{Match, Test};
use crowsnest_api::constants::annotation;
use crowsnest_api::propagation::{BINDINGS, WORKS};
use crowsnest_apimachinery::names::CONTROL_PLANE;
use crowsnest_apimachinery::references::{CustomRelation, CustomRule, SELECTING_KINDS};
use crowsnest_apimachinery::selector::Operator;
use crowsnest_query::path::{Direction, EdgeType};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of clauses of one lookup. OpenSearch refuses queries with more than 1,024
/// (`indices.query.bool.max_clause_count`), counted in all nested conditions.
const MAX_CLAUSES: usize = 500;

/// Conditions for the other ends of edges.
#[derive(Default)]
pub(super) struct CandidateConditions {
    targets: BTreeSet<u64>,
    referrers: BTreeMap<Vec<Key>, BTreeSet<u64>>,
    others: Vec<Match>,
    /// Conditions in `others`, by cluster and namespace, or by cluster, group and kind; so that each is added once.
    added: BTreeSet<(String, String, String)>,
}

impl CandidateConditions {
    /// Adds the other end of a link.
    pub fn add_target(&mut self, node: &Node, link: &NodeLink) {
        match &link.target {
            NodeTarget::Key(key) => {
                self.targets.insert(*key);
            }
            NodeTarget::Pods(selector) => {
                let labels = selector.requirements().iter().filter_map(|requirement| {
                    let key = requirement.key();
                    let pair = |value: &str| Match::Exact(Keyword::Label, format!("{key}={value}"));
                    match requirement.operator() {
                        Operator::Equals | Operator::In => {
                            Some(Match::any_of(requirement.values().map(pair).collect()))
                        }
                        Operator::Exists => Some(Match::Keyword(Keyword::LabelKey, Test::Equals(key.to_lowercase()))),
                        _ => None,
                    }
                });
                // The conditions that match the fewest objects are first: engines may skip the rest.
                let mut parts: Vec<Match> = labels.collect();
                parts.extend(namespace_conditions(node.namespace()));
                parts.push(kinds_in_group("", &["pod"]));
                self.others.push(Match::And(parts));
            }
        }
    }

    /// Adds the objects that may declare an edge of the step to an object.
    pub fn add_referrers(&mut self, node: &Node, step: &StepEdges) {
        let columns = referrer_columns(step);
        if !columns.is_empty() {
            self.referrers.entry(columns).or_default().extend(node.links.own_keys.iter());
        }
        let (cluster, namespace) = node.namespace();
        let is_outgoing = step.direction == Direction::Out;
        let name = &*node.key.name;
        if is_outgoing && step.types.contains(&EdgeType::PropagatedTo) && cluster == CONTROL_PLANE {
            let template = format!("{}={}", annotation::RESOURCE_TEMPLATE_UID, node.template_uid);
            self.others.push(Match::Exact(Keyword::Annotation, template));
            let (group, kind) = node.group_kind();
            if BINDINGS.contains(group, kind) {
                self.others.push(works_of(namespace, name));
            }
        }
        if is_outgoing && step.types.contains(&EdgeType::Contains) && node.group_kind() == ("", "Namespace") {
            self.others.push(Match::And(namespace_conditions((cluster, name))));
        }
        let is_new = |added: &mut BTreeSet<_>| added.insert((cluster.to_owned(), namespace.to_owned(), String::new()));
        if !is_outgoing && step.types.contains(&EdgeType::Selects) && node.is_pod() && is_new(&mut self.added) {
            let kinds =
                SELECTING_KINDS.iter().map(|(group, kind)| kinds_in_group(group, &[kind.to_lowercase()])).collect();
            let parts = [Match::any_of(kinds)].into_iter().chain(namespace_conditions((cluster, namespace)));
            self.others.push(Match::And(parts.collect()));
        }
    }

    /// Adds the objects of the kind of a user's rule, which may refer to an object of its target kind in their cluster.
    pub fn add_custom(&mut self, node: &Node, rule: &CustomRule, step: &StepEdges) {
        let edge = match rule.relation {
            CustomRelation::Uses => EdgeType::Uses,
            CustomRelation::RoutesTo => EdgeType::RoutesTo,
        };
        if step.direction != Direction::In || !step.types.contains(&edge) {
            return;
        }
        let cluster = node.key.cluster().as_str();
        let is_target = (rule.target.group.as_str(), rule.target.kind.as_str()) == node.group_kind();
        if is_target && self.added.insert((cluster.to_owned(), rule.group.clone(), rule.kind.clone())) {
            let in_cluster = Match::Exact(Keyword::Cluster, cluster.to_owned());
            self.others.push(kinds_in_group(&rule.group.to_lowercase(), &[rule.kind.to_lowercase()]).and(in_cluster));
        }
    }

    /// The conditions, each for one lookup.
    pub fn conditions(self) -> Vec<Match> {
        let mut any = self.others;
        any.push(Match::keys(&[Key::Own], self.targets));
        any.extend(self.referrers.into_iter().map(|(columns, keys)| Match::keys(&columns, keys)));
        any.retain(|condition| *condition != Match::None);
        group_alternatives(any)
    }
}

/// Alternatives in groups of at most [`MAX_CLAUSES`] clauses; a larger one is alone.
fn group_alternatives(alternatives: Vec<Match>) -> Vec<Match> {
    let (mut groups, mut group, mut size) = (Vec::new(), Vec::new(), 0);
    for alternative in alternatives {
        let clause_count = count_clauses(&alternative);
        if size + clause_count > MAX_CLAUSES && !group.is_empty() {
            groups.push(Match::any_of(std::mem::take(&mut group)));
            size = 0;
        }
        size += clause_count;
        group.push(alternative);
    }
    if !group.is_empty() {
        groups.push(Match::any_of(group));
    }
    groups
}

/// Number of conditions on single fields.
fn count_clauses(matches: &Match) -> usize {
    match matches {
        Match::And(parts) | Match::Or(parts) => parts.iter().map(count_clauses).sum(),
        Match::Not(inner) | Match::WithReason(_, _, inner) => count_clauses(inner),
        _ => 1,
    }
}

/// Columns of the text index in which the objects at the other ends of a step refer to an object.
fn referrer_columns(step: &StepEdges) -> Vec<Key> {
    let mut columns = BTreeSet::new();
    for edge in &step.types {
        match (edge, step.direction) {
            (EdgeType::Owns, Direction::Out) => columns.extend([Key::Owner]),
            (EdgeType::RoutesTo, Direction::Out) => columns.extend([Key::Owner, Key::Uses]),
            (EdgeType::PropagatedTo, _) | (EdgeType::About, Direction::In) => columns.extend([Key::About]),
            (EdgeType::RoutesTo | EdgeType::Uses | EdgeType::RunsOn, Direction::In) => columns.extend([Key::Uses]),
            (EdgeType::Subject | EdgeType::RoleRef, Direction::In) => columns.extend([Key::Uses]),
            _ => {}
        }
    }
    columns.into_iter().collect()
}

fn namespace_conditions((cluster, namespace): NamespaceRef<'_>) -> Vec<Match> {
    vec![Match::Exact(Keyword::Cluster, cluster.to_owned()), Match::Exact(Keyword::Namespace, namespace.to_owned())]
}

/// Works of a binding; `namespace` is empty if it is cluster-scoped.
fn works_of(namespace: &str, name: &str) -> Match {
    let binding = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
    objects_of_kinds(WORKS).and(Match::Exact(Keyword::Binding, binding))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::none(&[], &[])]
    #[case::one_lookup(&[2, 498], &[500])]
    #[case::several_lookups(&[2, 499, 1, 1], &[2, 500, 1])]
    #[case::too_large(&[501, 1], &[501, 1])]
    fn alternatives_are_grouped_by_their_clauses(#[case] alternatives: &[usize], #[case] expected: &[usize]) {
        let nested = |size: &usize| Match::And(vec![Match::All; *size]);
        let groups = group_alternatives(alternatives.iter().map(nested).collect());
        assert_eq!(groups.iter().map(count_clauses).collect::<Vec<_>>(), expected);
    }
}
