//! Decides when an eviction task may complete: once the evicted copy is replaced (`--failover-safety=safe`), or by
//! Karmada's weaker rule. Also cancels tasks whose cause ends before the copy is replaced.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{condition, eviction};
use crowsnest_api::policy::{ClusterAffinity, ClusterAffinityTerm, PurgeMode, ReplicaSchedulingType, SpreadFieldValue};
use crowsnest_api::work::{GracefulEvictionTask, ResourceBindingSpec, ResourceHealth, TargetCluster};
use k8s_openapi::jiff::Timestamp;

use super::tasks::EvictionInput;
use super::{TaintDecision, evaluate_taints};
use crate::conditions;
use crate::scheduling::scheduling_type;
use crate::selector::cluster_matches;

/// Condition for completing an eviction task (`--failover-safety`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Safety {
    /// The copy must have been replaced.
    #[default]
    Safe,
    /// As in Karmada: a timeout is sufficient, and a binding without targets counts as healthy.
    Karmada,
}

/// Maximum length of a task's message, in characters.
const MAX_MESSAGE_LENGTH: usize = 1024;

fn is_ready(cluster: &Cluster) -> bool {
    conditions::is_true(&cluster.status.conditions, condition::READY)
}

/// True if replicas are divided among clusters rather than duplicated.
fn is_divided(spec: &ResourceBindingSpec) -> bool {
    let placement = spec.placement.as_ref();
    placement.is_some_and(|placement| scheduling_type(placement) == ReplicaSchedulingType::Divided)
}

fn sum(replicas: impl Iterator<Item = i32>) -> i64 {
    replicas.map(i64::from).sum()
}

/// True if the scheduler has observed the binding and all targets are healthy. In safe mode there must also be at
/// least one target, and no fewer replicas than are being evicted, unless the template requests fewer.
pub fn is_replaced(input: &EvictionInput<'_>) -> bool {
    let (spec, status) = (input.spec, input.status);
    let is_observed = status.scheduler_observed_generation == input.generation;
    let are_healthy = spec.clusters.iter().all(|target| input.is_healthy(&target.name));
    is_observed
        && are_healthy
        && (input.safety == Safety::Karmada || (!spec.clusters.is_empty() && has_enough_replicas(spec)))
}

fn has_enough_replicas(spec: &ResourceBindingSpec) -> bool {
    let evicted = sum(spec.graceful_eviction_tasks.iter().filter_map(|task| task.replicas));
    let assigned = sum(spec.clusters.iter().map(|target| target.replicas));
    !is_divided(spec) || assigned >= evicted.min(i64::from(spec.replicas))
}

/// True if the task may complete on timeout. In safe mode the last healthy copy is kept, unless the purge mode is
/// `Directly`. An unhealthy copy in a Ready cluster may be removed, and a copy in a cluster that is being
/// deleted cannot be kept.
pub fn may_complete_on_timeout(input: &EvictionInput<'_>, task: &GracefulEvictionTask) -> bool {
    let cluster = input.clusters.get(&task.from_cluster);
    let is_removed = cluster.is_none_or(|cluster| cluster.metadata.deletion_timestamp.is_some());
    let is_unhealthy = input.health(&task.from_cluster) == Some(&ResourceHealth::Unhealthy);
    input.safety == Safety::Karmada
        || task.purge_mode == Some(PurgeMode::Directly)
        || is_removed
        || input.spec.clusters.iter().any(|target| input.is_healthy(&target.name))
        || (is_unhealthy && cluster.is_some_and(|cluster| is_ready(cluster)))
}

/// Message of a task that is kept beyond its timeout. It does not depend on the scheduler's observed generation,
/// because writing the message changes the generation.
pub fn retention_message(input: &EvictionInput<'_>) -> String {
    let condition = conditions::find(&input.status.conditions, condition::SCHEDULED);
    let targets: Vec<&str> = input.spec.clusters.iter().map(|target| target.name.as_str()).collect();
    let reason = match condition {
        Some(condition) if condition.status == "False" => condition.message.clone(),
        _ if targets.is_empty() => "no other cluster is selected".to_owned(),
        _ => format!("it is not healthy in {}", targets.join(", ")),
    };
    let message = format!("no healthy replacement: {reason}");
    message.chars().take(MAX_MESSAGE_LENGTH).collect()
}

/// Cancellation of one or several eviction tasks of a binding.
#[derive(Debug, Clone, PartialEq)]
pub struct Cancellation {
    /// The spec with the clusters as targets again, and without their tasks.
    pub spec: ResourceBindingSpec,
    /// Clusters whose tasks are cancelled.
    pub clusters: Vec<String>,
    /// Affinity term that the scheduler must continue with, so that it does not remove the clusters again.
    pub affinity: Option<String>,
}

/// Cancels evictions by the taint manager whose cause no longer exists and whose copy is not replaced yet. An eviction
/// by failback is cancelled if the binding has no targets, because the original cluster failed again. `None` if there
/// is nothing to cancel.
pub fn cancel_tasks(input: &EvictionInput<'_>, now: Timestamp) -> Option<Cancellation> {
    if input.safety == Safety::Karmada || is_replaced(input) {
        return None;
    }
    let mut cancelled: Option<Cancellation> = None;
    for task in &input.spec.graceful_eviction_tasks {
        let spec = cancelled.as_ref().map_or(input.spec, |cancelled| &cancelled.spec);
        let Some(cluster) = find_cancellable_cluster(input, task, now) else { continue };
        let Some(term) = find_affinity_term(spec, cluster) else { continue };
        if term.is_some_and(|term| would_remove_healthy_copy(input, term)) {
            continue;
        }
        let affinity = term.map(|term| term.affinity_name.clone());
        let spec = restore_target(input, spec, task, term);
        let (mut clusters, before) = match cancelled.take() {
            Some(before) => (before.clusters, before.affinity),
            None => (Vec::new(), None),
        };
        clusters.push(task.from_cluster.clone());
        cancelled = Some(Cancellation { spec, clusters, affinity: before.or(affinity) });
    }
    let observed = &input.status.scheduler_observed_affinity_name;
    cancelled
        .map(|cancelled| Cancellation { affinity: cancelled.affinity.filter(|name| name != observed), ..cancelled })
}

/// The source cluster of a task, if the task can be cancelled: the copy still exists, the cluster is Ready, and none of
/// its taints evicts the binding.
fn find_cancellable_cluster<'a>(
    input: &'a EvictionInput<'_>,
    task: &GracefulEvictionTask,
    now: Timestamp,
) -> Option<&'a Cluster> {
    let is_cancellable_producer = match task.producer.as_str() {
        eviction::PRODUCER_TAINT_MANAGER => true,
        eviction::PRODUCER_FAILBACK => input.spec.clusters.is_empty(),
        _ => false,
    };
    let is_cancellable_task = task.suppress_deletion.is_none() && task.purge_mode != Some(PurgeMode::Directly);
    // The task does not record the replicas of individual components.
    let has_one_component = input.spec.components.len() <= 1;
    let copy_exists = input.status_item(&task.from_cluster).is_some();
    let cluster = input.clusters.get(&task.from_cluster)?.as_ref();
    let is_cluster_ready = cluster.metadata.deletion_timestamp.is_none() && is_ready(cluster);
    let is_tolerated = input.tolerations.is_some_and(|tolerations| match evaluate_taints(cluster, tolerations, now) {
        TaintDecision::Stay => true,
        TaintDecision::EvictAt(at) => at > now,
    });
    (is_cancellable_producer
        && is_cancellable_task
        && has_one_component
        && copy_exists
        && is_cluster_ready
        && is_tolerated)
        .then_some(cluster)
}

/// The first affinity term that matches the cluster. `Some(None)` if the placement has no affinity terms and matches
/// the cluster, `None` if the placement no longer matches the cluster.
fn find_affinity_term<'a>(spec: &'a ResourceBindingSpec, cluster: &Cluster) -> Option<Option<&'a ClusterAffinityTerm>> {
    let Some(placement) = &spec.placement else { return Some(None) };
    let matches = |affinity: &ClusterAffinity| cluster_matches(cluster, affinity);
    match placement.cluster_affinities.as_slice() {
        [] => placement.cluster_affinity.as_ref().is_none_or(matches).then_some(None),
        terms => terms.iter().find(|term| matches(&term.affinity)).map(Some),
    }
}

/// True if a target matches the term. Clusters that are neither targets nor sources of tasks count as not matching.
fn target_matches_term(input: &EvictionInput<'_>, term: &ClusterAffinityTerm, target: &str) -> bool {
    input.clusters.get(target).is_some_and(|cluster| cluster_matches(cluster, &term.affinity))
}

/// True if returning to the term would remove a healthy copy.
fn would_remove_healthy_copy(input: &EvictionInput<'_>, term: &ClusterAffinityTerm) -> bool {
    let mut healthy = input.spec.clusters.iter().filter(|target| input.is_healthy(&target.name));
    healthy.any(|target| !target_matches_term(input, term, &target.name))
}

/// The spec with the copy as target again. Unhealthy replacements are removed.
fn restore_target(
    input: &EvictionInput<'_>,
    spec: &ResourceBindingSpec,
    task: &GracefulEvictionTask,
    term: Option<&ClusterAffinityTerm>,
) -> ResourceBindingSpec {
    let mut restored = spec.clone();
    restored.graceful_eviction_tasks.retain(|other| other.from_cluster != task.from_cluster);
    let is_kept = |cluster: &str| cluster == task.from_cluster || input.is_healthy(cluster);
    if let Some(term) = term {
        // Targets of a later term are dropped.
        restored.clusters.retain(|target| target_matches_term(input, term, &target.name));
    }
    let copy = TargetCluster {
        name: task.from_cluster.clone(),
        replicas: task.replicas.unwrap_or_default(),
        ..TargetCluster::default()
    };
    if !restored.targets(&copy.name) {
        restored.clusters.push(copy);
    }
    if is_divided(&restored) {
        let mut surplus = sum(restored.clusters.iter().map(|target| target.replicas)) - i64::from(restored.replicas);
        for target in restored.clusters.iter_mut().rev().filter(|target| !is_kept(&target.name)) {
            let removed = surplus.clamp(0, i64::from(target.replicas.max(0)));
            target.replicas -= i32::try_from(removed).unwrap_or(target.replicas);
            surplus -= removed;
        }
        restored.clusters.retain(|target| target.replicas > 0 || is_kept(&target.name));
    } else {
        while restored.clusters.len() > max_clusters(&restored)
            && let Some(index) = restored.clusters.iter().rposition(|target| !is_kept(&target.name))
        {
            restored.clusters.remove(index);
        }
    }
    restored
}

/// Maximum number of clusters by spread constraints.
fn max_clusters(spec: &ResourceBindingSpec) -> usize {
    let constraints = spec.placement.iter().flat_map(|placement| &placement.spread_constraints);
    let by_cluster = constraints.filter(|constraint| {
        constraint.spread_by_field == Some(SpreadFieldValue::Cluster) && constraint.max_groups > 0
    });
    by_cluster.filter_map(|constraint| usize::try_from(constraint.max_groups).ok()).min().unwrap_or(usize::MAX)
}
