//! Defaults of services, endpoints and network policies.

use serde_json::{Value, json};

use super::{default, default_pointer, each, inside, is_set, is_unset, put, text};
use crate::object::{at, items};

pub(super) fn service(object: &mut Value) {
    if let Some(balancer) = inside(object, "status.loadBalancer") {
        each(balancer, "ingress", |ingress| {
            if is_set(ingress, "ip") && !is_set(ingress, "ipMode") {
                put(ingress, "ipMode", "VIP");
            }
        });
    }
    let Some(spec) = inside(object, "spec") else { return };
    default(spec, "sessionAffinity", "None");
    if text(spec, "sessionAffinity") == "None" {
        crate::object::take(spec, "sessionAffinityConfig");
    }
    if text(spec, "sessionAffinity") == "ClientIP" && !is_set(spec, "sessionAffinityConfig.clientIP.timeoutSeconds") {
        put(spec, "sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": 10800}}));
    }
    default(spec, "type", "ClusterIP");
    each(spec, "ports", |port| {
        default(port, "protocol", "TCP");
        if is_unset(port, "targetPort") || at(port, "targetPort") == 0 {
            let number = port.get("port").cloned().unwrap_or(json!(0));
            put(port, "targetPort", number);
        }
    });
    let kind = text(spec, "type").to_owned();
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer")
        || (kind == "ClusterIP" && !items(spec, "externalIPs").is_empty())
    {
        default(spec, "externalTrafficPolicy", "Cluster");
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer" | "ClusterIP") {
        default(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default(spec, "allocateLoadBalancerNodePorts", true);
    }
}

pub(super) fn endpoints(object: &mut Value) {
    each(object, "subsets", |subset| each(subset, "ports", |port| default(port, "protocol", "TCP")));
}

pub(super) fn endpoint_slice(object: &mut Value) {
    each(object, "ports", |port| {
        if !is_set(port, "name") {
            put(port, "name", "");
        }
        default_pointer(port, "protocol", "TCP");
    });
}

pub(super) fn network_policy(object: &mut Value) {
    let egress = !items(object, "spec.egress").is_empty();
    let Some(spec) = inside(object, "spec") else { return };
    for rules in ["ingress", "egress"] {
        each(spec, rules, |rule| each(rule, "ports", |port| default_pointer(port, "protocol", "TCP")));
    }
    if items(spec, "policyTypes").is_empty() {
        put(spec, "policyTypes", if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) });
    }
}
