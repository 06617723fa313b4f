//! Filters: which clusters a binding may go to at all. Each is named as Karmada names its plugin.

use crowsnest_api::policy::{ClusterAffinityTerm, SpreadFieldValue};
use crowsnest_api::taints;
use crowsnest_api::work::ResourceBindingSpec;

use super::report::Rejection;
use super::{ClusterFacts, Peer, World};
use crate::plan::selector::cluster_matches;

/// The binding as filters see it.
pub struct Subject<'a> {
    pub spec: &'a ResourceBindingSpec,
    /// The affinity term being tried; `None` when the placement has no list of terms.
    pub term: Option<&'a ClusterAffinityTerm>,
}

type Filter = fn(&World<'_>, &Subject<'_>, &ClusterFacts) -> Option<String>;

const FILTERS: [(&str, Filter); 7] = [
    ("ClusterAffinity", cluster_affinity),
    ("APIEnablement", api_enablement),
    ("TaintToleration", taint_toleration),
    ("ClusterEviction", cluster_eviction),
    ("SpreadConstraint", spread_constraint),
    ("WorkloadAffinity", workload_affinity),
    ("WorkloadAntiAffinity", workload_anti_affinity),
];

/// The first filter that rejects the cluster.
pub fn reject(world: &World<'_>, subject: &Subject<'_>, cluster: &ClusterFacts) -> Option<Rejection> {
    FILTERS.iter().find_map(|(filter, check)| check(world, subject, cluster).map(|reason| Rejection { filter, reason }))
}

fn cluster_affinity(_: &World<'_>, subject: &Subject<'_>, cluster: &ClusterFacts) -> Option<String> {
    let placement = subject.spec.placement.as_ref()?;
    let matches = match (&placement.cluster_affinity, subject.term) {
        (Some(affinity), _) => cluster_matches(&cluster.cluster, affinity),
        (None, Some(term)) => {
            let overflows = || {
                subject.spec.is_workload()
                    && term.overflow_affinities.iter().any(|tier| cluster_matches(&cluster.cluster, &tier.affinity))
            };
            cluster_matches(&cluster.cluster, &term.affinity) || overflows()
        }
        (None, None) => true,
    };
    (!matches).then(|| "cluster(s) did not match the placement cluster affinity constraint".to_owned())
}

fn api_enablement(_: &World<'_>, subject: &Subject<'_>, cluster: &ClusterFacts) -> Option<String> {
    let resource = &subject.spec.resource;
    let passes = subject.spec.targets(cluster.name()) || cluster.serves(&resource.api_version, &resource.kind);
    (!passes).then(|| "cluster(s) did not have the API resource".to_owned())
}

fn taint_toleration(_: &World<'_>, subject: &Subject<'_>, cluster: &ClusterFacts) -> Option<String> {
    if subject.spec.targets(cluster.name()) {
        return None;
    }
    let tolerations = subject.spec.placement.as_ref().map_or(&[][..], |placement| &placement.cluster_tolerations);
    let taint = taints::first_untolerated(&cluster.cluster.spec.taints, tolerations, taints::keeps_away)?;
    let taint = match taint.value.as_deref() {
        None | Some("") => format!("{}:{}", taint.key, taint.effect),
        Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
    };
    Some(format!("cluster(s) had untolerated taint {{{taint}}}"))
}

fn cluster_eviction(_: &World<'_>, subject: &Subject<'_>, cluster: &ClusterFacts) -> Option<String> {
    let evicting = subject.spec.evicts(cluster.name());
    evicting.then(|| "cluster(s) is in the process of eviction".to_owned())
}

fn spread_constraint(_: &World<'_>, subject: &Subject<'_>, cluster: &ClusterFacts) -> Option<String> {
    let spec = &cluster.cluster.spec;
    let missing = |field: &SpreadFieldValue| match field {
        SpreadFieldValue::Provider if spec.provider.is_empty() => Some("provider"),
        SpreadFieldValue::Region if spec.region.is_empty() => Some("region"),
        SpreadFieldValue::Zone if spec.zones.is_empty() => Some("zones"),
        _ => None,
    };
    let constraints = &subject.spec.placement.as_ref()?.spread_constraints;
    let property = constraints.iter().filter_map(|constraint| constraint.spread_by_field.as_ref()).find_map(missing)?;
    Some(format!("cluster(s) did not have {property} property"))
}

fn workload_affinity(world: &World<'_>, subject: &Subject<'_>, cluster: &ClusterFacts) -> Option<String> {
    let group = &subject.spec.workload_affinity_groups.as_ref()?.affinity_group;
    let away = peers(world, subject, cluster, group, |peer| &peer.affinity_group)
        .any(|peer| !peer.clusters.is_empty() && !peer.clusters.iter().any(|name| name == cluster.name()));
    away.then(|| "ResourceBinding with the same affinity group does not target this cluster".to_owned())
}

fn workload_anti_affinity(world: &World<'_>, subject: &Subject<'_>, cluster: &ClusterFacts) -> Option<String> {
    let group = &subject.spec.workload_affinity_groups.as_ref()?.anti_affinity_group;
    let taken = peers(world, subject, cluster, group, |peer| &peer.anti_affinity_group)
        .any(|peer| peer.clusters.iter().any(|name| name == cluster.name()));
    taken.then(|| "cluster already has workload with the same anti-affinity group".to_owned())
}

/// Other bindings of the group; none when the gate is off, the group is empty or the cluster is a target already.
fn peers<'a>(
    world: &'a World<'a>,
    subject: &Subject<'_>,
    cluster: &ClusterFacts,
    group: &str,
    group_of: fn(&Peer) -> &String,
) -> impl Iterator<Item = &'a Peer> {
    let applies = world.gates.workload_affinity && !group.is_empty() && !subject.spec.targets(cluster.name());
    world.peers.iter().filter(move |_| applies).filter(move |peer| group_of(peer) == group)
}
