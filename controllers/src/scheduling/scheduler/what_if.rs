//! Assumed clusters of a plan: some are changed, and reservations do not affect the scheduler.
//!
//! Bindings that are planned together compete for capacity as in the scheduler's queue: the capacity of each decision
//! is reserved before the next.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::work::{ResourceBinding, ResourceBindingSpec, TargetCluster};

use super::{BindingKey, Question, Scheduler};
use crate::Error;
use crowsnest_plan::estimation::Estimator;
use crowsnest_plan::estimation::accurate::EstimatorResponses;
use crowsnest_plan::estimation::free_capacity::EstimateCache;
use crowsnest_plan::estimation::ledger::{Ledger, Moment};
use crowsnest_plan::scheduling::{ClusterFacts, Peer, World};

/// A simulation of scheduling: its clusters and reservations are separate from the scheduler's.
pub(crate) struct SimulatedScheduling {
    clusters: Vec<Arc<ClusterFacts>>,
    ledger: Ledger,
    estimates: EstimateCache,
    now: Moment,
    /// Planned specs of the bindings that were decided.
    decided: BTreeMap<BindingKey, ResourceBindingSpec>,
}

impl SimulatedScheduling {
    /// Reserves the capacity that a decision assigns to a binding, so that it is not available to others. `before` is
    /// the stored binding.
    pub(crate) fn give(&mut self, key: &BindingKey, before: &ResourceBinding, clusters: &[TargetCluster]) {
        let spec = ResourceBindingSpec { clusters: clusters.to_vec(), ..before.spec.clone() };
        self.decided.insert(key.clone(), spec);
        if clusters.is_empty() {
            self.ledger.forget(key);
            return;
        }
        self.ledger.promise(key, &before.spec, &before.status, clusters, self.now);
        self.ledger.written(key, before.metadata.generation.unwrap_or_default());
    }

    /// Removes a deleted binding. Its pods still run for some time, so their capacity is not released.
    pub(crate) fn forget(&mut self, key: &BindingKey) {
        self.ledger.forget(key);
        self.decided.remove(key);
    }
}

impl Scheduler {
    /// The current clusters, with some of them replaced.
    pub(crate) fn imagine(&self, otherwise: impl IntoIterator<Item = Cluster>) -> SimulatedScheduling {
        let mut clusters = self.clusters.read().as_ref().clone();
        for facts in otherwise.into_iter().map(|cluster| Arc::new(ClusterFacts::new(cluster))) {
            if let Ok(index) = clusters.binary_search_by(|known| known.name().cmp(facts.name())) {
                clusters[index] = facts;
            }
        }
        let now = self.began.elapsed();
        let mut ledger = self.ledger.lock().clone();
        ledger.lapse(now);
        SimulatedScheduling { clusters, ledger, estimates: EstimateCache::default(), now, decided: BTreeMap::new() }
    }

    /// Evaluates `ask` for assumed clusters. Reserves nothing.
    pub(crate) fn in_imagined<T>(
        &self,
        imagined: &mut SimulatedScheduling,
        key: &BindingKey,
        peers: &[Peer],
        answers: Option<&EstimatorResponses>,
        ask: impl FnOnce(&World<'_>, &Estimator<'_>) -> T,
    ) -> T {
        let SimulatedScheduling { clusters, ledger, estimates, .. } = imagined;
        self.in_rooms_of((clusters, estimates), Question { key, ledger: Some(ledger), peers, answers }, ask).0
    }

    /// Other bindings of the namespace with affinity groups, as planned.
    pub(crate) async fn imagined_peers(
        &self,
        imagined: &SimulatedScheduling,
        key: &BindingKey,
        spec: &ResourceBindingSpec,
    ) -> Result<Vec<Peer>, Error> {
        self.peers_beside(key, spec, &imagined.decided).await
    }
}
