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
use super::object::{at, each, inside, is_unset, items, put, text};

/// Service CIDR, as kubeadm's default; addresses below the first allocated one can only be requested explicitly.
pub const RANGE: &str = "10.96.0.0/12";
const NETWORK: u32 = u32::from_be_bytes([10, 96, 0, 0]);
const FIRST: u32 = 256;
const SIZE: u32 = 1 << 20;
const PORTS: std::ops::RangeInclusive<i64> = 30000..=32767;

/// Allocations, by the UID of the Service that holds them.
#[derive(Debug, Default)]
struct Held {
    addresses: HashMap<String, String>,
    ports: HashMap<(String, i64), String>,
    /// Start of the search for the next free address.
    next_address: u32,
    next_port: i64,
}

/// The allocators of `services`.
#[derive(Debug, Default)]
pub struct ServiceAllocators {
    allocations: Mutex<Held>,
}

impl ServiceAllocators {
    /// Creates allocators that contain the allocations of the given Services.
    pub fn new<'a>(services: impl IntoIterator<Item = &'a Value>) -> Self {
        let allocators = Self::default();
        for service in services {
            let mut allocations = allocators.allocations.lock();
            let uid = uid(service);
            for address in addresses(service) {
                allocations.addresses.insert(address, uid.clone());
            }
            for port in ports(service) {
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
pub fn addresses(service: &Value) -> Vec<String> {
    let list = items(service, "spec.clusterIPs").iter().filter_map(Value::as_str);
    list.filter(|address| !address.is_empty() && *address != "None").map(str::to_owned).collect()
}

fn ports(service: &Value) -> Vec<(String, i64)> {
    let port =
        |port: &Value| Some((text(port, "protocol").to_owned(), at(port, "nodePort").as_i64().filter(|n| *n != 0)?));
    let mut out: Vec<(String, i64)> = items(service, "spec.ports").iter().filter_map(port).collect();
    out.extend(at(service, "spec.healthCheckNodePort").as_i64().filter(|n| *n != 0).map(|n| ("TCP".to_owned(), n)));
    out
}

fn needs_address(service: &Value) -> bool {
    text(service, "spec.type") != "ExternalName"
}

fn needs_ports(service: &Value) -> bool {
    match text(service, "spec.type") {
        "NodePort" => true,
        "LoadBalancer" => at(service, "spec.allocateLoadBalancerNodePorts") != false,
        _ => false,
    }
}

impl Held {
    fn free_address(&mut self) -> Option<String> {
        for _ in 0..SIZE - FIRST - 1 {
            let offset = FIRST + self.next_address % (SIZE - FIRST - 1);
            self.next_address = self.next_address.wrapping_add(1);
            let address = Ipv4Addr::from(NETWORK + offset).to_string();
            if !self.addresses.contains_key(&address) {
                return Some(address);
            }
        }
        None
    }

    fn free_port(&mut self) -> Option<i64> {
        let count = PORTS.end() - PORTS.start() + 1;
        for _ in 0..count {
            let port = PORTS.start() + self.next_port % count;
            self.next_port += 1;
            if !self.ports.keys().any(|(_, taken)| *taken == port) {
                return Some(port);
            }
        }
        None
    }

    /// Allocates the cluster IP of a Service that has none yet or requests a specific one.
    fn address(&mut self, owner: &str, new: &mut Value, keep: bool) -> Result<(), FieldError> {
        let requested = text(new, "spec.clusterIP").to_owned();
        // Validation rejects `clusterIPs` without `clusterIP`.
        let unnamed = requested.is_empty() && !items(new, "spec.clusterIPs").is_empty();
        if requested != "None" && !unnamed {
            let address = if requested.is_empty() {
                let why = "failed to allocate a serviceIP: range is full";
                self.free_address().ok_or_else(|| FieldError::invalid("spec.clusterIPs", &json!([]), why))?
            } else {
                requested
            };
            // Validation rejects invalid addresses and those of other families.
            if address.parse::<Ipv4Addr>().is_ok() {
                if keep && self.addresses.get(&address).is_some_and(|holder| holder != owner) {
                    let why = format!("failed to allocate IP {address}: provided IP is already allocated");
                    return Err(FieldError::invalid("spec.clusterIPs", &json!([address]), why));
                }
                let offset = address.parse::<Ipv4Addr>().map_or(0, |a| u32::from(a).wrapping_sub(NETWORK));
                if offset == 0 || offset >= SIZE - 1 {
                    let why = format!(
                        "failed to allocate IP {address}: the provided IP ({address}) is not in the valid range. The range of valid IPs is {RANGE}"
                    );
                    return Err(FieldError::invalid("spec.clusterIPs", &json!([address]), why));
                }
                if keep {
                    self.addresses.insert(address.clone(), owner.to_owned());
                }
            }
            if let Some(spec) = inside(new, "spec") {
                put(spec, "clusterIP", address.clone());
                put(spec, "clusterIPs", json!([address]));
            }
        }
        Ok(())
    }

    fn node_ports(&mut self, owner: &str, new: &mut Value, keep: bool) -> Vec<FieldError> {
        let (mut errors, mut here) = (Vec::new(), Vec::new());
        let mut index = 0;
        let Some(spec) = inside(new, "spec") else { return errors };
        each(spec, "ports", |port| {
            let field = format!("spec.ports[{index}].nodePort");
            index += 1;
            let protocol = text(port, "protocol").to_owned();
            let requested = at(port, "nodePort").as_i64().unwrap_or(0);
            let number = if requested == 0 { self.free_port() } else { Some(requested) };
            let Some(number) = number else {
                errors.push(FieldError::invalid(field, &json!(0), "failed to allocate a nodePort: range is full"));
                return;
            };
            let key = (protocol, number);
            // As in kube-apiserver, a dry run does not check the port range, only conflicts; for addresses it is the
            // opposite.
            if keep && requested != 0 && !PORTS.contains(&requested) {
                let why = "provided port is not in the valid range. The range of valid ports is 30000-32767";
                errors.push(FieldError::invalid(field, &json!(requested), why));
            } else if here.contains(&key) || self.ports.get(&key).is_some_and(|holder| holder != owner) {
                errors.push(FieldError::invalid(field, &json!(requested), "provided port is already allocated"));
            } else {
                if keep {
                    self.ports.insert(key.clone(), owner.to_owned());
                }
                here.push(key);
                put(port, "nodePort", number);
            }
        });
        errors
    }

    fn health_port(&mut self, owner: &str, new: &mut Value, keep: bool) {
        let wanted = text(new, "spec.type") == "LoadBalancer" && text(new, "spec.externalTrafficPolicy") == "Local";
        if !wanted || at(new, "spec.healthCheckNodePort").as_i64().unwrap_or(0) != 0 {
            return;
        }
        if let (Some(port), Some(spec)) = (self.free_port(), inside(new, "spec")) {
            if keep {
                self.ports.insert(("TCP".into(), port), owner.to_owned());
            }
            put(spec, "healthCheckNodePort", port);
        }
    }

    fn give_back(&mut self, from: &Value, to: Option<&Value>) {
        let owner = uid(from);
        let kept = to.map(|to| (addresses(to), ports(to))).unwrap_or_default();
        for address in addresses(from).iter().filter(|address| !kept.0.contains(address)) {
            if self.addresses.get(address) == Some(&owner) {
                self.addresses.remove(address);
            }
        }
        for port in ports(from).iter().filter(|port| !kept.1.contains(port)) {
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
        let nothing = Value::Null;
        // Validation rejects changes of an allocated address.
        let given = old.is_some_and(|old| needs_address(old) && !is_unset(old, "spec.clusterIP"));
        let mut errors = Vec::new();
        if needs_address(new) && !given {
            errors.extend(allocations.address(&owner, new, !ctx.dry_run).err());
        }
        if needs_ports(new) {
            errors.extend(allocations.node_ports(&owner, new, !ctx.dry_run));
        }
        allocations.health_port(&owner, new, !ctx.dry_run);
        if errors.is_empty() {
            return Ok(());
        }
        allocations.give_back(new, Some(old.unwrap_or(&nothing)));
        Err(errors)
    }

    fn release(&self, object: &Value) {
        self.allocations.lock().give_back(object, None);
    }

    fn release_replaced(&self, from: &Value, to: &Value) {
        self.allocations.lock().give_back(from, Some(to));
    }
}
