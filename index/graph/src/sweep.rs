//! Decides which collections may be swept: nodes of an earlier generation are deleted only after all objects that the
//! cache has of their collection were written in this one. Has no side effects.

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_store::{CollectionKey, CollectionState};
use std::collections::{BTreeMap, BTreeSet};

/// Collections whose earlier generations are not swept yet.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sweeps {
    swept: BTreeSet<CollectionKey>,
    /// Collections to sweep, with the seq up to which the graph must be written first.
    pending: BTreeMap<CollectionKey, u64>,
}

impl Sweeps {
    /// `swept`: collections that have been swept in this generation.
    pub fn new(swept: BTreeSet<CollectionKey>) -> Self {
        Self { swept, pending: BTreeMap::new() }
    }

    /// Schedules a sweep of each complete collection. `latest` is the seq of the newest change of the store, read after
    /// the states, so that all objects of these collections precede it. Clusters in which permissions are unknown are
    /// not swept.
    pub fn schedule<'s>(
        &mut self,
        states: impl IntoIterator<Item = (&'s CollectionKey, &'s CollectionState)>,
        undecided_clusters: &BTreeSet<ClusterName>,
        latest: u64,
    ) {
        for (key, state) in states {
            if state.complete && !undecided_clusters.contains(&key.cluster) && !self.swept.contains(key) {
                self.pending.entry(key.clone()).or_insert(latest);
            }
        }
    }

    /// Collections that may be swept once the graph has all changes up to a position.
    pub fn due_collections(&self, position: u64) -> Vec<CollectionKey> {
        self.pending.iter().filter(|(_, required)| **required <= position).map(|(key, _)| key.clone()).collect()
    }

    /// Records that a collection was swept.
    pub fn mark_swept(&mut self, key: &CollectionKey) {
        self.pending.remove(key);
        self.swept.insert(key.clone());
    }

    /// Cancels the sweeps of a cluster in which permissions became unknown.
    pub fn cancel(&mut self, cluster: &ClusterName) {
        self.pending.retain(|key, _| key.cluster != *cluster);
    }
}

/// Collections in the graph whose cluster was removed from the fleet. A collection that is missing in an existing
/// cluster may still be listed later, because collectors start one after another.
pub fn collections_of_removed_clusters(
    written: &BTreeSet<CollectionKey>,
    clusters: &BTreeSet<ClusterName>,
) -> BTreeSet<CollectionKey> {
    written.iter().filter(|key| !clusters.contains(&key.cluster)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::Gvr;
    use rstest::rstest;

    fn cluster(name: &str) -> ClusterName {
        ClusterName::parse(name).unwrap()
    }

    fn key(cluster_name: &str, resource: &str) -> CollectionKey {
        CollectionKey::new(cluster(cluster_name), Gvr::new("", "v1", resource))
    }

    fn state(complete: bool) -> CollectionState {
        CollectionState { complete, ..CollectionState::default() }
    }

    fn new_sweeps(complete: bool, undecided_clusters: &[&str], swept: &[CollectionKey]) -> Sweeps {
        let mut sweeps = Sweeps::new(swept.iter().cloned().collect());
        let states = [(key("m1", "pods"), state(complete))];
        let undecided_clusters = undecided_clusters.iter().map(|name| cluster(name)).collect();
        sweeps.schedule(states.iter().map(|(key, state)| (key, state)), &undecided_clusters, 7);
        sweeps
    }

    #[rstest]
    #[case::complete(new_sweeps(true, &[], &[]), 7, 1)]
    #[case::partial_list(new_sweeps(false, &[], &[]), 7, 0)]
    #[case::not_written_yet(new_sweeps(true, &[], &[]), 6, 0)]
    #[case::permissions_unknown(new_sweeps(true, &["m1"], &[]), 7, 0)]
    #[case::swept_before(new_sweeps(true, &[], &[key("m1", "pods")]), 7, 0)]
    fn a_collection_is_swept_once_it_is_complete_and_written(
        #[case] sweeps: Sweeps,
        #[case] position: u64,
        #[case] expected: usize,
    ) {
        assert_eq!(sweeps.due_collections(position).len(), expected);
    }

    #[test]
    fn a_collection_is_swept_once() {
        let mut sweeps = new_sweeps(true, &[], &[]);
        sweeps.mark_swept(&key("m1", "pods"));
        let states = [(key("m1", "pods"), state(true))];
        sweeps.schedule(states.iter().map(|(key, state)| (key, state)), &BTreeSet::new(), 9);
        assert_eq!(sweeps.due_collections(9), []);
    }

    #[test]
    fn a_sweep_waits_for_the_changes_before_its_first_schedule() {
        let mut sweeps = new_sweeps(true, &[], &[]);
        let states = [(key("m1", "pods"), state(true))];
        sweeps.schedule(states.iter().map(|(key, state)| (key, state)), &BTreeSet::new(), 90);
        assert_eq!(sweeps.due_collections(7), [key("m1", "pods")]);
        sweeps.cancel(&cluster("m1"));
        assert_eq!(sweeps.due_collections(90), []);
    }

    #[test]
    fn collections_of_removed_clusters_are_found() {
        let written = [key("m1", "pods"), key("m2", "pods"), key("m2", "services")].into();
        let clusters = ["m1", "m3"].map(cluster).into();
        assert_eq!(
            collections_of_removed_clusters(&written, &clusters),
            [key("m2", "pods"), key("m2", "services")].into()
        );
    }
}
