//! When an eviction task may complete: once the copy is replaced (`--failover-safety=safe`), or by Karmada's weaker
//! rule. Also cancels tasks whose cause no longer exists before the copy was replaced.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{condition, eviction};
use crowsnest_api::policy::{ClusterAffinity, ClusterAffinityTerm, PurgeMode, ReplicaSchedulingType, SpreadFieldValue};
use crowsnest_api::work::{GracefulEvictionTask, ResourceBindingSpec, ResourceHealth, TargetCluster};
use k8s_openapi::jiff::Timestamp;

use super::tasks::EvictionInput;
use super::{TaintDecision, by_taints};
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

/// Maximum length of a task's message.
const LONGEST_MESSAGE: usize = 1024;

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
pub fn is_replaced(evicting: &EvictionInput<'_>) -> bool {
    let (spec, status) = (evicting.spec, evicting.status);
    let seen = status.scheduler_observed_generation == evicting.generation;
    let all_well = spec.clusters.iter().all(|target| evicting.is_healthy(&target.name));
    seen && all_well && (evicting.safety == Safety::Karmada || (!spec.clusters.is_empty() && is_enough(spec)))
}

fn is_enough(spec: &ResourceBindingSpec) -> bool {
    let leaving = sum(spec.graceful_eviction_tasks.iter().filter_map(|task| task.replicas));
    let there = sum(spec.clusters.iter().map(|target| target.replicas));
    !is_divided(spec) || there >= leaving.min(i64::from(spec.replicas))
}

/// True if the task may complete on timeout. In safe mode the last healthy copy is kept, unless the purge mode is
/// `Directly`. A copy that is unhealthy in a Ready cluster is not worth keeping, and one in a cluster being deleted
/// cannot be kept.
pub fn may_time_out(evicting: &EvictionInput<'_>, task: &GracefulEvictionTask) -> bool {
    let cluster = evicting.clusters.get(&task.from_cluster);
    let leaves = cluster.is_none_or(|cluster| cluster.metadata.deletion_timestamp.is_some());
    let unwell = evicting.health(&task.from_cluster) == Some(&ResourceHealth::Unhealthy);
    evicting.safety == Safety::Karmada
        || task.purge_mode == Some(PurgeMode::Directly)
        || leaves
        || evicting.spec.clusters.iter().any(|target| evicting.is_healthy(&target.name))
        || (unwell && cluster.is_some_and(|cluster| is_ready(cluster)))
}

/// Message of a task that is kept beyond its timeout. It does not depend on the scheduler's observed generation,
/// because writing the message changes the generation.
pub fn why_kept(evicting: &EvictionInput<'_>) -> String {
    let scheduled = conditions::find(&evicting.status.conditions, condition::SCHEDULED);
    let targets: Vec<&str> = evicting.spec.clusters.iter().map(|target| target.name.as_str()).collect();
    let why = match scheduled {
        Some(shown) if shown.status == "False" => shown.message.clone(),
        _ if targets.is_empty() => "no other cluster is selected".to_owned(),
        _ => format!("it is not healthy in {}", targets.join(", ")),
    };
    let message = format!("no healthy replacement: {why}");
    message.chars().take(LONGEST_MESSAGE).collect()
}

/// Cancelled evictions.
#[derive(Debug, Clone, PartialEq)]
pub struct Cancelled {
    /// The spec with the clusters as targets again, and without their tasks.
    pub spec: ResourceBindingSpec,
    pub clusters: Vec<String>,
    /// Affinity term that the scheduler must continue with, so that it does not remove the clusters again.
    pub affinity: Option<String>,
}

/// Cancels evictions by the taint manager whose cause no longer exists and whose copy is not replaced yet. A copy that was
/// being replaced by failback is kept if the original cluster fails again.
pub fn cancelled(evicting: &EvictionInput<'_>, now: Timestamp) -> Option<Cancelled> {
    if evicting.safety == Safety::Karmada || is_replaced(evicting) {
        return None;
    }
    let mut cancelled: Option<Cancelled> = None;
    for task in &evicting.spec.graceful_eviction_tasks {
        let spec = cancelled.as_ref().map_or(evicting.spec, |cancelled| &cancelled.spec);
        let Some(cluster) = returnable(evicting, task, now) else { continue };
        let Some(term) = term_of(spec, cluster) else { continue };
        if term.is_some_and(|term| would_remove_healthy_copy(evicting, term)) {
            continue;
        }
        let affinity = term.map(|term| term.affinity_name.clone());
        let spec = with_copy(evicting, spec, task, term);
        let (mut clusters, before) = match cancelled.take() {
            Some(before) => (before.clusters, before.affinity),
            None => (Vec::new(), None),
        };
        clusters.push(task.from_cluster.clone());
        cancelled = Some(Cancelled { spec, clusters, affinity: before.or(affinity) });
    }
    let observed = &evicting.status.scheduler_observed_affinity_name;
    cancelled.map(|cancelled| Cancelled { affinity: cancelled.affinity.filter(|name| name != observed), ..cancelled })
}

/// The cluster of a task that can be cancelled: its copy still exists, the cluster is Ready, and no taint evicts the
/// binding.
fn returnable<'a>(evicting: &'a EvictionInput<'_>, task: &GracefulEvictionTask, now: Timestamp) -> Option<&'a Cluster> {
    let by_producer = match task.producer.as_str() {
        eviction::PRODUCER_TAINT_MANAGER => true,
        eviction::PRODUCER_GOING_HOME => evicting.spec.clusters.is_empty(),
        _ => false,
    };
    let undecided = task.suppress_deletion.is_none() && task.purge_mode != Some(PurgeMode::Directly);
    // The task does not record the replicas of single components.
    let simple = evicting.spec.components.len() <= 1;
    let there = evicting.item(&task.from_cluster).is_some();
    let cluster = evicting.clusters.get(&task.from_cluster)?.as_ref();
    let stays = cluster.metadata.deletion_timestamp.is_none() && is_ready(cluster);
    let tolerated = evicting.tolerations.is_some_and(|tolerations| match by_taints(cluster, tolerations, now) {
        TaintDecision::Stay => true,
        TaintDecision::EvictAt(at) => at > now,
    });
    (by_producer && undecided && simple && there && stays && tolerated).then_some(cluster)
}

/// The first affinity term that matches the cluster; the inner `None` is a placement without affinity terms. `None`
/// if the placement no longer matches the cluster.
fn term_of<'a>(spec: &'a ResourceBindingSpec, cluster: &Cluster) -> Option<Option<&'a ClusterAffinityTerm>> {
    let Some(placement) = &spec.placement else { return Some(None) };
    let means = |affinity: &ClusterAffinity| cluster_matches(cluster, affinity);
    match placement.cluster_affinities.as_slice() {
        [] => placement.cluster_affinity.as_ref().is_none_or(means).then_some(None),
        terms => terms.iter().find(|term| means(&term.affinity)).map(Some),
    }
}

/// True if a target matches the term. Clusters that are neither targets nor sources of tasks count as not matching.
fn is_of_term(evicting: &EvictionInput<'_>, term: &ClusterAffinityTerm, target: &str) -> bool {
    evicting.clusters.get(target).is_some_and(|cluster| cluster_matches(cluster, &term.affinity))
}

/// True if returning to the term would remove a healthy copy.
fn would_remove_healthy_copy(evicting: &EvictionInput<'_>, term: &ClusterAffinityTerm) -> bool {
    let mut good = evicting.spec.clusters.iter().filter(|target| evicting.is_healthy(&target.name));
    good.any(|target| !is_of_term(evicting, term, &target.name))
}

/// The spec with the copy as target again. Unhealthy replacements are removed.
fn with_copy(
    evicting: &EvictionInput<'_>,
    spec: &ResourceBindingSpec,
    task: &GracefulEvictionTask,
    term: Option<&ClusterAffinityTerm>,
) -> ResourceBindingSpec {
    let mut back = spec.clone();
    back.graceful_eviction_tasks.retain(|other| other.from_cluster != task.from_cluster);
    let held = |cluster: &str| cluster == task.from_cluster || evicting.is_healthy(cluster);
    if let Some(term) = term {
        // Targets of a later term are dropped.
        back.clusters.retain(|target| is_of_term(evicting, term, &target.name));
    }
    let copy = TargetCluster {
        name: task.from_cluster.clone(),
        replicas: task.replicas.unwrap_or_default(),
        ..TargetCluster::default()
    };
    if !back.targets(&copy.name) {
        back.clusters.push(copy);
    }
    if is_divided(&back) {
        let mut surplus = sum(back.clusters.iter().map(|target| target.replicas)) - i64::from(back.replicas);
        for target in back.clusters.iter_mut().rev().filter(|target| !held(&target.name)) {
            let taken = surplus.clamp(0, i64::from(target.replicas.max(0)));
            target.replicas -= i32::try_from(taken).unwrap_or(target.replicas);
            surplus -= taken;
        }
        back.clusters.retain(|target| target.replicas > 0 || held(&target.name));
    } else {
        while back.clusters.len() > most_clusters(&back)
            && let Some(index) = back.clusters.iter().rposition(|target| !held(&target.name))
        {
            back.clusters.remove(index);
        }
    }
    back
}

/// Maximum number of clusters by spread constraints.
fn most_clusters(spec: &ResourceBindingSpec) -> usize {
    let constraints = spec.placement.iter().flat_map(|placement| &placement.spread_constraints);
    let by_cluster =
        constraints.filter(|one| one.spread_by_field == Some(SpreadFieldValue::Cluster) && one.max_groups > 0);
    by_cluster.filter_map(|one| usize::try_from(one.max_groups).ok()).min().unwrap_or(usize::MAX)
}
