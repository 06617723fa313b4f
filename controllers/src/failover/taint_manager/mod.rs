//! Taint manager and graceful eviction: evicts bindings from clusters with NoExecute taints that they do not
//! tolerate, and removes the evicted copy once its replacement is healthy. [`crate::cache::placements`] finds the
//! bindings of a cluster; the [`Gate`] limits the rate of evictions from clusters that are not ready.

mod rate_gate;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{annotation, condition, event, eviction};
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

use self::rate_gate::{Gate, Verdict};
use crate::Error;
use crate::cache::Change;
use crate::failover::failback;
use crate::failover::graceful_eviction::exclusive::is_declared;
use crate::metrics::Waiting;
use crate::runtime::config::Config;
use crate::runtime::context::{Context, decode};
use crate::runtime::dynamic_client::Resource;
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Trigger, Watch};
use crate::shared::clusters::is_ready;
use crowsnest_plan::conditions;
use crowsnest_plan::eviction::failback::OriginalPlacement;
use crowsnest_plan::eviction::rate::{ClusterEvictionState, EvictionRate};
use crowsnest_plan::eviction::safety::{self, Cancelled};
use crowsnest_plan::eviction::state::preserved;
use crowsnest_plan::eviction::tasks::{self, EvictionInput};
use crowsnest_plan::eviction::{self as plan, TaintDecision};
use crowsnest_plan::journal::clusters::halted as halted_entry;
use crowsnest_plan::journal::workloads::{self as journal, BindingChange, Clusters};

/// The name in `--controllers` that enables completing evictions.
const GRACEFUL_EVICTION: &str = "gracefulEviction";

pub struct TaintManager {
    context: Arc<Context>,
    bindings: Trigger<BindingKey>,
    /// Clusters whose condition `EvictionsHalted` must be updated.
    halts: Trigger<ClusterName>,
    gate: Gate,
    waiting: Arc<Waiting>,
}

/// A binding being reconciled.
struct Seen<'a> {
    key: &'a BindingKey,
    binding: &'a Arc<Value>,
    typed: &'a ResourceBinding,
    now: Timestamp,
}

/// Planned changes of a binding.
struct Planned {
    spec: ResourceBindingSpec,
    /// Requeue delay.
    wait: Option<Duration>,
    cancelled: Option<Cancelled>,
    /// Clusters from which it must not be evicted yet.
    waits: BTreeSet<String>,
    /// True if taints of its clusters were evaluated and the binding does not merely wait.
    is_processed: bool,
}

impl Planned {
    fn look_again(&mut self, wait: Duration) {
        self.wait = Some(self.wait.map_or(wait, |earlier| earlier.min(wait)));
    }
}

impl TaintManager {
    fn on_binding(&self, change: &Change) -> Requests<BindingKey> {
        let Some(new) = change.current() else {
            self.forget(&BindingKey::of(change.object()));
            return Requests::none();
        };
        let evicts = || self.evicts_by_taint() && may_change_placement(change) && self.is_driven_out(new);
        Requests::one_if(is_leaving(new) || evicts(), || BindingKey::of(change.object()))
    }

    fn on_cluster(&self, change: &Change) -> Requests<BindingKey> {
        let name = unstructured::name(change.object());
        match change.current().map(ClusterEvictionState::of).transpose() {
            Ok(standing) => self.learn(name, standing).into_iter().collect(),
            Err(error) => {
                tracing::warn!(name, %error, "cannot decode a Cluster");
                Requests::none()
            }
        }
    }

    /// Updates the state of a cluster. Returns the affected bindings.
    fn learn(&self, name: &str, standing: Option<ClusterEvictionState>) -> Vec<BindingKey> {
        let learned = self.gate.learn(name, standing);
        learned.shows.iter().filter_map(|name| ClusterName::parse(name).ok()).for_each(|name| self.halts.add(name));
        let Some(mattered) = learned.changed else { return Vec::new() };
        let all = mattered.evicts && self.evicts_by_taint();
        let placements = &self.context.placements;
        let mut bindings = if all { placements.within(name) } else { placements.leaving(name) };
        bindings.extend(learned.woken);
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
    fn ends_evictions(&self) -> bool {
        self.context.config.controllers.is_enabled(GRACEFUL_EVICTION)
    }

    /// True if a binding is assigned to a cluster with NoExecute taints.
    fn is_driven_out(&self, binding: &Value) -> bool {
        let clusters = unstructured::at(binding, &["spec", "clusters"]).and_then(Value::as_array);
        clusters.into_iter().flatten().any(|target| self.gate.evicts(unstructured::text(target, &["name"])))
    }
}

impl Controller for TaintManager {
    type Key = BindingKey;
    const NAME: &'static str = "resource-binding-graceful-eviction-controller";
    /// Evictions by taint run where they are configured; the name enables completing evictions.
    const SWITCH: Switch = Switch::Parts(&[GRACEFUL_EVICTION]);

    fn new(setup: &Setup) -> Self {
        let context = Arc::clone(&setup.context);
        let waiting: Arc<Waiting> = Arc::default();
        context.metrics.count_evictions(setup.queue::<Self>(), Arc::clone(&waiting));
        let (bindings, halts) = (setup.trigger::<Self>(), setup.trigger::<HaltReporter>());
        TaintManager { gate: Gate::new(&context.config), context, bindings, halts, waiting }
    }

    fn watches(&self) -> Vec<Watch<Self>> {
        let kinds = &self.context.kinds;
        vec![Source::of([&kinds.cluster]).map(Self::on_cluster), Source::of(kinds.bindings()).map(Self::on_binding)]
    }

    /// Bindings that must be evicted from a cluster, or are being evicted.
    async fn keys(&self) -> Result<Vec<BindingKey>, Error> {
        let placements = &self.context.placements;
        let tainted = if self.evicts_by_taint() { self.gate.evicting() } else { Vec::new() };
        let driven_out = tainted.iter().flat_map(|cluster| placements.within(cluster));
        // Without duplicates, even if a worker finishes a key before the next one is found.
        let keys: HashSet<BindingKey> = placements.all_leaving().into_iter().chain(driven_out).collect();
        Ok(keys.into_iter().collect())
    }

    fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>) {
        if cluster.is_control_plane() && *resource == self.context.kinds.cluster {
            let deleted = self.gate.gone(|name| keys.contains(&NamespacedName::cluster_scoped(name)));
            let concerned = deleted.iter().flat_map(|name| self.learn(name, None));
            concerned.for_each(|key| self.bindings.add(key));
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
        let began = Instant::now();
        let typed: ResourceBinding = decode(&binding)?;
        let seen = Seen { key: &key, binding: &binding, typed: &typed, now: self.context.now() };
        let mut planned = Planned {
            spec: typed.spec.clone(),
            wait: None,
            cancelled: None,
            waits: BTreeSet::new(),
            is_processed: false,
        };
        let resource = self.context.kinds.binding(key.scope());
        let done = self.process(resource, &seen, &mut planned).await;
        if done.is_ok() {
            self.waiting.put(&key, std::mem::take(&mut planned.waits));
        }
        if planned.is_processed {
            self.context.metrics.evicted(&key, began.elapsed(), done.is_ok());
        }
        done
    }
}

impl TaintManager {
    async fn process(&self, resource: &Resource, seen: &Seen<'_>, planned: &mut Planned) -> Result<Outcome, Error> {
        // An error while evaluating taints must not delay evictions in progress.
        let undecided = match self.evict(seen, planned).await {
            Ok(()) => None,
            Err(error @ (Error::Placement(_) | Error::State(_))) => Some(error),
            Err(error) => return Err(error),
        };
        if self.ends_evictions() && !planned.spec.graceful_eviction_tasks.is_empty() {
            self.settle_evictions(seen, planned).await?;
        }
        if planned.spec != seen.typed.spec {
            self.write(resource, seen, planned).await?;
        }
        match undecided {
            Some(error) => Err(error),
            None => Ok(planned.wait.map_or(Outcome::Done, Outcome::Again)),
        }
    }

    /// Evicts from all clusters where an eviction is due and allowed. Records when the next one is due.
    async fn evict(&self, seen: &Seen<'_>, planned: &mut Planned) -> Result<(), Error> {
        if !self.evicts_by_taint() {
            return Ok(());
        }
        let (mut due, mut guarded) = (Vec::new(), Vec::new());
        for target in &seen.typed.spec.clusters {
            let Some(cluster) = self.context.cluster(&target.name).await? else { continue };
            if !cluster.spec.taints.iter().any(|taint| taint.effect == taints::NO_EXECUTE) {
                continue;
            }
            planned.is_processed = true;
            match plan::by_taints(&cluster, &tolerations(seen.binding)?, seen.now) {
                TaintDecision::Stay => {}
                TaintDecision::EvictAt(at) if at > seen.now => planned.look_again(until(at, seen.now)),
                TaintDecision::EvictAt(_) if self.gate.guards(is_ready(&cluster)) => guarded.push(target.name.as_str()),
                TaintDecision::EvictAt(_) => due.push(target.name.as_str()),
            }
        }
        self.waiting.put(seen.key, due.iter().chain(&guarded).map(|cluster| (*cluster).to_owned()).collect());
        if guarded.is_empty() {
            self.gate.forget(seen.key);
        } else {
            match self.gate.ask(seen.key, guarded.len(), Instant::now().into_std()) {
                Verdict::Go => due.append(&mut guarded),
                Verdict::Later(wait) => planned.look_again(wait),
                Verdict::Halted => {}
            }
        }
        planned.waits = guarded.iter().map(|cluster| (*cluster).to_owned()).collect();
        if due.is_empty() {
            planned.is_processed &= planned.waits.is_empty();
            return Ok(());
        }
        let spec = &seen.typed.spec;
        // The replacement of an exclusive workload cannot start before the copy is deleted.
        let mode = match is_declared(&self.context, seen.binding, spec).await? {
            true => PurgeMode::Directly,
            false => plan::purge_mode(spec.failover.as_ref(), self.context.config.no_execute_purge_mode.clone()),
        };
        due.into_iter().try_for_each(|cluster| self.evict_from(cluster, &mode, seen, planned))
    }

    fn evict_from(&self, cluster: &str, mode: &PurgeMode, seen: &Seen<'_>, planned: &mut Planned) -> Result<(), Error> {
        let failover = seen.typed.spec.failover.as_ref();
        let rules = failover.and_then(|failover| failover.cluster.as_ref()?.state_preservation.as_ref());
        let rules =
            rules.filter(|rules| self.context.config.gates.stateful_failover_injection && !rules.rules.is_empty());
        let state = rules.map(|rules| preserved(rules, &seen.typed.status, cluster)).transpose()?;
        let task = GracefulEvictionTask {
            purge_mode: Some(mode.clone()),
            preserved_label_state: state.unwrap_or_default(),
            reason: eviction::REASON_TAINT_UNTOLERATED.to_owned(),
            producer: eviction::PRODUCER_TAINT_MANAGER.to_owned(),
            creation_timestamp: Some(Time(seen.now)),
            ..GracefulEvictionTask::default()
        };
        if let Some(evicted) = plan::evict(&planned.spec, cluster, task) {
            planned.spec = evicted;
        }
        Ok(())
    }

    /// Completes and cancels evictions.
    async fn settle_evictions(&self, seen: &Seen<'_>, planned: &mut Planned) -> Result<(), Error> {
        let clusters = self.clusters_of(&planned.spec).await?;
        let tolerated = tolerations(seen.binding).ok();
        let timeout = self.context.config.periods.graceful_eviction_timeout;
        let before = EvictionInput {
            safety: self.context.config.failover_safety,
            generation: unstructured::generation(seen.binding),
            spec: &seen.typed.spec,
            status: &seen.typed.status,
            timeout: SignedDuration::try_from(timeout).unwrap_or(SignedDuration::MAX),
            clusters: &clusters,
            tolerations: tolerated.as_deref(),
        };
        if self.evicts_by_taint()
            && planned.spec == seen.typed.spec
            && let Some(cancelled) = safety::cancelled(&before, seen.now)
        {
            planned.spec.clone_from(&cancelled.spec);
            planned.cancelled = Some(cancelled);
        }
        // The scheduler has not observed the change made here, so nothing counts as replaced.
        let generation = if planned.spec == seen.typed.spec { before.generation } else { i64::MAX };
        let tasks = tasks::tasks(&EvictionInput { spec: &planned.spec, generation, ..before }, seen.now);
        planned.spec.graceful_eviction_tasks = tasks.tasks;
        if let Some(at) = tasks.look_again {
            planned.look_again(until(at, seen.now));
        }
        Ok(())
    }

    /// Existing clusters among the targets and the sources of evictions.
    async fn clusters_of(&self, spec: &ResourceBindingSpec) -> Result<Clusters, Error> {
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

    async fn write(&self, resource: &Resource, seen: &Seen<'_>, planned: &Planned) -> Result<(), Error> {
        let context = &self.context;
        let spec = &planned.spec;
        let mut binding = Arc::clone(seen.binding);
        // Written first, so that a scheduler that runs in between starts with the right affinity term.
        if let Some(affinity) = planned.cancelled.as_ref().and_then(|cancelled| cancelled.affinity.as_ref()) {
            let patch = json!({"status": {"schedulerObservingAffinityName": affinity}});
            binding = Arc::new(context.merge_status(resource, &binding, patch).await?);
        }
        let list = |value: Value| if value == json!([]) { Value::Null } else { value };
        let mut patch = json!({"spec": {
            "clusters": list(json!(spec.clusters)),
            "gracefulEvictionTasks": list(json!(spec.graceful_eviction_tasks)),
        }});
        if let Some(home) = self.home(seen, planned).await? {
            unstructured::set(&mut patch, &["metadata", "annotations", annotation::HOME], json!(home));
        }
        let mut clusters = self.clusters_of(&seen.typed.spec).await?;
        clusters.append(&mut self.clusters_of(spec).await?);
        let written = context.merge(resource, &binding, patch).await;
        self.tell(seen, planned, written.as_ref());
        self.note(seen, planned, &written?, &clusters).await;
        Ok(())
    }

    /// Adds journal entries for started, continued and completed evictions.
    async fn note(&self, seen: &Seen<'_>, planned: &Planned, written: &Value, clusters: &Clusters) {
        let (before, after) = (&seen.typed.spec, &planned.spec);
        let bound = BindingChange::of(written, before, self.context.config.clock.wall());
        let tolerations = tolerations(seen.binding).unwrap_or_default();
        let called_off = planned.cancelled.as_ref().map_or(&[][..], |cancelled| &cancelled.clusters);
        let journal = &self.context.journal;
        journal.note_all(journal::evicted(&bound, (before, after), clusters, &tolerations)).await;
        let status = &seen.typed.status;
        journal
            .note_all(journal::ongoing_eviction_entries(&bound, (before, after), status, called_off, clusters))
            .await;
    }

    /// Original clusters of a workload that is evicted for the first time and has failback enabled.
    async fn home(&self, seen: &Seen<'_>, planned: &Planned) -> Result<Option<String>, Error> {
        let spec = &seen.typed.spec;
        let evicted = planned.spec.graceful_eviction_tasks.iter().any(|task| !spec.evicts(&task.from_cluster));
        if !evicted || unstructured::annotation(seen.binding, annotation::HOME).is_some() {
            return Ok(None);
        }
        if failback::failback_options(&self.context, seen.binding).await?.is_none() {
            return Ok(None);
        }
        let home = serde_json::to_string(&OriginalPlacement::of(spec, &seen.typed.status));
        home.map(Some).map_err(|source| Error::Decode { what: "home".to_owned(), source })
    }

    /// Records events for evictions that completed, were cancelled, or continue beyond their timeout. For the latter
    /// two, the journal records the event of the template.
    fn tell(&self, seen: &Seen<'_>, planned: &Planned, written: Result<&Value, &Error>) {
        if written.is_err_and(Error::is_conflict) {
            return;
        }
        let note = |severity, reason, text: &str| {
            self.context.events.note_both(seen.binding, &seen.typed.spec, severity, reason, text);
        };
        let called_off = planned.cancelled.as_ref().map_or(&[][..], |cancelled| &cancelled.clusters);
        for task in &seen.typed.spec.graceful_eviction_tasks {
            let cluster = &task.from_cluster;
            let now = planned.spec.graceful_eviction_tasks.iter().find(|now| now.from_cluster == *cluster);
            match (now, written.is_ok()) {
                (None, true) if called_off.contains(cluster) => {
                    let text = format!("Evict from cluster {cluster} is cancelled: the copy has not been replaced.");
                    self.context.events.note(seen.binding, Severity::Normal, event::EVICTION_CANCELLED, text);
                }
                (None, true) => {
                    let text = format!("Evict from cluster {cluster} succeed.");
                    note(Severity::Normal, event::EVICT_WORKLOAD_SUCCEED, &text);
                }
                (None, false) => {
                    let text = format!("Evict from cluster {cluster} failed.");
                    note(Severity::Warning, event::EVICT_WORKLOAD_FAILED, &text);
                }
                (Some(now), true) if now.message != task.message => {
                    let text = format!("Evict from cluster {cluster} waits: {}.", now.message.trim_end_matches('.'));
                    self.context.events.note(seen.binding, Severity::Warning, event::EVICTION_WAITS, text);
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
fn is_leaving(binding: &Value) -> bool {
    unstructured::at(binding, &["spec", "gracefulEvictionTasks"]).is_some()
}

/// True if the targets or tolerations of a binding may have changed.
fn may_change_placement(change: &Change) -> bool {
    let applied = |binding: &Value| unstructured::annotation(binding, annotation::APPLIED_PLACEMENT).map(str::to_owned);
    change.is_moved() || change.old().is_none_or(|old| applied(old) != applied(change.object()))
}

fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default().max(Duration::from_millis(100))
}

/// Maintains the condition `EvictionsHalted` of clusters.
pub struct HaltReporter {
    evictions: Arc<TaintManager>,
}

impl Controller for HaltReporter {
    type Key = ClusterName;
    const NAME: &'static str = "halted-evictions";
    const SWITCH: Switch = Switch::Always;

    fn new(setup: &Setup) -> Self {
        HaltReporter { evictions: setup.controller() }
    }

    /// The taint manager enqueues clusters when the eviction rate changes.
    fn watches(&self) -> Vec<Watch<Self>> {
        Vec::new()
    }

    async fn keys(&self) -> Result<Vec<ClusterName>, Error> {
        self.evictions.context.clusters().await
    }

    async fn reconcile(self: Arc<Self>, name: ClusterName) -> Result<Outcome, Error> {
        let context = &self.evictions.context;
        let resource = &context.kinds.cluster;
        let Some(cluster) = context.get_full(resource, "", name.as_str()).await? else { return Ok(Outcome::Done) };
        let typed: Cluster = decode(&cluster)?;
        let standing =
            ClusterEvictionState::of(&cluster).map_err(|source| Error::Decode { what: name.to_string(), source })?;
        let eviction_rate = self.evictions.gate.eviction_rate();
        let halted = standing.is_halted(&eviction_rate);
        if halted == standing.shows_halt {
            return Ok(Outcome::Done);
        }
        let mut shown = typed.status.conditions.clone();
        let kind = condition::EVICTIONS_HALTED;
        shown.retain(|one| one.type_ != kind);
        let now = context.config.clock.wall();
        let message = match &eviction_rate {
            EvictionRate::Halted(halt) if halted => {
                let message = halt.message();
                shown.push(conditions::condition(kind, true, halt.reason(), message.clone(), context.now()));
                message
            }
            _ => "evictions are resumed".to_owned(),
        };
        context.merge_status(resource, &cluster, json!({"status": {"conditions": shown}})).await?;
        let before = conditions::find(&typed.status.conditions, kind);
        context.journal.note(halted_entry(&typed, halted, &message, before, now)).await;
        Ok(Outcome::Done)
    }
}
