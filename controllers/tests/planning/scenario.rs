//! Conversion from fixtures to the planner's types: members of a fleet, and queries of the scheduler or the
//! estimator.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::keys::BindingKey;
use crowsnest_api::work::{Component, ReplicaRequirements, ResourceBindingSpec, ResourceBindingStatus};
use crowsnest_plan::estimation::Estimator;
use crowsnest_plan::estimation::capacity::{NodeFacts, PodFacts, free_nodes};
use crowsnest_plan::estimation::free_capacity::{CapacityFacts, EstimateCache};
use crowsnest_plan::estimation::ledger::Ledger;
use crowsnest_plan::estimation::nodes::Nodes;
use crowsnest_plan::gates::Gates;
use crowsnest_plan::scheduling::{
    Binding, ClusterFacts, Estimate, NoopObserver, Peer, Plan, Plugins, Report, SchedulingContext, explain,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// A member as described in a fixture.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Member {
    /// Number of replicas that still fit. `None` if unknown.
    pub free_replicas: Option<i32>,
    pub labels: BTreeMap<String, String>,
    pub provider: String,
    pub region: String,
    pub zones: Vec<String>,
    pub taints: Vec<Value>,
    /// True if it does not serve the template's kind.
    pub lacks_kind: bool,
    pub terminating: bool,
}

impl Member {
    fn facts(&self, name: &str) -> Arc<ClusterFacts> {
        let enablements = match self.lacks_kind {
            true => json!([{"groupVersion": "v1", "resources": [{"name": "pods", "kind": "Pod"}]}]),
            false => json!([{"groupVersion": "apps/v1", "resources": [{"name": "deployments", "kind": "Deployment"}]}]),
        };
        let mut cluster = json!({
            "metadata": {"name": name, "labels": self.labels},
            "spec": {
                "syncMode": "Push", "provider": self.provider, "region": self.region, "zones": self.zones,
                "taints": self.taints,
            },
            "status": {"apiEnablements": enablements},
        });
        if self.terminating {
            cluster["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        Arc::new(ClusterFacts::new(serde_json::from_value(cluster).expect("a cluster")))
    }
}

/// An estimator with fixed results, by index of the clusters.
struct FixedEstimates(Vec<Option<i32>>);

impl Estimate for FixedEstimates {
    fn replicas(&self, cluster_indexes: &[usize], _: Option<&ReplicaRequirements>) -> Vec<Option<i32>> {
        cluster_indexes.iter().map(|index| self.0.get(*index).copied().flatten()).collect()
    }

    fn component_sets(&self, cluster_indexes: &[usize], _: &[Component], _: &str) -> Vec<Option<i32>> {
        self.replicas(cluster_indexes, None)
    }
}

/// A binding and the members, in the given order.
pub struct SchedulingScenario<'a> {
    pub members: Vec<(&'a str, &'a Member)>,
    pub spec: &'a ResourceBindingSpec,
    pub status: &'a ResourceBindingStatus,
    /// The placement of the last decision, as in the annotation.
    pub applied: Option<&'a str>,
    pub peers: &'a [Peer],
    pub gates: Gates,
    pub propagate_empty: bool,
}

impl SchedulingScenario<'_> {
    pub fn decide(&self) -> (Plan, Report) {
        let clusters: Vec<_> = self.members.iter().map(|(name, member)| member.facts(name)).collect();
        let estimates = FixedEstimates(self.members.iter().map(|(_, member)| member.free_replicas).collect());
        let context = SchedulingContext {
            clusters: &clusters,
            estimate: &estimates,
            peers: self.peers,
            gates: self.gates,
            plugins: Plugins::default(),
            propagate_empty_workloads: self.propagate_empty,
            observer: &NoopObserver,
        };
        let (spec, status) = (self.spec, self.status);
        explain(&context, &Binding { generation: 1, applied_placement: self.applied, spec, status })
    }
}

/// Number of replicas, or of sets of components if given, that still fit into a cluster. `known` contains its nodes
/// and pods, if known.
pub fn fits(
    cluster: &Cluster,
    known: Option<(&[NodeFacts], &[PodFacts])>,
    requirements: Option<&ReplicaRequirements>,
    components: &[Component],
) -> Option<i32> {
    let nodes = known.map(|(nodes, pods)| Arc::new(Nodes::from(free_nodes(nodes, pods))));
    let facts = Arc::new(ClusterFacts::new(cluster.clone()));
    let capacity = Ledger::new(Gates::default()).free_capacity(
        &facts,
        &CapacityFacts { nodes, quotas: None },
        &BindingKey::default(),
    );
    let cache = EstimateCache::default();
    let estimator = Estimator { free_capacities: vec![capacity], cache: &cache };
    let fits = match components {
        [] => estimator.replicas(&[0], requirements),
        components => estimator.component_sets(&[0], components, "shop"),
    };
    fits.first().copied().flatten()
}
