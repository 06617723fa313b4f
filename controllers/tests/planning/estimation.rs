//! Number of replicas, or of sets of components, that still fit into a cluster.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::work::{Component, ReplicaRequirements};
use crowsnest_plan::estimation::capacity::{
    FormattedAllocatable, NodeFacts, PodFacts, free_nodes, node_summary, resource_summary,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::scenario::fits;
use super::{case_results, cases};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CapacityCase {
    #[serde(default)]
    status: Value,
    #[serde(default)]
    models: Value,
    #[serde(default)]
    requirements: Option<ReplicaRequirements>,
    /// Components of a set. If given, sets are estimated instead of replicas.
    #[serde(default)]
    components: Vec<Component>,
    /// Nodes of the cluster. `None` if nodes and pods are unknown.
    #[serde(default)]
    nodes: Option<Vec<Value>>,
    #[serde(default)]
    pods: Vec<Value>,
    expected: i32,
}

#[test]
fn replicas_that_fit() {
    let mut failures = Vec::new();
    for (name, case) in cases::<CapacityCase>(include_str!("fixtures/capacity.yaml")) {
        let mut cluster = json!({"metadata": {"name": "m1"}, "spec": {"syncMode": "Push"}, "status": case.status});
        if case.status.is_null() {
            cluster["status"] = json!({});
        }
        if !case.models.is_null() {
            cluster["spec"]["resourceModels"] = case.models;
        }
        let cluster: Cluster = serde_json::from_value(cluster).unwrap_or_else(|error| panic!("{name}: {error}"));
        let nodes: Option<Vec<NodeFacts>> =
            case.nodes.as_ref().map(|nodes| nodes.iter().map(NodeFacts::from_json).collect());
        let pods: Vec<PodFacts> = case.pods.iter().map(PodFacts::from_json).collect();
        let facts = nodes.as_deref().map(|nodes| (nodes, &*pods));
        let fits = fits(&cluster, facts, case.requirements.as_ref(), &case.components);
        if fits != Some(case.expected) {
            failures.push(format!("{name}: is {fits:?}, should be {}", case.expected));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SummaryCase {
    nodes: Vec<Value>,
    #[serde(default)]
    pods: Vec<Value>,
    #[serde(default)]
    models: Value,
}

#[test]
fn summaries() {
    insta::assert_yaml_snapshot!(case_results(include_str!("fixtures/summaries.yaml"), |case: SummaryCase| {
        let models = match case.models {
            Value::Null => Vec::new(),
            models => serde_json::from_value(models).expect("models"),
        };
        let nodes: Vec<NodeFacts> = case.nodes.iter().map(NodeFacts::from_json).collect();
        let pods: Vec<PodFacts> = case.pods.iter().map(PodFacts::from_json).collect();
        let allocatable: Vec<FormattedAllocatable> = case.nodes.iter().map(FormattedAllocatable::from_node).collect();
        let free = free_nodes(&nodes, &pods);
        let free = free.iter().map(|node| &node.free);
        let resources = resource_summary(allocatable.iter(), pods.iter(), free, &models);
        json!({"nodes": node_summary(nodes.iter()), "resources": resources})
    }));
}
