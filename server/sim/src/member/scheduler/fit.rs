//! Node filters of kube-scheduler that do not depend on other pods, with its messages.

use std::collections::HashMap;
use std::sync::Arc;

use crowsnest_apimachinery::selector::expression_matches;
use crowsnest_apimachinery::taints::{first_untolerated, prevents_scheduling, tolerates};
use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, Taint};

use crate::member::Labels;
use crate::member::pod::{ContainerPort, PodState, SpecView};
use crate::member::resources::{Resources, whole};

/// A node in the scheduler's cache.
#[derive(Debug, Clone, Default)]
pub struct NodeView {
    pub name: Arc<str>,
    pub labels: Labels,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub allocatable: Resources,
    pub max_pods: i64,
    pub used: Resources,
    pub pods: HashMap<Arc<str>, Arc<PodState>>,
}

impl NodeView {
    /// Creates a view of a node; the planner maintains `used` and `pods`.
    pub fn new(node: &Node) -> Self {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.clone()).unwrap_or_default();
        let spec = node.spec.clone().unwrap_or_default();
        Self {
            name: node.metadata.name.as_deref().unwrap_or_default().into(),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: spec.taints.unwrap_or_default(),
            unschedulable: spec.unschedulable.unwrap_or_default(),
            max_pods: allocatable.get("pods").map_or(0, whole),
            allocatable: Resources::from_list(&allocatable),
            used: Resources::default(),
            pods: HashMap::new(),
        }
    }
}

/// Reasons for which a pod does not fit on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    pub reasons: Vec<String>,
    /// True if deletion of pods on the node could help.
    pub preemptible: bool,
}

impl Unfit {
    pub fn never(reason: impl Into<String>) -> Self {
        Self { reasons: vec![reason.into()], preemptible: false }
    }

    pub fn now(reasons: Vec<String>) -> Self {
        Self { reasons, preemptible: true }
    }
}

/// Runs the filters in kube-scheduler's order; the first failure is returned.
pub fn fits(spec: &SpecView, node: &NodeView) -> Result<(), Unfit> {
    placeable(spec, node)?;
    if host_ports(spec).next().is_some() && node.pods.values().any(|pod| ports_conflict(spec, &pod.spec)) {
        return Err(Unfit::now(vec!["node(s) didn't have free ports for the requested pod ports".into()]));
    }
    let short = lacking(spec, node);
    if short.is_empty() { Ok(()) } else { Err(Unfit::now(short)) }
}

/// Filters that other pods cannot influence: cordon, taints, node selector and node affinity.
pub fn placeable(spec: &SpecView, node: &NodeView) -> Result<(), Unfit> {
    let cordon =
        Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Taint::default() };
    if node.unschedulable && !spec.tolerations.iter().any(|toleration| tolerates(toleration, &cordon)) {
        return Err(Unfit::never("node(s) were unschedulable"));
    }
    if let Some(taint) = first_untolerated(&node.taints, &spec.tolerations, prevents_scheduling) {
        let value = taint.value.as_deref().unwrap_or_default();
        return Err(Unfit::never(format!("node(s) had untolerated taint {{{}: {value}}}", taint.key)));
    }
    if !wants_node(spec, node) {
        return Err(Unfit::never("node(s) didn't match Pod's node affinity/selector"));
    }
    Ok(())
}

/// Missing resources of a node for a pod, with the scheduler's messages.
pub fn lacking(spec: &SpecView, node: &NodeView) -> Vec<String> {
    let mut short = Vec::new();
    if i64::try_from(node.pods.len()).unwrap_or(i64::MAX) >= node.max_pods {
        short.push("Too many pods".to_owned());
    }
    let names = node.allocatable.short_of(&node.used, &spec.requests);
    short.extend(names.into_iter().map(|name| format!("Insufficient {name}")));
    short
}

fn host_ports(spec: &SpecView) -> impl Iterator<Item = &ContainerPort> {
    spec.containers.iter().flat_map(|container| &container.ports).filter(|port| port.host_port.is_some())
}

/// True if two pods use the same host port: same protocol, and same or unspecified address.
pub fn ports_conflict(one: &SpecView, other: &SpecView) -> bool {
    let address = |port: &ContainerPort| port.host_ip.clone().filter(|ip| &**ip != "0.0.0.0" && &**ip != "::");
    host_ports(one).any(|a| {
        host_ports(other).any(|b| {
            let same_address = match (address(a), address(b)) {
                (Some(a), Some(b)) => a == b,
                _ => true,
            };
            a.host_port == b.host_port && a.protocol == b.protocol && same_address
        })
    })
}

/// Evaluates node selector and required node affinity.
pub fn wants_node(spec: &SpecView, node: &NodeView) -> bool {
    if !spec.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|required| required.node_selector_terms.iter().any(|term| term_matches(term, node)))
}

/// Evaluates a node selector term; one without requirements matches nothing.
pub fn term_matches(term: &NodeSelectorTerm, node: &NodeView) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let holds = |requirement: &NodeSelectorRequirement, value: Option<&str>| {
        expression_matches(&requirement.operator, value, requirement.values.as_deref().unwrap_or_default())
    };
    expressions.iter().all(|e| holds(e, node.labels.get(&e.key).map(String::as_str)))
        && fields.iter().all(|f| holds(f, (f.key == "metadata.name").then_some(&*node.name)))
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
    fn host_ports_conflict(#[case] one: Value, #[case] other: Value, #[case] expected: bool) {
        let spec = |port: Value| {
            let mut port = port;
            port["containerPort"] = json!(80);
            let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "ports": [port]}]}});
            Interner::default().pod(serde_json::from_value(pod).unwrap()).spec
        };
        assert_eq!(ports_conflict(&spec(one), &spec(other)), expected);
    }
}
