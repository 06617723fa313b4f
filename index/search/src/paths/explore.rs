//! Finds the paths that match a pattern: explores the objects step by step, then enumerates paths in memory.
//!
//! Pure except for [`PathGraph`], which returns only objects that the caller may read: a path never passes through
//! another object.

use async_trait::async_trait;
use crowsnest_query::path::{Direction, EdgeType, HopPattern, NodePattern, PathPattern};
use crowsnest_store::Error;
use std::collections::{BTreeMap, BTreeSet};

/// An edge: from, to, type.
pub(crate) type EdgeKey = (u64, u64, EdgeType);

/// Edges with the fields that state them.
pub(crate) type Edges = BTreeMap<EdgeKey, BTreeSet<String>>;

/// Types and direction of the edges that a step follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepEdges {
    pub types: BTreeSet<EdgeType>,
    pub direction: Direction,
}

/// The objects that the caller may read, and the edges between them.
#[async_trait]
pub(crate) trait PathGraph: Send {
    /// Ids of the objects that match the pattern: of all objects, or only of `among`.
    async fn matching(&mut self, node: &NodePattern, among: Option<BTreeSet<u64>>) -> Result<BTreeSet<u64>, Error>;

    /// All edges at these objects. With [`Direction::Out`] they begin there, with [`Direction::In`] they end there.
    async fn edges(&mut self, of: &BTreeSet<u64>, step: &StepEdges) -> Result<Edges, Error>;
}

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
        Self { paths: 10_000, visited: 200_000, walk_steps: 500_000 }
    }
}

/// A path as ids; there is one more node than edges. Ordered by length.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path {
    length: usize,
    pub nodes: Vec<u64>,
    pub edges: Vec<EdgeKey>,
}

/// Paths that match a pattern, the shortest first.
#[derive(Debug, Default)]
pub(crate) struct FoundPaths {
    pub paths: Vec<Path>,
    pub edges: Edges,
    /// Notices about limits that were reached: there may be more paths.
    pub limits_reached: BTreeSet<&'static str>,
}

pub(crate) const MAX_PATHS_NOTICE: &str = "more than 10,000 paths match; the rest is left out";
pub(crate) const MAX_OBJECTS_NOTICE: &str = "more than 200,000 objects were visited; some paths may be missing";
pub(crate) const MAX_STEPS_NOTICE: &str = "too many paths were followed; some may be missing";

/// The explored part of a graph. It contains all paths that match a pattern.
pub(crate) struct Exploration {
    /// The pattern was explored from its last node.
    is_reversed: bool,
    starts: BTreeSet<u64>,
    layers: Vec<Layer>,
    found: FoundPaths,
}

/// Explores the objects that paths of a pattern may visit. Begins at the end that is likely to match fewer objects.
pub(crate) async fn explore(
    graph: &mut dyn PathGraph,
    pattern: &PathPattern,
    limits: &PathLimits,
) -> Result<Exploration, Error> {
    let first = pattern.first.selectivity();
    let is_reversed = pattern.nodes().last().is_some_and(|last| last.selectivity() > first);
    let pattern = if is_reversed { pattern.inverse() } else { pattern.clone() };
    let mut explorer = Explorer { graph, limits, found: FoundPaths::default() };
    let (starts, layers) = explorer.explore_layers(&pattern).await?.unwrap_or_default();
    Ok(Exploration { is_reversed, starts, layers, found: explorer.found })
}

/// Finds the paths that match a pattern.
#[cfg(test)]
pub(crate) async fn find(
    graph: &mut dyn PathGraph,
    pattern: &PathPattern,
    limits: &PathLimits,
) -> Result<FoundPaths, Error> {
    Ok(explore(graph, pattern, limits).await?.into_paths(limits))
}

impl Exploration {
    /// Enumerates the paths. This is CPU work: run it on a thread that may block.
    pub fn into_paths(self, limits: &PathLimits) -> FoundPaths {
        let Self { is_reversed, starts, layers, mut found } = self;
        let mut walker = Walker::new(&layers, limits);
        for start in &starts {
            if walker.limits_reached.is_some() {
                break;
            }
            walker.walk(0, 0, *start, &mut vec![*start], &mut Vec::new());
        }
        found.limits_reached.extend(walker.limits_reached);
        found.paths = walker.paths;
        if is_reversed {
            for path in &mut found.paths {
                path.nodes.reverse();
                path.edges.reverse();
            }
        }
        found.paths.sort_unstable();
        found.paths.dedup();
        found
    }
}

/// Keeps the shortest paths between each pair of ends.
pub(crate) fn shortest(paths: &mut Vec<Path>) {
    let ends = |path: &Path| (path.nodes.first().copied(), path.nodes.last().copied());
    let mut lengths: BTreeMap<_, usize> = BTreeMap::new();
    for path in paths.iter() {
        let length = lengths.entry(ends(path)).or_insert(path.length);
        *length = path.length.min(*length);
    }
    paths.retain(|path| lengths.get(&ends(path)) == Some(&path.length));
}

/// Steps by the object at which they begin: the objects that they reach, and their edges.
type Steps = BTreeMap<u64, BTreeSet<(u64, EdgeKey)>>;

/// The objects that a hop reaches.
struct Layer {
    least: usize,
    /// Objects after each number of steps.
    depths: Vec<BTreeSet<u64>>,
    /// Objects at which the hop may end.
    ends: BTreeSet<u64>,
    steps: Steps,
}

struct Explorer<'g> {
    graph: &'g mut dyn PathGraph,
    limits: &'g PathLimits,
    found: FoundPaths,
}

impl Explorer<'_> {
    /// Start objects and layers; None if a hop reaches nothing.
    async fn explore_layers(&mut self, pattern: &PathPattern) -> Result<Option<(BTreeSet<u64>, Vec<Layer>)>, Error> {
        let starts = self.graph.matching(&pattern.first, None).await?;
        let mut visited = BTreeSet::new();
        let starts = self.admit(starts, &mut visited);
        let mut frontier = starts.clone();
        let mut layers: Vec<Layer> = Vec::with_capacity(pattern.hops.len());
        for (hop, node) in &pattern.hops {
            let layer = self.layer(frontier, hop, node, &mut visited).await?;
            if layer.ends.is_empty() {
                return Ok(None);
            }
            frontier = layer.ends.clone();
            layers.push(layer);
        }
        Ok((!starts.is_empty()).then_some((starts, layers)))
    }

    /// Explores the objects that a hop reaches from `starts`.
    async fn layer(
        &mut self,
        starts: BTreeSet<u64>,
        hop: &HopPattern,
        node: &NodePattern,
        visited: &mut BTreeSet<u64>,
    ) -> Result<Layer, Error> {
        let step = StepEdges { types: hop.effective_types(), direction: hop.direction };
        let least = usize::from(hop.min_steps);
        let mut reached = if least == 0 { starts.clone() } else { BTreeSet::new() };
        let mut layer = Layer { least, depths: vec![starts], ends: BTreeSet::new(), steps: Steps::new() };
        for depth in 1..=usize::from(hop.max_steps) {
            let frontier = layer.depths.last().cloned().unwrap_or_default();
            let new: BTreeSet<u64> = frontier.iter().copied().filter(|id| !layer.steps.contains_key(id)).collect();
            if !new.is_empty() {
                let edges = self.graph.edges(&new, &step).await?;
                add_steps(&mut layer.steps, &new, &edges, step.direction);
                for (edge, via) in edges {
                    self.found.edges.entry(edge).or_default().extend(via);
                }
            }
            let next = frontier.iter().filter_map(|id| layer.steps.get(id)).flatten().map(|(to, _)| *to).collect();
            let next = self.admit(next, visited);
            if next.is_empty() {
                break;
            }
            if depth >= least {
                reached.extend(&next);
            }
            layer.depths.push(next);
        }
        layer.ends = self.graph.matching(node, Some(reached)).await?;
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

/// Adds the steps that edges allow from these objects.
fn add_steps(steps: &mut Steps, from: &BTreeSet<u64>, edges: &Edges, direction: Direction) {
    from.iter().for_each(|id| {
        steps.entry(*id).or_default();
    });
    for edge in edges.keys() {
        let (begin, end, _) = *edge;
        if direction != Direction::In && from.contains(&begin) {
            steps.entry(begin).or_default().insert((end, *edge));
        }
        if direction != Direction::Out && from.contains(&end) {
            steps.entry(end).or_default().insert((begin, *edge));
        }
    }
}

/// Enumerates paths through layers.
struct Walker<'l> {
    layers: &'l [Layer],
    limits: &'l PathLimits,
    /// Objects from which the end can be reached, by hop and number of steps in it.
    reaching_end: Vec<Vec<BTreeSet<u64>>>,
    paths: Vec<Path>,
    walk_steps: usize,
    limits_reached: Option<&'static str>,
}

impl<'l> Walker<'l> {
    fn new(layers: &'l [Layer], limits: &'l PathLimits) -> Self {
        let mut reaching_end: Vec<Vec<BTreeSet<u64>>> = vec![Vec::new(); layers.len()];
        for (hop, layer) in layers.iter().enumerate().rev() {
            let next_hop_continues =
                |id: &u64| reaching_end.get(hop + 1).is_none_or(|next| next.first().is_some_and(|n| n.contains(id)));
            let mut after: Vec<BTreeSet<u64>> = Vec::new();
            for (depth, ids) in layer.depths.iter().enumerate().rev() {
                let ends = |id: &u64| depth >= layer.least && layer.ends.contains(id) && next_hop_continues(id);
                let step_continues = |id: &u64| {
                    let next = after.last();
                    let mut steps = layer.steps.get(id).into_iter().flatten();
                    next.is_some_and(|next| steps.any(|(to, _)| next.contains(to)))
                };
                let continuing = ids.iter().copied().filter(|id| ends(id) || step_continues(id)).collect();
                after.push(continuing);
            }
            after.reverse();
            reaching_end[hop] = after;
        }
        Self { layers, limits, reaching_end, paths: Vec::new(), walk_steps: 0, limits_reached: None }
    }

    fn can_reach_end(&self, hop: usize, depth: usize, id: u64) -> bool {
        self.reaching_end.get(hop).and_then(|depths| depths.get(depth)).is_some_and(|ids| ids.contains(&id))
    }

    /// Continues a path at an object, after `depth` steps of a hop. No edge occurs twice in a path.
    fn walk(&mut self, hop: usize, depth: usize, id: u64, nodes: &mut Vec<u64>, edges: &mut Vec<EdgeKey>) {
        let Some(layer) = self.layers.get(hop) else {
            match self.paths.len() < self.limits.paths {
                true => self.paths.push(Path { length: edges.len(), nodes: nodes.clone(), edges: edges.clone() }),
                false => self.limits_reached = Some(MAX_PATHS_NOTICE),
            }
            return;
        };
        self.walk_steps += 1;
        if self.walk_steps > self.limits.walk_steps {
            self.limits_reached = Some(MAX_STEPS_NOTICE);
        }
        let next_hop_continues = hop + 1 == self.layers.len() || self.can_reach_end(hop + 1, 0, id);
        if depth >= layer.least && layer.ends.contains(&id) && next_hop_continues {
            self.walk(hop + 1, 0, id, nodes, edges);
        }
        for (to, edge) in layer.steps.get(&id).into_iter().flatten() {
            if self.limits_reached.is_some() {
                return;
            }
            if !self.can_reach_end(hop, depth + 1, *to) || edges.contains(edge) {
                continue;
            }
            nodes.push(*to);
            edges.push(*edge);
            self.walk(hop, depth + 1, *to, nodes, edges);
            nodes.pop();
            edges.pop();
        }
    }
}
