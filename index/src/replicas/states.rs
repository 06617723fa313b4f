//! Shares the states of collections between replicas: the collecting replica stores its errors, the others read
//! positions and errors.

use super::Claims;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_store::CollectionStates;
use crowsnest_store::ReplicaView;
use crowsnest_store::postgres::PostgresStore;
use crowsnest_store::{CollectionKey, CollectionState, Error};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// Interval of reads without notifications.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum interval between two reads.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(200);
/// Stale reason of the collections of a cluster that no live replica collects.
const NO_COLLECTOR: &str = "no replica currently collects it";

pub(crate) struct SharedStates {
    pub store: Arc<PostgresStore>,
    pub states: Arc<CollectionStates>,
    pub claims: Arc<Claims>,
    pub view: watch::Receiver<ReplicaView>,
    pub commit_notify: Arc<Notify>,
    /// Errors of this replica's collections as stored in the database.
    stored_errors: HashMap<CollectionKey, Option<String>>,
    /// Database time up to which the states of other replicas were read; None: not yet.
    read_until: Option<String>,
    /// Clusters that no live replica collects.
    uncollected: BTreeSet<ClusterName>,
}

impl SharedStates {
    pub fn new(
        store: Arc<PostgresStore>,
        states: Arc<CollectionStates>,
        claims: Arc<Claims>,
        view: watch::Receiver<ReplicaView>,
        commit_notify: Arc<Notify>,
    ) -> Self {
        let (stored_errors, read_until, uncollected) = (HashMap::new(), None, BTreeSet::new());
        Self { store, states, claims, view, commit_notify, stored_errors, read_until, uncollected }
    }

    /// Runs until stopped; an outage only causes a delay.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        let mut state_changes = self.states.version();
        loop {
            state_changes.borrow_and_update();
            let synchronization = async {
                self.write_local_states().await?;
                self.read_remote_states().await
            };
            if let Err(error) = synchronization.await {
                tracing::debug!(error = error.chain(), "cannot share the state of collections");
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = self.commit_notify.notified() => {}
                changed = state_changes.changed() => if changed.is_err() { return Ok(()) },
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(MIN_READ_INTERVAL) => {}
            }
        }
    }

    /// Stores changed errors of the collections that this replica collects.
    async fn write_local_states(&mut self) -> Result<(), Error> {
        let all = self.states.all();
        let mut changed = Vec::new();
        for (key, state) in &all {
            let Some(epoch) = self.claims.epoch_of(&key.cluster) else { continue };
            if self.stored_errors.get(key) != Some(&state.stale_reason) {
                changed.push((key.clone(), epoch, state.stale_reason.clone()));
            }
        }
        self.stored_errors.retain(|key, _| self.claims.epoch_of(&key.cluster).is_some());
        if !changed.is_empty() {
            self.store.write_stale_reasons(&changed).await?;
            self.stored_errors.extend(changed.into_iter().map(|(key, _, reason)| (key, reason)));
        }
        Ok(())
    }

    /// Reads the states of other replicas' collections.
    async fn read_remote_states(&mut self) -> Result<(), Error> {
        let view = self.view.borrow().clone();
        let is_collected = |cluster: &ClusterName| view.is_collected(cluster);
        let uncollected: BTreeSet<ClusterName> =
            view.stored.iter().filter(|cluster| !is_collected(cluster)).cloned().collect();
        if uncollected != self.uncollected {
            // The collecting replicas changed: read all states again.
            self.read_until = None;
            self.uncollected = uncollected;
        }
        let (found, now) = self.store.collections_since(self.read_until.as_deref()).await?;
        let _update = self.claims.update_lock.lock();
        for (is_deleted, stored) in found {
            if self.claims.epoch_of(&stored.key.cluster).is_some() {
                continue;
            }
            if is_deleted {
                self.states.remove(&stored.key);
                continue;
            }
            let no_collector = self.uncollected.contains(&stored.key.cluster).then(|| NO_COLLECTOR.to_owned());
            let stale_reason = stored.state.stale_reason.or(no_collector);
            self.states.update(&stored.key, |state| *state = CollectionState { stale_reason, ..stored.state });
        }
        self.read_until = Some(now);
        Ok(())
    }
}
