//! Service account and root CA controllers: maintain the `default` service account and the config maps with the
//! cluster's CA certificate in every namespace. Deleted objects are created again and changed config maps restored.
//! The controllers run in simulated members.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::error::Error;
use crowsnest_registry::object::Object;
use crowsnest_registry::storage::{Change, ChangeKind, ObjectKey, ResourceKey};
use crowsnest_registry::{Edit, Registry};
use serde_json::{Map, Value, json};

use super::{core_resource, run_with_restart};
use crate::ApiServer;

const DEFAULT_ACCOUNT: &str = "default";
/// Delay before failed namespaces are reconciled again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// A config map with the CA certificate, which every namespace contains.
#[derive(Debug, Clone, Copy)]
pub struct CertificateConfigMap {
    name: &'static str,
    key: &'static str,
    /// Name and value of an annotation that describes the use of the certificate.
    annotation: Option<(&'static str, &'static str)>,
}

/// The config map that kube-controller-manager publishes.
pub const ROOT_CA: CertificateConfigMap = CertificateConfigMap {
    name: "kube-root-ca.crt",
    key: "ca.crt",
    annotation: Some((
        "kubernetes.io/description",
        "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.",
    )),
};
/// The config map that OpenShift's controller manager publishes in addition.
pub const SERVICE_CA: CertificateConfigMap =
    CertificateConfigMap { name: "openshift-service-ca.crt", key: "service-ca.crt", annotation: None };

impl CertificateConfigMap {
    /// Restores the contents of a config map; false if nothing had to be changed.
    fn restore(&self, map: &mut Value, certificate: &str) -> bool {
        let data = json!({ self.key: certificate });
        let has_annotation = self.annotation.is_none_or(|(name, _)| {
            map["metadata"]["annotations"][name].as_str().is_some_and(|description| !description.is_empty())
        });
        if has_annotation && map["data"] == data {
            return false;
        }
        map["data"] = data;
        if let Some((name, description)) = self.annotation {
            let annotations = map.metadata_mut().entry("annotations").or_insert(Value::Null);
            if !annotations.is_object() {
                *annotations = Map::new().into();
            }
            annotations[name] = description.into();
        }
        true
    }
}

/// Reconciles namespaces until the server stops.
pub async fn run(server: ApiServer, config_maps: Vec<CertificateConfigMap>) {
    run_with_restart(server, "default service accounts", |server| reconcile_changes(server, config_maps.clone())).await;
}

/// Reconciles all namespaces once, then those that change or in which an object is deleted.
async fn reconcile_changes(server: ApiServer, config_maps: Vec<CertificateConfigMap>) -> Result<Infallible, Error> {
    let registry = server.registry();
    let watch = |plural: &str| registry.store.watch(&ResourceKey::new("", plural), registry.store.revision());
    let (mut namespaces, mut accounts, mut maps) =
        (watch("namespaces")?, watch("serviceaccounts")?, watch("configmaps")?);
    let certificate = server.authority().certificate();
    let reconciler = NamespaceReconciler { registry, certificate, config_maps: &config_maps };
    let all = registry.store.objects(&ResourceKey::new("", "namespaces"), "");
    let mut pending: BTreeSet<String> = all.iter().map(|namespace| namespace.name().to_owned()).collect();
    loop {
        let mut failed = BTreeSet::new();
        for namespace in pending {
            if let Err(error) = reconciler.reconcile(&namespace).await {
                tracing::warn!(namespace, %error, "cannot write the default service account or certificate");
                failed.insert(namespace);
            }
        }
        let is_deletion = |change: &Change| change.kind == ChangeKind::Deleted;
        let has_failures = !failed.is_empty();
        pending = failed;
        tokio::select! {
            changes = namespaces.next() => pending.extend(
                changes?.iter().filter(|change| !is_deletion(change)).map(|change| change.key.name().to_owned())),
            changes = accounts.next() => pending.extend(
                changes?.iter().filter(|change| is_deletion(change) && change.key.name() == DEFAULT_ACCOUNT)
                    .map(|change| change.key.namespace().to_owned())),
            changes = maps.next() => pending.extend(
                changes?.iter().filter(|change| config_maps.iter().any(|map| map.name == change.key.name()))
                    .map(|change| change.key.namespace().to_owned())),
            () = tokio::time::sleep(RETRY_DELAY), if has_failures => {}
        }
    }
}

struct NamespaceReconciler<'a> {
    registry: &'a Arc<Registry>,
    certificate: &'a str,
    config_maps: &'a [CertificateConfigMap],
}

impl NamespaceReconciler<'_> {
    /// Creates or restores the objects in a namespace.
    async fn reconcile(&self, namespace: &str) -> ApiResult<()> {
        let object = self.registry.store.object(&ResourceKey::new("", "namespaces"), &ObjectKey::new("", namespace));
        if object.is_none_or(|namespace| namespace.is_deleting()) {
            return Ok(());
        }
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": DEFAULT_ACCOUNT}});
        if self.get("serviceaccounts", namespace, DEFAULT_ACCOUNT).is_none() {
            self.create("serviceaccounts", namespace, account).await?;
        }
        for config_map in self.config_maps {
            match self.get("configmaps", namespace, config_map.name) {
                None => {
                    let metadata = json!({"name": config_map.name});
                    let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
                    config_map.restore(&mut map, self.certificate);
                    self.create("configmaps", namespace, map).await?;
                }
                Some(mut map) => {
                    if config_map.restore(&mut map, self.certificate) {
                        self.restore(namespace, config_map).await?;
                    }
                }
            }
        }
        Ok(())
    }

    fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.registry.store.object(&ResourceKey::new("", plural), &ObjectKey::new(namespace, name))
    }

    async fn create(&self, plural: &str, namespace: &str, object: Value) -> ApiResult<()> {
        let resource = core_resource(self.registry, plural)?;
        let (ctx, options) = (loopback(namespace), loopback_options());
        let created = self.registry.create(&resource, &ctx, object, &options, &mut Vec::new()).await;
        ignore_conflict(created.map(drop))
    }

    async fn restore(&self, namespace: &str, config_map: &CertificateConfigMap) -> ApiResult<()> {
        let (config_map, certificate) = (*config_map, self.certificate.to_owned());
        let edit = Edit(Arc::new(move |map: &mut Value| {
            config_map.restore(map, &certificate);
            Ok(())
        }));
        let change = crowsnest_registry::Change::Edit(edit);
        let maps = core_resource(self.registry, "configmaps")?;
        let (ctx, options) = (loopback(namespace), loopback_options());
        let updated = self.registry.update(&maps, &ctx, config_map.name, &change, &options, &mut Vec::new()).await;
        ignore_conflict(updated.map(drop))
    }
}

/// Ignores conflicts: another client created the object, or the namespace is being deleted.
fn ignore_conflict(result: ApiResult<()>) -> ApiResult<()> {
    let conflicts = [Reason::AlreadyExists, Reason::NotFound, Reason::Forbidden];
    match result {
        Err(error) if conflicts.iter().any(|reason| error.is(*reason)) => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_config_maps_are_restored() {
        let annotated = |text: &str| json!({"annotations": {"kubernetes.io/description": text}});
        let cases = [
            ("new", ROOT_CA, json!({"metadata": {}}), true),
            ("unchanged", ROOT_CA, json!({"metadata": annotated("own words"), "data": {"ca.crt": "C"}}), false),
            ("no description", ROOT_CA, json!({"metadata": annotated(""), "data": {"ca.crt": "C"}}), true),
            ("null annotations", ROOT_CA, json!({"metadata": {"annotations": null}, "data": {"ca.crt": "C"}}), true),
            ("another certificate", ROOT_CA, json!({"metadata": annotated("x"), "data": {"ca.crt": "D"}}), true),
            ("more data", ROOT_CA, json!({"metadata": annotated("x"), "data": {"ca.crt": "C", "a": "b"}}), true),
            (
                "OpenShift's has no description",
                SERVICE_CA,
                json!({"metadata": {}, "data": {"service-ca.crt": "C"}}),
                false,
            ),
        ];
        for (case, config_map, mut map, has_changed) in cases {
            assert_eq!(config_map.restore(&mut map, "C"), has_changed, "{case}");
            assert!(!config_map.restore(&mut map, "C"), "{case}: a second call changes nothing");
            assert_eq!(map["data"], json!({ config_map.key: "C" }), "{case}");
        }
    }
}
