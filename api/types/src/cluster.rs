//! cluster.karmada.io/v1alpha1: member clusters. The spec is written when a cluster joins, the status by the cluster
//! status controller.

use std::collections::BTreeMap;

use crate::object::{api_structs, is_default, kind, string_enum};
use crate::policy::ResourceList;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The API group of this module.
pub const GROUP: &str = "cluster.karmada.io";
/// Key of the bearer token in the Secrets that a cluster's spec references.
pub const SECRET_TOKEN_KEY: &str = "token";
/// Key of the CA bundle (PEM) in the Secret that `spec.secretRef` references.
pub const SECRET_CA_DATA_KEY: &str = "caBundle";

kind! {
    /// Cluster represents a member cluster.
    Cluster, Cluster, "cluster.karmada.io", "v1alpha1", "clusters" {
        spec: ClusterSpec,
        status(skip): ClusterStatus,
    }
}

api_structs! {
    /// ClusterSpec defines how a member cluster is accessed, and its properties.
    pub struct ClusterSpec {
        /// ID is the uid of the namespace kube-system in the member cluster.
        #[serde(skip_serializing_if = "String::is_empty")]
        #[schemars(length(max = 128000))]
        pub id: String,
        /// SyncMode defines whether the control plane connects to the member cluster, or an agent in it pulls from
        /// the control plane.
        pub sync_mode: ClusterSyncMode,
        /// APIEndpoint is the URL of the member cluster's API server.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub api_endpoint: String,
        /// SecretRef references the Secret with the credentials: token and caBundle.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub secret_ref: Option<LocalSecretReference>,
        /// ImpersonatorSecretRef references the Secret with the token for impersonation.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub impersonator_secret_ref: Option<LocalSecretReference>,
        /// InsecureSkipTLSVerification disables the verification of the member cluster's certificate.
        #[serde(skip_serializing_if = "is_default", rename = "insecureSkipTLSVerification")]
        pub insecure_skip_tls_verification: bool,
        /// ProxyURL is the URL of the proxy to the member cluster: http, https or socks5.
        #[serde(skip_serializing_if = "String::is_empty", rename = "proxyURL")]
        pub proxy_url: String,
        /// ProxyHeader contains the headers for the proxy.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub proxy_header: BTreeMap<String, String>,
        /// Provider is the name of the cloud provider of the member cluster.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub provider: String,
        /// Region is the region of the member cluster.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub region: String,
        /// Zone is the zone of the member cluster. Deprecated: use zones instead.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub zone: String,
        /// Zones are the failure zones in which the member cluster has nodes.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub zones: Vec<String>,
        /// Taints are the taints of the cluster. Resources are only scheduled to it if they tolerate them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub taints: Vec<Taint>,
        /// ResourceModels are the grades of nodes by their resources. Capacity is estimated from the number of nodes
        /// per grade.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub resource_models: Vec<ResourceModel>,
    }

    /// ResourceModel is a grade of nodes, defined by ranges of their resources.
    pub struct ResourceModel {
        /// Grade is the index of this model among the cluster's resource models.
        #[schemars(schema_with = "crate::object::plain_integer")]
        pub grade: u64,
        /// Ranges are the resource ranges of the nodes in this grade.
        pub ranges: Vec<ResourceModelRange>,
    }

    /// ResourceModelRange is the range of a resource of the nodes in a grade: at least min, less than max.
    pub struct ResourceModelRange {
        pub name: String,
        pub min: Quantity,
        pub max: Quantity,
    }

    /// LocalSecretReference references a Secret in the control plane.
    pub struct LocalSecretReference {
        pub namespace: String,
        pub name: String,
    }

    /// ClusterStatus is the observed status of a member cluster.
    pub struct ClusterStatus {
        #[serde(skip_serializing_if = "String::is_empty")]
        pub kubernetes_version: String,
        /// APIEnablements are the APIs that the member cluster serves.
        #[serde(skip_serializing_if = "Vec::is_empty", rename = "apiEnablements")]
        pub api_enablements: Vec<ApiEnablement>,
        /// Conditions are the conditions of the cluster: Ready, CompleteAPIEnablements, and those of external
        /// detectors.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub conditions: Vec<Condition>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub node_summary: Option<NodeSummary>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub resource_summary: Option<ResourceSummary>,
        /// RemedyActions are the actions of Remedies that are in effect for the cluster, such as TrafficControl.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub remedy_actions: Vec<String>,
    }

    /// APIEnablement is a group version that the member cluster serves.
    pub struct ApiEnablement {
        pub group_version: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub resources: Vec<ApiResource>,
    }

    /// APIResource is a resource that the member cluster serves.
    pub struct ApiResource {
        /// Name is the plural name of the resource.
        pub name: String,
        pub kind: String,
    }

    /// NodeSummary contains the numbers of all nodes and of ready nodes.
    pub struct NodeSummary {
        #[serde(skip_serializing_if = "is_default")]
        pub total_num: i32,
        #[serde(skip_serializing_if = "is_default")]
        pub ready_num: i32,
    }

    /// ResourceSummary contains the allocatable and the requested resources of the member cluster.
    pub struct ResourceSummary {
        /// Allocatable is the total of allocatable resources of all nodes.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub allocatable: ResourceList,
        /// Allocating is the total of resources requested by pods that are not scheduled to a node yet.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub allocating: ResourceList,
        /// Allocated is the total of resources requested by pods that are scheduled to a node.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub allocated: ResourceList,
        /// AllocatableModelings are the numbers of nodes per grade of their free resources.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub allocatable_modelings: Vec<AllocatableModeling>,
    }

    /// AllocatableModeling is the number of nodes whose free resources are in the ranges of a grade.
    pub struct AllocatableModeling {
        #[schemars(schema_with = "crate::object::plain_integer")]
        pub grade: u64,
        #[schemars(schema_with = "crate::object::plain_integer")]
        pub count: i64,
    }
}

string_enum! { closed
    /// ClusterSyncMode defines which side opens the connection between control plane and member cluster.
    ClusterSyncMode {
        /// The control plane connects to the member.
        Push = "Push",
        /// An agent in the member connects to the control plane.
        Pull = "Pull",
    }
}
