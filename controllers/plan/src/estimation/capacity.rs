//! Facts about a member's nodes and pods: input of estimates and of the resource summary in the Cluster's status.

use std::collections::BTreeMap;

use crowsnest_api::cluster::{AllocatableModeling, NodeSummary, ResourceModel, ResourceSummary};
use crowsnest_apimachinery::quantity::Quantity;
use crowsnest_apimachinery::unstructured;
use k8s_openapi::api::core::v1::Taint;
use serde_json::Value;

use super::resources::{Resources, pod_request};

/// The facts of a node that decide if a pod fits.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeFacts {
    pub name: String,
    pub is_ready: bool,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub allocatable: Resources,
}

impl NodeFacts {
    pub fn from_json(node: &Value) -> Self {
        let condition = |condition: &&Value| unstructured::text(condition, &["type"]) == "Ready";
        let conditions = unstructured::at(node, &["status", "conditions"]).and_then(Value::as_array);
        let ready = conditions.into_iter().flatten().find(condition);
        let mut taints: Vec<Taint> = unstructured::at(node, &["spec", "taints"])
            .and_then(|taints| serde_json::from_value(taints.clone()).ok())
            .unwrap_or_default();
        if unstructured::at(node, &["spec", "unschedulable"]).and_then(Value::as_bool).unwrap_or_default() {
            let key = "node.kubernetes.io/unschedulable".to_owned();
            taints.push(Taint { key, effect: "NoSchedule".to_owned(), ..Taint::default() });
        }
        NodeFacts {
            name: unstructured::name(node).to_owned(),
            is_ready: ready.is_some_and(|condition| unstructured::text(condition, &["status"]) == "True"),
            labels: unstructured::labels(node),
            taints,
            allocatable: Resources::from_json(unstructured::at(node, &["status", "allocatable"])),
        }
    }
}

/// The requests of a pod, and its node.
#[derive(Debug, Clone, PartialEq)]
pub struct PodFacts {
    /// Name of its node. Empty until the pod is scheduled.
    pub node: String,
    /// True if its phase is Succeeded or Failed.
    pub is_finished: bool,
    /// Requests, with 1 in `pods`.
    pub request: Resources,
}

impl PodFacts {
    pub fn from_json(pod: &Value) -> Self {
        let mut request = pod.get("spec").map(|spec| pod_request(spec, false)).unwrap_or_default();
        request.pods = 1;
        PodFacts {
            node: unstructured::text(pod, &["spec", "nodeName"]).to_owned(),
            is_finished: matches!(unstructured::text(pod, &["status", "phase"]), "Succeeded" | "Failed"),
            request,
        }
    }

    /// True if the pod's requests count against its node. A terminating pod counts until it is deleted.
    pub fn counts_against_node(&self) -> bool {
        !self.node.is_empty() && !self.is_finished
    }
}

/// A node and its free resources.
#[derive(Debug, Clone, PartialEq)]
pub struct FreeNode {
    pub facts: NodeFacts,
    pub free: Resources,
}

/// Free resources per node, in the given order: allocatable less the requests of unfinished pods.
pub fn free_nodes(nodes: &[NodeFacts], pods: &[PodFacts]) -> Vec<FreeNode> {
    let mut used: BTreeMap<&str, Resources> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pod.counts_against_node()) {
        used.entry(pod.node.as_str()).or_default().add(&pod.request);
    }
    nodes
        .iter()
        .map(|facts| {
            let mut free = facts.allocatable.clone();
            if let Some(used) = used.get(facts.name.as_str()) {
                free.subtract(used);
            }
            FreeNode { facts: facts.clone(), free }
        })
        .collect()
}

/// Number of all nodes and of ready nodes.
pub fn node_summary<'a>(nodes: impl Iterator<Item = &'a NodeFacts>) -> NodeSummary {
    let mut summary = NodeSummary::default();
    for node in nodes {
        summary.total_num = summary.total_num.saturating_add(1);
        summary.ready_num = summary.ready_num.saturating_add(i32::from(node.is_ready));
    }
    summary
}

/// Allocatable resources of a node, in the quantity format of the node.
#[derive(Debug, Clone, Default)]
pub struct FormattedAllocatable(Vec<(String, Quantity)>);

impl FormattedAllocatable {
    pub fn from_node(node: &Value) -> Self {
        let list = unstructured::at(node, &["status", "allocatable"]).and_then(Value::as_object);
        let read = |(name, value): (&String, &Value)| Some((name.clone(), Quantity::parse(value.as_str()?).ok()?));
        FormattedAllocatable(list.into_iter().flatten().filter_map(read).collect())
    }
}

/// Quantities of equal value in different formats are different.
impl PartialEq for FormattedAllocatable {
    fn eq(&self, other: &Self) -> bool {
        let same = |(left, right): (&(String, Quantity), &(String, Quantity))| {
            left == right && left.1.format() == right.1.format()
        };
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(same)
    }
}

/// Resource summary: allocatable as the nodes format it, requests of unscheduled pods (allocating) and of scheduled
/// pods (allocated), and the number of nodes per resource model. `free` has the free resources of each node, in the
/// nodes' order.
pub fn resource_summary<'a>(
    allocatable: impl Iterator<Item = &'a FormattedAllocatable>,
    pods: impl Iterator<Item = &'a PodFacts>,
    free: impl Iterator<Item = &'a Resources>,
    models: &[ResourceModel],
) -> ResourceSummary {
    let (mut allocating, mut allocated) = (Resources::default(), Resources::default());
    for pod in pods {
        if pod.node.is_empty() {
            allocating.add(&pod.request);
        } else if pod.counts_against_node() {
            allocated.add(&pod.request);
        }
    }
    ResourceSummary {
        allocatable: sum_formatted(allocatable),
        allocating: allocating.to_list(),
        allocated: allocated.to_list(),
        allocatable_modelings: count_modelings(models, free),
    }
}

fn sum_formatted<'a>(lists: impl Iterator<Item = &'a FormattedAllocatable>) -> crowsnest_api::policy::ResourceList {
    let mut sums: BTreeMap<&str, Quantity> = BTreeMap::new();
    for (name, quantity) in lists.flat_map(|list| &list.0) {
        match sums.get_mut(name.as_str()) {
            Some(sum) => *sum += *quantity,
            None => {
                sums.insert(name, *quantity);
            }
        }
    }
    sums.into_iter().map(|(name, quantity)| (name.to_owned(), quantity.into())).collect()
}

/// Nodes per grade. As in Karmada, counting stops at the first node without a free pod slot.
fn count_modelings<'a>(
    models: &[ResourceModel],
    free: impl Iterator<Item = &'a Resources>,
) -> Vec<AllocatableModeling> {
    let mut counts = vec![0_i64; models.len()];
    for free in free.take_while(|free| free.pods > 0) {
        if let Some(count) = find_model(models, free).and_then(|index| counts.get_mut(index)) {
            *count += 1;
        }
    }
    models.iter().zip(counts).map(|(model, count)| AllocatableModeling { grade: model.grade, count }).collect()
}

/// Index of the resource model of a node: for each resource, the highest model whose minimum the node reaches; of
/// these, the lowest.
fn find_model(models: &[ResourceModel], free: &Resources) -> Option<usize> {
    let names = models.first()?.ranges.iter().map(|range| range.name.as_str());
    let class = |name: &str| {
        let reaches = |model: &ResourceModel| {
            let range = model.ranges.iter().find(|range| range.name == name);
            range.is_some_and(|range| minimum(name, &range.min.0) <= free.get(name))
        };
        models.iter().rposition(reaches)
    };
    names.map(class).min().flatten()
}

fn minimum(name: &str, text: &str) -> i64 {
    let mut resources = Resources::default();
    if let Ok(quantity) = Quantity::parse(text) {
        resources.add_quantity(name, &quantity);
    }
    resources.get(name)
}
