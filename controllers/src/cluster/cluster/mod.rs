//! Cluster controller: `lifecycle` manages execution namespace, taints and removal of a Cluster, `journal` records
//! taints and reports of agents, and `leases` monitors agents that report the status of their cluster. Observations
//! are kept in memory only, so a restart loses them.

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

use self::journal::JournaledState;
use self::lifecycle::RemovalProgress;
use crate::Error;
use crate::cache::Change;
use crate::cache::capacity::{Capacity, MemberSummary};
use crate::runtime::context::{Context, decode};
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crowsnest_plan::clusters::ObservedReadiness;
use crowsnest_plan::health::doubt::{self, Doubt};
use crowsnest_plan::health::{HealthHistory, lease};

/// Switch of both controllers: in Karmada, Leases belong to the cluster controller.
const CLUSTER_SWITCH: Switch = Switch::OnByDefault(&["cluster"]);

/// Creates execution namespaces and taints of clusters, and finalizes their removal.
pub struct ClusterController {
    pub(in crate::cluster) context: Arc<Context>,
    pub(in crate::cluster) capacity: Arc<Capacity>,
    /// Observations per registered cluster.
    pub(in crate::cluster) observations: Mutex<HashMap<ClusterName, ClusterObservations>>,
}

/// Observations of a cluster.
#[derive(Default)]
pub(in crate::cluster) struct ClusterObservations {
    pub(in crate::cluster) history: Option<HealthHistory>,
    /// Readiness by Karmada's rule, if the failover safety is `karmada`.
    pub(in crate::cluster) observed_readiness: Option<ObservedReadiness>,
    pub(in crate::cluster) liveness: Option<lease::AgentLiveness>,
    /// Monotonic time at which the cluster was lost. `None` if it is confirmed to be down.
    pub(in crate::cluster) lost_since: Option<Duration>,
    /// API resources that the status of the Cluster lists.
    pub(in crate::cluster) reported_api_resources: Option<Arc<ApiResources>>,
    pub(in crate::cluster) reported_status: Option<ReportedStatus>,
    pub(in crate::cluster) removal: RemovalProgress,
    pub(in crate::cluster) journaled: Option<JournaledState>,
}

/// A Cluster whose status is up to date, with the state of the member that the status was computed from.
pub(in crate::cluster) struct ReportedStatus {
    pub(in crate::cluster) cluster: Arc<Cluster>,
    pub(in crate::cluster) served: Arc<ApiResources>,
    pub(in crate::cluster) summary: Arc<MemberSummary>,
}

/// Requeue delay while a precondition is not met.
pub(in crate::cluster) const PRECONDITION_RETRY: Duration = Duration::from_millis(500);

impl ClusterController {
    /// Starts or stops tracking a cluster. Returns true if it exists.
    fn track(&self, change: &Change) -> bool {
        let Some(name) = change.cluster_name() else {
            tracing::warn!(cluster = change.name(), "ignoring a cluster with an invalid name");
            return false;
        };
        if change.deleted {
            self.observations.lock().remove(&name);
            self.context.metrics.forget_cluster(name.as_str());
        } else {
            self.observations.lock().entry(name).or_default();
        }
        !change.deleted
    }

    /// Requests a reconcile of a cluster that was created or whose route changed, if the route satisfies
    /// `matches_route`.
    pub(in crate::cluster) fn on_route_change(
        &self,
        change: &Change,
        matches_route: fn(Option<MemberRoute>) -> bool,
    ) -> Requests<ClusterName> {
        let Some(name) = change.cluster_name().filter(|_| self.track(change)) else { return Requests::none() };
        let route_of =
            |cluster: &Value| decode::<Cluster>(cluster).ok().map(|cluster| MemberRoute::from_cluster(&cluster));
        let route = route_of(change.object());
        let differs = change.old.is_none() || change.old().is_some_and(|old| route_of(old) != route);
        Requests::one_if(differs && matches_route(route), || name)
    }

    /// Reads or updates the observations of a cluster, if it still exists.
    pub(in crate::cluster) fn with_observations<T>(
        &self,
        name: &str,
        access: impl FnOnce(&mut ClusterObservations) -> T,
    ) -> Option<T> {
        self.observations.lock().get_mut(name).map(access)
    }

    /// Records when a cluster was lost. Returns the doubt about it, if any.
    pub(in crate::cluster) fn evaluate_doubt(&self, cluster: &Cluster, lost_since: Option<Duration>) -> Option<Doubt> {
        let is_confirmed = doubt::is_confirmed_down(cluster);
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        let mut observations = self.observations.lock();
        if let Some(observations) = observations.get_mut(name) {
            observations.lost_since = lost_since.filter(|_| !is_confirmed);
        }
        if lost_since.is_none() || is_confirmed {
            return None;
        }
        let threshold = self.context.config.unhealthy_cluster_threshold;
        doubt::find_fleet_doubt(
            observations.values().filter_map(|observations| observations.lost_since),
            observations.len(),
            threshold,
        )
    }

    /// True if a lost cluster must wait for probes of other clusters before it becomes not ready.
    pub(in crate::cluster) fn must_wait_for_probes(
        &self,
        name: &str,
        lost_since: Option<Duration>,
        failure_threshold: Duration,
        now: Duration,
    ) -> bool {
        let Some(lost_since) = lost_since else { return false };
        let observations = self.observations.lock();
        let others = observations.iter().filter(|(member, _)| member.as_str() != name);
        let probes = others.filter_map(|(_, observations)| Some(observations.history.as_ref()?.last_probe()));
        doubt::must_wait_for_probes(probes, lost_since, failure_threshold, now)
    }

    /// Probes the control plane's API before a cluster becomes not ready. Returns the doubt if it is unhealthy.
    pub(in crate::cluster) async fn check_control_plane(&self) -> Option<Doubt> {
        let probe = crowsnest_members::probe::probe(&self.context.fleet.control_plane()).await;
        let failing = if probe.is_healthy { None } else { Some(probe.message) };
        failing.or(probe.version.err()).map(Doubt::ControlPlane)
    }
}

impl Controller for ClusterController {
    type Key = ClusterName;
    const NAME: &'static str = "cluster-controller";
    const SWITCH: Switch = CLUSTER_SWITCH;

    fn new(setup: &Setup) -> Self {
        let (context, capacity) = (setup.context(), Capacity::shared(setup));
        ClusterController { context, capacity, observations: Mutex::default() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        let clusters = Source::clusters(kinds);
        vec![clusters.map(|controller: &Self, change| {
            Requests::from(change.cluster_name().filter(|_| controller.track(change)))
        })]
    }

    async fn keys(&self) -> Result<Vec<ClusterName>, Error> {
        self.context.cluster_names().await
    }

    async fn reconcile(self: Arc<Self>, name: ClusterName) -> Result<Outcome, Error> {
        self.reconcile_lifecycle(name).await
    }
}

/// Monitors the Leases of clusters whose status is reported by Karmada's agent.
pub struct ClusterLeaseController {
    clusters: Arc<ClusterController>,
}

impl Controller for ClusterLeaseController {
    type Key = ClusterName;
    const NAME: &'static str = "cluster-leases";
    const SWITCH: Switch = CLUSTER_SWITCH;

    fn new(setup: &Setup) -> Self {
        ClusterLeaseController { clusters: setup.controller() }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        let clusters = Source::clusters(kinds);
        vec![clusters.map(|controller: &Self, change| {
            controller.clusters.on_route_change(change, |route| route == Some(MemberRoute::AgentIfConnected))
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
pub fn has_target(binding: &Value, cluster: &str) -> bool {
    let clusters = unstructured::at(binding, &["spec", "clusters"]).and_then(Value::as_array);
    clusters.into_iter().flatten().any(|target| unstructured::text(target, &["name"]) == cluster)
}
