//! Rows of one transaction. Has no side effects.

use crate::model::{EdgeRow, Label, NodeRow, collection_node_key, is_pod_kind};
use crowsnest_index::export::ObjectChange;
use crowsnest_query::path::EdgeType;
use crowsnest_store::{CollectionKey, RecordKey};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum size of the bodies of the objects of a batch, except for a batch of one object.
pub const MAX_BATCH_BYTES: usize = 4 << 20;

/// Number of the first changes that are written together: at most `max_changes` with at most [`MAX_BATCH_BYTES`], and
/// at least one. `sizes` are the sizes of the bodies.
pub fn batch_length(sizes: impl IntoIterator<Item = usize>, max_changes: usize) -> usize {
    let (mut length, mut bytes) = (0, 0_usize);
    for size in sizes.into_iter().take(max_changes.max(1)) {
        bytes = bytes.saturating_add(size);
        if length > 0 && bytes > MAX_BATCH_BYTES {
            break;
        }
        length += 1;
    }
    length
}

/// Removes the changes of the next batch from the beginning of `changes` and returns them.
pub fn take_batch(changes: &mut Vec<ObjectChange>, max_changes: usize) -> Vec<ObjectChange> {
    let length = batch_length(body_sizes(changes), max_changes);
    let rest = changes.split_off(length);
    std::mem::replace(changes, rest)
}

/// True if later changes cannot extend the next batch.
pub fn is_full_batch(changes: &[ObjectChange], max_changes: usize) -> bool {
    changes.len() >= max_changes || batch_length(body_sizes(changes), max_changes) < changes.len()
}

fn body_sizes(changes: &[ObjectChange]) -> impl Iterator<Item = usize> {
    changes.iter().map(|change| change.object.as_ref().map_or(0, |object| object.body.len()))
}

/// Moves Pods to the end and keeps the order of all other objects. The edges of a Pod are then computed from the selectors
/// that the batch writes, even if these changed after the Pod.
pub fn place_pods_last(changes: &mut [ObjectChange]) {
    changes.sort_by_key(|change| is_pod_kind(&change.key.resource().group, &change.kind));
}

/// A change of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeChange {
    Put(Box<NodeRow>),
    Remove(Removal),
}

/// Removal of a node, because its object was deleted or may no longer be written. The node is kept as a missing node,
/// without most properties, while others refer to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    pub key: String,
    pub collection: CollectionKey,
    pub label: Option<Label>,
    /// Seq of the change.
    pub seq: u64,
}

impl Removal {
    /// Removal of the node of an object, with the label of its kind. The kind may no longer be served.
    pub fn new(key: &RecordKey, kind: &str, seq: u64) -> Self {
        Self {
            key: collection_node_key(&key.collection, kind, &key.namespace, &key.name),
            collection: key.collection.clone(),
            label: Label::from_kind(kind),
            seq,
        }
    }
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
                Some(previous) if previous.seq() > change.seq() => {}
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
        pods.flat_map(|row| row.selected_by.iter().map(|(from, via)| selects_row(from, &row.key, row.seq, via)))
            .collect()
    }

    /// Returns those of `keys` whose nodes have kinds that select Pods.
    pub fn selecting_keys(&self, keys: &BTreeSet<String>) -> BTreeSet<String> {
        let selecting = self.puts.iter().filter(|row| row.is_selecting && keys.contains(&row.key));
        selecting.map(|row| row.key.clone()).collect()
    }

    /// Keys of the Pods.
    pub fn pod_keys(&self) -> BTreeSet<&str> {
        self.puts.iter().filter(|row| row.is_pod).map(|row| row.key.as_str()).collect()
    }
}

fn edge_row(key: &str, edge: &EdgeRow) -> Value {
    json!({"own": key, "other": edge.other.key, "properties": edge.other.properties(), "via": edge.via, "uid": edge.required_uid})
}

/// Row of a SELECTS edge from a node to a Pod. `seq` is the change of the Pod whose labels were matched.
pub fn selects_row(from: &str, pod: &str, seq: u64, via: &str) -> Value {
    json!({"from": from, "to": pod, "seq": seq, "via": [via]})
}
