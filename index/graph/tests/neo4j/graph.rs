//! Contents of a graph, and what they should be: found naively, object by object.

use crate::cache::Cache;
use crate::database::Database;
use crate::running::Rules;
use crowsnest_graph::model::{NodeRow, RowReader, ServedKinds};
use crowsnest_graph::selectors::PodSelectors;
use crowsnest_store::Object;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Nodes and edges as text.
pub type Contents = BTreeSet<String>;

fn rows(cache: &Cache, objects: &[Object]) -> Vec<NodeRow> {
    let kinds = ServedKinds::from_states(cache.states.all().iter().map(|(key, state)| (key, state)));
    let selectors = PodSelectors::default();
    let reader = RowReader { kinds: &kinds, rules: &[], selectors: &selectors };
    objects.iter().map(|object| reader.row(object).unwrap()).collect()
}

pub async fn expected(cache: &Cache, rules: &Rules) -> Contents {
    let mut objects = cache.objects().await;
    objects.retain(|object| rules.allows(object));
    let rows = rows(cache, &objects);
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
                // It means an earlier object of this name.
                Some(uid) if !edge.uid.is_empty() && edge.uid != **uid => continue,
                Some(_) => {}
                None => drop(contents.insert(format!("{other} missing"))),
            }
            let (from, to) = if edge.forward { (&row.key, other) } else { (other, &row.key) };
            contents.insert(format!("{from} -{}-> {to} {:?}", edge.edge.name(), edge.via));
        }
        let Some((selector, via)) = &row.selects else { continue };
        for (pod, of) in rows.iter().zip(&objects).filter(|(pod, _)| pod.is_pod) {
            let here = (of.record.key.cluster(), &of.record.key.namespace);
            if here == (object.record.key.cluster(), &object.record.key.namespace)
                && selector.matches(&of.record.labels)
            {
                contents.insert(format!("{} -SELECTS-> {} {:?}", row.key, pod.key, BTreeSet::from([via])));
            }
        }
    }
    contents
}

#[derive(Deserialize)]
struct NodeOut {
    key: String,
    labels: Vec<String>,
    uid: Option<String>,
    status: Option<String>,
    exists: bool,
}

#[derive(Deserialize)]
struct EdgeOut {
    from: String,
    of: String,
    to: String,
    via: Vec<String>,
}

pub async fn actual(database: &Database) -> Contents {
    let mut contents = Contents::new();
    let text = "MATCH (n:Resource) RETURN n.key AS key, labels(n) AS labels, n.uid AS uid, n.status AS status, n.exists AS exists";
    for NodeOut { key, mut labels, uid, status, exists } in database.rows::<NodeOut>(text).await {
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
        RETURN a.key AS from, type(e) AS of, b.key AS to, e.via AS via";
    for EdgeOut { from, of, to, via } in database.rows::<EdgeOut>(text).await {
        let via: BTreeSet<String> = via.into_iter().collect();
        contents.insert(format!("{from} -{of}-> {to} {via:?}"));
    }
    contents
}
