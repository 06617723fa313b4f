//! multicluster.x-k8s.io/v1alpha1: the Kubernetes multi-cluster services API (KEP-1645). Written by users; read by the
//! service controllers.

use crate::object::{api_structs, kind, string_enum};
use k8s_openapi::api::core::v1::SessionAffinityConfig;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The API group of this module.
pub const GROUP: &str = "multicluster.x-k8s.io";

kind! {
    /// ServiceExport exports the service of the same name to other clusters.
    ServiceExport, Namespaced, "multicluster.x-k8s.io", "v1alpha1", "serviceexports" {
        status(skip): ServiceExportStatus,
    }
}

kind! {
    /// ServiceImport imports a service from other clusters.
    ServiceImport, Namespaced, "multicluster.x-k8s.io", "v1alpha1", "serviceimports" {
        spec: ServiceImportSpec,
        status(skip): ServiceImportStatus,
    }
}

api_structs! {
    /// ServiceExportStatus is the status of the export, with the conditions Valid and Conflict.
    pub struct ServiceExportStatus {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
        pub conditions: Vec<Condition>,
    }

    /// ServiceImportSpec describes the imported service.
    pub struct ServiceImportSpec {
        #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
        pub ports: Vec<ServicePort>,
        /// IPs contains at most one address.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(length(max = 1))]
        pub ips: Vec<String>,
        #[serde(rename = "type")]
        pub type_: ServiceImportType,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub session_affinity: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub session_affinity_config: Option<SessionAffinityConfig>,
    }

    /// ServicePort is a port of the service.
    pub struct ServicePort {
        #[serde(skip_serializing_if = "String::is_empty")]
        pub name: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub protocol: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub app_protocol: Option<String>,
        pub port: i32,
    }

    /// ServiceImportStatus lists the clusters that export the service.
    pub struct ServiceImportStatus {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["cluster"]))]
        pub clusters: Vec<ClusterStatus>,
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
