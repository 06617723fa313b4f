//! Next actions of the Job controller, computed from a Job's status and pods.
//!
//! A pod has a finalizer until its termination is counted, so that each is counted exactly once. As in Kubernetes,
//! counting takes two status updates: the UIDs of terminated pods are added to `uncountedTerminatedPods`, then their
//! finalizers are removed, then the counters change.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{JobSpec, JobStatus};

use crate::member::pod::{ContainerPhase, Phase, PodState, RestartPolicy};
use crate::member::workload::count;

use super::indexes::parse_indexes;
use super::policy::{FailureAction, classify_failure, match_success_policy};

/// Finalizer that keeps a pod until the Job has counted its termination.
pub const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Annotation and label of a pod with its completion index.
pub const INDEX_ANNOTATION: &str = "batch.kubernetes.io/job-completion-index";
/// Annotation of a pod with the number of earlier counted failures of its index.
pub const FAILURES_ANNOTATION: &str = "batch.kubernetes.io/job-index-failure-count";
/// Annotation of a pod with the number of earlier ignored failures of its index.
pub const IGNORED_FAILURES_ANNOTATION: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// First backoff after a failed pod in seconds; it doubles with each failure.
const INITIAL_BACKOFF_SECONDS: i64 = 10;
/// Maximum backoff after a failed pod in seconds.
const MAX_BACKOFF_SECONDS: i64 = 600;
/// Maximum number of pods that are created or counted at a time.
const MAX_PODS_PER_STEP: usize = 500;

/// Outcome of a Job. It is decided before the last pods of the Job have terminated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOutcome {
    pub is_success: bool,
    pub reason: String,
    pub message: String,
}

/// A pod to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewPod {
    pub index: Option<i32>,
    /// Counted and ignored failures of the index so far, if limits are per index.
    pub failures: Option<(i32, i32)>,
}

/// Counts so far and the next actions.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub create: Vec<NewPod>,
    pub delete: Vec<Arc<PodState>>,
    /// Pods that are deleted without being counted.
    pub discard: Vec<Arc<PodState>>,
    /// Pods whose finalizers are removed after their UIDs have been recorded.
    pub pods_to_count: Vec<Arc<PodState>>,
    /// UIDs to count: succeeded pods without an index, and failed pods.
    pub uncounted_succeeded: BTreeSet<String>,
    pub uncounted_failed: BTreeSet<String>,
    pub completed: BTreeSet<i32>,
    pub failed_indexes: Option<BTreeSet<i32>>,
    pub outcome: Option<JobOutcome>,
    /// Time after which the Job must be processed again.
    pub requeue_after: Option<SignedDuration>,
}

impl Plan {
    /// Requests processing of the Job after `wait` at the latest.
    fn requeue_in(&mut self, wait: SignedDuration) {
        self.requeue_after = Some(self.requeue_after.map_or(wait, |earlier| earlier.min(wait)));
    }
}

/// Inputs of a plan.
struct JobView<'a> {
    spec: &'a JobSpec,
    status: &'a JobStatus,
    pods: &'a [Arc<PodState>],
    active: Vec<&'a Arc<PodState>>,
    is_indexed: bool,
    /// True if only failed pods are replaced, not terminating ones.
    replaces_only_failed: bool,
    /// UIDs in `uncountedTerminatedPods`.
    uncounted: HashSet<&'a str>,
    now: Timestamp,
}

/// Computes the next actions of a Job that has not finished.
pub fn plan(spec: &JobSpec, status: &JobStatus, pods: &[Arc<PodState>], now: Timestamp) -> Plan {
    let uncounted = status.uncounted_terminated_pods.as_ref();
    let lists = uncounted.map(|uncounted| (uncounted.succeeded.as_deref(), uncounted.failed.as_deref()));
    let (succeeded, failed) = lists.map_or((&[][..], &[][..]), |(s, f)| (s.unwrap_or_default(), f.unwrap_or_default()));
    let view = JobView {
        spec,
        status,
        pods,
        active: pods.iter().filter(|pod| pod.is_active()).collect(),
        is_indexed: spec.completion_mode.as_deref() == Some("Indexed"),
        replaces_only_failed: spec
            .pod_replacement_policy
            .as_deref()
            .map_or(spec.pod_failure_policy.is_some(), |p| p == "Failed"),
        uncounted: succeeded.iter().chain(failed).map(String::as_str).collect(),
        now,
    };
    let mut plan = Plan {
        uncounted_succeeded: succeeded.iter().cloned().collect(),
        uncounted_failed: failed.iter().cloned().collect(),
        ..Plan::default()
    };
    view.complete_plan(&mut plan);
    plan
}

pub fn index_of(pod: &PodState) -> Option<i32> {
    pod.annotations.get(INDEX_ANNOTATION)?.parse().ok()
}

pub fn is_tracked(pod: &PodState) -> bool {
    pod.finalizers.iter().any(|finalizer| &**finalizer == FINALIZER)
}

/// Value of an annotation with a number; 0 if it is missing or malformed.
fn count_annotation(pod: &PodState, name: &str) -> i32 {
    pod.annotations.get(name).and_then(|count| count.parse().ok()).unwrap_or_default()
}

/// Time at which a pod ended, from its containers, its Ready condition or its deletion.
fn end_time(pod: &PodState) -> Timestamp {
    let finished = pod.containers.iter().filter_map(|view| match view.state {
        ContainerPhase::Terminated { finished, .. } => Some(finished),
        _ => None,
    });
    let deleted_at = pod.deletion.map(|deletion| deletion.at - SignedDuration::from_secs(deletion.grace_seconds));
    finished.max().or(pod.unready_since).or(deleted_at).unwrap_or(pod.created)
}

/// Remaining backoff after a number of failures, the last of them at `last`.
fn remaining_backoff(failures: usize, last: Timestamp, now: Timestamp) -> Option<SignedDuration> {
    let doublings = u32::try_from(failures).ok()?.checked_sub(1)?.min(10);
    let wait = SignedDuration::from_secs((INITIAL_BACKOFF_SECONDS << doublings).min(MAX_BACKOFF_SECONDS));
    let remaining = wait - now.duration_since(last);
    remaining.is_positive().then_some(remaining)
}

impl<'a> JobView<'a> {
    fn complete_plan(&self, plan: &mut Plan) {
        let unrecorded = || self.pods.iter().filter(|pod| self.is_unrecorded(pod));
        let succeeded_pods = unrecorded().filter(|pod| pod.phase == Phase::Succeeded);
        plan.completed = parse_indexes(self.status.completed_indexes.as_deref().unwrap_or_default());
        if self.is_indexed {
            plan.completed.extend(succeeded_pods.clone().filter_map(|pod| index_of(pod)));
        }
        let failures =
            unrecorded().filter(|pod| self.has_failed(pod) && self.classify_failure(pod) != FailureAction::Ignore);
        let failed = self.status.failed.unwrap_or_default() + count(&plan.uncounted_failed) + count(failures);
        let succeeded = if self.is_indexed {
            count(&plan.completed)
        } else {
            self.status.succeeded.unwrap_or_default() + count(&plan.uncounted_succeeded) + count(succeeded_pods)
        };
        let mut retained = BTreeMap::new();
        if self.has_limit_per_index() {
            let failed = self.failed_indexes();
            retained = self.retain_for_replacement(&plan.completed, &failed);
            plan.failed_indexes = Some(failed);
        }
        plan.outcome = self.decide_outcome(plan, succeeded, failed);
        if plan.outcome.is_some() {
            plan.delete = self.active.iter().map(|pod| (*pod).clone()).collect();
        } else {
            self.manage_pods(plan, succeeded, &retained);
            let has_work = !plan.create.is_empty() || self.active.len() > plan.discard.len();
            plan.outcome = self.completion_outcome(succeeded, has_work);
        }
        self.select_pods_to_count(plan, &retained);
    }

    fn has_limit_per_index(&self) -> bool {
        self.is_indexed && self.spec.backoff_limit_per_index.is_some()
    }

    /// True if the pod's index is valid, or the Job is not indexed.
    fn has_valid_index(&self, pod: &PodState) -> bool {
        !self.is_indexed
            || index_of(pod).is_some_and(|index| (0..self.spec.completions.unwrap_or_default()).contains(&index))
    }

    /// True for a pod that is neither counted nor in `uncountedTerminatedPods`.
    fn is_unrecorded(&self, pod: &PodState) -> bool {
        is_tracked(pod) && !self.uncounted.contains(&*pod.uid) && self.has_valid_index(pod)
    }

    fn has_failed(&self, pod: &PodState) -> bool {
        pod.phase == Phase::Failed
            || (!self.replaces_only_failed && pod.deletion.is_some() && pod.phase != Phase::Succeeded)
    }

    fn classify_failure(&self, pod: &PodState) -> FailureAction {
        classify_failure(self.spec.pod_failure_policy.as_ref(), pod)
    }

    /// Indexes that have failed permanently.
    fn failed_indexes(&self) -> BTreeSet<i32> {
        let limit = self.spec.backoff_limit_per_index.unwrap_or_default();
        let mut failed = parse_indexes(self.status.failed_indexes.as_deref().unwrap_or_default());
        let fatal =
            self.pods.iter().filter(|pod| is_tracked(pod) && self.has_valid_index(pod) && self.has_failed(pod)).filter(
                |pod| match self.classify_failure(pod) {
                    FailureAction::FailIndex => true,
                    FailureAction::Ignore => false,
                    _ => count_annotation(pod, FAILURES_ANNOTATION) >= limit,
                },
            );
        failed.extend(fatal.filter_map(|pod| index_of(pod)));
        failed
    }

    /// The last failed pod of each index that is retried. It is counted after its replacement was created with its
    /// failure count.
    fn retain_for_replacement(
        &self,
        completed: &BTreeSet<i32>,
        failed: &BTreeSet<i32>,
    ) -> BTreeMap<i32, &'a Arc<PodState>> {
        let active: BTreeSet<i32> = self.active.iter().filter_map(|pod| index_of(pod)).collect();
        let mut retained: BTreeMap<i32, &Arc<PodState>> = BTreeMap::new();
        let rank = |pod: &PodState| {
            (
                count_annotation(pod, FAILURES_ANNOTATION) + count_annotation(pod, IGNORED_FAILURES_ANNOTATION),
                end_time(pod),
            )
        };
        for pod in self.pods.iter().filter(|pod| is_tracked(pod) && self.has_valid_index(pod) && self.has_failed(pod)) {
            let Some(index) = index_of(pod) else { continue };
            if completed.contains(&index) || failed.contains(&index) || active.contains(&index) {
                continue;
            }
            if retained.get(&index).is_none_or(|previous| rank(previous) <= rank(pod)) {
                retained.insert(index, pod);
            }
        }
        retained
    }

    /// Outcome that an interim condition (SuccessCriteriaMet, FailureTarget) of the status records.
    fn recorded_outcome(&self, kind: &str) -> Option<JobOutcome> {
        let conditions = self.status.conditions.as_deref().unwrap_or_default();
        let condition = conditions.iter().find(|condition| condition.type_ == kind && condition.status == "True")?;
        Some(JobOutcome {
            is_success: kind == "SuccessCriteriaMet",
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
        })
    }

    /// Outcome of the Job for any reason other than that it is complete.
    fn decide_outcome(&self, plan: &mut Plan, succeeded: i32, failed: i32) -> Option<JobOutcome> {
        if let Some(recorded) =
            self.recorded_outcome("SuccessCriteriaMet").or_else(|| self.recorded_outcome("FailureTarget"))
        {
            return Some(recorded);
        }
        let failure = |reason: &str, message: &str| {
            Some(JobOutcome { is_success: false, reason: reason.into(), message: message.into() })
        };
        let fatal =
            self.pods.iter().filter(|pod| self.has_failed(pod)).find_map(|pod| match self.classify_failure(pod) {
                FailureAction::FailJob(message) => Some(message),
                _ => None,
            });
        if let Some(message) = fatal {
            return failure("PodFailurePolicy", &message);
        }
        if failed > self.backoff_limit() || self.exceeds_restart_limit() {
            return failure("BackoffLimitExceeded", "Job has reached the specified backoff limit");
        }
        if let (Some(deadline), Some(start)) = (self.spec.active_deadline_seconds, &self.status.start_time)
            && self.spec.suspend != Some(true)
        {
            let remaining = SignedDuration::from_secs(deadline) - self.now.duration_since(start.0);
            if !remaining.is_positive() {
                return failure("DeadlineExceeded", "Job was active longer than specified deadline");
            }
            plan.requeue_in(remaining);
        }
        let completions = self.spec.completions.unwrap_or_default();
        if let Some(failed) = &plan.failed_indexes {
            if self.spec.max_failed_indexes.is_some_and(|max| count(failed) > max) {
                let message = "Job has exceeded the specified maximal number of failed indexes";
                return failure("MaxFailedIndexesExceeded", message);
            }
            if !failed.is_empty() && count(failed) + succeeded >= completions {
                return failure("FailedIndexes", "Job has failed indexes");
            }
        }
        let message = if self.is_indexed {
            match_success_policy(self.spec.success_policy.as_ref(), completions, &plan.completed)
        } else {
            None
        };
        message.map(|message| JobOutcome { is_success: true, reason: "SuccessPolicy".into(), message })
    }

    fn backoff_limit(&self) -> i32 {
        self.spec.backoff_limit.unwrap_or(if self.has_limit_per_index() { i32::MAX } else { 6 })
    }

    /// True if container restarts exceed the backoff limit; they count for the restart policy `OnFailure`.
    fn exceeds_restart_limit(&self) -> bool {
        let restarts: i32 = self
            .pods
            .iter()
            .filter(|pod| {
                pod.spec.restart_policy == RestartPolicy::OnFailure
                    && matches!(pod.phase, Phase::Running | Phase::Pending)
            })
            .map(|pod| pod.restarts())
            .sum();
        if self.backoff_limit() == 0 { restarts > 0 } else { restarts >= self.backoff_limit() }
    }

    /// Creates and deletes pods of an unfinished Job.
    fn manage_pods(&self, plan: &mut Plan, succeeded: i32, retained: &BTreeMap<i32, &Arc<PodState>>) {
        let running = count(&self.active);
        if self.spec.suspend == Some(true) {
            plan.discard = self.active.iter().map(|pod| (*pod).clone()).collect();
            return;
        }
        let parallelism = self.spec.parallelism.unwrap_or(1);
        let desired = match self.spec.completions {
            // Without completions, no pods are started after one has succeeded.
            None if succeeded > 0 => running,
            None => parallelism,
            Some(completions) => parallelism.min(completions - succeeded).max(0),
        };
        plan.discard = self.surplus(usize::try_from(running - desired).unwrap_or_default());
        if !plan.discard.is_empty() {
            return;
        }
        let terminating = self.pods.iter().filter(|pod| pod.deletion.is_some() && !pod.phase.is_terminal());
        let awaited_terminations = if self.replaces_only_failed { count(terminating.clone()) } else { 0 };
        let missing =
            usize::try_from(desired - awaited_terminations - running).unwrap_or_default().min(MAX_PODS_PER_STEP);
        if missing == 0 {
            return;
        }
        if !self.has_limit_per_index()
            && let Some(wait) = self.remaining_job_backoff()
        {
            plan.requeue_in(wait);
            return;
        }
        if !self.is_indexed {
            plan.create = vec![NewPod::default(); missing];
            return;
        }
        let mut used_indexes: BTreeSet<i32> = self.active.iter().filter_map(|pod| index_of(pod)).collect();
        if self.replaces_only_failed {
            used_indexes.extend(terminating.filter_map(|pod| index_of(pod)));
        }
        let failed = plan.failed_indexes.clone().unwrap_or_default();
        let free_indexes = (0..self.spec.completions.unwrap_or_default()).filter(|index| {
            !used_indexes.contains(index) && !plan.completed.contains(index) && !failed.contains(index)
        });
        let mut min_wait: Option<SignedDuration> = None;
        for index in free_indexes.take(missing) {
            let before = retained.get(&index).map(|pod| {
                let (failures, ignored) =
                    (count_annotation(pod, FAILURES_ANNOTATION), count_annotation(pod, IGNORED_FAILURES_ANNOTATION));
                let next = match self.classify_failure(pod) {
                    FailureAction::Ignore => (failures, ignored + 1),
                    _ => (failures + 1, ignored),
                };
                (next, usize::try_from(next.0 + next.1).unwrap_or_default(), end_time(pod))
            });
            if let Some(wait) = before.and_then(|(_, failures, last)| remaining_backoff(failures, last, self.now)) {
                min_wait = Some(min_wait.map_or(wait, |shortest| shortest.min(wait)));
                continue;
            }
            let failures = self.has_limit_per_index().then(|| before.map_or((0, 0), |(next, ..)| next));
            plan.create.push(NewPod { index: Some(index), failures });
        }
        if let Some(wait) = min_wait {
            plan.requeue_in(wait);
        }
    }

    /// Pods to delete: all with an invalid or duplicate index, then those with the least progress, at least `min` in
    /// total if there are enough.
    fn surplus(&self, min: usize) -> Vec<Arc<PodState>> {
        let mut sorted = self.active.clone();
        sorted.sort_by_key(|pod| (pod.created, pod.key.clone()));
        let mut indexes = BTreeSet::new();
        let (mut rest, mut surplus): (Vec<_>, Vec<_>) = sorted.into_iter().partition(|pod| {
            !self.is_indexed || (self.has_valid_index(pod) && index_of(pod).is_some_and(|index| indexes.insert(index)))
        });
        rest.sort_by_key(|pod| {
            (pod.node.is_some(), pod.phase == Phase::Running, pod.is_ready(), std::cmp::Reverse(pod.created))
        });
        let more = min.saturating_sub(surplus.len());
        surplus.extend(rest.into_iter().take(more));
        surplus.into_iter().cloned().collect()
    }

    /// Remaining backoff since the last failure.
    fn remaining_job_backoff(&self) -> Option<SignedDuration> {
        let end_times = |phase| self.pods.iter().filter(move |pod| pod.phase == phase).map(|pod| end_time(pod));
        let last_success = end_times(Phase::Succeeded).max();
        let failures: Vec<Timestamp> =
            end_times(Phase::Failed).filter(|at| last_success.is_none_or(|success| *at >= success)).collect();
        remaining_backoff(failures.len(), *failures.iter().max()?, self.now)
    }

    /// Outcome of the Job if it is complete.
    fn completion_outcome(&self, succeeded: i32, has_work: bool) -> Option<JobOutcome> {
        let is_complete = match self.spec.completions {
            Some(completions) => succeeded >= completions,
            None => succeeded > 0,
        };
        let outcome = || JobOutcome {
            is_success: true,
            reason: "CompletionsReached".into(),
            message: "Reached expected number of succeeded pods".into(),
        };
        (is_complete && !has_work).then(outcome)
    }

    /// Selects the pods to count; all of them if the Job has finished.
    fn select_pods_to_count(&self, plan: &mut Plan, retained: &BTreeMap<i32, &Arc<PodState>>) {
        for pod in self.pods.iter().filter(|pod| is_tracked(pod)) {
            let has_failed = self.has_failed(pod);
            let is_retained = index_of(pod)
                .and_then(|index| retained.get(&index))
                .is_some_and(|retained_pod| retained_pod.uid == pod.uid);
            let is_due = plan.outcome.is_some() || pod.phase == Phase::Succeeded || (has_failed && !is_retained);
            if !is_due || plan.pods_to_count.len() >= MAX_PODS_PER_STEP {
                continue;
            }
            plan.pods_to_count.push(pod.clone());
            if !self.is_unrecorded(pod) {
                continue;
            }
            let job_has_failed = plan.outcome.as_ref().is_some_and(|outcome| !outcome.is_success);
            if pod.phase == Phase::Succeeded {
                if !self.is_indexed {
                    plan.uncounted_succeeded.insert(pod.uid.to_string());
                }
            } else if (has_failed || job_has_failed) && self.classify_failure(pod) != FailureAction::Ignore {
                plan.uncounted_failed.insert(pod.uid.to_string());
            }
        }
    }
}
