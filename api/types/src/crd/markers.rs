//! Markers of Kubernetes' Go types that the published schemas lack: lists and maps that server-side apply treats as
//! atomic or merges by key, and the limits of conditions.

use serde_json::{Value, json};

/// Atomic lists, by type and field.
const ATOMIC_LISTS: [(&str, &[&str]); 14] = [
    (".meta.v1.LabelSelector", &["matchExpressions"]),
    (".meta.v1.LabelSelectorRequirement", &["values"]),
    (".core.v1.NodeSelector", &["nodeSelectorTerms"]),
    (".core.v1.NodeSelectorTerm", &["matchExpressions", "matchFields"]),
    (".core.v1.NodeSelectorRequirement", &["values"]),
    (".core.v1.LoadBalancerStatus", &["ingress"]),
    (".core.v1.LoadBalancerIngress", &["ports"]),
    (".networking.v1.IngressSpec", &["rules", "tls"]),
    (".networking.v1.IngressTLS", &["hosts"]),
    (".networking.v1.HTTPIngressRuleValue", &["paths"]),
    (".networking.v1.IngressLoadBalancerStatus", &["ingress"]),
    (".networking.v1.IngressLoadBalancerIngress", &["ports"]),
    (".autoscaling.v2.HPAScalingRules", &["policies"]),
    (".autoscaling.v2.HorizontalPodAutoscalerStatus", &["currentMetrics"]),
];

/// Lists merged by the `type` of their items.
const LISTS_BY_TYPE: [&str; 2] = [".core.v1.ServiceStatus", ".autoscaling.v2.HorizontalPodAutoscalerStatus"];

/// Atomic structures.
const ATOMIC_MAPS: [&str; 5] = [
    ".meta.v1.LabelSelector",
    ".core.v1.NodeSelector",
    ".core.v1.NodeSelectorTerm",
    ".core.v1.TypedLocalObjectReference",
    ".networking.v1.ServiceBackendPort",
];

const CONDITION_TYPE: &str = concat!(
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?",
    r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
);

/// Adds the markers of a Kubernetes type, identified by the end of its name.
pub(super) fn refine(name: &str, schema: &mut Value) {
    for (_, fields) in ATOMIC_LISTS.iter().filter(|(end, _)| name.ends_with(end)) {
        for field in *fields {
            schema["properties"][*field]["x-kubernetes-list-type"] = "atomic".into();
        }
    }
    if ATOMIC_MAPS.iter().any(|end| name.ends_with(end)) {
        schema["x-kubernetes-map-type"] = "atomic".into();
    }
    if LISTS_BY_TYPE.iter().any(|end| name.ends_with(end)) {
        let conditions = &mut schema["properties"]["conditions"];
        conditions["x-kubernetes-list-type"] = "map".into();
        conditions["x-kubernetes-list-map-keys"] = json!(["type"]);
    }
    if name.ends_with(".core.v1.PortStatus") || name.ends_with(".networking.v1.IngressPortStatus") {
        schema["properties"]["error"]["maxLength"] = 316.into();
        schema["properties"]["error"]["pattern"] = CONDITION_TYPE.into();
        schema["required"] = json!(["error", "port", "protocol"]);
    }
    if name.ends_with(".meta.v1.Condition") {
        let properties = &mut schema["properties"];
        properties["message"]["maxLength"] = 32768.into();
        properties["observedGeneration"]["minimum"] = 0.into();
        properties["reason"]["minLength"] = 1.into();
        properties["reason"]["maxLength"] = 1024.into();
        properties["reason"]["pattern"] = "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$".into();
        properties["status"]["enum"] = json!(["True", "False", "Unknown"]);
        properties["type"]["maxLength"] = 316.into();
        properties["type"]["pattern"] = CONDITION_TYPE.into();
    }
}
