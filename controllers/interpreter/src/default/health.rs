//! Health of built-in kinds, from a member object.

use serde_json::Value;

use crowsnest_apimachinery::unstructured::{at, generation, integer, text};

fn count(object: &Value, field: &str) -> i64 {
    integer(object, &["status", field]).unwrap_or_default()
}

fn observed(object: &Value) -> bool {
    count(object, "observedGeneration") == generation(object)
}

fn reaches_replicas(object: &Value, field: &str) -> bool {
    integer(object, &["spec", "replicas"]).is_none_or(|replicas| count(object, field) >= replicas)
}

/// Deployment and StatefulSet: the latest generation is rolled out, and all updated replicas are available.
pub fn rolled_out(object: &Value) -> bool {
    observed(object)
        && reaches_replicas(object, "updatedReplicas")
        && count(object, "availableReplicas") >= count(object, "updatedReplicas")
}

pub fn replica_set(object: &Value) -> bool {
    observed(object) && reaches_replicas(object, "availableReplicas")
}

pub fn daemon_set(object: &Value) -> bool {
    observed(object)
        && count(object, "updatedNumberScheduled") >= count(object, "desiredNumberScheduled")
        && count(object, "numberAvailable") >= count(object, "updatedNumberScheduled")
}

/// A load balancer Service is healthy once it has an address. All other Services are healthy.
pub fn service(object: &Value) -> bool {
    text(object, &["spec", "type"]) != "LoadBalancer" || ingress(object)
}

pub fn ingress(object: &Value) -> bool {
    at(object, &["status", "loadBalancer", "ingress"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .any(|point| !text(point, &["ip"]).is_empty() || !text(point, &["hostname"]).is_empty())
}

pub fn persistent_volume_claim(object: &Value) -> bool {
    text(object, &["status", "phase"]) == "Bound"
}

pub fn pod(object: &Value) -> bool {
    let ready = || {
        at(object, &["status", "conditions"])
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .find(|condition| text(condition, &["type"]) == "Ready")
            .is_some_and(|condition| text(condition, &["status"]) == "True")
    };
    match text(object, &["status", "phase"]) {
        "Succeeded" => true,
        "Running" => ready(),
        _ => false,
    }
}

pub fn pod_disruption_budget(object: &Value) -> bool {
    count(object, "currentHealthy") >= count(object, "desiredHealthy")
}
