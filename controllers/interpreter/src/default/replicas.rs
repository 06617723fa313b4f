//! Requirements of one replica of a workload.

use crowsnest_api::work::{NodeClaim, ReplicaRequirements};
use k8s_openapi::api::core::v1::{NodeSelector, Toleration};
use serde_json::Value;

use crowsnest_apimachinery::unstructured::{at, namespace, text};
use crowsnest_plan::estimation::resources::pod_request;
use crowsnest_plan::gates::Gates;

/// Requirements of the template's pod template, or of a Pod itself. `None` if it has no requirements.
pub fn requirements(template: &Value, gates: Gates) -> Option<ReplicaRequirements> {
    let pod = at(template, &["spec", "template", "spec"]).or_else(|| template.get("spec"))?;
    Some(complete_for_quota(pod_requirements(pod)?, template, gates))
}

/// Requirements of a pod spec.
pub fn pod_requirements(pod: &Value) -> Option<ReplicaRequirements> {
    let node_claim = node_claim(pod);
    let resource_request = pod_request(pod, true).to_list();
    if node_claim.is_none() && resource_request.is_empty() {
        return None;
    }
    let priority_class_name = text(pod, &["priorityClassName"]).to_owned();
    Some(ReplicaRequirements { node_claim, resource_request, namespace: String::new(), priority_class_name })
}

/// Completes the requirements for quota estimates, if enabled.
pub fn complete_for_quota(
    mut requirements: ReplicaRequirements,
    template: &Value,
    gates: Gates,
) -> ReplicaRequirements {
    if gates.resource_quota_estimate {
        requirements.namespace = namespace(template).to_owned();
    } else {
        requirements.priority_class_name.clear();
    }
    requirements
}

fn node_claim(pod: &Value) -> Option<NodeClaim> {
    let field = |path: &[&str]| at(pod, path).cloned();
    let affinity = ["affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
    let hard_node_affinity: Option<NodeSelector> =
        field(&affinity).and_then(|selector| serde_json::from_value(selector).ok());
    let node_selector = field(&["nodeSelector"]).and_then(|labels| serde_json::from_value(labels).ok());
    let tolerations: Vec<Toleration> =
        field(&["tolerations"]).and_then(|list| serde_json::from_value(list).ok()).unwrap_or_default();
    if hard_node_affinity.is_none() && node_selector.is_none() && tolerations.is_empty() {
        return None;
    }
    Some(NodeClaim { hard_node_affinity, node_selector: node_selector.unwrap_or_default(), tolerations })
}
