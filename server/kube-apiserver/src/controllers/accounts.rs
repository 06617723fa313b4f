//! Service account and root CA controllers: maintain the `default` service account and the config maps with the
//! cluster's certificate in every namespace. Deleted objects are created again and changed config maps restored. For
//! members.

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

use super::{core, run_with_restart};
use crate::ApiServer;

const ACCOUNT: &str = "default";
/// Delay before failed namespaces are retried.
const RETRY: Duration = Duration::from_secs(1);

/// A config map with the certificate, published in every namespace.
#[derive(Debug, Clone, Copy)]
pub struct CertificateConfigMap {
    name: &'static str,
    key: &'static str,
    /// Annotation that describes the use of the certificate.
    annotation: Option<(&'static str, &'static str)>,
}

/// The config map of all clusters.
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
pub async fn run(server: ApiServer, published: Vec<CertificateConfigMap>) {
    run_with_restart(server, "default service accounts", |server| reconcile_changes(server, published.clone())).await;
}

/// Reconciles all namespaces once, then those that change or in which an object is deleted.
async fn reconcile_changes(server: ApiServer, published: Vec<CertificateConfigMap>) -> Result<Infallible, Error> {
    let registry = server.registry();
    let watch = |plural: &str| registry.store.watch(&ResourceKey::new("", plural), registry.store.revision());
    let (mut namespaces, mut accounts, mut maps) =
        (watch("namespaces")?, watch("serviceaccounts")?, watch("configmaps")?);
    let reconciler =
        NamespaceReconciler { registry, certificate: server.authority().certificate(), published: &published };
    let all = registry.store.objects(&ResourceKey::new("", "namespaces"), "");
    let mut touched: BTreeSet<String> = all.iter().map(|namespace| namespace.name().to_owned()).collect();
    loop {
        let mut failed = BTreeSet::new();
        for namespace in touched {
            if let Err(error) = reconciler.reconcile(&namespace).await {
                tracing::warn!(namespace, %error, "cannot write the default service account or certificate");
                failed.insert(namespace);
            }
        }
        let deleted = |change: &Change| change.kind == ChangeKind::Deleted;
        let retried = !failed.is_empty();
        touched = failed;
        tokio::select! {
            changes = namespaces.next() => touched.extend(
                changes?.iter().filter(|change| !deleted(change)).map(|change| change.key.name().to_owned())),
            changes = accounts.next() => touched.extend(
                changes?.iter().filter(|change| deleted(change) && change.key.name() == ACCOUNT)
                    .map(|change| change.key.namespace().to_owned())),
            changes = maps.next() => touched.extend(
                changes?.iter().filter(|change| published.iter().any(|map| map.name == change.key.name()))
                    .map(|change| change.key.namespace().to_owned())),
            () = tokio::time::sleep(RETRY), if retried => {}
        }
    }
}

struct NamespaceReconciler<'a> {
    registry: &'a Arc<Registry>,
    certificate: &'a str,
    published: &'a [CertificateConfigMap],
}

impl NamespaceReconciler<'_> {
    /// Creates or restores the objects in a namespace.
    async fn reconcile(&self, namespace: &str) -> ApiResult<()> {
        let found = self.registry.store.object(&ResourceKey::new("", "namespaces"), &ObjectKey::new("", namespace));
        if found.is_none_or(|namespace| namespace.is_deleting()) {
            return Ok(());
        }
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}});
        if self.get("serviceaccounts", namespace, ACCOUNT).is_none() {
            self.create("serviceaccounts", namespace, account).await?;
        }
        for published in self.published {
            match self.get("configmaps", namespace, published.name) {
                None => {
                    let metadata = json!({"name": published.name});
                    let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
                    published.restore(&mut map, self.certificate);
                    self.create("configmaps", namespace, map).await?;
                }
                Some(mut map) => {
                    if published.restore(&mut map, self.certificate) {
                        self.restore(namespace, published).await?;
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
        let resource = core(self.registry, plural)?;
        let (ctx, options) = (loopback(namespace), loopback_options());
        let created = self.registry.create(&resource, &ctx, object, &options, &mut Vec::new()).await;
        ignore_conflict(created.map(drop))
    }

    async fn restore(&self, namespace: &str, published: &CertificateConfigMap) -> ApiResult<()> {
        let (published, certificate) = (*published, self.certificate.to_owned());
        let edit = Edit(Arc::new(move |map: &mut Value| {
            published.restore(map, &certificate);
            Ok(())
        }));
        let change = crowsnest_registry::Change::Edit(edit);
        let maps = core(self.registry, "configmaps")?;
        let (ctx, options) = (loopback(namespace), loopback_options());
        let updated = self.registry.update(&maps, &ctx, published.name, &change, &options, &mut Vec::new()).await;
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
    fn certificates_are_restored() {
        let annotated = |text: &str| json!({"annotations": {"kubernetes.io/description": text}});
        let cases = [
            ("new", ROOT_CA, json!({"metadata": {}}), true),
            ("right", ROOT_CA, json!({"metadata": annotated("own words"), "data": {"ca.crt": "C"}}), false),
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
        for (what, published, mut map, changed) in cases {
            assert_eq!(published.restore(&mut map, "C"), changed, "{what}");
            assert!(!published.restore(&mut map, "C"), "{what}: once is enough");
            assert_eq!(map["data"], json!({ published.key: "C" }), "{what}");
        }
    }
}
