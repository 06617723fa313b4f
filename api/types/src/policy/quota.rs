//! FederatedResourceQuota: how much a namespace may use across all clusters.

use std::collections::BTreeMap;

use crate::object::{kind, shape};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Amounts by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

kind! {
    /// Limits what a namespace uses in all clusters together, and optionally in each.
    FederatedResourceQuota, Namespaced, "policy.karmada.io", "v1alpha1", "federatedresourcequotas" {
        spec: FederatedResourceQuotaSpec,
        status(skip): FederatedResourceQuotaStatus,
    }
}

shape! {
    /// The limits.
    pub struct FederatedResourceQuotaSpec {
        /// The limit over all clusters.
        pub overall: ResourceList,
        /// Limits for single clusters, laid down there as ResourceQuota.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub static_assignments: Vec<StaticClusterAssignment>,
    }

    /// The limit in one cluster.
    pub struct StaticClusterAssignment {
        pub cluster_name: String,
        pub hard: ResourceList,
    }

    /// Limits and use as last seen.
    pub struct FederatedResourceQuotaStatus {
        /// The limit over all clusters the rest of this status was computed with.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub overall: ResourceList,
        /// What all clusters use together.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub overall_used: ResourceList,
        /// Limit and use per cluster.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub aggregated_status: Vec<ClusterQuotaStatus>,
    }

    /// Limit and use in one cluster.
    pub struct ClusterQuotaStatus {
        pub cluster_name: String,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub hard: ResourceList,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub used: ResourceList,
    }
}
