//! Paths between objects of the fleet, and the objects that depend on an object.
//!
//! [`mod@traversal`], [`walk`] and [`closure`] search a [`traversal::PathGraph`]; [`fleet`] is the one of the fleet: it finds objects
//! through the text index within the caller's permissions, so that every object of a path is one that the caller may list.
//! [`links`] reads the edges that an object declares.

mod candidates;
pub(crate) mod closure;
pub(crate) mod fleet;
pub(crate) mod links;
mod node;
mod stored_links;
#[cfg(test)]
mod tests;
pub(crate) mod traversal;
mod walk;

pub use crate::plan::relations::{CLOSURE_STEPS, DependencyDirection};
pub use links::{Link, Links, NamedObject, Target};

use crate::Searcher;
use crate::document::qualified_kind;
use crate::hydrate::skipped_clusters::{SkippedCluster, list_skipped};
use crate::plan::kinds::GroupKind;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_query::path::{EdgeType, PathPattern};
use crowsnest_store::{Error, Object, RecordKey};
use fleet::FleetGraph;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use traversal::{EdgeKey, FoundPaths, PathLimits, PathSelection, traverse};

/// Maximum number of concurrent requests for paths or blast radius; further ones are refused. Each may keep 200,000 objects in
/// memory, about 750 bytes of each.
pub const MAX_PATH_SEARCHES: usize = 8;
/// Maximum number of concurrent search conditions that follow dependencies, each with as many objects; further ones wait. They
/// are counted separately, so that slow path searches do not delay searches.
pub const MAX_DEPENDENCY_SEARCHES: usize = 4;
/// Maximum number of paths of a response.
pub const MAX_PATHS: usize = 10_000;
/// Maximum number of objects of a closure in a response; more are only counted.
pub const MAX_REACHED: usize = 5_000;
const TIMEOUT: Duration = Duration::from_secs(10);

/// An edge between two nodes of a response, by their positions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PathEdge {
    pub from: usize,
    pub to: usize,
    #[serde(rename = "type")]
    pub edge: EdgeType,
    /// Fields that declare the edge.
    pub via: Vec<String>,
}

/// A path, as positions of its nodes and edges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodePath {
    pub nodes: Vec<usize>,
    pub edges: Vec<usize>,
}

/// Objects and edges of a response.
#[derive(Debug, Clone)]
pub struct ResponseGraph {
    pub nodes: Vec<Object>,
    pub edges: Vec<PathEdge>,
    /// A limit was reached: more objects and edges may belong to the response, and totals are lower bounds.
    pub incomplete: bool,
    pub notices: Vec<String>,
    pub skipped: Vec<SkippedCluster>,
}

/// Paths that match a pattern.
#[derive(Debug, Clone)]
pub struct PathsResponse {
    /// The pattern as graph databases read it.
    pub pattern: PathPattern,
    pub graph: ResponseGraph,
    /// The shortest first.
    pub paths: Vec<NodePath>,
    /// Number of all matching paths, including those that are left out.
    pub total: usize,
}

/// An object in a closure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReachedNode {
    pub node: usize,
    /// Number of steps; 1: direct.
    pub distance: u8,
    /// The edge over which it was reached first.
    pub edge: usize,
}

/// Number of objects of a kind in a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReachedCount {
    pub cluster: String,
    /// `Deployment.apps`
    pub kind: String,
    pub direct: usize,
    pub transitive: usize,
}

/// Objects that depend on an object, or on which it depends.
#[derive(Debug, Clone)]
pub struct ClosureResponse {
    /// The object itself is the first node; the others are in order of their distance.
    pub graph: ResponseGraph,
    pub reached: Vec<ReachedNode>,
    /// Counts of all objects, including those that are left out.
    pub counts: Vec<ReachedCount>,
}

impl Searcher {
    /// The pattern as graph databases read it: with the types of each hop, and kinds as they are labelled.
    pub fn canonical_pattern(&self, pattern: PathPattern) -> PathPattern {
        let spelling = |kind: &GroupKind| {
            let mut found = None;
            self.inner.cache.states.for_each(|key, state| {
                if *key.resource.group == *kind.group && state.kind.eq_ignore_ascii_case(&kind.kind) {
                    found = Some(state.kind.to_string());
                }
            });
            found
        };
        node::canonicalize(pattern, &self.inner.cache.discovery.kinds(), &spelling)
    }

    /// Paths that match a pattern, through objects that the caller may read. With `only_shortest`, the shortest between each
    /// pair of ends.
    pub async fn paths(
        &self,
        caller: &UserInfo,
        pattern: PathPattern,
        only_shortest: bool,
        limit: usize,
    ) -> Result<PathsResponse, Error> {
        let mut graph = self.fleet_graph(caller, TIMEOUT).await;
        let limits = PathLimits::default();
        let traversed = traverse(&mut graph, &pattern, &limits).await?;
        let selection = if only_shortest { PathSelection::Shortest } else { PathSelection::All };
        let context = graph.response_context();
        let enumerate = move || Ok(traversed.into_paths(&limits, selection, &|| context.is_over()));
        let permits = Arc::clone(&graph.sources().permits);
        let FoundPaths { mut paths, limits_reached } = permits.run(Instant::now(), enumerate).await?;
        let total = paths.len();
        // Ids depend on the order in which objects were stored.
        let key_of = |id: &u64| graph.identity(*id).map(|(key, _)| key);
        paths.sort_by_cached_key(|path| (path.nodes.len(), path.nodes.iter().map(key_of).collect::<Vec<_>>()));
        paths.truncate(limit);
        let ids: BTreeSet<u64> = paths.iter().flat_map(|path| &path.nodes).copied().collect();
        graph.read_records(&ids).await?;
        // Objects that were deleted in the meantime are left out with their paths.
        paths.retain(|path| path.nodes.iter().all(|id| graph.object(*id).is_some()));
        let mut positions = PositionTable::default();
        let paths = paths.iter().map(|path| NodePath {
            nodes: path.nodes.iter().map(|id| positions.node(*id)).collect(),
            edges: path.edges.iter().map(|edge| positions.edge(*edge)).collect(),
        });
        let paths = paths.collect();
        let graph = self.response_graph(&mut graph, positions, limits_reached);
        Ok(PathsResponse { pattern: self.canonical_pattern(pattern), graph, paths, total })
    }

    /// Objects that depend on an object, or on which it depends; None if the caller has no permission to read it or it does not exist.
    pub async fn closure(
        &self,
        caller: &UserInfo,
        key: &RecordKey,
        direction: DependencyDirection,
        depth: u8,
    ) -> Result<Option<ClosureResponse>, Error> {
        if !self.may_get(caller, key).await {
            return Ok(None);
        }
        let Some(root) = self.inner.cache.store.get(key).await? else { return Ok(None) };
        let mut graph = self.fleet_graph(caller, TIMEOUT).await;
        let root = root.record.id;
        let found = closure::closure(&mut graph, [root].into(), direction, depth, &PathLimits::default()).await?;
        let listed = found.reached.iter().take(MAX_REACHED);
        let ids: BTreeSet<u64> = listed.clone().map(|object| object.id).chain([root]).collect();
        graph.read_records(&ids).await?;
        if graph.object(root).is_none() {
            return Ok(None);
        }
        let counts = count_reached(&graph, &found.reached);
        let mut positions = PositionTable::default();
        positions.node(root);
        // Objects that were deleted in the meantime are counted but not listed, and neither are those reached through them.
        let is_present = |id: u64| graph.object(id).is_some();
        let listed = listed.filter(|object| [object.id, object.edge.0, object.edge.1].into_iter().all(is_present));
        let reached = listed.map(|object| ReachedNode {
            node: positions.node(object.id),
            distance: object.distance,
            edge: positions.edge(object.edge),
        });
        let reached: Vec<ReachedNode> = reached.collect();
        let left_out = found.reached.len() - reached.len();
        if left_out > 0 {
            graph.notices.insert(format!("{left_out} more objects are only counted"));
        }
        let between = found.edges.iter().filter(|(from, to, _)| positions.has(*from) && positions.has(*to));
        let between: Vec<EdgeKey> = between.copied().collect();
        between.into_iter().for_each(|edge| {
            positions.edge(edge);
        });
        let mut graph = self.response_graph(&mut graph, positions, found.limits_reached);
        graph.incomplete |= left_out > 0;
        Ok(Some(ClosureResponse { graph, reached, counts }))
    }

    /// The objects and edges that have positions. Takes the notices of the fleet's graph.
    fn response_graph(
        &self,
        graph: &mut FleetGraph,
        mut positions: PositionTable,
        limits_reached: BTreeSet<&'static str>,
    ) -> ResponseGraph {
        ResponseGraph {
            edges: positions.edges(graph),
            nodes: positions.objects(graph),
            incomplete: !limits_reached.is_empty() || !graph.limits_reached.is_empty(),
            notices: take_notices(graph, limits_reached),
            skipped: self.list_skipped_for(graph),
        }
    }

    /// The fleet as a caller sees it.
    pub(crate) async fn fleet_graph(&self, caller: &UserInfo, timeout: Duration) -> FleetGraph {
        let sources = self.sources(caller, timeout).await;
        let planning_context = self.planning_context(&sources.context.permissions.lock());
        FleetGraph::new(sources, Arc::new(planning_context))
    }

    fn list_skipped_for(&self, graph: &FleetGraph) -> Vec<SkippedCluster> {
        list_skipped(self, &graph.sources().context.permissions.lock())
    }
}

fn take_notices(graph: &mut FleetGraph, limits_reached: BTreeSet<&'static str>) -> Vec<String> {
    let mut notices = std::mem::take(&mut graph.notices);
    notices.extend(std::mem::take(&mut graph.limits_reached));
    notices.extend(limits_reached.into_iter().map(str::to_owned));
    notices.into_iter().collect()
}

fn count_reached(graph: &FleetGraph, reached: &[closure::ReachedObject]) -> Vec<ReachedCount> {
    let mut counts: BTreeMap<(String, String), (usize, usize)> = BTreeMap::new();
    for reached_object in reached {
        let Some((key, kind)) = graph.identity(reached_object.id) else { continue };
        let kind = qualified_kind(&key.resource().group, kind);
        let count = counts.entry((key.cluster().to_string(), kind)).or_default();
        match reached_object.distance {
            1 => count.0 += 1,
            _ => count.1 += 1,
        }
    }
    let count = |((cluster, kind), (direct, transitive))| ReachedCount { cluster, kind, direct, transitive };
    counts.into_iter().map(count).collect()
}

/// Assigns positions to the nodes and edges of a response.
#[derive(Default)]
struct PositionTable {
    nodes: Vec<u64>,
    node_positions: BTreeMap<u64, usize>,
    edges: Vec<EdgeKey>,
    edge_positions: BTreeMap<EdgeKey, usize>,
}

impl PositionTable {
    fn node(&mut self, id: u64) -> usize {
        let nodes = &mut self.nodes;
        *self.node_positions.entry(id).or_insert_with(|| {
            nodes.push(id);
            nodes.len() - 1
        })
    }

    fn edge(&mut self, edge: EdgeKey) -> usize {
        let edges = &mut self.edges;
        *self.edge_positions.entry(edge).or_insert_with(|| {
            edges.push(edge);
            edges.len() - 1
        })
    }

    fn has(&self, id: u64) -> bool {
        self.node_positions.contains_key(&id)
    }

    /// Edges in order of their positions, with the fields that declare them.
    fn edges(&mut self, graph: &FleetGraph) -> Vec<PathEdge> {
        let all = self.edges.clone();
        let edge = |key: EdgeKey| {
            let via = graph.edge_fields(key);
            PathEdge { from: self.node(key.0), to: self.node(key.1), edge: key.2, via }
        };
        all.into_iter().map(edge).collect()
    }

    fn objects(&self, graph: &FleetGraph) -> Vec<Object> {
        self.nodes.iter().filter_map(|id| graph.object(*id).cloned()).collect()
    }
}
