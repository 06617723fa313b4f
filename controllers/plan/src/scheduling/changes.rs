//! Scheduling triggers, in the order in which they are checked.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::policy::{ClusterAffinityTerm, Placement, ReplicaSchedulingType};
use crowsnest_api::work::{ResourceBindingSpec, ResourceBindingStatus};

use super::selection::scheduling_type;
use super::{Binding, SchedulingContext, Trigger};
use crate::gates::Gates;
use crate::selector::cluster_matches;

/// The first trigger that applies to a binding. `None` if its current result is kept.
pub(super) fn trigger(
    context: &SchedulingContext<'_>,
    binding: &Binding<'_>,
    placement: &Placement,
) -> Option<Trigger> {
    let spec = binding.spec;
    let observed = &binding.status.scheduler_observed_affinity_name;
    if is_placement_changed(placement, binding.applied_placement, observed) {
        return Some(Trigger::PlacementChanged);
    }
    if are_replicas_changed(context.gates, spec, placement) {
        return Some(Trigger::ReplicasChanged);
    }
    if is_reschedule_required(spec, binding.status) {
        return Some(Trigger::RescheduleRequested);
    }
    // With several affinity terms and no observed one, the term of the result is unknown.
    if !placement.cluster_affinities.is_empty() && observed.is_empty() {
        return Some(Trigger::Reconcile);
    }
    if !spec.is_workload() || scheduling_type(placement) == ReplicaSchedulingType::Duplicated {
        return Some(Trigger::Reconcile);
    }
    let mut terminating = context.clusters.iter().filter(|cluster| cluster.is_terminating());
    terminating.any(|cluster| spec.targets(cluster.name())).then_some(Trigger::TargetTerminating)
}

/// True if the result was made for another placement. Among several affinity terms only the observed one is compared,
/// so that editing an unused term moves nothing. An annotation that cannot be parsed counts as unchanged.
pub fn is_placement_changed(placement: &Placement, applied: Option<&str>, observed_affinity: &str) -> bool {
    let Some(applied) = applied.filter(|text| !text.is_empty()) else { return true };
    let Ok(applied) = serde_json::from_str::<Placement>(applied) else { return false };
    if *placement == applied {
        return false;
    }
    if placement.cluster_affinity != applied.cluster_affinity
        || placement.cluster_tolerations != applied.cluster_tolerations
        || placement.spread_constraints != applied.spread_constraints
        || placement.replica_scheduling != applied.replica_scheduling
    {
        return true;
    }
    fn find_term<'t>(terms: &'t [ClusterAffinityTerm], observed: &str) -> Option<&'t ClusterAffinityTerm> {
        terms.iter().find(|term| term.affinity_name == observed)
    }
    let current_term = find_term(&placement.cluster_affinities, observed_affinity);
    let applied_term = find_term(&applied.cluster_affinities, observed_affinity);
    observed_affinity.is_empty() || current_term.is_none() || current_term != applied_term
}

fn are_replicas_changed(gates: Gates, spec: &ResourceBindingSpec, placement: &Placement) -> bool {
    let Some(strategy) = &placement.replica_scheduling else { return false };
    if gates.multiple_pod_templates_scheduling && !spec.components.is_empty() && spec.clusters.is_empty() {
        return true;
    }
    match &strategy.replica_scheduling_type {
        Some(ReplicaSchedulingType::Duplicated) => spec.clusters.iter().any(|target| target.replicas != spec.replicas),
        Some(ReplicaSchedulingType::Divided) => {
            spec.clusters.iter().map(|target| i64::from(target.replicas)).sum::<i64>() != i64::from(spec.replicas)
        }
        _ => false,
    }
}

/// True if rescheduling was requested after the last scheduling. A binding that was never scheduled waits for its
/// first scheduling.
pub fn is_reschedule_required(spec: &ResourceBindingSpec, status: &ResourceBindingStatus) -> bool {
    match (&spec.reschedule_triggered_at, &status.last_scheduled_time) {
        (Some(triggered), Some(scheduled)) => triggered.0 > scheduled.0,
        _ => false,
    }
}

/// True if a change of `cluster` (its old or new version) can affect the binding.
pub fn is_affected_by_cluster(binding: &Binding<'_>, cluster: &Cluster) -> bool {
    let Some(placement) = &binding.spec.placement else { return false };
    let affinity = match placement.cluster_affinities.as_slice() {
        [] => placement.cluster_affinity.as_ref(),
        _ if binding.status.scheduler_observed_generation != binding.generation => return true,
        terms => {
            let observed = &binding.status.scheduler_observed_affinity_name;
            let term = terms.iter().find(|term| term.affinity_name == *observed).or(terms.first());
            term.map(|term| &term.affinity)
        }
    };
    affinity.is_none_or(|affinity| cluster_matches(cluster, affinity))
}
