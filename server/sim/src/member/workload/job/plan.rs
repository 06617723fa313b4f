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
use super::policy::{Failure, failure_of, meets};

/// Finalizer that keeps a pod until the Job has counted its termination.
pub const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";
pub const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
pub const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// Backoff after a failed pod in seconds: initial value, doubled each time, and maximum.
const BACKOFF_FIRST: i64 = 10;
const BACKOFF_LAST: i64 = 600;
/// Most pods created or counted at a time.
const BURST: usize = 500;

/// Outcome of a Job, decided before its last pods have terminated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub succeeded: bool,
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
    pub counted: Vec<Arc<PodState>>,
    /// UIDs to count: succeeded pods without an index, and failed pods.
    pub uncounted_succeeded: BTreeSet<String>,
    pub uncounted_failed: BTreeSet<String>,
    pub completed: BTreeSet<i32>,
    pub failed_indexes: Option<BTreeSet<i32>>,
    pub verdict: Option<Verdict>,
    pub again: Option<SignedDuration>,
}

impl Plan {
    fn wake_in(&mut self, wait: SignedDuration) {
        self.again = Some(self.again.map_or(wait, |again| again.min(wait)));
    }
}

/// Settings and pods of a Job.
struct View<'a> {
    spec: &'a JobSpec,
    known: &'a JobStatus,
    pods: &'a [Arc<PodState>],
    active: Vec<&'a Arc<PodState>>,
    indexed: bool,
    /// True if only failed pods are replaced, not terminating ones.
    only_failed: bool,
    /// UIDs that are recorded and not yet counted.
    uncounted: HashSet<&'a str>,
    now: Timestamp,
}

/// Computes the next actions.
pub fn plan(spec: &JobSpec, known: &JobStatus, pods: &[Arc<PodState>], now: Timestamp) -> Plan {
    let uncounted = known.uncounted_terminated_pods.as_ref();
    let lists = uncounted.map(|uncounted| (uncounted.succeeded.as_deref(), uncounted.failed.as_deref()));
    let (succeeded, failed) = lists.map_or((&[][..], &[][..]), |(s, f)| (s.unwrap_or_default(), f.unwrap_or_default()));
    let view = View {
        spec,
        known,
        pods,
        active: pods.iter().filter(|pod| pod.is_active()).collect(),
        indexed: spec.completion_mode.as_deref() == Some("Indexed"),
        only_failed: spec
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
    view.plan(&mut plan);
    plan
}

pub fn index_of(pod: &PodState) -> Option<i32> {
    pod.annotations.get(INDEX)?.parse().ok()
}

pub fn is_tracked(pod: &PodState) -> bool {
    pod.finalizers.iter().any(|finalizer| &**finalizer == FINALIZER)
}

fn annotated(pod: &PodState, name: &str) -> i32 {
    pod.annotations.get(name).and_then(|count| count.parse().ok()).unwrap_or_default()
}

/// Time at which a pod ended, by its containers, its Ready condition or its deletion.
fn ended(pod: &PodState) -> Timestamp {
    let finished = pod.containers.iter().filter_map(|view| match view.doing {
        ContainerPhase::Terminated { finished, .. } => Some(finished),
        _ => None,
    });
    let deleted = pod.deletion.map(|deletion| deletion.at - SignedDuration::from_secs(deletion.grace));
    finished.max().or(pod.unready_since).or(deleted).unwrap_or(pod.created)
}

/// Remaining backoff after a number of failures, the last of them at `last`.
fn backoff_left(failures: usize, last: Timestamp, now: Timestamp) -> Option<SignedDuration> {
    let doubled = u32::try_from(failures).ok()?.checked_sub(1)?.min(10);
    let wait = SignedDuration::from_secs((BACKOFF_FIRST << doubled).min(BACKOFF_LAST));
    let left = wait - now.duration_since(last);
    left.is_positive().then_some(left)
}

impl<'a> View<'a> {
    fn plan(&self, plan: &mut Plan) {
        let fresh = || self.pods.iter().filter(|pod| self.is_fresh(pod));
        let done = fresh().filter(|pod| pod.phase == Phase::Succeeded);
        plan.completed = parse_indexes(self.known.completed_indexes.as_deref().unwrap_or_default());
        if self.indexed {
            plan.completed.extend(done.clone().filter_map(|pod| index_of(pod)));
        }
        let failures = fresh().filter(|pod| self.has_failed(pod) && self.failure_of(pod) != Failure::Ignored);
        let failed = self.known.failed.unwrap_or_default() + count(&plan.uncounted_failed) + count(failures);
        let succeeded = if self.indexed {
            count(&plan.completed)
        } else {
            self.known.succeeded.unwrap_or_default() + count(&plan.uncounted_succeeded) + count(done)
        };
        let mut kept = BTreeMap::new();
        if self.per_index() {
            let failed = self.failed_indexes();
            kept = self.kept_for_replacement(&plan.completed, &failed);
            plan.failed_indexes = Some(failed);
        }
        plan.verdict = self.verdict(plan, succeeded, failed);
        if plan.verdict.is_some() {
            plan.delete = self.active.iter().map(|pod| (*pod).clone()).collect();
        } else {
            self.manage(plan, succeeded, &kept);
            let busy = !plan.create.is_empty() || self.active.len() > plan.discard.len();
            plan.verdict = self.completion(succeeded, busy);
        }
        self.count(plan, &kept);
    }

    fn per_index(&self) -> bool {
        self.indexed && self.spec.backoff_limit_per_index.is_some()
    }

    /// True if the pod's index is valid, or not needed.
    fn is_valid(&self, pod: &PodState) -> bool {
        !self.indexed
            || index_of(pod).is_some_and(|index| (0..self.spec.completions.unwrap_or_default()).contains(&index))
    }

    /// True for a pod that is neither counted nor recorded.
    fn is_fresh(&self, pod: &PodState) -> bool {
        is_tracked(pod) && !self.uncounted.contains(&*pod.uid) && self.is_valid(pod)
    }

    fn has_failed(&self, pod: &PodState) -> bool {
        pod.phase == Phase::Failed || (!self.only_failed && pod.deletion.is_some() && pod.phase != Phase::Succeeded)
    }

    fn failure_of(&self, pod: &PodState) -> Failure {
        failure_of(self.spec.pod_failure_policy.as_ref(), pod)
    }

    /// Indexes that have failed permanently.
    fn failed_indexes(&self) -> BTreeSet<i32> {
        let limit = self.spec.backoff_limit_per_index.unwrap_or_default();
        let mut failed = parse_indexes(self.known.failed_indexes.as_deref().unwrap_or_default());
        let fatal =
            self.pods.iter().filter(|pod| is_tracked(pod) && self.is_valid(pod) && self.has_failed(pod)).filter(
                |pod| match self.failure_of(pod) {
                    Failure::FailsIndex => true,
                    Failure::Ignored => false,
                    _ => annotated(pod, FAILURES) >= limit,
                },
            );
        failed.extend(fatal.filter_map(|pod| index_of(pod)));
        failed
    }

    /// The last failed pod of each index that is retried: it is counted after its replacement has taken over its
    /// failure count.
    fn kept_for_replacement(
        &self,
        completed: &BTreeSet<i32>,
        failed: &BTreeSet<i32>,
    ) -> BTreeMap<i32, &'a Arc<PodState>> {
        let active: BTreeSet<i32> = self.active.iter().filter_map(|pod| index_of(pod)).collect();
        let mut kept: BTreeMap<i32, &Arc<PodState>> = BTreeMap::new();
        let rank = |pod: &PodState| (annotated(pod, FAILURES) + annotated(pod, IGNORED_FAILURES), ended(pod));
        for pod in self.pods.iter().filter(|pod| is_tracked(pod) && self.is_valid(pod) && self.has_failed(pod)) {
            let Some(index) = index_of(pod) else { continue };
            if completed.contains(&index) || failed.contains(&index) || active.contains(&index) {
                continue;
            }
            if kept.get(&index).is_none_or(|known| rank(known) <= rank(pod)) {
                kept.insert(index, pod);
            }
        }
        kept
    }

    fn condition(&self, kind: &str) -> Option<Verdict> {
        let conditions = self.known.conditions.as_deref().unwrap_or_default();
        let found = conditions.iter().find(|condition| condition.type_ == kind && condition.status == "True")?;
        Some(Verdict {
            succeeded: kind == "SuccessCriteriaMet",
            reason: found.reason.clone().unwrap_or_default(),
            message: found.message.clone().unwrap_or_default(),
        })
    }

    /// Outcome of the Job, other than by completion.
    fn verdict(&self, plan: &mut Plan, succeeded: i32, failed: i32) -> Option<Verdict> {
        if let Some(known) = self.condition("SuccessCriteriaMet").or_else(|| self.condition("FailureTarget")) {
            return Some(known);
        }
        let failure = |reason: &str, message: &str| {
            Some(Verdict { succeeded: false, reason: reason.into(), message: message.into() })
        };
        let fatal = self.pods.iter().filter(|pod| self.has_failed(pod)).find_map(|pod| match self.failure_of(pod) {
            Failure::FailsJob(message) => Some(message),
            _ => None,
        });
        if let Some(message) = fatal {
            return failure("PodFailurePolicy", &message);
        }
        if failed > self.limit() || self.exceeds_restart_limit() {
            return failure("BackoffLimitExceeded", "Job has reached the specified backoff limit");
        }
        if let (Some(deadline), Some(start)) = (self.spec.active_deadline_seconds, &self.known.start_time)
            && self.spec.suspend != Some(true)
        {
            let left = SignedDuration::from_secs(deadline) - self.now.duration_since(start.0);
            if !left.is_positive() {
                return failure("DeadlineExceeded", "Job was active longer than specified deadline");
            }
            plan.wake_in(left);
        }
        let completions = self.spec.completions.unwrap_or_default();
        if let Some(failed) = &plan.failed_indexes {
            if self.spec.max_failed_indexes.is_some_and(|most| count(failed) > most) {
                let message = "Job has exceeded the specified maximal number of failed indexes";
                return failure("MaxFailedIndexesExceeded", message);
            }
            if !failed.is_empty() && count(failed) + succeeded >= completions {
                return failure("FailedIndexes", "Job has failed indexes");
            }
        }
        let met =
            if self.indexed { meets(self.spec.success_policy.as_ref(), completions, &plan.completed) } else { None };
        met.map(|message| Verdict { succeeded: true, reason: "SuccessPolicy".into(), message })
    }

    fn limit(&self) -> i32 {
        self.spec.backoff_limit.unwrap_or(if self.per_index() { i32::MAX } else { 6 })
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
        if self.limit() == 0 { restarts > 0 } else { restarts >= self.limit() }
    }

    /// Creates and deletes pods of an unfinished Job.
    fn manage(&self, plan: &mut Plan, succeeded: i32, kept: &BTreeMap<i32, &Arc<PodState>>) {
        let running = count(&self.active);
        if self.spec.suspend == Some(true) {
            plan.discard = self.active.iter().map(|pod| (*pod).clone()).collect();
            return;
        }
        let parallelism = self.spec.parallelism.unwrap_or(1);
        let wanted = match self.spec.completions {
            // A work queue: no new pods are started once one has succeeded.
            None if succeeded > 0 => running,
            None => parallelism,
            Some(completions) => parallelism.min(completions - succeeded).max(0),
        };
        plan.discard = self.surplus(usize::try_from(running - wanted).unwrap_or_default());
        if !plan.discard.is_empty() {
            return;
        }
        let ending = self.pods.iter().filter(|pod| pod.deletion.is_some() && !pod.phase.is_terminal());
        let replaced_later = if self.only_failed { count(ending.clone()) } else { 0 };
        let missing = usize::try_from(wanted - replaced_later - running).unwrap_or_default().min(BURST);
        if missing == 0 {
            return;
        }
        if !self.per_index()
            && let Some(wait) = self.backoff()
        {
            plan.wake_in(wait);
            return;
        }
        if !self.indexed {
            plan.create = vec![NewPod::default(); missing];
            return;
        }
        let mut taken: BTreeSet<i32> = self.active.iter().filter_map(|pod| index_of(pod)).collect();
        if self.only_failed {
            taken.extend(ending.filter_map(|pod| index_of(pod)));
        }
        let failed = plan.failed_indexes.clone().unwrap_or_default();
        let free = (0..self.spec.completions.unwrap_or_default())
            .filter(|index| !taken.contains(index) && !plan.completed.contains(index) && !failed.contains(index));
        let mut soonest: Option<SignedDuration> = None;
        for index in free.take(missing) {
            let before = kept.get(&index).map(|pod| {
                let (failures, ignored) = (annotated(pod, FAILURES), annotated(pod, IGNORED_FAILURES));
                let next = match self.failure_of(pod) {
                    Failure::Ignored => (failures, ignored + 1),
                    _ => (failures + 1, ignored),
                };
                (next, usize::try_from(next.0 + next.1).unwrap_or_default(), ended(pod))
            });
            if let Some(wait) = before.and_then(|(_, failures, last)| backoff_left(failures, last, self.now)) {
                soonest = Some(soonest.map_or(wait, |known| known.min(wait)));
                continue;
            }
            let failures = self.per_index().then(|| before.map_or((0, 0), |(next, ..)| next));
            plan.create.push(NewPod { index: Some(index), failures });
        }
        if let Some(wait) = soonest {
            plan.wake_in(wait);
        }
    }

    /// Pods to delete: those with an invalid or duplicate index, then those with the least progress.
    fn surplus(&self, at_least: usize) -> Vec<Arc<PodState>> {
        let mut sorted = self.active.clone();
        sorted.sort_by_key(|pod| (pod.created, pod.key.clone()));
        let mut indexes = BTreeSet::new();
        let (mut rest, mut surplus): (Vec<_>, Vec<_>) = sorted.into_iter().partition(|pod| {
            !self.indexed || (self.is_valid(pod) && index_of(pod).is_some_and(|index| indexes.insert(index)))
        });
        rest.sort_by_key(|pod| {
            (pod.node.is_some(), pod.phase == Phase::Running, pod.is_ready(), std::cmp::Reverse(pod.created))
        });
        let more = at_least.saturating_sub(surplus.len());
        surplus.extend(rest.into_iter().take(more));
        surplus.into_iter().cloned().collect()
    }

    /// Remaining backoff since the last failure.
    fn backoff(&self) -> Option<SignedDuration> {
        let of_phase = |phase| self.pods.iter().filter(move |pod| pod.phase == phase).map(|pod| ended(pod));
        let last_success = of_phase(Phase::Succeeded).max();
        let failures: Vec<Timestamp> =
            of_phase(Phase::Failed).filter(|at| last_success.is_none_or(|success| *at >= success)).collect();
        backoff_left(failures.len(), *failures.iter().max()?, self.now)
    }

    /// Outcome of the Job if it is complete.
    fn completion(&self, succeeded: i32, busy: bool) -> Option<Verdict> {
        let complete = match self.spec.completions {
            Some(completions) => succeeded >= completions,
            None => succeeded > 0,
        };
        let verdict = || Verdict {
            succeeded: true,
            reason: "CompletionsReached".into(),
            message: "Reached expected number of succeeded pods".into(),
        };
        (complete && !busy).then(verdict)
    }

    /// Selects the pods to count; all of them if the Job has finished.
    fn count(&self, plan: &mut Plan, kept: &BTreeMap<i32, &Arc<PodState>>) {
        for pod in self.pods.iter().filter(|pod| is_tracked(pod)) {
            let failed = self.has_failed(pod);
            let is_kept = index_of(pod).and_then(|index| kept.get(&index)).is_some_and(|kept| kept.uid == pod.uid);
            let due = plan.verdict.is_some() || pod.phase == Phase::Succeeded || (failed && !is_kept);
            if !due || plan.counted.len() >= BURST {
                continue;
            }
            plan.counted.push(pod.clone());
            if !self.is_fresh(pod) {
                continue;
            }
            let job_failed = plan.verdict.as_ref().is_some_and(|verdict| !verdict.succeeded);
            if pod.phase == Phase::Succeeded {
                if !self.indexed {
                    plan.uncounted_succeeded.insert(pod.uid.to_string());
                }
            } else if (failed || job_failed) && self.failure_of(pod) != Failure::Ignored {
                plan.uncounted_failed.insert(pod.uid.to_string());
            }
        }
    }
}
