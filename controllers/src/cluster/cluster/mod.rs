//! Cluster controller: `lifecycle` manages the execution namespace, taints and removal of a Cluster, `journal` records taints and
//! what agents report, `leases` watches the agents that report the status of their cluster. Observations over time are in memory:
//! a new process begins its windows again.

mod journal;
mod leases;
mod lifecycle;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::unstructured;
use crowsnest_members::{ApiResources, Through};
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

/// Leases belong to the cluster controller in Karmada.
const CLUSTER: Switch = Switch::OnByDefault(&["cluster"]);

/// Gives clusters their execution namespaces and taints, and lets them leave.
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
    /// By Karmada's rule.
    pub(in crate::cluster) observed: Option<Observed>,
    pub(in crate::cluster) beat: Option<lease::Beat>,
    /// Time of its loss on the monotonic clock, while it is not confirmed to be down.
    pub(in crate::cluster) lost: Option<Duration>,
    /// Resources that its status was made from.
    pub(in crate::cluster) reported: Option<Arc<ApiResources>>,
    pub(in crate::cluster) shown: Option<Shown>,
    pub(in crate::cluster) departure: Departure,
    pub(in crate::cluster) recorded: Option<Recorded>,
}

/// A Cluster whose status shows the state of its member, and that state.
pub(in crate::cluster) struct Shown {
    pub(in crate::cluster) cluster: Arc<Cluster>,
    pub(in crate::cluster) served: Arc<ApiResources>,
    pub(in crate::cluster) summary: Arc<Summary>,
}

/// Delay while a precondition is not met yet.
pub(in crate::cluster) const SOON: Duration = Duration::from_millis(500);

impl ClusterController {
    /// Remembers that a cluster exists, or drops what is remembered of a deleted one; whether it exists.
    fn track(&self, change: &Change) -> bool {
        let Some(name) = change.cluster_key() else {
            tracing::warn!(cluster = change.name(), "the cluster is ignored: its name is not a valid cluster name");
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

    /// The key of an existing cluster whose way of access changed to one that `is_meant` accepts.
    pub(in crate::cluster) fn reached_anew(
        &self,
        change: &Change,
        is_meant: fn(Option<Through>) -> bool,
    ) -> Requests<ClusterName> {
        let Some(name) = change.cluster_key().filter(|_| self.track(change)) else { return Requests::none() };
        let through = |cluster: &Value| decode::<Cluster>(cluster).ok().map(|cluster| Through::of(&cluster));
        let now = through(change.object());
        let differs = change.old.is_none() || change.old().is_some_and(|old| through(old) != now);
        Requests::one_if(differs && is_meant(now), || name)
    }

    /// Updates the observations of a cluster that still exists.
    pub(in crate::cluster) fn note<T>(&self, name: &str, note: impl FnOnce(&mut Known) -> T) -> Option<T> {
        self.known.lock().get_mut(name).map(note)
    }

    /// Records when a cluster was lost; the doubt about that, if there is any.
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

    /// Whether a lost cluster waits for a check of other clusters before it is reported as not ready.
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

    /// Checks the API of the control plane before a cluster is reported as not ready.
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

/// Watches the Leases of clusters whose status Karmada's agent reports.
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
            one.clusters.reached_anew(change, |through| through == Some(Through::AgentIfThere))
        })]
    }

    async fn keys(&self) -> Result<Vec<ClusterName>, Error> {
        self.clusters.keys().await
    }

    async fn reconcile(self: Arc<Self>, name: ClusterName) -> Result<Outcome, Error> {
        self.clusters.reconcile_lease(name).await
    }
}

/// Whether a binding targets a cluster.
pub fn targets(binding: &Value, cluster: &str) -> bool {
    let clusters = unstructured::at(binding, &["spec", "clusters"]).and_then(Value::as_array);
    clusters.into_iter().flatten().any(|target| unstructured::text(target, &["name"]) == cluster)
}
