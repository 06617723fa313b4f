//! Comparison of a graph with the pods of the cache: every node with its state, and every edge. The expected contents
//! are built object by object, without the sink.

use std::collections::BTreeSet;

use anyhow::ensure;
use crowsnest_graph::Bolt;
use crowsnest_graph::model::{NodeRow, RESOURCE_LABEL, RowBuilder, ServedKinds};
use crowsnest_graph::selectors::PodSelectors;
use crowsnest_index::GlobalCache;
use serde::Deserialize;
use serde_json::json;

/// Context of errors while reading.
const READ_CONTEXT: &str = "cannot read the graph database";
/// Maximum number of objects of the cache read at once.
const OBJECTS_PER_READ: usize = 500;
/// Maximum number of nodes read at once.
const NODES_PER_READ: usize = 1_000;
/// Maximum number of differences in an error message.
const MAX_EXAMPLES: usize = 5;

/// Reads nodes after a key, in order.
const READ_NODES: &str = "MATCH (n:Resource) WHERE n.key > $after RETURN n.key AS key, labels(n) AS labels, \
    n.uid AS uid, n.status AS status, n.seq AS seq, n.exists AS exists ORDER BY key LIMIT $limit";
/// Reads the edges that begin at the nodes of a range of keys.
const READ_EDGES: &str = "MATCH (n:Resource) WHERE n.key > $after AND n.key <= $until MATCH (n)-[e]->(o:Resource) \
    RETURN n.key AS from, type(e) AS edge_type, o.key AS to, e.via AS via";

/// Differences between the contents of a cache and of a graph.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Number of nodes and edges that both have.
    equal: usize,
    /// Nodes and edges that the graph lacks.
    missing: BTreeSet<String>,
    /// Nodes and edges of the graph that the cache does not have, or that the graph has twice.
    unexpected: BTreeSet<String>,
}

impl Comparison {
    /// A comparison with a graph of which nothing was read yet.
    fn new(expected: BTreeSet<String>) -> Self {
        Self { missing: expected, ..Self::default() }
    }

    /// Adds a node or an edge of the graph.
    fn add(&mut self, item: String) {
        if self.missing.remove(&item) {
            self.equal += 1;
        } else {
            self.unexpected.insert(item);
        }
    }

    /// Share of the nodes and edges that both have.
    pub(super) fn equal_percent(&self) -> f64 {
        let all = self.equal + self.missing.len() + self.unexpected.len();
        self.equal as f64 * 100.0 / all.max(1) as f64
    }

    /// Fails with some of the differences, if there are any or if the cache is empty.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let examples = |items: &BTreeSet<String>| items.iter().take(MAX_EXAMPLES).cloned().collect::<Vec<_>>();
        ensure!(
            self.equal > 0 && self.missing.is_empty() && self.unexpected.is_empty(),
            "the graph differs from the cache: {} equal, {} missing {:?}, {} unexpected {:?}",
            self.equal,
            self.missing.len(),
            examples(&self.missing),
            self.unexpected.len(),
            examples(&self.unexpected)
        );
        Ok(())
    }
}

/// A node read from the graph.
#[derive(Debug, Deserialize)]
struct GraphNode {
    key: String,
    labels: Vec<String>,
    uid: Option<String>,
    status: Option<String>,
    seq: Option<u64>,
    exists: bool,
}

impl GraphNode {
    /// The node of an object.
    fn from_row(row: &NodeRow) -> Self {
        let text = |property: &str| row.properties[property].as_str().map(str::to_owned);
        let labels = row.label.iter().map(|label| label.as_str()).chain([RESOURCE_LABEL]);
        Self {
            key: row.key.clone(),
            labels: labels.map(str::to_owned).collect(),
            uid: text("uid"),
            status: text("status"),
            seq: Some(row.seq),
            exists: true,
        }
    }

    /// The node of an object that others refer to and that the sink does not write.
    fn missing(key: &str) -> Self {
        let labels = vec![RESOURCE_LABEL.to_owned()];
        Self { key: key.to_owned(), labels, uid: None, status: None, seq: None, exists: false }
    }

    fn into_text(mut self) -> String {
        self.labels.sort_unstable();
        let Self { key, labels, uid, status, seq, exists } = self;
        if !exists {
            return format!("{key} {labels:?} missing");
        }
        let (uid, status) = (uid.unwrap_or_default(), status.unwrap_or_default());
        format!("{key} {labels:?} {uid} {status:?} {}", seq.unwrap_or_default())
    }
}

/// An edge read from the graph.
#[derive(Debug, Deserialize)]
struct GraphEdge {
    from: String,
    edge_type: String,
    to: String,
    via: Vec<String>,
}

impl GraphEdge {
    fn into_text(self) -> String {
        let via: BTreeSet<String> = self.via.into_iter().collect();
        format!("{} -{}-> {} {via:?}", self.from, self.edge_type, self.to)
    }
}

/// Compares all pods of the cache, and what they refer to, with the contents of a database. Neither may change during
/// the comparison.
pub(super) async fn compare(cache: &GlobalCache, database: &Bolt) -> anyhow::Result<Comparison> {
    let mut comparison = Comparison::new(expected_contents(cache).await?);
    let mut transaction = database.begin().await?;
    let mut after = String::new();
    loop {
        let parameters = vec![("after", json!(after)), ("limit", json!(NODES_PER_READ))];
        let nodes: Vec<GraphNode> = transaction.query(READ_CONTEXT, READ_NODES, parameters).await?;
        let Some(until) = nodes.last().map(|node| node.key.clone()) else { break };
        let parameters = vec![("after", json!(after)), ("until", json!(until))];
        let edges: Vec<GraphEdge> = transaction.query(READ_CONTEXT, READ_EDGES, parameters).await?;
        for item in nodes.into_iter().map(GraphNode::into_text).chain(edges.into_iter().map(GraphEdge::into_text)) {
            comparison.add(item);
        }
        after = until;
    }
    transaction.commit().await?;
    Ok(comparison)
}

/// Nodes and edges that the graph must have. Pods refer only to objects of other kinds, which are not written.
async fn expected_contents(cache: &GlobalCache) -> anyhow::Result<BTreeSet<String>> {
    let (source, states) = (cache.change_source(), cache.states());
    let kinds = ServedKinds::from_states(states.iter().map(|(key, state)| (key, state)));
    let selectors = PodSelectors::default();
    let builder = RowBuilder { kinds: &kinds, rules: &cache.options().references, selectors: &selectors };
    let (mut contents, mut after) = (BTreeSet::new(), 0);
    while let (objects, Some(next)) = source.objects_after(after, OBJECTS_PER_READ).await? {
        for object in objects {
            let row = builder.build(&object)?;
            if row.is_pod {
                contents.extend(row_contents(&row));
            }
        }
        after = next;
    }
    Ok(contents)
}

/// The node of a row, and its edges with the nodes at their other ends.
fn row_contents(row: &NodeRow) -> Vec<String> {
    let mut contents = vec![GraphNode::from_row(row).into_text()];
    for edge in &row.edges {
        let (own, other) = (row.key.clone(), edge.other.key.clone());
        contents.push(GraphNode::missing(&other).into_text());
        let (from, to) = if edge.is_forward { (own, other) } else { (other, own) };
        let (edge_type, via) = (edge.edge_type.name().to_owned(), edge.via.iter().cloned().collect());
        contents.push(GraphEdge { from, edge_type, to, via }.into_text());
    }
    contents
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn node(seq: u64) -> String {
        let node = GraphNode {
            key: "m1//Pod/team/a".to_owned(),
            labels: vec!["Resource".to_owned(), "Pod".to_owned()],
            uid: Some("u".to_owned()),
            status: Some("Running".to_owned()),
            seq: Some(seq),
            exists: true,
        };
        node.into_text()
    }

    fn missing(key: &str) -> String {
        GraphNode::missing(key).into_text()
    }

    fn edge(via: &[&str]) -> String {
        let via = via.iter().map(|field| (*field).to_owned()).collect();
        GraphEdge { from: "a".to_owned(), edge_type: "USES".to_owned(), to: "b".to_owned(), via }.into_text()
    }

    #[rstest]
    #[case::equal(vec![node(7), edge(&["y", "x"])], None, 100.0)]
    #[case::node_without_the_last_change(vec![node(6), edge(&["x", "y"])], Some("1 unexpected"), 33.3)]
    #[case::missing_edge(vec![node(7)], Some("1 missing"), 50.0)]
    #[case::edge_of_another_field(vec![node(7), edge(&["x"])], Some("1 missing"), 33.3)]
    #[case::node_without_its_object(vec![missing("m1//Pod/team/a"), edge(&["x", "y"])], Some("1 missing"), 33.3)]
    #[case::node_that_nothing_refers_to(vec![node(7), edge(&["x", "y"]), missing("b")], Some("1 unexpected"), 66.7)]
    #[case::duplicate_edge(vec![node(7), edge(&["x", "y"]), edge(&["x", "y"])], Some("1 unexpected"), 66.7)]
    fn each_difference_is_reported(#[case] actual: Vec<String>, #[case] message: Option<&str>, #[case] percent: f64) {
        let mut comparison = Comparison::new(BTreeSet::from([node(7), edge(&["x", "y"])]));
        actual.into_iter().for_each(|item| comparison.add(item));
        assert!((comparison.equal_percent() - percent).abs() < 0.1, "{comparison:?}");
        match (comparison.check(), message) {
            (Ok(()), None) => {}
            (Err(error), Some(message)) => assert!(error.to_string().contains(message), "{error}"),
            (result, _) => panic!("{result:?}"),
        }
    }

    #[test]
    fn an_empty_cache_is_an_error() {
        assert!(Comparison::new(BTreeSet::new()).check().is_err());
    }
}
