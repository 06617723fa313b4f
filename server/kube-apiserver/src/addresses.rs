//! ServiceCIDR `kubernetes`, and an IPAddress for each cluster IP of a Service.
//!
//! The allocations are derived from the Services (`builtin::allocate`); these objects only publish them, as
//! kube-apiserver's allocator and repair loop do (KEP-1880). Written here only, read by clients.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::request::options::{DeleteOptions, WriteOptions};
use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_builtin::RANGE;
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::error::Error;
use crowsnest_registry::object::{Object, format_time};
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::storage::{ChangeKind, ResourceKey};
use crowsnest_registry::strategy::RequestContext;
use crowsnest_registry::{Change, Edit, Registry};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const GROUP: &str = "networking.k8s.io";
const NAME: &str = "kubernetes";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";

/// Creates the default ServiceCIDR if it is absent.
pub async fn ensure_service_cidr(registry: &Arc<Registry>) -> ApiResult<()> {
    let Some(ranges) = registry.catalog.get(&Gvr::new(GROUP, "v1", "servicecidrs")) else { return Ok(()) };
    let range = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": NAME}, "spec": {"cidrs": [RANGE]},
    });
    let mut warnings = Vec::new();
    match registry.create(&ranges, &loopback(""), range, &loopback_options(), &mut warnings).await {
        Err(error) if !error.is(Reason::AlreadyExists) => return Err(error),
        _ => {}
    }
    let ctx = RequestContext { subresource: "status".into(), ..loopback("") };
    let now = format_time(ctx.now);
    let edit = Edit(Arc::new(move |range: &mut Value| {
        // Set once; missing if the server stopped between both writes.
        if range["status"]["conditions"].is_array() {
            return Ok(());
        }
        range["status"]["conditions"] = json!([{
            "type": "Ready", "status": "True", "lastTransitionTime": now, "reason": "",
            "message": "Kubernetes default Service CIDR is ready",
        }]);
        Ok(())
    }));
    let options = WriteOptions { manager: "kubernetes-service-cidr-controller".into(), ..loopback_options() };
    registry.update(&ranges, &ctx, NAME, &Change::Edit(edit), &options, &mut warnings).await?;
    Ok(())
}

/// Reconciles IPAddresses with Services until cancelled.
pub async fn run(registry: Arc<Registry>, cancelled: CancellationToken) {
    let objects = registry.catalog.get(&Gvr::new(GROUP, "v1", "ipaddresses"));
    let services = registry.catalog.get(&Gvr::new("", "v1", "services"));
    let (Some(objects), Some(services)) = (objects, services) else { return };
    let reconciler = AddressReconciler { registry, objects };
    loop {
        let result = tokio::select! {
            result = reconciler.reconcile_until_expired(&services) => result,
            () = cancelled.cancelled() => return,
        };
        match result {
            Err(Error::Closed) => return,
            // A full reconciliation covers missed changes.
            Err(error) => tracing::debug!(%error, "restarting the watch of Services"),
            Ok(()) => {}
        }
    }
}

/// Cluster IPs, with namespace and name of the Service that holds them.
type Allocations = BTreeMap<String, (String, String)>;

fn allocations<'a>(services: impl IntoIterator<Item = &'a Value>) -> Allocations {
    let addresses_of = |service: &'a Value| {
        let owner = (service.namespace().to_owned(), service.name().to_owned());
        crowsnest_builtin::addresses(service).into_iter().map(move |address| (address, owner.clone()))
    };
    services.into_iter().flat_map(addresses_of).collect()
}

/// The Service that an allocated IPAddress belongs to.
fn parent(address: &Value) -> Option<(String, String)> {
    let reference = &address["spec"]["parentRef"];
    let is_managed = address["metadata"]["labels"][MANAGED_BY] == ALLOCATOR && reference["resource"] == "services";
    let text = |field: &str| reference[field].as_str().unwrap_or_default().to_owned();
    is_managed.then(|| (text("namespace"), text("name")))
}

struct AddressReconciler {
    registry: Arc<Registry>,
    objects: ResourceRef,
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
                let now = change.body.decode(change.revision)?;
                let before = change.previous.as_ref().map(|(revision, body)| body.decode(*revision)).transpose()?;
                let now = allocations((change.kind != ChangeKind::Deleted).then_some(&now));
                if let Err(error) = self.update(&allocations(&before), &now).await {
                    tracing::warn!(%error, "cannot update the IPAddresses of a Service");
                }
            }
        }
    }

    async fn reconcile_all(&self, services: &ResourceRef) -> ApiResult<()> {
        let known = self.registry.list_all(&self.objects).await?;
        let known = known.iter().filter_map(|address| Some((address.name().to_owned(), parent(address)?))).collect();
        self.update(&known, &allocations(&self.registry.list_all(services).await?)).await
    }

    /// Updates the IPAddresses from the previous to the current allocations.
    async fn update(&self, before: &Allocations, now: &Allocations) -> ApiResult<()> {
        let (ctx, options, mut warnings) = (loopback(""), loopback_options(), Vec::new());
        for (address, owner) in before.iter().filter(|(address, owner)| now.get(*address) != Some(owner)) {
            // An IPAddress of that name that was created manually is kept.
            let found = self.registry.get(&self.objects, "", address).await.ok();
            if found.is_none_or(|found| parent(&found).as_ref() != Some(owner)) {
                continue;
            }
            let delete = DeleteOptions { raw: json!({}), ..DeleteOptions::default() };
            match self.registry.delete(&self.objects, &ctx, address, &delete, &mut warnings).await {
                Err(error) if !error.is(Reason::NotFound) => return Err(error),
                _ => {}
            }
        }
        for (address, owner) in now.iter().filter(|(address, owner)| before.get(*address) != Some(owner)) {
            let object = object(address, owner);
            match self.registry.create(&self.objects, &ctx, object, &options, &mut warnings).await {
                Err(error) if !error.is(Reason::AlreadyExists) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

fn object(address: &str, (namespace, name): &(String, String)) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": address, "labels": {
            "ipaddress.kubernetes.io/ip-family": if address.contains(':') { "IPv6" } else { "IPv4" },
            MANAGED_BY: ALLOCATOR,
        }},
        "spec": {"parentRef": {"resource": "services", "namespace": namespace, "name": name}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ApiServer, Config, Data};

    #[tokio::test]
    async fn allocated_addresses_have_ip_address_objects() {
        let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
        let registry = server.registry();
        let of = |group: &str, resource: &str| registry.resource(&Gvr::new(group, "v1", resource)).unwrap();
        let (services, addresses) = (of("", "services"), of(GROUP, "ipaddresses"));
        let mut watcher =
            registry.store.watch(&ResourceKey::new(GROUP, "ipaddresses"), registry.store.revision()).unwrap();
        let (ctx, mut warnings) = (loopback("default"), Vec::new());
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "default"},
            "spec": {"clusterIP": "10.96.0.9", "ports": [{"port": 80}]},
        });
        registry.create(&services, &ctx, service, &loopback_options(), &mut warnings).await.unwrap();
        watcher.next().await.unwrap();
        let made = registry.list_all(&addresses).await.unwrap();
        let found: Vec<_> = made.iter().map(|object| (object.name().to_owned(), parent(object))).collect();
        assert_eq!(found, [("10.96.0.9".to_owned(), Some(("default".to_owned(), "a".to_owned())))]);
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
