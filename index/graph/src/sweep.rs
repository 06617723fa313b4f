//! Decides which collections may be swept: nodes of an earlier generation are deleted only if everything that the cache
//! knows of their collection has been written since. Pure.

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_store::{CollectionKey, CollectionState};
use std::collections::{BTreeMap, BTreeSet};

/// Collections whose earlier generations are not swept yet.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sweeps {
    done: BTreeSet<CollectionKey>,
    /// With the change up to which the graph must be written first.
    due: BTreeMap<CollectionKey, u64>,
}

impl Sweeps {
    /// `done`: collections that have been swept in this generation.
    pub fn new(done: BTreeSet<CollectionKey>) -> Self {
        Self { done, due: BTreeMap::new() }
    }

    /// Notes complete collections. `latest`: the newest change of the store, read after the states: everything that they
    /// contain precedes it. Clusters in which permissions are unknown are not swept.
    pub fn observe<'s>(
        &mut self,
        states: impl IntoIterator<Item = (&'s CollectionKey, &'s CollectionState)>,
        undecided: &BTreeSet<ClusterName>,
        latest: u64,
    ) {
        for (key, state) in states {
            if state.complete && !undecided.contains(&key.cluster) && !self.done.contains(key) {
                self.due.entry(key.clone()).or_insert(latest);
            }
        }
    }

    /// Collections that may be swept once the graph has all changes up to a position.
    pub fn ready(&self, position: u64) -> Vec<CollectionKey> {
        self.due.iter().filter(|(_, needed)| **needed <= position).map(|(key, _)| key.clone()).collect()
    }

    pub fn finish(&mut self, key: &CollectionKey) {
        self.due.remove(key);
        self.done.insert(key.clone());
    }

    /// Permissions in a cluster became unknown: nothing of it is swept.
    pub fn withhold(&mut self, cluster: &ClusterName) {
        self.due.retain(|key, _| key.cluster != *cluster);
    }
}

/// Collections in the graph whose cluster has left. A resource that is missing in a cluster that exists is not proof of its
/// end: collectors start one after another.
pub fn vanished(written: &BTreeSet<CollectionKey>, clusters: &BTreeSet<ClusterName>) -> BTreeSet<CollectionKey> {
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

    fn key(of: &str, resource: &str) -> CollectionKey {
        CollectionKey::new(cluster(of), Gvr::new("", "v1", resource))
    }

    fn state(complete: bool) -> CollectionState {
        CollectionState { complete, ..CollectionState::default() }
    }

    fn observed(complete: bool, undecided: &[&str], done: &[CollectionKey]) -> Sweeps {
        let mut sweeps = Sweeps::new(done.iter().cloned().collect());
        let states = [(key("m1", "pods"), state(complete))];
        let undecided = undecided.iter().map(|name| cluster(name)).collect();
        sweeps.observe(states.iter().map(|(key, state)| (key, state)), &undecided, 7);
        sweeps
    }

    #[rstest]
    #[case::complete(observed(true, &[], &[]), 7, 1)]
    #[case::partial_list(observed(false, &[], &[]), 7, 0)]
    #[case::not_written_yet(observed(true, &[], &[]), 6, 0)]
    #[case::permissions_unknown(observed(true, &["m1"], &[]), 7, 0)]
    #[case::swept_before(observed(true, &[], &[key("m1", "pods")]), 7, 0)]
    fn complete_collections_are_swept(#[case] sweeps: Sweeps, #[case] position: u64, #[case] expected: usize) {
        assert_eq!(sweeps.ready(position).len(), expected);
    }

    #[test]
    fn a_collection_is_swept_once() {
        let mut sweeps = observed(true, &[], &[]);
        sweeps.finish(&key("m1", "pods"));
        let states = [(key("m1", "pods"), state(true))];
        sweeps.observe(states.iter().map(|(key, state)| (key, state)), &BTreeSet::new(), 9);
        assert_eq!(sweeps.ready(9), []);
    }

    #[test]
    fn a_sweep_waits_for_the_changes_at_its_observation() {
        let mut sweeps = observed(true, &[], &[]);
        let states = [(key("m1", "pods"), state(true))];
        sweeps.observe(states.iter().map(|(key, state)| (key, state)), &BTreeSet::new(), 90);
        assert_eq!(sweeps.ready(7), [key("m1", "pods")]);
        sweeps.withhold(&cluster("m1"));
        assert_eq!(sweeps.ready(90), []);
    }

    #[test]
    fn collections_of_clusters_that_left_vanish() {
        let written = [key("m1", "pods"), key("m2", "pods"), key("m2", "services")].into();
        let clusters = ["m1", "m3"].map(cluster).into();
        assert_eq!(vanished(&written, &clusters), [key("m2", "pods"), key("m2", "services")].into());
    }
}
