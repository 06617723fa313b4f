//! Endpoints, endpoint slices, network policies.

use super::selector::label_selector;
use super::{Errors, Value, at, dns1123_label, items, json, number, port, port_number, set, text};

pub(super) const BAD_IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

fn address(e: &mut Errors, field: &str, value: &Value) {
    if value.as_str().is_none_or(|a| a.parse::<std::net::IpAddr>().is_err()) {
        e.invalid(field, value, BAD_IP);
    }
}

pub(super) fn endpoints(e: &mut Errors, object: &Value) {
    for (index, subset) in items(object, "subsets").iter().enumerate() {
        let path = format!("subsets[{index}]");
        if items(subset, "addresses").is_empty() && items(subset, "notReadyAddresses").is_empty() {
            e.required(&path, "must specify `addresses` or `notReadyAddresses`");
        }
        for list in ["addresses", "notReadyAddresses"] {
            for (index, entry) in items(subset, list).iter().enumerate() {
                address(e, &format!("{path}.{list}[{index}].ip"), &json!(text(entry, "ip")));
            }
        }
        let ports = items(subset, "ports");
        for (index, entry) in ports.iter().enumerate() {
            let path = format!("{path}.ports[{index}]");
            let name = text(entry, "name");
            if name.is_empty() && ports.len() > 1 {
                e.required(format!("{path}.name"), "");
            } else if !name.is_empty() {
                e.names(&format!("{path}.name"), name, dns1123_label(name));
            }
            let number = number(entry, "port").unwrap_or(0);
            if let Some(why) = port_number(number) {
                e.invalid(format!("{path}.port"), &json!(number), why);
            }
            e.one_of(&format!("{path}.protocol"), at(entry, "protocol"), &["SCTP", "TCP", "UDP"]);
        }
    }
}

pub(super) fn endpoint_slice(e: &mut Errors, object: &Value) {
    let kind = text(object, "addressType");
    if kind.is_empty() {
        e.required("addressType", "");
    } else if !matches!(kind, "FQDN" | "IPv4" | "IPv6") {
        e.unsupported("addressType", &json!(kind), &["FQDN", "IPv4", "IPv6"]);
    }
    for (index, endpoint) in items(object, "endpoints").iter().enumerate() {
        let addresses = items(endpoint, "addresses");
        if addresses.is_empty() {
            e.required(format!("endpoints[{index}].addresses"), "must contain at least 1 address");
        }
        for (position, value) in addresses.iter().enumerate().filter(|_| kind != "FQDN") {
            address(e, &format!("endpoints[{index}].addresses[{position}]"), value);
        }
    }
    let mut names: Vec<&str> = Vec::new();
    for (index, entry) in items(object, "ports").iter().enumerate() {
        let name = text(entry, "name");
        if !name.is_empty() {
            e.names(&format!("ports[{index}].name"), name, dns1123_label(name));
        }
        if names.contains(&name) {
            e.duplicate(format!("ports[{index}].name"), &json!(name));
        }
        names.push(name);
    }
}

pub(super) fn policy(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    label_selector(e, at(spec, "podSelector"), "spec.podSelector");
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in items(spec, rules).iter().enumerate() {
            let path = format!("spec.{rules}[{index}]");
            for (index, entry) in items(rule, "ports").iter().enumerate() {
                policy_port(e, entry, &format!("{path}.ports[{index}]"));
            }
            for (index, entry) in items(rule, peers).iter().enumerate() {
                peer(e, entry, &format!("{path}.{peers}[{index}]"));
            }
        }
    }
    let types = items(spec, "policyTypes");
    if types.len() > 2 {
        e.invalid("spec.policyTypes", &json!(types), "may not specify more than two policyTypes");
        return;
    }
    for (index, kind) in types.iter().enumerate() {
        if kind != "Ingress" && kind != "Egress" {
            e.unsupported(format!("spec.policyTypes[{index}]"), kind, &["Egress", "Ingress"]);
        }
    }
}

fn policy_port(e: &mut Errors, entry: &Value, path: &str) {
    if set(entry, "protocol") && !matches!(text(entry, "protocol"), "TCP" | "UDP" | "SCTP") {
        e.unsupported(format!("{path}.protocol"), at(entry, "protocol"), &["TCP", "UDP", "SCTP"]);
    }
    if set(entry, "port") {
        port(e, &format!("{path}.port"), at(entry, "port"));
        if let Some(end) = number(entry, "endPort") {
            if number(entry, "port").is_none() {
                e.invalid(format!("{path}.endPort"), &json!(end), "may not be specified when `port` is non-numeric");
            } else if number(entry, "port").is_some_and(|start| end < start) {
                e.invalid(format!("{path}.endPort"), &json!(end), "must be greater than or equal to `port`");
            }
        }
    } else if let Some(end) = number(entry, "endPort") {
        e.invalid(format!("{path}.endPort"), &json!(end), "may not be specified when `port` is not specified");
    }
}

fn peer(e: &mut Errors, entry: &Value, path: &str) {
    let mut peers = 0;
    for selector in ["podSelector", "namespaceSelector"] {
        if set(entry, selector) {
            peers += 1;
            label_selector(e, at(entry, selector), &format!("{path}.{selector}"));
        }
    }
    if set(entry, "ipBlock") {
        peers += 1;
        let cidr = text(entry, "ipBlock.cidr");
        if cidr.is_empty() {
            e.required(format!("{path}.ipBlock.cidr"), "");
        } else if !is_cidr(cidr) {
            e.invalid(
                format!("{path}.ipBlock.cidr"),
                &json!(cidr),
                "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            );
        }
    }
    if peers == 0 {
        e.required(path, "must specify a peer");
    } else if peers > 1 && set(entry, "ipBlock") {
        e.forbidden(path, "may not specify both ipBlock and another peer");
    }
}

pub(super) fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    match (address.parse::<std::net::IpAddr>(), bits.parse::<u8>()) {
        (Ok(std::net::IpAddr::V4(_)), Ok(bits)) => bits <= 32,
        (Ok(std::net::IpAddr::V6(_)), Ok(bits)) => bits <= 128,
        _ => false,
    }
}
