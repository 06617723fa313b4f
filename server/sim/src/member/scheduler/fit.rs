//! Node filters of kube-scheduler that consider a single node, with kube-scheduler's messages.

use std::collections::HashMap;
use std::sync::Arc;

use crowsnest_apimachinery::selector::expression_matches;
use crowsnest_apimachinery::taints::{first_untolerated_taint, prevents_scheduling, tolerates};
use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Taint};

use crate::member::Labels;
use crate::member::pod::{ContainerPort, PodSpecView, PodState};
use crate::member::resources::{Resources, whole_value};

/// A node in the scheduler's cache.
#[derive(Debug, Clone, Default)]
pub struct NodeView {
    pub name: Arc<str>,
    pub labels: Labels,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub allocatable: Resources,
    pub max_pods: i64,
    /// Sum of the requests of `pods`.
    pub used: Resources,
    /// Pods on the node by UID.
    pub pods: HashMap<Arc<str>, Arc<PodState>>,
}

impl NodeView {
    /// Creates the view of a node without pods; the planner adds them.
    pub fn new(node: &Node) -> Self {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.clone()).unwrap_or_default();
        let spec = node.spec.clone().unwrap_or_default();
        Self {
            name: node.metadata.name.as_deref().unwrap_or_default().into(),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            unschedulable: spec.unschedulable.unwrap_or_default(),
            max_pods: allocatable.get("pods").map_or(0, whole_value),
            allocatable: Resources::from_list(&allocatable),
            used: Resources::default(),
            pods: HashMap::new(),
        }
    }
}

/// Reasons why a pod does not fit on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterFailure {
    pub reasons: Vec<String>,
    /// True if deletion of pods on the node could make the pod fit.
    pub is_resolvable: bool,
}

impl FilterFailure {
    /// A failure that deletion of pods cannot resolve, `UnschedulableAndUnresolvable` in kube-scheduler.
    pub fn unresolvable(reason: impl Into<String>) -> Self {
        Self { reasons: vec![reason.into()], is_resolvable: false }
    }

    /// A failure that deletion of pods could resolve, `Unschedulable` in kube-scheduler.
    pub fn resolvable(reasons: Vec<String>) -> Self {
        Self { reasons, is_resolvable: true }
    }
}

/// Runs the filters in kube-scheduler's order; the first failure is returned.
pub fn check_fit(spec: &PodSpecView, node: &NodeView) -> Result<(), FilterFailure> {
    check_static_filters(spec, node)?;
    if host_ports(spec).next().is_some() && node.pods.values().any(|pod| ports_conflict(spec, &pod.spec)) {
        return Err(FilterFailure::resolvable(vec![
            "node(s) didn't have free ports for the requested pod ports".into(),
        ]));
    }
    let reasons = insufficient_resources(spec, node);
    if reasons.is_empty() { Ok(()) } else { Err(FilterFailure::resolvable(reasons)) }
}

/// Runs the filters that do not depend on other pods: cordon, taints, node selector and node affinity.
pub fn check_static_filters(spec: &PodSpecView, node: &NodeView) -> Result<(), FilterFailure> {
    let cordon =
        Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Taint::default() };
    if node.unschedulable && !spec.tolerations.iter().any(|toleration| tolerates(toleration, &cordon)) {
        return Err(FilterFailure::unresolvable("node(s) were unschedulable"));
    }
    if let Some(taint) = first_untolerated_taint(&node.taints, &spec.tolerations, prevents_scheduling) {
        let value = taint.value.as_deref().unwrap_or_default();
        return Err(FilterFailure::unresolvable(format!("node(s) had untolerated taint {{{}: {value}}}", taint.key)));
    }
    if !matches_node_affinity(spec, node) {
        return Err(FilterFailure::unresolvable("node(s) didn't match Pod's node affinity/selector"));
    }
    Ok(())
}

/// kube-scheduler's messages for the resources that are insufficient for a pod on a node.
pub fn insufficient_resources(spec: &PodSpecView, node: &NodeView) -> Vec<String> {
    let mut reasons = Vec::new();
    if i64::try_from(node.pods.len()).unwrap_or(i64::MAX) >= node.max_pods {
        reasons.push("Too many pods".to_owned());
    }
    let names = node.allocatable.insufficient_for(&node.used, &spec.requests);
    reasons.extend(names.into_iter().map(|name| format!("Insufficient {name}")));
    reasons
}

fn host_ports(spec: &PodSpecView) -> impl Iterator<Item = &ContainerPort> {
    spec.containers.iter().flat_map(|container| &container.ports).filter(|port| port.host_port.is_some())
}

/// True if two pods use the same host port: same protocol, and same or unspecified address.
pub fn ports_conflict(first: &PodSpecView, second: &PodSpecView) -> bool {
    let address = |port: &ContainerPort| port.host_ip.clone().filter(|ip| &**ip != "0.0.0.0" && &**ip != "::");
    host_ports(first).any(|a| {
        host_ports(second).any(|b| {
            let same_address = match (address(a), address(b)) {
                (Some(a), Some(b)) => a == b,
                _ => true,
            };
            a.host_port == b.host_port && a.protocol == b.protocol && same_address
        })
    })
}

/// True if a node matches the node selector and the required node affinity of a pod.
pub fn matches_node_affinity(spec: &PodSpecView, node: &NodeView) -> bool {
    if !spec.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|required| required.node_selector_terms.iter().any(|term| term_matches(term, node)))
}

/// True if a node matches a node selector term. A term without requirements matches no node.
pub fn term_matches(term: &NodeSelectorTerm, node: &NodeView) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let is_met = |requirement: &NodeSelectorRequirement, value: Option<&str>| {
        expression_matches(&requirement.operator, value, requirement.values.as_deref().unwrap_or_default())
    };
    expressions.iter().all(|e| is_met(e, node.labels.get(&e.key).map(String::as_str)))
        && fields.iter().all(|f| is_met(f, (f.key == "metadata.name").then_some(&*node.name)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::member::interner::Interner;

    #[rstest::rstest]
    #[case(json!({"hostPort": 80}), json!({"hostPort": 81}), false)]
    #[case(json!({"hostPort": 80}), json!({"hostPort": 80}), true)]
    #[case(json!({"hostPort": 80}), json!({"hostPort": 80, "protocol": "UDP"}), false)]
    #[case(json!({"hostPort": 80, "hostIP": "10.0.0.1"}), json!({"hostPort": 80, "hostIP": "10.0.0.2"}), false)]
    #[case(json!({"hostPort": 80, "hostIP": "10.0.0.1"}), json!({"hostPort": 80, "hostIP": "0.0.0.0"}), true)]
    #[case(json!({"hostPort": 80, "hostIP": "10.0.0.1"}), json!({"hostPort": 80}), true)]
    #[case(json!({"containerPort": 80}), json!({"containerPort": 80}), false)]
    fn host_ports_conflict_with_equal_protocol_and_overlapping_address(
        #[case] first: Value,
        #[case] second: Value,
        #[case] expected: bool,
    ) {
        let spec = |port: Value| {
            let mut port = port;
            port["containerPort"] = json!(80);
            let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "ports": [port]}]}});
            Interner::default().intern_pod(serde_json::from_value(pod).unwrap()).spec
        };
        assert_eq!(ports_conflict(&spec(first), &spec(second)), expected);
    }
}
