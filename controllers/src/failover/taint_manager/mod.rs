//! Taint manager and graceful eviction: evicts bindings from clusters with NoExecute taints that they do not
//! tolerate, and removes the evicted copy once its replacement is healthy. [`crate::cache::placements`] finds the
//! bindings of a cluster; the [`RateGate`] limits the rate of evictions from clusters that are not ready.

mod halt_reporter;
mod rate_gate;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::constants::{annotation, event, eviction};
use crowsnest_api::keys::BindingKey;
use crowsnest_api::policy::PurgeMode;
use crowsnest_api::work::{GracefulEvictionTask, ResourceBinding, ResourceBindingSpec};
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_apimachinery::taints;
use crowsnest_apimachinery::unstructured;
use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::time::Instant;

pub use self::halt_reporter::HaltReporter;
use self::rate_gate::{RateGate, Verdict};
use crate::Error;
use crate::cache::Change;
use crate::failover::failback;
use crate::failover::graceful_eviction::exclusive::is_declared_exclusive;
use crate::metrics::WaitingEvictions;
use crate::runtime::config::Config;
use crate::runtime::context::{Context, decode};
use crate::runtime::dynamic_client::Resource;
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Trigger, Watch, WellKnownKinds};
use crate::shared::clusters::is_ready;
use crowsnest_plan::eviction::failback::OriginalPlacement;
use crowsnest_plan::eviction::rate::ClusterEvictionState;
use crowsnest_plan::eviction::safety::{self, Cancellation};
use crowsnest_plan::eviction::state::preserved_labels;
use crowsnest_plan::eviction::tasks::{self, EvictionInput};
use crowsnest_plan::eviction::{self as plan, TaintDecision};
use crowsnest_plan::journal::workloads::{self as journal, BindingChange, Clusters};

/// The name in `--controllers` that enables completing evictions.
const GRACEFUL_EVICTION: &str = "gracefulEviction";

pub struct TaintManager {
    context: Arc<Context>,
    bindings: Trigger<BindingKey>,
    /// Clusters whose condition `EvictionsHalted` must be updated.
    halts: Trigger<ClusterName>,
    gate: RateGate,
    waiting: Arc<WaitingEvictions>,
}

/// A binding as it was read for a reconciliation.
struct BindingSnapshot<'a> {
    key: &'a BindingKey,
    binding: &'a Arc<Value>,
    typed: &'a ResourceBinding,
    now: Timestamp,
}

/// Planned changes of a binding.
struct EvictionPlan {
    spec: ResourceBindingSpec,
    /// Delay of the next reconcile.
    requeue_delay: Option<Duration>,
    cancelled: Option<Cancellation>,
    /// Clusters from which the binding must not be evicted yet.
    waiting_clusters: BTreeSet<String>,
    /// True if the metrics count this reconcile: taints were evaluated, and the binding does not merely wait.
    is_processed: bool,
}

impl EvictionPlan {
    fn requeue_after(&mut self, delay: Duration) {
        self.requeue_delay = Some(self.requeue_delay.map_or(delay, |earlier| earlier.min(delay)));
    }
}

impl TaintManager {
    fn on_binding(&self, change: &Change) -> Requests<BindingKey> {
        let Some(new) = change.current() else {
            self.forget(&BindingKey::from_object(change.object()));
            return Requests::none();
        };
        let evicts = || self.evicts_by_taint() && may_change_placement(change) && self.has_tainted_target(new);
        Requests::one_if(has_eviction_tasks(new) || evicts(), || BindingKey::from_object(change.object()))
    }

    fn on_cluster(&self, change: &Change) -> Requests<BindingKey> {
        let name = unstructured::name(change.object());
        match change.current().map(ClusterEvictionState::from_cluster).transpose() {
            Ok(state) => self.update_cluster(name, state).into_iter().collect(),
            Err(error) => {
                tracing::warn!(name, %error, "cannot decode a Cluster");
                Requests::none()
            }
        }
    }

    /// Updates the state of a cluster. Returns the affected bindings.
    fn update_cluster(&self, name: &str, state: Option<ClusterEvictionState>) -> Vec<BindingKey> {
        let update = self.gate.update_cluster(name, state);
        update
            .outdated_conditions
            .iter()
            .filter_map(|name| ClusterName::parse(name).ok())
            .for_each(|name| self.halts.add(name));
        let Some(change) = update.eviction_change else { return Vec::new() };
        let all = change.has_taint && self.evicts_by_taint();
        let placements = &self.context.placements;
        let mut bindings = if all { placements.bindings_in(name) } else { placements.bindings_evicted_from(name) };
        bindings.extend(update.resumed);
        bindings
    }

    /// Drops the state of a binding that no longer waits.
    fn forget(&self, key: &BindingKey) {
        self.gate.forget(key);
        self.waiting.remove(key);
    }

    fn evicts_by_taint(&self) -> bool {
        self.context.config.evicts_by_taint()
    }

    /// True if this controller completes graceful evictions, regardless of their producer.
    fn completes_evictions(&self) -> bool {
        self.context.config.controllers.is_enabled(GRACEFUL_EVICTION)
    }

    /// True if a binding is assigned to a cluster with NoExecute taints.
    fn has_tainted_target(&self, binding: &Value) -> bool {
        let clusters = unstructured::at(binding, &["spec", "clusters"]).and_then(Value::as_array);
        clusters
            .into_iter()
            .flatten()
            .any(|target| self.gate.has_no_execute_taint(unstructured::text(target, &["name"])))
    }
}

impl Controller for TaintManager {
    type Key = BindingKey;
    const NAME: &'static str = "resource-binding-graceful-eviction-controller";
    /// `gracefulEviction` enables only the completion of evictions; other flags enable evictions by taint.
    const SWITCH: Switch = Switch::Parts(&[GRACEFUL_EVICTION]);

    fn new(setup: &Setup) -> Self {
        let context = setup.context();
        let waiting: Arc<WaitingEvictions> = Arc::default();
        context.metrics.register_evictions(setup.queue::<Self>(), Arc::clone(&waiting));
        let (bindings, halts) = (setup.trigger::<Self>(), setup.trigger::<HaltReporter>());
        TaintManager { gate: RateGate::new(&context.config), context, bindings, halts, waiting }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![Source::clusters(kinds).map(Self::on_cluster), Source::bindings(kinds).map(Self::on_binding)]
    }

    /// Bindings that must be evicted from a cluster, or are being evicted.
    async fn keys(&self) -> Result<Vec<BindingKey>, Error> {
        let placements = &self.context.placements;
        let tainted = if self.evicts_by_taint() { self.gate.tainted_clusters() } else { Vec::new() };
        let from_tainted = tainted.iter().flat_map(|cluster| placements.bindings_in(cluster));
        // A set, because a worker can finish a key before its duplicate is enqueued, and would then process it twice.
        let keys: HashSet<BindingKey> = placements.all_evicted_bindings().into_iter().chain(from_tainted).collect();
        Ok(keys.into_iter().collect())
    }

    fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>) {
        if cluster.is_control_plane() && *resource == self.context.kinds.cluster {
            let deleted = self.gate.deleted_clusters(|name| keys.contains(&NamespacedName::cluster_scoped(name)));
            let affected = deleted.iter().flat_map(|name| self.update_cluster(name, None));
            affected.for_each(|key| self.bindings.add(key));
        }
    }

    fn workers(config: &Config) -> usize {
        config.workers.bindings
    }

    async fn reconcile(self: Arc<Self>, key: BindingKey) -> Result<Outcome, Error> {
        let Some(binding) = self.context.active_binding(&key).await? else {
            self.forget(&key);
            return Ok(Outcome::Done);
        };
        let started_at = Instant::now();
        let typed: ResourceBinding = decode(&binding)?;
        let snapshot = BindingSnapshot { key: &key, binding: &binding, typed: &typed, now: self.context.now() };
        let mut eviction_plan = EvictionPlan {
            spec: typed.spec.clone(),
            requeue_delay: None,
            cancelled: None,
            waiting_clusters: BTreeSet::new(),
            is_processed: false,
        };
        let resource = self.context.kinds.binding(key.scope());
        let done = self.process(resource, &snapshot, &mut eviction_plan).await;
        if done.is_ok() {
            self.waiting.put(&key, std::mem::take(&mut eviction_plan.waiting_clusters));
        }
        if eviction_plan.is_processed {
            self.context.metrics.record_eviction(&key, started_at.elapsed(), done.is_ok());
        }
        done
    }
}

impl TaintManager {
    async fn process(
        &self,
        resource: &Resource,
        snapshot: &BindingSnapshot<'_>,
        eviction_plan: &mut EvictionPlan,
    ) -> Result<Outcome, Error> {
        // An error while evaluating taints must not delay evictions in progress.
        let taint_error = match self.evict(snapshot, eviction_plan).await {
            Ok(()) => None,
            Err(error @ (Error::Placement(_) | Error::State(_))) => Some(error),
            Err(error) => return Err(error),
        };
        if self.completes_evictions() && !eviction_plan.spec.graceful_eviction_tasks.is_empty() {
            self.update_tasks(snapshot, eviction_plan).await?;
        }
        if eviction_plan.spec != snapshot.typed.spec {
            self.write(resource, snapshot, eviction_plan).await?;
        }
        match taint_error {
            Some(error) => Err(error),
            None => Ok(eviction_plan.requeue_delay.map_or(Outcome::Done, Outcome::RequeueAfter)),
        }
    }

    /// Plans evictions from all clusters where one is due and permitted, and the time of the next reconcile.
    async fn evict(&self, snapshot: &BindingSnapshot<'_>, eviction_plan: &mut EvictionPlan) -> Result<(), Error> {
        if !self.evicts_by_taint() {
            return Ok(());
        }
        let (mut due, mut limited) = (Vec::new(), Vec::new());
        for target in &snapshot.typed.spec.clusters {
            let Some(cluster) = self.context.cluster(&target.name).await? else { continue };
            if !cluster.spec.taints.iter().any(|taint| taint.effect == taints::NO_EXECUTE) {
                continue;
            }
            eviction_plan.is_processed = true;
            match plan::evaluate_taints(&cluster, &tolerations(snapshot.binding)?, snapshot.now) {
                TaintDecision::Stay => {}
                TaintDecision::EvictAt(at) if at > snapshot.now => {
                    eviction_plan.requeue_after(delay_until(at, snapshot.now))
                }
                TaintDecision::EvictAt(_) if self.gate.is_rate_limited(is_ready(&cluster)) => {
                    limited.push(target.name.as_str())
                }
                TaintDecision::EvictAt(_) => due.push(target.name.as_str()),
            }
        }
        self.waiting.put(snapshot.key, due.iter().chain(&limited).map(|cluster| (*cluster).to_owned()).collect());
        if limited.is_empty() {
            self.gate.forget(snapshot.key);
        } else {
            match self.gate.request_eviction(snapshot.key, limited.len(), Instant::now().into_std()) {
                Verdict::Evict => due.append(&mut limited),
                Verdict::RetryAfter(wait) => eviction_plan.requeue_after(wait),
                Verdict::Halted => {}
            }
        }
        eviction_plan.waiting_clusters = limited.iter().map(|cluster| (*cluster).to_owned()).collect();
        if due.is_empty() {
            eviction_plan.is_processed &= eviction_plan.waiting_clusters.is_empty();
            return Ok(());
        }
        let spec = &snapshot.typed.spec;
        // The replacement of an exclusive workload cannot start before the copy is deleted.
        let mode = match is_declared_exclusive(&self.context, snapshot.binding, spec).await? {
            true => PurgeMode::Directly,
            false => plan::purge_mode(spec.failover.as_ref(), self.context.config.no_execute_purge_mode.clone()),
        };
        // A cluster whose state cannot be preserved does not delay evictions from others. The first error is returned.
        let mut result = Ok(());
        for cluster in due {
            result = result.and(self.evict_from(cluster, &mode, snapshot, eviction_plan));
        }
        result
    }

    /// Plans the eviction from a cluster. Fails, with an event, if the state of the workload cannot be preserved.
    fn evict_from(
        &self,
        cluster: &str,
        mode: &PurgeMode,
        snapshot: &BindingSnapshot<'_>,
        eviction_plan: &mut EvictionPlan,
    ) -> Result<(), Error> {
        let failover = snapshot.typed.spec.failover.as_ref();
        let rules = failover.and_then(|failover| failover.cluster.as_ref()?.state_preservation.as_ref());
        let rules =
            rules.filter(|rules| self.context.config.gates.stateful_failover_injection && !rules.rules.is_empty());
        let state = rules.map(|rules| preserved_labels(rules, &snapshot.typed.status, cluster)).transpose();
        if let Err(error) = &state {
            let text = format!("Evict from cluster {cluster} failed: {error}.");
            let (binding, spec) = (snapshot.binding, &snapshot.typed.spec);
            let (events, failed) = (&self.context.events, event::EVICT_WORKLOAD_FAILED);
            events.record_with_template(binding, spec, Severity::Warning, failed, &text);
        }
        let task = GracefulEvictionTask {
            purge_mode: Some(mode.clone()),
            preserved_label_state: state?.unwrap_or_default(),
            reason: eviction::REASON_TAINT_UNTOLERATED.to_owned(),
            producer: eviction::PRODUCER_TAINT_MANAGER.to_owned(),
            creation_timestamp: Some(Time(snapshot.now)),
            ..GracefulEvictionTask::default()
        };
        if let Some(evicted) = plan::evict(&eviction_plan.spec, cluster, task) {
            eviction_plan.spec = evicted;
        }
        Ok(())
    }

    /// Completes and cancels evictions.
    async fn update_tasks(
        &self,
        snapshot: &BindingSnapshot<'_>,
        eviction_plan: &mut EvictionPlan,
    ) -> Result<(), Error> {
        let clusters = self.existing_clusters(&eviction_plan.spec).await?;
        let applied_tolerations = tolerations(snapshot.binding).ok();
        let timeout = self.context.config.periods.graceful_eviction_timeout;
        let before = EvictionInput {
            safety: self.context.config.failover_safety,
            generation: unstructured::generation(snapshot.binding),
            spec: &snapshot.typed.spec,
            status: &snapshot.typed.status,
            timeout: SignedDuration::try_from(timeout).unwrap_or(SignedDuration::MAX),
            clusters: &clusters,
            tolerations: applied_tolerations.as_deref(),
        };
        if self.evicts_by_taint()
            && eviction_plan.spec == snapshot.typed.spec
            && let Some(cancelled) = safety::cancel_tasks(&before, snapshot.now)
        {
            eviction_plan.spec.clone_from(&cancelled.spec);
            eviction_plan.cancelled = Some(cancelled);
        }
        // The scheduler has not observed the change made here, so nothing counts as replaced.
        let generation = if eviction_plan.spec == snapshot.typed.spec { before.generation } else { i64::MAX };
        let tasks = tasks::plan_tasks(&EvictionInput { spec: &eviction_plan.spec, generation, ..before }, snapshot.now);
        eviction_plan.spec.graceful_eviction_tasks = tasks.tasks;
        if let Some(at) = tasks.next_check {
            eviction_plan.requeue_after(delay_until(at, snapshot.now));
        }
        Ok(())
    }

    /// Existing clusters among the targets and the sources of evictions.
    async fn existing_clusters(&self, spec: &ResourceBindingSpec) -> Result<Clusters, Error> {
        let targets = spec.clusters.iter().map(|target| &target.name);
        let names = targets.chain(spec.graceful_eviction_tasks.iter().map(|task| &task.from_cluster));
        let mut clusters = Clusters::new();
        for name in names {
            if let Some(cluster) = self.context.cluster(name).await? {
                clusters.insert(name.clone(), cluster);
            }
        }
        Ok(clusters)
    }

    async fn write(
        &self,
        resource: &Resource,
        snapshot: &BindingSnapshot<'_>,
        eviction_plan: &EvictionPlan,
    ) -> Result<(), Error> {
        let context = &self.context;
        let spec = &eviction_plan.spec;
        let mut binding = Arc::clone(snapshot.binding);
        // The affinity term is written first, so that a scheduler that runs in between starts with it.
        if let Some(affinity) = eviction_plan.cancelled.as_ref().and_then(|cancelled| cancelled.affinity.as_ref()) {
            let patch = json!({"status": {"schedulerObservingAffinityName": affinity}});
            binding = Arc::new(context.merge_status(resource, &binding, patch).await?);
        }
        let list = |value: Value| if value == json!([]) { Value::Null } else { value };
        let mut patch = json!({"spec": {
            "clusters": list(json!(spec.clusters)),
            "gracefulEvictionTasks": list(json!(spec.graceful_eviction_tasks)),
        }});
        if let Some(original) = self.original_placement(snapshot, eviction_plan).await? {
            unstructured::set(&mut patch, &["metadata", "annotations", annotation::ORIGINAL_CLUSTERS], json!(original));
        }
        let mut clusters = self.existing_clusters(&snapshot.typed.spec).await?;
        clusters.append(&mut self.existing_clusters(spec).await?);
        let written = context.merge(resource, &binding, patch).await;
        self.record_events(snapshot, eviction_plan, written.as_ref());
        self.record_journal_entries(snapshot, eviction_plan, &written?, &clusters).await;
        Ok(())
    }

    /// Adds journal entries for started, continued and completed evictions.
    async fn record_journal_entries(
        &self,
        snapshot: &BindingSnapshot<'_>,
        eviction_plan: &EvictionPlan,
        written: &Value,
        clusters: &Clusters,
    ) {
        let (before, after) = (&snapshot.typed.spec, &eviction_plan.spec);
        let change = BindingChange::from_binding(written, before, self.context.config.clock.wall());
        let tolerations = tolerations(snapshot.binding).unwrap_or_default();
        let cancelled_clusters = eviction_plan.cancelled.as_ref().map_or(&[][..], |cancelled| &cancelled.clusters);
        let journal = &self.context.journal;
        journal.add_all(journal::eviction_entries(&change, (before, after), clusters, &tolerations)).await;
        let status = &snapshot.typed.status;
        journal
            .add_all(journal::ongoing_eviction_entries(&change, (before, after), status, cancelled_clusters, clusters))
            .await;
    }

    /// Original clusters of a workload that is evicted for the first time and has failback enabled.
    async fn original_placement(
        &self,
        snapshot: &BindingSnapshot<'_>,
        eviction_plan: &EvictionPlan,
    ) -> Result<Option<String>, Error> {
        let spec = &snapshot.typed.spec;
        let evicted = eviction_plan.spec.graceful_eviction_tasks.iter().any(|task| !spec.evicts(&task.from_cluster));
        if !evicted || unstructured::annotation(snapshot.binding, annotation::ORIGINAL_CLUSTERS).is_some() {
            return Ok(None);
        }
        if failback::find_failback_options(&self.context, snapshot.binding).await?.is_none() {
            return Ok(None);
        }
        let original = serde_json::to_string(&OriginalPlacement::from_binding(spec, &snapshot.typed.status));
        original.map(Some).map_err(|source| Error::Decode { object: "original placement".to_owned(), source })
    }

    /// Records events for evictions that completed, were cancelled, or continue beyond their timeout. Cancelled and
    /// continued evictions get an event on the binding only: their journal entries are the events on the template.
    fn record_events(
        &self,
        snapshot: &BindingSnapshot<'_>,
        eviction_plan: &EvictionPlan,
        written: Result<&Value, &Error>,
    ) {
        if written.is_err_and(Error::is_conflict) {
            return;
        }
        let record = |severity, reason, text: &str| {
            self.context.events.record_with_template(snapshot.binding, &snapshot.typed.spec, severity, reason, text);
        };
        let cancelled_clusters = eviction_plan.cancelled.as_ref().map_or(&[][..], |cancelled| &cancelled.clusters);
        for task in &snapshot.typed.spec.graceful_eviction_tasks {
            let cluster = &task.from_cluster;
            let tasks = &eviction_plan.spec.graceful_eviction_tasks;
            let remaining = tasks.iter().find(|remaining| remaining.from_cluster == *cluster);
            match (remaining, written.is_ok()) {
                (None, true) if cancelled_clusters.contains(cluster) => {
                    let text = format!("Evict from cluster {cluster} is cancelled: the copy has not been replaced.");
                    self.context.events.record(snapshot.binding, Severity::Normal, event::EVICTION_CANCELLED, text);
                }
                (None, true) => {
                    let text = format!("Evict from cluster {cluster} succeed.");
                    record(Severity::Normal, event::EVICT_WORKLOAD_SUCCEED, &text);
                }
                (None, false) => {
                    let text = format!("Evict from cluster {cluster} failed.");
                    record(Severity::Warning, event::EVICT_WORKLOAD_FAILED, &text);
                }
                (Some(remaining), true) if remaining.message != task.message => {
                    let message = remaining.message.trim_end_matches('.');
                    let text = format!("Evict from cluster {cluster} waits: {message}.");
                    self.context.events.record(snapshot.binding, Severity::Warning, event::EVICTION_WAITS, text);
                }
                (Some(_), _) => {}
            }
        }
    }
}

fn tolerations(binding: &Value) -> Result<Vec<Toleration>, Error> {
    Ok(plan::applied_tolerations(unstructured::annotation(binding, annotation::APPLIED_PLACEMENT))?)
}

/// True if a binding is being evicted from any cluster.
fn has_eviction_tasks(binding: &Value) -> bool {
    unstructured::at(binding, &["spec", "gracefulEvictionTasks"]).is_some()
}

/// True if the targets or tolerations of a binding may have changed.
fn may_change_placement(change: &Change) -> bool {
    let applied = |binding: &Value| unstructured::annotation(binding, annotation::APPLIED_PLACEMENT).map(str::to_owned);
    change.is_generation_changed() || change.old().is_none_or(|old| applied(old) != applied(change.object()))
}

fn delay_until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default().max(Duration::from_millis(100))
}
