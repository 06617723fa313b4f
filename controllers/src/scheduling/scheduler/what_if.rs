//! What-if fleet of a plan: some clusters are changed, and capacity is reserved here only.
//!
//! Bindings that are planned together compete for capacity as they would in the queue of the scheduler: the capacity of each
//! decision is reserved before the next.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::work::{ResourceBinding, ResourceBindingSpec, TargetCluster};

use super::{BindingKey, Question, Scheduler};
use crate::Error;
use crowsnest_plan::estimation::Estimator;
use crowsnest_plan::estimation::accurate::Answers;
use crowsnest_plan::estimation::ledger::{Ledger, Moment};
use crowsnest_plan::estimation::room::Remembered;
use crowsnest_plan::scheduling::{ClusterFacts, Peer, World};

pub(crate) struct Imagined {
    clusters: Vec<Arc<ClusterFacts>>,
    ledger: Ledger,
    remembered: Remembered,
    now: Moment,
    /// Bindings that were decided about, as they would be.
    decided: BTreeMap<BindingKey, ResourceBindingSpec>,
}

impl Imagined {
    /// What a decision gives a binding, which was `before`. Others will not get it.
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

    /// A binding is gone. Its pods are still in its clusters for a while, so they take their room there.
    pub(crate) fn forget(&mut self, key: &BindingKey) {
        self.ledger.forget(key);
        self.decided.remove(key);
    }
}

impl Scheduler {
    /// The fleet as it is, but for some of its clusters.
    pub(crate) fn imagine(&self, otherwise: impl IntoIterator<Item = Cluster>) -> Imagined {
        let mut clusters = self.clusters.read().as_ref().clone();
        for facts in otherwise.into_iter().map(|cluster| Arc::new(ClusterFacts::new(cluster))) {
            if let Ok(place) = clusters.binary_search_by(|known| known.name().cmp(facts.name())) {
                clusters[place] = facts;
            }
        }
        let now = self.began.elapsed();
        let mut ledger = self.ledger.lock().clone();
        ledger.lapse(now);
        Imagined { clusters, ledger, remembered: Remembered::default(), now, decided: BTreeMap::new() }
    }

    /// Asks about an imagined fleet; nothing is promised.
    pub(crate) fn in_imagined<T>(
        &self,
        imagined: &mut Imagined,
        key: &BindingKey,
        peers: &[Peer],
        answers: Option<&Answers>,
        ask: impl FnOnce(&World<'_>, &Estimator<'_>) -> T,
    ) -> T {
        let Imagined { clusters, ledger, remembered, .. } = imagined;
        self.in_rooms_of((clusters, remembered), Question { key, ledger: Some(ledger), peers, answers }, ask).0
    }

    /// Other bindings of the namespace with affinity groups, as they would be.
    pub(crate) async fn imagined_peers(
        &self,
        imagined: &Imagined,
        key: &BindingKey,
        spec: &ResourceBindingSpec,
    ) -> Result<Vec<Peer>, Error> {
        self.peers_beside(key, spec, &imagined.decided).await
    }
}
