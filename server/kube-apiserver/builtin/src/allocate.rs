//! Allocators of cluster IPs and node ports of Services: allocated when a Service is created or changes its type,
//! released with it.
//!
//! Kept in memory and rebuilt from the stored Services at start; the store remains the source of truth.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use crowsnest_apimachinery::field::FieldError;
use crowsnest_registry::strategy::{Allocators, RequestContext};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::families;
use super::object::{at, at_mut, for_each_item, is_unset, items, set_field, text};
use super::service::{allocates_node_ports, needs_cluster_ip, needs_health_check_node_port};

/// Service CIDR, with the default of kubeadm. The first 256 addresses can only be requested explicitly.
pub const SERVICE_CIDR: &str = "10.96.0.0/12";
const NETWORK_ADDRESS: u32 = u32::from_be_bytes([10, 96, 0, 0]);
/// Offset of the first address that is allocated without a request for it.
const FIRST_OFFSET: u32 = 256;
/// Number of addresses in the CIDR.
const SIZE: u32 = 1 << 20;
const NODE_PORTS: std::ops::RangeInclusive<i64> = 30000..=32767;

/// Allocated addresses and ports (by protocol and number), with the UID of the Service that holds them.
#[derive(Debug, Default)]
struct Allocations {
    addresses: HashMap<String, String>,
    ports: HashMap<(String, i64), String>,
    /// Start of the search for the next free address.
    next_address: u32,
    /// Start of the search for the next free port.
    next_port: i64,
}

/// Allocators of the cluster IPs and node ports of Services.
#[derive(Debug, Default)]
pub struct ServiceAllocators {
    allocations: Mutex<Allocations>,
}

impl ServiceAllocators {
    /// Creates allocators that contain the allocations of the given Services.
    pub fn new<'a>(services: impl IntoIterator<Item = &'a Value>) -> Self {
        let allocators = Self::default();
        for service in services {
            let mut allocations = allocators.allocations.lock();
            let uid = uid(service);
            for address in cluster_ips(service) {
                allocations.addresses.insert(address, uid.clone());
            }
            for port in node_ports(service) {
                allocations.ports.insert(port, uid.clone());
            }
        }
        allocators
    }
}

fn uid(service: &Value) -> String {
    text(service, "metadata.uid").to_owned()
}

/// The cluster IPs of a Service.
pub fn cluster_ips(service: &Value) -> Vec<String> {
    let list = items(service, "spec.clusterIPs").iter().filter_map(Value::as_str);
    list.filter(|address| !address.is_empty() && *address != "None").map(str::to_owned).collect()
}

fn node_ports(service: &Value) -> Vec<(String, i64)> {
    let port =
        |port: &Value| Some((text(port, "protocol").to_owned(), at(port, "nodePort").as_i64().filter(|n| *n != 0)?));
    let mut out: Vec<(String, i64)> = items(service, "spec.ports").iter().filter_map(port).collect();
    out.extend(at(service, "spec.healthCheckNodePort").as_i64().filter(|n| *n != 0).map(|n| ("TCP".to_owned(), n)));
    out
}

impl Allocations {
    fn find_free_address(&mut self) -> Option<String> {
        for _ in 0..SIZE - FIRST_OFFSET - 1 {
            let offset = FIRST_OFFSET + self.next_address % (SIZE - FIRST_OFFSET - 1);
            self.next_address = self.next_address.wrapping_add(1);
            let address = Ipv4Addr::from(NETWORK_ADDRESS + offset).to_string();
            if !self.addresses.contains_key(&address) {
                return Some(address);
            }
        }
        None
    }

    fn find_free_port(&mut self) -> Option<i64> {
        let count = NODE_PORTS.end() - NODE_PORTS.start() + 1;
        for _ in 0..count {
            let port = NODE_PORTS.start() + self.next_port % count;
            self.next_port += 1;
            if !self.ports.keys().any(|(_, taken)| *taken == port) {
                return Some(port);
            }
        }
        None
    }

    /// Allocates the cluster IP of a Service that has none yet or requests a specific one. The allocation is recorded
    /// only if `is_stored`, which is false for a dry run.
    fn allocate_address(&mut self, owner: &str, new: &mut Value, is_stored: bool) -> Result<(), FieldError> {
        let requested = text(new, "spec.clusterIP").to_owned();
        // Validation rejects `clusterIPs` without `clusterIP`.
        let has_only_list = requested.is_empty() && !items(new, "spec.clusterIPs").is_empty();
        if requested != "None" && !has_only_list {
            let address = if requested.is_empty() {
                let reason = "failed to allocate a serviceIP: range is full";
                self.find_free_address().ok_or_else(|| FieldError::invalid("spec.clusterIPs", &json!([]), reason))?
            } else {
                requested
            };
            // Validation rejects invalid addresses and those of other families.
            if address.parse::<Ipv4Addr>().is_ok() {
                if is_stored && self.addresses.get(&address).is_some_and(|holder| holder != owner) {
                    let reason = format!("failed to allocate IP {address}: provided IP is already allocated");
                    return Err(FieldError::invalid("spec.clusterIPs", &json!([address]), reason));
                }
                let offset = address.parse::<Ipv4Addr>().map_or(0, |a| u32::from(a).wrapping_sub(NETWORK_ADDRESS));
                if offset == 0 || offset >= SIZE - 1 {
                    let reason = format!(
                        "failed to allocate IP {address}: the provided IP ({address}) is not in the valid range. The range of valid IPs is {SERVICE_CIDR}"
                    );
                    return Err(FieldError::invalid("spec.clusterIPs", &json!([address]), reason));
                }
                if is_stored {
                    self.addresses.insert(address.clone(), owner.to_owned());
                }
            }
            if let Some(spec) = at_mut(new, "spec") {
                set_field(spec, "clusterIP", address.clone());
                set_field(spec, "clusterIPs", json!([address]));
            }
        }
        Ok(())
    }

    fn allocate_node_ports(&mut self, owner: &str, new: &mut Value, is_stored: bool) -> Vec<FieldError> {
        let (mut errors, mut own_ports) = (Vec::new(), Vec::new());
        let mut index = 0;
        let Some(spec) = at_mut(new, "spec") else { return errors };
        for_each_item(spec, "ports", |port| {
            let field = format!("spec.ports[{index}].nodePort");
            index += 1;
            let protocol = text(port, "protocol").to_owned();
            let requested = at(port, "nodePort").as_i64().unwrap_or(0);
            let number = if requested == 0 { self.find_free_port() } else { Some(requested) };
            let Some(number) = number else {
                errors.push(FieldError::invalid(field, &json!(0), "failed to allocate a nodePort: range is full"));
                return;
            };
            let key = (protocol, number);
            // As in kube-apiserver, a dry run does not check the port range, only conflicts; for addresses it is the
            // opposite.
            if is_stored && requested != 0 && !NODE_PORTS.contains(&requested) {
                let reason = "provided port is not in the valid range. The range of valid ports is 30000-32767";
                errors.push(FieldError::invalid(field, &json!(requested), reason));
            } else if own_ports.contains(&key) || self.ports.get(&key).is_some_and(|holder| holder != owner) {
                errors.push(FieldError::invalid(field, &json!(requested), "provided port is already allocated"));
            } else {
                if is_stored {
                    self.ports.insert(key.clone(), owner.to_owned());
                }
                own_ports.push(key);
                set_field(port, "nodePort", number);
            }
        });
        errors
    }

    fn allocate_health_check_port(&mut self, owner: &str, new: &mut Value, is_stored: bool) {
        let spec = at(new, "spec");
        if !needs_health_check_node_port(spec) || at(spec, "healthCheckNodePort").as_i64().unwrap_or(0) != 0 {
            return;
        }
        if let (Some(port), Some(spec)) = (self.find_free_port(), at_mut(new, "spec")) {
            if is_stored {
                self.ports.insert(("TCP".into(), port), owner.to_owned());
            }
            set_field(spec, "healthCheckNodePort", port);
        }
    }

    /// Releases the allocations of `from` that `to` does not hold.
    fn release(&mut self, from: &Value, to: Option<&Value>) {
        let owner = uid(from);
        let retained = to.map(|to| (cluster_ips(to), node_ports(to))).unwrap_or_default();
        for address in cluster_ips(from).iter().filter(|address| !retained.0.contains(address)) {
            if self.addresses.get(address) == Some(&owner) {
                self.addresses.remove(address);
            }
        }
        for port in node_ports(from).iter().filter(|port| !retained.1.contains(port)) {
            if self.ports.get(port) == Some(&owner) {
                self.ports.remove(port);
            }
        }
    }
}

impl Allocators for ServiceAllocators {
    fn allocate(&self, ctx: &RequestContext, old: Option<&Value>, new: &mut Value) -> Result<(), Vec<FieldError>> {
        if !ctx.subresource.is_empty() {
            return Ok(());
        }
        let errors = families::set_ip_families(old, new);
        if !errors.is_empty() {
            return Err(errors);
        }
        let owner = uid(new);
        let mut allocations = self.allocations.lock();
        // Validation rejects changes of an allocated address.
        let has_address = old.is_some_and(|old| needs_cluster_ip(at(old, "spec")) && !is_unset(old, "spec.clusterIP"));
        let mut errors = Vec::new();
        if needs_cluster_ip(at(new, "spec")) && !has_address {
            errors.extend(allocations.allocate_address(&owner, new, !ctx.dry_run).err());
        }
        if allocates_node_ports(at(new, "spec")) {
            errors.extend(allocations.allocate_node_ports(&owner, new, !ctx.dry_run));
        }
        allocations.allocate_health_check_port(&owner, new, !ctx.dry_run);
        if errors.is_empty() {
            return Ok(());
        }
        allocations.release(new, old);
        Err(errors)
    }

    fn release(&self, object: &Value) {
        self.allocations.lock().release(object, None);
    }

    fn release_replaced(&self, from: &Value, to: &Value) {
        self.allocations.lock().release(from, Some(to));
    }
}
