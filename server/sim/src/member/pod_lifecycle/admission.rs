//! Admission of pods by a node's kubelet. It matters for pods with a `nodeName` in their manifest, which no scheduler
//! has checked.

use std::sync::Arc;

use crate::member::pod::PodState;
use crate::member::scheduler::fit::{NodeView, matches_node_affinity, ports_conflict};

/// Reason and message of a rejection, as in the pod's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub message: String,
}

/// Checks a pod against its node and the other pods on it, in the order of the kubelet's checks.
pub fn admit(pod: &PodState, mut node: NodeView, node_pods: &[Arc<PodState>]) -> Result<(), Rejection> {
    let running = node_pods
        .iter()
        .filter(|node_pod| node_pod.uid != pod.uid && node_pod.started.is_some() && !node_pod.phase.is_terminal());
    for node_pod in running {
        node.used.add(&node_pod.spec.requests);
        node.pods.insert(node_pod.uid.clone(), node_pod.clone());
    }
    let count = i64::try_from(node.pods.len()).unwrap_or(i64::MAX);
    if count >= node.max_pods {
        let message = format!(
            "Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: {count}, capacity: {}",
            node.max_pods
        );
        return Err(Rejection { reason: "OutOfpods".into(), message });
    }
    if let Some(name) = node.allocatable.insufficient_for(&node.used, &pod.spec.requests).into_iter().next() {
        let amount = |resources: &crate::member::resources::Resources| {
            resources.entries().into_iter().find(|(entry_name, _)| *entry_name == name).map_or(0, |(_, amount)| amount)
        };
        let message = format!(
            "Pod was rejected: Node didn't have enough resource: {name}, requested: {}, used: {}, capacity: {}",
            amount(&pod.spec.requests),
            amount(&node.used),
            amount(&node.allocatable)
        );
        return Err(Rejection { reason: format!("OutOf{name}"), message });
    }
    let reject = |reason: &str, cause: &str| {
        Err(Rejection {
            reason: reason.into(),
            message: format!("Pod was rejected: Predicate {reason} failed: {cause}"),
        })
    };
    if !matches_node_affinity(&pod.spec, &node) {
        return reject("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
    }
    if node.pods.values().any(|node_pod| ports_conflict(&pod.spec, &node_pod.spec)) {
        return reject("NodePorts", "node(s) didn't have free ports for the requested pod ports");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::member::interner::Interner;

    fn pod(name: &str, spec: Value) -> Arc<PodState> {
        let cpu = spec["cpu"].as_str().unwrap_or("0");
        let ports = spec["port"].as_i64().map(|port| json!([{"containerPort": port, "hostPort": port}]));
        let pod = json!({
            "metadata": {"name": name, "uid": name},
            "spec": {"nodeName": "n", "nodeSelector": spec["selector"],
                "containers": [{"name": "c", "ports": ports, "resources": {"requests": {"cpu": cpu}}}]},
            "status": {"startTime": "2026-01-01T00:00:00Z", "phase": spec["phase"].as_str().unwrap_or("Running")},
        });
        Arc::new(Interner::default().intern_pod(serde_json::from_value(pod).unwrap()))
    }

    #[rstest::rstest]
    #[case(json!({"port": 80}), json!({}), "")]
    #[case(json!({"port": 80}), json!({"port": 81}), "")]
    #[case(json!({"port": 80}), json!({"port": 80}), "NodePorts")]
    #[case(json!({"port": 80}), json!({"port": 80, "phase": "Failed"}), "")]
    #[case(json!({"cpu": "2"}), json!({"cpu": "1"}), "OutOfcpu")]
    #[case(json!({"cpu": "1"}), json!({"cpu": "1"}), "")]
    #[case(json!({"selector": {"gpu": "yes"}}), json!({}), "NodeAffinity")]
    fn a_pod_is_rejected_if_its_node_does_not_fit(
        #[case] spec: Value,
        #[case] other_spec: Value,
        #[case] reason: &str,
    ) {
        let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "2", "pods": "10"}}});
        let node = NodeView::new(&serde_json::from_value(node).unwrap());
        let rejection = admit(&pod("p", spec), node, &[pod("other", other_spec)]).err();
        assert_eq!(rejection.map(|rejection| rejection.reason).unwrap_or_default(), reason);
    }
}
