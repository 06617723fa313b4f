//! networking.karmada.io/v1alpha1: services and ingresses across clusters. Written by users; read by the service
//! controllers.

use crate::object::{api_structs, kind, string_enum};
use k8s_openapi::api::core::v1::ServiceStatus;
use k8s_openapi::api::networking::v1::{IngressLoadBalancerStatus, IngressSpec};

/// The API group of this module.
pub const GROUP: &str = "networking.karmada.io";

kind! {
    /// MultiClusterService makes the endpoints of a service available in other clusters.
    MultiClusterService, Namespaced, "networking.karmada.io", "v1alpha1", "multiclusterservices" {
        spec: MultiClusterServiceSpec,
        status(skip): ServiceStatus,
    }
}

kind! {
    /// MultiClusterIngress is an ingress for services of several clusters.
    MultiClusterIngress, Namespaced, "networking.karmada.io", "v1alpha1", "multiclusteringresses" {
        spec: IngressSpec,
        status(skip): MultiClusterIngressStatus,
    }
}

api_structs! {
    /// MultiClusterServiceSpec defines how a service is exposed, and its provider and consumer clusters.
    pub struct MultiClusterServiceSpec {
        /// Types are the exposure types. Exactly one is required.
        pub types: Vec<ExposureType>,
        /// Ports are the exposed ports. If empty, all ports are exposed.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub ports: Vec<ExposurePort>,
        /// Range is deprecated: use providerClusters and consumerClusters instead.
        #[schemars(extend("x-optional" = true))]
        pub range: ExposureRange,
        /// ServiceProvisionClusters is deprecated: use providerClusters instead.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub service_provision_clusters: Vec<String>,
        /// ServiceConsumptionClusters is deprecated: use consumerClusters instead.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub service_consumption_clusters: Vec<String>,
        /// ProviderClusters are the clusters that provide endpoints. If empty, all clusters do.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub provider_clusters: Vec<ClusterSelector>,
        /// ConsumerClusters are the clusters that consume the endpoints. If empty, all clusters do.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub consumer_clusters: Vec<ClusterSelector>,
    }

    /// ClusterSelector selects a cluster by name.
    pub struct ClusterSelector {
        pub name: String,
    }

    /// ExposurePort is an exposed port.
    pub struct ExposurePort {
        #[serde(skip_serializing_if = "String::is_empty")]
        pub name: String,
        pub port: i32,
    }

    /// ExposureRange selects clusters; it is deprecated.
    pub struct ExposureRange {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub cluster_names: Vec<String>,
    }

    /// MultiClusterIngressStatus is the status of the ingress.
    pub struct MultiClusterIngressStatus {
        #[serde(skip_serializing_if = "Option::is_none")]
        pub load_balancer: Option<IngressLoadBalancerStatus>,
        /// TrafficBlockClusters are the clusters that currently receive no traffic.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub traffic_block_clusters: Vec<String>,
        /// ServiceLocations are the clusters of the services behind the ingress.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub service_locations: Vec<ServiceLocation>,
    }

    /// ServiceLocation lists the clusters of a service.
    pub struct ServiceLocation {
        pub name: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub clusters: Vec<String>,
    }
}

string_enum! { open
    /// ExposureType defines how a service is exposed.
    ExposureType {
        /// To other clusters.
        CrossCluster = "CrossCluster",
        /// By a load balancer of an external provider.
        LoadBalancer = "LoadBalancer",
    }
}
