//! In-memory states of all collections.

use std::collections::BTreeMap;

use crowsnest_apimachinery::names::{ClusterName, Gvr};
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::{CollectionKey, CollectionState, Progress};

/// States of all collections: completeness, position and stale reason.
#[derive(Debug, Default)]
pub struct CollectionStates {
    states: RwLock<BTreeMap<CollectionKey, CollectionState>>,
    version: watch::Sender<u64>,
}

impl CollectionStates {
    pub fn get(&self, key: &CollectionKey) -> Option<CollectionState> {
        self.states.read().get(key).cloned()
    }

    pub fn all(&self) -> Vec<(CollectionKey, CollectionState)> {
        self.states.read().iter().map(|(key, state)| (key.clone(), state.clone())).collect()
    }

    /// Visits all states.
    pub fn for_each(&self, mut visit: impl FnMut(&CollectionKey, &CollectionState)) {
        self.states.read().iter().for_each(|(key, state)| visit(key, state));
    }

    /// Visits the states of one cluster.
    pub fn for_each_in_cluster(&self, cluster: &ClusterName, mut visit: impl FnMut(&CollectionState)) {
        let first = CollectionKey::new(cluster.clone(), Gvr::new("", "", ""));
        let states = self.states.read();
        states.range(first..).take_while(|(key, _)| key.cluster == *cluster).for_each(|(_, state)| visit(state));
    }

    /// Counter that is incremented when the completeness, stale reason or kind of a collection changes, or a collection is
    /// removed.
    pub fn version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    pub fn update(&self, key: &CollectionKey, change: impl FnOnce(&mut CollectionState)) {
        let is_status_changed = {
            let mut states = self.states.write();
            let state = states.entry(key.clone()).or_default();
            let status = |state: &CollectionState| {
                (state.complete, state.stale_reason.clone(), state.kind.clone(), state.namespaced)
            };
            let before = status(state);
            change(state);
            before != status(state)
        };
        if is_status_changed {
            self.version.send_modify(|version| *version += 1);
        }
    }

    pub fn remove(&self, key: &CollectionKey) {
        if self.states.write().remove(key).is_some() {
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Updates a state after a batch of its collection was stored.
    pub fn apply_progress(&self, key: &CollectionKey, progress: &Progress, now_ms: i64) {
        self.update(key, |state| {
            if let Some(version) = &progress.resource_version {
                state.resource_version.clone_from(version);
            }
            if let Some((kind, namespaced)) = &progress.kind {
                state.kind = kind.as_str().into();
                state.namespaced = *namespaced;
            }
            state.complete |= progress.complete;
            state.last_contact_ms = now_ms;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn progress(kind: Option<(&str, bool)>, complete: bool) -> Progress {
        let kind = kind.map(|(kind, namespaced)| (kind.to_owned(), namespaced));
        Progress { resource_version: Some("7".to_owned()), complete, kind, ..Progress::default() }
    }

    #[rstest]
    #[case::position_alone(progress(None, false), false)]
    #[case::same_kind(progress(Some(("Pod", true)), false), false)]
    #[case::other_kind(progress(Some(("Node", true)), false), true)]
    #[case::other_scope(progress(Some(("Pod", false)), false), true)]
    #[case::completeness(progress(None, true), true)]
    fn the_version_changes_with_completeness_and_kind(#[case] change: Progress, #[case] expected: bool) {
        let states = CollectionStates::default();
        let key = CollectionKey::new(ClusterName::parse("m1").unwrap(), Gvr::new("", "v1", "pods"));
        states.apply_progress(&key, &progress(Some(("Pod", true)), false), 1_000);
        let version = *states.version().borrow();
        states.apply_progress(&key, &change, 2_000);
        assert_eq!(*states.version().borrow() != version, expected);
    }
}
