//! The limiting factor of an estimate, for explanations.

use std::sync::Arc;

use crowsnest_api::work::ResourceBindingSpec;
use serde::Serialize;

use super::Estimator;
use super::free_capacity::{EstimateCache, FreeCapacity};
use crate::scheduling::Estimate;

/// The source of the smallest estimate for a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum LimitingFactor {
    /// Free resources of its nodes.
    Nodes,
    /// Resource models in its status.
    Models,
    /// Resource summary in its status.
    Summary,
    /// Replicas reserved for other bindings that do not run yet.
    Promised,
    /// ResourceQuotas of the namespace in the member.
    Quota,
    /// Result of the cluster's scheduler estimator.
    Estimator,
}

impl Estimator<'_> {
    /// The limiting factor for the cluster at an index. `counts_sets` is true if component sets are estimated instead
    /// of replicas, `response` is the result of the cluster's scheduler estimator. `None` for a binding without
    /// replicas.
    pub fn limiting_factor(
        &self,
        index: usize,
        spec: &ResourceBindingSpec,
        counts_sets: bool,
        response: Option<i32>,
    ) -> Option<LimitingFactor> {
        if spec.replicas == 0 && spec.components.is_empty() {
            return None;
        }
        let capacity = self.free_capacities.get(index)?;
        let estimate = |capacity: FreeCapacity| {
            let cache = EstimateCache::default();
            let estimator = Estimator { free_capacities: vec![Arc::new(capacity)], cache: &cache };
            let estimates = match counts_sets {
                true => estimator.component_sets(&[0], &spec.components, &spec.resource.namespace),
                false => estimator.replicas(&[0], spec.replica_requirements.as_ref()),
            };
            estimates.first().copied().flatten()
        };
        let replicas = estimate(capacity.as_ref().clone());
        if response.is_some_and(|response| replicas.is_none_or(|replicas| response < replicas)) {
            return Some(LimitingFactor::Estimator);
        }
        if replicas < estimate(capacity.without_reservations()) {
            return Some(LimitingFactor::Promised);
        }
        if replicas < estimate(capacity.without_quotas()) {
            return Some(LimitingFactor::Quota);
        }
        if replicas < estimate(capacity.without_nodes()) {
            return Some(LimitingFactor::Nodes);
        }
        Some(if capacity.has_models() { LimitingFactor::Models } else { LimitingFactor::Summary })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimation::capacity::{NodeFacts, free_nodes};
    use crate::estimation::free_capacity::CapacityFacts;
    use crate::estimation::ledger::Ledger;
    use crate::estimation::nodes::Nodes;
    use crate::gates::Gates;
    use crate::scheduling::ClusterFacts;
    use crowsnest_api::keys::BindingKey;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn facts(cpu: &str) -> Arc<ClusterFacts> {
        let cluster = json!({
            "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "m1"},
            "spec": {"syncMode": "Push"},
            "status": {"resourceSummary": {"allocatable": {"cpu": cpu, "pods": "110"}}},
        });
        Arc::new(ClusterFacts::new(serde_json::from_value(cluster).expect("a cluster")))
    }

    fn nodes(cpus: &[&str]) -> Nodes {
        let node = |(nth, cpu): (usize, &&str)| {
            NodeFacts::from_json(&json!({
                "metadata": {"name": format!("n{nth}")},
                "status": {
                    "allocatable": {"cpu": cpu, "pods": "110"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }))
        };
        Nodes::from(free_nodes(&cpus.iter().enumerate().map(node).collect::<Vec<_>>(), &[]))
    }

    fn spec(mut fields: Value) -> ResourceBindingSpec {
        fields["resource"] = json!({"apiVersion": "v1", "kind": "Pod", "name": "p"});
        serde_json::from_value(fields).expect("a spec")
    }

    fn replicas_with_cpu(replicas: i32, cpu: &str) -> Value {
        json!({"replicas": replicas, "replicaRequirements": {"resourceRequest": {"cpu": cpu}}})
    }

    #[rstest]
    #[case::nothing_is_needed(json!({}), &["4"], Some(0), None)]
    #[case::free_cpu_is_split_across_nodes(replicas_with_cpu(2, "3"), &["2", "2"], None, Some(LimitingFactor::Nodes))]
    #[case::nodes_and_summary_agree(replicas_with_cpu(2, "1"), &["4"], Some(4), Some(LimitingFactor::Summary))]
    #[case::the_estimator_is_smallest(replicas_with_cpu(2, "1"), &["4"], Some(3), Some(LimitingFactor::Estimator))]
    fn smallest_estimate_is_the_bound(
        #[case] fields: Value,
        #[case] cpus: &[&str],
        #[case] response: Option<i32>,
        #[case] expected: Option<LimitingFactor>,
    ) {
        let capacity_facts = CapacityFacts { nodes: Some(Arc::new(nodes(cpus))), quotas: None };
        let capacity =
            Ledger::new(Gates::default()).free_capacity(&facts("4"), &capacity_facts, &BindingKey::default());
        let cache = EstimateCache::default();
        let estimator = Estimator { free_capacities: vec![capacity], cache: &cache };
        assert_eq!(estimator.limiting_factor(0, &spec(fields), false, response), expected);
    }
}
