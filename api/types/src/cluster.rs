//! cluster.karmada.io/v1alpha1: member clusters. Written by whoever joins a cluster (spec) and by the health collector
//! (status); read by everybody.

use std::collections::BTreeMap;

use crate::object::{is_default, kind, shape, word};
use crate::policy::ResourceList;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The API group of this module.
pub const GROUP: &str = "cluster.karmada.io";
/// The key of the secret's bearer token.
pub const SECRET_TOKEN_KEY: &str = "token";
/// The key of the secret's CA bundle (PEM).
pub const SECRET_CA_DATA_KEY: &str = "caBundle";

kind! {
    /// A member cluster.
    Cluster, Cluster, "cluster.karmada.io", "v1alpha1", "clusters" {
        spec: ClusterSpec,
        status(skip): ClusterStatus,
    }
}

shape! {
    /// How a member is reached and what it is like.
    pub struct ClusterSpec {
        /// Uid of the member's `kube-system` namespace.
        #[serde(skip_serializing_if = "String::is_empty")]
        #[schemars(length(max = 128000))]
        pub id: String,
        /// Whether we connect to the member, or its agent does the work.
        pub sync_mode: ClusterSyncMode,
        /// URL of the member's API server.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub api_endpoint: String,
        /// Secret with `token` and `caBundle`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub secret_ref: Option<LocalSecretReference>,
        /// Secret with the `token` of the account that may impersonate.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub impersonator_secret_ref: Option<LocalSecretReference>,
        /// Whether the member's certificate is taken unseen.
        #[serde(skip_serializing_if = "is_default", rename = "insecureSkipTLSVerification")]
        pub insecure_skip_tls_verification: bool,
        /// Proxy on the way to the member: http, https or socks5.
        #[serde(skip_serializing_if = "String::is_empty", rename = "proxyURL")]
        pub proxy_url: String,
        /// Headers sent to the proxy.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub proxy_header: BTreeMap<String, String>,
        /// Who runs the member.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub provider: String,
        /// Where the member is.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub region: String,
        /// Deprecated in favour of `zones`.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub zone: String,
        /// The failure zones the member has nodes in.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub zones: Vec<String>,
        /// What keeps objects away that do not tolerate it.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub taints: Vec<Taint>,
        /// Classes of nodes by size, for estimating without looking at each node.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub resource_models: Vec<ResourceModel>,
    }

    /// A class of nodes.
    pub struct ResourceModel {
        /// Number of the class.
        #[schemars(schema_with = "crate::object::plain_integer")]
        pub grade: u64,
        /// How much of each resource nodes of this class have.
        pub ranges: Vec<ResourceModelRange>,
    }

    /// How much of a resource nodes of a class have: at least `min`, less than `max`.
    pub struct ResourceModelRange {
        pub name: String,
        pub min: Quantity,
        pub max: Quantity,
    }

    /// A secret of the control plane.
    pub struct LocalSecretReference {
        pub namespace: String,
        pub name: String,
    }

    /// What is known of a member.
    pub struct ClusterStatus {
        #[serde(skip_serializing_if = "String::is_empty")]
        pub kubernetes_version: String,
        /// The APIs the member serves.
        #[serde(skip_serializing_if = "Vec::is_empty", rename = "apiEnablements")]
        pub api_enablements: Vec<ApiEnablement>,
        /// `Ready`, `CompleteAPIEnablements`, and those of external detectors.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub conditions: Vec<Condition>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub node_summary: Option<NodeSummary>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub resource_summary: Option<ResourceSummary>,
        /// What is being done about the member's troubles.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub remedy_actions: Vec<String>,
    }

    /// A group version the member serves.
    pub struct ApiEnablement {
        pub group_version: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub resources: Vec<ApiResource>,
    }

    /// A resource the member serves.
    pub struct ApiResource {
        /// Plural name.
        pub name: String,
        pub kind: String,
    }

    /// How many nodes there are.
    pub struct NodeSummary {
        #[serde(skip_serializing_if = "is_default")]
        pub total_num: i32,
        #[serde(skip_serializing_if = "is_default")]
        pub ready_num: i32,
    }

    /// How much room there is.
    pub struct ResourceSummary {
        /// What all nodes together can give to pods.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub allocatable: ResourceList,
        /// What pods not yet on a node ask for.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub allocating: ResourceList,
        /// What pods on nodes ask for.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub allocated: ResourceList,
        /// How many nodes of each class have room.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub allocatable_modelings: Vec<AllocatableModeling>,
    }

    /// How many nodes of a class have room.
    pub struct AllocatableModeling {
        #[schemars(schema_with = "crate::object::plain_integer")]
        pub grade: u64,
        #[schemars(schema_with = "crate::object::plain_integer")]
        pub count: i64,
    }
}

word! { closed
    /// Who carries changes to the member.
    ClusterSyncMode {
        /// The control plane connects to the member.
        Push = "Push",
        /// An agent in the member connects to the control plane.
        Pull = "Pull",
    }
}
