//! Validation of status updates for kinds whose validation does not include the status.

use crowsnest_apimachinery::names::format::validate_condition_reason;

use super::resources::{amount, is_native};
use super::{
    Errors, FieldError, Value, addresses, at, fields, is_set, items, json, text, validate_dns1123_subdomain,
    validate_qualified_name,
};

/// Validates the status; `kind` is a built-in kind with a `status` subresource.
pub(super) fn validate_update(e: &mut Errors, kind: &str, new: &Value) {
    match kind {
        "PersistentVolumeClaim" => validate_claim_status(e, new),
        "Service" => validate_service_status(e, new),
        "Ingress" => validate_load_balancer_ingress(e, items(new, "status.loadBalancer.ingress"), false),
        "Namespace" => validate_namespace_phase(e, new),
        "ResourceQuota" => super::quota::validate_quota_status(e, new),
        "HorizontalPodAutoscaler" => validate_counters(e, new, &["currentReplicas", "desiredReplicas"]),
        "FlowSchema" | "PriorityLevelConfiguration" => super::flow::validate_conditions(e, new),
        "PodDisruptionBudget" => {
            validate_conditions(e, new);
            validate_counters(e, new, &["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"]);
        }
        _ => {}
    }
}

/// `ValidateConditions`.
fn validate_conditions(e: &mut Errors, new: &Value) {
    let conditions = items(new, "status.conditions");
    for (index, condition) in conditions.iter().enumerate() {
        let (path, kind) = (format!("status.conditions[{index}]"), text(condition, "type"));
        if conditions[..index].iter().any(|other| text(other, "type") == kind) {
            e.duplicate(format!("{path}.type"), &json!(kind));
        }
        e.push_name_errors(&format!("{path}.type"), kind, validate_qualified_name(kind));
        let status = text(condition, "status");
        if !matches!(status, "False" | "True" | "Unknown") {
            e.unsupported(format!("{path}.status"), &json!(status), &["False", "True", "Unknown"]);
        }
        let generation = at(condition, "observedGeneration");
        if generation.as_i64().is_some_and(|n| n < 0) {
            e.invalid(format!("{path}.observedGeneration"), generation, "must be greater than or equal to zero");
        }
        if !is_set(condition, "lastTransitionTime") {
            e.required(format!("{path}.lastTransitionTime"), "");
        }
        match text(condition, "reason") {
            "" => e.required(format!("{path}.reason"), ""),
            reason => {
                e.push_name_errors(&format!("{path}.reason"), reason, validate_condition_reason(reason));
                if reason.len() > 1024 {
                    e.push(FieldError::too_long(format!("{path}.reason"), 1024));
                }
            }
        }
        if text(condition, "message").len() > 32 * 1024 {
            e.push(FieldError::too_long(format!("{path}.message"), 32 * 1024));
        }
    }
}

fn validate_counters(e: &mut Errors, new: &Value, names: &[&str]) {
    for name in names {
        let field = format!("status.{name}");
        e.non_negative(field.as_str(), at(new, &field));
    }
}

fn validate_claim_status(e: &mut Errors, new: &Value) {
    if items(new, "spec.accessModes").is_empty() {
        // kube-apiserver spells the path like this.
        e.required("Spec.accessModes", "");
    }
    for (name, value) in fields(new, "status.capacity") {
        reject_negative_quantity(e, &format!("status.capacity[{name}]"), value);
    }
    for (name, state) in fields(new, "status.allocatedResourceStatuses") {
        validate_claim_resource_name(e, name, "status.allocatedResourceStatuses");
        if !RESIZE_STATES.iter().any(|known| state == known) {
            // kube-apiserver reports the resource as the value.
            e.unsupported("status.allocatedResourceStatuses", &json!(name), &RESIZE_STATES);
        }
    }
    for (name, value) in fields(new, "status.allocatedResources") {
        let field = format!("status.allocatedResources[{name}]");
        if validate_claim_resource_name(e, name, "status.allocatedResources") {
            reject_negative_quantity(e, &field, value);
        }
    }
}

const RESIZE_STATES: [&str; 5] = [
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

/// Reports a negative quantity.
fn reject_negative_quantity(e: &mut Errors, field: &str, value: &Value) {
    if let Some(quantity) = amount(value).filter(|quantity| quantity.sign() < 0) {
        e.invalid(field, &json!(quantity.value()), "must be a valid resource quantity");
    }
}

/// True if a claim supports the resource; reports an error otherwise.
fn validate_claim_resource_name(e: &mut Errors, name: &str, path: &str) -> bool {
    let problems = validate_qualified_name(name);
    if !problems.is_empty() {
        e.push_name_errors(path, name, problems);
        return false;
    }
    let is_supported = !is_native(name) || name == "storage";
    if !is_supported {
        e.unsupported(path, &json!(name), &["storage"]);
    }
    is_supported
}

fn validate_service_status(e: &mut Errors, new: &Value) {
    let list = items(new, "status.loadBalancer.ingress");
    if text(new, "spec.type") != "LoadBalancer" && !list.is_empty() {
        return e.forbidden("status.loadBalancer.ingress", "may only be used when `spec.type` is LoadBalancer");
    }
    validate_load_balancer_ingress(e, list, true);
}

/// Validates the ingress points of a load balancer; only those of a Service have an IP mode.
fn validate_load_balancer_ingress(e: &mut Errors, list: &[Value], has_ip_modes: bool) {
    for (index, ingress) in list.iter().enumerate() {
        let path = format!("status.loadBalancer.ingress[{index}]");
        let (address, host) = (text(ingress, "ip"), text(ingress, "hostname"));
        if !address.is_empty() {
            addresses::validate_legacy_address(e, &format!("{path}.ip"), at(ingress, "ip"));
        }
        if has_ip_modes {
            validate_ip_mode(e, ingress, &path);
        }
        if !host.is_empty() {
            let field = format!("{path}.hostname");
            e.push_name_errors(&field, host, validate_dns1123_subdomain(host));
            if host.parse::<std::net::IpAddr>().is_ok() {
                e.invalid(field, &json!(host), "must be a DNS name, not an IP address");
            }
        }
    }
}

fn validate_ip_mode(e: &mut Errors, ingress: &Value, path: &str) {
    let (field, addressed) = (format!("{path}.ipMode"), !text(ingress, "ip").is_empty());
    match (addressed, is_set(ingress, "ipMode")) {
        (true, false) => e.required(field, "must be specified when `ip` is set"),
        (false, true) => e.forbidden(field, "may not be specified when `ip` is not set"),
        (true, true) => e.optional_one_of(&field, at(ingress, "ipMode"), &["Proxy", "VIP"]),
        (false, false) => {}
    }
}

fn validate_namespace_phase(e: &mut Errors, new: &Value) {
    let (is_deleting, phase) = (is_set(new, "metadata.deletionTimestamp"), text(new, "status.phase"));
    let (expected_phase, reason) = match is_deleting {
        false => ("Active", "may only be 'Active' if `deletionTimestamp` is empty"),
        true => ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty"),
    };
    if phase != expected_phase {
        e.invalid("status.Phase", &json!(phase), reason);
    }
}
