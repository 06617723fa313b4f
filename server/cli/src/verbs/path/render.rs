//! Paths as a tree and as a graph for Graphviz. Has no side effects.

use std::collections::BTreeMap;
use std::fmt::Write;

use crowsnest_apimachinery::unstructured::{list, text};
use serde_json::Value;

/// A step of a path: the edge, `None` for the first node, and the node that it leads to, as indexes into the response.
type Step = (Option<usize>, usize);

/// A tree of steps: the branches below each step, and the order in which the steps were added.
#[derive(Default)]
struct Branches(BTreeMap<Step, Branches>, Vec<Step>);

impl Branches {
    fn add(&mut self, steps: &[Step]) {
        let Some((first, rest)) = steps.split_first() else { return };
        let Self(branches, order) = self;
        if !branches.contains_key(first) {
            order.push(*first);
        }
        branches.entry(*first).or_default().add(rest);
    }
}

/// The steps of each path of a response.
pub(crate) fn path_sequences(response: &Value) -> Vec<Vec<Step>> {
    let sequence = |path: &Value| {
        let edges = numbers(path, "/edges").into_iter().map(Some);
        [None].into_iter().chain(edges).zip(numbers(path, "/nodes")).collect()
    };
    list(response, "/paths").iter().map(sequence).collect()
}

/// The steps from the first object to each object that depends on it.
pub(crate) fn dependent_sequences(response: &Value) -> Vec<Vec<Step>> {
    let mut steps_to: BTreeMap<usize, Vec<Step>> = BTreeMap::from([(0, vec![(None, 0)])]);
    for reached_node in list(response, "/reached") {
        let (node, edge) = (number(reached_node, "node"), number(reached_node, "edge"));
        let ends = list(response, "/edges").get(edge).map(|edge| (number(edge, "from"), number(edge, "to")));
        let before = ends.map_or(0, |(from, to)| if from == node { to } else { from });
        let mut steps = steps_to.get(&before).cloned().unwrap_or_default();
        steps.push((Some(edge), node));
        steps_to.insert(node, steps);
    }
    let mut sequences: Vec<Vec<Step>> = steps_to.into_values().collect();
    sequences.sort_by_key(|steps| steps.iter().map(|(_, node)| *node).collect::<Vec<_>>());
    sequences
}

/// Prints sequences of steps as a tree.
pub(crate) fn render_tree(response: &Value, sequences: Vec<Vec<Step>>) -> String {
    let mut branches = Branches::default();
    sequences.iter().for_each(|steps| branches.add(steps));
    let mut out = String::new();
    print_branches(response, &branches, None, 0, &mut out);
    out
}

fn print_branches(
    response: &Value,
    Branches(branches, order): &Branches,
    before: Option<usize>,
    depth: usize,
    out: &mut String,
) {
    for step in order {
        let (edge, node) = *step;
        let arrow = edge.and_then(|edge| list(response, "/edges").get(edge)).map(|edge| format_edge(edge, before));
        let (arrow, via) = arrow.unwrap_or_default();
        let line = format!("{:indent$}{arrow}{}{via}", "", node_label(response, node), indent = depth * 2);
        let _ = writeln!(out, "{}", line.trim_end());
        if let Some(next) = branches.get(step) {
            print_branches(response, next, Some(node), depth + 1, out);
        }
    }
}

/// The arrow of an edge as seen from a node, and the fields that state the edge.
fn format_edge(edge: &Value, before: Option<usize>) -> (String, String) {
    let kind = text(edge, "/type");
    let forward = before == Some(number(edge, "from"));
    let arrow = if forward { format!("-{kind}-> ") } else { format!("<-{kind}- ") };
    let via: Vec<&str> = list(edge, "/via").iter().filter_map(Value::as_str).collect();
    let via = if via.is_empty() { String::new() } else { format!("  ({})", via.join(", ")) };
    (arrow, via)
}

/// `member1 Deployment shop/web Running`
fn node_label(response: &Value, node: usize) -> String {
    let Some(node) = list(response, "/nodes").get(node) else { return "<unknown>".to_owned() };
    let namespace = text(node, "/namespace");
    let slash = if namespace.is_empty() { "" } else { "/" };
    let name = format!("{} {} {namespace}{slash}{}", text(node, "/cluster"), text(node, "/kind"), text(node, "/name"));
    match text(node, "/status") {
        "" => name,
        status => format!("{name} [{status}]"),
    }
}

/// Nodes and edges in Graphviz's language.
pub(crate) fn render_dot(response: &Value) -> String {
    let mut out = "digraph paths {\n  rankdir=LR;\n  node [shape=box];\n".to_owned();
    for nth in 0..list(response, "/nodes").len() {
        let _ = writeln!(out, "  n{nth} [label={}];", quote(&node_label(response, nth)));
    }
    for edge in list(response, "/edges") {
        let (from, to) = (number(edge, "from"), number(edge, "to"));
        let _ = writeln!(out, "  n{from} -> n{to} [label={}];", quote(text(edge, "/type")));
    }
    out.push_str("}\n");
    out
}

fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn number(value: &Value, field: &str) -> usize {
    value.get(field).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok()).unwrap_or_default()
}

fn numbers(value: &Value, pointer: &str) -> Vec<usize> {
    list(value, pointer).iter().filter_map(Value::as_u64).filter_map(|number| usize::try_from(number).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn response() -> Value {
        let node = |kind: &str, name: &str| json!({"cluster": "m1", "kind": kind, "namespace": "shop", "name": name});
        json!({
            "nodes": [node("Secret", "db"), node("Deployment", "web"), node("ReplicaSet", "web-1"), node("ReplicaSet", "web-2"),
                {"cluster": "m1", "kind": "Node", "name": "n\"1", "status": "Ready"}],
            "edges": [{"from": 1, "to": 0, "type": "USES", "via": ["spec.a", "spec.b"]}, {"from": 1, "to": 2, "type": "OWNS", "via": []},
                {"from": 1, "to": 3, "type": "OWNS", "via": []}],
            "paths": [{"nodes": [0, 1, 2], "edges": [0, 1]}, {"nodes": [0, 1, 3], "edges": [0, 2]}, {"nodes": [4], "edges": []}],
            "reached": [{"node": 1, "distance": 1, "edge": 0}, {"node": 2, "distance": 2, "edge": 1}, {"node": 3, "distance": 2, "edge": 2}],
        })
    }

    const TREE: &str = "m1 Secret shop/db\n  <-USES- m1 Deployment shop/web  (spec.a, spec.b)\n    -OWNS-> m1 ReplicaSet shop/web-1\n    -OWNS-> m1 ReplicaSet shop/web-2\n";

    #[test]
    fn paths_share_their_beginnings() {
        let response = response();
        assert_eq!(render_tree(&response, path_sequences(&response)), format!("{TREE}m1 Node n\"1 [Ready]\n"));
    }

    #[test]
    fn dependents_are_below_their_dependency() {
        let response = response();
        assert_eq!(render_tree(&response, dependent_sequences(&response)), TREE);
    }

    #[test]
    fn graphs_are_quoted() {
        let dot = render_dot(&response());
        assert!(dot.contains("  n4 [label=\"m1 Node n\\\"1 [Ready]\"];\n"), "{dot}");
        assert!(dot.contains("  n1 -> n0 [label=\"USES\"];\n"), "{dot}");
    }
}
