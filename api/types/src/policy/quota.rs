//! FederatedResourceQuota: resource limits of a namespace across all clusters.

use std::collections::BTreeMap;

use crate::object::{api_structs, kind};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Quantities by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

kind! {
    /// FederatedResourceQuota limits the resource usage of a namespace across all clusters, and optionally per
    /// cluster.
    FederatedResourceQuota, Namespaced, "policy.karmada.io", "v1alpha1", "federatedresourcequotas" {
        spec: FederatedResourceQuotaSpec,
        status(skip): FederatedResourceQuotaStatus,
    }
}

api_structs! {
    /// FederatedResourceQuotaSpec defines the limits.
    pub struct FederatedResourceQuotaSpec {
        /// Overall is the limit across all clusters.
        pub overall: ResourceList,
        /// StaticAssignments are the limits of single clusters, enforced there by a ResourceQuota.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub static_assignments: Vec<StaticClusterAssignment>,
    }

    /// StaticClusterAssignment is the limit in one cluster.
    pub struct StaticClusterAssignment {
        pub cluster_name: String,
        pub hard: ResourceList,
    }

    /// FederatedResourceQuotaStatus contains the observed limits and usage.
    pub struct FederatedResourceQuotaStatus {
        /// Overall is the limit across all clusters from which this status was computed.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub overall: ResourceList,
        /// OverallUsed is the usage in all clusters.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub overall_used: ResourceList,
        /// AggregatedStatus contains the limit and usage per cluster.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub aggregated_status: Vec<ClusterQuotaStatus>,
    }

    /// ClusterQuotaStatus contains the limit and usage in one cluster.
    pub struct ClusterQuotaStatus {
        pub cluster_name: String,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub hard: ResourceList,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub used: ResourceList,
    }
}
