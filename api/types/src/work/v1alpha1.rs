//! work.karmada.io/v1alpha1: Work, and the old version of the bindings, which is served only by conversion.

use std::collections::BTreeMap;

use crate::object::{api_structs, is_default, kind};
use crate::policy::ResourceList;
use crate::work::ResourceHealth;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;

kind! {
    /// Work contains the objects to apply to one member cluster. It is in the execution namespace of that cluster.
    Work, Namespaced, "work.karmada.io", "v1alpha1", "works" {
        spec: WorkSpec,
        status(skip): WorkStatus,
    }
}

kind! {
    /// ResourceBinding is the old version of the binding of a namespaced resource template.
    ResourceBinding, Namespaced, "work.karmada.io", "v1alpha1", "resourcebindings" {
        spec: ResourceBindingSpec,
        status(skip): ResourceBindingStatus,
    }
}

kind! {
    /// ClusterResourceBinding is the old version of the binding of a cluster-scoped resource template.
    ClusterResourceBinding, Cluster, "work.karmada.io", "v1alpha1", "clusterresourcebindings" {
        spec: ResourceBindingSpec,
        status(skip): ResourceBindingStatus,
    }
}

/// A complete object for a member cluster.
pub type Manifest = RawExtension;

api_structs! {
    /// WorkSpec contains the objects to apply to the member cluster.
    pub struct WorkSpec {
        /// Workload contains the objects.
        #[schemars(extend("x-optional" = true))]
        pub workload: WorkloadTemplate,
        /// SuspendDispatching suspends the dispatching to the member cluster.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub suspend_dispatching: Option<bool>,
        /// PreserveResourcesOnDeletion defines whether the objects in the member cluster are kept when this Work is
        /// deleted.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub preserve_resources_on_deletion: Option<bool>,
    }

    /// WorkloadTemplate contains the objects of a Work.
    pub struct WorkloadTemplate {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schemars(extend("x-items-raw" = true))]
        pub manifests: Vec<Manifest>,
    }

    /// WorkStatus is the status of the objects in the member cluster.
    pub struct WorkStatus {
        /// Conditions are the conditions of the Work: Applied and Dispatching.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub conditions: Vec<Condition>,
        /// ManifestStatuses is the status per object.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub manifest_statuses: Vec<ManifestStatus>,
    }

    /// ManifestStatus is the status of one object in the member cluster.
    pub struct ManifestStatus {
        pub identifier: ResourceIdentifier,
        /// Status is the reflected status of the object in the member cluster.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("x-raw" = true))]
        pub status: Option<RawExtension>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub health: Option<ResourceHealth>,
    }

    /// ResourceIdentifier identifies an object of the Work.
    pub struct ResourceIdentifier {
        /// Ordinal is the index in the list of manifests.
        #[schemars(schema_with = "crate::object::plain_integer")]
        pub ordinal: i64,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub group: String,
        pub version: String,
        pub kind: String,
        /// Resource is the resource type; it is always empty, but the schema requires it.
        pub resource: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
        pub name: String,
    }

    /// ResourceBindingSpec contains the resource template and the selected clusters, in the old version.
    pub struct ResourceBindingSpec {
        pub resource: ObjectReference,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub clusters: Vec<TargetCluster>,
    }

    /// ObjectReference references the resource template, in the old version.
    pub struct ObjectReference {
        pub api_version: String,
        pub kind: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
        pub name: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub resource_version: String,
        /// ReplicaResourceRequirements are the requirements of one replica.
        #[serde(skip_serializing_if = "BTreeMap::is_empty", rename = "resourcePerReplicas")]
        pub replica_resource_requirements: ResourceList,
        #[serde(skip_serializing_if = "is_default")]
        pub replicas: i32,
    }

    /// TargetCluster is a selected cluster, in the old version.
    pub struct TargetCluster {
        pub name: String,
        #[serde(skip_serializing_if = "is_default")]
        pub replicas: i32,
    }

    /// ResourceBindingStatus is the status of a binding, in the old version.
    pub struct ResourceBindingStatus {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub conditions: Vec<Condition>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub aggregated_status: Vec<AggregatedStatusItem>,
    }

    /// AggregatedStatusItem is the status in one cluster, in the old version.
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
