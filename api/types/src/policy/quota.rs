//! FederatedResourceQuota: resource limits of a namespace across all clusters.

use std::collections::BTreeMap;

use crate::object::{api_structs, kinds};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Quantities by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

kinds! { "policy.karmada.io", "v1alpha1";
    /// FederatedResourceQuota limits the resource usage of a namespace across all clusters, and optionally per
    /// cluster.
    FederatedResourceQuota(Namespaced, "federatedresourcequotas") {
        spec: FederatedResourceQuotaSpec, status(skip): FederatedResourceQuotaStatus
    }
}

api_structs! {
    /// FederatedResourceQuotaSpec defines the limits.
    pub struct FederatedResourceQuotaSpec {
        /// Overall is the limit across all clusters.
        pub overall: ResourceList,
        /// StaticAssignments are the limits of single clusters, enforced there by a ResourceQuota.
        pub static_assignments(skip): Vec<StaticClusterAssignment>,
    }

    /// StaticClusterAssignment is the limit in one cluster.
    pub struct StaticClusterAssignment {
        pub cluster_name: String,
        pub hard: ResourceList,
    }

    /// FederatedResourceQuotaStatus contains the observed limits and usage.
    pub struct FederatedResourceQuotaStatus {
        /// Overall is the limit across all clusters from which this status was computed.
        pub overall(skip): ResourceList,
        /// OverallUsed is the usage in all clusters.
        pub overall_used(skip): ResourceList,
        /// AggregatedStatus contains the limit and usage per cluster.
        pub aggregated_status(skip): Vec<ClusterQuotaStatus>,
    }

    /// ClusterQuotaStatus contains the limit and usage in one cluster.
    pub struct ClusterQuotaStatus {
        pub cluster_name: String,
        pub hard(skip): ResourceList,
        pub used(skip): ResourceList,
    }
}
