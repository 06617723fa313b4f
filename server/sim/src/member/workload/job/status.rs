//! Status of a Job, before and after terminated pods are counted.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{JobCondition, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::member::pod::PodState;
use crate::member::workload::{count, nonzero};

use super::indexes::format_indexes;
use super::plan::{JobOutcome, Plan};

/// True if the condition `Complete` or `Failed` is true.
pub fn is_finished(status: Option<&JobStatus>) -> bool {
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions
        .iter()
        .any(|condition| condition.status == "True" && (condition.type_ == "Complete" || condition.type_ == "Failed"))
}

/// Conditions under construction.
struct Conditions {
    list: Vec<JobCondition>,
    now: Timestamp,
}

impl Conditions {
    /// Sets a condition unless it has this status. Returns true if it changed.
    fn set(&mut self, kind: &str, is_true: bool, reason: &str, message: &str) -> bool {
        let status = if is_true { "True" } else { "False" };
        let condition = JobCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_probe_time: Some(Time(self.now)),
            last_transition_time: Some(Time(self.now)),
        };
        match self.list.iter_mut().find(|existing| existing.type_ == kind) {
            Some(existing) if existing.status == status => return false,
            Some(existing) => *existing = condition,
            None => self.list.push(condition),
        }
        true
    }

    fn into_list(self) -> Option<Vec<JobCondition>> {
        (!self.list.is_empty()).then_some(self.list)
    }
}

/// Status before terminated pods are counted: with their UIDs or indexes, and the interim condition of a finishing Job.
pub fn status_before_counting(
    spec: &JobSpec,
    old_status: &JobStatus,
    plan: &Plan,
    pods: &[Arc<PodState>],
    now: Timestamp,
) -> JobStatus {
    let is_indexed = spec.completion_mode.as_deref() == Some("Indexed");
    let mut conditions = Conditions { list: old_status.conditions.clone().unwrap_or_default(), now };
    let is_suspended = spec.suspend == Some(true);
    let mut start_time = old_status.start_time.clone().or(Some(Time(now)));
    match &plan.outcome {
        Some(JobOutcome { is_success, reason, message }) => {
            let interim = if *is_success { "SuccessCriteriaMet" } else { "FailureTarget" };
            conditions.set(interim, true, reason, message);
        }
        None if is_suspended => {
            conditions.set("Suspended", true, "JobSuspended", "Job suspended");
            start_time = None;
        }
        None => {
            let was_suspended = conditions.list.iter().any(|existing| existing.type_ == "Suspended");
            if was_suspended && conditions.set("Suspended", false, "JobResumed", "Job resumed") {
                // activeDeadlineSeconds counts from the resumption.
                start_time = Some(Time(now));
            }
        }
    }
    let mut status = JobStatus {
        start_time,
        completion_time: old_status.completion_time.clone(),
        succeeded: if is_indexed { nonzero(count(&plan.completed)) } else { old_status.succeeded },
        failed: old_status.failed,
        completed_indexes: (is_indexed && !plan.completed.is_empty()).then(|| format_indexes(&plan.completed)),
        failed_indexes: plan.failed_indexes.as_ref().map(format_indexes),
        uncounted_terminated_pods: Some(UncountedTerminatedPods {
            succeeded: non_empty_list(&plan.uncounted_succeeded),
            failed: non_empty_list(&plan.uncounted_failed),
        }),
        conditions: conditions.into_list(),
        ..JobStatus::default()
    };
    set_pod_counts(&mut status, pods);
    status
}

fn non_empty_list<'a>(uids: impl IntoIterator<Item = &'a String>) -> Option<Vec<String>> {
    let uids: Vec<String> = uids.into_iter().cloned().collect();
    (!uids.is_empty()).then_some(uids)
}

fn set_pod_counts(status: &mut JobStatus, pods: &[Arc<PodState>]) {
    let active = || pods.iter().filter(|pod| pod.is_active());
    status.active = nonzero(count(active()));
    status.ready = Some(count(active().filter(|pod| pod.is_ready())));
    status.terminating = Some(count(pods.iter().filter(|pod| pod.deletion.is_some() && !pod.phase.is_terminal())));
}

/// Status after terminated pods are counted. Called when the finalizers of the recorded pods have been removed. A
/// finishing Job is finished once no pod is active or terminating.
pub fn status_after_counting(before: JobStatus, plan: &Plan, pods: &[Arc<PodState>], now: Timestamp) -> JobStatus {
    let mut status = before;
    set_pod_counts(&mut status, pods);
    let total = |count: Option<i32>, more: usize| {
        nonzero(count.unwrap_or_default().saturating_add(i32::try_from(more).unwrap_or(i32::MAX)))
    };
    status.succeeded = total(status.succeeded, plan.uncounted_succeeded.len());
    status.failed = total(status.failed, plan.uncounted_failed.len());
    status.uncounted_terminated_pods = Some(UncountedTerminatedPods::default());
    let unfinished = status.active.unwrap_or_default() + status.terminating.unwrap_or_default();
    if let Some(JobOutcome { is_success, reason, message }) = plan.outcome.as_ref().filter(|_| unfinished == 0) {
        let (kind, completed) = if *is_success { ("Complete", Some(Time(now))) } else { ("Failed", None) };
        let mut conditions = Conditions { list: status.conditions.take().unwrap_or_default(), now };
        conditions.set(kind, true, reason, message);
        status.conditions = conditions.into_list();
        status.completion_time = completed.or(status.completion_time);
    }
    status
}
