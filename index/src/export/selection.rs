//! Objects that are exported to one backend; pure functions.

use super::document::index_name;
use crowsnest_store::record::CollectionKey;
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_128;

/// Selected collections, each with the kind of its objects and its namespaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    collections: BTreeMap<CollectionKey, SelectedCollection>,
    /// Index and cluster of selected kinds whose resource is not known yet.
    unresolved: BTreeSet<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct SelectedCollection {
    kind: String,
    /// None: all namespaces.
    namespaces: Option<BTreeSet<String>>,
}

/// Relation of a document's cluster to an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Membership {
    /// Objects of the cluster are selected, and all of them are in the store.
    Selected,
    /// They are selected, but the store does not have all of them yet.
    Incomplete,
    NotSelected,
}

impl Selection {
    /// Adds a collection, or namespaces of it (None: all).
    pub fn add(&mut self, key: CollectionKey, kind: &str, namespaces: Option<BTreeSet<String>>) {
        let selected = SelectedCollection { kind: kind.to_owned(), namespaces };
        match self.collections.get_mut(&key) {
            None => drop(self.collections.insert(key, selected)),
            Some(existing) => {
                existing.namespaces = match (existing.namespaces.take(), selected.namespaces) {
                    (Some(mut existing), Some(more)) => {
                        existing.extend(more);
                        Some(existing)
                    }
                    _ => None,
                };
            }
        }
    }

    /// Adds a kind of a cluster whose resource is not known yet. Its documents are kept.
    pub fn add_unresolved_kind(&mut self, kind: &str, cluster: &str) {
        self.unresolved.insert((index_name(kind), cluster.to_owned()));
    }

    pub fn is_empty(&self) -> bool {
        self.collections.is_empty() && self.unresolved.is_empty()
    }

    /// True if the index belongs to a selected kind whose resource is not known yet in some cluster.
    pub(super) fn has_unresolved_kind(&self, index: &str) -> bool {
        self.unresolved.iter().any(|(unresolved, _)| unresolved == index)
    }

    pub fn collections(&self) -> impl Iterator<Item = &CollectionKey> {
        self.collections.keys()
    }

    /// Index of an object, if it is selected.
    pub fn index_of(&self, key: &CollectionKey, namespace: &str) -> Option<String> {
        let selected = self.collections.get(key)?;
        let is_selected = selected.namespaces.as_ref().is_none_or(|names| names.contains(namespace));
        is_selected.then(|| index_name(&selected.kind))
    }

    /// Index of a collection's objects.
    pub(super) fn index_of_collection(&self, key: &CollectionKey) -> Option<String> {
        self.collections.get(key).map(|selected| index_name(&selected.kind))
    }

    pub fn indices(&self) -> BTreeSet<String> {
        self.collections.values().map(|selected| index_name(&selected.kind)).collect()
    }

    /// Collections of an index, with their namespaces.
    pub(super) fn collections_in<'s>(
        &'s self,
        index: &'s str,
    ) -> impl Iterator<Item = (&'s CollectionKey, Option<&'s BTreeSet<String>>)> {
        let is_in_index =
            move |(_, selected): &(&CollectionKey, &SelectedCollection)| index_name(&selected.kind) == index;
        self.collections.iter().filter(is_in_index).map(|(key, selected)| (key, selected.namespaces.as_ref()))
    }

    /// State of the documents in an index, by cluster.
    pub(super) fn membership_by_cluster(
        &self,
        index: &str,
        is_complete: impl Fn(&CollectionKey) -> bool,
    ) -> BTreeMap<String, Membership> {
        let unresolved = self.unresolved.iter().filter(|(unresolved, _)| unresolved == index);
        let mut clusters: BTreeMap<String, Membership> =
            unresolved.map(|(_, cluster)| (cluster.clone(), Membership::Incomplete)).collect();
        for (key, _) in self.collections_in(index) {
            let membership = if is_complete(key) { Membership::Selected } else { Membership::Incomplete };
            let existing = clusters.entry(key.cluster.as_str().to_owned()).or_insert(membership);
            if membership == Membership::Incomplete {
                *existing = membership;
            }
        }
        clusters
    }

    /// Digest of the selection; equal selections have equal digests.
    pub(super) fn digest(&self) -> String {
        format!("{:032x}", xxh3_128(format!("{:?} {:?}", self.collections, self.unresolved).as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::Gvr;
    use crowsnest_store::fixtures::cluster;
    use rstest::rstest;

    fn key(name: &str, resource: &str) -> CollectionKey {
        CollectionKey::new(cluster(name), Gvr::new("", "v1", resource))
    }

    fn names(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    fn selection() -> Selection {
        let mut selection = Selection::default();
        selection.add(key("m1", "pods"), "Pod", Some(names(&["a"])));
        selection.add(key("m1", "pods"), "Pod", Some(names(&["b"])));
        selection.add(key("m2", "pods"), "Pod", None);
        selection.add(key("m2", "events"), "Event", None);
        let events = CollectionKey::new(cluster("m2"), Gvr::new("events.k8s.io", "v1", "events"));
        selection.add(events, "Event", None);
        selection
    }

    #[rstest]
    #[case("m1", "pods", "a", Some("kubernetes-pod"))]
    #[case("m1", "pods", "b", Some("kubernetes-pod"))]
    #[case("m1", "pods", "c", None)]
    #[case("m2", "pods", "c", Some("kubernetes-pod"))]
    #[case("m1", "events", "c", None)]
    fn objects_are_selected(
        #[case] cluster: &str,
        #[case] resource: &str,
        #[case] namespace: &str,
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(selection().index_of(&key(cluster, resource), namespace).as_deref(), expected);
    }

    #[test]
    fn all_namespaces_include_selected_ones() {
        let mut selection = selection();
        selection.add(key("m1", "pods"), "Pod", None);
        assert_eq!(selection.index_of(&key("m1", "pods"), "c").as_deref(), Some("kubernetes-pod"));
    }

    #[test]
    fn a_cluster_is_incomplete_while_one_of_its_groups_is() {
        let clusters = selection().membership_by_cluster("kubernetes-event", |key| key.resource.group.is_empty());
        assert_eq!(clusters, BTreeMap::from([("m2".to_owned(), Membership::Incomplete)]));
        let clusters = selection().membership_by_cluster("kubernetes-pod", |_| true);
        assert_eq!(clusters.into_values().collect::<Vec<_>>(), [Membership::Selected, Membership::Selected]);
    }

    #[test]
    fn documents_of_unknown_kinds_are_kept() {
        let mut selection = selection();
        selection.add_unresolved_kind("Widget", "m1");
        selection.add_unresolved_kind("Pod", "m2");
        assert!(
            selection.has_unresolved_kind("kubernetes-widget") && !selection.indices().contains("kubernetes-widget")
        );
        let clusters = selection.membership_by_cluster("kubernetes-widget", |_| true);
        assert_eq!(clusters, BTreeMap::from([("m1".to_owned(), Membership::Incomplete)]));
        let clusters = selection.membership_by_cluster("kubernetes-pod", |_| true);
        assert_eq!(clusters.into_values().collect::<Vec<_>>(), [Membership::Selected, Membership::Incomplete]);
    }

    #[test]
    fn different_selections_have_different_digests() {
        let mut changed = selection();
        assert_eq!(selection().digest(), changed.digest());
        changed.add(key("m3", "pods"), "Pod", None);
        assert_ne!(selection().digest(), changed.digest());
    }
}
