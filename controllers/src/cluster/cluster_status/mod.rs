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
use crate::cache::capacity::MemberSummary;
use crate::cluster::cluster::{ClusterController, PRECONDITION_RETRY, ReportedStatus};
use crate::runtime::config::Config;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Setup, Source, Switch, Trigger, Watch, WellKnownKinds};
use crowsnest_plan::clusters::{self, Health, Thresholds};
use crowsnest_plan::conditions;
use crowsnest_plan::eviction::Safety;
use crowsnest_plan::health::doubt::is_confirmed_down;
use crowsnest_plan::health::{self, Moment, ReadinessSettings, Signals};
use crowsnest_plan::journal::clusters as journal;

/// Range of the fraction of the period after which a pending change of Ready is checked again. The fraction is random:
/// regular probes could always coincide with the failures of a member that fails periodically.
const PENDING_PERIOD_FRACTION: (f64, f64) = (0.3, 0.7);

/// Maximum wait for the credentials of a new Cluster: their Secret arrives on another watch.
const SECRET_TIMEOUT: Duration = Duration::from_secs(2);

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

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        let clusters = Source::clusters(kinds);
        vec![clusters.map(|controller: &Self, change| {
            controller.clusters.on_route_change(change, |route| route != Some(MemberRoute::AgentIfConnected))
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

    fn key_source(self: Arc<Self>, stop: CancellationToken) -> Option<BoxFuture<'static, Result<(), String>>> {
        Some(self.watch_api_resources(stop).boxed())
    }
}

impl ClusterStatusController {
    /// Enqueues a cluster when its collectors discover API resources that differ from its status.
    pub async fn watch_api_resources(self: Arc<Self>, stop: CancellationToken) -> Result<(), String> {
        let mut version = self.clusters.context.cache.served_version();
        loop {
            version.borrow_and_update();
            let reported: Vec<(ClusterName, Arc<ApiResources>)> = {
                let observations = self.clusters.observations.lock();
                observations
                    .iter()
                    .filter_map(|(name, observations)| {
                        Some((name.clone(), observations.reported_api_resources.clone()?))
                    })
                    .collect()
            };
            for (name, reported) in reported {
                let served = self.clusters.context.cache.served_apis(&name);
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
struct ProbeResult {
    signals: Signals,
    /// Kubernetes version.
    version: String,
}

/// Conditions to write after a probe.
struct ReadinessDecision {
    ready: Condition,
    /// The condition about the health signals.
    signals: Option<Condition>,
    /// Reason of a change of Ready.
    change_reason: Option<String>,
    /// True if Ready will change if the next probes confirm the current one.
    is_pending: bool,
}

impl ClusterController {
    pub(crate) async fn reconcile_status(&self, member: ClusterName) -> Result<Outcome, Error> {
        let context = &self.context;
        let name = member.as_str();
        let Some((cluster, typed)) = context.get_full_cluster(name).await? else { return Ok(Outcome::Done) };
        // Karmada's agent reports its cluster; Crowsnest's agent only provides the tunnel.
        if unstructured::is_terminating(&cluster) || MemberRoute::from_cluster(&typed) == MemberRoute::AgentIfConnected
        {
            return Ok(Outcome::Done);
        }
        if !unstructured::has_finalizer(&cluster, finalizer::CLUSTER_CONTROLLER) {
            return Ok(Outcome::RequeueAfter(PRECONDITION_RETRY));
        }
        let Some(registered) = self.wait_for_credentials(&member).await else {
            return Ok(Outcome::RequeueAfter(PRECONDITION_RETRY));
        };
        let started_at = Instant::now();
        let probed = self.probe(&member, &registered).await;
        let now = context.moment();
        let decision = match context.config.failover_safety {
            Safety::Safe => self.decide_readiness(name, &typed, &probed.signals, now).await,
            Safety::Karmada => self.decide_readiness_as_karmada(name, &typed, &probed.signals.readyz, now),
        };
        if let Some(status) = self.desired_status(&member, &typed, &probed, &decision, now).await {
            // Replaced rather than merged, because resources that are no longer used must be removed from the
            // summary.
            let mut updated = cluster.as_ref().clone();
            unstructured::set(&mut updated, &["status"], json!(status));
            match context.replace_status(&context.kinds.cluster, &updated).await {
                Err(error) if error.is_conflict() => return Ok(Outcome::RequeueAfter(PRECONDITION_RETRY)),
                result => result?,
            };
            if let Some(cause) = decision.change_reason {
                let before = conditions::find(&typed.status.conditions, condition::READY).map(|ready| &*ready.status);
                let written = Cluster { status, ..Cluster::clone(&typed) };
                let entry = journal::readiness_entry(&written, before, &cause, context.config.clock.wall());
                context.journal.add_all(entry).await;
            }
        }
        context.metrics.record_status_collection(name, started_at.elapsed());
        let period = context.config.periods.cluster_status;
        let next = if decision.is_pending { jitter(period, PENDING_PERIOD_FRACTION, rand::random()) } else { period };
        Ok(Outcome::RequeueAfter(next))
    }

    /// Waits at most [`SECRET_TIMEOUT`] for complete credentials of a member, and returns the member with or without
    /// them. `None` if it is not registered yet.
    async fn wait_for_credentials(&self, name: &ClusterName) -> Option<Arc<Member>> {
        let fleet = &self.context.fleet;
        let is_complete =
            |member: &Arc<Member>| matches!(member.connection(), Ok(_) | Err(crowsnest_members::Error::NoTunnel(_)));
        if let Some(member) = fleet.member(name).filter(is_complete) {
            return Some(member);
        }
        let mut changes = fleet.changes();
        let completed = async {
            while changes.next().await.is_some() {
                if let Some(member) = fleet.member(name).filter(is_complete) {
                    return Some(member);
                }
            }
            None
        };
        let member = tokio::time::timeout(SECRET_TIMEOUT, completed).await.ok().flatten();
        member.or_else(|| fleet.member(name))
    }

    /// Probes a member, and collects the signals for the decision about its readiness.
    async fn probe(&self, name: &ClusterName, member: &Member) -> ProbeResult {
        let tunnel = (MemberRoute::from_cluster(member.cluster()) == MemberRoute::AgentOnly)
            .then(|| self.context.fleet.tunnels().is_open(name));
        let watches = self.context.cache.watches(name);
        let probe = member.probe().await;
        let readyz = match (member.connection(), probe.is_online, probe.is_healthy) {
            (Err(error), ..) if !matches!(error, crowsnest_members::Error::NoTunnel(_)) => {
                Health::NoClient(error.to_string())
            }
            (_, true, true) => Health::Healthy,
            (_, true, false) => Health::Unhealthy(probe.message),
            (_, false, _) => Health::Unreachable(probe.message),
        };
        let (version, api) = match probe.version {
            Ok(version) => (version, Ok(())),
            Err(reason) => (String::new(), Err(reason)),
        };
        ProbeResult { signals: Signals { readyz, api, watches, tunnel }, version }
    }

    /// Decides from the history of the health signals if a member is ready. Ready does not become false while the loss
    /// is doubted, or while probes of other clusters are awaited.
    async fn decide_readiness(
        &self,
        name: &str,
        cluster: &Cluster,
        signals: &Signals,
        now: Moment,
    ) -> ReadinessDecision {
        let periods = &self.context.config.periods;
        let settings = ReadinessSettings {
            success: periods.cluster_success_threshold,
            failure: periods.cluster_failure_threshold,
            period: periods.cluster_status,
        };
        let reported = conditions::find(&cluster.status.conditions, condition::READY);
        let last = self.with_observations(name, |observations| observations.history.clone()).flatten();
        let evaluation = health::evaluate(signals, last.as_ref(), reported, &settings, now);
        let becomes_unready = health::becomes_unready(reported, &evaluation.ready);
        let mut doubt = self.evaluate_doubt(cluster, evaluation.history.lost_since());
        let is_plausible = doubt.is_none() && becomes_unready && !is_confirmed_down(cluster);
        let must_wait = is_plausible
            && self.must_wait_for_probes(name, evaluation.history.lost_since(), settings.failure, now.mono);
        if is_plausible && !must_wait {
            doubt = self.check_control_plane().await;
        }
        let is_held = becomes_unready && (must_wait || doubt.is_some());
        let ready = reported.filter(|_| is_held).cloned().unwrap_or(evaluation.ready);
        let before = conditions::find(&cluster.status.conditions, condition::HEALTH_SIGNALS);
        let signals_condition =
            health::signals_condition(signals, &evaluation.history, &ready, doubt.as_ref(), before, now.wall);
        let is_pending = ready.status == "True" && evaluation.history.lost_since().is_some() && doubt.is_none();
        if let Some(doubt) = doubt.filter(|_| before.is_none_or(|before| before.reason != signals_condition.reason)) {
            tracing::warn!(cluster = name, %doubt, "a cluster's readiness is doubted");
        }
        let is_changed = reported.is_some_and(|reported| reported.status != ready.status);
        let change_reason = is_changed.then(|| health::describe(signals, &evaluation.history));
        self.with_observations(name, |observations| observations.history = Some(evaluation.history));
        ReadinessDecision { ready, signals: Some(signals_condition), change_reason, is_pending }
    }

    /// Decides by Karmada's rule: the health check and its thresholds.
    fn decide_readiness_as_karmada(
        &self,
        name: &str,
        cluster: &Cluster,
        health: &Health,
        now: Moment,
    ) -> ReadinessDecision {
        let periods = &self.context.config.periods;
        let mut ready = clusters::ready_condition(health, now.wall);
        let reported = conditions::find(&cluster.status.conditions, condition::READY);
        if !matches!(health, Health::NoClient(_)) {
            let thresholds =
                Thresholds { success: periods.cluster_success_threshold, failure: periods.cluster_failure_threshold };
            let last = self.with_observations(name, |observations| observations.observed_readiness).flatten();
            let (adjusted, observed) = clusters::apply_thresholds(ready, reported, last, thresholds, now.mono);
            self.with_observations(name, |observations| observations.observed_readiness = Some(observed));
            ready = adjusted;
        }
        let is_changed = reported.is_some_and(|reported| reported.status != ready.status);
        let change_reason = is_changed.then(|| ready.message.clone());
        ReadinessDecision { ready, signals: None, change_reason, is_pending: false }
    }

    /// The desired status after a probe. `None` if it is up to date.
    async fn desired_status(
        &self,
        name: &ClusterName,
        cluster: &Arc<Cluster>,
        probed: &ProbeResult,
        decision: &ReadinessDecision,
        now: Moment,
    ) -> Option<ClusterStatus> {
        let mut conditions = cluster.status.conditions.clone();
        let mut set_or_remove = |kind: &str, new: Option<Condition>| match new {
            Some(new) => {
                conditions::set(&mut conditions, new);
            }
            None => conditions.retain(|existing| existing.type_ != kind),
        };
        set_or_remove(condition::READY, Some(decision.ready.clone()));
        set_or_remove(condition::HEALTH_SIGNALS, decision.signals.clone());
        set_or_remove(condition::ANNOTATIONS_KNOWN, clusters::annotations_condition(cluster, now.wall));
        let is_healthy = probed.signals.readyz == Health::Healthy && decision.ready.status == "True";
        if conditions == cluster.status.conditions && (!is_healthy || self.is_up_to_date(name, cluster, probed)) {
            return None;
        }
        let mut status = ClusterStatus { conditions, ..cluster.status.clone() };
        let mut details = None;
        if is_healthy {
            match self.collect_details(name, cluster, probed, &mut status).await {
                Ok(collected) => details = collected,
                Err(error) => tracing::warn!(cluster = %name, %error, "cannot collect the status of a cluster"),
            }
        }
        if status != cluster.status {
            return Some(status);
        }
        let reported =
            details.map(|(served, summary)| ReportedStatus { cluster: Arc::clone(cluster), served, summary });
        self.with_observations(name.as_str(), |observations| observations.reported_status = reported);
        None
    }

    /// True if the status of a Cluster shows the current state of its member.
    fn is_up_to_date(&self, name: &ClusterName, cluster: &Arc<Cluster>, probed: &ProbeResult) -> bool {
        let served = self.context.cache.served_apis(name);
        let summary = self.capacity.summary(name, self.models(cluster));
        let (Some(served), Some(summary)) = (served, summary) else { return false };
        let is_same = |reported: &ReportedStatus| {
            Arc::ptr_eq(&reported.cluster, cluster)
                && Arc::ptr_eq(&reported.served, &served)
                && Arc::ptr_eq(&reported.summary, &summary)
        };
        probed.signals.api.is_ok()
            && probed.version == cluster.status.kubernetes_version
            && self
                .with_observations(name.as_str(), |observations| {
                    observations.reported_status.as_ref().is_some_and(is_same)
                })
                .unwrap_or_default()
    }

    fn models<'c>(&self, cluster: &'c Cluster) -> &'c [ResourceModel] {
        let is_modeled = self.context.config.gates.customized_cluster_resource_modeling;
        if is_modeled { cluster.spec.resource_models.as_slice() } else { &[] }
    }

    /// Collects API resources and resource summary. Returns them if both are known.
    async fn collect_details(
        &self,
        name: &ClusterName,
        cluster: &Cluster,
        probed: &ProbeResult,
        status: &mut ClusterStatus,
    ) -> Result<Option<(Arc<ApiResources>, Arc<MemberSummary>)>, Error> {
        let context = &self.context;
        if let Err(reason) = &probed.signals.api {
            tracing::warn!(cluster = %name, reason, "cannot read the Kubernetes version");
        }
        status.kubernetes_version.clone_from(&probed.version);
        // Another version can serve other kinds without a changed CustomResourceDefinition.
        let is_same_version = cluster.status.kubernetes_version == probed.version;
        let served = match context.cache.served_apis(name).filter(|_| is_same_version) {
            Some(served) => {
                context.rest_mapper.update_from_cache(name, &served);
                served
            }
            None => context.rest_mapper.refresh(name).await?,
        };
        self.with_observations(name.as_str(), |observations| {
            observations.reported_api_resources = Some(Arc::clone(&served))
        });
        // Resources that only have subresources (custom metrics) have no kind.
        let resources = served
            .resources
            .iter()
            .filter(|resource| !resource.kind.is_empty())
            .map(|resource| (resource.gvr.api_version(), resource.gvr.resource.to_string(), resource.kind.clone()));
        status.api_enablements = clusters::api_enablements(resources);
        let is_complete = served.stale.is_empty();
        let now = context.moment().wall;
        conditions::set(&mut status.conditions, clusters::api_condition(&status.api_enablements, is_complete, now));
        self.capacity.collect(name);
        for kind in [&context.kinds.node, &context.kinds.pod] {
            context.cache.wait_until_synced(name, &kind.gvr, Duration::from_secs(5)).await;
        }
        let Some(summary) = self.capacity.summary(name, self.models(cluster)) else { return Ok(None) };
        status.node_summary = Some(summary.nodes.clone());
        status.resource_summary = Some(summary.resources.clone());
        Ok(Some((served, summary)))
    }
}
