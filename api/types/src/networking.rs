//! networking.karmada.io/v1alpha1: services and ingresses that span clusters. Written by users; read by the service
//! controllers.

use crate::object::{kind, shape, word};
use k8s_openapi::api::core::v1::ServiceStatus;
use k8s_openapi::api::networking::v1::{IngressLoadBalancerStatus, IngressSpec};

/// The API group of this module.
pub const GROUP: &str = "networking.karmada.io";

kind! {
    /// A service whose endpoints are used from other clusters.
    MultiClusterService, Namespaced, "networking.karmada.io", "v1alpha1", "multiclusterservices" {
        spec: MultiClusterServiceSpec,
        status(skip): ServiceStatus,
    }
}

kind! {
    /// An ingress in front of services of several clusters.
    MultiClusterIngress, Namespaced, "networking.karmada.io", "v1alpha1", "multiclusteringresses" {
        spec: IngressSpec,
        status(skip): MultiClusterIngressStatus,
    }
}

shape! {
    /// How a service is exposed, by which clusters, to which.
    pub struct MultiClusterServiceSpec {
        /// Exactly one.
        pub types: Vec<ExposureType>,
        /// The ports exposed; none means all.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub ports: Vec<ExposurePort>,
        /// Deprecated in favour of `provider_clusters` and `consumer_clusters`.
        #[schemars(extend("x-optional" = true))]
        pub range: ExposureRange,
        /// Deprecated in favour of `provider_clusters`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub service_provision_clusters: Vec<String>,
        /// Deprecated in favour of `consumer_clusters`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub service_consumption_clusters: Vec<String>,
        /// The clusters whose endpoints are used; none means all.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub provider_clusters: Vec<ClusterSelector>,
        /// The clusters that use them; none means all.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub consumer_clusters: Vec<ClusterSelector>,
    }

    /// A cluster by name.
    pub struct ClusterSelector {
        pub name: String,
    }

    /// A port exposed.
    pub struct ExposurePort {
        #[serde(skip_serializing_if = "String::is_empty")]
        pub name: String,
        pub port: i32,
    }

    /// Clusters of the deprecated form.
    pub struct ExposureRange {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub cluster_names: Vec<String>,
    }

    /// What became of an ingress.
    pub struct MultiClusterIngressStatus {
        #[serde(skip_serializing_if = "Option::is_none")]
        pub load_balancer: Option<IngressLoadBalancerStatus>,
        /// Clusters that get no traffic for now.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub traffic_block_clusters: Vec<String>,
        /// Where the services behind the ingress are.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub service_locations: Vec<ServiceLocation>,
    }

    /// The clusters a service is in.
    pub struct ServiceLocation {
        pub name: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub clusters: Vec<String>,
    }
}

word! { open
    /// How a service is exposed.
    ExposureType {
        /// To other clusters.
        CrossCluster = "CrossCluster",
        /// By a load balancer, left to an external provider.
        LoadBalancer = "LoadBalancer",
    }
}
