//! Estimates of a scheduler estimator for its cluster: the smaller of what fits on the nodes and what quotas allow.
//! There is no Cluster object, hence no resource summary and no resource models; the client passes assumed workloads.

use crowsnest_api::work::{Component, ReplicaRequirements};

use super::free_capacity::CapacityFacts;
use super::ledger::Reservation;
use super::request::EstimateRequest;

/// Number of replicas that fit. 0 while the facts contain no nodes.
pub fn replicas(facts: &CapacityFacts, requirements: Option<&ReplicaRequirements>, assumed: &[Reservation]) -> i32 {
    let namespace = requirements.map_or("", |requirements| requirements.namespace.as_str());
    estimate(facts, &EstimateRequest::for_replicas(requirements), namespace, assumed, |nodes, request| {
        request.pod_sets.iter().map(|pod_set| nodes.replicas(pod_set)).sum()
    })
}

/// Number of component sets that fit. 0 while the facts contain no nodes.
pub fn component_sets(
    facts: &CapacityFacts,
    components: &[Component],
    namespace: &str,
    assumed: &[Reservation],
) -> i32 {
    estimate(facts, &EstimateRequest::for_component_sets(components), namespace, assumed, |nodes, request| {
        nodes.sets(&request.pod_sets, i64::from(i32::MAX))
    })
}

fn estimate(
    facts: &CapacityFacts,
    request: &EstimateRequest,
    namespace: &str,
    assumed: &[Reservation],
    count_fitting: impl FnOnce(&super::nodes::Nodes, &EstimateRequest) -> i64,
) -> i32 {
    let Some(nodes) = facts.nodes.as_deref().filter(|nodes| !nodes.is_empty()) else { return 0 };
    let fitting = match assumed {
        [] => count_fitting(nodes, request),
        assumed => {
            let mut remaining = nodes.clone();
            for (pod_set, pods) in assumed.iter().flat_map(Reservation::pod_sets) {
                remaining.place_pods(pod_set, i64::from(pods));
            }
            count_fitting(&remaining, request)
        }
    };
    let allowed = facts.quotas.as_ref().and_then(|quotas| quotas.limit(request, namespace, assumed.iter()));
    i32::try_from(fitting.min(allowed.unwrap_or(i64::MAX))).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::estimation::capacity::{NodeFacts, PodFacts, free_nodes};
    use crate::estimation::nodes::Nodes;
    use crate::estimation::quotas::{QuotaFacts, Quotas};
    use rstest::rstest;
    use serde_json::{Value, json};

    fn node(name: &str, labels: Value, taints: Value) -> NodeFacts {
        NodeFacts::from_json(&json!({
            "metadata": {"name": name, "labels": labels}, "spec": {"taints": taints},
            "status": {"allocatable": {"cpu": "8", "memory": "16", "pods": "11"}},
        }))
    }

    fn pod(node: &str, cpu: &str, memory: &str) -> PodFacts {
        PodFacts::from_json(&json!({"spec": {"nodeName": node, "containers": [
            {"resources": {"requests": {"cpu": cpu, "memory": memory}}},
        ]}}))
    }

    /// The three nodes of Karmada's own test table. Free: 2 cpu, 6 memory, 8 pods on the first; 3, 5 and 9 on the
    /// second; everything on the third.
    fn karmadas_nodes() -> Nodes {
        let tainted = json!([{"key": "key1", "value": "value1", "effect": "NoSchedule"}]);
        let nodes = [
            node("machine1", json!({"a": "1"}), tainted),
            node("machine2", json!({"a": "3", "b": "2"}), json!([])),
            node("machine3", json!({}), json!([])),
        ];
        let pods = [
            pod("machine1", "1", "3"),
            pod("machine1", "3", "3"),
            pod("machine1", "2", "4"),
            pod("machine2", "4", "8"),
            pod("machine2", "1", "3"),
        ];
        Nodes::from(free_nodes(&nodes, &pods))
    }

    fn quota(hard: &str, used: &str) -> Arc<Quotas> {
        let quota = json!({"spec": {}, "status": {"hard": {"cpu": hard}, "used": {"cpu": used}}});
        let mut quotas = Quotas::default();
        let in_namespace = quotas.namespaces.entry("team".to_owned()).or_default();
        in_namespace.insert("q".to_owned(), QuotaFacts::from_json(&quota));
        Arc::new(quotas)
    }

    fn requirements_with_claim(claim: Value) -> Option<ReplicaRequirements> {
        let mut requirements = json!({"resourceRequest": {"cpu": "1", "memory": "2"}, "namespace": "team"});
        if !claim.is_null() {
            requirements["nodeClaim"] = claim;
        }
        Some(serde_json::from_value(requirements).expect("requirements"))
    }

    fn tolerant() -> Value {
        json!({"tolerations": [{"key": "key1", "operator": "Equal", "value": "value1"}]})
    }

    #[rstest]
    #[case::untolerated_taint(requirements_with_claim(Value::Null), None, 10)]
    #[case::tolerated_taint(requirements_with_claim(tolerant()), None, 12)]
    #[case::node_selector(requirements_with_claim(json!({"nodeSelector": {"a": "3"}})), None, 2)]
    #[case::node_affinity(requirements_with_claim(json!({
        "hardNodeAffinity": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["0"]}]}]},
        "tolerations": [{"operator": "Exists"}],
    })), None, 4)]
    #[case::without_requirements_pod_slots_count(None, None, 20)]
    #[case::quota_is_smaller(requirements_with_claim(Value::Null), Some(("6", "3")), 3)]
    #[case::quota_is_used_up(requirements_with_claim(Value::Null), Some(("6", "6")), 0)]
    #[case::quota_allows_more(requirements_with_claim(Value::Null), Some(("60", "0")), 10)]
    fn replicas_that_fit(
        #[case] requirements: Option<ReplicaRequirements>,
        #[case] quota_amounts: Option<(&str, &str)>,
        #[case] expected: i32,
    ) {
        let quotas = quota_amounts.map(|(hard, used)| quota(hard, used));
        let facts = CapacityFacts { nodes: Some(Arc::new(karmadas_nodes())), quotas };
        assert_eq!(replicas(&facts, requirements.as_ref(), &[]), expected);
    }

    fn components(value: Value) -> Vec<Component> {
        serde_json::from_value(value).expect("components")
    }

    fn component_set() -> Vec<Component> {
        components(json!([
            {"name": "jm", "replicas": 1, "replicaRequirements": {"resourceRequest": {"cpu": "1"}}},
            {"name": "tm", "replicas": 2, "replicaRequirements": {"resourceRequest": {"cpu": "2"}}},
        ]))
    }

    #[test]
    fn sets_that_fit() {
        let facts = CapacityFacts { nodes: Some(Arc::new(karmadas_nodes())), quotas: None };
        // The untainted nodes have 3 and 8 free CPUs; a set takes 5.
        assert_eq!(component_sets(&facts, &component_set(), "team", &[]), 2);
        let assumed = [Reservation::from_components("team", &component_set())];
        assert_eq!(component_sets(&facts, &component_set(), "team", &assumed), 1);
        // Without requests there is no limit.
        assert_eq!(component_sets(&facts, &[], "team", &[]), i32::MAX);
        let facts = CapacityFacts { quotas: Some(quota("6", "0")), ..facts };
        assert_eq!(component_sets(&facts, &component_set(), "team", &[]), 1);
        assert_eq!(component_sets(&facts, &component_set(), "team", &assumed), 0);
        assert_eq!(component_sets(&facts, &component_set(), "", &[]), 2);
    }

    #[test]
    fn assumed_workloads_reduce_the_estimate() {
        let facts = CapacityFacts { nodes: Some(Arc::new(karmadas_nodes())), quotas: None };
        let assumed = components(json!([{"replicas": 4, "replicaRequirements": {"resourceRequest": {"cpu": "1"}}}]));
        let fitting = replicas(
            &facts,
            requirements_with_claim(Value::Null).as_ref(),
            &[Reservation::from_components("other", &assumed)],
        );
        assert_eq!(fitting, 7, "three pods fill the second node, and one is on the third");
    }

    #[rstest]
    #[case::no_nodes(CapacityFacts { nodes: Some(Arc::default()), quotas: None })]
    #[case::unknown_nodes(CapacityFacts::default())]
    fn without_nodes_nothing_fits(#[case] facts: CapacityFacts) {
        assert_eq!(replicas(&facts, None, &[]), 0);
        assert_eq!(component_sets(&facts, &[], "team", &[]), 0);
    }
}
