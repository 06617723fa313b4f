//! State of a session, and the state of the process that outlives sessions.

use crate::batch::{NodeChange, Removal};
use crate::batch_size::BatchSize;
use crate::bolt::Bolt;
use crate::config::{SinkOptions, SinkSource};
use crate::continuation::LoadStart;
use crate::dialect::Dialect;
use crate::error::SinkError;
use crate::model::ServedKinds;
use crate::selectors::PodSelectors;
use crate::sweep::Sweeps;
use crate::visibility::RuleDigests;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_store::{CollectionKey, RecordKey};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// State of a sink that the process keeps from one session to the next.
pub(crate) struct ProcessState {
    /// Failures since the sink last reached [`crate::SinkState::Following`].
    pub failures: u32,
    /// Everything must be written again, and no generation has been started for it yet.
    pub needs_reload: bool,
    /// A session of this process has compared the RBAC rules with those of the graph, or has started a generation.
    /// Later changes of rules are detected by [`crate::Visibility::has_changed`].
    pub has_compared_rules: bool,
    /// Clusters in which permissions were unknown in the last session.
    pub undecided_clusters: BTreeSet<ClusterName>,
    /// Time at which the last load began, possibly in an earlier process; None before the first session.
    pub loaded_at: Option<Instant>,
    /// The load that this process began last, unless it is complete.
    pub load: Option<LoadStart>,
    /// Current maximum size of a transaction, at most [`SinkOptions::batch_size`].
    pub batch_size: BatchSize,
}

impl ProcessState {
    pub fn new(options: &SinkOptions) -> Self {
        Self {
            failures: 0,
            needs_reload: false,
            has_compared_rules: false,
            undecided_clusters: BTreeSet::new(),
            loaded_at: None,
            load: None,
            batch_size: BatchSize::new(options.batch_size),
        }
    }

    /// Records that a session failed, and returns the delay of the next one.
    pub fn record_failure(&mut self, error: &SinkError, options: &SinkOptions) -> Duration {
        self.failures = self.failures.saturating_add(1);
        if error.needs_smaller_batches() {
            self.batch_size.shrink();
        }
        let delay = options.backoff.delay(self.failures);
        if !error.needs_reload() {
            return delay;
        }
        self.needs_reload = true;
        // A load that takes longer than deletions are kept would otherwise follow another one without a pause.
        delay.max(options.min_reload_interval)
    }
}

/// State after the last deletion of clusters that were removed from the fleet. While it is unchanged, there is nothing to remove.
pub(crate) struct ClusterRemoval {
    /// Clusters of the fleet.
    pub clusters: BTreeSet<ClusterName>,
    /// Number of collections with positions in the graph.
    pub collection_count: usize,
}

/// One connection to a graph, in one generation.
pub(crate) struct Session {
    pub bolt: Bolt,
    pub dialect: Dialect,
    /// Random name of this session in the graph.
    pub token: String,
    pub generation: u64,
    /// Seq up to which all changes are in the graph.
    pub position: u64,
    pub batch_size: BatchSize,
    /// Kinds in the states of the collections.
    pub kinds: ServedKinds,
    pub selectors: PodSelectors,
    pub sweeps: Sweeps,
    /// Version of the states from which `kinds` and `sweeps` were computed; None before the first time.
    pub states_version: Option<u64>,
    /// Collections with positions in the graph.
    pub known_collections: BTreeSet<CollectionKey>,
    /// Last deletion of clusters that were removed from the fleet.
    pub last_cluster_removal: Option<ClusterRemoval>,
    /// Clusters in which permissions were unknown in this generation.
    pub undecided_clusters: BTreeSet<ClusterName>,
    /// Digests of the RBAC rules under which this generation was written; None if they changed in the meantime.
    pub rule_digests: Option<RuleDigests>,
    pub loaded_at: Instant,
    /// Time at which everything is written again because permissions have changed.
    pub reload_at: Option<Instant>,
    /// Time at which unknown permissions are determined again.
    pub next_decision_at: Instant,
}

impl Session {
    /// Applies changes of the states of collections: the served kinds, and the collections to sweep.
    pub fn follow_states(&mut self, source: &SinkSource) {
        // Read before the states, so that a change in the meantime is applied the next time.
        let version = *source.states.version().borrow();
        if self.states_version == Some(version) {
            return;
        }
        let states = source.states.all();
        // Read after the states, so that all objects of complete collections precede it.
        let latest = source.changes.latest();
        let states = || states.iter().map(|(key, state)| (key, state));
        self.kinds = ServedKinds::from_states(states());
        self.sweeps.schedule(states(), &self.undecided_clusters, latest);
        self.states_version = Some(version);
    }

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
    use crate::error::WRITE;
    use crowsnest_component_base::retry::Backoff;
    use crowsnest_index::export::ExportError;
    use rstest::rstest;

    fn timeout(context: &'static str) -> SinkError {
        SinkError::Timeout { context, after: Duration::from_secs(60) }
    }

    #[rstest]
    #[case::first(SinkError::Fenced, 0, 1, false, 8)]
    #[case::third(SinkError::Fenced, 2, 4, false, 8)]
    #[case::longest_delay(SinkError::Fenced, u32::MAX, 30, false, 8)]
    #[case::slow_transaction(timeout(WRITE), 0, 1, false, 4)]
    #[case::unreachable(timeout("cannot connect to the graph database"), 0, 1, false, 8)]
    #[case::first_pruning(SinkError::Source(ExportError::Pruned), 0, 10, true, 8)]
    #[case::repeated_pruning(SinkError::Source(ExportError::Pruned), 9, 30, true, 8)]
    fn a_failure_decides_the_next_session(
        #[case] error: SinkError,
        #[case] earlier_failures: u32,
        #[case] delay_secs: u64,
        #[case] needs_reload: bool,
        #[case] batch_size: usize,
    ) {
        let options = SinkOptions {
            batch_size: 8,
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)),
            min_reload_interval: Duration::from_secs(10),
            ..SinkOptions::default()
        };
        let mut process = ProcessState { failures: earlier_failures, ..ProcessState::new(&options) };
        assert_eq!(process.record_failure(&error, &options), Duration::from_secs(delay_secs));
        assert_eq!((process.needs_reload, process.batch_size.get()), (needs_reload, batch_size));
    }
}
