//! search.karmada.io/v1alpha1: the resources of clusters that are cached for search and proxying. Users write
//! ResourceRegistries; the cache derives from them which resources it collects (`Interest` in `crowsnest_store`).

use crate::cluster::LocalSecretReference;
use crate::object::{api_structs, kinds};
use crate::policy::ClusterAffinity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The API group of this module.
pub const GROUP: &str = "search.karmada.io";

kinds! { "search.karmada.io", "v1alpha1";
    /// ResourceRegistry selects resources of clusters to cache.
    ResourceRegistry(Cluster, "resourceregistries") { spec: ResourceRegistrySpec, status(skip): ResourceRegistryStatus }
}

api_structs! {
    /// ResourceRegistrySpec defines what is cached.
    pub struct ResourceRegistrySpec {
        /// TargetCluster selects the clusters.
        pub target_cluster: ClusterAffinity,
        /// ResourceSelectors select the resources.
        pub resource_selectors: Vec<ResourceSelector>,
        /// BackendStore is the external store to which the objects are written as well.
        pub backend_store?: BackendStoreConfig,
    }

    /// ResourceSelector selects a kind, in one namespace or in all.
    pub struct ResourceSelector {
        pub api_version: String,
        pub kind: String,
        pub namespace(skip): String,
    }

    /// BackendStoreConfig is an external store.
    pub struct BackendStoreConfig {
        pub open_search?: OpenSearchConfig,
    }

    /// OpenSearchConfig is an OpenSearch cluster.
    pub struct OpenSearchConfig {
        /// Addresses are the URLs of the nodes.
        pub addresses: Vec<String>,
        /// SecretRef references the Secret with username and password.
        pub secret_ref: LocalSecretReference,
    }

    /// ResourceRegistryStatus is the status of the caching.
    pub struct ResourceRegistryStatus {
        pub conditions(skip): Vec<Condition>,
    }
}
