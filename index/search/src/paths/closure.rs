//! The objects that depend on others, directly and transitively, and those that they depend on.
//!
//! An object depends on the objects that it uses, routes to, grants or runs on, on its owners, namespace and template, and
//! a Pod on the objects that select it. Pods do not depend on what another Pod's Service selects, so selectors are only
//! followed from the first object.

use super::traversal::{EdgeKey, MAX_OBJECTS_NOTICE, PathGraph, PathLimits, StepEdges};
use crate::plan::relations::DependencyDirection;
use crowsnest_query::path::{Direction, EdgeType};
use crowsnest_store::Error;
use std::collections::{BTreeMap, BTreeSet};

/// Types whose edges begin at the object on which the other depends.
const FROM_DEPENDENCY: [EdgeType; 3] = [EdgeType::Contains, EdgeType::Owns, EdgeType::PropagatedTo];
/// Types whose edges end at the object on which the other depends.
const TO_DEPENDENCY: [EdgeType; 5] =
    [EdgeType::RoleRef, EdgeType::RoutesTo, EdgeType::RunsOn, EdgeType::Subject, EdgeType::Uses];

/// An object that a closure reached first over this edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReachedObject {
    pub id: u64,
    /// Number of steps from the nearest root.
    pub distance: u8,
    pub edge: EdgeKey,
}

/// The objects that depend on the roots, or on which the roots depend.
#[derive(Debug, Default)]
pub(crate) struct Closure {
    /// In order of their distance, without the roots.
    pub reached: Vec<ReachedObject>,
    /// All followed edges.
    pub edges: BTreeSet<EdgeKey>,
    /// Notices about limits that ended the search.
    pub limits_reached: BTreeSet<&'static str>,
}

/// The closure of some objects within a number of steps.
pub(crate) async fn closure(
    graph: &mut dyn PathGraph,
    roots: BTreeSet<u64>,
    direction: DependencyDirection,
    depth: u8,
    limits: &PathLimits,
) -> Result<Closure, Error> {
    let mut closure = Closure::default();
    // Objects whose relations were searched, and objects that were found.
    let mut followed = roots.clone();
    let mut listed = roots.clone();
    let mut frontier = roots;
    for distance in 1..=depth {
        let mut next = BTreeMap::new();
        let mut ends = BTreeMap::new();
        for (step, is_last) in closure_steps(direction, distance) {
            let edges = graph.edges(&frontier, &step, None).await?;
            for edge in edges {
                let (from, to) = if step.direction == Direction::Out { (edge.0, edge.1) } else { (edge.1, edge.0) };
                if frontier.contains(&from) && !followed.contains(&to) {
                    let found = if is_last { &mut ends } else { &mut next };
                    found.entry(to).or_insert(edge);
                }
                closure.edges.insert(edge);
            }
        }
        for (id, edge) in next.iter().chain(&ends) {
            if listed.contains(id) {
                continue;
            }
            if listed.len() >= limits.visited {
                closure.limits_reached.insert(MAX_OBJECTS_NOTICE);
                break;
            }
            listed.insert(*id);
            closure.reached.push(ReachedObject { id: *id, distance, edge: *edge });
        }
        frontier = next.into_keys().filter(|id| listed.contains(id)).collect();
        followed.extend(&frontier);
        if frontier.is_empty() {
            break;
        }
    }
    Ok(closure)
}

/// Edges of a step, and whether the search ends at the objects that they reach.
fn closure_steps(direction: DependencyDirection, distance: u8) -> Vec<(StepEdges, bool)> {
    let (from_dependency, to_dependency) = match direction {
        DependencyDirection::Dependents => (Direction::Out, Direction::In),
        DependencyDirection::Dependencies => (Direction::In, Direction::Out),
    };
    let step_edges = |types: &[EdgeType], direction| StepEdges { types: types.iter().copied().collect(), direction };
    let mut steps = vec![
        (step_edges(&FROM_DEPENDENCY, from_dependency), false),
        (step_edges(&TO_DEPENDENCY, to_dependency), false),
    ];
    match direction {
        DependencyDirection::Dependents if distance > 1 => {}
        DependencyDirection::Dependents => steps.push((step_edges(&[EdgeType::Selects], from_dependency), false)),
        DependencyDirection::Dependencies => steps.push((step_edges(&[EdgeType::Selects], from_dependency), true)),
    }
    steps
}
