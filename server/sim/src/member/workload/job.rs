//! Jobs: pods that run to completion, counted, retried with back-off and cleaned up.
//!
//! Counts never go down, so finished pods may be deleted without being run again. Pod failure and success policies and per-index
//! back-off limits are not simulated.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::selector::Selector;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::error::Result;
use crate::member::informer::Object;
use crate::member::pod::{Doing, Phase, PodState};
use crate::member::store::Key;
use crate::member::world::World;

use super::pods::{self, Parent};
use super::{count, follow_orphans, follow_pods, keys_of, nonzero, spawn};

const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// First delay after a failed pod, doubled each time, at most.
const BACKOFF_FIRST: i64 = 10;
const BACKOFF_LAST: i64 = 600;

pub fn start(world: &Arc<World>) {
    let keys = keys_of(&world.jobs);
    follow_pods(world, "Job", &keys);
    follow_orphans(world, &world.jobs, &keys);
    spawn(world, "job", keys, 8, |world, key| async move { reconcile(&world, &key).await });
}

/// How a Job ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Complete,
    BackoffLimitExceeded,
    DeadlineExceeded,
}

/// What happened so far and what to do next.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Indexes of pods to create; `None` for pods without an index.
    pub create: Vec<Option<i32>>,
    pub delete: Vec<Arc<PodState>>,
    pub end: Option<End>,
    pub succeeded: i32,
    pub failed: i32,
    pub completed: BTreeSet<i32>,
    pub again: Option<SignedDuration>,
}

/// Decides from a Job's pods. `known` is the status so far: its counts are a lower bound.
pub fn plan(spec: &JobSpec, known: &JobStatus, pods: &[Arc<PodState>], now: Timestamp) -> Plan {
    let indexed = spec.completion_mode.as_deref() == Some("Indexed");
    let active: Vec<&Arc<PodState>> = pods.iter().filter(|pod| pod.is_active()).collect();
    let mut completed = parse_indexes(known.completed_indexes.as_deref().unwrap_or_default());
    let done = pods.iter().filter(|pod| pod.phase == Phase::Succeeded);
    completed.extend(done.clone().filter_map(|pod| index_of(pod)));
    let broken =
        |pod: &&Arc<PodState>| pod.phase == Phase::Failed || (pod.deletion.is_some() && pod.phase != Phase::Succeeded);
    let succeeded = if indexed { count(&completed) } else { count(done).max(known.succeeded.unwrap_or_default()) };
    let failed = count(pods.iter().filter(broken)).max(known.failed.unwrap_or_default());
    let mut plan = Plan { succeeded, failed, completed, ..Plan::default() };

    plan.end = end(spec, known, &plan, &active, now);
    if plan.end.is_some() || spec.suspend == Some(true) {
        plan.delete = active.into_iter().cloned().collect();
        return plan;
    }
    if let (Some(deadline), Some(start)) = (spec.active_deadline_seconds, &known.start_time) {
        plan.again = Some(SignedDuration::from_secs(deadline) - now.duration_since(start.0));
    }
    let parallelism = spec.parallelism.unwrap_or(1);
    let running = count(&active);
    let wanted = match spec.completions {
        // A work queue: once one pod succeeded no new ones are started.
        None if succeeded > 0 => running,
        None => parallelism,
        Some(completions) => parallelism.min(completions - succeeded),
    };
    if running > wanted {
        let surplus = usize::try_from(running - wanted).unwrap_or_default();
        let mut last = active;
        last.sort_by_key(|pod| (pod.is_ready(), std::cmp::Reverse(pod.created), pod.key.clone()));
        plan.delete = last.into_iter().take(surplus).cloned().collect();
        return plan;
    }
    let missing = usize::try_from(wanted - running).unwrap_or_default();
    if missing > 0
        && let Some(wait) = backoff_left(pods, now)
    {
        plan.again = Some(plan.again.map_or(wait, |again| again.min(wait)));
        return plan;
    }
    plan.create = if indexed {
        let taken: BTreeSet<i32> = active.iter().filter_map(|pod| index_of(pod)).collect();
        let free = (0..spec.completions.unwrap_or_default())
            .filter(|index| !taken.contains(index) && !plan.completed.contains(index));
        free.take(missing).map(Some).collect()
    } else {
        vec![None; missing]
    };
    plan
}

fn end(spec: &JobSpec, known: &JobStatus, plan: &Plan, active: &[&Arc<PodState>], now: Timestamp) -> Option<End> {
    let restarts: i32 = active.iter().map(|pod| pod.restarts()).sum();
    let limit = spec.backoff_limit.unwrap_or(6);
    if plan.failed > limit || (restarts > 0 && restarts + plan.failed > limit) {
        return Some(End::BackoffLimitExceeded);
    }
    let over = spec.active_deadline_seconds.zip(known.start_time.as_ref());
    if over.is_some_and(|(deadline, start)| now.duration_since(start.0).as_secs() >= deadline) {
        return Some(End::DeadlineExceeded);
    }
    let complete = match spec.completions {
        Some(completions) => plan.succeeded >= completions,
        None => plan.succeeded > 0 && active.is_empty(),
    };
    complete.then_some(End::Complete)
}

fn index_of(pod: &PodState) -> Option<i32> {
    pod.annotations.get(INDEX)?.parse().ok()
}

/// How long to wait since the last failure before trying again.
fn backoff_left(pods: &[Arc<PodState>], now: Timestamp) -> Option<SignedDuration> {
    let ended = |pod: &&Arc<PodState>| {
        pod.containers
            .iter()
            .filter_map(|view| match view.doing {
                Doing::Terminated { finished, .. } => Some(finished),
                _ => None,
            })
            .max()
    };
    let last_success = pods.iter().filter(|pod| pod.phase == Phase::Succeeded).filter_map(|pod| ended(&pod)).max();
    let failures: Vec<Timestamp> = pods
        .iter()
        .filter(|pod| pod.phase == Phase::Failed)
        .filter_map(|pod| ended(&pod))
        .filter(|at| last_success.is_none_or(|success| *at >= success))
        .collect();
    let doubled = u32::try_from(failures.len()).ok()?.checked_sub(1)?.min(10);
    let wait = SignedDuration::from_secs((BACKOFF_FIRST << doubled).min(BACKOFF_LAST));
    let left = wait - now.duration_since(*failures.iter().max()?);
    left.is_positive().then_some(left)
}

/// `0-2,5`
pub fn format_indexes(indexes: &BTreeSet<i32>) -> String {
    let mut ranges: Vec<(i32, i32)> = Vec::new();
    for index in indexes {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => ranges.push((*index, *index)),
        }
    }
    let text = ranges.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    });
    text.collect::<Vec<_>>().join(",")
}

fn parse_indexes(text: &str) -> BTreeSet<i32> {
    let ranges = text.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<i32>().ok()?..=last.parse::<i32>().ok()?)
    });
    ranges.flatten().collect()
}

fn finished(job: &Job) -> Option<Timestamp> {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ended = conditions.iter().find(|condition| {
        condition.status == "True" && (condition.type_ == "Complete" || condition.type_ == "Failed")
    })?;
    ended.last_transition_time.as_ref().map(|time| time.0)
}

async fn reconcile(world: &World, key: &Key) -> Result<Option<Duration>> {
    let Some(job) = world.jobs.get(key) else { return Ok(None) };
    let Some(spec) = job.spec.as_ref() else { return Ok(None) };
    if job.metadata.deletion_timestamp.is_some()
        || spec.managed_by.as_deref().is_some_and(|by| by != "kubernetes.io/job-controller")
    {
        return Ok(None);
    }
    let now = Timestamp::now();
    if let Some(at) = finished(&job) {
        return clean_up(world, &job, spec, at, now).await;
    }
    let parent = Parent::new(&job, "batch/v1", "Job", "job-controller");
    let selector = spec.selector.as_ref().map(Selector::valid_or_nothing).unwrap_or_default();
    let held = pods::claim(world, &parent, &selector, false).await?;
    let known = job.status.clone().unwrap_or_default();
    let step = plan(spec, &known, &held, now);
    let new: Vec<Pod> = step.create.iter().map(|index| new_pod(&parent, spec, *index)).collect();
    if !new.is_empty() {
        pods::create(world, &parent, new).await?;
    }
    pods::delete(world, &parent, &step.delete).await?;
    let held = world.pods.owned(&parent.subject.uid);
    let status = status(&job, spec, &step, &held, now);
    if step.end == Some(End::Complete) {
        parent.record(world, false, "Completed", "Job completed");
    } else if step.end == Some(End::BackoffLimitExceeded) {
        parent.record(world, true, "BackoffLimitExceeded", "Job has reached the specified backoff limit");
    } else if step.end == Some(End::DeadlineExceeded) {
        parent.record(world, true, "DeadlineExceeded", "Job was active longer than specified deadline");
    }
    world.set_status(&world.jobs, &job, job.status.as_ref(), &status).await?;
    Ok(step.again.map(|again| Duration::try_from(again).unwrap_or_default().max(Duration::from_millis(50))))
}

async fn clean_up(
    world: &World,
    job: &Object<Job>,
    spec: &JobSpec,
    at: Timestamp,
    now: Timestamp,
) -> Result<Option<Duration>> {
    let Some(ttl) = spec.ttl_seconds_after_finished else { return Ok(None) };
    let left = i64::from(ttl) - now.duration_since(at).as_secs();
    if left > 0 {
        return Ok(Some(Duration::from_secs(u64::try_from(left).unwrap_or_default())));
    }
    world.delete(&world.jobs, job).await?;
    Ok(None)
}

fn new_pod(parent: &Parent, spec: &JobSpec, index: Option<i32>) -> Pod {
    let mut pod = pods::from_template(parent, &spec.template);
    let Some(index) = index else { return pod };
    let name = format!("{}-{index}", parent.subject.key.name);
    pod.metadata.generate_name = Some(format!("{name}-"));
    pod.metadata.labels.get_or_insert_default().insert(INDEX.into(), index.to_string());
    pod.metadata.annotations.get_or_insert_default().insert(INDEX.into(), index.to_string());
    let pod_spec = pod.spec.get_or_insert_default();
    pod_spec.hostname = Some(name);
    let from_annotation = EnvVarSource {
        field_ref: Some(ObjectFieldSelector {
            api_version: Some("v1".into()),
            field_path: format!("metadata.annotations['{INDEX}']"),
        }),
        ..EnvVarSource::default()
    };
    for container in pod_spec.containers.iter_mut().chain(pod_spec.init_containers.iter_mut().flatten()) {
        let env = container.env.get_or_insert_default();
        if env.iter().all(|variable| variable.name != "JOB_COMPLETION_INDEX") {
            env.push(EnvVar {
                name: "JOB_COMPLETION_INDEX".into(),
                value_from: Some(from_annotation.clone()),
                ..EnvVar::default()
            });
        }
    }
    pod
}

fn status(job: &Job, spec: &JobSpec, step: &Plan, pods: &[Arc<PodState>], now: Timestamp) -> JobStatus {
    let old = job.status.clone().unwrap_or_default();
    let suspended = spec.suspend == Some(true);
    let mut conditions: BTreeMap<String, JobCondition> =
        old.conditions.unwrap_or_default().into_iter().map(|condition| (condition.type_.clone(), condition)).collect();
    let mut set = |kind: &str, holds: bool, reason: &str, message: &str| {
        let status = if holds { "True" } else { "False" };
        if conditions.get(kind).is_none_or(|known| known.status != status) {
            let condition = JobCondition {
                type_: kind.into(),
                status: status.into(),
                reason: Some(reason.into()),
                message: Some(message.into()),
                last_probe_time: Some(Time(now)),
                last_transition_time: Some(Time(now)),
            };
            conditions.insert(kind.into(), condition);
        }
    };
    let (reached, limit, deadline) = (
        ("CompletionsReached", "Reached expected number of succeeded pods"),
        ("BackoffLimitExceeded", "Job has reached the specified backoff limit"),
        ("DeadlineExceeded", "Job was active longer than specified deadline"),
    );
    match step.end {
        Some(End::Complete) => {
            set("SuccessCriteriaMet", true, reached.0, reached.1);
            set("Complete", true, reached.0, reached.1);
        }
        Some(End::BackoffLimitExceeded) => {
            set("FailureTarget", true, limit.0, limit.1);
            set("Failed", true, limit.0, limit.1);
        }
        Some(End::DeadlineExceeded) => {
            set("FailureTarget", true, deadline.0, deadline.1);
            set("Failed", true, deadline.0, deadline.1);
        }
        None if suspended => set("Suspended", true, "JobSuspended", "Job suspended"),
        None if (old.start_time.is_some() || job.status.as_ref().is_some_and(|status| status.conditions.is_some()))
            && job
                .status
                .iter()
                .flat_map(|status| status.conditions.iter().flatten())
                .any(|known| known.type_ == "Suspended") =>
        {
            set("Suspended", false, "JobResumed", "Job resumed");
        }
        None => {}
    }
    let ended = step.end.is_some();
    let active = || pods.iter().filter(|pod| pod.is_active() && !ended);
    JobStatus {
        start_time: if suspended { None } else { old.start_time.or(Some(Time(now))) },
        completion_time: if step.end == Some(End::Complete) { Some(Time(now)) } else { old.completion_time },
        active: nonzero(count(active())),
        ready: Some(count(active().filter(|pod| pod.is_ready()))),
        succeeded: nonzero(step.succeeded),
        failed: nonzero(step.failed),
        terminating: Some(count(pods.iter().filter(|pod| pod.deletion.is_some() && !pod.phase.is_terminal()))),
        completed_indexes: (spec.completion_mode.as_deref() == Some("Indexed") && !step.completed.is_empty())
            .then(|| format_indexes(&step.completed)),
        failed_indexes: old.failed_indexes,
        uncounted_terminated_pods: Some(UncountedTerminatedPods::default()),
        conditions: (!conditions.is_empty()).then(|| conditions.into_values().collect()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::member::interner::Interner;

    /// `r` running, `s` succeeded, `f` failed at second 0; with `@2` index 2.
    fn pods(text: &str) -> Vec<Arc<PodState>> {
        text.split_whitespace()
            .enumerate()
            .map(|(number, word)| {
                let (state, index) = word.split_once('@').unwrap_or((word, ""));
                let phase = match state {
                    "s" => "Succeeded",
                    "f" => "Failed",
                    _ => "Running",
                };
                let state = json!({"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z"}});
                let pod = json!({
                    "metadata": {"name": format!("p{number}"), "uid": format!("p{number}"), "annotations": {INDEX: index}},
                    "spec": {"containers": [], "restartPolicy": "Never"},
                    "status": {"phase": phase, "containerStatuses": if phase == "Running" { json!([]) } else {
                        json!([{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state}])}},
                });
                Arc::new(Interner::default().pod(serde_json::from_value(pod).unwrap()))
            })
            .collect()
    }

    #[rstest::rstest]
    #[case(json!({"completions": 4, "parallelism": 2}), "", 100, "+2", None)]
    #[case(json!({"completions": 4, "parallelism": 2}), "s s s r", 100, "+0", None)]
    #[case(json!({"completions": 4, "parallelism": 2}), "s s s s", 100, "+0", Some(End::Complete))]
    #[case(json!({"completions": 1}), "f", 5, "wait 5", None)]
    #[case(json!({"completions": 1}), "f", 100, "+1", None)]
    #[case(json!({"completions": 1}), "f f", 5, "wait 15", None)]
    #[case(json!({"completions": 1, "backoffLimit": 1}), "f f", 5, "+0", Some(End::BackoffLimitExceeded))]
    #[case(json!({"parallelism": 3}), "r r s", 100, "+0", None)]
    #[case(json!({"parallelism": 3}), "s s s", 100, "+0", Some(End::Complete))]
    #[case(json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed"}), "s@0 r@2", 100, "+1 @1", None)]
    #[case(json!({"completions": 3, "parallelism": 3, "suspend": true}), "r r", 100, "-2", None)]
    #[case(json!({"completions": 9, "parallelism": 1}), "r r", 100, "-1", None)]
    fn moves(
        #[case] spec: serde_json::Value,
        #[case] has: &str,
        #[case] second: i64,
        #[case] expected: &str,
        #[case] end: Option<End>,
    ) {
        let mut spec = spec;
        spec["template"] = json!({});
        let spec: JobSpec = serde_json::from_value(spec).unwrap();
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let plan = plan(&spec, &JobStatus::default(), &pods(has), start + SignedDuration::from_secs(second));
        let indexes: Vec<_> = plan.create.iter().flatten().map(|index| format!(" @{index}")).collect();
        let told = match plan.again {
            Some(wait) if plan.create.is_empty() => format!("wait {}", wait.as_secs()),
            _ if !plan.delete.is_empty() => format!("-{}", plan.delete.len()),
            _ => format!("+{}{}", plan.create.len(), indexes.join("")),
        };
        assert_eq!((told.as_str(), plan.end), (expected, end));
    }

    #[test]
    fn indexes_are_written_as_ranges() {
        let set = parse_indexes("0-2,4,5,9");
        assert_eq!(set.len(), 6);
        assert_eq!(format_indexes(&set), "0-2,4,5,9");
        assert!(parse_indexes("").is_empty());
    }
}
