//! First-fit placement of pods on nodes with free resources. Nodes are either cached ones or groups of identical
//! nodes from a cluster's resource models.

use std::sync::Arc;

use crowsnest_api::cluster::{AllocatableModeling, ResourceModel};
use crowsnest_api::work::NodeClaim;
use crowsnest_apimachinery::quantity::Quantity;
use crowsnest_apimachinery::taints;
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use super::capacity::{FreeNode, NodeFacts};
use super::request::PodSet;
use super::resources::Resources;

/// A group of identical nodes.
#[derive(Debug, Clone, PartialEq)]
struct NodeGroup {
    /// `None` for the nodes of a resource model, which accept every node claim.
    facts: Option<Arc<NodeFacts>>,
    count: i64,
    free: Resources,
}

impl NodeGroup {
    fn accepts(&self, pod_set: &PodSet) -> bool {
        self.facts.as_ref().is_none_or(|facts| accepts(facts, pod_set.claim.as_ref()))
    }

    /// Number of pods that fit on one of these nodes.
    fn count_fits(&self, pod_set: &PodSet) -> i64 {
        if self.accepts(pod_set) { self.free.count_fits(&pod_set.request).unwrap_or_default() } else { 0 }
    }
}

/// Nodes of a cluster, in the order in which they are filled.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Nodes {
    groups: Vec<NodeGroup>,
}

impl FromIterator<(Arc<NodeFacts>, Resources)> for Nodes {
    fn from_iter<I: IntoIterator<Item = (Arc<NodeFacts>, Resources)>>(nodes: I) -> Self {
        let single = |(facts, free)| NodeGroup { facts: Some(facts), count: 1, free };
        Nodes { groups: nodes.into_iter().map(single).collect() }
    }
}

impl From<Vec<FreeNode>> for Nodes {
    fn from(nodes: Vec<FreeNode>) -> Self {
        nodes.into_iter().map(|node| (Arc::new(node.facts), node.free)).collect()
    }
}

impl Nodes {
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Nodes from resource models, smallest grade first: the reported number of nodes, each with the minimum of its
    /// grade.
    pub fn from_models(models: &[ResourceModel], counts: &[AllocatableModeling]) -> Self {
        const PODS_PER_NODE: i64 = 110;
        let mut models: Vec<&ResourceModel> = models.iter().collect();
        models.sort_by_key(|model| model.grade);
        let of_model = |model: &&ResourceModel| {
            let mut free = Resources { pods: PODS_PER_NODE, ..Resources::default() };
            for range in &model.ranges {
                if let Ok(minimum) = Quantity::parse(&range.min.0) {
                    free.add_quantity(&range.name, &minimum);
                }
            }
            let count = counts.iter().filter(|count| count.grade == model.grade).map(|count| count.count).sum();
            NodeGroup { facts: None, count, free }
        };
        Nodes { groups: models.iter().map(of_model).filter(|group| group.count > 0).collect() }
    }

    /// Number of pods that fit, summed over the nodes that accept the node claim.
    pub fn replicas(&self, pod_set: &PodSet) -> i64 {
        let count_pods = |group: &NodeGroup| group.count_fits(pod_set).saturating_mul(group.count);
        self.groups.iter().map(count_pods).fold(0, i64::saturating_add)
    }

    /// Places pods first-fit. Pods that fit on no node are ignored.
    pub fn place_pods(&mut self, pod_set: &PodSet, mut pods: i64) {
        let mut index = 0;
        while pods > 0 && index < self.groups.len() {
            let group = &self.groups[index];
            let pods_per_full_node = group.count_fits(pod_set);
            if pods_per_full_node <= 0 {
                index += 1;
                continue;
            }
            // Either several nodes are filled, or the remaining pods are placed on one node.
            let full_nodes = (pods / pods_per_full_node).min(group.count);
            let (nodes, pods_per_node) = if full_nodes > 0 { (full_nodes, pods_per_full_node) } else { (1, pods) };
            self.split(index, nodes);
            self.groups[index].free.subtract_times(&pod_set.request, pods_per_node);
            pods -= nodes.saturating_mul(pods_per_node);
            index += 1;
        }
    }

    /// Splits off the first `count` nodes of a group.
    fn split(&mut self, index: usize, count: i64) {
        let rest = self.groups[index].count - count;
        if rest > 0 {
            let first = NodeGroup { count, ..self.groups[index].clone() };
            self.groups[index].count = rest;
            self.groups.insert(index, first);
        }
    }

    /// Number of whole component sets that fit, placed component by component, up to `limit`.
    pub fn sets(&self, pod_sets: &[PodSet], limit: i64) -> i64 {
        if pod_sets.iter().all(|pod_set| pod_set.replicas <= 0) {
            return limit;
        }
        let mut placement = SetPlacement::new(self, pod_sets);
        let mut sets = 0;
        while sets < limit {
            let Some(placed) = placement.place_set() else { break };
            sets += 1;
            sets += placement.repeat(&placed, limit - sets);
        }
        sets
    }
}

/// State while sets are placed. Free resources only shrink, so a node without room for a pod of a pod set never has room
/// again, and each pod set continues at its last node.
struct SetPlacement<'a> {
    pod_sets: &'a [PodSet],
    facts: Vec<Option<&'a NodeFacts>>,
    free: Vec<Resources>,
    /// Index of the current node of each pod set.
    current_nodes: Vec<usize>,
}

/// Placement of the last set.
struct PlacedSet {
    /// Resources taken, by node index.
    used: Vec<(usize, Resources)>,
    /// True if a node became too full for the next pod of its pod set, so that the next set is placed differently.
    has_filled_node: bool,
}

impl<'a> SetPlacement<'a> {
    fn new(nodes: &'a Nodes, pod_sets: &'a [PodSet]) -> Self {
        let single = |group: &'a NodeGroup| {
            let count = usize::try_from(group.count).unwrap_or_default();
            std::iter::repeat_n((group.facts.as_deref(), &group.free), count)
        };
        let (facts, free) = nodes.groups.iter().flat_map(single).map(|(facts, free)| (facts, free.clone())).unzip();
        SetPlacement { pod_sets, facts, free, current_nodes: vec![0; pod_sets.len()] }
    }

    /// Places one more set. `None` if it does not fit.
    fn place_set(&mut self) -> Option<PlacedSet> {
        let mut placed = PlacedSet { used: Vec::new(), has_filled_node: false };
        for (nth, pod_set) in self.pod_sets.iter().enumerate() {
            let mut remaining = i64::from(pod_set.replicas);
            while remaining > 0 {
                let index = self.current_nodes[nth];
                let free = self.free.get_mut(index)?;
                let is_accepted = self.facts[index].is_none_or(|facts| accepts(facts, pod_set.claim.as_ref()));
                let max_pods = if is_accepted { free.count_fits(&pod_set.request).unwrap_or_default() } else { 0 };
                let count = max_pods.min(remaining);
                if count > 0 {
                    free.subtract_times(&pod_set.request, count);
                    placed.add(index, &pod_set.request, count);
                    remaining -= count;
                    placed.has_filled_node |= remaining > 0;
                }
                if remaining > 0 {
                    self.current_nodes[nth] = index + 1;
                }
            }
        }
        Some(placed)
    }

    /// Places further sets exactly like the last one while they fit. Returns their number.
    fn repeat(&mut self, placed: &PlacedSet, limit: i64) -> i64 {
        if placed.has_filled_node {
            return 0;
        }
        let counts = placed.used.iter().map(|(index, used)| self.free[*index].count_fits(used).unwrap_or(limit));
        let times = counts.min().unwrap_or_default().min(limit);
        for (index, used) in &placed.used {
            self.free[*index].subtract_times(used, times);
        }
        times
    }
}

impl PlacedSet {
    fn add(&mut self, index: usize, request: &Resources, times: i64) {
        match self.used.iter_mut().find(|(node, _)| *node == index) {
            Some((_, used)) => used.add_times(request, times),
            None => {
                let mut used = Resources::default();
                used.add_times(request, times);
                self.used.push((index, used));
            }
        }
    }
}

/// True if a node accepts pods with this node claim. Without a claim, no taint is tolerated.
fn accepts(node: &NodeFacts, claim: Option<&NodeClaim>) -> bool {
    let tolerations = claim.map_or(&[][..], |claim| &claim.tolerations);
    let tolerated =
        || taints::first_untolerated_taint(&node.taints, tolerations, taints::prevents_scheduling).is_none();
    let Some(claim) = claim else { return tolerated() };
    let selected = claim.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
    let affine = || claim.hard_node_affinity.as_ref().is_none_or(|affinity| matches_affinity(node, affinity));
    selected && affine() && tolerated()
}

fn matches_affinity(node: &NodeFacts, affinity: &NodeSelector) -> bool {
    affinity.node_selector_terms.iter().any(|term| matches_term(node, term))
}

/// An empty term matches no node.
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
    let contains = |value: &str| values.iter().any(|candidate| candidate == value);
    let compared = |is_satisfied: fn(i64, i64) -> bool| {
        let bound = values.first().and_then(|bound| bound.parse().ok());
        let value = value.and_then(|value| value.parse().ok());
        value.zip(bound).is_some_and(|(value, bound)| is_satisfied(value, bound))
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
