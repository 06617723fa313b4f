//! Cluster status controller: collects the status of every member that the control plane can reach, and decides if it
//! is ready. An unhealthy member keeps its last known status.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crowsnest_api::cluster::{Cluster, ClusterStatus, ResourceModel};
use crowsnest_api::constants::{condition, finalizer};
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::unstructured;
use crowsnest_component_base::retry::jitter;
use crowsnest_members::{ApiResources, Member, MemberRoute};
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::cache::capacity::Summary;
use crate::cluster::cluster::{ClusterController, SOON, Shown};
use crate::runtime::config::Config;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Setup, Source, Switch, Trigger, Watch};
use crowsnest_plan::clusters::{self, Health, Thresholds};
use crowsnest_plan::conditions;
use crowsnest_plan::eviction::Safety;
use crowsnest_plan::health::doubt::is_confirmed_down;
use crowsnest_plan::health::{self, Moment, Rules, Signals};
use crowsnest_plan::journal::clusters as journal;

/// Fraction of the period after which a pending change is checked again, at random: with regular intervals, a member
/// that fails periodically could be probed in its worst moments only.
const PENDING: (f64, f64) = (0.3, 0.7);

/// Maximum wait for a Cluster's Secret, which arrives on another watch.
const HEARD_WITHIN: Duration = Duration::from_secs(2);

/// Collects the status of members that the control plane can reach.
pub struct ClusterStatusController {
    clusters: Arc<ClusterController>,
    statuses: Trigger<ClusterName>,
}

impl Controller for ClusterStatusController {
    type Key = ClusterName;
    const NAME: &'static str = "cluster-status-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["clusterStatus"]);

    fn new(setup: &Setup) -> Self {
        ClusterStatusController { clusters: setup.controller(), statuses: setup.trigger::<Self>() }
    }

    fn watches(&self) -> Vec<Watch<Self>> {
        let clusters = Source::of([&self.clusters.context.kinds.cluster]);
        vec![clusters.map(|one: &Self, change| {
            one.clusters.reached_anew(change, |through| through != Some(MemberRoute::AgentIfConnected))
        })]
    }

    async fn keys(&self) -> Result<Vec<ClusterName>, Error> {
        self.clusters.keys().await
    }

    async fn reconcile(self: Arc<Self>, name: ClusterName) -> Result<Outcome, Error> {
        self.clusters.reconcile_status(name).await
    }

    /// Members that do not respond within seconds must not block the others.
    fn workers(_config: &Config) -> usize {
        512
    }

    fn follow(self: Arc<Self>, stop: CancellationToken) -> Option<BoxFuture<'static, Result<(), String>>> {
        Some(self.follow_served(stop).boxed())
    }
}

impl ClusterStatusController {
    /// Enqueues a cluster when its collectors discover API resources that differ from its status.
    pub async fn follow_served(self: Arc<Self>, stop: CancellationToken) -> Result<(), String> {
        let mut version = self.clusters.context.cache.served_version();
        loop {
            version.borrow_and_update();
            let reported: Vec<(ClusterName, Arc<ApiResources>)> = {
                let known = self.clusters.known.lock();
                known.iter().filter_map(|(name, known)| Some((name.clone(), known.reported.clone()?))).collect()
            };
            for (name, reported) in reported {
                let served = self.clusters.context.cache.served(&name);
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

/// Result of one probe.
struct Look {
    signals: Signals,
    /// Kubernetes version.
    version: String,
}

/// Conditions to write after a probe.
struct Settled {
    ready: Condition,
    signals: Option<Condition>,
    /// Reason of a change of Ready.
    flipped: Option<String>,
    /// True if Ready will change should the next probes confirm it.
    is_pending: bool,
}

impl ClusterController {
    pub(crate) async fn reconcile_status(&self, member: ClusterName) -> Result<Outcome, Error> {
        let context = &self.context;
        let name = member.as_str();
        let Some((cluster, typed)) = context.full_cluster(name).await? else { return Ok(Outcome::Done) };
        // Karmada's agent reports its cluster; Crowsnest's agent only provides the tunnel.
        if unstructured::is_terminating(&cluster) || MemberRoute::of(&typed) == MemberRoute::AgentIfConnected {
            return Ok(Outcome::Done);
        }
        if !unstructured::has_finalizer(&cluster, finalizer::CLUSTER_CONTROLLER) {
            return Ok(Outcome::Again(SOON));
        }
        let Some(reached) = self.reached(&member).await else { return Ok(Outcome::Again(SOON)) };
        let began = Instant::now();
        let look = self.look(&member, &reached).await;
        let now = context.moment();
        let settled = match context.config.failover_safety {
            Safety::Safe => self.settle(name, &typed, &look.signals, now).await,
            Safety::Karmada => self.settle_as_karmada(name, &typed, &look.signals.readyz, now),
        };
        if let Some(status) = self.collect(&member, &typed, &look, &settled, now).await {
            // Replaced rather than merged, because resources that are no longer used must be removed from the
            // summary.
            let mut updated = cluster.as_ref().clone();
            unstructured::set(&mut updated, &["status"], json!(status));
            match context.replace_status(&context.kinds.cluster, &updated).await {
                Err(error) if error.is_conflict() => return Ok(Outcome::Again(SOON)),
                result => result?,
            };
            if let Some(cause) = settled.flipped {
                let before = conditions::find(&typed.status.conditions, condition::READY).map(|ready| &*ready.status);
                let now = Cluster { status, ..Cluster::clone(&typed) };
                let entry = journal::flipped(&now, before, &cause, context.config.clock.wall());
                context.journal.note_all(entry).await;
            }
        }
        context.metrics.looked_at(name, began.elapsed());
        let period = context.config.periods.cluster_status;
        let next = if settled.is_pending { jitter(period, PENDING, rand::random()) } else { period };
        Ok(Outcome::Again(next))
    }

    /// The registered member once its credentials are complete, or after waiting for them. `None` if it is not
    /// registered yet.
    async fn reached(&self, name: &ClusterName) -> Option<Arc<Member>> {
        let fleet = &self.context.fleet;
        let is_whole =
            |member: &Arc<Member>| matches!(member.connection(), Ok(_) | Err(crowsnest_members::Error::NoTunnel(_)));
        if let Some(member) = fleet.member(name).filter(is_whole) {
            return Some(member);
        }
        let mut changes = fleet.changes();
        let heard = async {
            while changes.next().await.is_some() {
                if let Some(member) = fleet.member(name).filter(is_whole) {
                    return Some(member);
                }
            }
            None
        };
        let member = tokio::time::timeout(HEARD_WITHIN, heard).await.ok().flatten();
        member.or_else(|| fleet.member(name))
    }

    async fn look(&self, name: &ClusterName, member: &Member) -> Look {
        let tunnel = (MemberRoute::of(member.cluster()) == MemberRoute::AgentOnly)
            .then(|| self.context.fleet.tunnels().is_open(name));
        let watches = self.context.cache.watches(name);
        let probe = member.probe().await;
        let readyz = match (member.connection(), probe.online, probe.healthy) {
            (Err(error), ..) if !matches!(error, crowsnest_members::Error::NoTunnel(_)) => {
                Health::NoClient(error.to_string())
            }
            (_, true, true) => Health::Healthy,
            (_, true, false) => Health::Unhealthy(probe.message),
            (_, false, _) => Health::Unreachable(probe.message),
        };
        let (version, api) = match probe.version {
            Ok(version) => (version, Ok(())),
            Err(why) => (String::new(), Err(why)),
        };
        Look { signals: Signals { readyz, api, watches, tunnel }, version }
    }

    /// Decides by several signals over time, unless readiness is doubted.
    async fn settle(&self, name: &str, cluster: &Cluster, signals: &Signals, now: Moment) -> Settled {
        let periods = &self.context.config.periods;
        let rules = Rules {
            success: periods.cluster_success_threshold,
            failure: periods.cluster_failure_threshold,
            period: periods.cluster_status,
        };
        let shown = conditions::find(&cluster.status.conditions, condition::READY);
        let last = self.note(name, |known| known.history.clone()).flatten();
        let judged = health::evaluate(signals, last.as_ref(), shown, &rules, now);
        let takes_away = health::takes_away(shown, &judged.ready);
        let mut doubt = self.doubt(cluster, judged.history.lost());
        let is_believed = doubt.is_none() && takes_away && !is_confirmed_down(cluster);
        let waits = is_believed && self.waits_for_others(name, judged.history.lost(), rules.failure, now.mono);
        if is_believed && !waits {
            doubt = self.doubt_control_plane().await;
        }
        let is_held = takes_away && (waits || doubt.is_some());
        let ready = shown.filter(|_| is_held).cloned().unwrap_or(judged.ready);
        let before = conditions::find(&cluster.status.conditions, condition::HEALTH_SIGNALS);
        let seen = health::signals_condition(signals, &judged.history, &ready, doubt.as_ref(), before, now.wall);
        let is_pending = ready.status == "True" && judged.history.lost().is_some() && doubt.is_none();
        if let Some(doubt) = doubt.filter(|_| before.is_none_or(|before| before.reason != seen.reason)) {
            tracing::warn!(cluster = name, %doubt, "a cluster's readiness is doubted");
        }
        let flips = shown.is_some_and(|shown| shown.status != ready.status);
        let flipped = flips.then(|| health::tell(signals, &judged.history));
        self.note(name, |known| known.history = Some(judged.history));
        Settled { ready, signals: Some(seen), flipped, is_pending }
    }

    fn settle_as_karmada(&self, name: &str, cluster: &Cluster, health: &Health, now: Moment) -> Settled {
        let periods = &self.context.config.periods;
        let mut ready = clusters::ready_condition(health, now.wall);
        let shown = conditions::find(&cluster.status.conditions, condition::READY);
        if !matches!(health, Health::NoClient(_)) {
            let thresholds =
                Thresholds { success: periods.cluster_success_threshold, failure: periods.cluster_failure_threshold };
            let last = self.note(name, |known| known.observed).flatten();
            let (adjusted, observed) = clusters::with_thresholds(ready, shown, last, thresholds, now.mono);
            self.note(name, |known| known.observed = Some(observed));
            ready = adjusted;
        }
        let flips = shown.is_some_and(|shown| shown.status != ready.status);
        let flipped = flips.then(|| ready.message.clone());
        Settled { ready, signals: None, flipped, is_pending: false }
    }

    /// The desired status after a probe. `None` if it is up to date.
    async fn collect(
        &self,
        name: &ClusterName,
        cluster: &Arc<Cluster>,
        look: &Look,
        settled: &Settled,
        now: Moment,
    ) -> Option<ClusterStatus> {
        let mut conditions = cluster.status.conditions.clone();
        let mut show = |kind: &str, shown: Option<Condition>| match shown {
            Some(shown) => {
                conditions::set(&mut conditions, shown);
            }
            None => conditions.retain(|one| one.type_ != kind),
        };
        show(condition::READY, Some(settled.ready.clone()));
        show(condition::HEALTH_SIGNALS, settled.signals.clone());
        show(condition::ANNOTATIONS_KNOWN, clusters::annotations_condition(cluster, now.wall));
        let is_well = look.signals.readyz == Health::Healthy && settled.ready.status == "True";
        if conditions == cluster.status.conditions && (!is_well || self.is_shown(name, cluster, look)) {
            return None;
        }
        let mut status = ClusterStatus { conditions, ..cluster.status.clone() };
        let mut found = None;
        if is_well {
            match self.collect_details(name, cluster, look, &mut status).await {
                Ok(details) => found = details,
                Err(error) => tracing::warn!(cluster = %name, %error, "cannot collect the status of a cluster"),
            }
        }
        if status != cluster.status {
            return Some(status);
        }
        let shown = found.map(|(served, summary)| Shown { cluster: Arc::clone(cluster), served, summary });
        self.note(name.as_str(), |known| known.shown = shown);
        None
    }

    /// True if the status of a Cluster shows the current state of its member.
    fn is_shown(&self, name: &ClusterName, cluster: &Arc<Cluster>, look: &Look) -> bool {
        let served = self.context.cache.served(name);
        let summary = self.capacity.summary(name, self.models(cluster));
        let (Some(served), Some(summary)) = (served, summary) else { return false };
        let is_same = |shown: &Shown| {
            Arc::ptr_eq(&shown.cluster, cluster)
                && Arc::ptr_eq(&shown.served, &served)
                && Arc::ptr_eq(&shown.summary, &summary)
        };
        look.signals.api.is_ok()
            && look.version == cluster.status.kubernetes_version
            && self.note(name.as_str(), |known| known.shown.as_ref().is_some_and(is_same)).unwrap_or_default()
    }

    fn models<'c>(&self, cluster: &'c Cluster) -> &'c [ResourceModel] {
        let modelled = self.context.config.gates.customized_cluster_resource_modeling;
        if modelled { cluster.spec.resource_models.as_slice() } else { &[] }
    }

    /// Collects API resources and resource summary. Returns them if both are known.
    async fn collect_details(
        &self,
        name: &ClusterName,
        cluster: &Cluster,
        look: &Look,
        status: &mut ClusterStatus,
    ) -> Result<Option<(Arc<ApiResources>, Arc<Summary>)>, Error> {
        let context = &self.context;
        if let Err(why) = &look.signals.api {
            tracing::warn!(cluster = %name, why, "cannot read the Kubernetes version");
        }
        status.kubernetes_version.clone_from(&look.version);
        // Another version can serve other kinds without a changed CustomResourceDefinition.
        let is_known = cluster.status.kubernetes_version == look.version;
        let served = match context.cache.served(name).filter(|_| is_known) {
            Some(served) => {
                context.catalog.update_from_cache(name, &served);
                served
            }
            None => context.catalog.refresh(name).await?,
        };
        self.note(name.as_str(), |known| known.reported = Some(Arc::clone(&served)));
        // Resources that only have subresources (custom metrics) have no kind.
        let resources = served
            .resources
            .iter()
            .filter(|resource| !resource.kind.is_empty())
            .map(|resource| (resource.gvr.api_version(), resource.gvr.resource.to_string(), resource.kind.clone()));
        status.api_enablements = clusters::api_enablements(resources);
        let complete = served.stale.is_empty();
        let now = context.moment().wall;
        conditions::set(&mut status.conditions, clusters::api_condition(&status.api_enablements, complete, now));
        self.capacity.follow(name);
        for kind in [&context.kinds.node, &context.kinds.pod] {
            context.cache.wait_synced(name, &kind.gvr, Duration::from_secs(5)).await;
        }
        let Some(summary) = self.capacity.summary(name, self.models(cluster)) else { return Ok(None) };
        status.node_summary = Some(summary.nodes.clone());
        status.resource_summary = Some(summary.resources.clone());
        Ok(Some((served, summary)))
    }
}
