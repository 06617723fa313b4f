//! Application failover controller: evicts a workload from a cluster where it has been unhealthy for longer than its
//! policy tolerates. No feature gate is required. The start of unhealthiness is kept in memory, so the toleration
//! starts over after a restart, as in Karmada.
//!
//! Unlike Karmada, it ignores the status of clusters that are not ready, and keeps the last copy if no other cluster
//! fits (`--failover-safety`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::constants::{event, eviction};
use crowsnest_api::keys::BindingKey;
use crowsnest_api::work::{GracefulEvictionTask, ResourceBinding, ResourceBindingSpec};
use crowsnest_apimachinery::unstructured;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::Error;
use crate::cache::Change;
use crate::failover::failback::preview_schedule;
use crate::runtime::context::{Context, decode};
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::{Controller, Requests, Setup, Source, Switch, Watch, WellKnownKinds};
use crate::scheduling::scheduler::Scheduler;
use crate::shared::clusters::is_ready;
use crowsnest_plan::eviction::application::{self as plan, FailoverGates};
use crowsnest_plan::eviction::rate::ClusterEvictionState;
use crowsnest_plan::eviction::{Safety, evict};
use crowsnest_plan::journal::workloads::{self as journal, BindingChange};
use crowsnest_plan::scheduling::Plan;

/// Requeue delay while no other cluster fits the last copy.
const NO_FIT_RETRY: Duration = Duration::from_secs(30);

pub struct ApplicationFailoverController {
    context: Arc<Context>,
    scheduler: Arc<Scheduler>,
    /// Start of unhealthiness by binding and cluster.
    unhealthy_since: Mutex<HashMap<BindingKey, HashMap<String, Instant>>>,
}

impl ApplicationFailoverController {
    /// True in safe mode (`--failover-safety`).
    fn is_safe(&self) -> bool {
        self.context.config.failover_safety == Safety::Safe
    }

    /// Bindings of a cluster whose readiness changed, because its status counts only while it is ready.
    fn on_cluster(&self, change: &Change) -> Requests<BindingKey> {
        let ready = |cluster: &Value| ClusterEvictionState::from_cluster(cluster).is_ok_and(|state| state.is_ready());
        match change.old().map(ready) != change.current().map(ready) {
            true => self.context.placements.bindings_in(unstructured::name(change.object())).into_iter().collect(),
            false => Requests::none(),
        }
    }

    fn on_binding(&self, change: &Change) -> Requests<BindingKey> {
        match change.current() {
            None => {
                self.unhealthy_since.lock().remove(&BindingKey::from_object(change.object()));
                Requests::none()
            }
            Some(binding) => self.key_if_enabled(binding).into(),
        }
    }

    /// The key of a binding that has application failover, or had it.
    fn key_if_enabled(&self, binding: &Value) -> Option<BindingKey> {
        let key = BindingKey::from_object(binding);
        let has_application_failover = unstructured::at(binding, &["spec", "failover", "application"]).is_some();
        (has_application_failover || self.unhealthy_since.lock().contains_key(&key)).then_some(key)
    }
}

impl Controller for ApplicationFailoverController {
    type Key = BindingKey;
    const NAME: &'static str = "resource-binding-application-failover-controller";
    const SWITCH: Switch = Switch::OnByDefault(&["applicationFailover"]);

    fn new(setup: &Setup) -> Self {
        ApplicationFailoverController {
            context: setup.context(),
            scheduler: setup.controller(),
            unhealthy_since: Mutex::default(),
        }
    }

    fn watches(kinds: &WellKnownKinds) -> Vec<Watch<Self>> {
        vec![Source::clusters(kinds).map(Self::on_cluster), Source::bindings(kinds).map(Self::on_binding)]
    }

    /// Periodic resync, so that a missed change does not leave a workload in an unhealthy cluster.
    async fn keys(&self) -> Result<Vec<BindingKey>, Error> {
        let mut keys = Vec::new();
        for resource in self.context.kinds.bindings() {
            keys.extend(self.context.filter_map(resource, None, |binding| self.key_if_enabled(binding)).await?);
        }
        Ok(keys)
    }

    async fn reconcile(self: Arc<Self>, key: BindingKey) -> Result<Outcome, Error> {
        let context = &self.context;
        let Some(binding) = context.active_binding(&key).await? else {
            self.unhealthy_since.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        let typed: ResourceBinding = decode(&binding)?;
        let Some(behavior) = plan::behavior(&typed.spec) else {
            self.unhealthy_since.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        let toleration = Duration::from_secs(plan::toleration_seconds(behavior));
        let (due, next_check) = self.track_unhealthy(&key, &self.find_unhealthy_clusters(&typed).await?, toleration);
        if !due.is_empty() {
            if let Some(message) = self.reason_to_keep(&key, &binding, &typed, &due).await? {
                let text = format!("Evict from cluster {} waits: {message}", due.join(", "));
                let change = BindingChange::from_binding(&binding, &typed.spec, self.context.config.clock.wall());
                context.journal.add(journal::kept_unhealthy_entry(&change, &due, &message, &text)).await;
                context.events.record(&binding, Severity::Warning, event::EVICTION_WAITS, text);
                return Ok(Outcome::RequeueAfter(next_check.map_or(NO_FIT_RETRY, |delay| delay.min(NO_FIT_RETRY))));
            }
            let gates = &context.config.gates;
            let failover_gates = FailoverGates {
                graceful_eviction: gates.graceful_eviction,
                preserves_state: gates.stateful_failover_injection,
            };
            let producer = match key.namespace.as_str() {
                "" => eviction::PRODUCER_CLUSTER_APPLICATION_FAILOVER,
                _ => eviction::PRODUCER_APPLICATION_FAILOVER,
            };
            let evicted =
                plan::evict_all(&typed.spec, &typed.status, behavior, &due, producer, failover_gates, context.now());
            let written = match evicted {
                Ok(evicted) => self.write_eviction(&key, &binding, &typed.spec, &evicted).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = written {
                if !error.is_conflict() {
                    for cluster in &due {
                        // The error does not name its cluster.
                        let text = match &error {
                            Error::State(error) if due.len() == 1 => {
                                format!("Evict from cluster {cluster} failed: {error}.")
                            }
                            _ => format!("Evict from cluster {cluster} failed."),
                        };
                        let (events, failed) = (&context.events, event::EVICT_WORKLOAD_FAILED);
                        events.record_with_template(&binding, &typed.spec, Severity::Warning, failed, &text);
                    }
                }
                return Err(error);
            }
            if let Some(entry) = self.unhealthy_since.lock().get_mut(&key) {
                entry.retain(|cluster, _| !due.contains(cluster));
            }
        }
        Ok(next_check.map_or(Outcome::Done, Outcome::RequeueAfter))
    }
}

impl ApplicationFailoverController {
    /// Clusters in which the workload is unhealthy. In safe mode, the status of a cluster is trusted only while it is
    /// ready.
    async fn find_unhealthy_clusters(&self, binding: &ResourceBinding) -> Result<Vec<String>, Error> {
        let mut unhealthy = Vec::new();
        for name in plan::unhealthy_targets(&binding.spec, &binding.status) {
            let is_trusted = match self.is_safe() {
                true => self.context.cluster(&name).await?.is_some_and(|cluster| is_ready(&cluster)),
                false => true,
            };
            if is_trusted {
                unhealthy.push(name);
            }
        }
        Ok(unhealthy)
    }

    /// Reason why the workload is not evicted after its toleration: it is the last copy, and no other cluster fits.
    /// `None` if it must be evicted.
    async fn reason_to_keep(
        &self,
        key: &BindingKey,
        binding: &Value,
        typed: &ResourceBinding,
        due: &[String],
    ) -> Result<Option<String>, Error> {
        let is_last =
            plan::behavior(&typed.spec).is_some_and(|behavior| plan::is_last_copy(&typed.spec, behavior, due));
        if !is_last || !self.is_safe() || !self.scheduler.is_responsible_for(binding, &typed.spec) {
            return Ok(None);
        }
        let mut spec_after = typed.spec.clone();
        for cluster in due {
            spec_after = evict(&spec_after, cluster, GracefulEvictionTask::default()).unwrap_or(spec_after);
        }
        let preview = preview_schedule(&self.scheduler, key, binding, typed, &spec_after).await?;
        Ok(match preview {
            Plan::Schedule { clusters, .. } if !clusters.is_empty() => None,
            Plan::Clear { error } | Plan::Fail { error } => Some(format!("this is the last copy, and {error}")),
            Plan::Schedule { .. } | Plan::Keep => Some("this is the last copy, and no other cluster fits".to_owned()),
        })
    }

    /// Records unhealthy clusters. Returns those that exceeded the toleration, and the time until the next one does.
    fn track_unhealthy(
        &self,
        key: &BindingKey,
        unhealthy: &[String],
        toleration: Duration,
    ) -> (Vec<String>, Option<Duration>) {
        let now = Instant::now();
        let mut by_binding = self.unhealthy_since.lock();
        if unhealthy.is_empty() {
            by_binding.remove(key);
            return (Vec::new(), None);
        }
        let since = by_binding.entry(key.clone()).or_default();
        since.retain(|cluster, _| unhealthy.contains(cluster));
        let (mut due, mut next_check) = (Vec::new(), None);
        for cluster in unhealthy {
            let since = *since.entry(cluster.clone()).or_insert(now);
            let remaining = (since + toleration).saturating_duration_since(now);
            if remaining.is_zero() && since < now {
                due.push(cluster.clone());
            } else {
                let remaining = remaining.max(Duration::from_millis(50));
                next_check = Some(next_check.map_or(remaining, |earlier: Duration| earlier.min(remaining)));
            }
        }
        (due, next_check)
    }

    /// Writes the evictions to the binding and to the journal.
    async fn write_eviction(
        &self,
        key: &BindingKey,
        binding: &Value,
        before: &ResourceBindingSpec,
        spec: &ResourceBindingSpec,
    ) -> Result<(), Error> {
        let clusters = (!spec.clusters.is_empty()).then_some(&spec.clusters);
        let patch = json!({"spec": {"clusters": clusters, "gracefulEvictionTasks": spec.graceful_eviction_tasks}});
        let written = self.context.merge(self.context.kinds.binding(key.scope()), binding, patch).await?;
        let change = BindingChange::from_binding(&written, before, self.context.config.clock.wall());
        let entries = journal::eviction_entries(&change, (before, spec), &journal::Clusters::new(), &[]);
        self.context.journal.add_all(entries).await;
        Ok(())
    }
}
