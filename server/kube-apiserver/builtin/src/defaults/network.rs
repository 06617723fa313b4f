//! Defaults of services, endpoints and network policies.

use serde_json::{Value, json};

use super::{at_mut, for_each_item, is_set, is_unset, set_default, set_field, set_pointer_default, text};
use crate::object::{at, items};
use crate::service::is_externally_accessible;

pub(super) fn set_service_defaults(object: &mut Value) {
    if let Some(balancer) = at_mut(object, "status.loadBalancer") {
        for_each_item(balancer, "ingress", |ingress| {
            if is_set(ingress, "ip") && !is_set(ingress, "ipMode") {
                set_field(ingress, "ipMode", "VIP");
            }
        });
    }
    let Some(spec) = at_mut(object, "spec") else { return };
    set_default(spec, "sessionAffinity", "None");
    if text(spec, "sessionAffinity") == "None" {
        crate::object::remove_field(spec, "sessionAffinityConfig");
    }
    if text(spec, "sessionAffinity") == "ClientIP" && !is_set(spec, "sessionAffinityConfig.clientIP.timeoutSeconds") {
        set_field(spec, "sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": 10800}}));
    }
    set_default(spec, "type", "ClusterIP");
    for_each_item(spec, "ports", |port| {
        set_default(port, "protocol", "TCP");
        if is_unset(port, "targetPort") || at(port, "targetPort") == 0 {
            let number = port.get("port").cloned().unwrap_or(json!(0));
            set_field(port, "targetPort", number);
        }
    });
    let kind = text(spec, "type").to_owned();
    if is_externally_accessible(spec) {
        set_default(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer" | "ClusterIP") {
        set_default(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        set_default(spec, "allocateLoadBalancerNodePorts", true);
    }
}

pub(super) fn set_endpoints_defaults(object: &mut Value) {
    for_each_item(object, "subsets", |subset| {
        for_each_item(subset, "ports", |port| set_default(port, "protocol", "TCP"))
    });
}

pub(super) fn set_endpoint_slice_defaults(object: &mut Value) {
    for_each_item(object, "ports", |port| {
        if !is_set(port, "name") {
            set_field(port, "name", "");
        }
        set_pointer_default(port, "protocol", "TCP");
    });
}

pub(super) fn set_network_policy_defaults(object: &mut Value) {
    let has_egress = !items(object, "spec.egress").is_empty();
    let Some(spec) = at_mut(object, "spec") else { return };
    for rules in ["ingress", "egress"] {
        for_each_item(spec, rules, |rule| {
            for_each_item(rule, "ports", |port| set_pointer_default(port, "protocol", "TCP"))
        });
    }
    if items(spec, "policyTypes").is_empty() {
        set_field(spec, "policyTypes", if has_egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) });
    }
}
