//! Dependencies between the fields of a Service: derived values, values that updates may omit, and values that a
//! change of the type removes. Has no side effects.

use serde_json::{Value, json};

use super::object::{at, at_mut, copy_field, for_each_item, is_set, is_unset, items, remove_field, set_field, text};

/// Sets fields that are derived from others.
pub(super) fn set_derived_fields(object: &mut Value) {
    let Some(spec) = at_mut(object, "spec") else { return };
    let cluster_ip = text(spec, "clusterIP").to_owned();
    if !cluster_ip.is_empty() && items(spec, "clusterIPs").is_empty() {
        set_field(spec, "clusterIPs", json!([cluster_ip]));
    }
    if text(spec, "type") == "ExternalName" {
        for field in ["ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
            remove_field(spec, field);
        }
    }
}

/// Keeps allocated values that an update omits, and removes those that do not apply to a new type unless they were
/// changed as well.
pub(super) fn prepare_update(old: &Value, new: &mut Value) {
    let before = at(old, "spec").clone();
    if let Some(spec) = at_mut(new, "spec") {
        keep_allocated(&before, spec);
        clear_unused(&before, spec);
    }
    // The controller that removes the load balancer clears the status later; clients need not see the old value.
    if text(new, "spec.type") != "LoadBalancer" && is_set(new, "status") {
        set_field(&mut new["status"], "loadBalancer", json!({}));
    }
}

/// True if the Service has a cluster IP, or `None` in its place.
pub(super) fn needs_cluster_ip(spec: &Value) -> bool {
    text(spec, "type") != "ExternalName"
}

fn needs_node_ports(spec: &Value) -> bool {
    matches!(text(spec, "type"), "NodePort" | "LoadBalancer")
}

/// True if node ports are allocated for the ports of the Service that have none.
pub(super) fn allocates_node_ports(spec: &Value) -> bool {
    match text(spec, "type") {
        "NodePort" => true,
        "LoadBalancer" => at(spec, "allocateLoadBalancerNodePorts") != false,
        _ => false,
    }
}

/// True if a load balancer checks the health of the Service's nodes at a node port.
pub(super) fn needs_health_check_node_port(spec: &Value) -> bool {
    text(spec, "type") == "LoadBalancer" && text(spec, "externalTrafficPolicy") == "Local"
}

/// True if clients outside of the cluster can reach the Service.
pub(super) fn is_externally_accessible(spec: &Value) -> bool {
    needs_node_ports(spec) || (text(spec, "type") == "ClusterIP" && !items(spec, "externalIPs").is_empty())
}

fn node_port(port: &Value) -> i64 {
    at(port, "nodePort").as_i64().unwrap_or(0)
}

fn node_ports(spec: &Value) -> Vec<i64> {
    items(spec, "ports").iter().map(node_port).filter(|number| *number != 0).collect()
}

fn keep_allocated(before: &Value, spec: &mut Value) {
    if needs_cluster_ip(before) && needs_cluster_ip(spec) {
        keep_addresses(before, spec);
    }
    if needs_node_ports(before) && needs_node_ports(spec) {
        let (old_ports, new_numbers) = (items(before, "ports").to_vec(), node_ports(spec));
        let used: Vec<i64> = node_ports(before).into_iter().filter(|number| new_numbers.contains(number)).collect();
        for_each_item(spec, "ports", |port| {
            let other = old_ports.iter().rfind(|other| text(other, "name") == text(port, "name"));
            let number = other.map_or(0, node_port);
            if node_port(port) == 0 && number != 0 && !used.contains(&number) {
                set_field(port, "nodePort", number);
            }
        });
    }
    if needs_health_check_node_port(before)
        && needs_health_check_node_port(spec)
        && !is_set(spec, "healthCheckNodePort")
    {
        copy_field(before, spec, "healthCheckNodePort");
    }
}

fn keep_addresses(before: &Value, spec: &mut Value) {
    // A client that changes only one of `clusterIP` and `clusterIPs` intends to change both.
    let changed = |field: &str| before.get(field) != spec.get(field);
    let (is_ip_changed, is_list_changed) = (changed("clusterIP"), changed("clusterIPs"));
    if is_unset(spec, "clusterIP") && items(spec, "clusterIPs").is_empty() {
        for field in ["clusterIP", "clusterIPs"] {
            copy_field(before, spec, field);
        }
    } else if is_ip_changed && !is_list_changed && !is_unset(spec, "clusterIP") {
        let mut addresses = items(spec, "clusterIPs").to_vec();
        let first = spec["clusterIP"].clone();
        match addresses.first_mut() {
            Some(slot) => *slot = first,
            None => addresses.push(first),
        }
        set_field(spec, "clusterIPs", addresses);
    } else if is_unset(spec, "clusterIP") {
        copy_field(before, spec, "clusterIP");
    }
    for field in ["ipFamilies", "ipFamilyPolicy"] {
        if !is_set(spec, field) {
            copy_field(before, spec, field);
        }
    }
}

fn clear_unused(before: &Value, spec: &mut Value) {
    let same = |spec: &Value, field: &str| before.get(field) == spec.get(field);
    if !needs_cluster_ip(spec) {
        if same(spec, "clusterIP") {
            remove_field(spec, "clusterIP");
            remove_field(spec, "clusterIPs");
        }
        for field in ["ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
            remove_field(spec, field);
        }
    }
    let old_numbers = node_ports(before);
    if needs_node_ports(before)
        && !needs_node_ports(spec)
        && node_ports(spec).iter().all(|number| old_numbers.contains(number))
    {
        for_each_item(spec, "ports", |port| drop(remove_field(port, "nodePort")));
    }
    let is_load_balancer = |spec: &Value| text(spec, "type") == "LoadBalancer";
    let unused_fields = [
        ("healthCheckNodePort", needs_health_check_node_port(before) && !needs_health_check_node_port(spec)),
        ("allocateLoadBalancerNodePorts", is_load_balancer(before) && !is_load_balancer(spec)),
        ("loadBalancerClass", is_load_balancer(before) && !is_load_balancer(spec)),
        ("externalTrafficPolicy", is_externally_accessible(before) && !is_externally_accessible(spec)),
    ];
    for (field, is_unused) in unused_fields {
        if is_unused && same(spec, field) {
            remove_field(spec, field);
        }
    }
}
