//! cluster.karmada.io/v1alpha1: member clusters. The spec is written when a cluster joins, the status by the cluster
//! status controller.

use std::collections::BTreeMap;

use crate::object::{api_structs, kinds, string_enum};
use crate::policy::ResourceList;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer};
use serde_json::{Value, json};

/// The API group of this module.
pub const GROUP: &str = "cluster.karmada.io";
/// Key of the bearer token in the Secrets that a cluster's spec references.
pub const SECRET_TOKEN_KEY: &str = "token";
/// Key of the CA bundle (PEM) in the Secret that `spec.secretRef` references.
pub const SECRET_CA_DATA_KEY: &str = "caBundle";

kinds! { "cluster.karmada.io", "v1alpha1";
    /// Cluster represents a member cluster.
    Cluster(Cluster, "clusters") { spec: ClusterSpec, status(skip): ClusterStatus }
}

api_structs! {
    /// ClusterSpec defines how a member cluster is accessed, and its properties.
    pub struct ClusterSpec {
        /// ID is the uid of the namespace kube-system in the member cluster.
        #[schemars(length(max = 128000))]
        pub id(skip): String,
        /// SyncMode defines whether the control plane connects to the member cluster, or an agent in it pulls from
        /// the control plane.
        pub sync_mode: ClusterSyncMode,
        /// APIEndpoint is the URL of the member cluster's API server.
        pub api_endpoint(skip): String,
        /// SecretRef references the Secret with the credentials: token and caBundle.
        pub secret_ref?: LocalSecretReference,
        /// ImpersonatorSecretRef references the Secret with the token for impersonation.
        pub impersonator_secret_ref?: LocalSecretReference,
        /// InsecureSkipTLSVerification disables the verification of the member cluster's certificate.
        #[serde(rename = "insecureSkipTLSVerification")]
        pub insecure_skip_tls_verification(skip): bool,
        /// ProxyURL is the URL of the proxy to the member cluster: http, https or socks5.
        #[serde(rename = "proxyURL")]
        pub proxy_url(skip): String,
        /// ProxyHeader contains the headers for the proxy.
        pub proxy_header(skip): BTreeMap<String, String>,
        /// Provider is the name of the cloud provider of the member cluster.
        pub provider(skip): String,
        /// Region is the region of the member cluster.
        pub region(skip): String,
        /// Zone is the zone of the member cluster. Deprecated: use zones instead.
        pub zone(skip): String,
        /// Zones are the failure zones in which the member cluster has nodes.
        pub zones(skip): Vec<String>,
        /// Taints are the taints of the cluster. Resources are only scheduled to it if they tolerate them.
        pub taints(skip): Vec<Taint>,
        /// ResourceModels are the grades of nodes by their resources. Capacity is estimated from the number of nodes
        /// per grade.
        pub resource_models(skip): Vec<ResourceModel>,
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
        pub kubernetes_version(skip): String,
        /// APIEnablements are the APIs that the member cluster serves.
        #[serde(rename = "apiEnablements")]
        pub api_enablements(skip): Vec<ApiEnablement>,
        /// Conditions are the conditions of the cluster: Ready, CompleteAPIEnablements, and those of external
        /// detectors.
        #[serde(deserialize_with = "deserialize_conditions")]
        pub conditions(skip): Vec<Condition>,
        pub node_summary?: NodeSummary,
        pub resource_summary?: ResourceSummary,
        /// RemedyActions are the actions of Remedies that are in effect for the cluster, such as TrafficControl.
        pub remedy_actions(skip): Vec<String>,
    }

    /// APIEnablement is a group version that the member cluster serves.
    pub struct ApiEnablement {
        pub group_version: String,
        pub resources(skip): Vec<ApiResource>,
    }

    /// APIResource is a resource that the member cluster serves.
    pub struct ApiResource {
        /// Name is the plural name of the resource.
        pub name: String,
        pub kind: String,
    }

    /// NodeSummary contains the numbers of all nodes and of ready nodes.
    pub struct NodeSummary {
        pub total_num(skip): i32,
        pub ready_num(skip): i32,
    }

    /// ResourceSummary contains the allocatable and the requested resources of the member cluster.
    pub struct ResourceSummary {
        /// Allocatable is the total of allocatable resources of all nodes.
        pub allocatable(skip): ResourceList,
        /// Allocating is the total of resources requested by pods that are not scheduled to a node yet.
        pub allocating(skip): ResourceList,
        /// Allocated is the total of resources requested by pods that are scheduled to a node.
        pub allocated(skip): ResourceList,
        /// AllocatableModelings are the numbers of nodes per grade of their free resources.
        pub allocatable_modelings(skip): Vec<AllocatableModeling>,
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

/// Decodes conditions, of which those of external detectors may have no transition time (null, as Go writes its zero
/// time). It is the Unix epoch then.
fn deserialize_conditions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Condition>, D::Error> {
    const TIME: &str = "lastTransitionTime";
    let conditions = Option::<Vec<Value>>::deserialize(deserializer)?.unwrap_or_default();
    let decode = |mut condition: Value| {
        if let Some(fields) = condition.as_object_mut()
            && fields.get(TIME).is_none_or(Value::is_null)
        {
            fields.insert(TIME.to_owned(), json!("1970-01-01T00:00:00Z"));
        }
        serde_json::from_value(condition).map_err(D::Error::custom)
    };
    conditions.into_iter().map(decode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::complete(
        json!({"type": "Ready", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}),
        json!({"type": "Ready", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    )]
    #[case::empty_reason_and_zero_time(
        json!({"type": "NetworkReady", "status": "False", "reason": "", "message": "", "lastTransitionTime": null}),
        json!({"type": "NetworkReady", "status": "False", "reason": "", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z"})
    )]
    #[case::type_and_status_only(
        json!({"type": "NetworkReady", "status": "False"}),
        json!({"type": "NetworkReady", "status": "False", "reason": "", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z"})
    )]
    fn conditions_of_external_detectors_are_decoded(#[case] condition: Value, #[case] expected: Value) {
        let status: ClusterStatus = serde_json::from_value(json!({"conditions": [condition]})).expect("a status");
        assert_eq!(json!(status.conditions), json!([expected]));
    }

    #[rstest]
    #[case::absent(json!({}))]
    #[case::null(json!({"conditions": null}))]
    fn status_without_conditions_is_decoded(#[case] status: Value) {
        assert_eq!(serde_json::from_value::<ClusterStatus>(status).expect("a status"), ClusterStatus::default());
    }
}
