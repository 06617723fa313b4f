//! What a member's nodes and pods say about its capacity: the facts estimates are made of, and the summary written
//! to the Cluster's status.

use std::collections::BTreeMap;

use crowsnest_api::cluster::{AllocatableModeling, NodeSummary, ResourceModel, ResourceSummary};
use crowsnest_api::quantity::Quantity;
use k8s_openapi::api::core::v1::Taint;
use serde_json::Value;

use super::resources::{Resources, pod_request};
use crate::plan::object;

/// A node, reduced to what decides whether a pod fits.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeFacts {
    pub name: String,
    pub ready: bool,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub allocatable: Resources,
}

impl NodeFacts {
    pub fn of(node: &Value) -> Self {
        let condition = |condition: &&Value| object::text(condition, &["type"]) == "Ready";
        let conditions = object::at(node, &["status", "conditions"]).and_then(Value::as_array);
        let ready = conditions.into_iter().flatten().find(condition);
        let mut taints: Vec<Taint> = object::at(node, &["spec", "taints"])
            .and_then(|taints| serde_json::from_value(taints.clone()).ok())
            .unwrap_or_default();
        if object::at(node, &["spec", "unschedulable"]).and_then(Value::as_bool).unwrap_or_default() {
            let key = "node.kubernetes.io/unschedulable".to_owned();
            taints.push(Taint { key, effect: "NoSchedule".to_owned(), ..Taint::default() });
        }
        NodeFacts {
            name: object::name(node).to_owned(),
            ready: ready.is_some_and(|condition| object::text(condition, &["status"]) == "True"),
            labels: object::labels(node),
            taints,
            allocatable: Resources::of_json(object::at(node, &["status", "allocatable"])),
        }
    }
}

/// A pod, reduced to what it takes and where.
#[derive(Debug, Clone, PartialEq)]
pub struct PodFacts {
    /// Empty while the pod has no node.
    pub node: String,
    pub finished: bool,
    /// The request, with 1 in `pods`.
    pub request: Resources,
}

impl PodFacts {
    pub fn of(pod: &Value) -> Self {
        let mut request = pod.get("spec").map(|spec| pod_request(spec, false)).unwrap_or_default();
        request.pods = 1;
        PodFacts {
            node: object::text(pod, &["spec", "nodeName"]).to_owned(),
            finished: matches!(object::text(pod, &["status", "phase"]), "Succeeded" | "Failed"),
            request,
        }
    }

    /// Whether its request is taken from a node. A pod that is going still takes it, until it is gone.
    pub fn takes_room(&self) -> bool {
        !self.node.is_empty() && !self.finished
    }
}

/// A node with what its pods leave.
#[derive(Debug, Clone, PartialEq)]
pub struct FreeNode {
    pub facts: NodeFacts,
    pub free: Resources,
}

/// Nodes in the order given, less what their unfinished pods ask for.
pub fn free_nodes(nodes: &[NodeFacts], pods: &[PodFacts]) -> Vec<FreeNode> {
    let mut used: BTreeMap<&str, Resources> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pod.takes_room()) {
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

pub fn node_summary(nodes: &[NodeFacts]) -> NodeSummary {
    let count = |nodes: usize| i32::try_from(nodes).unwrap_or(i32::MAX);
    NodeSummary { total_num: count(nodes.len()), ready_num: count(nodes.iter().filter(|node| node.ready).count()) }
}

/// Allocatable of all nodes as the nodes write it, what unscheduled pods ask for, what scheduled ones take, and how
/// many nodes of each grade are left. `allocatable` holds every node's list as read.
pub fn resource_summary(
    allocatable: &[&Value],
    nodes: &[NodeFacts],
    pods: &[PodFacts],
    models: &[ResourceModel],
) -> ResourceSummary {
    let total = |wanted: fn(&&PodFacts) -> bool| {
        let mut total = Resources::default();
        pods.iter().filter(wanted).for_each(|pod| total.add(&pod.request));
        total.to_list()
    };
    ResourceSummary {
        allocatable: sum_as_written(allocatable),
        allocating: total(|pod| pod.node.is_empty()),
        allocated: total(|pod| pod.takes_room()),
        allocatable_modelings: modelings(models, &free_nodes(nodes, pods)),
    }
}

fn sum_as_written(lists: &[&Value]) -> crowsnest_api::policy::ResourceList {
    let mut sums: BTreeMap<String, Quantity> = BTreeMap::new();
    for (name, value) in lists.iter().filter_map(|list| list.as_object()).flatten() {
        let Some(quantity) = value.as_str().and_then(|text| Quantity::parse(text).ok()) else { continue };
        match sums.get_mut(name) {
            Some(sum) => *sum += quantity,
            None => {
                sums.insert(name.clone(), quantity);
            }
        }
    }
    sums.into_iter().map(|(name, quantity)| (name, quantity.into())).collect()
}

/// Nodes per grade. Counting stops at the first node without a free pod slot, as Karmada's does.
fn modelings(models: &[ResourceModel], nodes: &[FreeNode]) -> Vec<AllocatableModeling> {
    let mut counts = vec![0_i64; models.len()];
    for node in nodes.iter().take_while(|node| node.free.pods > 0) {
        if let Some(count) = grade_of(models, node).and_then(|index| counts.get_mut(index)) {
            *count += 1;
        }
    }
    models.iter().zip(counts).map(|(model, count)| AllocatableModeling { grade: model.grade, count }).collect()
}

/// The lowest class, over all resources, whose minimum the node still reaches.
fn grade_of(models: &[ResourceModel], node: &FreeNode) -> Option<usize> {
    let names = models.first()?.ranges.iter().map(|range| range.name.as_str());
    let class = |name: &str| {
        let reaches = |model: &ResourceModel| {
            let range = model.ranges.iter().find(|range| range.name == name);
            range.is_some_and(|range| minimum(name, &range.min.0) <= node.free.get(name))
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
