//! Finds the paths that match a pattern: traverses the objects step by step, then enumerates paths in memory ([`walk`]).
//!
//! Has no side effects except for [`PathGraph`], which returns only objects that the caller may read: a path never
//! passes through another object.
//!
//! [`walk`]: super::walk

use super::walk::{Walker, remove_dead_ends};
use async_trait::async_trait;
use crowsnest_query::path::{Direction, EdgeType, HopPattern, NodePattern, PathPattern};
use crowsnest_store::Error;
use std::collections::{BTreeMap, BTreeSet};

/// An edge: from, to, type.
pub(crate) type EdgeKey = (u64, u64, EdgeType);

/// Types and direction of the edges that a step follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepEdges {
    pub types: BTreeSet<EdgeType>,
    pub direction: Direction,
}

impl StepEdges {
    fn of_hop(hop: &HopPattern) -> Self {
        Self { types: hop.effective_types(), direction: hop.direction }
    }
}

/// The objects that the caller may read, and the edges between them.
#[async_trait]
pub(crate) trait PathGraph: Send {
    /// Ids of the objects that match the pattern: of all objects, or only of `among`. `next` is the step that will be
    /// followed from them.
    async fn matching_ids(
        &mut self,
        node: &NodePattern,
        among: Option<BTreeSet<u64>>,
        next: Option<&StepEdges>,
    ) -> Result<BTreeSet<u64>, Error>;

    /// All edges at these objects. With [`Direction::Out`] they begin there, with [`Direction::In`] they end there. Edges
    /// whose other ends do not match `ends` may be left out.
    async fn edges(
        &mut self,
        ids: &BTreeSet<u64>,
        step: &StepEdges,
        ends: Option<&NodePattern>,
    ) -> Result<BTreeSet<EdgeKey>, Error>;
}

/// Maximum number of objects that a search reads and visits.
pub(crate) const MAX_OBJECTS: usize = 200_000;

/// Limits of a search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathLimits {
    pub paths: usize,
    /// Maximum number of objects that a search visits.
    pub visited: usize,
    /// Maximum number of steps of the enumeration.
    pub walk_steps: usize,
}

impl Default for PathLimits {
    fn default() -> Self {
        Self { paths: super::MAX_PATHS, visited: MAX_OBJECTS, walk_steps: 500_000 }
    }
}

/// The paths that a search returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathSelection {
    All,
    /// The shortest between each pair of ends.
    Shortest,
}

/// A path as ids; there is one more node than edges. Ordered by length.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path {
    pub(super) length: usize,
    pub nodes: Vec<u64>,
    pub edges: Vec<EdgeKey>,
}

/// Paths that match a pattern, the shortest first.
#[derive(Debug, Default)]
pub(crate) struct FoundPaths {
    pub paths: Vec<Path>,
    /// Notices about limits that were reached: there may be more paths.
    pub limits_reached: BTreeSet<&'static str>,
}

pub(crate) const MAX_PATHS_NOTICE: &str = "more than 10,000 paths match; the rest is left out";
pub(crate) const MAX_OBJECTS_NOTICE: &str = "the limit of 200,000 objects was reached; some may be missing";
pub(crate) const TIME_NOTICE: &str = "the time limit was reached; some paths may be missing";
pub(crate) const MAX_STEPS_NOTICE: &str = "more than 500,000 steps were tried; some paths may be missing";

/// The traversed part of a graph. It contains all paths that match a pattern.
pub(crate) struct Traversal {
    /// The pattern was traversed from its last node.
    is_reversed: bool,
    starts: BTreeSet<u64>,
    layers: Vec<Layer>,
    found: FoundPaths,
}

/// Traverses the objects that paths of a pattern may visit. Begins at the end that is likely to match fewer objects.
pub(crate) async fn traverse(
    graph: &mut dyn PathGraph,
    pattern: &PathPattern,
    limits: &PathLimits,
) -> Result<Traversal, Error> {
    let first = pattern.first.selectivity();
    let is_reversed = pattern.nodes().last().is_some_and(|last| last.selectivity() > first);
    let pattern = if is_reversed { pattern.inverse() } else { pattern.clone() };
    let mut expander = Expander { graph, limits, found: FoundPaths::default() };
    let (starts, layers) = expander.expand_layers(&pattern).await?.unwrap_or_default();
    Ok(Traversal { is_reversed, starts, layers, found: expander.found })
}

/// Finds the paths that match a pattern.
#[cfg(test)]
pub(crate) async fn find(
    graph: &mut dyn PathGraph,
    pattern: &PathPattern,
    limits: &PathLimits,
    selection: PathSelection,
) -> Result<FoundPaths, Error> {
    Ok(traverse(graph, pattern, limits).await?.into_paths(limits, selection, &|| false))
}

impl Traversal {
    /// Enumerates the paths until `is_over` returns true. This is CPU work: run it on a thread that may block.
    pub fn into_paths(self, limits: &PathLimits, selection: PathSelection, is_over: &dyn Fn() -> bool) -> FoundPaths {
        let Self { is_reversed, starts, mut layers, mut found } = self;
        let lengths = remove_dead_ends(&mut layers);
        let mut walker = Walker::new(&layers, lengths, limits, is_over);
        match selection {
            PathSelection::All => walker.walk_all(&starts),
            PathSelection::Shortest => walker.walk_shortest(&starts),
        }
        found.limits_reached.extend(walker.limit_reached);
        found.paths = walker.paths.into_iter().collect();
        if is_reversed {
            for path in &mut found.paths {
                path.nodes.reverse();
                path.edges.reverse();
            }
        }
        found.paths.sort_unstable();
        found
    }
}

/// Steps by the object at which they begin: the objects that they reach, and their edges.
type Steps = BTreeMap<u64, Vec<(u64, EdgeKey)>>;

/// The objects that a hop reaches.
pub(super) struct Layer {
    min_steps: usize,
    /// Objects after each number of steps.
    pub(super) depths: Vec<BTreeSet<u64>>,
    /// Objects at which the hop may end.
    ends: BTreeSet<u64>,
    steps: Steps,
}

impl Layer {
    /// True if the hop may end at an object after this number of steps.
    pub(super) fn may_end(&self, depth: usize, id: u64) -> bool {
        depth >= self.min_steps && self.ends.contains(&id)
    }

    /// Keeps the steps to objects for which `leads_on` is true.
    pub(super) fn retain_steps(&mut self, leads_on: impl Fn(u64) -> bool) {
        self.steps.values_mut().for_each(|steps| steps.retain(|(to, _)| leads_on(*to)));
    }

    pub(super) fn steps_from(&self, id: u64) -> &[(u64, EdgeKey)] {
        self.steps.get(&id).map_or(&[], Vec::as_slice)
    }
}

struct Expander<'g> {
    graph: &'g mut dyn PathGraph,
    limits: &'g PathLimits,
    found: FoundPaths,
}

impl Expander<'_> {
    /// Start objects and layers; None if a hop reaches nothing.
    async fn expand_layers(&mut self, pattern: &PathPattern) -> Result<Option<(BTreeSet<u64>, Vec<Layer>)>, Error> {
        let steps: Vec<StepEdges> = pattern.hops.iter().map(|(hop, _)| StepEdges::of_hop(hop)).collect();
        let starts = self.graph.matching_ids(&pattern.first, None, steps.first()).await?;
        let mut visited = BTreeSet::new();
        let starts = self.admit(starts, &mut visited);
        let mut frontier = starts.clone();
        let mut layers: Vec<Layer> = Vec::with_capacity(pattern.hops.len());
        for (nth, hop) in pattern.hops.iter().enumerate() {
            let layer = self.expand_layer(frontier, hop, steps.get(nth + 1), &mut visited).await?;
            if layer.ends.is_empty() {
                return Ok(None);
            }
            frontier = layer.ends.clone();
            layers.push(layer);
        }
        Ok((!starts.is_empty()).then_some((starts, layers)))
    }

    /// Traverses the objects that a hop reaches from `starts`, before the step `next`.
    async fn expand_layer(
        &mut self,
        starts: BTreeSet<u64>,
        (hop, node): &(HopPattern, NodePattern),
        next: Option<&StepEdges>,
        visited: &mut BTreeSet<u64>,
    ) -> Result<Layer, Error> {
        let step = StepEdges::of_hop(hop);
        let min_steps = usize::from(hop.min_steps);
        let mut reached = if min_steps == 0 { starts.clone() } else { BTreeSet::new() };
        let mut layer = Layer { min_steps, depths: vec![starts], ends: BTreeSet::new(), steps: Steps::new() };
        for depth in 1..=usize::from(hop.max_steps) {
            let frontier = layer.depths.last().cloned().unwrap_or_default();
            let new: BTreeSet<u64> = frontier.iter().copied().filter(|id| !layer.steps.contains_key(id)).collect();
            if !new.is_empty() {
                // A path ends its hop at the object that the last step reaches.
                let ends = (depth == usize::from(hop.max_steps)).then_some(node);
                let edges = self.graph.edges(&new, &step, ends).await?;
                add_steps(&mut layer.steps, &new, &edges, step.direction);
            }
            let found = frontier.iter().filter_map(|id| layer.steps.get(id)).flatten().map(|(to, _)| *to).collect();
            let found = self.admit(found, visited);
            if found.is_empty() {
                break;
            }
            if depth >= min_steps {
                reached.extend(&found);
            }
            layer.depths.push(found);
        }
        layer.ends = self.graph.matching_ids(node, Some(reached), next).await?;
        Ok(layer)
    }

    /// Marks objects as visited, up to the limit. Returns those that were visited now or before.
    fn admit(&mut self, ids: BTreeSet<u64>, visited: &mut BTreeSet<u64>) -> BTreeSet<u64> {
        let max_visited = self.limits.visited;
        let admitted: BTreeSet<u64> = ids
            .iter()
            .copied()
            .filter(|id| visited.contains(id) || (visited.len() < max_visited && visited.insert(*id)))
            .collect();
        if admitted.len() < ids.len() {
            self.found.limits_reached.insert(MAX_OBJECTS_NOTICE);
        }
        admitted
    }
}

/// Adds the steps that edges allow from these objects, which have none yet.
fn add_steps(steps: &mut Steps, from: &BTreeSet<u64>, edges: &BTreeSet<EdgeKey>, direction: Direction) {
    let mut new: Steps = from.iter().map(|id| (*id, Vec::new())).collect();
    for edge in edges {
        let (begin, end, _) = *edge;
        if direction != Direction::In
            && let Some(steps) = new.get_mut(&begin)
        {
            steps.push((end, *edge));
        }
        // An edge from an object to itself is one step in either direction.
        if (direction == Direction::In || (direction == Direction::Both && begin != end))
            && let Some(steps) = new.get_mut(&end)
        {
            steps.push((begin, *edge));
        }
    }
    for steps in new.values_mut() {
        steps.sort_unstable();
        steps.shrink_to_fit();
    }
    steps.extend(new);
}
