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
use crowsnest_plan::journal::workloads::{BindingChange, Move, rescheduled};
use crowsnest_plan::scheduling::{Plan, Report, ScheduleError, Trigger};

/// The scheduled binding, as it was read.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub resource: &'a Resource,
    pub binding: &'a Arc<Value>,
    pub typed: &'a ResourceBinding,
    pub report: &'a Report,
}

/// A result that has been written.
pub(super) struct Scheduled<'a> {
    pub clusters: &'a [TargetCluster],
    pub affinity: Option<String>,
    pub changed: bool,
}

impl Scheduler {
    /// Writes a scheduling decision.
    pub(super) async fn carry_out(
        &self,
        plan: Plan,
        at: At<'_>,
        key: BindingKey,
        deferral: Deferral,
    ) -> Result<Outcome, Error> {
        let At { binding, typed, .. } = at;
        match plan {
            // The result was written, but its status was not.
            Plan::Keep if is_unreported(typed) => {
                if let Some(wait) = self.deferred.wait(self.context.write_load(), &key, deferral, Progress::Settled) {
                    return Ok(Outcome::Again(wait));
                }
                let scheduled = Scheduled { clusters: &typed.spec.clusters, affinity: None, changed: false };
                self.write_success(&at, binding, scheduled).await?;
                Ok(Outcome::Done)
            }
            Plan::Keep => {
                self.observe_generation(&at).await?;
                Ok(Outcome::Done)
            }
            Plan::Schedule { clusters, affinity } => {
                let (binding, changed) = match self.write_result(&at, &clusters).await {
                    Ok(written) => written,
                    Err(error) => {
                        self.release_unwritten(&key, binding, &error);
                        return self.handle_rejection(&at, &clusters, error).await;
                    }
                };
                self.ledger.lock().written(&key, unstructured::generation(&binding));
                if changed {
                    self.record_move(&at, &key, &binding, &clusters, None).await;
                }
                // Works depend only on the result, so its status may be deferred. Status that the next decision
                // depends on is written immediately.
                if !conditions::is_true(&typed.status.conditions, condition::SCHEDULED)
                    && affinity.is_none()
                    && at.report.trigger != Some(Trigger::RescheduleRequested)
                    && let Some(wait) = self.deferred.wait(self.context.write_load(), &key, deferral, Progress::Settled)
                {
                    return Ok(Outcome::Again(wait));
                }
                self.write_success(&at, &binding, Scheduled { clusters: &clusters, affinity, changed }).await?;
                Ok(Outcome::Done)
            }
            Plan::Clear { error } => {
                let (binding, changed) = self.write_result(&at, &[]).await?;
                self.given_back(|ledger| ledger.forget(&key));
                if changed {
                    self.record_move(&at, &key, &binding, &[], Some(&error)).await;
                }
                self.write_failure(&At { binding: &binding, ..at }, &error).await?;
                Ok(Outcome::Done)
            }
            Plan::Fail { error } => {
                self.write_failure(&at, &error).await?;
                Ok(if matches!(error, ScheduleError::Unschedulable(_)) { Outcome::Parked } else { Outcome::Later })
            }
        }
    }

    /// Releases the reservation of a decision that was not written. If that is uncertain, the reservation stays until
    /// the binding is observed or scheduled again.
    fn release_unwritten(&self, key: &BindingKey, binding: &Value, error: &Error) {
        match error.code() {
            Some(code) if code < 500 => self.given_back(|ledger| ledger.failed(key)),
            _ => self.ledger.lock().written(key, unstructured::generation(binding)),
        }
    }

    /// Writes the clusters and the placement that they were selected for in one patch. Returns true if anything
    /// changed.
    pub(super) async fn write_result(
        &self,
        at: &At<'_>,
        clusters: &[TargetCluster],
    ) -> Result<(Arc<Value>, bool), Error> {
        let spec = &at.typed.spec;
        let placement = serde_json::to_string(&spec.placement)
            .map_err(|source| Error::Decode { what: "placement".to_owned(), source })?;
        let applied = unstructured::annotation(at.binding, annotation::APPLIED_PLACEMENT);
        if applied == Some(placement.as_str()) && spec.clusters == clusters {
            return Ok((Arc::clone(at.binding), false));
        }
        let clusters = if clusters.is_empty() { Value::Null } else { json!(clusters) };
        let patch = json!({
            "metadata": {"annotations": {annotation::APPLIED_PLACEMENT: placement}},
            "spec": {"clusters": clusters},
        });
        self.context.merge(at.resource, at.binding, patch).await.map(|written| (Arc::new(written), true))
    }

    /// Records in the journal where the binding moved. `written` is the stored binding; `nothing` is the reason if it
    /// has no clusters.
    pub(super) async fn record_move(
        &self,
        at: &At<'_>,
        key: &BindingKey,
        written: &Value,
        to: &[TargetCluster],
        nothing: Option<&ScheduleError>,
    ) {
        let journal = &self.context.journal;
        let (requested_by, nothing) = (journal.requested_by(key), nothing.map(ToString::to_string));
        let (before, status) = (&at.typed.spec, &at.typed.status);
        let moved = Move {
            before,
            status,
            to,
            trigger: at.report.trigger,
            nothing: nothing.as_deref(),
            requested_by: requested_by.as_deref(),
        };
        journal
            .note_all(rescheduled(&BindingChange::of(written, before, self.context.config.clock.wall()), &moved))
            .await;
    }

    /// `binding` is the object that was written.
    pub(super) async fn write_success(&self, at: &At<'_>, binding: &Value, result: Scheduled<'_>) -> Result<(), Error> {
        let mut status = at.typed.status.clone();
        let message = "Binding has been scheduled successfully.";
        let is_reported = conditions::is_true(&status.conditions, condition::SCHEDULED);
        let new = conditions::condition(
            condition::SCHEDULED,
            true,
            condition::SCHEDULED_SUCCESS,
            message,
            self.context.now(),
        );
        let mut changed = conditions::set(&mut status.conditions, new) || result.changed;
        changed |= at.report.trigger == Some(Trigger::RescheduleRequested);
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
        self.context.merge_status(at.resource, binding, without_empty(patch)).await?;
        if result.changed || !is_reported {
            self.note_failed_terms(at);
            let targets: Vec<String> =
                result.clusters.iter().map(|target| format!("{}:{}", target.name, target.replicas)).collect();
            let message = format!("{message} Result: {{{}}}", targets.join(", "));
            self.note(at, Severity::Normal, event::SCHEDULE_BINDING_SUCCEED, message);
        }
        Ok(())
    }

    pub(super) async fn write_failure(&self, at: &At<'_>, error: &ScheduleError) -> Result<(), Error> {
        if self.write_condition(at, error.reason(), &error.to_string()).await? {
            self.note_failed_terms(at);
            self.note(at, Severity::Warning, event::SCHEDULE_BINDING_FAILED, error.to_string());
        }
        Ok(())
    }

    /// Sets the Scheduled condition to false. Returns true if that is a change.
    async fn write_condition(&self, at: &At<'_>, reason: &str, message: &str) -> Result<bool, Error> {
        let mut conditions = at.typed.status.conditions.clone();
        let new = conditions::condition(condition::SCHEDULED, false, reason, message, self.context.now());
        if !conditions::set(&mut conditions, new) {
            return Ok(false);
        }
        let patch = json!({"status": {"conditions": conditions}});
        self.context.merge_status(at.resource, at.binding, patch).await.map(|_| true)
    }

    /// Handles a rejected result: an exceeded quota is reported in the condition, other errors are retried.
    async fn handle_rejection(&self, at: &At<'_>, wanted: &[TargetCluster], error: Error) -> Result<Outcome, Error> {
        if error.code() != Some(403) {
            return Err(error);
        }
        let quota = error.reason() == condition::SCHEDULED_QUOTA_EXCEEDED;
        if quota {
            self.context.note_quota_denied(at.typed, wanted, &error.message()).await?;
        }
        let reason = if quota { condition::SCHEDULED_QUOTA_EXCEEDED } else { condition::SCHEDULED_SCHEDULER_ERROR };
        if self.write_condition(at, reason, &error.message()).await? {
            self.note(at, Severity::Warning, event::SCHEDULE_BINDING_FAILED, error.message());
        }
        Ok(Outcome::Later)
    }

    /// Updates the observed generation, since there is nothing to schedule.
    pub(super) async fn observe_generation(&self, at: &At<'_>) -> Result<(), Error> {
        let generation = unstructured::generation(at.binding);
        if at.typed.status.scheduler_observed_generation == generation {
            return Ok(());
        }
        let patch = json!({"status": {"schedulerObservedGeneration": generation}});
        self.context.merge_status(at.resource, at.binding, patch).await.map(|_| ())
    }

    /// Records the failed affinity terms. The spelling is Karmada's.
    fn note_failed_terms(&self, at: &At<'_>) {
        let (namespace, name) = (unstructured::namespace(at.binding), unstructured::name(at.binding));
        let binding = match namespace {
            "" => format!("ClusterResourceBinding({name})"),
            namespace => format!("ResourceBinding({namespace}/{name})"),
        };
        for term in at.report.terms.iter().filter(|term| !term.affinity.is_empty()) {
            if let Some(error) = &term.error {
                let index = term.index;
                let message = format!("failed to schedule {binding} with clusterAffiliates index({index}): {error}");
                self.note(at, Severity::Warning, event::SCHEDULE_BINDING_FAILED, message);
            }
        }
    }

    /// Records an event on the binding and on its template.
    fn note(&self, at: &At<'_>, severity: Severity, reason: &'static str, message: String) {
        self.context.events.note_both(at.binding, &at.typed.spec, severity, reason, &message);
    }
}

fn without_empty(mut patch: Value) -> Value {
    if unstructured::text(&patch, &["status", "schedulerObservingAffinityName"]).is_empty() {
        unstructured::remove(&mut patch, &["status", "schedulerObservingAffinityName"]);
    }
    patch
}

/// Returns true if the binding has a result but no success status. An exceeded quota is reported until the binding
/// changes.
fn is_unreported(binding: &ResourceBinding) -> bool {
    let shown = conditions::find(&binding.status.conditions, condition::SCHEDULED);
    let is_seen = binding.metadata.generation == Some(binding.status.scheduler_observed_generation);
    let waits = is_seen && shown.is_some_and(|shown| shown.reason == condition::SCHEDULED_QUOTA_EXCEEDED);
    !binding.spec.clusters.is_empty()
        && !waits
        && !conditions::is_true(&binding.status.conditions, condition::SCHEDULED)
}
