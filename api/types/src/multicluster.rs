//! multicluster.x-k8s.io/v1alpha1: the Kubernetes multi-cluster services API (KEP-1645). Written by users; read by the
//! service controllers.

use crate::object::{api_structs, kinds, string_enum};
use k8s_openapi::api::core::v1::SessionAffinityConfig;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The API group of this module.
pub const GROUP: &str = "multicluster.x-k8s.io";

kinds! { "multicluster.x-k8s.io", "v1alpha1";
    /// ServiceExport exports the service of the same name to other clusters.
    ServiceExport(Namespaced, "serviceexports") { status(skip): ServiceExportStatus }

    /// ServiceImport imports a service from other clusters.
    ServiceImport(Namespaced, "serviceimports") { spec: ServiceImportSpec, status(skip): ServiceImportStatus }
}

api_structs! {
    /// ServiceExportStatus is the status of the export, with the conditions Valid and Conflict.
    pub struct ServiceExportStatus {
        #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
        pub conditions(skip): Vec<Condition>,
    }

    /// ServiceImportSpec describes the imported service.
    pub struct ServiceImportSpec {
        #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
        pub ports: Vec<ServicePort>,
        /// IPs contains at most one address.
        #[schemars(length(max = 1))]
        pub ips(skip): Vec<String>,
        #[serde(rename = "type")]
        pub type_: ServiceImportType,
        pub session_affinity(skip): String,
        pub session_affinity_config?: SessionAffinityConfig,
    }

    /// ServicePort is a port of the service.
    pub struct ServicePort {
        pub name(skip): String,
        pub protocol(skip): String,
        pub app_protocol?: String,
        pub port: i32,
    }

    /// ServiceImportStatus lists the clusters that export the service.
    pub struct ServiceImportStatus {
        #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["cluster"]))]
        pub clusters(skip): Vec<ClusterStatus>,
    }

    /// ClusterStatus is a cluster that exports the service.
    pub struct ClusterStatus {
        pub cluster: String,
    }
}

string_enum! { closed
    /// ServiceImportType defines how the service is reached.
    ServiceImportType {
        /// By a cluster IP.
        ClusterSetIP = "ClusterSetIP",
        /// By the addresses of its endpoints.
        Headless = "Headless",
    }
}
