//! Enumerates paths in the traversed part of a graph, in memory. CPU work: run it on a thread that may block.

use super::traversal::{EdgeKey, Layer, MAX_PATHS_NOTICE, MAX_STEPS_NOTICE, Path, PathLimits, TIME_NOTICE};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Number of steps after which the walk checks again if it has to end.
const STEPS_BETWEEN_CHECKS: usize = 1_024;

/// A set of path lengths, counted in edges: bit `n` is set if it contains `n`. Paths have at most 8 edges.
type Lengths = u32;

/// A position in the layers: hop, number of its steps, and object. The hop after the last one is the end of a path.
type Position = (usize, usize, u64);

/// Lengths of the paths from objects to an end, by the number of steps in a hop. Objects that reach no end are left out.
pub(super) type HopLengths = Vec<BTreeMap<u64, Lengths>>;

/// Removes the steps that lead to no end of a path. Returns the lengths of the remaining paths to an end, by hop.
pub(super) fn remove_dead_ends(layers: &mut [Layer]) -> Vec<HopLengths> {
    let mut by_hop: Vec<HopLengths> = Vec::with_capacity(layers.len());
    for layer in layers.iter_mut().rev() {
        let lengths = hop_lengths(layer, by_hop.last().and_then(|next| next.first()));
        layer.retain_steps(|to| lengths.iter().skip(1).any(|ids| ids.contains_key(&to)));
        by_hop.push(lengths);
    }
    by_hop.reverse();
    by_hop
}

/// `next_hop`: the lengths from the objects at the beginning of the next hop; `None` for the last hop.
fn hop_lengths(layer: &Layer, next_hop: Option<&BTreeMap<u64, Lengths>>) -> HopLengths {
    let at_end = |id: u64| next_hop.map_or(1, |ids| ids.get(&id).copied().unwrap_or_default());
    // Starts with the largest number of steps, because each number needs the lengths of the next one.
    let mut by_depth: HopLengths = Vec::with_capacity(layer.depths.len());
    for (depth, ids) in layer.depths.iter().enumerate().rev() {
        let next = by_depth.last();
        let lengths = |id: u64| {
            let at_end = if layer.may_end(depth, id) { at_end(id) } else { 0 };
            let after = layer.steps_from(id).iter().filter_map(|(to, _)| next?.get(to));
            after.fold(at_end, |all, lengths| all | (*lengths << 1))
        };
        let reaching_end = ids.iter().map(|id| (*id, lengths(*id))).filter(|(_, lengths)| *lengths != 0).collect();
        by_depth.push(reaching_end);
    }
    by_depth.reverse();
    by_depth
}

/// The beginning of a path.
struct Trail {
    nodes: Vec<u64>,
    edges: Vec<EdgeKey>,
}

/// The paths that a walk searches.
enum Goal<'e> {
    All,
    /// Paths of one length to objects other than `ends`.
    Length {
        length: usize,
        ends: &'e BTreeSet<u64>,
        /// Results of [`Walker::open_lengths`].
        open_lengths: HashMap<Position, Lengths>,
        /// Objects at which paths were found to end.
        reached: BTreeSet<u64>,
    },
}

/// Enumerates paths through layers.
pub(super) struct Walker<'l> {
    layers: &'l [Layer],
    limits: &'l PathLimits,
    /// True if the paths are no longer needed, or their time limit has been reached.
    is_over: &'l dyn Fn() -> bool,
    /// By hop.
    lengths: Vec<HopLengths>,
    pub(super) paths: BTreeSet<Path>,
    walk_steps: usize,
    pub(super) limit_reached: Option<&'static str>,
}

impl<'l> Walker<'l> {
    /// `lengths` are those of [`remove_dead_ends`].
    pub(super) fn new(
        layers: &'l [Layer],
        lengths: Vec<HopLengths>,
        limits: &'l PathLimits,
        is_over: &'l dyn Fn() -> bool,
    ) -> Self {
        Self { layers, limits, is_over, lengths, paths: BTreeSet::new(), walk_steps: 0, limit_reached: None }
    }

    /// Enumerates all paths.
    pub(super) fn walk_all(&mut self, starts: &BTreeSet<u64>) {
        for start in starts {
            if self.limit_reached.is_some() {
                return;
            }
            self.walk((0, 0, *start), &mut Trail::new(*start), &mut Goal::All);
        }
    }

    /// Enumerates the shortest paths between each pair of ends, by increasing length. A longer path between ends that
    /// a shorter one already joins is not tried, unless it shares its beginning with a path to another end.
    pub(super) fn walk_shortest(&mut self, starts: &BTreeSet<u64>) {
        let max_length: usize = self.layers.iter().map(|layer| layer.depths.len() - 1).sum();
        let mut unfinished: Vec<(u64, BTreeSet<u64>)> = starts.iter().map(|start| (*start, BTreeSet::new())).collect();
        for length in 0..=max_length {
            unfinished.retain_mut(|(start, ends)| self.walk_length(*start, length, ends));
        }
    }

    /// Enumerates the paths of a length from a start to objects other than `ends`, and adds their last objects to `ends`.
    /// False if no longer path leads to other objects.
    fn walk_length(&mut self, start: u64, length: usize, ends: &mut BTreeSet<u64>) -> bool {
        if self.limit_reached.is_some() {
            return false;
        }
        let (at, mut cached_lengths) = ((0, 0, start), HashMap::new());
        let mut lengths = self.lengths(at);
        if lengths & (1 << length) != 0 {
            lengths = self.open_lengths(at, ends, &mut cached_lengths);
        }
        if lengths & (1 << length) != 0 {
            let mut goal = Goal::Length { length, ends, open_lengths: cached_lengths, reached: BTreeSet::new() };
            self.walk(at, &mut Trail::new(start), &mut goal);
            if let Goal::Length { reached, .. } = goal {
                ends.extend(reached);
            }
        }
        (lengths >> length) > 1
    }

    /// Lengths of the paths from a position to an end.
    fn lengths(&self, (hop, depth, id): Position) -> Lengths {
        match self.lengths.get(hop) {
            Some(depths) => depths.get(depth).and_then(|ids| ids.get(&id)).copied().unwrap_or_default(),
            // The end of a path.
            None => 1,
        }
    }

    /// Lengths of the paths from a position to an end other than `ends`. Includes paths in which an edge occurs twice.
    fn open_lengths(
        &mut self,
        at: Position,
        ends: &BTreeSet<u64>,
        cached_lengths: &mut HashMap<Position, Lengths>,
    ) -> Lengths {
        let all = self.lengths(at);
        if all == 0 || ends.is_empty() {
            return all;
        }
        if let Some(lengths) = cached_lengths.get(&at) {
            return *lengths;
        }
        let ((hop, depth, id), layers) = (at, self.layers);
        let Some(layer) = layers.get(hop) else { return Lengths::from(!ends.contains(&id)) };
        let mut lengths = 0;
        if layer.may_end(depth, id) {
            lengths |= self.open_lengths((hop + 1, 0, id), ends, cached_lengths);
        }
        for (to, _) in layer.steps_from(id) {
            self.count_step();
            if self.limit_reached.is_some() {
                break;
            }
            lengths |= self.open_lengths((hop, depth + 1, *to), ends, cached_lengths) << 1;
        }
        cached_lengths.insert(at, lengths);
        lengths
    }

    fn count_step(&mut self) {
        self.walk_steps += 1;
        if self.walk_steps > self.limits.walk_steps {
            self.limit_reached = Some(MAX_STEPS_NOTICE);
        } else if self.walk_steps.is_multiple_of(STEPS_BETWEEN_CHECKS) && (self.is_over)() {
            self.limit_reached = Some(TIME_NOTICE);
        }
    }

    /// Continues a path at a position. No edge occurs twice in a path.
    fn walk(&mut self, at: Position, trail: &mut Trail, goal: &mut Goal<'_>) {
        let ((hop, depth, id), layers) = (at, self.layers);
        let Some(layer) = layers.get(hop) else {
            self.add(trail);
            if let Goal::Length { reached, .. } = goal {
                reached.insert(id);
            }
            return;
        };
        let end = (hop + 1, 0, id);
        if layer.may_end(depth, id) && self.leads_to_goal(end, trail, goal) {
            self.walk(end, trail, goal);
        }
        // No step follows the last one of a hop.
        if depth + 1 >= layer.depths.len() {
            return;
        }
        for (to, edge) in layer.steps_from(id) {
            self.count_step();
            if self.limit_reached.is_some() {
                return;
            }
            if trail.edges.contains(edge) {
                continue;
            }
            let next = (hop, depth + 1, *to);
            trail.nodes.push(*to);
            trail.edges.push(*edge);
            if self.leads_to_goal(next, trail, goal) {
                self.walk(next, trail, goal);
            }
            trail.nodes.pop();
            trail.edges.pop();
        }
    }

    /// False if no path that begins with a trail and continues at a position is one of those that the walk searches.
    fn leads_to_goal(&mut self, at: Position, trail: &Trail, goal: &mut Goal<'_>) -> bool {
        match goal {
            Goal::All => self.lengths(at) != 0,
            Goal::Length { length, ends, open_lengths, .. } => {
                let Some(rest) = length.checked_sub(trail.edges.len()) else { return false };
                self.open_lengths(at, ends, open_lengths) & (1 << rest) != 0
            }
        }
    }

    /// Adds a path. The hops of a pattern may divide one path in several ways.
    fn add(&mut self, trail: &Trail) {
        let path = trail.to_path();
        if self.paths.contains(&path) {
            return;
        }
        if self.paths.len() < self.limits.paths {
            self.paths.insert(path);
        } else {
            self.limit_reached = Some(MAX_PATHS_NOTICE);
        }
    }
}

impl Trail {
    fn new(start: u64) -> Self {
        Self { nodes: vec![start], edges: Vec::new() }
    }

    fn to_path(&self) -> Path {
        Path { length: self.edges.len(), nodes: self.nodes.clone(), edges: self.edges.clone() }
    }
}
