//! What an eviction needs to end: something that has replaced the copy (`--failover-safety=safe`), or as much as Karmada asks
//! for. And when it is called off, because what it fled from is over and nothing has replaced the copy yet.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{condition, eviction};
use crowsnest_api::policy::{ClusterAffinity, ClusterAffinityTerm, PurgeMode, ReplicaSchedulingType, SpreadFieldValue};
use crowsnest_api::work::{GracefulEvictionTask, ResourceBindingSpec, ResourceHealth, TargetCluster};
use k8s_openapi::jiff::Timestamp;

use super::tasks::Evicting;
use super::{TaintDecision, by_taints};
use crate::conditions;
use crate::scheduling::scheduling_type;
use crate::selector::cluster_matches;

/// What an eviction needs to end (`--failover-safety`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Safety {
    /// Something that has replaced the copy.
    #[default]
    Safe,
    /// As Karmada: time is enough, and a binding without any target counts as healthy.
    Karmada,
}

/// The longest message a task may have.
const LONGEST_MESSAGE: usize = 1024;

fn is_ready(cluster: &Cluster) -> bool {
    conditions::is_true(&cluster.status.conditions, condition::READY)
}

/// Whether replicas are divided among clusters, rather than each of them having them all.
fn is_divided(spec: &ResourceBindingSpec) -> bool {
    let placement = spec.placement.as_ref();
    placement.is_some_and(|placement| scheduling_type(placement) == ReplicaSchedulingType::Divided)
}

fn sum(replicas: impl Iterator<Item = i32>) -> i64 {
    replicas.map(i64::from).sum()
}

/// Whether every copy that should be is there and well. No target at all replaces nothing, nor do fewer replicas than those
/// that leave, unless fewer are wanted.
pub fn is_replaced(evicting: &Evicting<'_>) -> bool {
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

/// Whether the copy may go when its time is over: not when it is the last good one, unless that was asked for. A copy that
/// is unwell in a cluster that answers is no good one, and one in a cluster that leaves cannot be kept.
pub fn may_time_out(evicting: &Evicting<'_>, task: &GracefulEvictionTask) -> bool {
    let cluster = evicting.clusters.get(&task.from_cluster);
    let leaves = cluster.is_none_or(|cluster| cluster.metadata.deletion_timestamp.is_some());
    let unwell = evicting.health(&task.from_cluster) == Some(&ResourceHealth::Unhealthy);
    evicting.safety == Safety::Karmada
        || task.purge_mode == Some(PurgeMode::Directly)
        || leaves
        || evicting.spec.clusters.iter().any(|target| evicting.is_healthy(&target.name))
        || (unwell && cluster.is_some_and(|cluster| is_ready(cluster)))
}

/// Why a copy stays beyond its time. It does not tell whether the scheduler has looked, which a message itself would change.
pub fn why_kept(evicting: &Evicting<'_>) -> String {
    let scheduled = conditions::find(&evicting.status.conditions, condition::SCHEDULED);
    let targets: Vec<&str> = evicting.spec.clusters.iter().map(|target| target.name.as_str()).collect();
    let why = match scheduled {
        Some(shown) if shown.status == "False" => shown.message.clone(),
        _ if targets.is_empty() => "no other cluster has been chosen".to_owned(),
        _ => format!("it is not healthy in {}", targets.join(", ")),
    };
    let message = format!("no healthy replacement: {why}");
    message.chars().take(LONGEST_MESSAGE).collect()
}

/// Evictions that are called off.
#[derive(Debug, Clone, PartialEq)]
pub struct Cancelled {
    /// With the clusters as targets again, and without their tasks.
    pub spec: ResourceBindingSpec,
    pub clusters: Vec<String>,
    /// The affinity term the scheduler has to go on with, or it would take the clusters away again.
    pub affinity: Option<String>,
}

/// Calls off what the taint manager began and nothing has replaced yet, where its cause is over. What is on its way home is
/// kept where it was when home fails again.
pub fn cancelled(evicting: &Evicting<'_>, now: Timestamp) -> Option<Cancelled> {
    if evicting.safety == Safety::Karmada || is_replaced(evicting) {
        return None;
    }
    let mut cancelled: Option<Cancelled> = None;
    for task in &evicting.spec.graceful_eviction_tasks {
        let spec = cancelled.as_ref().map_or(evicting.spec, |cancelled| &cancelled.spec);
        let Some(cluster) = returnable(evicting, task, now) else { continue };
        let Some(term) = term_of(spec, cluster) else { continue };
        if term.is_some_and(|term| leaves_a_good_one(evicting, term)) {
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

/// The cluster of a task whose copy may stay after all: it is still there, and nothing drives it away.
fn returnable<'a>(evicting: &'a Evicting<'_>, task: &GracefulEvictionTask, now: Timestamp) -> Option<&'a Cluster> {
    let by_producer = match task.producer.as_str() {
        eviction::PRODUCER_TAINT_MANAGER => true,
        eviction::PRODUCER_GOING_HOME => evicting.spec.clusters.is_empty(),
        _ => false,
    };
    let undecided = task.suppress_deletion.is_none() && task.purge_mode != Some(PurgeMode::Directly);
    // What a component had is not in the task.
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

/// The first affinity term that takes the cluster (none where the placement has no list of them); `None` when the placement
/// does not mean it any more.
fn term_of<'a>(spec: &'a ResourceBindingSpec, cluster: &Cluster) -> Option<Option<&'a ClusterAffinityTerm>> {
    let Some(placement) = &spec.placement else { return Some(None) };
    let means = |affinity: &ClusterAffinity| cluster_matches(cluster, affinity);
    match placement.cluster_affinities.as_slice() {
        [] => placement.cluster_affinity.as_ref().is_none_or(means).then_some(None),
        terms => terms.iter().find(|term| means(&term.affinity)).map(Some),
    }
}

/// Whether a target is one of the term, as far as anybody knows: what is not among the clusters of tasks or of targets isn't.
fn is_of_term(evicting: &Evicting<'_>, term: &ClusterAffinityTerm, target: &str) -> bool {
    evicting.clusters.get(target).is_some_and(|cluster| cluster_matches(cluster, &term.affinity))
}

/// Whether going back to the term would take a copy away that is well.
fn leaves_a_good_one(evicting: &Evicting<'_>, term: &ClusterAffinityTerm) -> bool {
    let mut good = evicting.spec.clusters.iter().filter(|target| evicting.is_healthy(&target.name));
    good.any(|target| !is_of_term(evicting, term, &target.name))
}

/// The spec with the copy among its targets again. What was given to others in its place, and is not well yet, goes.
fn with_copy(
    evicting: &Evicting<'_>,
    spec: &ResourceBindingSpec,
    task: &GracefulEvictionTask,
    term: Option<&ClusterAffinityTerm>,
) -> ResourceBindingSpec {
    let mut back = spec.clone();
    back.graceful_eviction_tasks.retain(|other| other.from_cluster != task.from_cluster);
    let held = |cluster: &str| cluster == task.from_cluster || evicting.is_healthy(cluster);
    if let Some(term) = term {
        // A later term is not in use any more.
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
            && let Some(place) = back.clusters.iter().rposition(|target| !held(&target.name))
        {
            back.clusters.remove(place);
        }
    }
    back
}

/// How many clusters the placement allows.
fn most_clusters(spec: &ResourceBindingSpec) -> usize {
    let constraints = spec.placement.iter().flat_map(|placement| &placement.spread_constraints);
    let by_cluster =
        constraints.filter(|one| one.spread_by_field == Some(SpreadFieldValue::Cluster) && one.max_groups > 0);
    by_cluster.filter_map(|one| usize::try_from(one.max_groups).ok()).min().unwrap_or(usize::MAX)
}
