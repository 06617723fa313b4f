//! Warnings for Services, endpoints and ingresses.

use serde_json::Value;

use super::super::object::{at, fields, is_unset, items, text};
use super::addresses;

/// Values of the `managed-by` labels for controllers that write canonical addresses.
const CONTROLLERS: [&str; 3] =
    ["endpoint-controller", "endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"];

pub(super) fn service_warnings(new: &Value) -> Vec<String> {
    const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    let mut out = Vec::new();
    if fields(new, "metadata.annotations").contains_key(HINTS) {
        out.push(format!("annotation {HINTS} is deprecated, please use service.kubernetes.io/topology-mode instead"));
    }
    let spec = at(new, "spec");
    let is_external = text(spec, "type") == "ExternalName";
    let is_headless = text(spec, "type") == "ClusterIP" && text(spec, "clusterIP") == "None";
    if !is_headless && !is_external {
        out.extend(address_warnings(spec, "clusterIPs", "spec.clusterIPs"));
    }
    let has_external = !items(spec, "externalIPs").is_empty();
    if is_headless {
        let ignored = [
            (!text(spec, "loadBalancerIP").is_empty(), "spec.loadBalancerIP"),
            (has_external, "spec.externalIPs"),
            (text(spec, "sessionAffinity") != "None", "spec.SessionAffinity"),
        ];
        let ignored = ignored.iter().filter(|(is_set, _)| *is_set);
        out.extend(ignored.map(|(_, field)| format!("{field} is ignored for headless services")));
    }
    out.extend(address_warnings(spec, "externalIPs", "spec.externalIPs"));
    if has_external && !is_headless && !is_external {
        out.push("spec.externalIPs is deprecated and may no longer be implemented in some clusters".into());
    }
    out.extend(addresses::address_warning("spec.loadBalancerIP", text(spec, "loadBalancerIP")));
    for (index, range) in items(spec, "loadBalancerSourceRanges").iter().enumerate() {
        let field = format!("spec.loadBalancerSourceRanges[{index}]");
        out.extend(addresses::network_warnings(&field, range.as_str().unwrap_or_default()));
    }
    if is_external && has_external {
        out.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".into());
    }
    if !is_external && !text(spec, "externalName").is_empty() {
        out.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".into());
    }
    if text(spec, "trafficDistribution") == "PreferClose" {
        out.push("spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"".into());
    }
    out
}

/// Warnings for the addresses in a field of an object.
fn address_warnings(object: &Value, field: &str, path: &str) -> Vec<String> {
    let addresses = items(object, field).iter().enumerate();
    addresses
        .filter_map(|(index, address)| {
            addresses::address_warning(&format!("{path}[{index}]"), address.as_str().unwrap_or_default())
        })
        .collect()
}

pub(super) fn ingress_warnings(new: &Value) -> Vec<String> {
    const ANNOTATION: &str = "kubernetes.io/ingress.class";
    let is_deprecated =
        fields(new, "metadata.annotations").contains_key(ANNOTATION) && is_unset(new, "spec.ingressClassName");
    is_deprecated
        .then(|| format!("annotation \"{ANNOTATION}\" is deprecated, please use 'spec.ingressClassName' instead"))
        .into_iter()
        .collect()
}

pub(super) fn network_policy_warnings(new: &Value) -> Vec<String> {
    let mut out = Vec::new();
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        for (index, rule) in items(new, &format!("spec.{rules}")).iter().enumerate() {
            for (position, peer) in items(rule, peers).iter().enumerate() {
                let path = format!("spec.{rules}[{index}].{peers}[{position}].ipBlock");
                let block = at(peer, "ipBlock");
                out.extend(addresses::network_warnings(&format!("{path}.cidr"), text(block, "cidr")));
                for (nth, except) in items(block, "except").iter().enumerate() {
                    let field = format!("{path}.except[{nth}]");
                    out.extend(addresses::network_warnings(&field, except.as_str().unwrap_or_default()));
                }
            }
        }
    }
    out
}

/// True if `label` names a controller that writes canonical addresses.
fn is_managed_by_controller(new: &Value, label: &str) -> bool {
    let manager = fields(new, "metadata.labels").get(label).and_then(Value::as_str);
    manager.is_some_and(|manager| CONTROLLERS.contains(&manager))
}

pub(super) fn endpoint_slice_warnings(old: Option<&Value>, new: &Value) -> Vec<String> {
    let mut out = Vec::new();
    if old.is_none() && text(new, "addressType") == "FQDN" {
        out.push("spec.addressType: FQDN endpoints are deprecated".into());
    }
    if !is_managed_by_controller(new, "endpointslice.kubernetes.io/managed-by") {
        for (index, endpoint) in items(new, "endpoints").iter().enumerate() {
            out.extend(address_warnings(endpoint, "addresses", &format!("endpoints[{index}].addresses")));
        }
    }
    out
}

pub(super) fn endpoints_warnings(old: Option<&Value>, new: &Value) -> Vec<String> {
    let mut out = Vec::new();
    if old.is_none() {
        out.push("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".into());
    }
    if is_managed_by_controller(new, "endpoints.kubernetes.io/managed-by") {
        return out;
    }
    for (index, subset) in items(new, "subsets").iter().enumerate() {
        for list in ["addresses", "notReadyAddresses"] {
            for (position, address) in items(subset, list).iter().enumerate() {
                out.extend(addresses::address_warning(
                    &format!("subsets[{index}].{list}[{position}].ip"),
                    text(address, "ip"),
                ));
            }
        }
    }
    out
}
