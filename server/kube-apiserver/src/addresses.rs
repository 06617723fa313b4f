//! ServiceCIDR `kubernetes`, and an IPAddress for each cluster IP of a Service.
//!
//! The allocations are derived from the Services (`builtin::allocate`); these objects only publish them, as
//! kube-apiserver's allocator and repair loop do (KEP-1880). Only this module writes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::request::options::{DeleteOptions, WriteOptions};
use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_builtin::SERVICE_CIDR;
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::error::Error;
use crowsnest_registry::object::{Object, format_time};
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::storage::{ChangeKind, ObjectKey, ResourceKey};
use crowsnest_registry::strategy::RequestContext;
use crowsnest_registry::{Change, Edit, Registry};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const GROUP: &str = "networking.k8s.io";
/// Name of the default ServiceCIDR.
const DEFAULT_CIDR: &str = "kubernetes";
const MANAGED_BY_LABEL: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";

/// Creates the default ServiceCIDR if it is absent.
pub async fn ensure_service_cidr(registry: &Arc<Registry>) -> ApiResult<()> {
    let Some(service_cidrs) = registry.catalog.get(&Gvr::new(GROUP, "v1", "servicecidrs")) else { return Ok(()) };
    let service_cidr = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": DEFAULT_CIDR}, "spec": {"cidrs": [SERVICE_CIDR]},
    });
    let mut warnings = Vec::new();
    match registry.create(&service_cidrs, &loopback(""), service_cidr, &loopback_options(), &mut warnings).await {
        Err(error) if !error.is(Reason::AlreadyExists) => return Err(error),
        _ => {}
    }
    let ctx = RequestContext { subresource: "status".into(), ..loopback("") };
    let now = format_time(ctx.now);
    let edit = Edit(Arc::new(move |service_cidr: &mut Value| {
        // The condition is set once. It is missing if the server stopped between the two writes.
        if service_cidr["status"]["conditions"].is_array() {
            return Ok(());
        }
        service_cidr["status"]["conditions"] = json!([{
            "type": "Ready", "status": "True", "lastTransitionTime": now, "reason": "",
            "message": "Kubernetes default Service CIDR is ready",
        }]);
        Ok(())
    }));
    let options = WriteOptions { manager: "kubernetes-service-cidr-controller".into(), ..loopback_options() };
    registry.update(&service_cidrs, &ctx, DEFAULT_CIDR, &Change::Edit(edit), &options, &mut warnings).await?;
    Ok(())
}

/// Reconciles IPAddresses with Services until cancelled.
pub async fn run(registry: Arc<Registry>, stop: CancellationToken) {
    let ip_addresses = registry.catalog.get(&Gvr::new(GROUP, "v1", "ipaddresses"));
    let services = registry.catalog.get(&Gvr::new("", "v1", "services"));
    let (Some(ip_addresses), Some(services)) = (ip_addresses, services) else { return };
    let reconciler = AddressReconciler { registry, ip_addresses };
    loop {
        let result = tokio::select! {
            result = reconciler.reconcile_until_expired(&services) => result,
            () = stop.cancelled() => return,
        };
        match result {
            Err(Error::Closed) => return,
            // A full reconciliation covers missed changes.
            Err(error) => tracing::debug!(%error, "restarting the watch of Services"),
            Ok(()) => {}
        }
    }
}

/// Cluster IPs, with the Services that use them.
type Allocations = BTreeMap<String, ObjectKey>;

fn collect_allocations<'a>(services: impl IntoIterator<Item = &'a Value>) -> Allocations {
    let addresses_of = |service: &'a Value| {
        let owner = ObjectKey::new(service.namespace(), service.name());
        crowsnest_builtin::cluster_ips(service).into_iter().map(move |address| (address, owner.clone()))
    };
    services.into_iter().flat_map(addresses_of).collect()
}

/// The Service that an allocated IPAddress belongs to; `None` for addresses of others.
fn owning_service(address: &Value) -> Option<ObjectKey> {
    let reference = &address["spec"]["parentRef"];
    let is_managed =
        address["metadata"]["labels"][MANAGED_BY_LABEL] == ALLOCATOR && reference["resource"] == "services";
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    is_managed.then(|| ObjectKey::new(text("namespace"), text("name")))
}

struct AddressReconciler {
    registry: Arc<Registry>,
    ip_addresses: ResourceRef,
}

impl AddressReconciler {
    /// Reconciles all objects, then those of changed Services until the watch expires.
    async fn reconcile_until_expired(&self, services: &ResourceRef) -> Result<(), Error> {
        let since = self.registry.store.revision();
        if let Err(error) = self.reconcile_all(services).await {
            tracing::warn!(%error, "cannot reconcile the IPAddresses of Services");
        }
        let mut watcher = self.registry.store.watch(&ResourceKey::new("", "services"), since)?;
        loop {
            for change in watcher.next().await? {
                let service = change.body.decode(change.revision)?;
                let previous = change.previous.as_ref().map(|(revision, body)| body.decode(*revision)).transpose()?;
                let current = collect_allocations((change.kind != ChangeKind::Deleted).then_some(&service));
                if let Err(error) = self.update(&collect_allocations(&previous), &current).await {
                    tracing::warn!(%error, "cannot update the IPAddresses of a Service");
                }
            }
        }
    }

    async fn reconcile_all(&self, services: &ResourceRef) -> ApiResult<()> {
        let published = self.registry.list_all(&self.ip_addresses).await?;
        let owner_by_address = |address: &Value| Some((address.name().to_owned(), owning_service(address)?));
        let published = published.iter().filter_map(owner_by_address).collect();
        self.update(&published, &collect_allocations(&self.registry.list_all(services).await?)).await
    }

    /// Updates the IPAddresses from the previous to the current allocations.
    async fn update(&self, previous: &Allocations, current: &Allocations) -> ApiResult<()> {
        let (ctx, options, mut warnings) = (loopback(""), loopback_options(), Vec::new());
        for (address, owner) in previous.iter().filter(|(address, owner)| current.get(*address) != Some(owner)) {
            // An IPAddress that a user created is kept.
            let existing = self.registry.get(&self.ip_addresses, "", address).await.ok();
            if existing.is_none_or(|existing| owning_service(&existing).as_ref() != Some(owner)) {
                continue;
            }
            let delete = DeleteOptions { raw: json!({}), ..DeleteOptions::default() };
            match self.registry.delete(&self.ip_addresses, &ctx, address, &delete, &mut warnings).await {
                Err(error) if !error.is(Reason::NotFound) => return Err(error),
                _ => {}
            }
        }
        for (address, owner) in current.iter().filter(|(address, owner)| previous.get(*address) != Some(owner)) {
            let object = new_ip_address(address, owner);
            match self.registry.create(&self.ip_addresses, &ctx, object, &options, &mut warnings).await {
                Err(error) if !error.is(Reason::AlreadyExists) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

fn new_ip_address(address: &str, owner: &ObjectKey) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": address, "labels": {
            "ipaddress.kubernetes.io/ip-family": if address.contains(':') { "IPv6" } else { "IPv4" },
            MANAGED_BY_LABEL: ALLOCATOR,
        }},
        "spec": {"parentRef": {"resource": "services", "namespace": owner.namespace(), "name": owner.name()}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ApiServer, Config, Data};

    #[tokio::test]
    async fn cluster_ips_have_ip_addresses() {
        let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
        let registry = server.registry();
        let resource = |group: &str, resource: &str| registry.resource(&Gvr::new(group, "v1", resource)).unwrap();
        let (services, addresses) = (resource("", "services"), resource(GROUP, "ipaddresses"));
        let mut watcher =
            registry.store.watch(&ResourceKey::new(GROUP, "ipaddresses"), registry.store.revision()).unwrap();
        let (ctx, mut warnings) = (loopback("default"), Vec::new());
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "default"},
            "spec": {"clusterIP": "10.96.0.9", "ports": [{"port": 80}]},
        });
        registry.create(&services, &ctx, service, &loopback_options(), &mut warnings).await.unwrap();
        watcher.next().await.unwrap();
        let listed = registry.list_all(&addresses).await.unwrap();
        let owners: Vec<_> = listed.iter().map(|object| (object.name().to_owned(), owning_service(object))).collect();
        assert_eq!(owners, [("10.96.0.9".to_owned(), Some(ObjectKey::new("default", "a")))]);
        // An ExternalName service has no address.
        let edit = Edit(Arc::new(|live: &mut Value| {
            live["spec"] = json!({"type": "ExternalName", "externalName": "elsewhere.test"});
            Ok(())
        }));
        registry.update(&services, &ctx, "a", &Change::Edit(edit), &loopback_options(), &mut warnings).await.unwrap();
        watcher.next().await.unwrap();
        assert!(registry.list_all(&addresses).await.unwrap().is_empty());
        server.stop().await.unwrap();
    }
}
