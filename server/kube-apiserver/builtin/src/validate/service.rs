//! Validation of Services.

use std::collections::BTreeSet;

use crowsnest_schema::internal_structs::format_internal_struct;

use super::{
    Errors, Value, addresses, at, fields, is_set, items, json, number, port_number_error, text, validate_dns1123_label,
    validate_dns1123_subdomain, validate_labels, validate_port,
};
use crate::service::{is_externally_accessible, needs_cluster_ip, needs_health_check_node_port};

pub(super) fn validate_create(e: &mut Errors, object: &Value) {
    validate_topology_hints(e, object);
    let spec = at(object, "spec");
    let kind = text(spec, "type");
    let headless = text(spec, "clusterIP") == "None";
    if items(spec, "ports").is_empty() && !headless && kind != "ExternalName" {
        e.required("spec.ports", "");
    }
    match kind {
        "LoadBalancer" if headless => {
            e.invalid("spec.clusterIPs[0]", &json!("None"), "may not be set to 'None' for LoadBalancer services");
        }
        "NodePort" if headless => {
            e.invalid("spec.clusterIPs[0]", &json!("None"), "may not be set to 'None' for NodePort services")
        }
        "ExternalName" => {
            for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                if !items(spec, field).is_empty() || !text(spec, field).is_empty() {
                    e.forbidden(format!("spec.{field}"), "may not be set for ExternalName services");
                }
            }
            let external_name = text(spec, "externalName");
            let name = external_name.strip_suffix('.').unwrap_or(external_name);
            if name.is_empty() {
                e.required("spec.externalName", "");
            } else {
                e.push_name_errors("spec.externalName", name, validate_dns1123_subdomain(name));
            }
        }
        _ => {}
    }
    validate_ports(e, spec);
    e.0.extend(validate_labels(spec.get("selector"), "spec.selector"));
    e.one_of("spec.sessionAffinity", at(spec, "sessionAffinity"), &["ClientIP", "None"]);
    if text(spec, "sessionAffinity") == "ClientIP" {
        let seconds = number(spec, "sessionAffinityConfig.clientIP.timeoutSeconds").unwrap_or(0);
        if !(1..=86400).contains(&seconds) {
            e.invalid(
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
                &json!(seconds),
                "must be greater than 0 and less than 86400",
            );
        }
    }
    if text(spec, "sessionAffinity") == "None" && is_set(spec, "sessionAffinityConfig") {
        e.forbidden("spec.sessionAffinityConfig", "must not be set when session affinity is None");
    }
    if kind != "ExternalName" {
        validate_cluster_ips(e, spec);
    }
    for (index, address) in items(spec, "externalIPs").iter().enumerate() {
        let field = format!("spec.externalIPs[{index}]");
        if addresses::validate_legacy_address(e, &field, address) {
            super::network::validate_non_special_ip(e, &field, address);
        }
    }
    if kind.is_empty() {
        e.required("spec.type", "");
    } else if !matches!(kind, "ClusterIP" | "ExternalName" | "LoadBalancer" | "NodePort") {
        e.unsupported("spec.type", at(spec, "type"), &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
    }
    if kind == "ClusterIP" {
        for (index, port) in items(spec, "ports").iter().enumerate() {
            if number(port, "nodePort").unwrap_or(0) != 0 {
                e.forbidden(format!("spec.ports[{index}].nodePort"), "may not be used when `type` is 'ClusterIP'");
            }
        }
    }
    validate_unique_ports(e, spec);
    validate_load_balancer(e, object, kind);
    validate_traffic_policies(e, spec, kind);
}

/// The deprecated and the current topology annotation must match.
fn validate_topology_hints(e: &mut Errors, object: &Value) {
    const OLD: &str = "service.kubernetes.io/topology-aware-hints";
    const NEW: &str = "service.kubernetes.io/topology-mode";
    let annotations = fields(object, "metadata.annotations");
    if let (Some(old), Some(new)) = (annotations.get(OLD), annotations.get(NEW))
        && old != new
    {
        let reason = format!("must match annotations[{OLD}] when both are specified");
        e.invalid(format!("metadata.annotations[{NEW}]"), new, reason);
    }
}

fn validate_ports(e: &mut Errors, spec: &Value) {
    let list = items(spec, "ports");
    let mut names = BTreeSet::new();
    for (index, service_port) in list.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        let name = text(service_port, "name");
        if name.is_empty() {
            if list.len() > 1 {
                e.required(format!("{path}.name"), "");
            }
        } else {
            e.push_name_errors(&format!("{path}.name"), name, validate_dns1123_label(name));
            if !names.insert(name) {
                e.duplicate(format!("{path}.name"), &json!(name));
            }
        }
        let number = number(service_port, "port").unwrap_or(0);
        if let Some(reason) = port_number_error(number) {
            e.invalid(format!("{path}.port"), &json!(number), reason);
        }
        e.one_of(&format!("{path}.protocol"), at(service_port, "protocol"), &["SCTP", "TCP", "UDP"]);
        validate_port(e, &format!("{path}.targetPort"), at(service_port, "targetPort"));
        if let Some(protocol) = at(service_port, "appProtocol").as_str() {
            e.push_name_errors(&format!("{path}.appProtocol"), protocol, super::validate_qualified_name(protocol));
        }
    }
}

fn validate_unique_ports(e: &mut Errors, spec: &Value) {
    let list = items(spec, "ports");
    let mut seen: Vec<(&Value, &Value)> = Vec::new();
    for (index, port) in list.iter().enumerate() {
        let key = (at(port, "protocol"), at(port, "port"));
        if seen.contains(&key) {
            let port_text = format_internal_struct("core.ServicePort", &json!({"protocol": key.0, "port": key.1}));
            e.push(super::FieldError::new(
                super::FieldErrorKind::Duplicate,
                format!("spec.ports[{index}]"),
                Some(port_text),
                "",
            ));
        }
        seen.push(key);
    }
}

fn is_v6(address: &Value) -> bool {
    address.as_str().is_some_and(|address| address.contains(':'))
}

pub(super) fn validate_cluster_ips(e: &mut Errors, spec: &Value) {
    const FIELD: &str = "spec.clusterIPs";
    let (list, single) = (items(spec, "clusterIPs"), text(spec, "clusterIP"));
    match (list.first(), single) {
        (Some(_), "") => e.invalid(FIELD, &json!(list), "must be empty when `clusterIP` is not specified"),
        (Some(first), single) if first != single => {
            e.invalid(FIELD, &json!(list), "first value must match `clusterIP`");
        }
        (None, single) if !single.is_empty() => e.required(FIELD, ""),
        _ => {}
    }
    let families = items(spec, "ipFamilies");
    for (index, family) in families.iter().enumerate() {
        let field = format!("spec.ipFamilies[{index}]");
        if family != "IPv4" && family != "IPv6" {
            e.unsupported(&field, family, &["IPv4", "IPv6"]);
        }
        if families[..index].contains(family) {
            e.duplicate(field, family);
        }
    }
    e.optional_one_of(
        "spec.ipFamilyPolicy",
        at(spec, "ipFamilyPolicy"),
        &["PreferDualStack", "RequireDualStack", "SingleStack"],
    );
    let mut valid = true;
    for (index, address) in list.iter().enumerate() {
        if index == 0 && address == "None" {
            if list.len() > 1 {
                valid = false;
                e.invalid(FIELD, &json!(list), "'None' must be the first and only value");
            }
            continue;
        }
        valid &= addresses::validate_legacy_address(e, &format!("{FIELD}[{index}]"), address);
    }
    if list.len() > 2 {
        e.invalid(FIELD, &json!(list), "may only hold up to 2 values");
    }
    if !valid {
        return;
    }
    if list.len() > 1 && list.iter().all(|address| is_v6(address) == is_v6(&list[0])) {
        e.invalid(FIELD, &json!(list), "may specify no more than one IP for each IP family");
    }
    for (index, (address, family)) in list.iter().zip(families).enumerate().filter(|(_, (a, _))| *a != "None") {
        if is_v6(address) != (family == "IPv6") && (family == "IPv4" || family == "IPv6") {
            let family = family.as_str().unwrap_or_default();
            let reason = format!("expected an {family} value as indicated by `ipFamilies[{index}]`");
            e.invalid(format!("{FIELD}[{index}]"), address, reason);
        }
    }
}

/// Validates fields that apply only to load balancers.
fn validate_load_balancer(e: &mut Errors, object: &Value, kind: &str) {
    const LOAD_BALANCER_ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
    const ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
    let spec = at(object, "spec");
    let ranges = items(spec, "loadBalancerSourceRanges");
    if !ranges.is_empty() {
        if kind != "LoadBalancer" {
            e.forbidden("spec.LoadBalancerSourceRanges", LOAD_BALANCER_ONLY);
        }
        for (index, range) in ranges.iter().enumerate() {
            let range = range.as_str().unwrap_or_default().trim();
            super::network::validate_cidr(e, &format!("spec.LoadBalancerSourceRanges[{index}]"), range);
        }
    } else if let Some(annotation) = at(object, "metadata.annotations").get(ANNOTATION).and_then(Value::as_str) {
        let field = format!("metadata.annotations[{ANNOTATION}]");
        if kind != "LoadBalancer" {
            e.forbidden(&field, LOAD_BALANCER_ONLY);
        }
        for range in annotation.trim().split(',').filter(|_| !annotation.trim().is_empty()) {
            super::network::validate_cidr(e, &field, range.trim());
        }
    }
    if is_set(spec, "allocateLoadBalancerNodePorts") && kind != "LoadBalancer" {
        e.forbidden("spec.allocateLoadBalancerNodePorts", LOAD_BALANCER_ONLY);
    }
    let class = at(spec, "loadBalancerClass");
    if !class.is_null() && kind != "LoadBalancer" {
        e.forbidden("spec.loadBalancerClass", LOAD_BALANCER_ONLY);
    } else if let Some(name) = class.as_str() {
        e.push_name_errors("spec.loadBalancerClass", name, super::validate_qualified_name(name));
    }
}

fn validate_traffic_policies(e: &mut Errors, spec: &Value, kind: &str) {
    let external = text(spec, "externalTrafficPolicy");
    if is_externally_accessible(spec) {
        e.one_of("spec.externalTrafficPolicy", at(spec, "externalTrafficPolicy"), &["Cluster", "Local"]);
    } else if !external.is_empty() {
        e.invalid("spec.externalTrafficPolicy", &json!(external), "may only be set for externally-accessible services");
    }
    let health = number(spec, "healthCheckNodePort").unwrap_or(0);
    if health != 0 {
        if kind != "LoadBalancer" || external != "Local" {
            let reason = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            e.invalid("spec.healthCheckNodePort", &json!(health), reason);
        } else if let Some(reason) = port_number_error(health) {
            e.invalid("spec.healthCheckNodePort", &json!(health), reason);
        }
    }
    e.optional_one_of("spec.internalTrafficPolicy", at(spec, "internalTrafficPolicy"), &["Cluster", "Local"]);
    let distribution = at(spec, "trafficDistribution");
    // In the order in which kube-apiserver prints them.
    let supported = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    if !distribution.is_null() && !supported.iter().any(|name| distribution == name) {
        e.unsupported("spec.trafficDistribution", distribution, &supported);
    }
}

pub(super) fn validate_update(e: &mut Errors, old: &Value, new: &Value) {
    let (before, after) = (at(old, "spec"), at(new, "spec"));
    if needs_cluster_ip(before) && needs_cluster_ip(after) {
        validate_cluster_ip_change(e, before, after);
        let is_headless = |spec: &Value| text(spec, "clusterIP") == "None";
        if !is_headless(before) && !is_headless(after) {
            validate_ip_family_change(e, before, after);
        }
    }
    let class = |spec: &Value| at(spec, "loadBalancerClass").clone();
    let is_load_balancer = |spec: &Value| text(spec, "type") == "LoadBalancer";
    if is_load_balancer(before) && is_load_balancer(after) && class(before) != class(after) {
        e.invalid("spec.loadBalancerClass", &class(after), "may not change once set");
    }
    if needs_health_check_node_port(before)
        && needs_health_check_node_port(after)
        && at(before, "healthCheckNodePort") != at(after, "healthCheckNodePort")
    {
        e.forbidden("spec.healthCheckNodePort", "field is immutable");
    }
    validate_create(e, new);
}

fn validate_cluster_ip_change(e: &mut Errors, before: &Value, after: &Value) {
    let (from, to) = (items(before, "clusterIPs"), items(after, "clusterIPs"));
    if from.first().is_some_and(|first| first == "None") && to.first().is_some_and(|first| first == "None") {
        return;
    }
    if from.len() == to.len() {
        for (index, _) in from.iter().zip(to).enumerate().filter(|(_, (from, to))| from != to) {
            e.invalid(format!("spec.clusterIPs[{index}]"), &json!(to), "may not change once set");
        }
        return;
    }
    if to.is_empty() {
        e.invalid("spec.clusterIPs[0]", &json!(to), "primary clusterIP can not be unset");
    } else if from.first().is_some_and(|first| to.first() != Some(first)) {
        e.invalid("spec.clusterIPs[0]", &json!(to), "may not change once set");
    }
    if from.len() > to.len() && to.len() == 1 && text(after, "ipFamilyPolicy") != "SingleStack" {
        let reason = "must be set to 'SingleStack' when releasing the secondary clusterIP";
        e.invalid("spec.ipFamilyPolicy", at(after, "ipFamilyPolicy"), reason);
    }
}

/// As in kube-apiserver, errors for a changed family name the first one, and contain the cluster IPs if the number of
/// families changes.
fn validate_ip_family_change(e: &mut Errors, before: &Value, after: &Value) {
    let (from, to) = (items(before, "ipFamilies"), items(after, "ipFamilies"));
    const FIRST: &str = "spec.ipFamilies[0]";
    if from.len() == to.len() {
        for _ in from.iter().zip(to).filter(|(from, to)| from != to) {
            e.invalid(FIRST, &json!(to), "may not change once set");
        }
        return;
    }
    if let (Some(old_first), Some(new_first)) = (from.first(), to.first())
        && old_first != new_first
    {
        e.invalid(FIRST, &json!(items(after, "clusterIPs")), "may not change once set");
    }
    if from.len() > to.len() && to.len() == 1 && text(after, "ipFamilyPolicy") != "SingleStack" {
        let reason = "must be set to 'SingleStack' when releasing the secondary ipFamily";
        e.invalid("spec.ipFamilyPolicy", at(after, "ipFamilyPolicy"), reason);
    }
}
