//! References to objects of the control plane.

use crowsnest_apimachinery::unstructured;
use serde_json::Value;

use super::ObjectReference;
use crate::cluster::Cluster;

impl ObjectReference {
    /// A reference without a UID.
    pub fn named(api_version: &str, kind: &str, namespace: &str, name: &str) -> Self {
        let [api_version, kind, namespace, name] = [api_version, kind, namespace, name].map(str::to_owned);
        Self { api_version, kind, namespace, name, ..Self::default() }
    }

    /// A reference to an object, without its UID.
    pub fn of(object: &Value) -> Self {
        let (api_version, kind) = (unstructured::api_version(object), unstructured::kind(object));
        Self::named(api_version, kind, unstructured::namespace(object), unstructured::name(object))
    }

    /// A reference to a cluster by its name only.
    pub fn cluster(name: &str) -> Self {
        Self::named("cluster.karmada.io/v1alpha1", "Cluster", "", name)
    }

    pub fn of_cluster(cluster: &Cluster) -> Self {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        Self { uid: cluster.metadata.uid.clone().unwrap_or_default(), ..Self::cluster(name) }
    }

    /// A reference without resourceVersion.
    #[must_use]
    pub fn without_version(&self) -> Self {
        Self { resource_version: String::new(), ..self.clone() }
    }
}
