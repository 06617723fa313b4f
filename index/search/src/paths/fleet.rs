//! The objects of the fleet as a graph. Objects are found through the text index within the caller's permissions; their
//! edges are the links that they state.

use super::explore::{EdgeKey, MAX_OBJECTS, MAX_OBJECTS_NOTICE, PathGraph, StepEdges};
use super::links::Target;
use super::node::node_match;
use super::stored_links::{Node, NodeLink, NodeLinks, read_nodes};
use crate::document::columns::{Key, Keyword};
use crate::engine::{Lookup, MAX_NUMBERS};
use crate::execute::{self, Sources, resolve_with_notices};
use crate::plan::FleetFacts;
use crate::plan::kinds::kinds_in_group;
use crate::plan::predicate::{Match, Test};
use async_trait::async_trait;
use crowsnest_api::constants::annotation;
use crowsnest_apimachinery::names::CONTROL_PLANE;
use crowsnest_apimachinery::references::{CustomRelation, CustomRule, SELECTING_KINDS};
use crowsnest_apimachinery::selector::{Operator, Selector};
use crowsnest_query::path::{Direction, EdgeType, NodePattern};
use crowsnest_store::{BodyMode, Error, Object, Record};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// Number of objects read at once.
const READ_BATCH: usize = 500;
/// Maximum number of clauses of one lookup. OpenSearch refuses queries with more than 1,024
/// (`indices.query.bool.max_clause_count`), counted in all nested conditions.
const MAX_CLAUSES: usize = 500;
const TRUNCATED: &str = "the search index did not return all objects; some may be missing";

/// The fleet as a caller sees it.
pub(crate) struct FleetGraph {
    sources: Sources,
    facts: Arc<FleetFacts>,
    rules: Arc<[CustomRule]>,
    nodes: HashMap<u64, Node>,
    /// Objects by their own keys.
    by_key: HashMap<u64, Vec<u64>>,
    /// Pods by cluster and namespace.
    pods: HashMap<(String, String), BTreeSet<u64>>,
    /// Maximum number of objects in memory.
    pub max_objects: usize,
    pub notices: BTreeSet<String>,
    /// Reasons why objects may be missing.
    pub limits_reached: BTreeSet<String>,
}

/// The cluster and namespace of an object.
type NamespaceRef<'r> = (&'r str, &'r str);

fn namespace_of(record: &Record) -> NamespaceRef<'_> {
    (record.key.cluster().as_str(), &*record.key.namespace)
}

fn to_owned_key((cluster, namespace): NamespaceRef<'_>) -> (String, String) {
    (cluster.to_owned(), namespace.to_owned())
}

fn is_pod(record: &Record) -> bool {
    (&*record.key.resource().group, &*record.kind) == ("", "Pod")
}

impl FleetGraph {
    pub fn new(sources: Sources, facts: Arc<FleetFacts>) -> Self {
        let rules = Arc::clone(&sources.references);
        Self {
            sources,
            facts,
            rules,
            nodes: HashMap::new(),
            by_key: HashMap::new(),
            pods: HashMap::new(),
            max_objects: MAX_OBJECTS,
            notices: BTreeSet::new(),
            limits_reached: BTreeSet::new(),
        }
    }

    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// An object that the graph returned, without its body.
    pub fn object(&self, id: u64) -> Option<&Object> {
        self.nodes.get(&id).map(|node| &node.object)
    }

    fn node(&self, id: u64) -> Option<(&Record, &NodeLinks)> {
        self.nodes.get(&id).map(|node| (&*node.object.record, &node.links))
    }

    /// Reads objects that are not known yet, up to the limits. The ids must be those of objects that the caller may read.
    pub async fn read(&mut self, ids: &BTreeSet<u64>) -> Result<(), Error> {
        let mut new: Vec<u64> = ids.iter().copied().filter(|id| !self.nodes.contains_key(id)).collect();
        let room = self.max_objects.saturating_sub(self.nodes.len());
        if new.len() > room {
            new.truncate(room);
            self.limits_reached.insert(MAX_OBJECTS_NOTICE.to_owned());
        }
        for some in new.chunks(READ_BATCH) {
            if self.is_late() {
                self.limits_reached.insert(self.late_notice());
                break;
            }
            let objects = self.sources.store.by_ids(some, BodyMode::Read).await?;
            let rules = Arc::clone(&self.rules);
            let nodes = self.sources.permits.run(Instant::now(), move || read_nodes(&objects, &rules)).await?;
            for node in nodes {
                let id = node.object.record.id;
                for key in node.links.own_keys.iter() {
                    self.by_key.entry(*key).or_default().push(id);
                }
                if is_pod(&node.object.record) {
                    self.pods.entry(to_owned_key(namespace_of(&node.object.record))).or_default().insert(id);
                }
                self.nodes.insert(id, node);
            }
        }
        Ok(())
    }

    /// Readable objects that match, with their links read.
    async fn find(&mut self, matches: &Match) -> Result<BTreeSet<u64>, Error> {
        if *matches == Match::None {
            return Ok(BTreeSet::new());
        }
        let lookup = self.sources.engine.ids(&self.sources.context, matches).await?;
        let ids = self.take_numbers(lookup);
        self.read(&ids).await?;
        // Objects that were deleted in the meantime are not read.
        Ok(ids.into_iter().filter(|id| self.nodes.contains_key(id)).collect())
    }

    fn is_late(&self) -> bool {
        Instant::now() > self.sources.context.deadline
    }

    /// Notice that names the time limit of the request.
    fn late_notice(&self) -> String {
        let context = &self.sources.context;
        let limit = context.deadline.saturating_duration_since(context.requested_at);
        format!("the time limit of {} s was reached; some objects may be missing", limit.as_secs())
    }

    /// Returns the numbers of a lookup. Records its notices, and the limit that it reached if it is incomplete.
    fn take_numbers(&mut self, lookup: Lookup) -> BTreeSet<u64> {
        if lookup.incomplete {
            let limit = match lookup.numbers.len() >= MAX_NUMBERS {
                true => MAX_OBJECTS_NOTICE.to_owned(),
                false if self.is_late() => self.late_notice(),
                false => TRUNCATED.to_owned(),
            };
            self.limits_reached.insert(limit);
        }
        self.notices.extend(lookup.notices);
        lookup.numbers
    }

    /// Conditions for the objects at the other ends of the edges of a step, and possibly more. Each is for one lookup.
    fn candidates(&self, ids: &BTreeSet<u64>, step: &StepEdges) -> Vec<Match> {
        let mut conditions = CandidateConditions::default();
        for (record, links) in ids.iter().filter_map(|id| self.node(*id)) {
            links
                .links
                .iter()
                .filter(|link| follows(step, link, true))
                .for_each(|link| conditions.add_target(record, link));
            conditions.add_referrers(record, links, step);
            self.rules.iter().for_each(|rule| conditions.add_custom(record, rule, step));
        }
        conditions.conditions()
    }

    /// Adds the edges of a step that an object states: to any object, or only to those in `to`. `is_start`: see
    /// [`follows`].
    fn collect(
        &self,
        id: u64,
        step: &StepEdges,
        is_start: bool,
        to: Option<&BTreeSet<u64>>,
        edges: &mut BTreeSet<EdgeKey>,
    ) {
        let Some((record, links)) = self.node(id) else { return };
        for link in links.links.iter().filter(|link| follows(step, link, is_start)) {
            let neighbours: Vec<u64> = match &link.target {
                Target::Key(key) => self.by_key.get(key).into_iter().flatten().copied().collect(),
                Target::Pods(selector) => self.selected_pods(record, selector),
            };
            for neighbour in neighbours.into_iter().filter(|neighbour| to.is_none_or(|to| to.contains(neighbour))) {
                let (from, to) = if link.forward { (id, neighbour) } else { (neighbour, id) };
                edges.insert((from, to, link.edge));
            }
        }
    }

    /// Pods in the cluster and namespace of an object that its selector matches.
    fn selected_pods(&self, selecting: &Record, selector: &Selector) -> Vec<u64> {
        let pods = self.pods.get(&to_owned_key(namespace_of(selecting))).into_iter().flatten();
        let matches = |id: &&u64| self.node(**id).is_some_and(|(record, _)| selector.matches(&record.labels));
        pods.filter(matches).copied().collect()
    }

    /// Fields that state an edge, at either of its ends.
    pub fn edge_fields(&self, (from, to, edge): EdgeKey) -> Vec<String> {
        let mut fields = BTreeSet::new();
        for (id, other_end, forward) in [(from, to, true), (to, from, false)] {
            let Some((record, links)) = self.node(id) else { continue };
            let matching_links = links.links.iter().filter(|link| link.edge == edge && link.forward == forward);
            fields.extend(matching_links.filter(|link| self.leads_to(record, link, other_end)).map(|link| &*link.via));
        }
        fields.into_iter().map(str::to_owned).collect()
    }

    /// True if a link of an object leads to another object that was read.
    fn leads_to(&self, stating: &Record, link: &NodeLink, other_end: u64) -> bool {
        let Some((record, links)) = self.node(other_end) else { return false };
        match &link.target {
            Target::Key(key) => links.own_keys.contains(key),
            Target::Pods(selector) => {
                is_pod(record) && namespace_of(record) == namespace_of(stating) && selector.matches(&record.labels)
            }
        }
    }

    /// References between objects that were read, with their columns in the text index.
    pub fn references(&self, ids: &BTreeSet<u64>) -> Vec<(u64, u64, Key)> {
        let mut edges = BTreeSet::new();
        for (id, links) in ids.iter().filter_map(|id| Some((*id, self.node(*id)?.1))) {
            for link in links.links.iter() {
                let (Some(column), Target::Key(key)) = (link.column, &link.target) else { continue };
                let others = self.by_key.get(key).into_iter().flatten();
                edges.extend(others.filter(|to| **to != id && ids.contains(to)).map(|to| (id, *to, column)));
            }
        }
        edges.into_iter().collect()
    }

    /// Readable objects that state a reference to one of these, or to which these state one.
    pub async fn neighbours(&mut self, ids: &BTreeSet<u64>) -> Result<BTreeSet<u64>, Error> {
        let graph = &*self;
        let links = move || ids.iter().filter_map(move |id| graph.node(*id)).map(|(_, links)| links);
        let links_with_column = links().flat_map(|links| links.links.iter()).filter(|link| link.column.is_some());
        let targets = links_with_column.filter_map(|link| match &link.target {
            Target::Key(key) => Some(*key),
            Target::Pods(_) => None,
        });
        let to = Match::keys(&[Key::Own], targets.collect());
        let own_keys = links().flat_map(|links| links.own_keys.iter().copied()).collect();
        let from = Match::keys(&[Key::Owner, Key::Uses, Key::About], own_keys);
        let lookup = self.sources.engine.ids(&self.sources.context, &Match::Or(vec![to, from])).await?;
        Ok(self.take_numbers(lookup))
    }
}

#[async_trait]
impl PathGraph for FleetGraph {
    async fn matching_ids(&mut self, node: &NodePattern, among: Option<BTreeSet<u64>>) -> Result<BTreeSet<u64>, Error> {
        let matches = match node_match(node, &self.facts, &mut self.notices) {
            Ok(matches) => matches,
            Err(notice) => {
                self.notices.insert(notice);
                return Ok(BTreeSet::new());
            }
        };
        if let (Match::All, Some(ids)) = (&matches, &among) {
            return Ok(ids.clone());
        }
        let matches = match among {
            Some(ids) if ids.is_empty() => return Ok(ids),
            // First, so that parts of the index without these objects, and manifests of others, are not evaluated.
            Some(ids) => Match::Ids(Arc::new(ids)).and(matches),
            None => matches,
        };
        let (matches, notices) = resolve_with_notices(&self.sources, matches).await?;
        let (limits, notices): (BTreeSet<String>, BTreeSet<String>) =
            notices.into_iter().partition(|notice| notice == execute::TRUNCATED);
        self.limits_reached.extend(limits);
        self.notices.extend(notices);
        self.find(&matches).await
    }

    async fn edges(&mut self, ids: &BTreeSet<u64>, step: &StepEdges) -> Result<BTreeSet<EdgeKey>, Error> {
        let mut edges = BTreeSet::new();
        for direction in [Direction::Out, Direction::In] {
            if step.direction != Direction::Both && step.direction != direction {
                continue;
            }
            let step = StepEdges { types: step.types.clone(), direction };
            let mut found = BTreeSet::new();
            for condition in self.candidates(ids, &step) {
                found.extend(self.find(&condition).await?);
            }
            ids.iter().for_each(|id| self.collect(*id, &step, true, None, &mut edges));
            found.iter().for_each(|id| self.collect(*id, &step, false, Some(ids), &mut edges));
        }
        Ok(edges)
    }
}

/// True if a link is an edge of the step. `is_start`: the step begins at the object that states the link; otherwise it
/// ends there.
fn follows(step: &StepEdges, link: &NodeLink, is_start: bool) -> bool {
    let is_outgoing = link.forward == is_start;
    step.types.contains(&link.edge) && is_outgoing == (step.direction == Direction::Out)
}

/// Conditions for the other ends of edges.
#[derive(Default)]
struct CandidateConditions {
    targets: BTreeSet<u64>,
    referrers: BTreeMap<Vec<Key>, BTreeSet<u64>>,
    others: Vec<Match>,
    /// Conditions in `others`, by cluster and namespace, or by cluster, group and kind; so that each is added once.
    added: BTreeSet<(String, String, String)>,
}

impl CandidateConditions {
    /// Adds the other end of a link.
    fn add_target(&mut self, record: &Record, link: &NodeLink) {
        match &link.target {
            Target::Key(key) => {
                self.targets.insert(*key);
            }
            Target::Pods(selector) => {
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
                parts.extend(namespace_conditions(namespace_of(record)));
                parts.push(kinds_in_group("", &["pod"]));
                self.others.push(Match::And(parts));
            }
        }
    }

    /// Adds the objects that may state an edge of the step to an object.
    fn add_referrers(&mut self, record: &Record, links: &NodeLinks, step: &StepEdges) {
        let columns = columns(step);
        if !columns.is_empty() {
            self.referrers.entry(columns).or_default().extend(links.own_keys.iter());
        }
        let (cluster, namespace) = namespace_of(record);
        let out = step.direction == Direction::Out;
        let name = &*record.key.name;
        if out && step.types.contains(&EdgeType::PropagatedTo) && cluster == CONTROL_PLANE {
            let template = format!("{}={}", annotation::RESOURCE_TEMPLATE_UID, record.uid);
            self.others.push(Match::Exact(Keyword::Annotation, template));
            match &*record.kind {
                "ResourceBinding" => self.others.push(works_of(format!("{namespace}/{name}"))),
                "ClusterResourceBinding" => self.others.push(works_of(name.to_owned())),
                _ => {}
            }
        }
        let is_namespace = (&*record.key.resource().group, &*record.kind) == ("", "Namespace");
        if out && step.types.contains(&EdgeType::Contains) && is_namespace {
            self.others.push(Match::And(namespace_conditions((cluster, name))));
        }
        let is_new = |added: &mut BTreeSet<_>| added.insert((cluster.to_owned(), namespace.to_owned(), String::new()));
        if !out && step.types.contains(&EdgeType::Selects) && is_pod(record) && is_new(&mut self.added) {
            let kinds =
                SELECTING_KINDS.iter().map(|(group, kind)| kinds_in_group(group, &[kind.to_lowercase()])).collect();
            let parts = [Match::any_of(kinds)].into_iter().chain(namespace_conditions((cluster, namespace)));
            self.others.push(Match::And(parts.collect()));
        }
    }

    /// Adds the objects of the kind of a user's rule, which may refer to an object of its target kind in their cluster.
    fn add_custom(&mut self, record: &Record, rule: &CustomRule, step: &StepEdges) {
        let edge = match rule.relation {
            CustomRelation::Uses => EdgeType::Uses,
            CustomRelation::RoutesTo => EdgeType::RoutesTo,
        };
        if step.direction != Direction::In || !step.types.contains(&edge) {
            return;
        }
        let cluster = record.key.cluster().as_str();
        let is_target =
            (rule.target.group.as_str(), rule.target.kind.as_str()) == (&*record.key.resource().group, &*record.kind);
        if is_target && self.added.insert((cluster.to_owned(), rule.group.clone(), rule.kind.clone())) {
            let in_cluster = Match::Exact(Keyword::Cluster, cluster.to_owned());
            self.others.push(kinds_in_group(&rule.group.to_lowercase(), &[rule.kind.to_lowercase()]).and(in_cluster));
        }
    }

    fn conditions(self) -> Vec<Match> {
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
        let clause_count = clauses(&alternative);
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
fn clauses(matches: &Match) -> usize {
    match matches {
        Match::And(parts) | Match::Or(parts) => parts.iter().map(clauses).sum(),
        Match::Not(inner) | Match::Because(_, _, inner) => clauses(inner),
        _ => 1,
    }
}

/// Columns of the text index with references to an object by objects at the other ends of a step.
fn columns(step: &StepEdges) -> Vec<Key> {
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

fn works_of(binding: String) -> Match {
    kinds_in_group("work.karmada.io", &["work"]).and(Match::Exact(Keyword::Binding, binding))
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
        assert_eq!(groups.iter().map(clauses).collect::<Vec<_>>(), expected);
    }
}
