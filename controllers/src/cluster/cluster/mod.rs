//! A cluster in the control plane. `life` gives it its execution namespace and its taints and lets it leave, `news` tells the journal of
//! taints and of what agents say, `status` looks at members that we dial or whose agent carries us, `leases` at the agents that report
//! of theirs. What was seen of clusters over time is kept here, in memory: a new process begins its windows anew.

mod journal;
mod leases;
mod lifecycle;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_fleet::{ApiResources, Through};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use self::journal::Told;
use self::lifecycle::Departure;
use crate::Error;
use crate::cache::Change;
use crate::cache::capacity::{Capacity, Summary};
use crate::runtime::config::Config;
use crate::runtime::context::{Context, decode};
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Trigger, Watch};
use crowsnest_plan::clusters::Observed;
use crowsnest_plan::health::doubt::{self, Doubt};
use crowsnest_plan::health::{History, lease};
use crowsnest_plan::object;

/// Leases belong to the cluster controller in Karmada.
const CLUSTER: Switch = Switch::OnByDefault(&["cluster"]);

/// Gives clusters their execution namespaces and taints, and lets them leave.
pub struct ClusterController {
    pub(in crate::cluster) context: Arc<Context>,
    pub(in crate::cluster) capacity: Arc<Capacity>,
    /// Each registered cluster, from when it was told of.
    pub(in crate::cluster) known: Mutex<HashMap<String, Known>>,
}

/// What was seen of a cluster.
#[derive(Default)]
pub(in crate::cluster) struct Known {
    pub(in crate::cluster) history: Option<History>,
    /// By Karmada's rule.
    pub(in crate::cluster) observed: Option<Observed>,
    pub(in crate::cluster) beat: Option<lease::Beat>,
    /// When it was lost, on the monotonic clock, while nobody has confirmed that it is down.
    pub(in crate::cluster) lost: Option<Duration>,
    /// What its status was made of.
    pub(in crate::cluster) reported: Option<Arc<ApiResources>>,
    pub(in crate::cluster) shown: Option<Shown>,
    pub(in crate::cluster) departure: Departure,
    pub(in crate::cluster) told: Option<Told>,
}

/// A Cluster that shows what was found in its member, and what that was.
pub(in crate::cluster) struct Shown {
    pub(in crate::cluster) cluster: Arc<Cluster>,
    pub(in crate::cluster) served: Arc<ApiResources>,
    pub(in crate::cluster) summary: Arc<Summary>,
}

/// While something else has to happen first.
pub(in crate::cluster) const SOON: Duration = Duration::from_millis(500);

impl ClusterController {
    /// Remembers that a cluster exists, or drops what is remembered of a deleted one; whether it exists.
    fn track(&self, change: &Change) -> bool {
        let name = change.name();
        if change.deleted {
            self.known.lock().remove(&name);
            self.context.figures.forget_cluster(&name);
        } else {
            self.known.lock().entry(name).or_default();
        }
        !change.deleted
    }

    /// The key of a cluster that exists, if it is reached otherwise than before and now as a condition wants.
    pub(in crate::cluster) fn reached_anew(
        &self,
        change: &Change,
        is_meant: fn(Option<Through>) -> bool,
    ) -> Requests<String> {
        if !self.track(change) {
            return Requests::none();
        }
        let through = |cluster: &Value| decode::<Cluster>(cluster).ok().map(|cluster| Through::of(&cluster));
        let now = through(change.object());
        let differs = change.old.is_none() || change.old().is_some_and(|old| through(old) != now);
        Requests::one_if(differs && is_meant(now), || change.name())
    }

    /// Remembers something of a cluster that is still there.
    pub(in crate::cluster) fn note<T>(&self, name: &str, note: impl FnOnce(&mut Known) -> T) -> Option<T> {
        self.known.lock().get_mut(name).map(note)
    }

    /// Notes when a cluster was lost; whether that is to be believed. `None`: it is.
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

    /// Whether a cluster that was lost waits for a look at others before it is given up.
    pub(in crate::cluster) fn waits_for_others(
        &self,
        name: &str,
        lost: Option<Duration>,
        failure: Duration,
        now: Duration,
    ) -> bool {
        let Some(lost) = lost else { return false };
        let known = self.known.lock();
        let others = known.iter().filter(|(other, _)| *other != name);
        let looks = others.filter_map(|(_, known)| Some(known.history.as_ref()?.looked_at()));
        doubt::waits_for_others(looks, lost, failure, now)
    }

    /// The control plane's own API, asked before a cluster is given up.
    pub(in crate::cluster) async fn doubt_control_plane(&self) -> Option<Doubt> {
        let probe = crowsnest_fleet::probe::probe(&self.context.fleet.control_plane()).await;
        let failing = if probe.healthy { None } else { Some(probe.message) };
        failing.or(probe.version.err()).map(Doubt::ControlPlane)
    }
}

impl Controller for ClusterController {
    type Key = String;
    const NAME: &'static str = "cluster-controller";
    const SWITCH: Switch = CLUSTER;

    fn new(setup: &Setup) -> Self {
        let (context, capacity) = (Arc::clone(&setup.context), Capacity::shared(setup));
        ClusterController { context, capacity, known: Mutex::default() }
    }

    fn watches(&self) -> Vec<Watch<Self>> {
        let clusters = Source::of([&self.context.kinds.cluster]);
        vec![clusters.map(|one: &Self, change| Requests::one_if(one.track(change), || change.name()))]
    }

    async fn keys(&self) -> Result<Vec<String>, Error> {
        self.context.names(&self.context.kinds.cluster).await
    }

    async fn reconcile(self: Arc<Self>, name: String) -> Result<Outcome, Error> {
        self.reconcile_life(name).await
    }
}

/// Collects the status of members that the control plane reaches.
pub struct ClusterStatusController {
    clusters: Arc<ClusterController>,
    statuses: Trigger<String>,
}

impl Controller for ClusterStatusController {
    type Key = String;
    const NAME: &'static str = "cluster-status-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["clusterStatus"]);

    fn new(setup: &Setup) -> Self {
        ClusterStatusController { clusters: setup.controller(), statuses: setup.trigger::<Self>() }
    }

    fn watches(&self) -> Vec<Watch<Self>> {
        let clusters = Source::of([&self.clusters.context.kinds.cluster]);
        vec![clusters.map(|one: &Self, change| {
            one.clusters.reached_anew(change, |through| through != Some(Through::AgentIfThere))
        })]
    }

    async fn keys(&self) -> Result<Vec<String>, Error> {
        self.clusters.keys().await
    }

    async fn reconcile(self: Arc<Self>, name: String) -> Result<Outcome, Error> {
        self.clusters.reconcile_status(name).await
    }

    /// Each member has to answer within seconds, and one that does not must not hold up the others.
    fn workers(_config: &Config) -> usize {
        512
    }

    fn follow(self: Arc<Self>, stop: CancellationToken) -> Option<BoxFuture<'static, Result<(), String>>> {
        Some(self.follow_served(stop).boxed())
    }
}

impl ClusterStatusController {
    /// Looks at a member's status as soon as the cache hears that it serves something else than its Cluster says.
    pub async fn follow_served(self: Arc<Self>, stop: CancellationToken) -> Result<(), String> {
        let mut version = self.clusters.context.world.served_version();
        loop {
            version.borrow_and_update();
            let reported: Vec<(String, Arc<ApiResources>)> = {
                let known = self.clusters.known.lock();
                known.iter().filter_map(|(name, known)| Some((name.clone(), known.reported.clone()?))).collect()
            };
            for (name, reported) in reported {
                let served = ClusterName::parse(&name).ok().and_then(|name| self.clusters.context.world.served(&name));
                if served.is_some_and(|served| !Arc::ptr_eq(&served, &reported) && *served != *reported) {
                    self.statuses.add(name);
                }
            }
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                changed = version.changed() => if changed.is_err() {
                    return if stop.is_cancelled() { Ok(()) } else { Err("the cache ended".to_owned()) };
                },
            }
        }
    }
}

/// Watches the Leases of clusters whose status Karmada's agent reports.
pub struct ClusterLeaseController {
    clusters: Arc<ClusterController>,
}

impl Controller for ClusterLeaseController {
    type Key = String;
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

    async fn keys(&self) -> Result<Vec<String>, Error> {
        self.clusters.keys().await
    }

    async fn reconcile(self: Arc<Self>, name: String) -> Result<Outcome, Error> {
        self.clusters.reconcile_lease(name).await
    }
}

/// Whether a binding is for a cluster.
pub fn targets(binding: &Value, cluster: &str) -> bool {
    let clusters = object::at(binding, &["spec", "clusters"]).and_then(Value::as_array);
    clusters.into_iter().flatten().any(|target| object::text(target, &["name"]) == cluster)
}
