//! Cluster controller: `lifecycle` manages execution namespace, taints and removal of a Cluster, `journal` records
//! taints and reports of agents, and `leases` monitors agents that report the status of their cluster. Observations
//! are kept in memory, so they start again after a restart.

mod journal;
mod leases;
mod lifecycle;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::unstructured;
use crowsnest_members::{ApiResources, MemberRoute};
use parking_lot::Mutex;
use serde_json::Value;

use self::journal::Recorded;
use self::lifecycle::Departure;
use crate::Error;
use crate::cache::Change;
use crate::cache::capacity::{Capacity, Summary};
use crate::runtime::context::{Context, decode};
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch};
use crowsnest_plan::clusters::Observed;
use crowsnest_plan::health::doubt::{self, Doubt};
use crowsnest_plan::health::{History, lease};

/// Switch of both controllers: in Karmada, Leases belong to the cluster controller.
const CLUSTER: Switch = Switch::OnByDefault(&["cluster"]);

/// Creates execution namespaces and taints of clusters, and finalizes their removal.
pub struct ClusterController {
    pub(in crate::cluster) context: Arc<Context>,
    pub(in crate::cluster) capacity: Arc<Capacity>,
    /// Observations per registered cluster.
    pub(in crate::cluster) known: Mutex<HashMap<ClusterName, Known>>,
}

/// Observations of a cluster.
#[derive(Default)]
pub(in crate::cluster) struct Known {
    pub(in crate::cluster) history: Option<History>,
    /// Observation for Karmada's rule.
    pub(in crate::cluster) observed: Option<Observed>,
    pub(in crate::cluster) beat: Option<lease::Beat>,
    /// Monotonic time at which the cluster was lost. `None` if it is confirmed to be down.
    pub(in crate::cluster) lost: Option<Duration>,
    /// API resources in its status.
    pub(in crate::cluster) reported: Option<Arc<ApiResources>>,
    pub(in crate::cluster) shown: Option<Shown>,
    pub(in crate::cluster) departure: Departure,
    pub(in crate::cluster) recorded: Option<Recorded>,
}

/// A Cluster with an up-to-date status, and the member state that it shows.
pub(in crate::cluster) struct Shown {
    pub(in crate::cluster) cluster: Arc<Cluster>,
    pub(in crate::cluster) served: Arc<ApiResources>,
    pub(in crate::cluster) summary: Arc<Summary>,
}

/// Requeue delay while a precondition is not met.
pub(in crate::cluster) const SOON: Duration = Duration::from_millis(500);

impl ClusterController {
    /// Starts or stops tracking a cluster. Returns true if it exists.
    fn track(&self, change: &Change) -> bool {
        let Some(name) = change.cluster_key() else {
            tracing::warn!(cluster = change.name(), "ignoring a cluster with an invalid name");
            return false;
        };
        if change.deleted {
            self.known.lock().remove(&name);
            self.context.metrics.forget_cluster(name.as_str());
        } else {
            self.known.lock().entry(name).or_default();
        }
        !change.deleted
    }

    /// Key of an existing cluster whose access path changed to one that satisfies `is_meant`.
    pub(in crate::cluster) fn reached_anew(
        &self,
        change: &Change,
        is_meant: fn(Option<MemberRoute>) -> bool,
    ) -> Requests<ClusterName> {
        let Some(name) = change.cluster_key().filter(|_| self.track(change)) else { return Requests::none() };
        let through = |cluster: &Value| decode::<Cluster>(cluster).ok().map(|cluster| MemberRoute::of(&cluster));
        let now = through(change.object());
        let differs = change.old.is_none() || change.old().is_some_and(|old| through(old) != now);
        Requests::one_if(differs && is_meant(now), || name)
    }

    /// Updates the observations of a cluster, if it still exists.
    pub(in crate::cluster) fn note<T>(&self, name: &str, note: impl FnOnce(&mut Known) -> T) -> Option<T> {
        self.known.lock().get_mut(name).map(note)
    }

    /// Records when a cluster was lost. Returns the doubt about it, if any.
    pub(in crate::cluster) fn doubt(&self, cluster: &Cluster, lost: Option<Duration>) -> Option<Doubt> {
        let is_confirmed = doubt::is_confirmed_down(cluster);
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        let mut known = self.known.lock();
        if let Some(known) = known.get_mut(name) {
            known.lost = lost.filter(|_| !is_confirmed);
        }
        if lost.is_none() || is_confirmed {
            return None;
        }
        let threshold = self.context.config.unhealthy_cluster_threshold;
        doubt::of_fleet(known.values().filter_map(|known| known.lost), known.len(), threshold)
    }

    /// True if a lost cluster must wait for probes of other clusters before it becomes not ready.
    pub(in crate::cluster) fn waits_for_others(
        &self,
        name: &str,
        lost: Option<Duration>,
        failure: Duration,
        now: Duration,
    ) -> bool {
        let Some(lost) = lost else { return false };
        let known = self.known.lock();
        let others = known.iter().filter(|(other, _)| other.as_str() != name);
        let looks = others.filter_map(|(_, known)| Some(known.history.as_ref()?.looked_at()));
        doubt::waits_for_others(looks, lost, failure, now)
    }

    /// Checks the control plane's API before a cluster becomes not ready.
    pub(in crate::cluster) async fn doubt_control_plane(&self) -> Option<Doubt> {
        let probe = crowsnest_members::probe::probe(&self.context.fleet.control_plane()).await;
        let failing = if probe.healthy { None } else { Some(probe.message) };
        failing.or(probe.version.err()).map(Doubt::ControlPlane)
    }
}

impl Controller for ClusterController {
    type Key = ClusterName;
    const NAME: &'static str = "cluster-controller";
    const SWITCH: Switch = CLUSTER;

    fn new(setup: &Setup) -> Self {
        let (context, capacity) = (Arc::clone(&setup.context), Capacity::shared(setup));
        ClusterController { context, capacity, known: Mutex::default() }
    }

    fn watches(&self) -> Vec<Watch<Self>> {
        let clusters = Source::of([&self.context.kinds.cluster]);
        vec![clusters.map(|one: &Self, change| Requests::from(change.cluster_key().filter(|_| one.track(change))))]
    }

    async fn keys(&self) -> Result<Vec<ClusterName>, Error> {
        self.context.cluster_keys().await
    }

    async fn reconcile(self: Arc<Self>, name: ClusterName) -> Result<Outcome, Error> {
        self.reconcile_life(name).await
    }
}

/// Monitors the Leases of clusters whose status is reported by Karmada's agent.
pub struct ClusterLeaseController {
    clusters: Arc<ClusterController>,
}

impl Controller for ClusterLeaseController {
    type Key = ClusterName;
    const NAME: &'static str = "cluster-leases";
    const SWITCH: Switch = CLUSTER;

    fn new(setup: &Setup) -> Self {
        ClusterLeaseController { clusters: setup.controller() }
    }

    fn watches(&self) -> Vec<Watch<Self>> {
        let clusters = Source::of([&self.clusters.context.kinds.cluster]);
        vec![clusters.map(|one: &Self, change| {
            one.clusters.reached_anew(change, |through| through == Some(MemberRoute::AgentIfConnected))
        })]
    }

    async fn keys(&self) -> Result<Vec<ClusterName>, Error> {
        self.clusters.keys().await
    }

    async fn reconcile(self: Arc<Self>, name: ClusterName) -> Result<Outcome, Error> {
        self.clusters.reconcile_lease(name).await
    }
}

/// True if a binding targets a cluster.
pub fn targets(binding: &Value, cluster: &str) -> bool {
    let clusters = unstructured::at(binding, &["spec", "clusters"]).and_then(Value::as_array);
    clusters.into_iter().flatten().any(|target| unstructured::text(target, &["name"]) == cluster)
}
