//! Validation of endpoints, endpoint slices and network policies.

use std::net::IpAddr;

use super::selector::validate_label_selector;
use super::{
    Errors, Value, addresses, at, is_set, items, json, number, port_number_error, text, validate_dns1123_label,
    validate_dns1123_subdomain, validate_label_value, validate_port, validate_qualified_name,
};

pub(super) const IP_ERROR: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";

pub(super) const CIDR_ERROR: &str = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";

pub(super) fn validate_cidr(e: &mut Errors, field: &str, range: &str) {
    if let Some(reason) = addresses::legacy_cidr_error(range) {
        e.invalid(field, &json!(range), reason);
    }
}

/// `ValidateNonSpecialIP`.
pub(super) fn validate_non_special_ip(e: &mut Errors, field: &str, value: &Value) {
    let address_text = value.as_str().unwrap_or_default();
    let Ok(address) = address_text.parse::<IpAddr>() else {
        return e.invalid(field, &json!(address_text), "must be a valid IP address");
    };
    let (link_local, multicast) = match address {
        IpAddr::V4(ip) => (ip.is_link_local(), ip.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(ip) => (ip.is_unicast_link_local(), ip.segments()[0] & 0xff0f == 0xff02),
    };
    if address.is_unspecified() {
        e.invalid(field, value, format!("may not be unspecified ({address_text})"));
    }
    if address.is_loopback() {
        e.invalid(field, value, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    if link_local {
        e.invalid(field, value, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if multicast {
        e.invalid(field, value, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

pub(super) fn validate_endpoints(e: &mut Errors, object: &Value) {
    for (index, subset) in items(object, "subsets").iter().enumerate() {
        let path = format!("subsets[{index}]");
        if items(subset, "addresses").is_empty() && items(subset, "notReadyAddresses").is_empty() {
            e.required(&path, "must specify `addresses` or `notReadyAddresses`");
        }
        for list in ["addresses", "notReadyAddresses"] {
            for (index, entry) in items(subset, list).iter().enumerate() {
                let (path, ip) = (format!("{path}.{list}[{index}]"), json!(text(entry, "ip")));
                addresses::validate_legacy_address(e, &format!("{path}.ip"), &ip);
                let host = text(entry, "hostname");
                if !host.is_empty() {
                    e.push_name_errors(&format!("{path}.hostname"), host, validate_dns1123_label(host));
                }
                if let Some(node) = at(entry, "nodeName").as_str() {
                    e.push_name_errors(&format!("{path}.nodeName"), node, validate_dns1123_subdomain(node));
                }
                validate_non_special_ip(e, &format!("{path}.ip"), &ip);
            }
        }
        let ports = items(subset, "ports");
        for (index, entry) in ports.iter().enumerate() {
            let path = format!("{path}.ports[{index}]");
            let name = text(entry, "name");
            if name.is_empty() && ports.len() > 1 {
                e.required(format!("{path}.name"), "");
            } else if !name.is_empty() {
                e.push_name_errors(&format!("{path}.name"), name, validate_dns1123_label(name));
            }
            let number = number(entry, "port").unwrap_or(0);
            if let Some(reason) = port_number_error(number) {
                e.invalid(format!("{path}.port"), &json!(number), reason);
            }
            e.one_of(&format!("{path}.protocol"), at(entry, "protocol"), &["SCTP", "TCP", "UDP"]);
            if let Some(protocol) = at(entry, "appProtocol").as_str() {
                e.push_name_errors(&format!("{path}.appProtocol"), protocol, validate_qualified_name(protocol));
            }
        }
    }
}

pub(super) fn validate_endpoint_slice(e: &mut Errors, object: &Value) {
    let kind = text(object, "addressType");
    if kind.is_empty() {
        e.required("addressType", "");
    } else if !matches!(kind, "FQDN" | "IPv4" | "IPv6") {
        e.unsupported("addressType", &json!(kind), &["FQDN", "IPv4", "IPv6"]);
    }
    let endpoints = items(object, "endpoints");
    if endpoints.len() > 1000 {
        e.too_many("endpoints", endpoints.len(), 1000);
    } else {
        for (index, endpoint) in endpoints.iter().enumerate() {
            validate_endpoint(e, endpoint, kind, &format!("endpoints[{index}]"));
        }
    }
    let ports = items(object, "ports");
    if ports.len() > 20000 {
        return e.too_many("ports", ports.len(), 20000);
    }
    let mut names: Vec<&str> = Vec::new();
    for (index, entry) in ports.iter().enumerate() {
        let (name, path) = (text(entry, "name"), format!("ports[{index}]"));
        if !name.is_empty() {
            e.push_name_errors(&format!("{path}.name"), name, validate_dns1123_label(name));
        }
        if names.contains(&name) {
            e.duplicate(format!("{path}.name"), &json!(name));
        }
        names.push(name);
        if at(entry, "protocol") == "" {
            e.unsupported(format!("{path}.protocol"), at(entry, "protocol"), &["SCTP", "TCP", "UDP"]);
        } else {
            e.one_of(&format!("{path}.protocol"), at(entry, "protocol"), &["SCTP", "TCP", "UDP"]);
        }
        if let Some(protocol) = at(entry, "appProtocol").as_str() {
            e.push_name_errors(&format!("{path}.appProtocol"), protocol, validate_qualified_name(protocol));
        }
    }
}

fn validate_endpoint(e: &mut Errors, endpoint: &Value, kind: &str, path: &str) {
    let addresses = items(endpoint, "addresses");
    if addresses.is_empty() {
        e.required(format!("{path}.addresses"), "must contain at least 1 address");
    } else if addresses.len() > 100 {
        e.too_many(format!("{path}.addresses"), addresses.len(), 100);
    }
    for (position, value) in addresses.iter().enumerate() {
        let field = format!("{path}.addresses[{position}]");
        let parsed = value.as_str().and_then(|text| text.parse::<IpAddr>().ok());
        if parsed.is_none() && matches!(kind, "IPv4" | "IPv6") {
            e.invalid(&field, value, IP_ERROR);
            continue;
        }
        match kind {
            "IPv4" if !matches!(parsed, Some(IpAddr::V4(_))) => {
                e.invalid(&field, value, "must be a valid IPv4 address")
            }
            "IPv6" if !matches!(parsed, Some(IpAddr::V6(_))) => {
                e.invalid(&field, value, "must be a valid IPv6 address")
            }
            _ => {}
        }
        if matches!(kind, "IPv4" | "IPv6") {
            validate_non_special_ip(e, &field, value);
        } else if kind == "FQDN" {
            validate_domain_name(e, &field, value.as_str().unwrap_or_default());
        }
    }
    if let Some(node) = at(endpoint, "nodeName").as_str() {
        e.push_name_errors(&format!("{path}.nodeName"), node, validate_dns1123_subdomain(node));
    }
    if let Some(host) = at(endpoint, "hostname").as_str() {
        e.push_name_errors(&format!("{path}.hostname"), host, validate_dns1123_label(host));
    }
    for hint in ["forZones", "forNodes"] {
        for (index, one) in items(endpoint, &format!("hints.{hint}")).iter().enumerate() {
            let name = text(one, "name");
            e.push_name_errors(&format!("{path}.hints.{hint}[{index}].name"), name, validate_label_value(name));
        }
    }
}

/// `IsFullyQualifiedDomainName`.
fn validate_domain_name(e: &mut Errors, field: &str, name: &str) {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() {
        return e.required(field, "");
    }
    let reasons = validate_dns1123_subdomain(name);
    if !reasons.is_empty() {
        return e.push_name_errors(field, name, reasons);
    }
    if name.split('.').count() < 2 {
        e.invalid(field, &json!(name), "should be a domain with at least two segments separated by dots");
    }
    for label in name.split('.') {
        e.push_name_errors(field, label, validate_dns1123_label(label));
    }
}

pub(super) fn validate_network_policy(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    validate_label_selector(e, at(spec, "podSelector"), "spec.podSelector");
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in items(spec, rules).iter().enumerate() {
            let path = format!("spec.{rules}[{index}]");
            for (index, entry) in items(rule, "ports").iter().enumerate() {
                validate_policy_port(e, entry, &format!("{path}.ports[{index}]"));
            }
            for (index, entry) in items(rule, peers).iter().enumerate() {
                validate_peer(e, entry, &format!("{path}.{peers}[{index}]"));
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
            e.unsupported(format!("spec.policyTypes[{index}]"), kind, &["Ingress", "Egress"]);
        }
    }
}

fn validate_policy_port(e: &mut Errors, entry: &Value, path: &str) {
    if is_set(entry, "protocol") && !matches!(text(entry, "protocol"), "TCP" | "UDP" | "SCTP") {
        e.unsupported(format!("{path}.protocol"), at(entry, "protocol"), &["TCP", "UDP", "SCTP"]);
    }
    if is_set(entry, "port") {
        let (start, end, field) = (number(entry, "port"), number(entry, "endPort"), format!("{path}.endPort"));
        if start.is_some() {
            validate_port(e, &format!("{path}.port"), at(entry, "port"));
        }
        match (start, end) {
            (Some(start), Some(end)) => {
                if end < start {
                    // kube-apiserver reports the other port.
                    e.invalid(&field, &json!(start), "must be greater than or equal to `port`");
                }
                if let Some(reason) = port_number_error(end) {
                    e.invalid(field, &json!(end), reason);
                }
            }
            (None, Some(end)) => e.invalid(field, &json!(end), "may not be specified when `port` is non-numeric"),
            _ => {}
        }
        if start.is_none() {
            validate_port(e, &format!("{path}.port"), at(entry, "port"));
        }
    } else if let Some(end) = number(entry, "endPort") {
        e.invalid(format!("{path}.endPort"), &json!(end), "may not be specified when `port` is not specified");
    }
}

fn validate_peer(e: &mut Errors, entry: &Value, path: &str) {
    let mut peers = 0;
    for selector in ["podSelector", "namespaceSelector"] {
        if is_set(entry, selector) {
            peers += 1;
            validate_label_selector(e, at(entry, selector), &format!("{path}.{selector}"));
        }
    }
    if is_set(entry, "ipBlock") {
        peers += 1;
        validate_ip_block(e, at(entry, "ipBlock"), &format!("{path}.ipBlock"));
    }
    if peers == 0 {
        e.required(path, "must specify a peer");
    } else if peers > 1 && is_set(entry, "ipBlock") {
        e.forbidden(path, "may not specify both ipBlock and another peer");
    }
}

fn validate_ip_block(e: &mut Errors, block: &Value, path: &str) {
    let range = text(block, "cidr");
    if range.is_empty() {
        return e.required(format!("{path}.cidr"), "");
    }
    validate_cidr(e, &format!("{path}.cidr"), range);
    let Some(range) = parse_ip_block(range) else { return };
    for (index, except) in items(block, "except").iter().enumerate() {
        let (excluded_range, field) = (except.as_str().unwrap_or_default(), format!("{path}.except[{index}]"));
        validate_cidr(e, &field, excluded_range);
        let Some(inner) = parse_ip_block(excluded_range) else { continue };
        if !range.strictly_contains(&inner) {
            e.invalid(field, except, "must be a strict subset of `cidr`");
        }
    }
}

/// A CIDR as numbers, for comparisons.
struct IpBlock {
    first: u128,
    prefix: u32,
    /// Address length in bits.
    width: u32,
}

impl IpBlock {
    /// True if the other CIDR is a strict subset.
    fn strictly_contains(&self, other: &Self) -> bool {
        let host = self.width - self.prefix;
        let same = host >= 128 || self.first >> host == other.first >> host;
        self.width == other.width && self.prefix < other.prefix && same
    }
}

fn parse_ip_block(text: &str) -> Option<IpBlock> {
    let (address, prefix) = text.split_once('/')?;
    let prefix: u32 = prefix.parse().ok()?;
    let (first, width) = match address.parse::<IpAddr>().ok()? {
        IpAddr::V4(ip) => (u128::from(u32::from(ip)), 32),
        IpAddr::V6(ip) => (u128::from(ip), 128),
    };
    (prefix <= width).then_some(IpBlock { first, prefix, width })
}

pub(super) fn is_cidr(text: &str) -> bool {
    parse_ip_block(text).is_some()
}
