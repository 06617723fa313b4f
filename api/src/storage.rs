//! storage.crowsnest.io/v1alpha1: the internal kinds in which the aggregated API server keeps Clusters and
//! ResourceRegistries, so that their truth stays in the control plane's own storage. Written and read by that server
//! only; people and controllers use `cluster.karmada.io` and `search.karmada.io`.

use crate::cluster::{ClusterSpec, ClusterStatus};
use crate::object::kind;
use crate::search::{ResourceRegistrySpec, ResourceRegistryStatus};

/// The API group of this module.
pub const GROUP: &str = "storage.crowsnest.io";

kind! {
    /// A Cluster as stored.
    Cluster, Cluster, "storage.crowsnest.io", "v1alpha1", "clusters" {
        spec: ClusterSpec,
        status(skip): ClusterStatus,
    }
}

kind! {
    /// A ResourceRegistry as stored.
    ResourceRegistry, Cluster, "storage.crowsnest.io", "v1alpha1", "resourceregistries" {
        spec: ResourceRegistrySpec,
        status(skip): ResourceRegistryStatus,
    }
}

impl From<Cluster> for crate::cluster::Cluster {
    fn from(stored: Cluster) -> Self {
        Self { metadata: stored.metadata, spec: stored.spec, status: stored.status }
    }
}

impl From<crate::cluster::Cluster> for Cluster {
    fn from(served: crate::cluster::Cluster) -> Self {
        Self { metadata: served.metadata, spec: served.spec, status: served.status }
    }
}

impl From<ResourceRegistry> for crate::search::ResourceRegistry {
    fn from(stored: ResourceRegistry) -> Self {
        Self { metadata: stored.metadata, spec: stored.spec, status: stored.status }
    }
}

impl From<crate::search::ResourceRegistry> for ResourceRegistry {
    fn from(served: crate::search::ResourceRegistry) -> Self {
        Self { metadata: served.metadata, spec: served.spec, status: served.status }
    }
}
