//! Filters: which clusters are feasible for a binding, under the names of Karmada's plugins.

use std::borrow::Cow;

use crowsnest_api::policy::{ClusterAffinityTerm, SpreadFieldValue};
use crowsnest_api::work::{ResourceBindingSpec, TargetCluster};
use crowsnest_apimachinery::taints;
use k8s_openapi::api::core::v1::Taint;

use super::{ClusterFacts, Peer, Plugin, SchedulingContext};
use crate::selector::cluster_matches;

/// Input of the filters: the fleet, the binding and its affinity term.
pub struct FilterInput<'a> {
    pub context: &'a SchedulingContext<'a>,
    pub spec: &'a ResourceBindingSpec,
    /// The affinity term being tried. `None` for a placement without affinity terms.
    pub term: Option<&'a ClusterAffinityTerm>,
}

/// A cluster that the filters accept or reject.
#[derive(Clone, Copy)]
pub struct CandidateCluster<'a> {
    pub facts: &'a ClusterFacts,
    /// The binding's current target in this cluster.
    pub current: Option<&'a TargetCluster>,
}

/// Reason of a rejection.
type Reason = Cow<'static, str>;
type Filter = fn(&FilterInput<'_>, CandidateCluster<'_>) -> Option<Reason>;

const FILTERS: [(Plugin, Filter); 7] = [
    (Plugin::ClusterAffinity, cluster_affinity),
    (Plugin::ApiEnablement, api_enablement),
    (Plugin::TaintToleration, taint_toleration),
    (Plugin::ClusterEviction, cluster_eviction),
    (Plugin::SpreadConstraint, spread_constraint),
    (Plugin::WorkloadAffinity, workload_affinity),
    (Plugin::WorkloadAntiAffinity, workload_anti_affinity),
];

/// The first enabled filter that rejects the cluster, with its reason.
pub fn reject(input: &FilterInput<'_>, candidate: CandidateCluster<'_>) -> Option<(&'static str, Reason)> {
    let mut enabled = FILTERS.iter().filter(|(filter, _)| input.context.plugins.has(*filter));
    enabled.find_map(|(filter, check)| check(input, candidate).map(|reason| (filter.name(), reason)))
}

fn reject_if(rejected: bool, reason: &'static str) -> Option<Reason> {
    rejected.then_some(Cow::Borrowed(reason))
}

fn cluster_affinity(input: &FilterInput<'_>, candidate: CandidateCluster<'_>) -> Option<Reason> {
    let placement = input.spec.placement.as_ref()?;
    let cluster = &candidate.facts.cluster;
    let matches = match (&placement.cluster_affinity, input.term) {
        (Some(affinity), _) => cluster_matches(cluster, affinity),
        (None, Some(term)) => {
            let overflows = || {
                input.spec.is_workload()
                    && term.overflow_affinities.iter().any(|tier| cluster_matches(cluster, &tier.affinity))
            };
            cluster_matches(cluster, &term.affinity) || overflows()
        }
        (None, None) => true,
    };
    reject_if(!matches, "cluster(s) did not match the placement cluster affinity constraint")
}

fn api_enablement(input: &FilterInput<'_>, candidate: CandidateCluster<'_>) -> Option<Reason> {
    let resource = &input.spec.resource;
    let passes = candidate.current.is_some() || candidate.facts.serves(&resource.api_version, &resource.kind);
    reject_if(!passes, "cluster(s) did not have the API resource")
}

fn taint_toleration(input: &FilterInput<'_>, candidate: CandidateCluster<'_>) -> Option<Reason> {
    if candidate.current.is_some() {
        return None;
    }
    let tolerations = input.spec.placement.as_ref().map_or(&[][..], |placement| &placement.cluster_tolerations);
    let taints = &candidate.facts.cluster.spec.taints;
    let taint = taints::first_untolerated_taint(taints, tolerations, taints::prevents_scheduling)?;
    Some(Cow::Owned(format!("cluster(s) had untolerated taint {{{}}}", format_taint(taint))))
}

/// The taint that evicts the binding from a current target, which the filters keep.
pub fn evicting_taint(input: &FilterInput<'_>, candidate: CandidateCluster<'_>) -> Option<String> {
    candidate.current?;
    let tolerations = input.spec.placement.as_ref().map_or(&[][..], |placement| &placement.cluster_tolerations);
    let evicts = |taint: &Taint| taint.effect == taints::NO_EXECUTE;
    taints::first_untolerated_taint(&candidate.facts.cluster.spec.taints, tolerations, evicts).map(format_taint)
}

fn format_taint(taint: &Taint) -> String {
    match taint.value.as_deref() {
        None | Some("") => format!("{}:{}", taint.key, taint.effect),
        Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
    }
}

fn cluster_eviction(input: &FilterInput<'_>, candidate: CandidateCluster<'_>) -> Option<Reason> {
    reject_if(input.spec.evicts(candidate.facts.name()), "cluster(s) is in the process of eviction")
}

fn spread_constraint(input: &FilterInput<'_>, candidate: CandidateCluster<'_>) -> Option<Reason> {
    let spec = &candidate.facts.cluster.spec;
    let missing = |field: &SpreadFieldValue| match field {
        SpreadFieldValue::Provider if spec.provider.is_empty() => Some("provider"),
        SpreadFieldValue::Region if spec.region.is_empty() => Some("region"),
        SpreadFieldValue::Zone if spec.zones.is_empty() => Some("zones"),
        _ => None,
    };
    let constraints = &input.spec.placement.as_ref()?.spread_constraints;
    let property = constraints.iter().filter_map(|constraint| constraint.spread_by_field.as_ref()).find_map(missing)?;
    Some(Cow::Owned(format!("cluster(s) did not have {property} property")))
}

fn workload_affinity(input: &FilterInput<'_>, candidate: CandidateCluster<'_>) -> Option<Reason> {
    let group = &input.spec.workload_affinity_groups.as_ref()?.affinity_group;
    let is_elsewhere = peers(input.context, candidate, group, |peer| &peer.affinity_group)
        .any(|peer| !peer.clusters.is_empty() && !peer.clusters.iter().any(|name| name == candidate.facts.name()));
    reject_if(is_elsewhere, "ResourceBinding with the same affinity group does not target this cluster")
}

fn workload_anti_affinity(input: &FilterInput<'_>, candidate: CandidateCluster<'_>) -> Option<Reason> {
    let group = &input.spec.workload_affinity_groups.as_ref()?.anti_affinity_group;
    let is_occupied = peers(input.context, candidate, group, |peer| &peer.anti_affinity_group)
        .any(|peer| peer.clusters.iter().any(|name| name == candidate.facts.name()));
    reject_if(is_occupied, "cluster already has workload with the same anti-affinity group")
}

/// Other bindings of the group. Empty if the feature gate is off, the group is empty, or the cluster is a target
/// already.
fn peers<'a>(
    context: &'a SchedulingContext<'a>,
    candidate: CandidateCluster<'_>,
    group: &str,
    group_of: fn(&Peer) -> &String,
) -> impl Iterator<Item = &'a Peer> {
    let applies = context.gates.workload_affinity && !group.is_empty() && candidate.current.is_none();
    context.peers.iter().filter(move |_| applies).filter(move |peer| group_of(peer) == group)
}
