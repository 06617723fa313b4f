//! storage.crowsnest.io/v1alpha1: the internal kinds in which the aggregated API server keeps Clusters,
//! ResourceRegistries and saved searches, so that their truth stays in the control plane's own storage. Written and read
//! by that server only; people and controllers use `cluster.karmada.io`, `search.karmada.io` and `search.crowsnest.io`.

use crate::cluster::{ClusterSpec, ClusterStatus};
use crate::object::{kind, shape};
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

kind! {
    /// A query somebody keeps.
    SavedSearch, Cluster, "storage.crowsnest.io", "v1alpha1", "savedsearches" {
        spec: SavedSearchSpec,
    }
}

shape! {
    /// A query with what to call it, and whose it is.
    pub struct SavedSearchSpec {
        /// What people see.
        pub title: String,
        /// In the query language of version `syntax`.
        pub query: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub description: String,
        /// Everyone may see it; else only its owner.
        pub shared: bool,
        /// The user who saved it: set by the server.
        pub owner: String,
        /// Of the query language.
        pub syntax: String,
    }
}

/// Conversions between a kind of the internal group and the kind that it is served as.
macro_rules! served_as {
    ($stored:ty, $served:ty) => {
        impl From<$stored> for $served {
            fn from(stored: $stored) -> Self {
                Self { metadata: stored.metadata, spec: stored.spec, status: stored.status }
            }
        }

        impl From<$served> for $stored {
            fn from(served: $served) -> Self {
                Self { metadata: served.metadata, spec: served.spec, status: served.status }
            }
        }
    };
}

served_as!(Cluster, crate::cluster::Cluster);
served_as!(ResourceRegistry, crate::search::ResourceRegistry);
