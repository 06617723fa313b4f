//! How many more replicas fit into a cluster: from its nodes and pods where the cache has them, and from the summary
//! and models in the Cluster's status. The smaller answer counts.

pub mod bounds;
pub mod capacity;
pub mod resources;

use std::collections::BTreeMap;

use crowsnest_api::cluster::{Cluster, ResourceSummary};
use crowsnest_api::policy::ResourceList;
use crowsnest_api::quantity::{Format, Quantity};
use crowsnest_api::taints;
use crowsnest_api::work::{Component, NodeClaim, ReplicaRequirements};
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use self::capacity::{FreeNode, NodeFacts, model_nodes};
use self::resources::Resources;
use super::gates::Gates;
use super::scheduling::Estimate;

/// Replicas given to a cluster that its pods don't show yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Assumed {
    pub claim: Option<NodeClaim>,
    /// One replica's request, with 1 in `pods`.
    pub request: Resources,
    pub replicas: i32,
}

/// The estimator over everything known at one moment.
#[derive(Debug, Clone, Default)]
pub struct Estimator<'a> {
    pub gates: Gates,
    /// Nodes with what they have left, per cluster whose nodes and pods are known.
    pub nodes: BTreeMap<&'a str, &'a [FreeNode]>,
    pub assumed: BTreeMap<&'a str, Vec<Assumed>>,
}

impl Estimate for Estimator<'_> {
    fn replicas(&self, cluster: &Cluster, requirements: Option<&ReplicaRequirements>) -> Option<i32> {
        let claim = requirements.and_then(|requirements| requirements.node_claim.as_ref());
        let request = requirements.map(|requirements| Resources::of_list(&requirements.resource_request));
        let general = self.by_summary(cluster, request.as_ref(), requirements);
        let accurate = self.nodes_of(cluster).map(|nodes| {
            let assumed = place_assumed(nodes, self.assumed_in(cluster));
            by_nodes(&assumed, claim, &request.unwrap_or_default())
        });
        Some(clamp(accurate.map_or(general, |accurate| accurate.min(general))))
    }

    fn component_sets(&self, cluster: &Cluster, components: &[Component], _namespace: &str) -> Option<i32> {
        let general = self.sets_by_summary(cluster, components);
        let accurate = self.nodes_of(cluster).map(|nodes| {
            let nodes = place_assumed(nodes, self.assumed_in(cluster));
            simulate_sets(nodes, components, general, true)
        });
        Some(clamp(accurate.map_or(general, |accurate| accurate.min(general))))
    }
}

fn clamp(replicas: i64) -> i32 {
    i32::try_from(replicas).unwrap_or(i32::MAX)
}

fn name_of(cluster: &Cluster) -> &str {
    cluster.metadata.name.as_deref().unwrap_or_default()
}

impl Estimator<'_> {
    fn nodes_of(&self, cluster: &Cluster) -> Option<&[FreeNode]> {
        self.nodes.get(name_of(cluster)).copied()
    }

    fn assumed_in(&self, cluster: &Cluster) -> &[Assumed] {
        self.assumed.get(name_of(cluster)).map_or(&[], Vec::as_slice)
    }

    /// The general estimator: the pod count, then resource models, else the summary. A summary knows no nodes, so it can't tell
    /// which of them a node claim would leave.
    fn by_summary(
        &self,
        cluster: &Cluster,
        request: Option<&Resources>,
        requirements: Option<&ReplicaRequirements>,
    ) -> i64 {
        let Some(summary) = &cluster.status.resource_summary else { return 0 };
        let assumed = self.assumed_in(cluster);
        let pods = free_pods(summary) - assumed.iter().map(|assumed| i64::from(assumed.replicas)).sum::<i64>();
        if pods <= 0 {
            return 0;
        }
        let (Some(request), Some(requirements)) = (request, requirements) else { return pods };
        if self.gates.customized_cluster_resource_modeling
            && !summary.allocatable_modelings.is_empty()
            && !cluster.spec.resource_models.is_empty()
        {
            let nodes = model_nodes(&cluster.spec.resource_models, &summary.allocatable_modelings);
            let nodes = place_assumed(&nodes, assumed);
            let mut one = request.clone();
            one.pods = 1;
            let fits: i64 = nodes.iter().map(|node| node.free.fits(&one).unwrap_or(0)).sum();
            return fits.min(pods);
        }
        by_free(summary, &requirements.resource_request, assumed).min(pods)
    }

    fn sets_by_summary(&self, cluster: &Cluster, components: &[Component]) -> i64 {
        let Some(summary) = &cluster.status.resource_summary else { return 0 };
        let assumed = self.assumed_in(cluster);
        let pods = free_pods(summary) - assumed.iter().map(|assumed| i64::from(assumed.replicas)).sum::<i64>();
        if pods <= 0 {
            return 0;
        }
        let per_set: i64 = components.iter().map(|component| i64::from(component.replicas)).sum();
        if per_set <= 0 {
            return pods;
        }
        let bound = sets_by_free(summary, components).map_or(0, |bound| bound.min(pods / per_set));
        let models = &cluster.spec.resource_models;
        let modelled = self.gates.customized_cluster_resource_modeling && !summary.allocatable_modelings.is_empty();
        if modelled && !models.is_empty() {
            let nodes = place_assumed(&model_nodes(models, &summary.allocatable_modelings), assumed);
            return simulate_sets(nodes, components, bound, false).min(bound);
        }
        bound
    }
}

fn amount(list: &ResourceList, name: &str) -> Option<Quantity> {
    list.get(name).and_then(|quantity| Quantity::parse(&quantity.0).ok())
}

fn free_pods(summary: &ResourceSummary) -> i64 {
    let pods = |list: &ResourceList| amount(list, "pods").map_or(0, |quantity| quantity.value());
    (pods(&summary.allocatable) - pods(&summary.allocated) - pods(&summary.allocating)).max(0)
}

fn free(summary: &ResourceSummary, name: &str) -> Option<Quantity> {
    let mut free = amount(&summary.allocatable, name)?;
    for taken in [&summary.allocated, &summary.allocating] {
        if let Some(taken) = amount(taken, name) {
            free -= taken;
        }
    }
    Some(free)
}

/// What is free in the whole cluster divided by one request; a resource the cluster doesn't list leaves no room.
fn by_free(summary: &ResourceSummary, request: &ResourceList, assumed: &[Assumed]) -> i64 {
    let mut most = i64::MAX;
    for name in request.keys() {
        let Some(wanted) = amount(request, name).filter(|wanted| wanted.value() > 0) else { continue };
        let Some(free) = free(summary, name) else { return 0 };
        let (wanted, free) = match name.as_str() {
            "cpu" => (wanted.milli_value(), free.milli_value()),
            _ => (wanted.value(), free.value()),
        };
        let reserved: i64 =
            assumed.iter().map(|assumed| assumed.request.get(name).saturating_mul(i64::from(assumed.replicas))).sum();
        most = most.min((free - reserved).max(0) / wanted);
    }
    most
}

/// A quantity on the scale its format suggests, the way Karmada compares component sets: decimal in thousandths,
/// binary in units.
fn on_its_scale(quantity: &Quantity) -> i64 {
    match quantity.format() {
        Format::BinarySI => quantity.value(),
        _ => quantity.milli_value(),
    }
}

/// Sets that fit into what is free; `None` when a needed resource is used up.
fn sets_by_free(summary: &ResourceSummary, components: &[Component]) -> Option<i64> {
    let mut per_set: BTreeMap<&str, i64> = BTreeMap::new();
    for component in components {
        let Some(requirements) = &component.replica_requirements else { continue };
        for name in requirements.resource_request.keys() {
            let one = amount(&requirements.resource_request, name).map_or(0, |quantity| on_its_scale(&quantity));
            *per_set.entry(name).or_default() += one * i64::from(component.replicas);
        }
    }
    let mut most = i64::MAX;
    for (name, wanted) in per_set.into_iter().filter(|(_, wanted)| *wanted > 0) {
        let free = free(summary, name).map_or(0, |quantity| on_its_scale(&quantity));
        if free <= 0 {
            return None;
        }
        most = most.min(free / wanted);
    }
    Some(most)
}

/// Nodes after the replicas promised elsewhere have been put on the first nodes that hold them.
fn place_assumed(nodes: &[FreeNode], assumed: &[Assumed]) -> Vec<FreeNode> {
    let mut nodes = nodes.to_vec();
    for promise in assumed {
        for _ in 0..promise.replicas {
            place(&mut nodes, promise.claim.as_ref(), &promise.request, true);
        }
    }
    nodes
}

/// Takes one replica's request from the first node that holds it.
fn place(nodes: &mut [FreeNode], claim: Option<&NodeClaim>, request: &Resources, check_claim: bool) -> bool {
    let no_claim = NodeClaim::default();
    let holds = |node: &&mut FreeNode| {
        node.free.fits(request).is_none_or(|fits| fits > 0)
            && (!check_claim || accepts(&node.facts, claim.unwrap_or(&no_claim)))
    };
    match nodes.iter_mut().find(holds) {
        Some(node) => {
            node.free.subtract(request);
            true
        }
        None => false,
    }
}

/// The accurate estimator: per node that accepts the claim, how often the request fits.
fn by_nodes(nodes: &[FreeNode], claim: Option<&NodeClaim>, request: &Resources) -> i64 {
    let mut one = request.clone();
    one.pods = 1;
    let no_claim = NodeClaim::default();
    nodes
        .iter()
        .filter(|node| accepts(&node.facts, claim.unwrap_or(&no_claim)))
        .map(|node| node.free.fits(&one).unwrap_or(0))
        .sum()
}

/// Whole sets placed first-fit, component by component, until one doesn't fit or `most` is reached.
fn simulate_sets(mut nodes: Vec<FreeNode>, components: &[Component], most: i64, check_claim: bool) -> i64 {
    for set in 0..most {
        for component in components {
            let requirements = component.replica_requirements.as_ref();
            let mut request =
                requirements.map(|requirements| Resources::of_list(&requirements.resource_request)).unwrap_or_default();
            request.pods = 1;
            let claim = requirements.and_then(|requirements| requirements.node_claim.as_ref());
            for _ in 0..component.replicas {
                if !place(&mut nodes, claim, &request, check_claim) {
                    return set;
                }
            }
        }
    }
    most
}

/// Whether a node may take pods with this claim.
fn accepts(node: &NodeFacts, claim: &NodeClaim) -> bool {
    let selected = claim.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
    let affine = claim.hard_node_affinity.as_ref().is_none_or(|affinity| matches_affinity(node, affinity));
    selected && affine && taints::first_untolerated(&node.taints, &claim.tolerations, taints::keeps_away).is_none()
}

fn matches_affinity(node: &NodeFacts, affinity: &NodeSelector) -> bool {
    affinity.node_selector_terms.iter().any(|term| matches_term(node, term))
}

/// A term without any requirement matches no node.
fn matches_term(node: &NodeFacts, term: &NodeSelectorTerm) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let by_label = |requirement: &NodeSelectorRequirement| {
        matches_requirement(requirement, node.labels.get(&requirement.key).map(String::as_str))
    };
    let by_field = |requirement: &NodeSelectorRequirement| {
        requirement.key == "metadata.name" && matches_requirement(requirement, Some(&node.name))
    };
    (!expressions.is_empty() || !fields.is_empty()) && expressions.iter().all(by_label) && fields.iter().all(by_field)
}

fn matches_requirement(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let contains = |value: &str| values.iter().any(|wanted| wanted == value);
    let compared = |holds: fn(i64, i64) -> bool| {
        let bound = values.first().and_then(|bound| bound.parse().ok());
        let value = value.and_then(|value| value.parse().ok());
        value.zip(bound).is_some_and(|(value, bound)| holds(value, bound))
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(contains),
        "NotIn" => value.is_none_or(|value| !contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(|value, bound| value > bound),
        "Lt" => compared(|value, bound| value < bound),
        _ => false,
    }
}
