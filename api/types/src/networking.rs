//! networking.karmada.io/v1alpha1: services and ingresses across clusters. Written by users; read by the service
//! controllers.

use crate::object::{api_structs, kinds, string_enum};
use k8s_openapi::api::core::v1::ServiceStatus;
use k8s_openapi::api::networking::v1::{IngressLoadBalancerStatus, IngressSpec};

/// The API group of this module.
pub const GROUP: &str = "networking.karmada.io";

kinds! { "networking.karmada.io", "v1alpha1";
    /// MultiClusterService makes the endpoints of a service available in other clusters.
    MultiClusterService(Namespaced, "multiclusterservices") {
        spec: MultiClusterServiceSpec, status(skip): ServiceStatus
    }

    /// MultiClusterIngress is an ingress for services of several clusters.
    MultiClusterIngress(Namespaced, "multiclusteringresses") {
        spec: IngressSpec, status(skip): MultiClusterIngressStatus
    }
}

api_structs! {
    /// MultiClusterServiceSpec defines how a service is exposed, and its provider and consumer clusters.
    pub struct MultiClusterServiceSpec {
        /// Types are the exposure types. Exactly one is required.
        pub types: Vec<ExposureType>,
        /// Ports are the exposed ports. If empty, all ports are exposed.
        pub ports(skip): Vec<ExposurePort>,
        /// Range is deprecated: use providerClusters and consumerClusters instead.
        #[schemars(extend("x-optional" = true))]
        pub range: ExposureRange,
        /// ServiceProvisionClusters is deprecated: use providerClusters instead.
        pub service_provision_clusters(skip): Vec<String>,
        /// ServiceConsumptionClusters is deprecated: use consumerClusters instead.
        pub service_consumption_clusters(skip): Vec<String>,
        /// ProviderClusters are the clusters that provide endpoints. If empty, all clusters do.
        pub provider_clusters(skip): Vec<ClusterSelector>,
        /// ConsumerClusters are the clusters that consume the endpoints. If empty, all clusters do.
        pub consumer_clusters(skip): Vec<ClusterSelector>,
    }

    /// ClusterSelector selects a cluster by name.
    pub struct ClusterSelector {
        pub name: String,
    }

    /// ExposurePort is an exposed port.
    pub struct ExposurePort {
        pub name(skip): String,
        pub port: i32,
    }

    /// ExposureRange selects clusters; it is deprecated.
    pub struct ExposureRange {
        pub cluster_names(skip): Vec<String>,
    }

    /// MultiClusterIngressStatus is the status of the ingress.
    pub struct MultiClusterIngressStatus {
        pub load_balancer?: IngressLoadBalancerStatus,
        /// TrafficBlockClusters are the clusters that currently receive no traffic.
        pub traffic_block_clusters(skip): Vec<String>,
        /// ServiceLocations are the clusters of the services behind the ingress.
        pub service_locations(skip): Vec<ServiceLocation>,
    }

    /// ServiceLocation lists the clusters of a service.
    pub struct ServiceLocation {
        pub name: String,
        pub clusters(skip): Vec<String>,
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
