//! References to objects of the control plane.

use crowsnest_apimachinery::unstructured;
use serde_json::Value;

use super::ObjectReference;
use crate::cluster::Cluster;

impl ObjectReference {
    /// A reference without a UID.
    pub fn new(api_version: &str, kind: &str, namespace: &str, name: &str) -> Self {
        let [api_version, kind, namespace, name] = [api_version, kind, namespace, name].map(str::to_owned);
        Self { api_version, kind, namespace, name, ..Self::default() }
    }

    /// A reference to an object, without its UID.
    pub fn from_object(object: &Value) -> Self {
        let (api_version, kind) = (unstructured::api_version(object), unstructured::kind(object));
        Self::new(api_version, kind, unstructured::namespace(object), unstructured::name(object))
    }

    /// A reference to a cluster by its name only.
    pub fn cluster(name: &str) -> Self {
        Self::new("cluster.karmada.io/v1alpha1", "Cluster", "", name)
    }

    /// A reference to a cluster with its UID.
    pub fn from_cluster(cluster: &Cluster) -> Self {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        Self { uid: cluster.metadata.uid.clone().unwrap_or_default(), ..Self::cluster(name) }
    }

    /// A copy without the resourceVersion, which changes with each write of the object.
    #[must_use]
    pub fn without_resource_version(&self) -> Self {
        Self { resource_version: String::new(), ..self.clone() }
    }
}
