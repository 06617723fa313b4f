//! Filters: which clusters are feasible for a binding, under the names of Karmada's plugins.

use std::borrow::Cow;

use crowsnest_api::policy::{ClusterAffinityTerm, SpreadFieldValue};
use crowsnest_api::work::{ResourceBindingSpec, TargetCluster};
use crowsnest_apimachinery::taints;
use k8s_openapi::api::core::v1::Taint;

use super::{ClusterFacts, Peer, Plugin, World};
use crate::selector::cluster_matches;

/// Input of the filters: the binding and its affinity term.
pub struct FilterInput<'a> {
    pub spec: &'a ResourceBindingSpec,
    /// The affinity term being tried. `None` for a placement without affinity terms.
    pub term: Option<&'a ClusterAffinityTerm>,
}

/// A cluster that the filters accept or reject.
#[derive(Clone, Copy)]
pub struct CandidateCluster<'a> {
    pub facts: &'a ClusterFacts,
    /// The binding's current target in this cluster.
    pub held: Option<&'a TargetCluster>,
}

/// Reason of a rejection.
type Reason = Cow<'static, str>;
type Filter = fn(&World<'_>, &FilterInput<'_>, CandidateCluster<'_>) -> Option<Reason>;

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
pub fn reject(
    world: &World<'_>,
    subject: &FilterInput<'_>,
    site: CandidateCluster<'_>,
) -> Option<(&'static str, Reason)> {
    let on = FILTERS.iter().filter(|(filter, _)| world.plugins.has(*filter));
    on.into_iter().find_map(|(filter, check)| check(world, subject, site).map(|reason| (filter.name(), reason)))
}

fn reject_if(rejected: bool, reason: &'static str) -> Option<Reason> {
    rejected.then_some(Cow::Borrowed(reason))
}

fn cluster_affinity(_: &World<'_>, subject: &FilterInput<'_>, site: CandidateCluster<'_>) -> Option<Reason> {
    let placement = subject.spec.placement.as_ref()?;
    let cluster = &site.facts.cluster;
    let matches = match (&placement.cluster_affinity, subject.term) {
        (Some(affinity), _) => cluster_matches(cluster, affinity),
        (None, Some(term)) => {
            let overflows = || {
                subject.spec.is_workload()
                    && term.overflow_affinities.iter().any(|tier| cluster_matches(cluster, &tier.affinity))
            };
            cluster_matches(cluster, &term.affinity) || overflows()
        }
        (None, None) => true,
    };
    reject_if(!matches, "cluster(s) did not match the placement cluster affinity constraint")
}

fn api_enablement(_: &World<'_>, subject: &FilterInput<'_>, site: CandidateCluster<'_>) -> Option<Reason> {
    let resource = &subject.spec.resource;
    let passes = site.held.is_some() || site.facts.serves(&resource.api_version, &resource.kind);
    reject_if(!passes, "cluster(s) did not have the API resource")
}

fn taint_toleration(_: &World<'_>, subject: &FilterInput<'_>, site: CandidateCluster<'_>) -> Option<Reason> {
    if site.held.is_some() {
        return None;
    }
    let tolerations = subject.spec.placement.as_ref().map_or(&[][..], |placement| &placement.cluster_tolerations);
    let taints = &site.facts.cluster.spec.taints;
    let taint = taints::first_untolerated(taints, tolerations, taints::prevents_scheduling)?;
    Some(Cow::Owned(format!("cluster(s) had untolerated taint {{{}}}", printed(taint))))
}

/// The taint that evicts the binding from a current target, which the filters keep.
pub fn evicting_taint(subject: &FilterInput<'_>, site: CandidateCluster<'_>) -> Option<String> {
    site.held?;
    let tolerations = subject.spec.placement.as_ref().map_or(&[][..], |placement| &placement.cluster_tolerations);
    let evicts = |taint: &Taint| taint.effect == taints::NO_EXECUTE;
    taints::first_untolerated(&site.facts.cluster.spec.taints, tolerations, evicts).map(printed)
}

fn printed(taint: &Taint) -> String {
    match taint.value.as_deref() {
        None | Some("") => format!("{}:{}", taint.key, taint.effect),
        Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
    }
}

fn cluster_eviction(_: &World<'_>, subject: &FilterInput<'_>, site: CandidateCluster<'_>) -> Option<Reason> {
    reject_if(subject.spec.evicts(site.facts.name()), "cluster(s) is in the process of eviction")
}

fn spread_constraint(_: &World<'_>, subject: &FilterInput<'_>, site: CandidateCluster<'_>) -> Option<Reason> {
    let spec = &site.facts.cluster.spec;
    let missing = |field: &SpreadFieldValue| match field {
        SpreadFieldValue::Provider if spec.provider.is_empty() => Some("provider"),
        SpreadFieldValue::Region if spec.region.is_empty() => Some("region"),
        SpreadFieldValue::Zone if spec.zones.is_empty() => Some("zones"),
        _ => None,
    };
    let constraints = &subject.spec.placement.as_ref()?.spread_constraints;
    let property = constraints.iter().filter_map(|constraint| constraint.spread_by_field.as_ref()).find_map(missing)?;
    Some(Cow::Owned(format!("cluster(s) did not have {property} property")))
}

fn workload_affinity(world: &World<'_>, subject: &FilterInput<'_>, site: CandidateCluster<'_>) -> Option<Reason> {
    let group = &subject.spec.workload_affinity_groups.as_ref()?.affinity_group;
    let away = peers(world, site, group, |peer| &peer.affinity_group)
        .any(|peer| !peer.clusters.is_empty() && !peer.clusters.iter().any(|name| name == site.facts.name()));
    reject_if(away, "ResourceBinding with the same affinity group does not target this cluster")
}

fn workload_anti_affinity(world: &World<'_>, subject: &FilterInput<'_>, site: CandidateCluster<'_>) -> Option<Reason> {
    let group = &subject.spec.workload_affinity_groups.as_ref()?.anti_affinity_group;
    let taken = peers(world, site, group, |peer| &peer.anti_affinity_group)
        .any(|peer| peer.clusters.iter().any(|name| name == site.facts.name()));
    reject_if(taken, "cluster already has workload with the same anti-affinity group")
}

/// Other bindings of the group. Empty if the feature gate is off, the group is empty, or the cluster is a target
/// already.
fn peers<'a>(
    world: &'a World<'a>,
    site: CandidateCluster<'_>,
    group: &str,
    group_of: fn(&Peer) -> &String,
) -> impl Iterator<Item = &'a Peer> {
    let applies = world.gates.workload_affinity && !group.is_empty() && site.held.is_none();
    world.peers.iter().filter(move |_| applies).filter(move |peer| group_of(peer) == group)
}
