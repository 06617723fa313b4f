//! Nodes and edges of an object. Pure.

use crate::selectors::PodSelectors;
use crowsnest_apimachinery::names::{Gvr, ObjectKey};
use crowsnest_apimachinery::references::{CustomRule, is_namespaced};
use crowsnest_apimachinery::selector::Selector;
use crowsnest_query::path::EdgeType;
use crowsnest_search::paths::{Link, Links, Target};
use crowsnest_store::{CollectionKey, CollectionState, Error, Object, Record};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_64;

/// Label of every object.
pub const RESOURCE: &str = "Resource";
/// Label of the position of a collection.
pub const SYNC: &str = "CrowsnestSync";
/// Label of the state of a sink.
pub const SINK: &str = "CrowsnestSink";
/// Maximum length of a kind, as in a CustomResourceDefinition.
const MAX_KIND_LENGTH: usize = 63;

/// A kind as the label of a node: letters and digits, beginning with a letter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label(String);

impl Label {
    /// None if the kind is no label, or one with a meaning of its own.
    pub fn from_kind(kind: &str) -> Option<Self> {
        let is_name = kind.len() <= MAX_KIND_LENGTH
            && kind.starts_with(|first: char| first.is_ascii_alphabetic())
            && kind.chars().all(|c| c.is_ascii_alphanumeric());
        (is_name && ![RESOURCE, SYNC, SINK].contains(&kind)).then(|| Self(kind.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Kinds that clusters serve, as the states of the collections name them.
#[derive(Debug, Default)]
pub struct ServedKinds {
    /// By collection.
    kinds: BTreeMap<CollectionKey, String>,
    /// Whether kinds are namespaced, by group and kind.
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

    /// The label of an object's kind. An object cannot choose another label than that of its resource.
    pub fn label(&self, collection: &CollectionKey, kind: &str) -> Option<Label> {
        self.kinds.get(collection).filter(|served| *served == kind).and_then(|kind| Label::from_kind(kind))
    }

    /// The kind of a collection; None if it is not known.
    pub fn kind(&self, collection: &CollectionKey) -> Option<&str> {
        self.kinds.get(collection).map(String::as_str)
    }

    fn is_namespaced(&self, group: &str, kind: &str) -> Option<bool> {
        let known = self.namespaced.get(&(group.to_owned(), kind.to_owned())).copied();
        known.or_else(|| is_namespaced(group, kind))
    }

    /// The object that a reference means: without a namespace if its kind is cluster-scoped. None for a reference without a
    /// namespace to a namespaced kind.
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
pub fn record_key(record: &Record) -> String {
    node_key(record.key.cluster().as_str(), &object_key(record))
}

/// Key of the node of an object of a collection.
pub fn key_in(collection: &CollectionKey, kind: &str, namespace: &str, name: &str) -> String {
    node_key(collection.cluster.as_str(), &ObjectKey::new(&collection.resource.group, kind, namespace, name))
}

/// An object as a node, with the edges that it states.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeRow {
    pub key: String,
    pub collection: CollectionKey,
    pub label: Option<Label>,
    pub seq: u64,
    /// Properties; null removes one.
    pub properties: Value,
    /// Sorted by type, direction and other end.
    pub edges: Vec<EdgeRow>,
    pub is_pod: bool,
    /// Nodes that select this one, with the field that does. Only of Pods.
    pub selected_by: Vec<(String, String)>,
    /// The Pods that it selects, and the field that does.
    pub selects: Option<(Selector, String)>,
    /// Digest of the edges: they are replaced as a whole if it changes.
    pub links: String,
}

/// An edge that an object states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeRow {
    pub edge: EdgeType,
    /// True: it begins at the object that states it. False: it ends there.
    pub forward: bool,
    /// The node at the other end, which may be missing.
    pub other: NamedNode,
    /// Fields that state it.
    pub via: BTreeSet<String>,
    /// The only uid of the other end that is meant; empty for any.
    pub uid: String,
}

/// A node as references name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedNode {
    pub key: String,
    pub cluster: String,
    pub object: ObjectKey,
}

impl NamedNode {
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

/// Creates rows.
#[derive(Debug, Clone, Copy)]
pub struct RowReader<'r> {
    pub kinds: &'r ServedKinds,
    /// References that users add.
    pub rules: &'r [CustomRule],
    pub selectors: &'r PodSelectors,
}

impl RowReader<'_> {
    pub fn row(&self, object: &Object) -> Result<NodeRow, Error> {
        let record = &object.record;
        let mut edges: BTreeMap<(EdgeType, bool, NamedNode, String), BTreeSet<String>> = BTreeMap::new();
        let mut selects = None;
        for link in Links::from_object(object, self.rules)?.links {
            match link.target {
                Target::Pods(selector) => selects = Some((selector, link.via)),
                // A namespace is a property of its objects; edges would make it a hub of every path.
                Target::Key(_) if link.edge == EdgeType::Contains => {}
                Target::Key(_) => {
                    let Some(other) = self.other(&link) else { continue };
                    let uid = link.named.map(|named| named.uid).unwrap_or_default();
                    edges.entry((link.edge, link.forward, other, uid)).or_default().insert(link.via);
                }
            }
        }
        let edge = |((edge, forward, other, uid), via)| EdgeRow { edge, forward, other, via, uid };
        let edges: Vec<EdgeRow> = edges.into_iter().map(edge).collect();
        let is_pod = is_pod(record);
        let selected_by = if is_pod { self.selectors.selecting(record) } else { Vec::new() };
        let links = xxh3_64(format!("{edges:?} {selected_by:?} {selects:?}").as_bytes());
        Ok(NodeRow {
            key: record_key(record),
            collection: record.key.collection.clone(),
            label: self.kinds.label(&record.key.collection, &record.kind),
            seq: record.seq.0,
            properties: properties(record)?,
            edges,
            is_pod,
            selected_by,
            selects,
            links: format!("{links:016x}"),
        })
    }

    fn other(&self, link: &Link) -> Option<NamedNode> {
        let named = link.named.as_ref()?;
        Some(NamedNode::new(&named.cluster, self.kinds.resolve_reference(&named.object)?))
    }
}

pub(crate) fn is_pod(record: &Record) -> bool {
    (&*record.key.resource().group, &*record.kind) == ("", "Pod")
}

/// The resource of Pods.
pub fn pods() -> Gvr {
    Gvr::new("", "v1", "pods")
}

/// Properties of a node. None is the value of a field of `data`, `spec` or an annotation, except names of images.
fn properties(record: &Record) -> Result<Value, Error> {
    let printed = record.printed()?;
    let labels: Vec<String> = record.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let key = &record.key;
    let listed = |list: &[String]| if list.is_empty() { Value::Null } else { json!(list) };
    Ok(json!({
        "cluster": key.cluster().as_str(),
        "apiGroup": key.resource().group,
        "kind": record.kind,
        "namespace": key.namespace,
        "name": key.name,
        "uid": record.uid,
        "status": printed.status,
        "labels": labels,
        "images": listed(&printed.images),
        "ready": printed.ready,
        "desired": printed.desired,
        "restarts": printed.restarts,
        "createdAt": record.created,
    }))
}

/// Properties that a node loses with its object. Key, names and uid stay: the uid tells its earlier edges apart.
pub const LOST_PROPERTIES: &[&str] =
    &["status", "labels", "images", "ready", "desired", "restarts", "createdAt", "links"];

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
