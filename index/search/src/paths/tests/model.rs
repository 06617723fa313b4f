//! Properties of the search on generated graphs with cycles and objects that the caller cannot read.

use crate::paths::closure::closure;
use crate::paths::traversal::{
    EdgeKey, FoundPaths, MAX_OBJECTS_NOTICE, MAX_PATHS_NOTICE, MAX_STEPS_NOTICE, PathGraph, PathLimits, PathSelection,
    StepEdges, TIME_NOTICE, find, traverse,
};
use crate::plan::relations::DependencyDirection;
use async_trait::async_trait;
use crowsnest_query::path::{Direction, EdgeType, HopPattern, NodePattern, PathPattern};
use crowsnest_store::Error;
use futures::executor::block_on;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const LABELS: [&str; 3] = ["a", "b", "c"];
const TYPES: [EdgeType; 4] = [EdgeType::Owns, EdgeType::Uses, EdgeType::Selects, EdgeType::RoutesTo];

/// Objects are numbers.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub readable: BTreeSet<u64>,
    pub edges: BTreeSet<EdgeKey>,
    pub labels: BTreeMap<u64, &'static str>,
}

/// Paths as objects and edges.
pub(super) type PathSet = BTreeSet<(Vec<u64>, Vec<EdgeKey>)>;

/// The shortest paths between each pair of ends.
pub(super) fn shortest_of(mut paths: PathSet) -> PathSet {
    let ends = |nodes: &[u64]| (nodes[0], nodes[nodes.len() - 1]);
    let mut lengths = BTreeMap::new();
    for (nodes, edges) in &paths {
        let length = lengths.entry(ends(nodes)).or_insert(edges.len());
        *length = edges.len().min(*length);
    }
    paths.retain(|(nodes, edges)| lengths[&ends(nodes)] == edges.len());
    paths
}

/// Labels of the objects, assigned in a cycle.
fn labels(count: u64) -> BTreeMap<u64, &'static str> {
    (0..count).zip(LABELS.into_iter().cycle()).collect()
}

impl Model {
    fn is_labelled(&self, node: &NodePattern, id: u64) -> bool {
        node.label.as_deref().is_none_or(|label| self.labels.get(&id) == Some(&label))
    }

    /// Edges between readable objects, as steps from an object.
    fn steps(&self, from: u64, types: &BTreeSet<EdgeType>, direction: Direction) -> Vec<(u64, EdgeKey)> {
        let edges = self.edges.iter().filter(|(from, to, edge)| {
            types.contains(edge) && self.readable.contains(from) && self.readable.contains(to)
        });
        let mut steps = BTreeSet::new();
        for edge in edges {
            if direction != Direction::In && edge.0 == from {
                steps.insert((edge.1, *edge));
            }
            if direction != Direction::Out && edge.1 == from {
                steps.insert((edge.0, *edge));
            }
        }
        steps.into_iter().collect()
    }

    /// All paths that match the pattern, by exhaustive enumeration.
    pub fn enumerate_paths(&self, pattern: &PathPattern) -> PathSet {
        let starts = self.readable.iter().filter(|id| self.is_labelled(&pattern.first, **id));
        let mut found: Vec<_> = starts.map(|id| (vec![*id], Vec::new())).collect();
        for (hop, node) in &pattern.hops {
            let mut ended = Vec::new();
            let mut frontier = found;
            for length in 0..=hop.max_steps {
                if length >= hop.min_steps {
                    let is_end = |path: &&(Vec<u64>, Vec<EdgeKey>)| self.is_labelled(node, path.0[path.0.len() - 1]);
                    ended.extend(frontier.iter().filter(is_end).cloned());
                }
                let mut next = Vec::new();
                for (nodes, edges) in &frontier {
                    for (to, edge) in self.steps(nodes[nodes.len() - 1], &hop.effective_types(), hop.direction) {
                        if !edges.contains(&edge) {
                            next.push(([nodes.as_slice(), &[to]].concat(), [edges.as_slice(), &[edge]].concat()));
                        }
                    }
                }
                frontier = next;
            }
            found = ended;
        }
        found.into_iter().collect()
    }

    /// The graph without the objects that the caller cannot read.
    fn without_hidden(&self) -> Self {
        let is_seen = |(from, to, _): &&EdgeKey| self.readable.contains(from) && self.readable.contains(to);
        let edges = self.edges.iter().filter(is_seen).copied().collect();
        Self { edges, ..self.clone() }
    }

    fn find_paths(&self, pattern: &PathPattern) -> FoundPaths {
        block_on(find(&mut self.clone(), pattern, &PathLimits::default(), PathSelection::All)).unwrap()
    }

    fn find_shortest_paths(&self, pattern: &PathPattern) -> FoundPaths {
        block_on(find(&mut self.clone(), pattern, &PathLimits::default(), PathSelection::Shortest)).unwrap()
    }

    fn reachable_ids(&self, from: u64, direction: DependencyDirection) -> BTreeSet<u64> {
        let limits = PathLimits::default();
        let found = block_on(closure(&mut self.clone(), BTreeSet::from([from]), direction, 32, &limits)).unwrap();
        found.reached.iter().map(|reached| reached.id).collect()
    }
}

#[async_trait]
impl PathGraph for Model {
    async fn matching_ids(
        &mut self,
        node: &NodePattern,
        among: Option<BTreeSet<u64>>,
        _next: Option<&StepEdges>,
    ) -> Result<BTreeSet<u64>, Error> {
        let ids = among.unwrap_or_else(|| self.readable.clone());
        Ok(ids.into_iter().filter(|id| self.readable.contains(id) && self.is_labelled(node, *id)).collect())
    }

    async fn edges(
        &mut self,
        from: &BTreeSet<u64>,
        step: &StepEdges,
        ends: Option<&NodePattern>,
    ) -> Result<BTreeSet<EdgeKey>, Error> {
        let steps = from.iter().flat_map(|id| self.steps(*id, &step.types, step.direction));
        let may_end = |(to, _): &(u64, EdgeKey)| ends.is_none_or(|node| self.is_labelled(node, *to));
        Ok(steps.filter(may_end).map(|(_, edge)| edge).collect())
    }
}

fn model() -> impl Strategy<Value = Model> {
    let edge = (0..6u64, 0..6u64, prop::sample::select(TYPES.to_vec()));
    let readable = prop::collection::btree_set(0..6u64, 1..7);
    (readable, prop::collection::btree_set(edge, 0..14)).prop_map(|(readable, edges)| Model {
        readable,
        edges,
        labels: labels(6),
    })
}

fn pattern() -> impl Strategy<Value = PathPattern> {
    let node = || {
        prop::option::of(prop::sample::select(LABELS.to_vec()))
            .prop_map(|label| NodePattern { label: label.map(str::to_owned), ..NodePattern::default() })
    };
    let types = prop::collection::btree_set(prop::sample::select(TYPES.to_vec()), 0..3);
    let direction = prop::sample::select(vec![Direction::Out, Direction::In, Direction::Both]);
    let hop = (types, direction, 0..2u8, 1..4u8).prop_map(|(types, direction, min_steps, max_steps)| HopPattern {
        variable: None,
        types,
        direction,
        min_steps,
        max_steps,
    });
    (node(), prop::collection::vec((hop, node()), 0..3)).prop_map(|(first, hops)| PathPattern { first, hops })
}

proptest! {
    #[test]
    fn paths_equal_those_of_a_naive_evaluation(model in model(), pattern in pattern()) {
        let expected = model.enumerate_paths(&pattern);
        prop_assume!(expected.len() < 5_000);
        let found = model.find_paths(&pattern);
        prop_assert!(found.limits_reached.is_empty());
        let paths: BTreeSet<_> = found.paths.iter().map(|path| (path.nodes.clone(), path.edges.clone())).collect();
        prop_assert_eq!(paths.len(), found.paths.len());
        prop_assert_eq!(paths, expected);
    }

    #[test]
    fn shortest_paths_equal_those_of_a_naive_evaluation(model in model(), pattern in pattern()) {
        let all = model.enumerate_paths(&pattern);
        prop_assume!(all.len() < 5_000);
        let found = model.find_shortest_paths(&pattern);
        prop_assert!(found.limits_reached.is_empty());
        prop_assert!(found.paths.is_sorted());
        let count = found.paths.len();
        let paths: PathSet = found.paths.into_iter().map(|path| (path.nodes, path.edges)).collect();
        prop_assert_eq!(paths.len(), count);
        prop_assert_eq!(paths, shortest_of(all));
    }

    /// Objects that the caller cannot read change nothing.
    #[test]
    fn hidden_objects_leave_no_trace(model in model(), pattern in pattern()) {
        let (found, expected) = (model.find_paths(&pattern), model.without_hidden().find_paths(&pattern));
        prop_assert_eq!(&found.paths, &expected.paths);
        prop_assert_eq!(&found.limits_reached, &expected.limits_reached);
        prop_assert_eq!(model.find_shortest_paths(&pattern).paths, model.without_hidden().find_shortest_paths(&pattern).paths);
        let edges = found.paths.iter().flat_map(|path| &path.edges).flat_map(|edge| [edge.0, edge.1]);
        let ids = edges.chain(found.paths.iter().flat_map(|path| path.nodes.clone()));
        prop_assert!(ids.into_iter().all(|id| model.readable.contains(&id)));
        for id in &model.readable {
            for direction in [DependencyDirection::Dependents, DependencyDirection::Dependencies] {
                let reached = model.reachable_ids(*id, direction);
                prop_assert_eq!(&reached, &model.without_hidden().reachable_ids(*id, direction));
                prop_assert!(reached.is_subset(&model.readable));
            }
        }
    }

    #[test]
    fn reversed_patterns_find_reversed_paths(model in model(), pattern in pattern()) {
        let found = model.find_paths(&pattern);
        prop_assume!(found.limits_reached.is_empty());
        let mut expected: Vec<_> = found.paths.into_iter().map(|path| (path.nodes, path.edges)).collect();
        let reversed = model.find_paths(&pattern.inverse()).paths.into_iter();
        let mut reversed: Vec<_> = reversed
            .map(|path| (path.nodes.into_iter().rev().collect::<Vec<_>>(), path.edges.into_iter().rev().collect::<Vec<_>>()))
            .collect();
        expected.sort_unstable();
        reversed.sort_unstable();
        prop_assert_eq!(reversed, expected);
    }

    /// One object depends on another if and only if the other is among its dependencies.
    #[test]
    fn closures_are_symmetric(model in model()) {
        for a in &model.readable {
            for b in model.readable.iter().filter(|b| *b != a) {
                let depends = model.reachable_ids(*a, DependencyDirection::Dependents).contains(b);
                prop_assert_eq!(model.reachable_ids(*b, DependencyDirection::Dependencies).contains(a), depends, "{} and {}", a, b);
            }
        }
    }
}

#[test]
fn searches_of_dense_graphs_end_and_report_it() {
    let ids: BTreeSet<u64> = (0..30).collect();
    let edges = ids.iter().flat_map(|from| ids.iter().map(move |to| (*from, *to, EdgeType::Uses))).collect();
    let model = Model { readable: ids, edges, labels: labels(30) };
    let found = model.find_paths(&"()-[:USES*8]->()".parse().unwrap());
    assert_eq!((found.paths.len(), found.limits_reached), (10_000, BTreeSet::from([MAX_PATHS_NOTICE])));
    let limits = PathLimits { visited: 5, ..PathLimits::default() };
    let few =
        block_on(find(&mut model.clone(), &"()-[:USES*2]->()".parse().unwrap(), &limits, PathSelection::All)).unwrap();
    assert!(few.paths.iter().all(|path| path.nodes.iter().all(|id| *id < 5)));
    assert_eq!(few.limits_reached, BTreeSet::from([MAX_OBJECTS_NOTICE]));
    let limits = PathLimits { walk_steps: 100, ..PathLimits::default() };
    let short =
        block_on(find(&mut model.clone(), &"()-[:USES*8]->()".parse().unwrap(), &limits, PathSelection::All)).unwrap();
    assert_eq!(short.limits_reached, BTreeSet::from([MAX_STEPS_NOTICE]));
    // Each object is a path without hops.
    for (paths, is_cut) in [(29, true), (30, false)] {
        let limits = PathLimits { paths, ..PathLimits::default() };
        let some = block_on(find(&mut model.clone(), &"()".parse().unwrap(), &limits, PathSelection::All)).unwrap();
        assert_eq!((some.paths.len(), !some.limits_reached.is_empty()), (paths, is_cut));
    }
}

#[test]
fn the_enumeration_ends_at_the_time_limit() {
    let ids: BTreeSet<u64> = (0..30).collect();
    let edges = ids.iter().flat_map(|from| ids.iter().map(move |to| (*from, *to, EdgeType::Uses))).collect();
    let mut model = Model { readable: ids, edges, labels: labels(30) };
    let (pattern, limits): (PathPattern, _) = ("()-[:USES*8]->()".parse().unwrap(), PathLimits::default());
    for (is_over, expected) in [(false, MAX_PATHS_NOTICE), (true, TIME_NOTICE)] {
        let traversed = block_on(traverse(&mut model, &pattern, &limits)).unwrap();
        let found = traversed.into_paths(&limits, PathSelection::All, &|| is_over);
        assert_eq!(found.limits_reached, BTreeSet::from([expected]));
        assert!(!found.paths.is_empty());
    }
}

#[test]
fn the_shortest_paths_between_ends_remain() {
    let uses = |from, to| (from, to, EdgeType::Uses);
    let edges = BTreeSet::from([uses(0, 1), uses(1, 2), uses(0, 2), uses(2, 3)]);
    let model = Model { readable: (0..4).collect(), edges, labels: labels(4) };
    let paths = model.find_shortest_paths(&"(:a)-[:USES*]->()".parse().unwrap()).paths;
    let nodes: Vec<Vec<u64>> = paths.into_iter().map(|path| path.nodes).collect();
    assert_eq!(nodes, [vec![0, 1], vec![0, 2], vec![0, 2, 3]]);
}

/// 4^7 paths of 8 edges and one of a single edge, which is enumerated last.
#[test]
fn the_shortest_path_is_found_among_more_paths_than_the_limit() {
    const END: u64 = 29;
    let uses = |from, to| (from, to, EdgeType::Uses);
    let layer = |number: u64| 1 + 4 * number..5 + 4 * number;
    let between =
        (0..6).flat_map(|number| layer(number).flat_map(move |from| layer(number + 1).map(move |to| uses(from, to))));
    let ends = layer(0).map(|to| uses(0, to)).chain(layer(6).map(|from| uses(from, END)));
    let edges = between.chain(ends).chain([uses(0, END)]).collect();
    let model = Model { readable: (0..=END).collect(), edges, labels: BTreeMap::from([(0, "a"), (END, "b")]) };
    let pattern: PathPattern = "(:a)-[:USES*1..8]->(:b)".parse().unwrap();
    let all = model.find_paths(&pattern);
    assert_eq!((all.paths.len(), all.limits_reached), (10_000, BTreeSet::from([MAX_PATHS_NOTICE])));
    assert!(all.paths.iter().all(|path| path.nodes != [0, END]));
    let shortest = model.find_shortest_paths(&pattern);
    let nodes: Vec<Vec<u64>> = shortest.paths.into_iter().map(|path| path.nodes).collect();
    assert_eq!((nodes, shortest.limits_reached), (vec![vec![0, END]], BTreeSet::new()));
}

/// Longer paths between ends that are already joined are not tried; the limits apply nevertheless.
#[test]
fn searches_of_shortest_paths_end_in_dense_graphs() {
    let ids: BTreeSet<u64> = (0..30).collect();
    let edges = ids.iter().flat_map(|from| ids.iter().map(move |to| (*from, *to, EdgeType::Uses))).collect();
    let model = Model { readable: ids, edges, labels: labels(30) };
    let pattern: PathPattern = "()-[:USES*1..8]->()".parse().unwrap();
    let found = model.find_shortest_paths(&pattern);
    assert!(found.paths.iter().all(|path| path.edges.len() == 1));
    assert_eq!((found.paths.len(), found.limits_reached), (900, BTreeSet::new()));
    let limits = PathLimits { walk_steps: 100, ..PathLimits::default() };
    let cut = block_on(find(&mut model.clone(), &pattern, &limits, PathSelection::Shortest)).unwrap();
    assert_eq!(cut.limits_reached, BTreeSet::from([MAX_STEPS_NOTICE]));
    let limits = PathLimits { paths: 899, ..PathLimits::default() };
    let cut = block_on(find(&mut model.clone(), &pattern, &limits, PathSelection::Shortest)).unwrap();
    assert_eq!((cut.paths.len(), cut.limits_reached), (899, BTreeSet::from([MAX_PATHS_NOTICE])));
}
