//! Maintains this replica's lease and claims.
//!
//! One loop renews the lease and stops collecting by its own clock if the database does not respond; the other
//! executes the plan, which may wait for the write lock. An outage ends neither of them.

use super::plan::{ClaimPlan, plan};
use super::{Claim, Claims, LEASE_RENEWAL_INTERVAL, STOP_AFTER};
use crate::cache::Health;
use crate::collect::Shared;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_store::ReplicaView;
use crowsnest_store::Store;
use crowsnest_store::postgres::PostgresStore;
use crowsnest_store::{CollectionKey, CollectionState, Error};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time limits for renewing the lease, for changing claims and for ending the lease.
const RENEWAL_TIMEOUT: Duration = Duration::from_millis(1500);
const CLAIM_TIMEOUT: Duration = Duration::from_secs(6);
const END_LEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Key of the database's failure in [`Health`].
const HEALTH_KEY: &str = "database";

pub(crate) struct LeaseKeeper {
    pub store: Arc<PostgresStore>,
    pub shared: Arc<Shared>,
    pub claims: Arc<Claims>,
    pub health: watch::Sender<Health>,
    /// The result of the last renewal.
    pub view: watch::Sender<ReplicaView>,
    /// The live replicas, including this one.
    pub live: watch::Sender<BTreeSet<String>>,
}

impl LeaseKeeper {
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        tokio::join!(self.renew_lease(&stop), self.execute_plans(&stop));
        // Collectors stop with the same token; releasing the lease lets other replicas take over immediately.
        let result = tokio::time::timeout(END_LEASE_TIMEOUT, self.store.end_lease()).await;
        if let Ok(Err(error)) = result {
            tracing::debug!(error = error.chain(), "cannot release the lease; it will expire");
        }
        Ok(())
    }

    /// Renews the lease at intervals and gives up the claims while the database does not respond.
    async fn renew_lease(&self, stop: &CancellationToken) {
        let mut ticks = tokio::time::interval(LEASE_RENEWAL_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut responded_at = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let started_at = Instant::now();
            // The lease starts when the renewal is requested, so a late response is treated as lost.
            let deadline = (responded_at + STOP_AFTER)
                .clamp(started_at + LEASE_RENEWAL_INTERVAL / 4, started_at + RENEWAL_TIMEOUT);
            // A replica that gave up its claims lets its lease expire and renews it only after the database responds:
            // a replica that cannot receive responses must not keep its clusters.
            let is_alive = responded_at.elapsed() < STOP_AFTER;
            let reason = match tokio::time::timeout_at(deadline, self.store.renew_lease(is_alive)).await {
                Ok(Ok(view)) => {
                    responded_at = started_at;
                    self.live.send_if_modified(|live| {
                        let changed = *live != view.live;
                        live.clone_from(&view.live);
                        changed
                    });
                    self.view.send_replace(ReplicaView { requested_at: Some(started_at), ..view });
                    self.health.send_if_modified(|health| health.remove(HEALTH_KEY).is_some());
                    continue;
                }
                Ok(Err(error)) => error.chain(),
                Err(_) => "the database did not respond".to_owned(),
            };
            if responded_at.elapsed() >= STOP_AFTER {
                // Fails only in a single process, which has no lease and never reaches this code.
                let gave_up = self.claims.give_up(Error::StoreFormat(reason.clone()));
                debug_assert!(gave_up.is_ok());
                self.health.send_modify(|health| drop(health.insert(HEALTH_KEY, reason)));
            }
        }
    }

    /// Changes the claims according to the plan after each renewal of the lease.
    async fn execute_plans(&self, stop: &CancellationToken) {
        let mut view = self.view.subscribe();
        let mut last_executed: Option<Instant> = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                changed = view.changed() => if changed.is_err() { return },
            }
            let current_view = view.borrow_and_update().clone();
            if current_view.requested_at < last_executed {
                // The view is older than the last claims and does not contain them, so nothing is lost.
                continue;
            }
            let local_claims =
                self.claims.all().iter().map(|(cluster, claim)| (cluster.clone(), claim.epoch)).collect();
            let plan = plan(self.store.replica(), &self.clusters(&current_view), &local_claims, &current_view);
            if plan == ClaimPlan::default() {
                continue;
            }
            let work = tokio::time::timeout(CLAIM_TIMEOUT, self.execute_plan(&plan));
            tokio::select! {
                () = stop.cancelled() => return,
                result = work => match result {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(error = error.chain(), "cannot change claims"),
                    Err(_) => tracing::debug!("changing claims timed out"),
                },
            }
            last_executed = Some(Instant::now());
        }
    }

    /// Clusters to collect, and stored clusters to drop because they were removed from the fleet.
    fn clusters(&self, view: &ReplicaView) -> BTreeSet<ClusterName> {
        let mut clusters = view.stored.clone();
        clusters.insert(ClusterName::control_plane());
        clusters.extend(self.shared.fleet.members().iter().map(|member| member.name().clone()));
        clusters
    }

    async fn execute_plan(&self, plan: &ClaimPlan) -> Result<(), Error> {
        // Stops the collectors first; their queued batches are rejected.
        self.claims.remove(plan.lost.iter().chain(plan.release.keys()));
        if !plan.release.is_empty() {
            tracing::info!(clusters = ?names(plan.release.keys()), "releasing clusters");
            self.store.release_claims(&plan.release).await?;
        }
        if !plan.take.is_empty() {
            let taken = self.store.claim_clusters(&plan.take, &plan.dead).await?;
            if !taken.is_empty() {
                tracing::info!(clusters = ?names(taken.keys()), "claimed clusters");
            }
            // Read after claiming, so that no later write changes these positions.
            let mut claims: BTreeMap<ClusterName, Claim> = BTreeMap::new();
            let mut stored: BTreeMap<CollectionKey, CollectionState> = BTreeMap::new();
            for (cluster, epoch) in taken {
                claims.insert(cluster, Claim { epoch, scopes: HashMap::new() });
            }
            for collection in self.store.collections().await? {
                let Some(claim) = claims.get_mut(&collection.key.cluster) else { continue };
                claim.scopes.insert(collection.key.clone(), collection.scope);
                let stale_reason = Some("it is being resumed by another replica".to_owned());
                stored.insert(collection.key, CollectionState { stale_reason, ..collection.state });
            }
            let _update = self.claims.update_lock.lock();
            for (key, _) in self.shared.states.all() {
                if claims.contains_key(&key.cluster) && !stored.contains_key(&key) {
                    self.shared.states.remove(&key);
                }
            }
            for (key, state) in stored {
                self.shared.states.update(&key, |current| *current = state);
            }
            self.claims.add(claims);
        }
        Ok(())
    }
}

fn names<'c>(clusters: impl Iterator<Item = &'c ClusterName>) -> Vec<&'c str> {
    clusters.map(ClusterName::as_str).collect()
}
