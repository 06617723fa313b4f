//! Properties of the search on generated graphs with cycles and objects that the caller cannot read.

use crate::paths::closure::closure;
use crate::paths::explore::{EdgeKey, Edges, FoundPaths, PathGraph, PathLimits, StepEdges, find, shortest};
use crate::plan::relations::Side;
use async_trait::async_trait;
use crowsnest_query::path::{Direction, EdgeType, HopPattern, NodePattern, PathPattern};
use crowsnest_store::Error;
use futures::executor::block_on;
use proptest::prelude::*;
use std::collections::BTreeSet;

const LABELS: [&str; 3] = ["a", "b", "c"];
const TYPES: [EdgeType; 4] = [EdgeType::Owns, EdgeType::Uses, EdgeType::Selects, EdgeType::RoutesTo];

/// Objects are numbers; the label of an object follows from its number.
#[derive(Debug, Clone)]
struct Model {
    readable: BTreeSet<u64>,
    edges: BTreeSet<EdgeKey>,
}

fn labelled(node: &NodePattern, id: u64) -> bool {
    node.label.as_deref().is_none_or(|label| LABELS[id as usize % LABELS.len()] == label)
}

impl Model {
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

    /// All paths, by trying everything.
    fn naive(&self, pattern: &PathPattern) -> BTreeSet<(Vec<u64>, Vec<EdgeKey>)> {
        let starts = self.readable.iter().filter(|id| labelled(&pattern.first, **id));
        let mut found: Vec<_> = starts.map(|id| (vec![*id], Vec::new())).collect();
        for (hop, node) in &pattern.hops {
            let mut ended = Vec::new();
            let mut frontier = found;
            for length in 0..=hop.max_steps {
                if length >= hop.min_steps {
                    ended.extend(frontier.iter().filter(|(nodes, _)| labelled(node, nodes[nodes.len() - 1])).cloned());
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
        Self { readable: self.readable.clone(), edges: self.edges.iter().filter(is_seen).copied().collect() }
    }

    fn found(&self, pattern: &PathPattern) -> FoundPaths {
        block_on(find(&mut self.clone(), pattern, &PathLimits::default())).unwrap()
    }

    fn reached(&self, from: u64, side: Side) -> BTreeSet<u64> {
        let limits = PathLimits::default();
        let found = block_on(closure(&mut self.clone(), BTreeSet::from([from]), side, 32, &limits)).unwrap();
        found.reached.iter().map(|reached| reached.id).collect()
    }
}

#[async_trait]
impl PathGraph for Model {
    async fn matching(&mut self, node: &NodePattern, among: Option<BTreeSet<u64>>) -> Result<BTreeSet<u64>, Error> {
        let of = among.unwrap_or_else(|| self.readable.clone());
        Ok(of.into_iter().filter(|id| self.readable.contains(id) && labelled(node, *id)).collect())
    }

    async fn edges(&mut self, of: &BTreeSet<u64>, step: &StepEdges) -> Result<Edges, Error> {
        let steps = of.iter().flat_map(|id| self.steps(*id, &step.types, step.direction));
        Ok(steps.map(|(_, edge)| (edge, BTreeSet::from(["field".to_owned()]))).collect())
    }
}

fn model() -> impl Strategy<Value = Model> {
    let edge = (0..6u64, 0..6u64, prop::sample::select(TYPES.to_vec()));
    let readable = prop::collection::btree_set(0..6u64, 1..7);
    (readable, prop::collection::btree_set(edge, 0..14)).prop_map(|(readable, edges)| Model { readable, edges })
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
        let expected = model.naive(&pattern);
        prop_assume!(expected.len() < 5_000);
        let found = model.found(&pattern);
        prop_assert!(found.limits_reached.is_empty());
        let paths: BTreeSet<_> = found.paths.iter().map(|path| (path.nodes.clone(), path.edges.clone())).collect();
        prop_assert_eq!(paths.len(), found.paths.len());
        prop_assert_eq!(paths, expected);
    }

    /// Objects that the caller cannot read change nothing, not even the edges that are returned.
    #[test]
    fn hidden_objects_leave_no_trace(model in model(), pattern in pattern()) {
        let (found, expected) = (model.found(&pattern), model.without_hidden().found(&pattern));
        prop_assert_eq!(&found.paths, &expected.paths);
        prop_assert_eq!(&found.edges, &expected.edges);
        let ids = found.edges.keys().flat_map(|edge| [edge.0, edge.1]).chain(found.paths.iter().flat_map(|path| path.nodes.clone()));
        prop_assert!(ids.into_iter().all(|id| model.readable.contains(&id)));
        for id in &model.readable {
            for side in [Side::Dependents, Side::Dependencies] {
                let reached = model.reached(*id, side);
                prop_assert_eq!(&reached, &model.without_hidden().reached(*id, side));
                prop_assert!(reached.is_subset(&model.readable));
            }
        }
    }

    #[test]
    fn reversed_patterns_find_reversed_paths(model in model(), pattern in pattern()) {
        let found = model.found(&pattern);
        prop_assume!(found.limits_reached.is_empty());
        let mut expected: Vec<_> = found.paths.into_iter().map(|path| (path.nodes, path.edges)).collect();
        let reversed = model.found(&pattern.inverse()).paths.into_iter();
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
                let depends = model.reached(*a, Side::Dependents).contains(b);
                prop_assert_eq!(model.reached(*b, Side::Dependencies).contains(a), depends, "{} and {}", a, b);
            }
        }
    }
}

#[test]
fn searches_of_dense_graphs_end_and_report_it() {
    let ids: BTreeSet<u64> = (0..30).collect();
    let edges = ids.iter().flat_map(|from| ids.iter().map(move |to| (*from, *to, EdgeType::Uses))).collect();
    let model = Model { readable: ids, edges };
    let found = model.found(&"()-[:USES*8]->()".parse().unwrap());
    assert!(found.paths.len() <= 10_000 && !found.limits_reached.is_empty(), "{:?}", found.limits_reached);
    let limits = PathLimits { visited: 5, ..PathLimits::default() };
    let few = block_on(find(&mut model.clone(), &"()-[:USES*2]->()".parse().unwrap(), &limits)).unwrap();
    assert!(few.paths.iter().all(|path| path.nodes.iter().all(|id| *id < 5)) && !few.limits_reached.is_empty());
    // Each object is a path without hops.
    for (paths, is_cut) in [(29, true), (30, false)] {
        let limits = PathLimits { paths, ..PathLimits::default() };
        let some = block_on(find(&mut model.clone(), &"()".parse().unwrap(), &limits)).unwrap();
        assert_eq!((some.paths.len(), !some.limits_reached.is_empty()), (paths, is_cut));
    }
}

#[test]
fn the_shortest_paths_between_ends_remain() {
    let uses = |from, to| (from, to, EdgeType::Uses);
    let edges = BTreeSet::from([uses(0, 1), uses(1, 2), uses(0, 2), uses(2, 3)]);
    let model = Model { readable: (0..4).collect(), edges };
    let mut paths = model.found(&"(:a)-[:USES*]->()".parse().unwrap()).paths;
    shortest(&mut paths);
    let nodes: Vec<Vec<u64>> = paths.into_iter().map(|path| path.nodes).collect();
    assert_eq!(nodes, [vec![0, 1], vec![0, 2], vec![0, 2, 3]]);
}
