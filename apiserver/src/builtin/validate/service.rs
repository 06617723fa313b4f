//! Services.

use std::collections::BTreeSet;

use super::network::BAD_IP;
use super::{
    Errors, Value, at, dns1123_label, dns1123_subdomain, items, json, labels, number, port, port_number, text, unset,
};

pub(super) fn create(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    let kind = text(spec, "type");
    let headless = text(spec, "clusterIP") == "None";
    if items(spec, "ports").is_empty() && !headless && kind != "ExternalName" {
        e.required("spec.ports", "");
    }
    match kind {
        "LoadBalancer" => {
            for (index, port) in items(spec, "ports").iter().enumerate() {
                if number(port, "port") == Some(10250) {
                    e.invalid(
                        format!("spec.ports[{index}].port"),
                        &json!(10250),
                        "may not expose port 10250 externally since it is used by kubelet",
                    );
                }
            }
            if headless {
                e.invalid("spec.clusterIPs[0]", &json!("None"), "may not be set to 'None' for LoadBalancer services");
            }
        }
        "NodePort" if headless => {
            e.invalid("spec.clusterIPs[0]", &json!("None"), "may not be set to 'None' for NodePort services")
        }
        "ExternalName" => {
            let name = text(spec, "externalName").trim_end_matches('.');
            if name.is_empty() {
                e.required("spec.externalName", "");
            } else {
                e.names("spec.externalName", name, dns1123_subdomain(name));
            }
            if !items(spec, "clusterIPs").is_empty() {
                e.forbidden("spec.clusterIPs", "may not be set when `type` is 'ExternalName'");
            }
        }
        _ => {}
    }
    ports(e, spec);
    e.0.extend(labels(spec.get("selector"), "spec.selector"));
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
    cluster_ips(e, spec);
    for (index, address) in items(spec, "externalIPs").iter().enumerate() {
        ip(e, &format!("spec.externalIPs[{index}]"), address);
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
    node_ports(e, spec);
    traffic(e, spec, kind);
}

fn ports(e: &mut Errors, spec: &Value) {
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
            e.names(&format!("{path}.name"), name, dns1123_label(name));
            if !names.insert(name) {
                e.duplicate(format!("{path}.name"), &json!(name));
            }
        }
        let number = number(service_port, "port").unwrap_or(0);
        if let Some(why) = port_number(number) {
            e.invalid(format!("{path}.port"), &json!(number), why);
        }
        e.one_of(&format!("{path}.protocol"), at(service_port, "protocol"), &["SCTP", "TCP", "UDP"]);
        port(e, &format!("{path}.targetPort"), at(service_port, "targetPort"));
        let protocol = text(service_port, "appProtocol");
        if !protocol.is_empty() {
            e.names(&format!("{path}.appProtocol"), protocol, super::qualified_name(protocol));
        }
    }
    let mut seen: Vec<(&Value, &Value)> = Vec::new();
    for (index, port) in list.iter().enumerate() {
        let key = (at(port, "protocol"), at(port, "port"));
        if seen.contains(&key) {
            let shown =
                super::go::text_of(&json!({"protocol": key.0, "port": key.1}), "io.k8s.api.core.v1.ServicePort");
            e.push(super::FieldError::new(
                super::FieldErrorKind::Duplicate,
                format!("spec.ports[{index}]"),
                Some(shown),
                "",
            ));
        }
        seen.push(key);
    }
}

fn node_ports(e: &mut Errors, spec: &Value) {
    let mut seen: Vec<(&Value, &Value)> = Vec::new();
    for (index, port) in items(spec, "ports").iter().enumerate() {
        if number(port, "nodePort").unwrap_or(0) == 0 {
            continue;
        }
        let key = (at(port, "protocol"), at(port, "nodePort"));
        if seen.contains(&key) {
            e.duplicate(format!("spec.ports[{index}].nodePort"), key.1);
        }
        seen.push(key);
    }
}

fn ip(e: &mut Errors, field: &str, address: &Value) {
    if address.as_str().is_none_or(|a| a.parse::<std::net::IpAddr>().is_err()) {
        e.invalid(field, address, BAD_IP);
    }
}

fn cluster_ips(e: &mut Errors, spec: &Value) {
    let list = items(spec, "clusterIPs");
    let single = text(spec, "clusterIP");
    if !list.is_empty() && single.is_empty() {
        e.required("spec.clusterIP", "must be set to the same value as spec.clusterIPs[0]");
    } else if let Some(first) = list.first()
        && first != single
    {
        e.invalid("spec.clusterIPs", &json!(list), "first value must match `clusterIP`");
    }
    if list.len() > 1 && list.iter().any(|address| address == "None") {
        let none = list.iter().position(|address| address == "None").unwrap_or(0);
        e.invalid(format!("spec.clusterIPs[{none}]"), &json!("None"), "'None' must be the first and only value");
    }
    for (index, address) in list.iter().enumerate().filter(|(_, address)| *address != "None" && *address != "") {
        ip(e, &format!("spec.clusterIPs[{index}]"), address);
    }
    for (index, family) in items(spec, "ipFamilies").iter().enumerate() {
        if family != "IPv4" && family != "IPv6" {
            e.unsupported(format!("spec.ipFamilies[{index}]"), family, &["IPv4", "IPv6"]);
        }
    }
    e.optional_one_of(
        "spec.ipFamilyPolicy",
        at(spec, "ipFamilyPolicy"),
        &["PreferDualStack", "RequireDualStack", "SingleStack"],
    );
}

fn traffic(e: &mut Errors, spec: &Value, kind: &str) {
    let external = text(spec, "externalTrafficPolicy");
    let facing =
        matches!(kind, "NodePort" | "LoadBalancer") || (kind == "ClusterIP" && !items(spec, "externalIPs").is_empty());
    if !external.is_empty() && !facing {
        e.invalid("spec.externalTrafficPolicy", &json!(external), "may only be set for externally-accessible services");
    } else {
        e.optional_one_of("spec.externalTrafficPolicy", at(spec, "externalTrafficPolicy"), &["Cluster", "Local"]);
    }
    e.optional_one_of("spec.internalTrafficPolicy", at(spec, "internalTrafficPolicy"), &["Cluster", "Local"]);
    if kind != "LoadBalancer" {
        if !items(spec, "loadBalancerSourceRanges").is_empty() {
            e.forbidden("spec.LoadBalancerSourceRanges", "may only be used when `type` is 'LoadBalancer'");
        }
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if !unset(spec, field) {
                e.forbidden(format!("spec.{field}"), "may only be used when `type` is 'LoadBalancer'");
            }
        }
    }
}

pub(super) fn update(e: &mut Errors, old: &Value, new: &Value) {
    let (before, after) = (at(old, "spec"), at(new, "spec"));
    let has_ip = |spec: &Value| text(spec, "type") != "ExternalName";
    if has_ip(before) && has_ip(after) {
        let (from, to) = (items(before, "clusterIPs"), items(after, "clusterIPs"));
        if let Some(first) = from.first()
            && first != ""
            && to.first() != Some(first)
        {
            e.invalid("spec.clusterIPs[0]", &json!(to), "may not change once set");
        }
    }
    create(e, new);
}

pub(super) fn warnings(object: &Value) -> Vec<String> {
    let mut out = Vec::new();
    if text(object, "spec.clusterIP") == "None" && !unset(object, "spec.loadBalancerIP") {
        out.push("spec.loadBalancerIP is ignored when spec.type is not \"LoadBalancer\"".into());
    }
    if text(object, "spec.type") == "ExternalName" && at(object, "spec.sessionAffinity") == "ClientIP" {
        out.push("spec.SessionAffinity is ignored for \"ExternalName\" services".into());
    }
    out
}
