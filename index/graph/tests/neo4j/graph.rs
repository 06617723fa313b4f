//! Contents of a graph, and the expected contents: computed object by object, without the sink.

use crate::cache::Cache;
use crate::database::Database;
use crate::running_sink::Access;
use crowsnest_graph::model::{NodeRow, RowBuilder, ServedKinds};
use crowsnest_graph::selectors::PodSelectors;
use crowsnest_store::Object;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Nodes and edges as text.
pub type Contents = BTreeSet<String>;

fn build_rows(cache: &Cache, objects: &[Object]) -> Vec<NodeRow> {
    let kinds = ServedKinds::from_states(cache.states.all().iter().map(|(key, state)| (key, state)));
    let selectors = PodSelectors::default();
    let builder = RowBuilder { kinds: &kinds, rules: &[], selectors: &selectors };
    objects.iter().map(|object| builder.build(object).unwrap()).collect()
}

/// The contents that a graph must have for these objects and this access.
pub async fn expected_contents(cache: &Cache, access: &Access) -> Contents {
    let mut objects = cache.objects().await;
    objects.retain(|object| access.allows(object));
    let rows = build_rows(cache, &objects);
    let uids: BTreeMap<&str, &str> =
        rows.iter().map(|row| (row.key.as_str(), row.properties["uid"].as_str().unwrap())).collect();
    let mut contents = Contents::new();
    for (row, object) in rows.iter().zip(&objects) {
        let mut labels: Vec<&str> = row.label.iter().map(|label| label.as_str()).chain(["Resource"]).collect();
        labels.sort_unstable();
        let text = |field: &str| row.properties[field].as_str().unwrap_or_default();
        contents.insert(format!("{} {labels:?} {} {}", row.key, text("uid"), text("status")));
        for edge in &row.edges {
            let other = &edge.other.key;
            match uids.get(other.as_str()) {
                // The reference denotes an earlier object of this name.
                Some(uid) if !edge.required_uid.is_empty() && edge.required_uid != **uid => continue,
                Some(_) => {}
                None => drop(contents.insert(format!("{other} missing"))),
            }
            let (from, to) = if edge.is_forward { (&row.key, other) } else { (other, &row.key) };
            contents.insert(format!("{from} -{}-> {to} {:?}", edge.edge_type.name(), edge.via));
        }
        let Some((selector, via)) = &row.selects else { continue };
        for (pod, pod_object) in rows.iter().zip(&objects).filter(|(pod, _)| pod.is_pod) {
            let pod_namespace = (pod_object.record.key.cluster(), &pod_object.record.key.namespace);
            if pod_namespace == (object.record.key.cluster(), &object.record.key.namespace)
                && selector.matches(&pod_object.record.labels)
            {
                contents.insert(format!("{} -SELECTS-> {} {:?}", row.key, pod.key, BTreeSet::from([via])));
            }
        }
    }
    contents
}

#[derive(Deserialize)]
struct GraphNode {
    key: String,
    labels: Vec<String>,
    uid: Option<String>,
    status: Option<String>,
    exists: bool,
}

#[derive(Deserialize)]
struct GraphEdge {
    from: String,
    edge_type: String,
    to: String,
    via: Vec<String>,
}

/// Reads the contents of the graph.
pub async fn read_contents(database: &Database) -> Contents {
    let mut contents = Contents::new();
    let text = "MATCH (n:Resource) RETURN n.key AS key, labels(n) AS labels, n.uid AS uid, n.status AS status, n.exists AS exists";
    for GraphNode { key, mut labels, uid, status, exists } in database.query::<GraphNode>(text).await {
        labels.sort_unstable();
        let text = match exists {
            true => format!("{key} {labels:?} {} {}", uid.unwrap_or_default(), status.unwrap_or_default()),
            false => format!("{key} missing"),
        };
        assert!(exists || labels == ["Resource"], "{key} {labels:?}");
        contents.insert(text);
    }
    let text = "MATCH (a:Resource)-[e]->(b:Resource) WITH a, e, b, CASE WHEN e.by = a.key THEN b ELSE a END AS other \
        WHERE coalesce(e.uid, '') = '' OR other.exists = false OR other.uid = e.uid \
        RETURN a.key AS from, type(e) AS edge_type, b.key AS to, e.via AS via";
    for GraphEdge { from, edge_type, to, via } in database.query::<GraphEdge>(text).await {
        let via: BTreeSet<String> = via.into_iter().collect();
        contents.insert(format!("{from} -{edge_type}-> {to} {via:?}"));
    }
    contents
}
