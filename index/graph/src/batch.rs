//! Rows of one transaction. Pure.

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

/// The end of an object: its node is deleted, or kept without properties while others refer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    pub key: String,
    pub collection: CollectionKey,
    pub label: Option<Label>,
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

/// Changes that are written together, in order of their keys: transactions that lock nodes in the same order do not deadlock.
#[derive(Debug, Default, PartialEq)]
pub struct Batch {
    pub puts: Vec<NodeRow>,
    pub removals: Vec<Removal>,
    /// The last change of each collection.
    pub collections: BTreeMap<CollectionKey, u64>,
}

impl Batch {
    /// The last of several changes of a node counts.
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
    pub fn nodes(&self) -> BTreeMap<Option<&Label>, Vec<Value>> {
        let mut rows: BTreeMap<Option<&Label>, Vec<Value>> = BTreeMap::new();
        for row in &self.puts {
            let value = json!({"key": row.key, "seq": row.seq, "links": row.links, "properties": row.properties});
            rows.entry(row.label.as_ref()).or_default().push(value);
        }
        rows
    }

    /// Rows of removals, by label.
    pub fn removed(&self) -> BTreeMap<Option<&Label>, Vec<Value>> {
        let mut rows: BTreeMap<Option<&Label>, Vec<Value>> = BTreeMap::new();
        for removal in &self.removals {
            rows.entry(removal.label.as_ref()).or_default().push(json!({"key": removal.key, "seq": removal.seq}));
        }
        rows
    }

    /// Rows of the edges that these nodes state, by type and direction.
    pub fn edges(&self, of: &BTreeSet<String>) -> BTreeMap<(EdgeType, bool), Vec<Value>> {
        let mut rows: BTreeMap<(EdgeType, bool), Vec<Value>> = BTreeMap::new();
        for row in self.puts.iter().filter(|row| of.contains(&row.key)) {
            for edge in &row.edges {
                rows.entry((edge.edge, edge.forward)).or_default().push(edge_row(&row.key, edge));
            }
        }
        rows
    }

    /// Rows of edges to Pods: those that select a Pod among these nodes.
    pub fn selected(&self, of: &BTreeSet<String>) -> Vec<Value> {
        let pods = self.puts.iter().filter(|row| of.contains(&row.key));
        pods.flat_map(|row| row.selected_by.iter().map(|(from, via)| select_row(from, &row.key, via))).collect()
    }

    /// Keys of the Pods.
    pub fn pods(&self) -> BTreeSet<&str> {
        self.puts.iter().filter(|row| row.is_pod).map(|row| row.key.as_str()).collect()
    }
}

fn edge_row(own: &str, edge: &EdgeRow) -> Value {
    json!({"own": own, "other": edge.other.key, "properties": edge.other.properties(), "via": edge.via, "uid": edge.uid})
}

/// Row of an edge from a node that selects a Pod.
pub fn select_row(from: &str, pod: &str, via: &str) -> Value {
    json!({"from": from, "to": pod, "via": [via]})
}
