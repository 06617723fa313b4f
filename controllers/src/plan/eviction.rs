//! Eviction from tainted clusters, and when an eviction has ended.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::policy::{FailoverBehavior, Placement, PurgeMode};
use crowsnest_api::taints;
use crowsnest_api::work::{GracefulEvictionTask, ResourceBindingSpec, ResourceBindingStatus, ResourceHealth};
use k8s_openapi::api::core::v1::{Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// What a cluster's NoExecute taints mean for a binding that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaintDecision {
    Stay,
    EvictAt(Timestamp),
}

/// Not tolerated: now. Tolerated for a time: at the earliest end, counted from when each taint was put.
pub fn by_taints(cluster: &Cluster, tolerations: &[Toleration], now: Timestamp) -> TaintDecision {
    let mut earliest: Option<Timestamp> = None;
    for taint in cluster.spec.taints.iter().filter(|taint| taint.effect == taints::NO_EXECUTE) {
        let end = match tolerated_until(taint, tolerations, now) {
            None => return TaintDecision::EvictAt(now),
            Some(None) => continue,
            Some(Some(end)) => end,
        };
        earliest = Some(earliest.map_or(end, |earliest| earliest.min(end)));
    }
    earliest.map_or(TaintDecision::Stay, TaintDecision::EvictAt)
}

/// `None`: not at all; `Some(None)`: for ever.
fn tolerated_until(taint: &Taint, tolerations: &[Toleration], now: Timestamp) -> Option<Option<Timestamp>> {
    let matching: Vec<&Toleration> =
        tolerations.iter().filter(|toleration| taints::tolerates(toleration, taint)).collect();
    if matching.is_empty() {
        return None;
    }
    let seconds = matching.iter().filter_map(|toleration| toleration.toleration_seconds).min();
    let added = taint.time_added.as_ref().map_or(now, |time| time.0);
    Some(
        seconds
            .map(|seconds| added.saturating_add(SignedDuration::from_secs(seconds.max(0))).unwrap_or(Timestamp::MAX)),
    )
}

/// The tolerations of the placement the current result was made with.
pub fn applied_tolerations(applied_placement: Option<&str>) -> Vec<Toleration> {
    applied_placement
        .and_then(|text| serde_json::from_str::<Placement>(text).ok())
        .map(|placement| placement.cluster_tolerations)
        .unwrap_or_default()
}

/// How the taint manager evicts: the policy's cluster failover mode, else the fleet's.
pub fn purge_mode(failover: Option<&FailoverBehavior>, fleet: PurgeMode) -> PurgeMode {
    match failover.and_then(|failover| failover.cluster.as_ref()) {
        Some(cluster) => cluster.purge_mode.clone().unwrap_or(PurgeMode::Gracefully),
        None => fleet,
    }
}

/// The spec with `cluster` evicted: it is no target any more, and a task remembers it. `None` when it was no target.
pub fn evict(spec: &ResourceBindingSpec, cluster: &str, task: GracefulEvictionTask) -> Option<ResourceBindingSpec> {
    let target = spec.clusters.iter().find(|target| target.name == cluster)?;
    let replicas = (target.replicas > 0).then_some(target.replicas);
    let mut evicted = spec.clone();
    evicted.clusters.retain(|target| target.name != cluster);
    if !spec.evicts(cluster) {
        evicted.graceful_eviction_tasks.push(GracefulEvictionTask {
            from_cluster: cluster.to_owned(),
            replicas,
            ..task
        });
    }
    Some(evicted)
}

/// The tasks that go on, and when to look again.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskPlan {
    pub tasks: Vec<GracefulEvictionTask>,
    pub look_again: Option<Timestamp>,
}

/// Ends tasks whose replacement is healthy or whose time is over; stamps new ones.
pub fn tasks(
    generation: i64,
    spec: &ResourceBindingSpec,
    status: &ResourceBindingStatus,
    timeout: SignedDuration,
    now: Timestamp,
) -> TaskPlan {
    let healthy = |name: &str| {
        let item = status.aggregated_status.iter().find(|item| item.cluster_name == name);
        item.is_some_and(|item| item.health == Some(ResourceHealth::Healthy))
    };
    let replaced =
        status.scheduler_observed_generation == generation && spec.clusters.iter().all(|target| healthy(&target.name));
    let mut plan = TaskPlan { tasks: Vec::new(), look_again: None };
    for task in &spec.graceful_eviction_tasks {
        let Some(created) = &task.creation_timestamp else {
            plan.tasks.push(GracefulEvictionTask { creation_timestamp: Some(Time(now)), ..task.clone() });
            continue;
        };
        match task.suppress_deletion {
            Some(true) => plan.tasks.push(task.clone()),
            Some(false) => {}
            None => {
                let grace =
                    task.grace_period_seconds.map_or(timeout, |seconds| SignedDuration::from_secs(seconds.into()));
                let end = created.0.saturating_add(grace).unwrap_or(Timestamp::MAX);
                if now < end && !replaced {
                    plan.look_again = Some(plan.look_again.map_or(end, |earlier| earlier.min(end)));
                    plan.tasks.push(task.clone());
                }
            }
        }
    }
    plan
}
