//! Gives every namespace a `default` service account and the cluster's certificates. For members.

use std::sync::Arc;

use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_registry::Registry;
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::error::Error;
use crowsnest_registry::object::Object;
use crowsnest_registry::storage::{ObjectKey, ResourceKey};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::core;

/// The config map of every cluster, and its key.
pub const ROOT: (&str, &str) = ("kube-root-ca.crt", "ca.crt");
/// The one that OpenShift's controller manager publishes beside it.
pub const SERVICE: (&str, &str) = ("openshift-service-ca.crt", "service-ca.crt");

/// Follows namespaces and what must be in them until cancelled. `published`: config maps that hold the certificate.
pub async fn run(
    registry: Arc<Registry>,
    certificate: String,
    published: Vec<(&'static str, &'static str)>,
    stopped: CancellationToken,
) {
    loop {
        let since = registry.store.revision();
        if let Err(error) = pass(&registry, &certificate, &published).await {
            tracing::warn!(%error, "default service accounts");
        }
        let watch = |plural: &str| registry.store.watch(&ResourceKey::new("", plural), since);
        let (Ok(mut namespaces), Ok(mut accounts)) = (watch("namespaces"), watch("serviceaccounts")) else { continue };
        let changes = tokio::select! {
            changes = namespaces.next() => changes,
            changes = accounts.next() => changes,
            () = stopped.cancelled() => return,
        };
        if matches!(changes, Err(Error::Closed)) {
            return;
        }
    }
}

async fn pass(registry: &Arc<Registry>, certificate: &str, published: &[(&str, &str)]) -> ApiResult<()> {
    let mut failed = None;
    for namespace in registry.list_all(&core(registry, "namespaces")?).await? {
        if namespace.is_deleting() {
            continue;
        }
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        let maps = published.iter().map(|(name, key)| {
            let data = json!({*key: certificate});
            ("configmaps", json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}))
        });
        // One namespace's failure is no other's.
        for (plural, object) in [("serviceaccounts", account)].into_iter().chain(maps) {
            failed = ensure(registry, plural, namespace.name(), object).await.err().or(failed);
        }
    }
    failed.map_or(Ok(()), Err)
}

async fn ensure(registry: &Arc<Registry>, plural: &str, namespace: &str, object: Value) -> ApiResult<()> {
    if registry.store.get(&ResourceKey::new("", plural), &ObjectKey::new(namespace, object.name())).is_some() {
        return Ok(());
    }
    let resource = core(registry, plural)?;
    match registry.create(&resource, &loopback(namespace), object, &loopback_options(), &mut Vec::new()).await {
        Ok(_) => Ok(()),
        // Made by somebody else, or the namespace went away meanwhile.
        Err(error) if [Reason::AlreadyExists, Reason::NotFound, Reason::Forbidden].iter().any(|r| error.is(*r)) => {
            Ok(())
        }
        Err(error) => Err(error),
    }
}
