//! Job controller: pods that run to completion are counted, retried with backoff, and cleaned up.

mod indexes;
mod plan;
mod policy;
mod status;

use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::selector::Selector;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod};

use crate::error::Result;
use crate::member::informer::Object;
use crate::member::pod::PodState;
use crate::member::store::{Index, Key, Stored};
use crate::member::world::{SharedObject, World};

use self::plan::{FAILURES, FINALIZER, IGNORED_FAILURES, INDEX, NewPod, Plan, is_tracked, plan};
use self::status::{finished, settled, written_down};
use super::pods::{self, Parent};
use super::{Keys, follow_orphans, follow_pods, keys_of, spawn};

pub fn start(world: &Arc<World>) {
    let keys = keys_of(&world.jobs);
    follow_pods(world, "Job", &keys);
    follow_orphans(world, &world.jobs, &keys);
    spawn(world, "job", keys, 8, |world, key| async move { reconcile(&world, &key).await });
    start_release(world);
}

/// Starts the controller that removes the tracking finalizer from pods whose Job has finished or was deleted.
fn start_release(world: &Arc<World>) {
    let keys = Keys::default();
    let wanted = keys.clone();
    world.pods.on_change(move |old, new| match (old, new) {
        (_, Some(pod)) if is_tracked(pod) => wanted.add(pod.key.clone()),
        (Some(old), None) => wanted.forget(&old.key),
        _ => {}
    });
    let (wanted, pods) = (keys.clone(), Arc::downgrade(&world.pods));
    world.jobs.on_change(move |old, new| {
        let Some(pods) = pods.upgrade() else { return };
        let Some(job) = new.or(old) else { return };
        if new.is_none() || job.metadata.deletion_timestamp.is_some() || finished(job.status.as_ref()).is_some() {
            for pod in pods.owned(job.uid()).into_iter().filter(|pod| is_tracked(pod)) {
                wanted.add(pod.key.clone());
            }
        }
    });
    spawn(world, "job-pods", keys, 4, |world, key| async move {
        let Some(pod) = world.pods.get(&key).filter(|pod| is_tracked(pod)) else { return Ok(None) };
        if !is_counted(&world, &pod) {
            untrack(&world, &pod).await?;
        }
        Ok(None)
    });
}

/// True for a pod whose termination a Job still counts, or that a Job may adopt.
fn is_counted(world: &World, pod: &PodState) -> bool {
    let counts = |job: &Object<Job>| {
        is_foreign(job) || (job.metadata.deletion_timestamp.is_none() && finished(job.status.as_ref()).is_none())
    };
    match &pod.owner {
        Some(owner) if &*owner.kind == "Job" => {
            let job = world.jobs.get(&Key::new(&pod.key.namespace, &owner.name));
            job.is_some_and(|job| job.uid() == &*owner.uid && counts(&job))
        }
        Some(_) => true,
        None => world
            .jobs
            .namespace(&pod.key.namespace)
            .iter()
            .any(|job| counts(job) && pod.is_active() && selector(job).is_some_and(|s| s.matches(&pod.labels))),
    }
}

fn selector(job: &Job) -> Option<Selector> {
    job.spec.as_ref()?.selector.as_ref().map(Selector::valid_or_nothing)
}

/// True for a Job that another controller manages.
fn is_foreign(job: &Job) -> bool {
    let by = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
    by.is_some_and(|by| by != "kubernetes.io/job-controller")
}

async fn untrack(world: &World, pod: &PodState) -> Result<()> {
    let left: Vec<&str> =
        pod.finalizers.iter().map(|finalizer| &**finalizer).filter(|name| *name != FINALIZER).collect();
    pods::set_finalizers(world, pod, &left).await
}

async fn reconcile(world: &World, key: &Key) -> Result<Option<Duration>> {
    let Some(job) = world.jobs.get(key) else { return Ok(None) };
    let Some(spec) = job.spec.as_ref() else { return Ok(None) };
    if is_foreign(&job) || job.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let now = Timestamp::now();
    if let Some(at) = finished(job.status.as_ref()) {
        return clean_up(world, &job, spec, at, now).await;
    }
    let parent = Parent::new(&job, "batch/v1", "Job", "job-controller");
    let held = claim(world, &parent, &selector(&job).unwrap_or_default()).await?;
    let known = job.status.clone().unwrap_or_default();
    let step = plan(spec, &known, &held, now);
    let new: Vec<Pod> = step.create.iter().map(|new| new_pod(&parent, spec, *new)).collect();
    if !new.is_empty() {
        pods::create(world, &parent, new).await?;
    }
    for pod in step.discard.iter().filter(|pod| is_tracked(pod)) {
        untrack(world, pod).await?;
    }
    pods::delete(world, &parent, &step.discard).await?;
    pods::delete(world, &parent, &step.delete).await?;
    count_ended(world, &parent, &job, &step, now).await?;
    Ok(step.again.map(|again| Duration::try_from(again).unwrap_or_default().max(Duration::from_millis(50))))
}

/// The Job's pods. Active ones get the tracking finalizer, including adopted ones.
async fn claim(world: &World, parent: &Parent, selector: &Selector) -> Result<Vec<Arc<PodState>>> {
    let claimed = pods::claim(world, parent, selector, false).await?;
    for pod in claimed.iter().filter(|pod| pod.is_active() && !is_tracked(pod)) {
        let tracked: Vec<&str> = pod.finalizers.iter().map(|name| &**name).chain([FINALIZER]).collect();
        pods::set_finalizers(world, pod, &tracked).await?;
    }
    let current = |pod: Arc<PodState>| world.pods.get(&pod.key).filter(|current| current.uid == pod.uid);
    Ok(claimed.into_iter().filter_map(current).collect())
}

/// Counts terminated pods, so that each is counted once even if this is interrupted.
async fn count_ended(
    world: &World,
    parent: &Parent,
    job: &SharedObject<Job>,
    step: &Plan,
    now: Timestamp,
) -> Result<()> {
    let pods = || world.pods.by(&Index::Owner(parent.subject.uid.clone()));
    let known = job.status.clone().unwrap_or_default();
    let Some(spec) = &job.spec else { return Ok(()) };
    let written = written_down(spec, &known, step, &pods(), now);
    let mut current = job.clone();
    if !step.counted.is_empty() {
        world.set_status(&world.jobs, job, job.status.as_ref(), &written).await?;
        for pod in &step.counted {
            untrack(world, pod).await?;
        }
        let Some(after) = world.jobs.get(&job.key()).filter(|after| after.uid() == job.uid()) else { return Ok(()) };
        current = after;
    }
    let status = settled(written, step, &pods(), now);
    report(world, parent, &known, &status, step);
    world.set_status(&world.jobs, &current, current.status.as_ref(), &status).await
}

/// Records events for changed conditions.
fn report(world: &World, parent: &Parent, known: &JobStatus, status: &JobStatus, step: &Plan) {
    let holds = |status: &JobStatus, kind: &str, wanted: &str| {
        let mut conditions = status.conditions.iter().flatten();
        conditions.any(|condition| condition.type_ == kind && condition.status == wanted)
    };
    let began = |kind: &str, wanted: &str| holds(status, kind, wanted) && !holds(known, kind, wanted);
    if began("Suspended", "True") {
        parent.record(world, false, "Suspended", "Job suspended");
    }
    if began("Suspended", "False") {
        parent.record(world, false, "Resumed", "Job resumed");
    }
    if began("Complete", "True") {
        parent.record(world, false, "Completed", "Job completed");
    }
    if let (true, Some(verdict)) = (began("Failed", "True"), &step.verdict) {
        parent.record(world, true, reason(&verdict.reason), verdict.message.clone());
    }
}

/// The reason as a static string.
fn reason(text: &str) -> &'static str {
    const REASONS: [&str; 5] =
        ["BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy", "MaxFailedIndexesExceeded", "FailedIndexes"];
    REASONS.into_iter().find(|reason| *reason == text).unwrap_or("Failed")
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

fn new_pod(parent: &Parent, spec: &JobSpec, new: NewPod) -> Pod {
    let mut pod = pods::from_template(parent, &spec.template);
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|known| known == FINALIZER) {
        finalizers.push(FINALIZER.into());
    }
    let Some(index) = new.index else { return pod };
    let name = format!("{}-{index}", parent.subject.key.name);
    pod.metadata.generate_name = Some(format!("{name}-"));
    pod.metadata.labels.get_or_insert_default().insert(INDEX.into(), index.to_string());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(INDEX.into(), index.to_string());
    if let Some((failures, ignored)) = new.failures {
        annotations.insert(FAILURES.into(), failures.to_string());
        if ignored > 0 {
            annotations.insert(IGNORED_FAILURES.into(), ignored.to_string());
        }
    }
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

#[cfg(test)]
mod tests;
