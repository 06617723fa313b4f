//! Status of a Job, before and after terminated pods are counted.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{JobCondition, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::member::pod::PodState;
use crate::member::workload::{count, nonzero};

use super::indexes::format_indexes;
use super::plan::{Plan, Verdict};

/// Time at which the Job finished, by its conditions.
pub fn finished(status: Option<&JobStatus>) -> Option<Timestamp> {
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ended = conditions.iter().find(|condition| {
        condition.status == "True" && (condition.type_ == "Complete" || condition.type_ == "Failed")
    })?;
    ended.last_transition_time.as_ref().map(|time| time.0)
}

/// Conditions under construction.
struct Conditions {
    list: Vec<JobCondition>,
    now: Timestamp,
}

impl Conditions {
    /// Sets a condition unless it has this status. Returns true if it changed.
    fn set(&mut self, kind: &str, holds: bool, reason: &str, message: &str) -> bool {
        let status = if holds { "True" } else { "False" };
        let condition = JobCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_probe_time: Some(Time(self.now)),
            last_transition_time: Some(Time(self.now)),
        };
        match self.list.iter_mut().find(|known| known.type_ == kind) {
            Some(known) if known.status == status => return false,
            Some(known) => *known = condition,
            None => self.list.push(condition),
        }
        true
    }

    fn into_list(self) -> Option<Vec<JobCondition>> {
        (!self.list.is_empty()).then_some(self.list)
    }
}

/// Status that records which terminated pods are to be counted: UIDs, indexes, and the interim condition of a finishing Job.
pub fn written_down(
    spec: &JobSpec,
    known: &JobStatus,
    plan: &Plan,
    pods: &[Arc<PodState>],
    now: Timestamp,
) -> JobStatus {
    let indexed = spec.completion_mode.as_deref() == Some("Indexed");
    let mut conditions = Conditions { list: known.conditions.clone().unwrap_or_default(), now };
    let suspended = spec.suspend == Some(true);
    let mut start_time = known.start_time.clone().or(Some(Time(now)));
    match &plan.verdict {
        Some(Verdict { succeeded, reason, message }) => {
            let interim = if *succeeded { "SuccessCriteriaMet" } else { "FailureTarget" };
            conditions.set(interim, true, reason, message);
        }
        None if suspended => {
            conditions.set("Suspended", true, "JobSuspended", "Job suspended");
            start_time = None;
        }
        None => {
            let was_suspended = conditions.list.iter().any(|known| known.type_ == "Suspended");
            if was_suspended && conditions.set("Suspended", false, "JobResumed", "Job resumed") {
                // The deadline starts again.
                start_time = Some(Time(now));
            }
        }
    }
    let mut status = JobStatus {
        start_time,
        completion_time: known.completion_time.clone(),
        succeeded: if indexed { nonzero(count(&plan.completed)) } else { known.succeeded },
        failed: known.failed,
        completed_indexes: (indexed && !plan.completed.is_empty()).then(|| format_indexes(&plan.completed)),
        failed_indexes: plan.failed_indexes.as_ref().map(format_indexes),
        uncounted_terminated_pods: Some(UncountedTerminatedPods {
            succeeded: listed(&plan.uncounted_succeeded),
            failed: listed(&plan.uncounted_failed),
        }),
        conditions: conditions.into_list(),
        ..JobStatus::default()
    };
    count_pods(&mut status, pods);
    status
}

fn listed<'a>(uids: impl IntoIterator<Item = &'a String>) -> Option<Vec<String>> {
    let uids: Vec<String> = uids.into_iter().cloned().collect();
    (!uids.is_empty()).then_some(uids)
}

fn count_pods(status: &mut JobStatus, pods: &[Arc<PodState>]) {
    let active = || pods.iter().filter(|pod| pod.is_active());
    status.active = nonzero(count(active()));
    status.ready = Some(count(active().filter(|pod| pod.is_ready())));
    status.terminating = Some(count(pods.iter().filter(|pod| pod.deletion.is_some() && !pod.phase.is_terminal())));
}

/// The status after all recorded finalizers have been removed: the pods are counted, and a finishing Job is finished
/// once no pod is terminating.
pub fn settled(written: JobStatus, plan: &Plan, pods: &[Arc<PodState>], now: Timestamp) -> JobStatus {
    let mut status = written;
    count_pods(&mut status, pods);
    let total = |count: Option<i32>, more: usize| {
        nonzero(count.unwrap_or_default().saturating_add(i32::try_from(more).unwrap_or(i32::MAX)))
    };
    status.succeeded = total(status.succeeded, plan.uncounted_succeeded.len());
    status.failed = total(status.failed, plan.uncounted_failed.len());
    status.uncounted_terminated_pods = Some(UncountedTerminatedPods::default());
    let stopping = status.active.unwrap_or_default() + status.terminating.unwrap_or_default();
    if let Some(Verdict { succeeded, reason, message }) = plan.verdict.as_ref().filter(|_| stopping == 0) {
        let (kind, completed) = if *succeeded { ("Complete", Some(Time(now))) } else { ("Failed", None) };
        let mut conditions = Conditions { list: status.conditions.take().unwrap_or_default(), now };
        conditions.set(kind, true, reason, message);
        status.conditions = conditions.into_list();
        status.completion_time = completed.or(status.completion_time);
    }
    status
}
