//! Results of scheduling decisions: written to the binding and recorded as events.

use std::sync::Arc;

use crowsnest_api::constants::{annotation, condition, event};
use crowsnest_api::keys::BindingKey;
use crowsnest_api::work::{ResourceBinding, TargetCluster};
use crowsnest_apimachinery::unstructured;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::Scheduler;
use crate::Error;
use crate::runtime::dynamic_client::Resource;
use crate::runtime::event_recorder::Severity;
use crate::runtime::workqueue::Outcome;
use crate::runtime::write_priority::{Deferral, Progress};
use crowsnest_plan::conditions;
use crowsnest_plan::journal::workloads::{BindingChange, Rescheduling, rescheduling_entry};
use crowsnest_plan::scheduling::{Plan, Report, ScheduleError, Trigger};

/// A scheduled binding as it was read, with the report of the decision.
#[derive(Clone, Copy)]
pub(super) struct ScheduledBinding<'a> {
    pub resource: &'a Resource,
    pub binding: &'a Arc<Value>,
    pub typed: &'a ResourceBinding,
    pub report: &'a Report,
}

/// A result that has been written.
pub(super) struct WrittenResult<'a> {
    pub clusters: &'a [TargetCluster],
    /// Name of the affinity term that was used, if the placement has several.
    pub affinity: Option<String>,
    /// True if the write changed the binding.
    pub is_changed: bool,
}

impl Scheduler {
    /// Writes a scheduling decision.
    pub(super) async fn apply_plan(
        &self,
        plan: Plan,
        binding_state: ScheduledBinding<'_>,
        key: BindingKey,
        deferral: Deferral,
    ) -> Result<Outcome, Error> {
        let ScheduledBinding { binding, typed, .. } = binding_state;
        match plan {
            // The result was written, but its status was not.
            Plan::Keep if lacks_success_status(typed) => {
                if let Some(wait) = self.deferred.defer(self.context.write_load(), &key, deferral, Progress::Settled) {
                    return Ok(Outcome::RequeueAfter(wait));
                }
                let scheduled = WrittenResult { clusters: &typed.spec.clusters, affinity: None, is_changed: false };
                self.write_success(&binding_state, binding, scheduled).await?;
                Ok(Outcome::Done)
            }
            Plan::Keep => {
                self.observe_generation(&binding_state).await?;
                Ok(Outcome::Done)
            }
            Plan::Schedule { clusters, affinity } => {
                let (binding, is_changed) = match self.write_result(&binding_state, &clusters).await {
                    Ok(written) => written,
                    Err(error) => {
                        self.release_unwritten(&key, binding, &error);
                        return self.handle_rejection(&binding_state, &clusters, error).await;
                    }
                };
                self.ledger.lock().confirm_write(&key, unstructured::generation(&binding));
                if is_changed {
                    self.record_move(&binding_state, &key, &binding, &clusters, None).await;
                }
                // Works depend only on the result, so its status may be deferred. Status that the next decision
                // depends on is written immediately.
                if !conditions::is_true(&typed.status.conditions, condition::SCHEDULED)
                    && affinity.is_none()
                    && binding_state.report.trigger != Some(Trigger::RescheduleRequested)
                    && let Some(wait) =
                        self.deferred.defer(self.context.write_load(), &key, deferral, Progress::Settled)
                {
                    return Ok(Outcome::RequeueAfter(wait));
                }
                let written = WrittenResult { clusters: &clusters, affinity, is_changed };
                self.write_success(&binding_state, &binding, written).await?;
                Ok(Outcome::Done)
            }
            Plan::Clear { error } => {
                let (binding, is_changed) = self.write_result(&binding_state, &[]).await?;
                self.update_ledger(|ledger| ledger.forget(&key));
                if is_changed {
                    self.record_move(&binding_state, &key, &binding, &[], Some(&error)).await;
                }
                self.write_failure(&ScheduledBinding { binding: &binding, ..binding_state }, &error).await?;
                Ok(Outcome::Done)
            }
            Plan::Fail { error } => {
                self.write_failure(&binding_state, &error).await?;
                Ok(if matches!(error, ScheduleError::Unschedulable(_)) {
                    Outcome::AwaitChange
                } else {
                    Outcome::Requeue
                })
            }
        }
    }

    /// Releases the reservation of a decision that was not written. If that is uncertain, the reservation stays until
    /// the binding is observed or scheduled again.
    fn release_unwritten(&self, key: &BindingKey, binding: &Value, error: &Error) {
        match error.code() {
            Some(code) if code < 500 => self.update_ledger(|ledger| ledger.discard_write(key)),
            _ => self.ledger.lock().confirm_write(key, unstructured::generation(binding)),
        }
    }

    /// Writes the clusters and the placement that they were selected for in one patch. Returns the stored binding, and
    /// true if it was written.
    pub(super) async fn write_result(
        &self,
        binding_state: &ScheduledBinding<'_>,
        clusters: &[TargetCluster],
    ) -> Result<(Arc<Value>, bool), Error> {
        let spec = &binding_state.typed.spec;
        let placement = serde_json::to_string(&spec.placement)
            .map_err(|source| Error::Decode { object: "placement".to_owned(), source })?;
        let applied = unstructured::annotation(binding_state.binding, annotation::APPLIED_PLACEMENT);
        if applied == Some(placement.as_str()) && spec.clusters == clusters {
            return Ok((Arc::clone(binding_state.binding), false));
        }
        let clusters = if clusters.is_empty() { Value::Null } else { json!(clusters) };
        let patch = json!({
            "metadata": {"annotations": {annotation::APPLIED_PLACEMENT: placement}},
            "spec": {"clusters": clusters},
        });
        self.context
            .merge(binding_state.resource, binding_state.binding, patch)
            .await
            .map(|written| (Arc::new(written), true))
    }

    /// Records in the journal where the binding moved. `written` is the stored binding; `no_fit` is the reason if no
    /// cluster was assigned.
    pub(super) async fn record_move(
        &self,
        binding_state: &ScheduledBinding<'_>,
        key: &BindingKey,
        written: &Value,
        targets: &[TargetCluster],
        no_fit: Option<&ScheduleError>,
    ) {
        let journal = &self.context.journal;
        let (requested_by, no_fit) = (journal.take_cause(key), no_fit.map(ToString::to_string));
        let (before, status) = (&binding_state.typed.spec, &binding_state.typed.status);
        let rescheduling = Rescheduling {
            before,
            status,
            to: targets,
            trigger: binding_state.report.trigger,
            no_fit: no_fit.as_deref(),
            requested_by: requested_by.as_deref(),
        };
        journal
            .add_all(rescheduling_entry(
                &BindingChange::from_binding(written, before, self.context.config.clock.wall()),
                &rescheduling,
            ))
            .await;
    }

    /// Writes the success status. `binding` is the stored binding after its result was written.
    pub(super) async fn write_success(
        &self,
        binding_state: &ScheduledBinding<'_>,
        binding: &Value,
        result: WrittenResult<'_>,
    ) -> Result<(), Error> {
        let mut status = binding_state.typed.status.clone();
        let message = "Binding has been scheduled successfully.";
        let is_reported = conditions::is_true(&status.conditions, condition::SCHEDULED);
        let new = conditions::condition(
            condition::SCHEDULED,
            true,
            condition::SCHEDULED_SUCCESS,
            message,
            self.context.now(),
        );
        let mut changed = conditions::set(&mut status.conditions, new) || result.is_changed;
        changed |= binding_state.report.trigger == Some(Trigger::RescheduleRequested);
        if let Some(affinity) = result.affinity.filter(|name| *name != status.scheduler_observed_affinity_name) {
            status.scheduler_observed_affinity_name = affinity;
            changed = true;
        }
        changed |= status.scheduler_observed_generation != unstructured::generation(binding);
        if !changed {
            return Ok(());
        }
        status.scheduler_observed_generation = unstructured::generation(binding);
        status.last_scheduled_time = Some(Time(self.context.now()));
        let patch = json!({"status": {
            "conditions": status.conditions,
            "schedulerObservedGeneration": status.scheduler_observed_generation,
            "schedulerObservingAffinityName": status.scheduler_observed_affinity_name,
            "lastScheduledTime": status.last_scheduled_time,
        }});
        self.context.merge_status(binding_state.resource, binding, remove_empty_affinity_name(patch)).await?;
        if result.is_changed || !is_reported {
            self.record_failed_terms(binding_state);
            let targets: Vec<String> =
                result.clusters.iter().map(|target| format!("{}:{}", target.name, target.replicas)).collect();
            let message = format!("{message} Result: {{{}}}", targets.join(", "));
            self.record_event(binding_state, Severity::Normal, event::SCHEDULE_BINDING_SUCCEED, message);
        }
        Ok(())
    }

    pub(super) async fn write_failure(
        &self,
        binding_state: &ScheduledBinding<'_>,
        error: &ScheduleError,
    ) -> Result<(), Error> {
        if self.write_condition(binding_state, error.reason(), &error.to_string()).await? {
            self.record_failed_terms(binding_state);
            self.record_event(binding_state, Severity::Warning, event::SCHEDULE_BINDING_FAILED, error.to_string());
        }
        Ok(())
    }

    /// Sets the Scheduled condition to false. Returns true if the condition changed.
    async fn write_condition(
        &self,
        binding_state: &ScheduledBinding<'_>,
        reason: &str,
        message: &str,
    ) -> Result<bool, Error> {
        let mut conditions = binding_state.typed.status.conditions.clone();
        let new = conditions::condition(condition::SCHEDULED, false, reason, message, self.context.now());
        if !conditions::set(&mut conditions, new) {
            return Ok(false);
        }
        let patch = json!({"status": {"conditions": conditions}});
        self.context.merge_status(binding_state.resource, binding_state.binding, patch).await.map(|_| true)
    }

    /// Handles a rejected result: an exceeded quota is reported in the condition, other errors are retried.
    async fn handle_rejection(
        &self,
        binding_state: &ScheduledBinding<'_>,
        rejected_clusters: &[TargetCluster],
        error: Error,
    ) -> Result<Outcome, Error> {
        if error.code() != Some(403) {
            return Err(error);
        }
        let is_quota_exceeded = error.reason() == condition::SCHEDULED_QUOTA_EXCEEDED;
        if is_quota_exceeded {
            self.context.record_quota_rejection(binding_state.typed, rejected_clusters, &error.message()).await?;
        }
        let reason =
            if is_quota_exceeded { condition::SCHEDULED_QUOTA_EXCEEDED } else { condition::SCHEDULED_SCHEDULER_ERROR };
        if self.write_condition(binding_state, reason, &error.message()).await? {
            self.record_event(binding_state, Severity::Warning, event::SCHEDULE_BINDING_FAILED, error.message());
        }
        Ok(Outcome::Requeue)
    }

    /// Updates the observed generation, since there is nothing to schedule.
    pub(super) async fn observe_generation(&self, binding_state: &ScheduledBinding<'_>) -> Result<(), Error> {
        let generation = unstructured::generation(binding_state.binding);
        if binding_state.typed.status.scheduler_observed_generation == generation {
            return Ok(());
        }
        let patch = json!({"status": {"schedulerObservedGeneration": generation}});
        self.context.merge_status(binding_state.resource, binding_state.binding, patch).await.map(|_| ())
    }

    /// Records events about the affinity terms that failed. `clusterAffiliates` is Karmada's spelling.
    fn record_failed_terms(&self, binding_state: &ScheduledBinding<'_>) {
        let (namespace, name) =
            (unstructured::namespace(binding_state.binding), unstructured::name(binding_state.binding));
        let binding = match namespace {
            "" => format!("ClusterResourceBinding({name})"),
            namespace => format!("ResourceBinding({namespace}/{name})"),
        };
        for term in binding_state.report.terms.iter().filter(|term| !term.affinity.is_empty()) {
            if let Some(error) = &term.error {
                let index = term.index;
                let message = format!("failed to schedule {binding} with clusterAffiliates index({index}): {error}");
                self.record_event(binding_state, Severity::Warning, event::SCHEDULE_BINDING_FAILED, message);
            }
        }
    }

    /// Records an event on the binding and on its template.
    fn record_event(
        &self,
        binding_state: &ScheduledBinding<'_>,
        severity: Severity,
        reason: &'static str,
        message: String,
    ) {
        self.context.events.record_with_template(
            binding_state.binding,
            &binding_state.typed.spec,
            severity,
            reason,
            &message,
        );
    }
}

fn remove_empty_affinity_name(mut patch: Value) -> Value {
    if unstructured::text(&patch, &["status", "schedulerObservingAffinityName"]).is_empty() {
        unstructured::remove(&mut patch, &["status", "schedulerObservingAffinityName"]);
    }
    patch
}

/// Returns true if the binding has a result but no success status. Until the binding changes, a rejection by a quota
/// counts as its status.
fn lacks_success_status(binding: &ResourceBinding) -> bool {
    let existing = conditions::find(&binding.status.conditions, condition::SCHEDULED);
    let is_observed = binding.metadata.generation == Some(binding.status.scheduler_observed_generation);
    let is_quota_exceeded =
        is_observed && existing.is_some_and(|existing| existing.reason == condition::SCHEDULED_QUOTA_EXCEEDED);
    !binding.spec.clusters.is_empty()
        && !is_quota_exceeded
        && !conditions::is_true(&binding.status.conditions, condition::SCHEDULED)
}
