//! Simulation of scheduling for plans: with proposed Clusters, and with reservations that do not affect the scheduler.
//!
//! Bindings that are planned together compete for capacity as in the scheduler's queue: the capacity that a decision
//! assigns is reserved before the next decision.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::work::{ResourceBinding, ResourceBindingSpec, TargetCluster};

use super::{BindingKey, DecisionInput, Scheduler};
use crate::Error;
use crowsnest_plan::estimation::Estimator;
use crowsnest_plan::estimation::accurate::EstimatorResponses;
use crowsnest_plan::estimation::free_capacity::EstimateCache;
use crowsnest_plan::estimation::ledger::{Ledger, MonotonicTime};
use crowsnest_plan::scheduling::{ClusterFacts, Peer, SchedulingContext};

/// A simulation of scheduling: its clusters and reservations are separate from the scheduler's.
pub(crate) struct SimulatedScheduling {
    clusters: Vec<Arc<ClusterFacts>>,
    ledger: Ledger,
    estimates: EstimateCache,
    now: MonotonicTime,
    /// Planned specs of the bindings that were decided.
    decided_specs: BTreeMap<BindingKey, ResourceBindingSpec>,
}

impl SimulatedScheduling {
    /// Reserves the capacity that a decision assigns to a binding, so that it is not available to others. `before` is
    /// the stored binding.
    pub(crate) fn reserve(&mut self, key: &BindingKey, before: &ResourceBinding, clusters: &[TargetCluster]) {
        let spec = ResourceBindingSpec { clusters: clusters.to_vec(), ..before.spec.clone() };
        self.decided_specs.insert(key.clone(), spec);
        if clusters.is_empty() {
            self.ledger.forget(key);
            return;
        }
        self.ledger.reserve(key, &before.spec, &before.status, clusters, self.now);
        self.ledger.confirm_write(key, before.metadata.generation.unwrap_or_default());
    }

    /// Removes a deleted binding and its reservations. The capacity that its pods use is not released, because they still
    /// run for some time.
    pub(crate) fn forget(&mut self, key: &BindingKey) {
        self.ledger.forget(key);
        self.decided_specs.remove(key);
    }
}

impl Scheduler {
    /// Starts a simulation with the current clusters and reservations. `replacements` replace the clusters with their
    /// names; other names are ignored.
    pub(crate) fn simulate(&self, replacements: impl IntoIterator<Item = Cluster>) -> SimulatedScheduling {
        let mut clusters = self.clusters.read().as_ref().clone();
        for facts in replacements.into_iter().map(|cluster| Arc::new(ClusterFacts::new(cluster))) {
            if let Ok(index) = clusters.binary_search_by(|candidate| candidate.name().cmp(facts.name())) {
                clusters[index] = facts;
            }
        }
        let now = self.started_at.elapsed();
        let mut ledger = self.ledger.lock().clone();
        ledger.expire(now);
        SimulatedScheduling {
            clusters,
            ledger,
            estimates: EstimateCache::default(),
            now,
            decided_specs: BTreeMap::new(),
        }
    }

    /// Evaluates `decide` for the clusters of a simulation. Reserves no capacity.
    pub(crate) fn evaluate_simulated<T>(
        &self,
        simulation: &mut SimulatedScheduling,
        key: &BindingKey,
        peers: &[Peer],
        responses: Option<&EstimatorResponses>,
        decide: impl FnOnce(&SchedulingContext<'_>, &Estimator<'_>) -> T,
    ) -> T {
        let SimulatedScheduling { clusters, ledger, estimates, .. } = simulation;
        self.evaluate_with_clusters(
            (clusters, estimates),
            DecisionInput { key, ledger: Some(ledger), peers, responses },
            decide,
        )
        .0
    }

    /// Other bindings of the namespace with affinity groups. Specs that the simulation decided replace the stored ones.
    pub(crate) async fn find_simulated_peers(
        &self,
        simulation: &SimulatedScheduling,
        key: &BindingKey,
        spec: &ResourceBindingSpec,
    ) -> Result<Vec<Peer>, Error> {
        self.find_peers_assuming(key, spec, &simulation.decided_specs).await
    }
}
