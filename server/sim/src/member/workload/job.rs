//! Job controller: creates pods that run to completion, counts them, and retries failed ones with backoff.

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
use crate::member::context::{MemberContext, SharedObject};
use crate::member::informer::Object;
use crate::member::pod::PodState;
use crate::member::store::{Index, Key, StoreObject};

use self::plan::{
    FAILURES_ANNOTATION, FINALIZER, IGNORED_FAILURES_ANNOTATION, INDEX_ANNOTATION, NewPod, Plan, is_tracked, plan,
};
use self::status::{is_finished, status_after_counting, status_before_counting};
use super::pods::{self, WorkloadOwner};
use super::{KeyQueue, enqueue_orphan_candidates, enqueue_pod_owners, new_change_queue, spawn_controller};

pub fn start(context: &Arc<MemberContext>) {
    let keys = new_change_queue(&context.jobs);
    enqueue_pod_owners(context, "Job", &keys);
    enqueue_orphan_candidates(context, &context.jobs, &keys);
    spawn_controller(context, "job", keys, 8, |context, key| async move { reconcile(&context, &key).await });
    start_finalizer_controller(context);
}

/// Starts the controller that removes the tracking finalizer from pods whose Job has finished or was deleted.
fn start_finalizer_controller(context: &Arc<MemberContext>) {
    let keys = KeyQueue::default();
    let queue = keys.clone();
    context.pods.on_change(move |old, new| match (old, new) {
        (_, Some(pod)) if is_tracked(pod) => queue.add(pod.key.clone()),
        (Some(old), None) => queue.forget(&old.key),
        _ => {}
    });
    let (queue, pods) = (keys.clone(), Arc::downgrade(&context.pods));
    context.jobs.on_change(move |old, new| {
        let Some(pods) = pods.upgrade() else { return };
        let Some(job) = new.or(old) else { return };
        if new.is_none() || job.metadata.deletion_timestamp.is_some() || is_finished(job.status.as_ref()) {
            for pod in pods.owned_by(job.uid()).into_iter().filter(|pod| is_tracked(pod)) {
                queue.add(pod.key.clone());
            }
        }
    });
    spawn_controller(context, "job-pods", keys, 4, |context, key| async move {
        let Some(pod) = context.pods.get(&key).filter(|pod| is_tracked(pod)) else { return Ok(None) };
        if !needs_finalizer(&context, &pod) {
            remove_finalizer(&context, &pod).await?;
        }
        Ok(None)
    });
}

/// True for a pod whose termination a Job still has to count, or that a Job may adopt.
fn needs_finalizer(context: &MemberContext, pod: &PodState) -> bool {
    let may_count = |job: &Object<Job>| {
        has_other_manager(job) || (job.metadata.deletion_timestamp.is_none() && !is_finished(job.status.as_ref()))
    };
    match &pod.owner {
        Some(owner) if &*owner.kind == "Job" => {
            let job = context.jobs.get(&Key::new(&pod.key.namespace, &owner.name));
            job.is_some_and(|job| job.uid() == &*owner.uid && may_count(&job))
        }
        Some(_) => true,
        None => context.jobs.in_namespace(&pod.key.namespace).iter().any(|job| {
            may_count(job) && pod.is_active() && parse_selector(job).is_some_and(|s| s.matches(&pod.labels))
        }),
    }
}

fn parse_selector(job: &Job) -> Option<Selector> {
    job.spec.as_ref()?.selector.as_ref().map(Selector::from_label_selector_or_nothing)
}

/// True for a Job that another controller manages.
fn has_other_manager(job: &Job) -> bool {
    let manager = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
    manager.is_some_and(|manager| manager != "kubernetes.io/job-controller")
}

/// Removes the tracking finalizer from a pod.
async fn remove_finalizer(context: &MemberContext, pod: &PodState) -> Result<()> {
    let remaining: Vec<&str> =
        pod.finalizers.iter().map(|finalizer| &**finalizer).filter(|name| *name != FINALIZER).collect();
    pods::set_finalizers(context, pod, &remaining).await
}

async fn reconcile(context: &MemberContext, key: &Key) -> Result<Option<Duration>> {
    let Some(job) = context.jobs.get(key) else { return Ok(None) };
    let Some(spec) = job.spec.as_ref() else { return Ok(None) };
    if has_other_manager(&job) || job.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let now = Timestamp::now();
    if is_finished(job.status.as_ref()) {
        return Ok(None);
    }
    let owner = WorkloadOwner::new(&job, "job-controller");
    let claimed = claim(context, &owner, &parse_selector(&job).unwrap_or_default()).await?;
    let old_status = job.status.clone().unwrap_or_default();
    let plan = plan(spec, &old_status, &claimed, now);
    let new: Vec<Pod> = plan.create.iter().map(|new| new_pod(&owner, spec, *new)).collect();
    if !new.is_empty() {
        pods::create(context, &owner, new).await?;
    }
    for pod in plan.discard.iter().filter(|pod| is_tracked(pod)) {
        remove_finalizer(context, pod).await?;
    }
    pods::delete(context, &owner, &plan.discard).await?;
    pods::delete(context, &owner, &plan.delete).await?;
    count_terminated_pods(context, &owner, &job, &plan, now).await?;
    Ok(plan.requeue_after.map(|delay| Duration::try_from(delay).unwrap_or_default().max(Duration::from_millis(50))))
}

/// Returns the Job's pods, including adopted ones. Adds the tracking finalizer to active ones.
async fn claim(context: &MemberContext, owner: &WorkloadOwner, selector: &Selector) -> Result<Vec<Arc<PodState>>> {
    let claimed = pods::claim(context, owner, selector, false).await?;
    for pod in claimed.iter().filter(|pod| pod.is_active() && !is_tracked(pod)) {
        let tracked: Vec<&str> = pod.finalizers.iter().map(|name| &**name).chain([FINALIZER]).collect();
        pods::set_finalizers(context, pod, &tracked).await?;
    }
    let current = |pod: Arc<PodState>| context.pods.get(&pod.key).filter(|current| current.uid == pod.uid);
    Ok(claimed.into_iter().filter_map(current).collect())
}

/// Counts terminated pods. Each is counted once even if this is interrupted, because its finalizer is removed between
/// the two status updates.
async fn count_terminated_pods(
    context: &MemberContext,
    owner: &WorkloadOwner,
    job: &SharedObject<Job>,
    plan: &Plan,
    now: Timestamp,
) -> Result<()> {
    let pods = || context.pods.by_index(&Index::Owner(owner.subject.uid.clone()));
    let old_status = job.status.clone().unwrap_or_default();
    let Some(spec) = &job.spec else { return Ok(()) };
    let before = status_before_counting(spec, &old_status, plan, &pods(), now);
    let mut current = job.clone();
    if !plan.pods_to_count.is_empty() {
        context.set_status(&context.jobs, job, job.status.as_ref(), &before).await?;
        for pod in &plan.pods_to_count {
            remove_finalizer(context, pod).await?;
        }
        let Some(updated) = context.jobs.get(&job.key()).filter(|updated| updated.uid() == job.uid()) else {
            return Ok(());
        };
        current = updated;
    }
    let status = status_after_counting(before, plan, &pods(), now);
    record_condition_events(context, owner, &old_status, &status, plan);
    context.set_status(&context.jobs, &current, current.status.as_ref(), &status).await
}

/// Records events for changed conditions.
fn record_condition_events(
    context: &MemberContext,
    owner: &WorkloadOwner,
    old_status: &JobStatus,
    status: &JobStatus,
    plan: &Plan,
) {
    let has_condition = |status: &JobStatus, kind: &str, condition_status: &str| {
        let mut conditions = status.conditions.iter().flatten();
        conditions.any(|condition| condition.type_ == kind && condition.status == condition_status)
    };
    let has_become = |kind: &str, condition_status: &str| {
        has_condition(status, kind, condition_status) && !has_condition(old_status, kind, condition_status)
    };
    if has_become("Suspended", "True") {
        owner.record_event(context, false, "Suspended", "Job suspended");
    }
    if has_become("Suspended", "False") {
        owner.record_event(context, false, "Resumed", "Job resumed");
    }
    if has_become("Complete", "True") {
        owner.record_event(context, false, "Completed", "Job completed");
    }
    if let (true, Some(outcome)) = (has_become("Failed", "True"), &plan.outcome) {
        owner.record_event(context, true, event_reason(&outcome.reason), outcome.message.clone());
    }
}

/// The reason of a condition as the static reason of an event.
fn event_reason(text: &str) -> &'static str {
    const REASONS: [&str; 5] =
        ["BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy", "MaxFailedIndexesExceeded", "FailedIndexes"];
    REASONS.into_iter().find(|reason| *reason == text).unwrap_or("Failed")
}

fn new_pod(owner: &WorkloadOwner, spec: &JobSpec, new: NewPod) -> Pod {
    let mut pod = pods::from_template(owner, &spec.template);
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
        finalizers.push(FINALIZER.into());
    }
    let Some(index) = new.index else { return pod };
    let name = format!("{}-{index}", owner.subject.key.name);
    pod.metadata.generate_name = Some(format!("{name}-"));
    pod.metadata.labels.get_or_insert_default().insert(INDEX_ANNOTATION.into(), index.to_string());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(INDEX_ANNOTATION.into(), index.to_string());
    if let Some((failures, ignored)) = new.failures {
        annotations.insert(FAILURES_ANNOTATION.into(), failures.to_string());
        if ignored > 0 {
            annotations.insert(IGNORED_FAILURES_ANNOTATION.into(), ignored.to_string());
        }
    }
    let pod_spec = pod.spec.get_or_insert_default();
    pod_spec.hostname = Some(name);
    let from_annotation = EnvVarSource {
        field_ref: Some(ObjectFieldSelector {
            api_version: Some("v1".into()),
            field_path: format!("metadata.annotations['{INDEX_ANNOTATION}']"),
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
