//! What an estimate is bounded by, for whoever wants to know why a cluster takes no more.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::work::ResourceBindingSpec;
use serde::Serialize;

use super::Estimator;
use crate::plan::scheduling::Estimate;

/// The part of what is known of a cluster that leaves the least room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Bound {
    /// What its nodes have left, one by one.
    Nodes,
    /// The grades of nodes in its status.
    Models,
    /// The sum of what is free in its status.
    Summary,
    /// Replicas promised to others that its pods do not show yet.
    Promised,
}

impl Estimator<'_> {
    /// What bounds the estimate of a cluster; `None` for a binding that needs no room.
    pub fn bound(&self, cluster: &Cluster, spec: &ResourceBindingSpec, sets: bool) -> Option<Bound> {
        if spec.replicas == 0 && spec.components.is_empty() {
            return None;
        }
        let ask = |estimator: &Estimator<'_>| match sets {
            true => estimator.component_sets(cluster, &spec.components, &spec.resource.namespace),
            false => estimator.replicas(cluster, spec.replica_requirements.as_ref()),
        };
        let whole = ask(self);
        let mut unpromised = self.clone();
        unpromised.assumed.clear();
        if whole < ask(&unpromised) {
            return Some(Bound::Promised);
        }
        let mut general = self.clone();
        general.nodes.clear();
        if whole < ask(&general) {
            return Some(Bound::Nodes);
        }
        let summary = cluster.status.resource_summary.as_ref();
        let modelled = self.gates.customized_cluster_resource_modeling
            && !cluster.spec.resource_models.is_empty()
            && summary.is_some_and(|summary| !summary.allocatable_modelings.is_empty());
        Some(if modelled { Bound::Models } else { Bound::Summary })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::estimation::Assumed;
    use crate::plan::estimation::capacity::{FreeNode, NodeFacts, free_nodes};
    use crate::plan::estimation::resources::Resources;
    use crate::plan::gates::Gates;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn cluster(cpu: &str) -> Cluster {
        serde_json::from_value(json!({
            "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "m1"},
            "spec": {"syncMode": "Push"},
            "status": {"resourceSummary": {"allocatable": {"cpu": cpu, "pods": "110"}}},
        }))
        .expect("a cluster")
    }

    fn nodes(cpus: &[&str]) -> Vec<FreeNode> {
        let node = |(nth, cpu): (usize, &&str)| {
            NodeFacts::of(&json!({
                "metadata": {"name": format!("n{nth}")},
                "status": {
                    "allocatable": {"cpu": cpu, "pods": "110"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }))
        };
        free_nodes(&cpus.iter().enumerate().map(node).collect::<Vec<_>>(), &[])
    }

    #[rstest]
    #[case::nothing_is_needed(json!({}), &["4"], 0, None)]
    #[case::three_halves_do_not_add_up(json!({"replicas": 2, "replicaRequirements": {"resourceRequest": {"cpu": "3"}}}), &["2", "2"], 0, Some(Bound::Nodes))]
    #[case::the_sum_is_what_nodes_say(json!({"replicas": 2, "replicaRequirements": {"resourceRequest": {"cpu": "1"}}}), &["4"], 0, Some(Bound::Summary))]
    #[case::given_away(json!({"replicas": 2, "replicaRequirements": {"resourceRequest": {"cpu": "1"}}}), &["4"], 3, Some(Bound::Promised))]
    fn the_least_room_counts(
        #[case] mut spec: Value,
        #[case] cpus: &[&str],
        #[case] promised: i32,
        #[case] expected: Option<Bound>,
    ) {
        spec["resource"] = json!({"apiVersion": "v1", "kind": "Pod", "name": "p"});
        let spec: ResourceBindingSpec = serde_json::from_value(spec).expect("a spec");
        let nodes = nodes(cpus);
        let mut estimator =
            Estimator { gates: Gates::default(), nodes: [("m1", nodes.as_slice())].into(), ..Estimator::default() };
        if promised > 0 {
            let list = serde_json::from_value(json!({"cpu": "1", "pods": "1"})).expect("a list");
            let one = Assumed { claim: None, request: Resources::of_list(&list), replicas: promised };
            estimator.assumed.insert("m1", vec![one]);
        }
        assert_eq!(estimator.bound(&cluster("4"), &spec, false), expected);
    }
}
