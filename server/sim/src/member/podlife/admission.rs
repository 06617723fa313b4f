//! Admission of pods by a node's kubelet: pods with a `nodeName` in their manifest were not checked by a scheduler.

use std::sync::Arc;

use crate::member::pod::PodState;
use crate::member::scheduler::fit::{NodeView, ports_conflict, wants_node};

/// Reason and message of a rejection, as in the pod's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub message: String,
}

/// Checks a pod against its node and the other pods on it, in the order of the kubelet's checks.
pub fn admit(pod: &PodState, mut node: NodeView, others: &[Arc<PodState>]) -> Result<(), Rejection> {
    let admitted =
        others.iter().filter(|other| other.uid != pod.uid && other.started.is_some() && !other.phase.is_terminal());
    for other in admitted {
        node.used.add(&other.spec.requests);
        node.pods.insert(other.uid.clone(), other.clone());
    }
    let count = i64::try_from(node.pods.len()).unwrap_or(i64::MAX);
    if count >= node.max_pods {
        let message = format!(
            "Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: {count}, capacity: {}",
            node.max_pods
        );
        return Err(Rejection { reason: "OutOfpods".into(), message });
    }
    if let Some(name) = node.allocatable.short_of(&node.used, &pod.spec.requests).into_iter().next() {
        let amount = |resources: &crate::member::resources::Resources| {
            resources.entries().into_iter().find(|(known, _)| *known == name).map_or(0, |(_, amount)| amount)
        };
        let message = format!(
            "Pod was rejected: Node didn't have enough resource: {name}, requested: {}, used: {}, capacity: {}",
            amount(&pod.spec.requests),
            amount(&node.used),
            amount(&node.allocatable)
        );
        return Err(Rejection { reason: format!("OutOf{name}"), message });
    }
    let refuse = |reason: &str, why: &str| {
        Err(Rejection { reason: reason.into(), message: format!("Pod was rejected: Predicate {reason} failed: {why}") })
    };
    if !wants_node(&pod.spec, &node) {
        return refuse("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
    }
    if node.pods.values().any(|other| ports_conflict(&pod.spec, &other.spec)) {
        return refuse("NodePorts", "node(s) didn't have free ports for the requested pod ports");
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
        Arc::new(Interner::default().pod(serde_json::from_value(pod).unwrap()))
    }

    #[rstest::rstest]
    #[case(json!({"port": 80}), json!({}), "")]
    #[case(json!({"port": 80}), json!({"port": 81}), "")]
    #[case(json!({"port": 80}), json!({"port": 80}), "NodePorts")]
    #[case(json!({"port": 80}), json!({"port": 80, "phase": "Failed"}), "")]
    #[case(json!({"cpu": "2"}), json!({"cpu": "1"}), "OutOfcpu")]
    #[case(json!({"cpu": "1"}), json!({"cpu": "1"}), "")]
    #[case(json!({"selector": {"gpu": "yes"}}), json!({}), "NodeAffinity")]
    fn pods_are_admitted(#[case] wanted: Value, #[case] there: Value, #[case] reason: &str) {
        let node = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "2", "pods": "10"}}});
        let node = NodeView::new(&serde_json::from_value(node).unwrap());
        let refused = admit(&pod("p", wanted), node, &[pod("other", there)]).err();
        assert_eq!(refused.map(|refused| refused.reason).unwrap_or_default(), reason);
    }
}
