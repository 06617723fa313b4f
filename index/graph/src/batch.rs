//! Rows of one transaction. Pure: no I/O.

use crate::model::{EdgeRow, Label, NodeRow};
use crowsnest_query::path::EdgeType;
use crowsnest_store::CollectionKey;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// A change of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeChange {
    Put(Box<NodeRow>),
    Remove(Removal),
}

/// Removal of a node, because its object was deleted or may no longer be written. The node stays as a missing node,
/// without most properties, while others refer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    pub key: String,
    pub collection: CollectionKey,
    pub label: Option<Label>,
    /// Seq of the change.
    pub seq: u64,
}

impl NodeChange {
    pub fn key(&self) -> &str {
        match self {
            Self::Put(row) => &row.key,
            Self::Remove(removal) => &removal.key,
        }
    }

    fn seq(&self) -> u64 {
        match self {
            Self::Put(row) => row.seq,
            Self::Remove(removal) => removal.seq,
        }
    }

    fn collection(&self) -> &CollectionKey {
        match self {
            Self::Put(row) => &row.collection,
            Self::Remove(removal) => &removal.collection,
        }
    }
}

/// Changes that are written together, in order of their keys: transactions that lock nodes in the same order do not
/// deadlock.
#[derive(Debug, Default, PartialEq)]
pub struct Batch {
    pub puts: Vec<NodeRow>,
    pub removals: Vec<Removal>,
    /// Seq of the last change of each collection.
    pub collections: BTreeMap<CollectionKey, u64>,
}

impl Batch {
    /// Creates a batch with the last of several changes of each node.
    pub fn from_changes(changes: impl IntoIterator<Item = NodeChange>) -> Self {
        let mut batch = Self::default();
        let mut last: BTreeMap<String, NodeChange> = BTreeMap::new();
        for change in changes {
            let seq = batch.collections.entry(change.collection().clone()).or_default();
            *seq = change.seq().max(*seq);
            match last.get(change.key()) {
                Some(known) if known.seq() > change.seq() => {}
                _ => drop(last.insert(change.key().to_owned(), change)),
            }
        }
        for change in last.into_values() {
            match change {
                NodeChange::Put(row) => batch.puts.push(*row),
                NodeChange::Remove(removal) => batch.removals.push(removal),
            }
        }
        batch
    }

    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.removals.is_empty()
    }

    /// Rows of nodes, by label.
    pub fn node_rows(&self) -> BTreeMap<Option<&Label>, Vec<Value>> {
        let mut rows: BTreeMap<Option<&Label>, Vec<Value>> = BTreeMap::new();
        for row in &self.puts {
            let value =
                json!({"key": row.key, "seq": row.seq, "links": row.edges_digest, "properties": row.properties});
            rows.entry(row.label.as_ref()).or_default().push(value);
        }
        rows
    }

    /// Rows of removals, by label.
    pub fn removal_rows(&self) -> BTreeMap<Option<&Label>, Vec<Value>> {
        let mut rows: BTreeMap<Option<&Label>, Vec<Value>> = BTreeMap::new();
        for removal in &self.removals {
            rows.entry(removal.label.as_ref()).or_default().push(json!({"key": removal.key, "seq": removal.seq}));
        }
        rows
    }

    /// Rows of the edges that the nodes with these keys state, by type and direction (true: forward, see
    /// [`EdgeRow::is_forward`]).
    pub fn edge_rows(&self, keys: &BTreeSet<String>) -> BTreeMap<(EdgeType, bool), Vec<Value>> {
        let mut rows: BTreeMap<(EdgeType, bool), Vec<Value>> = BTreeMap::new();
        for row in self.puts.iter().filter(|row| keys.contains(&row.key)) {
            for edge in &row.edges {
                rows.entry((edge.edge_type, edge.is_forward)).or_default().push(edge_row(&row.key, edge));
            }
        }
        rows
    }

    /// Rows of the SELECTS edges to Pods among the nodes with these keys.
    pub fn selects_rows(&self, keys: &BTreeSet<String>) -> Vec<Value> {
        let pods = self.puts.iter().filter(|row| keys.contains(&row.key));
        pods.flat_map(|row| row.selected_by.iter().map(|(from, via)| selects_row(from, &row.key, via))).collect()
    }

    /// Keys of the Pods.
    pub fn pod_keys(&self) -> BTreeSet<&str> {
        self.puts.iter().filter(|row| row.is_pod).map(|row| row.key.as_str()).collect()
    }
}

fn edge_row(own: &str, edge: &EdgeRow) -> Value {
    json!({"own": own, "other": edge.other.key, "properties": edge.other.properties(), "via": edge.via, "uid": edge.required_uid})
}

/// Row of a SELECTS edge from a node to a Pod.
pub fn selects_row(from: &str, pod: &str, via: &str) -> Value {
    json!({"from": from, "to": pod, "via": [via]})
}
