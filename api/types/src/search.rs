//! search.karmada.io/v1alpha1: which resources of which clusters are cached for search and proxying. Written by users;
//! read by the global cache as interests.

use crate::cluster::LocalSecretReference;
use crate::object::{kind, shape};
use crate::policy::ClusterAffinity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The API group of this module.
pub const GROUP: &str = "search.karmada.io";

kind! {
    /// Resources of clusters to keep in the cache.
    ResourceRegistry, Cluster, "search.karmada.io", "v1alpha1", "resourceregistries" {
        spec: ResourceRegistrySpec,
        status(skip): ResourceRegistryStatus,
    }
}

shape! {
    /// What is cached.
    pub struct ResourceRegistrySpec {
        /// The clusters.
        pub target_cluster: ClusterAffinity,
        /// The resources.
        pub resource_selectors: Vec<ResourceSelector>,
        /// Where else the objects go.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub backend_store: Option<BackendStoreConfig>,
    }

    /// A kind, in one namespace or in all.
    pub struct ResourceSelector {
        pub api_version: String,
        pub kind: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
    }

    /// Where else cached objects go.
    pub struct BackendStoreConfig {
        #[serde(skip_serializing_if = "Option::is_none")]
        pub open_search: Option<OpenSearchConfig>,
    }

    /// An OpenSearch cluster.
    pub struct OpenSearchConfig {
        /// URLs of its nodes.
        pub addresses: Vec<String>,
        /// Secret with `username` and `password`.
        pub secret_ref: LocalSecretReference,
    }

    /// How caching goes.
    pub struct ResourceRegistryStatus {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub conditions: Vec<Condition>,
    }
}
