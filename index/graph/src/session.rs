//! State of a session, and the state that is carried from one session to the next.

use crate::batch::{NodeChange, Removal};
use crate::bolt::Bolt;
use crate::config::SinkOptions;
use crate::model::ServedKinds;
use crate::selectors::PodSelectors;
use crate::sweep::Sweeps;
use crate::visibility::RuleDigests;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_store::{CollectionKey, RecordKey};
use std::collections::BTreeSet;
use tokio::time::Instant;

/// State that is carried from one session of a process to the next.
pub(crate) struct CarriedState {
    /// Failures since the sink last reached [`crate::SinkState::Following`].
    pub failures: u32,
    /// Everything must be written again, and no generation has been started for it yet.
    pub needs_reload: bool,
    /// A session of this process has compared the rules with those of the graph, or has started a generation. Later
    /// changes of rules are detected by [`crate::Visibility::has_changed`].
    pub follows_rules: bool,
    /// Clusters in which permissions were unknown in the last session.
    pub undecided_clusters: BTreeSet<ClusterName>,
    /// Time at which the last load began, or the first session of this process.
    pub loaded_at: Option<Instant>,
    /// Maximum number of objects of a transaction, up to [`SinkOptions::batch_size`].
    pub batch_size: usize,
}

impl CarriedState {
    pub fn new(options: &SinkOptions) -> Self {
        Self {
            failures: 0,
            needs_reload: false,
            follows_rules: false,
            undecided_clusters: BTreeSet::new(),
            loaded_at: None,
            batch_size: options.batch_size.max(1),
        }
    }

    /// Halves the size of batches.
    pub fn shrink_batches(&mut self) {
        self.batch_size = (self.batch_size / 2).max(1);
    }

    /// Doubles the size of batches, up to the configured one.
    pub fn grow_batches(&mut self, options: &SinkOptions) {
        self.batch_size = self.batch_size.saturating_mul(2).min(options.batch_size.max(1));
    }
}

/// One connection to a graph, in one generation.
pub(crate) struct Session {
    pub bolt: Bolt,
    /// Random name of this session in the graph.
    pub token: String,
    pub generation: u64,
    /// Seq up to which all changes are in the graph.
    pub position: u64,
    /// Maximum number of objects of a transaction.
    pub batch_size: usize,
    pub kinds: ServedKinds,
    pub selectors: PodSelectors,
    pub sweeps: Sweeps,
    /// Collections with positions in the graph.
    pub known_collections: BTreeSet<CollectionKey>,
    /// Clusters in which permissions were unknown in this generation.
    pub undecided_clusters: BTreeSet<ClusterName>,
    /// Digests of the rules under which this generation was written; None if they changed in the meantime.
    pub rules: Option<RuleDigests>,
    pub loaded_at: Instant,
    /// Time at which everything is written again because permissions have changed.
    pub reload_at: Option<Instant>,
    /// Time at which unknown permissions are determined again.
    pub next_decision_at: Instant,
}

impl Session {
    /// Removes the selector of an object that was deleted or may no longer be written, and returns the removal of its
    /// node.
    pub fn remove_node(&mut self, key: &RecordKey, kind: &str, seq: u64) -> NodeChange {
        let removal = Removal::new(key, kind, seq);
        let namespace = (key.cluster().to_string(), key.namespace.to_string());
        self.selectors.set_by_key(namespace, removal.key.clone(), None);
        NodeChange::Remove(removal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_shrink_to_one_object_and_grow_to_the_configured_size() {
        let options = SinkOptions { batch_size: 5, ..SinkOptions::default() };
        let mut carried = CarriedState::new(&options);
        let mut sizes = vec![carried.batch_size];
        for _ in 0..3 {
            carried.shrink_batches();
            sizes.push(carried.batch_size);
        }
        for _ in 0..4 {
            carried.grow_batches(&options);
            sizes.push(carried.batch_size);
        }
        assert_eq!(sizes, [5, 2, 1, 1, 2, 4, 5, 5]);
    }
}
