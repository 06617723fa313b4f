//! Nodes and edges of an object. Has no side effects.

use crate::selectors::PodSelectors;
use crowsnest_apimachinery::names::{Gvr, ObjectKey};
use crowsnest_apimachinery::references::{CustomRule, SELECTING_KINDS, is_namespaced};
use crowsnest_apimachinery::selector::Selector;
use crowsnest_query::path::EdgeType;
use crowsnest_search::paths::{Link, Links, Target};
use crowsnest_store::{CollectionKey, CollectionState, Error, Object, Record};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_64;

/// Version of the rows that this crate writes. Increase it when nodes or edges of the same objects change. It is
/// part of [`crate::SinkConfig::selection`], so that graphs of an earlier version are written again.
pub const MODEL_VERSION: u32 = 5;
/// Label of every object's node.
pub const RESOURCE_LABEL: &str = "Resource";
/// Label of the node with the position of a collection.
pub const SYNC_LABEL: &str = "CrowsnestSync";
/// Label of the node with the state of a sink.
pub const SINK_LABEL: &str = "CrowsnestSink";
/// Label of the node that sinks lock.
pub const LOCK_LABEL: &str = "CrowsnestLock";
/// Maximum length of a kind in characters, as in a CustomResourceDefinition.
const MAX_KIND_LENGTH: usize = 63;

/// A kind as the label of a node: letters and digits, beginning with a letter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label(String);

impl Label {
    /// Label of a kind; None if the kind has other characters, is too long, or is reserved for the sink.
    pub fn from_kind(kind: &str) -> Option<Self> {
        let is_valid = kind.len() <= MAX_KIND_LENGTH
            && kind.starts_with(|first: char| first.is_ascii_alphabetic())
            && kind.chars().all(|c| c.is_ascii_alphanumeric());
        (is_valid && ![RESOURCE_LABEL, SYNC_LABEL, SINK_LABEL, LOCK_LABEL].contains(&kind))
            .then(|| Self(kind.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if objects of a kind with this name select Pods.
    pub(crate) fn is_selecting(&self) -> bool {
        SELECTING_KINDS.iter().any(|(_, kind)| *kind == self.0)
    }
}

/// Kinds that clusters serve, from the states of the collections.
#[derive(Debug, Default)]
pub struct ServedKinds {
    /// By collection.
    kinds: BTreeMap<CollectionKey, String>,
    /// True for namespaced kinds, by group and kind.
    namespaced: BTreeMap<(String, String), bool>,
}

impl ServedKinds {
    pub fn from_states<'s>(states: impl IntoIterator<Item = (&'s CollectionKey, &'s CollectionState)>) -> Self {
        let mut served = Self::default();
        for (key, state) in states.into_iter().filter(|(_, state)| !state.kind.is_empty()) {
            served.kinds.insert(key.clone(), state.kind.to_string());
            served.namespaced.insert((key.resource.group.to_string(), state.kind.to_string()), state.namespaced);
        }
        served
    }

    /// The label of an object's kind. An object cannot choose a label other than that of its resource.
    pub fn label(&self, collection: &CollectionKey, kind: &str) -> Option<Label> {
        self.kinds.get(collection).filter(|served| *served == kind).and_then(|kind| Label::from_kind(kind))
    }

    /// The kind of a collection; None if it is not known.
    pub fn kind(&self, collection: &CollectionKey) -> Option<&str> {
        self.kinds.get(collection).map(String::as_str)
    }

    fn is_namespaced(&self, group: &str, kind: &str) -> Option<bool> {
        let served = self.namespaced.get(&(group.to_owned(), kind.to_owned())).copied();
        served.or_else(|| is_namespaced(group, kind))
    }

    /// Key of the object that a reference denotes: without a namespace if its kind is cluster-scoped. None if a
    /// reference to a namespaced kind has no namespace.
    fn resolve_reference(&self, object: &ObjectKey) -> Option<ObjectKey> {
        match (self.is_namespaced(&object.group, &object.kind), &object.namespace) {
            (Some(false), Some(_)) => Some(ObjectKey { namespace: None, ..object.clone() }),
            (Some(true), None) => None,
            _ => Some(object.clone()),
        }
    }
}

/// Key of an object's node: `cluster/group/kind/namespace/name`. No part contains a slash.
pub fn node_key(cluster: &str, object: &ObjectKey) -> String {
    let namespace = object.namespace.as_deref().unwrap_or_default();
    [cluster, &object.group, &object.kind, namespace, &object.name].join("/")
}

fn object_key(record: &Record) -> ObjectKey {
    let key = &record.key;
    ObjectKey::new(&key.resource().group, &record.kind, &key.namespace, &key.name)
}

/// Key of the node of a record.
pub fn record_node_key(record: &Record) -> String {
    node_key(record.key.cluster().as_str(), &object_key(record))
}

/// Key of the node of an object in a collection.
pub fn collection_node_key(collection: &CollectionKey, kind: &str, namespace: &str, name: &str) -> String {
    node_key(collection.cluster.as_str(), &ObjectKey::new(&collection.resource.group, kind, namespace, name))
}

/// An object as a node, with the edges that it states.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeRow {
    pub key: String,
    pub collection: CollectionKey,
    pub label: Option<Label>,
    /// Seq of the change.
    pub seq: u64,
    /// Properties; a null removes the property.
    pub properties: Value,
    /// Sorted by type, direction and other end.
    pub edges: Vec<EdgeRow>,
    pub is_pod: bool,
    /// Keys of the nodes whose selectors match this Pod, each with the field of the selector. Empty for other kinds.
    pub selected_by: Vec<(String, String)>,
    /// True for kinds that select Pods, even if the object has no selector.
    pub is_selecting: bool,
    /// The object's Pod selector, and the field that states it.
    pub selects: Option<(Selector, String)>,
    /// Digest of the edges, and of the labels of a Pod: all edges are replaced if it changes.
    pub edges_digest: String,
}

/// An edge that an object states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeRow {
    pub edge_type: EdgeType,
    /// True if the edge begins at the object that states it, false if it ends there.
    pub is_forward: bool,
    /// The node at the other end, which may be missing.
    pub other: ReferencedNode,
    /// Fields that state the edge.
    pub via: BTreeSet<String>,
    /// Uid that the object at the other end must have; empty if any.
    pub required_uid: String,
}

/// Identity of a node at the other end of a reference; its object may be missing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReferencedNode {
    pub key: String,
    pub cluster: String,
    pub object: ObjectKey,
}

impl ReferencedNode {
    fn new(cluster: &str, object: ObjectKey) -> Self {
        Self { key: node_key(cluster, &object), cluster: cluster.to_owned(), object }
    }

    /// Properties of the node while its object is missing.
    pub fn properties(&self) -> Value {
        let ObjectKey { group, kind, namespace, name } = &self.object;
        json!({"cluster": self.cluster, "apiGroup": group, "kind": kind, "namespace": namespace.as_deref().unwrap_or_default(),
            "name": name})
    }
}

/// Creates the rows of objects.
#[derive(Debug, Clone, Copy)]
pub struct RowBuilder<'r> {
    pub kinds: &'r ServedKinds,
    /// References that the configuration adds.
    pub rules: &'r [CustomRule],
    pub selectors: &'r PodSelectors,
}

impl RowBuilder<'_> {
    /// Creates the row of an object. Fails if its body cannot be decoded.
    pub fn build(&self, object: &Object) -> Result<NodeRow, Error> {
        let record = &object.record;
        let mut edges: BTreeMap<(EdgeType, bool, ReferencedNode, String), BTreeSet<String>> = BTreeMap::new();
        let mut selects = None;
        for link in Links::from_object(object, self.rules)?.links {
            match link.target {
                Target::Pods(selector) => selects = Some((selector, link.via)),
                // The namespace is a property of the node; edges would make each Namespace a hub of all paths.
                Target::Key(_) if link.edge == EdgeType::Contains => {}
                Target::Key(_) => {
                    let Some(other) = self.resolve_other_end(&link) else { continue };
                    let required_uid = link.named.map(|object| object.uid).unwrap_or_default();
                    edges.entry((link.edge, link.forward, other, required_uid)).or_default().insert(link.via);
                }
            }
        }
        let edge_row = |((edge_type, is_forward, other, required_uid), via)| EdgeRow {
            edge_type,
            is_forward,
            other,
            via,
            required_uid,
        };
        let edges: Vec<EdgeRow> = edges.into_iter().map(edge_row).collect();
        let is_pod = is_pod(record);
        let selected_by = if is_pod { self.selectors.find_selecting_nodes(record) } else { Vec::new() };
        // The labels are part of the digest, because `selected_by` lacks the edges that selecting objects have added
        // since the Pod was last written. A change of the labels may make these edges invalid.
        let labels = is_pod.then_some(&record.labels);
        let edges_digest = xxh3_64(format!("{edges:?} {selected_by:?} {selects:?} {labels:?}").as_bytes());
        Ok(NodeRow {
            key: record_node_key(record),
            collection: record.key.collection.clone(),
            label: self.kinds.label(&record.key.collection, &record.kind),
            seq: record.seq.0,
            properties: properties(record)?,
            edges,
            is_pod,
            selected_by,
            is_selecting: SELECTING_KINDS.contains(&(&*record.key.resource().group, &*record.kind)),
            selects,
            edges_digest: format!("{edges_digest:016x}"),
        })
    }

    fn resolve_other_end(&self, link: &Link) -> Option<ReferencedNode> {
        let named = link.named.as_ref()?;
        Some(ReferencedNode::new(&named.cluster, self.kinds.resolve_reference(&named.object)?))
    }
}

pub(crate) fn is_pod(record: &Record) -> bool {
    is_pod_kind(&record.key.resource().group, &record.kind)
}

pub(crate) fn is_pod_kind(group: &str, kind: &str) -> bool {
    (group, kind) == ("", "Pod")
}

/// The resource of Pods.
pub fn pods_resource() -> Gvr {
    Gvr::new("", "v1", "pods")
}

/// Properties of a node. They contain no values of `data`, `spec` or annotations, except names of images.
fn properties(record: &Record) -> Result<Value, Error> {
    let printed = record.printed_object()?;
    let labels: Vec<String> = record.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let key = &record.key;
    let list_or_null = |list: &[String]| if list.is_empty() { Value::Null } else { json!(list) };
    Ok(json!({
        "cluster": key.cluster().as_str(),
        "apiGroup": key.resource().group,
        "kind": record.kind,
        "namespace": key.namespace,
        "name": key.name,
        "uid": record.uid,
        "status": printed.status,
        "labels": labels,
        "images": list_or_null(&printed.images),
        "ready": printed.ready,
        "desired": printed.desired,
        "restarts": printed.restarts,
        "createdAt": record.created,
    }))
}

/// Properties that are cleared when a node becomes missing. Key, names and uid are kept: the uid distinguishes edges to the
/// earlier object from those to a later one of the same name.
pub const CLEARED_PROPERTIES: &[&str] =
    &["status", "labels", "images", "ready", "desired", "restarts", "createdAt", "links"];

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
