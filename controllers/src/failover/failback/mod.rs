//! Failback controller: moves workloads back to the clusters that taints evicted them from, one at a time, once those
//! have been healthy for long enough and have capacity. Opt-in by policy or binding. The time since which a workload
//! could be moved back is kept in memory, so the wait starts over after a restart.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::constants::{annotation, event};
use crowsnest_api::keys::BindingKey;
use crowsnest_api::policy::PurgeMode;
use crowsnest_api::work::{ResourceBinding, ResourceBindingSpec, TargetCluster};
use crowsnest_apimachinery::unstructured;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::Error;
use crate::cache::Change;
use crate::failover::graceful_eviction::exclusive::is_declared_exclusive;
use crate::runtime::context::{Context, decode};
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crate::scheduling::scheduler::Scheduler;
use crowsnest_plan::eviction;
use crowsnest_plan::eviction::failback::{FailbackOptions, FailbackStep, OriginalPlacement};
use crowsnest_plan::journal::workloads::{self as journal, BindingChange};
use crowsnest_plan::scheduling::{self as plan, Plan};

/// Requeue delay while the original clusters lack capacity, since no event announces capacity.
const CAPACITY_RETRY_DELAY: Duration = Duration::from_secs(30);

pub struct FailbackController {
    context: Arc<Context>,
    scheduler: Arc<Scheduler>,
    /// Bindings with recorded original clusters, and the time since which nothing prevents failback.
    waiting: Mutex<HashMap<BindingKey, Option<Instant>>>,
    /// Time of the last failback.
    last_failback: Mutex<Option<Instant>>,
}

impl FailbackController {
    fn on_binding(&self, change: &Change) -> Requests<BindingKey> {
        let key = BindingKey::from_object(change.object());
        let original =
            change.current().and_then(|binding| unstructured::annotation(binding, annotation::ORIGINAL_CLUSTERS));
        if original.is_none() {
            self.waiting.lock().remove(&key);
            return Requests::none();
        }
        self.waiting.lock().entry(key.clone()).or_default();
        key.into()
    }

    fn on_cluster(&self, change: &Change) -> Requests<BindingKey> {
        let relevant_fields = |cluster: &Value| {
            let field = |path: &[&str]| unstructured::at(cluster, path).cloned();
            (field(&["spec", "taints"]), field(&["status", "conditions"]), unstructured::is_terminating(cluster))
        };
        Requests::all_if(
            change.deleted || change.old().is_none_or(|old| relevant_fields(old) != relevant_fields(change.object())),
        )
    }
}

impl Controller for FailbackController {
    type Key = BindingKey;
    const NAME: &'static str = "returning";
    const SWITCH: Switch = Switch::Always;

    fn new(setup: &Setup) -> Self {
        FailbackController {
            context: setup.context(),
            scheduler: setup.controller(),
            waiting: Mutex::default(),
            last_failback: Mutex::default(),
        }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        let policies = Source::control_plane(kinds.policies());
        vec![
            Source::bindings(kinds).map(Self::on_binding),
            policies.map(|_, change| Requests::all_if(change.is_annotation_changed(&[annotation::FAILBACK]))),
            Source::clusters(kinds).map(Self::on_cluster),
        ]
    }

    /// Bindings with recorded original clusters, which are few.
    async fn keys(&self) -> Result<Vec<BindingKey>, Error> {
        Ok(self.waiting.lock().keys().cloned().collect())
    }

    async fn reconcile(self: Arc<Self>, key: BindingKey) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(binding) = context.active_binding(&key).await? else {
            self.waiting.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        let Some(original) = unstructured::annotation(&binding, annotation::ORIGINAL_CLUSTERS) else {
            return Ok(Outcome::Done);
        };
        let typed: ResourceBinding = decode(&binding)?;
        let original = serde_json::from_str::<OriginalPlacement>(original);
        let (Ok(original), Some(options)) = (original, find_failback_options(context, &binding).await?) else {
            return self.remove_original_placement(&key, &binding).await;
        };
        match original.next_step(&typed.spec) {
            FailbackStep::Complete => return self.remove_original_placement(&key, &binding).await,
            FailbackStep::Wait => return Ok(self.restart_waiting(&key, Outcome::Done)),
            FailbackStep::MoveBack => {}
        }
        let Some(original_clusters) = self.find_original_clusters(&original, &binding).await? else {
            return Ok(self.restart_waiting(&key, Outcome::Done));
        };
        let purge = match is_declared_exclusive(context, &binding, &typed.spec).await? {
            true => PurgeMode::Directly,
            false => PurgeMode::Gracefully,
        };
        let failback_spec = original.start_failback(
            &typed.spec,
            &purge,
            trigger_time(typed.status.last_scheduled_time.as_ref(), context.now()),
        );
        let Some(targets) = self
            .preview_targets(&key, &binding, &typed, &failback_spec)
            .await?
            .filter(|targets| original.matches_targets(targets))
        else {
            return Ok(self.restart_waiting(&key, Outcome::RequeueAfter(CAPACITY_RETRY_DELAY)));
        };
        let previous = match self.try_start(&key, options) {
            Ok(previous) => previous,
            Err(wait) => return Ok(Outcome::RequeueAfter(wait)),
        };
        let patch = json!({"spec": {
            "clusters": targets,
            "gracefulEvictionTasks": failback_spec.graceful_eviction_tasks,
            "rescheduleTriggeredAt": failback_spec.reschedule_triggered_at,
        }});
        let written = match context.merge(context.kinds.binding(key.scope()), &binding, patch).await {
            Ok(written) => written,
            Err(error) => {
                // No failback was started, so the next one need not wait for the interval.
                *self.last_failback.lock() = previous;
                return Err(error);
            }
        };
        let names: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
        let text = format!("Failing back to {}: healthy again for long enough.", names.join(", "));
        let change = BindingChange::from_binding(&written, &typed.spec, self.context.config.clock.wall());
        let entries =
            journal::failback_entries(&change, (&typed.spec, &failback_spec), &targets, &original_clusters, &text);
        context.journal.add_all(entries).await;
        context.events.record(&binding, Severity::Normal, event::FAILBACK, text);
        Ok(Outcome::Done)
    }
}

impl FailbackController {
    /// Removes the recorded original clusters, because failback is complete or no longer requested.
    async fn remove_original_placement(&self, key: &BindingKey, binding: &Value) -> Result<Outcome, Error> {
        let patch = json!({"metadata": {"annotations": {annotation::ORIGINAL_CLUSTERS: null}}});
        self.context.merge(self.context.kinds.binding(key.scope()), binding, patch).await?;
        self.waiting.lock().remove(key);
        Ok(Outcome::Done)
    }

    /// Restarts the waiting time of a binding, because something prevents its failback.
    fn restart_waiting(&self, key: &BindingKey, outcome: Outcome) -> Outcome {
        self.waiting.lock().insert(key.clone(), None);
        outcome
    }

    /// Starts a failback if the original clusters have been healthy for long enough and the interval since the previous
    /// failback has passed. Returns the time of the previous failback, or the delay of the next attempt as an error.
    fn try_start(&self, key: &BindingKey, options: FailbackOptions) -> Result<Option<Instant>, Duration> {
        let now = Instant::now();
        let since = *self.waiting.lock().entry(key.clone()).or_default().get_or_insert(now);
        let remaining = (since + options.after).saturating_duration_since(now);
        if !remaining.is_zero() {
            return Err(remaining.min(CAPACITY_RETRY_DELAY));
        }
        let mut last = self.last_failback.lock();
        let wait = last.map_or(Duration::ZERO, |last| (last + options.interval).saturating_duration_since(now));
        if wait.is_zero() { Ok(last.replace(now)) } else { Err(wait) }
    }

    /// The original clusters, if all of them exist, are ready and have no untolerated taint.
    async fn find_original_clusters(
        &self,
        original: &OriginalPlacement,
        binding: &Value,
    ) -> Result<Option<journal::Clusters>, Error> {
        let applied = unstructured::annotation(binding, annotation::APPLIED_PLACEMENT);
        let Ok(tolerations) = eviction::applied_tolerations(applied) else { return Ok(None) };
        let mut clusters = journal::Clusters::new();
        for target in &original.clusters {
            let cluster = self.context.cluster(&target.name).await?;
            match cluster.filter(|cluster| OriginalPlacement::accepts_workloads(cluster, &tolerations)) {
                Some(cluster) => clusters.insert(target.name.clone(), cluster),
                None => return Ok(None),
            };
        }
        Ok(Some(clusters))
    }

    /// Targets that the scheduler would select for a failback now.
    async fn preview_targets(
        &self,
        key: &BindingKey,
        binding: &Value,
        typed: &ResourceBinding,
        failback_spec: &ResourceBindingSpec,
    ) -> Result<Option<Vec<TargetCluster>>, Error> {
        if !self.scheduler.is_responsible_for(binding, &typed.spec) {
            return Ok(None);
        }
        let plan = preview_schedule(&self.scheduler, key, binding, typed, failback_spec).await?;
        Ok(match plan {
            Plan::Schedule { clusters, .. } => Some(clusters),
            Plan::Keep => Some(failback_spec.clusters.clone()),
            Plan::Clear { .. } | Plan::Fail { .. } => None,
        })
    }
}

/// The current time, or the next second if the last scheduling was in this second, because a rescheduling trigger
/// must be later.
fn trigger_time(last_scheduled: Option<&Time>, now: Timestamp) -> Timestamp {
    let next =
        last_scheduled.and_then(|last_scheduled| last_scheduled.0.checked_add(SignedDuration::from_secs(1)).ok());
    next.map_or(now, |next| next.max(now))
}

/// The scheduling result for another spec of the binding. Nothing is reserved.
pub(crate) async fn preview_schedule(
    scheduler: &Scheduler,
    key: &BindingKey,
    binding: &Value,
    typed: &ResourceBinding,
    spec: &ResourceBindingSpec,
) -> Result<Plan, Error> {
    let peers = scheduler.find_peers(key, spec).await?;
    let planner_input = plan::Binding {
        generation: unstructured::generation(binding),
        applied_placement: unstructured::annotation(binding, annotation::APPLIED_PLACEMENT),
        spec,
        status: &typed.status,
    };
    let responses = scheduler.query_estimators(key, &planner_input, &peers, plan::plan).await;
    Ok(scheduler.evaluate_current(key, &peers, responses.as_ref(), |scheduling_context, _| {
        plan::plan(scheduling_context, &planner_input).0
    }))
}

/// Failback settings of a binding or its policy.
pub(crate) async fn find_failback_options(
    context: &Context,
    binding: &Value,
) -> Result<Option<FailbackOptions>, Error> {
    let Some(value) = find_effective_annotation(context, binding, annotation::FAILBACK).await? else { return Ok(None) };
    match value.parse::<FailbackOptions>() {
        Ok(options) => Ok(Some(options)),
        Err(error) => {
            let text = format!("{}: {error}", annotation::FAILBACK);
            context.events.record(binding, Severity::Warning, event::FAILBACK_REFUSED, text);
            Ok(None)
        }
    }
}

/// Value of an annotation on a binding, or else on its policy.
pub(crate) async fn find_effective_annotation(
    context: &Context,
    binding: &Value,
    key: &str,
) -> Result<Option<String>, Error> {
    if let Some(value) = unstructured::annotation(binding, key) {
        return Ok(Some(value.to_owned()));
    }
    let annotation_value = |key| unstructured::annotation(binding, key).unwrap_or_default();
    let namespaced = annotation_value(annotation::PROPAGATION_POLICY_NAME);
    let policy = if namespaced.is_empty() {
        let name = annotation_value(annotation::CLUSTER_PROPAGATION_POLICY_NAME);
        context.get_redacted(&context.kinds.cluster_propagation_policy, "", name).await?
    } else {
        let namespace = annotation_value(annotation::PROPAGATION_POLICY_NAMESPACE);
        context.get_redacted(&context.kinds.propagation_policy, namespace, namespaced).await?
    };
    Ok(policy.and_then(|policy| unstructured::annotation(policy.view(), key).map(str::to_owned)))
}
