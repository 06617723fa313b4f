//! The objects of the fleet as a graph. Objects are found through the text index within the caller's permissions; their
//! edges are the links that they declare.

use super::candidates::CandidateConditions;
use super::node::node_match;
use super::stored_links::{NamespaceRef, NeededLinks, Node, NodeLink, NodeTarget, read_nodes};
use super::traversal::{EdgeKey, MAX_OBJECTS, MAX_OBJECTS_NOTICE, PathGraph, StepEdges};
use crate::document::columns::Key;
use crate::engine::{Lookup, MAX_LOOKUP_VALUES, SearchContext};
use crate::execute::{self, Sources, resolve_with_notices};
use crate::plan::PlanningContext;
use crate::plan::predicate::Match;
use async_trait::async_trait;
use crowsnest_apimachinery::references::CustomRule;
use crowsnest_apimachinery::selector::Selector;
use crowsnest_query::path::{Direction, NodePattern, Property};
use crowsnest_store::{BodyMode, Error, Object, RecordKey};
use futures::future::try_join_all;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;
use tokio_util::sync::DropGuard;

/// Number of objects read at once.
const READ_BATCH: usize = 500;
/// Maximum number of concurrent reads, and of concurrent lookups, of a request.
///
/// Concurrent reads or lookups are awaited together, before any further work of the request: one that is not polled could keep
/// a search permit for which the further work waits.
const MAX_CONCURRENT: usize = 2;
/// Part of the time until the deadline, in percent, that a search leaves for the enumeration of paths and for the records of the
/// response.
const RESPONSE_TIME_PERCENT: u32 = 10;
/// Maximum number of objects of a search whose records are kept in memory. Those of a response that are not among them are
/// read again.
const MAX_RECORDS: usize = 10_000;
const TRUNCATED: &str = "the search index did not return all objects; some may be missing";

/// The fleet as a caller sees it.
pub(crate) struct FleetGraph {
    /// With the deadline of the search, which is earlier than that of the response.
    sources: Sources,
    /// Deadline of the response.
    deadline: Instant,
    planning_context: Arc<PlanningContext>,
    rules: Arc<[CustomRule]>,
    nodes: HashMap<u64, Node>,
    /// Objects without their bodies: those that were read first, and those of the response.
    objects: HashMap<u64, Object>,
    /// Own keys of objects, and their ids.
    by_key: BTreeSet<(u64, u64)>,
    /// Pods by cluster and namespace.
    pods: HashMap<(String, String), BTreeSet<u64>>,
    /// Maximum number of objects that are visited.
    pub max_objects: usize,
    /// Maximum number of records that the search keeps.
    pub max_records: usize,
    /// The last condition on the ends of a step, and the objects that lookups found to meet it.
    verified: Option<(NodePattern, BTreeSet<u64>)>,
    pub notices: BTreeSet<String>,
    /// Reasons why objects may be missing.
    pub limits_reached: BTreeSet<String>,
    /// Stops lookups and the enumeration of paths when the graph is dropped, as with the future of a dropped response.
    _cancel_on_drop: DropGuard,
}

fn to_owned_key((cluster, namespace): NamespaceRef<'_>) -> (String, String) {
    (cluster.to_owned(), namespace.to_owned())
}

impl FleetGraph {
    pub fn new(sources: Sources, planning_context: Arc<PlanningContext>) -> Self {
        let deadline = sources.context.deadline;
        // The percentage applies to the remaining time, because a part of a response may begin long after the arrival of its request.
        let response_time = deadline.saturating_duration_since(Instant::now()) * RESPONSE_TIME_PERCENT / 100;
        let mut sources = sources.with_deadline(deadline.checked_sub(response_time).unwrap_or(deadline));
        // The token of the request also stops work that does not belong to the graph.
        sources.context.cancellation = sources.context.cancellation.child_token();
        let cancel_on_drop = sources.context.cancellation.clone().drop_guard();
        let rules = Arc::clone(&sources.references);
        Self {
            sources,
            deadline,
            planning_context,
            rules,
            nodes: HashMap::new(),
            objects: HashMap::new(),
            by_key: BTreeSet::new(),
            pods: HashMap::new(),
            max_objects: MAX_OBJECTS,
            max_records: MAX_RECORDS,
            verified: None,
            notices: BTreeSet::new(),
            limits_reached: BTreeSet::new(),
            _cancel_on_drop: cancel_on_drop,
        }
    }

    /// Context of the work that follows the search.
    pub fn response_context(&self) -> SearchContext {
        SearchContext { deadline: self.deadline, ..self.sources.context.clone() }
    }

    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// An object without its body. Only some are in memory before [`Self::read_records`].
    pub fn object(&self, id: u64) -> Option<&Object> {
        self.objects.get(&id)
    }

    /// Key and kind of an object that was read.
    pub fn identity(&self, id: u64) -> Option<(&RecordKey, &str)> {
        self.nodes.get(&id).map(|node| (&node.key, &*node.kind))
    }

    /// Reads objects with all their links, up to the limits. The ids must be those of objects that the caller may read.
    pub async fn read(&mut self, ids: &BTreeSet<u64>) -> Result<(), Error> {
        self.read_links(ids, NeededLinks::All).await
    }

    /// Reads the objects that were not read yet or without these links, up to the limits.
    async fn read_links(&mut self, ids: &BTreeSet<u64>, needed: NeededLinks) -> Result<(), Error> {
        let remaining = self.max_objects.saturating_sub(self.nodes.len());
        let new = ids.iter().copied().filter(|id| !self.nodes.contains_key(id));
        let mut new: Vec<u64> = new.take(remaining.saturating_add(1)).collect();
        if new.len() > remaining {
            new.truncate(remaining);
            self.limits_reached.insert(MAX_OBJECTS_NOTICE.to_owned());
        }
        self.read_nodes(&new, needed.body_mode()).await?;
        let lacks_links = |id: &u64| self.nodes.get(id).is_some_and(|node| node.lacks(needed));
        let incomplete: Vec<u64> = ids.iter().copied().filter(lacks_links).collect();
        self.read_nodes(&incomplete, BodyMode::Read).await
    }

    async fn read_nodes(&mut self, ids: &[u64], body_mode: BodyMode) -> Result<(), Error> {
        for chunk in ids.chunks(READ_BATCH * MAX_CONCURRENT) {
            if self.is_search_over() {
                break;
            }
            let keep_records = self.objects.len() + chunk.len() <= self.max_records;
            let sources = &self.sources;
            let batches = chunk.chunks(READ_BATCH).map(|ids| read_batch(sources, ids, body_mode, keep_records));
            let batches: Vec<_> = batches.collect();
            let read = try_join_all(batches).await?;
            read.into_iter().flatten().for_each(|(node, object)| self.insert(node, object));
        }
        Ok(())
    }

    /// Adds an object, or replaces it with one with more links.
    fn insert(&mut self, node: Node, object: Option<Object>) {
        let id = node.id;
        self.by_key.extend(node.links.own_keys.iter().map(|key| (*key, id)));
        if node.is_pod() {
            self.pods.entry(to_owned_key(node.namespace())).or_default().insert(id);
        }
        self.objects.extend(object.map(|object| (id, object)));
        self.nodes.insert(id, node);
    }

    /// Reads the records of the objects of a response that are not in memory. Objects that were deleted in the meantime have
    /// none.
    pub async fn read_records(&mut self, ids: &BTreeSet<u64>) -> Result<(), Error> {
        let is_missing = |id: &u64| self.nodes.contains_key(id) && !self.objects.contains_key(id);
        let missing: Vec<u64> = ids.iter().copied().filter(is_missing).collect();
        for chunk in missing.chunks(READ_BATCH) {
            let objects = self.sources.store.by_ids(chunk, BodyMode::Skip).await?;
            self.objects.extend(objects.into_iter().map(|object| (object.record.id, object)));
        }
        Ok(())
    }

    /// Readable objects that match any of the conditions, with these links read.
    async fn find(&mut self, conditions: &[Match], needed: NeededLinks) -> Result<BTreeSet<u64>, Error> {
        let conditions: Vec<&Match> = conditions.iter().filter(|condition| **condition != Match::None).collect();
        let mut found = BTreeSet::new();
        for chunk in conditions.chunks(MAX_CONCURRENT) {
            if self.is_search_over() {
                break;
            }
            let Sources { engine, context, .. } = &self.sources;
            let lookups: Vec<_> = chunk.iter().map(|condition| engine.ids(context, condition)).collect();
            let lookups = try_join_all(lookups).await?;
            for lookup in lookups {
                let ids = self.take_values(lookup);
                found.extend(self.read_found(ids, needed).await?);
            }
        }
        Ok(found)
    }

    /// Reads these links of objects that the caller may read. Returns the objects without those that were deleted in the
    /// meantime.
    async fn read_found(&mut self, ids: BTreeSet<u64>, needed: NeededLinks) -> Result<BTreeSet<u64>, Error> {
        self.read_links(&ids, needed).await?;
        Ok(ids.into_iter().filter(|id| self.nodes.contains_key(id)).collect())
    }

    /// True if the search must stop: its deadline has passed, or the response is no longer needed. Records the time limit then;
    /// nothing reads the notices of a response that is not needed.
    fn is_search_over(&mut self) -> bool {
        let is_over = self.sources.context.is_over();
        if is_over {
            self.limits_reached.insert(self.deadline_notice());
        }
        is_over
    }

    /// Notice that names the time limit of the request.
    fn deadline_notice(&self) -> String {
        let limit = self.deadline.saturating_duration_since(self.sources.context.requested_at);
        format!("the time limit of {} s was reached; some objects may be missing", limit.as_secs())
    }

    /// Returns the ids or keys of a lookup. Records its notices, and the limit that it reached if it is incomplete.
    fn take_values(&mut self, lookup: Lookup) -> BTreeSet<u64> {
        if lookup.incomplete {
            let limit = match lookup.values.len() >= MAX_LOOKUP_VALUES {
                true => MAX_OBJECTS_NOTICE.to_owned(),
                false if self.sources.context.is_over() => self.deadline_notice(),
                false => TRUNCATED.to_owned(),
            };
            self.limits_reached.insert(limit);
        }
        self.notices.extend(lookup.notices);
        lookup.values
    }

    /// Conditions for the objects at the other ends of the edges of a step, and possibly more. Each is for one lookup.
    fn candidates(&self, ids: &BTreeSet<u64>, step: &StepEdges) -> Vec<Match> {
        let mut conditions = CandidateConditions::default();
        for node in ids.iter().filter_map(|id| self.nodes.get(id)) {
            let links = node.links.links.iter().filter(|link| follows(step, link, true));
            links.for_each(|link| conditions.add_target(node, link));
            conditions.add_referrers(node, step);
            self.rules.iter().for_each(|rule| conditions.add_custom(node, rule, step));
        }
        conditions.conditions()
    }

    /// The condition of the objects at which a hop may end, if it can be evaluated together with others; otherwise
    /// [`Match::All`].
    fn end_condition(&mut self, ends: Option<&NodePattern>) -> Match {
        // A query may have parts that are resolved first: see `matching_ids`.
        let without_query = ends.filter(|node| node.property(Property::Q).is_none());
        let condition = without_query.map(|node| node_match(node, &self.planning_context, &mut self.notices));
        condition.and_then(Result::ok).unwrap_or(Match::All)
    }

    /// True if a lookup has found that the object meets the condition.
    fn is_verified(&self, node: &NodePattern, id: u64) -> bool {
        self.verified.as_ref().is_some_and(|(condition, ids)| condition == node && ids.contains(&id))
    }

    /// Objects with a key.
    fn with_key(&self, key: u64) -> impl Iterator<Item = u64> {
        self.by_key.range((key, u64::MIN)..=(key, u64::MAX)).map(|(_, id)| *id)
    }

    /// Adds the edges of a step that an object declares: to any object, or only to those in `to`. `is_start`: see
    /// [`follows`].
    fn collect(
        &self,
        id: u64,
        step: &StepEdges,
        is_start: bool,
        to: Option<&BTreeSet<u64>>,
        edges: &mut BTreeSet<EdgeKey>,
    ) {
        let Some(node) = self.nodes.get(&id) else { return };
        for link in node.links.links.iter().filter(|link| follows(step, link, is_start)) {
            let neighbours: Vec<u64> = match &link.target {
                NodeTarget::Key(key) => self.with_key(*key).collect(),
                NodeTarget::Pods(selector) => self.selected_pods(node, selector),
            };
            for neighbour in neighbours.into_iter().filter(|neighbour| to.is_none_or(|to| to.contains(neighbour))) {
                let (from, to) = if link.forward { (id, neighbour) } else { (neighbour, id) };
                edges.insert((from, to, link.edge));
            }
        }
    }

    /// Pods in the cluster and namespace of an object that its selector matches.
    fn selected_pods(&self, selecting_node: &Node, selector: &Selector) -> Vec<u64> {
        let pods = self.pods.get(&to_owned_key(selecting_node.namespace())).into_iter().flatten();
        let is_selected = |id: &&u64| self.nodes.get(*id).is_some_and(|node| node.is_selected_by(selector));
        pods.filter(is_selected).copied().collect()
    }

    /// Fields that declare an edge, at either of its ends.
    pub fn edge_fields(&self, (from, to, edge): EdgeKey) -> Vec<String> {
        let mut fields = BTreeSet::new();
        for (id, other_end, forward) in [(from, to, true), (to, from, false)] {
            let Some(node) = self.nodes.get(&id) else { continue };
            let matching_links = node.links.links.iter().filter(|link| link.edge == edge && link.forward == forward);
            fields.extend(matching_links.filter(|link| self.leads_to(node, link, other_end)).map(|link| &*link.via));
        }
        fields.into_iter().map(str::to_owned).collect()
    }

    /// True if a link of an object leads to another object that was read.
    fn leads_to(&self, source: &Node, link: &NodeLink, other_end: u64) -> bool {
        let Some(node) = self.nodes.get(&other_end) else { return false };
        match &link.target {
            NodeTarget::Key(key) => node.links.own_keys.contains(key),
            NodeTarget::Pods(selector) => node.namespace() == source.namespace() && node.is_selected_by(selector),
        }
    }

    /// References between objects that were read, with their columns in the text index.
    pub fn references(&self, ids: &BTreeSet<u64>) -> Vec<(u64, u64, Key)> {
        let mut edges = BTreeSet::new();
        for node in ids.iter().filter_map(|id| self.nodes.get(id)) {
            let id = node.id;
            for link in node.links.links.iter() {
                let (Some(column), NodeTarget::Key(key)) = (link.column, &link.target) else { continue };
                let others = self.with_key(*key).filter(|to| *to != id && ids.contains(to));
                edges.extend(others.map(|to| (id, to, column)));
            }
        }
        edges.into_iter().collect()
    }

    /// Readable objects that refer to one of these, or to which these refer.
    pub async fn neighbours(&mut self, ids: &BTreeSet<u64>) -> Result<BTreeSet<u64>, Error> {
        let graph = &*self;
        let links = move || ids.iter().filter_map(move |id| graph.nodes.get(id)).map(|node| &node.links);
        let links_with_column = links().flat_map(|links| links.links.iter()).filter(|link| link.column.is_some());
        let targets = links_with_column.filter_map(|link| match &link.target {
            NodeTarget::Key(key) => Some(*key),
            NodeTarget::Pods(_) => None,
        });
        let to = Match::keys(&[Key::Own], targets.collect());
        let own_keys = links().flat_map(|links| links.own_keys.iter().copied()).collect();
        let from = Match::keys(&[Key::Owner, Key::Uses, Key::About], own_keys);
        let lookup = self.sources.engine.ids(&self.sources.context, &Match::Or(vec![to, from])).await?;
        Ok(self.take_values(lookup))
    }
}

/// Reads objects for the graph: see [`read_nodes`].
async fn read_batch(
    sources: &Sources,
    ids: &[u64],
    body_mode: BodyMode,
    keep_records: bool,
) -> Result<Vec<(Node, Option<Object>)>, Error> {
    let objects = sources.store.by_ids(ids, body_mode).await?;
    let rules = Arc::clone(&sources.references);
    let read = move || read_nodes(&objects, body_mode, &rules, keep_records);
    sources.permits.run(Instant::now(), read).await
}

#[async_trait]
impl PathGraph for FleetGraph {
    async fn matching_ids(
        &mut self,
        node: &NodePattern,
        among: Option<BTreeSet<u64>>,
        next: Option<&StepEdges>,
    ) -> Result<BTreeSet<u64>, Error> {
        let matches = match node_match(node, &self.planning_context, &mut self.notices) {
            Ok(matches) => matches,
            Err(notice) => {
                self.notices.insert(notice);
                return Ok(BTreeSet::new());
            }
        };
        if let (Match::All, Some(ids)) = (&matches, &among) {
            return Ok(ids.clone());
        }
        let needed = next.map_or(NeededLinks::OfRecord, |step| NeededLinks::of_types(&step.types, &self.rules));
        let (verified, undecided) = match among {
            Some(ids) => {
                let (verified, undecided) = ids.into_iter().partition(|id| self.is_verified(node, *id));
                (self.read_found(verified, needed).await?, Some(undecided))
            }
            None => (BTreeSet::new(), None),
        };
        let matches = match undecided {
            Some(ids) if ids.is_empty() => return Ok(verified),
            // Conditions in `q` are resolved by lookups of their own.
            Some(_) if self.is_search_over() => return Ok(verified),
            // First, so that parts of the index without these objects, and manifests of others, are not evaluated.
            Some(ids) => Match::Ids(Arc::new(ids)).and(matches),
            None => matches,
        };
        let (matches, notices) = resolve_with_notices(&self.sources, matches).await?;
        let (limits, notices): (BTreeSet<String>, BTreeSet<String>) =
            notices.into_iter().partition(|notice| notice == execute::TRUNCATED);
        self.limits_reached.extend(limits);
        self.notices.extend(notices);
        let mut found = self.find(&[matches], needed).await?;
        found.extend(verified);
        Ok(found)
    }

    async fn edges(
        &mut self,
        ids: &BTreeSet<u64>,
        step: &StepEdges,
        ends: Option<&NodePattern>,
    ) -> Result<BTreeSet<EdgeKey>, Error> {
        let needed = NeededLinks::of_types(&step.types, &self.rules);
        self.read_links(ids, needed).await?;
        let end_condition = self.end_condition(ends);
        let directed = directed_steps(step);
        let searched: &[StepEdges] = if self.is_search_over() { &[] } else { &directed };
        let mut conditions: Vec<Match> = searched.iter().flat_map(|step| self.candidates(ids, step)).collect();
        if end_condition != Match::All {
            conditions = conditions.into_iter().map(|condition| condition.and(end_condition.clone())).collect();
        }
        let found = self.find(&conditions, needed).await?;
        let mut edges = BTreeSet::new();
        for step in &directed {
            ids.iter().for_each(|id| self.collect(*id, step, true, None, &mut edges));
            found.iter().for_each(|id| self.collect(*id, step, false, Some(ids), &mut edges));
        }
        self.verified = ends.filter(|_| end_condition != Match::All).map(|node| (node.clone(), found));
        Ok(edges)
    }
}

/// The step in each of its directions.
fn directed_steps(step: &StepEdges) -> Vec<StepEdges> {
    let directions: &[Direction] = match step.direction {
        Direction::Both => &[Direction::Out, Direction::In],
        Direction::Out => &[Direction::Out],
        Direction::In => &[Direction::In],
    };
    let in_direction = |direction: &Direction| StepEdges { types: step.types.clone(), direction: *direction };
    directions.iter().map(in_direction).collect()
}

/// True if a link is an edge of the step. `is_start`: the step begins at the object that declares the link; otherwise it
/// ends there.
fn follows(step: &StepEdges, link: &NodeLink, is_start: bool) -> bool {
    let is_outgoing = link.forward == is_start;
    step.types.contains(&link.edge) && is_outgoing == (step.direction == Direction::Out)
}
