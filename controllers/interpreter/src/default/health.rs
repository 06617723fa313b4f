//! Health of member objects of built-in kinds. Each function returns true if the object is healthy.

use serde_json::Value;

use crowsnest_apimachinery::unstructured::{at, generation, integer, text};

fn count(object: &Value, field: &str) -> i64 {
    integer(object, &["status", field]).unwrap_or_default()
}

/// True if the controller of the member has observed the latest generation.
fn is_observed(object: &Value) -> bool {
    count(object, "observedGeneration") == generation(object)
}

/// True if the counter `field` of the status has reached `spec.replicas`, or if `spec.replicas` is not set.
fn has_all_replicas(object: &Value, field: &str) -> bool {
    integer(object, &["spec", "replicas"]).is_none_or(|replicas| count(object, field) >= replicas)
}

/// Deployment and StatefulSet: the latest generation is rolled out, and all updated replicas are available.
pub fn is_rolled_out(object: &Value) -> bool {
    is_observed(object)
        && has_all_replicas(object, "updatedReplicas")
        && count(object, "availableReplicas") >= count(object, "updatedReplicas")
}

pub fn is_replica_set_healthy(object: &Value) -> bool {
    is_observed(object) && has_all_replicas(object, "availableReplicas")
}

pub fn is_daemon_set_healthy(object: &Value) -> bool {
    is_observed(object)
        && count(object, "updatedNumberScheduled") >= count(object, "desiredNumberScheduled")
        && count(object, "numberAvailable") >= count(object, "updatedNumberScheduled")
}

/// A load balancer Service is healthy once it has an address. All other Services are healthy.
pub fn is_service_healthy(object: &Value) -> bool {
    text(object, &["spec", "type"]) != "LoadBalancer" || is_ingress_healthy(object)
}

/// True if a load balancer has an address.
pub fn is_ingress_healthy(object: &Value) -> bool {
    at(object, &["status", "loadBalancer", "ingress"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .any(|address| !text(address, &["ip"]).is_empty() || !text(address, &["hostname"]).is_empty())
}

pub fn is_persistent_volume_claim_bound(object: &Value) -> bool {
    text(object, &["status", "phase"]) == "Bound"
}

pub fn is_pod_healthy(object: &Value) -> bool {
    let is_ready = || {
        at(object, &["status", "conditions"])
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .find(|condition| text(condition, &["type"]) == "Ready")
            .is_some_and(|condition| text(condition, &["status"]) == "True")
    };
    match text(object, &["status", "phase"]) {
        "Succeeded" => true,
        "Running" => is_ready(),
        _ => false,
    }
}

pub fn is_pod_disruption_budget_healthy(object: &Value) -> bool {
    count(object, "currentHealthy") >= count(object, "desiredHealthy")
}
