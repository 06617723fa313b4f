//! Resolves Services for webhooks and extension API servers.

use std::sync::{Arc, Weak};

use crowsnest_apiserver::outbound::{Endpoint, InProcessServices, ResolveError, ServiceResolver};
use crowsnest_registry::Registry;
use crowsnest_registry::storage::{ObjectKey, ResourceKey};
use serde_json::Value;

/// Resolves in-process services first, then Service and EndpointSlice objects.
pub struct ClusterServices {
    registry: Weak<Registry>,
    /// Services that are served in this process, without a socket.
    pub in_process: InProcessServices,
}

impl ClusterServices {
    pub fn new(registry: &Arc<Registry>) -> Self {
        Self { registry: Arc::downgrade(registry), in_process: InProcessServices::default() }
    }
}

impl ServiceResolver for ClusterServices {
    fn resolve(&self, namespace: &str, name: &str, port: u16) -> Result<Endpoint, ResolveError> {
        if let Some(service) = self.in_process.get(namespace, name) {
            return Ok(Endpoint::InProcess(service));
        }
        let not_found = || ResolveError::NotFound(name.to_owned());
        let registry = self.registry.upgrade().ok_or_else(not_found)?;
        let service = registry.store.object(&ResourceKey::new("", "services"), &ObjectKey::new(namespace, name));
        let service = service.ok_or_else(not_found)?;
        let slices = registry.store.objects(&ResourceKey::new("discovery.k8s.io", "endpointslices"), namespace);
        resolve_endpoint(&service, &slices, port)
    }
}

/// Resolves a port of a Service to its ready endpoint, by the endpoint slices of its namespace. Has no side effects.
fn resolve_endpoint(service: &Value, slices: &[Value], port: u16) -> Result<Endpoint, ResolveError> {
    let text = |value: &Value, pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or("").to_owned();
    let name = text(service, "/metadata/name");
    if text(service, "/spec/type") == "ExternalName" {
        return Ok(Endpoint::Address { host: text(service, "/spec/externalName"), port });
    }
    let ports = service.pointer("/spec/ports").and_then(Value::as_array);
    let service_port = ports.into_iter().flatten().find(|p| p["port"].as_u64() == Some(u64::from(port)));
    let Some(service_port) = service_port else { return Err(ResolveError::NoPort { name, port }) };
    let port_name = text(service_port, "/name");
    let belongs_to_service = |slice: &&Value| {
        slice.pointer("/metadata/labels/kubernetes.io~1service-name").is_some_and(|n| *n == name.as_str())
    };
    if !slices.iter().any(|slice| belongs_to_service(&slice)) {
        return Err(ResolveError::NoSlices(name));
    }
    for slice in slices.iter().filter(belongs_to_service) {
        let target = slice["ports"].as_array().into_iter().flatten().find(|p| text(p, "/name") == port_name);
        let Some(target) = target.and_then(|p| p["port"].as_u64()).and_then(|p| u16::try_from(p).ok()) else {
            continue;
        };
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            if endpoint.pointer("/conditions/ready") == Some(&Value::Bool(false)) {
                continue;
            }
            if let Some(host) = endpoint["addresses"][0].as_str() {
                return Ok(Endpoint::Address { host: host.to_owned(), port: target });
            }
        }
    }
    Err(ResolveError::NoEndpoints { name, port_name })
}
