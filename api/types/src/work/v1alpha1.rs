//! work.karmada.io/v1alpha1: Work, and the old form of the bindings, which is served by conversion only.

use std::collections::BTreeMap;

use crate::object::{is_default, kind, shape};
use crate::policy::ResourceList;
use crate::work::ResourceHealth;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;

kind! {
    /// What is to exist in one member cluster, kept in that cluster's execution namespace.
    Work, Namespaced, "work.karmada.io", "v1alpha1", "works" {
        spec: WorkSpec,
        status(skip): WorkStatus,
    }
}

kind! {
    /// The old form of a binding of a namespaced template.
    ResourceBinding, Namespaced, "work.karmada.io", "v1alpha1", "resourcebindings" {
        spec: ResourceBindingSpec,
        status(skip): ResourceBindingStatus,
    }
}

kind! {
    /// The old form of a binding of a cluster-scoped template.
    ClusterResourceBinding, Cluster, "work.karmada.io", "v1alpha1", "clusterresourcebindings" {
        spec: ResourceBindingSpec,
        status(skip): ResourceBindingStatus,
    }
}

/// A member object in full.
pub type Manifest = RawExtension;

shape! {
    /// What is to exist in the member.
    pub struct WorkSpec {
        /// The objects.
        #[schemars(extend("x-optional" = true))]
        pub workload: WorkloadTemplate,
        /// Holds back delivery to the member.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub suspend_dispatching: Option<bool>,
        /// Whether the member objects stay when this work is deleted.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub preserve_resources_on_deletion: Option<bool>,
    }

    /// The objects of a work.
    pub struct WorkloadTemplate {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(extend("x-items-raw" = true))]
        pub manifests: Vec<Manifest>,
    }

    /// What became of the objects in the member.
    pub struct WorkStatus {
        /// `Applied`, `Dispatching`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub conditions: Vec<Condition>,
        /// Status per object.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub manifest_statuses: Vec<ManifestStatus>,
    }

    /// Status of one object in the member.
    pub struct ManifestStatus {
        pub identifier: ResourceIdentifier,
        /// The reflected part of the member object's status.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("x-raw" = true))]
        pub status: Option<RawExtension>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub health: Option<ResourceHealth>,
    }

    /// Which object of the work is meant.
    pub struct ResourceIdentifier {
        /// Index in the list of manifests.
        #[schemars(schema_with = "crate::object::plain_integer")]
        pub ordinal: i64,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub group: String,
        pub version: String,
        pub kind: String,
        /// Always empty; kept because the schema requires it.
        pub resource: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
        pub name: String,
    }

    /// Template and result of scheduling, in the old form.
    pub struct ResourceBindingSpec {
        pub resource: ObjectReference,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub clusters: Vec<TargetCluster>,
    }

    /// The template, in the old form.
    pub struct ObjectReference {
        pub api_version: String,
        pub kind: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
        pub name: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub resource_version: String,
        /// What one replica needs.
        #[serde(skip_serializing_if = "BTreeMap::is_empty", rename = "resourcePerReplicas")]
        pub replica_resource_requirements: ResourceList,
        #[serde(skip_serializing_if = "is_default")]
        pub replicas: i32,
    }

    /// A cluster chosen, in the old form.
    pub struct TargetCluster {
        pub name: String,
        #[serde(skip_serializing_if = "is_default")]
        pub replicas: i32,
    }

    /// Status of a binding, in the old form.
    pub struct ResourceBindingStatus {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub conditions: Vec<Condition>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub aggregated_status: Vec<AggregatedStatusItem>,
    }

    /// Status in one cluster, in the old form.
    pub struct AggregatedStatusItem {
        pub cluster_name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("x-raw" = true))]
        pub status: Option<RawExtension>,
        #[serde(skip_serializing_if = "is_default")]
        pub applied: bool,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub applied_message: String,
    }
}
