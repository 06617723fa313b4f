//! work.karmada.io/v1alpha1: Work, and the old version of the bindings, which is served only by conversion.

use crate::object::{api_structs, kinds};
use crate::policy::ResourceList;
use crate::work::ResourceHealth;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;

kinds! { "work.karmada.io", "v1alpha1";
    /// Work contains the objects to apply to one member cluster. It is in the execution namespace of that cluster.
    Work(Namespaced, "works") { spec: WorkSpec, status(skip): WorkStatus }

    /// ResourceBinding is the old version of the binding of a namespaced resource template.
    ResourceBinding(Namespaced, "resourcebindings") { spec: ResourceBindingSpec, status(skip): ResourceBindingStatus }

    /// ClusterResourceBinding is the old version of the binding of a cluster-scoped resource template.
    ClusterResourceBinding(Cluster, "clusterresourcebindings") {
        spec: ResourceBindingSpec, status(skip): ResourceBindingStatus
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
        pub suspend_dispatching?: bool,
        /// PreserveResourcesOnDeletion defines whether the objects in the member cluster are kept when this Work is
        /// deleted.
        pub preserve_resources_on_deletion?: bool,
    }

    /// WorkloadTemplate contains the objects of a Work.
    pub struct WorkloadTemplate {
        #[schemars(extend("x-items-raw" = true))]
        pub manifests(skip): Vec<Manifest>,
    }

    /// WorkStatus is the status of the objects in the member cluster.
    pub struct WorkStatus {
        /// Conditions are the conditions of the Work: Applied and Dispatching.
        pub conditions(skip): Vec<Condition>,
        /// ManifestStatuses is the status per object.
        pub manifest_statuses(skip): Vec<ManifestStatus>,
    }

    /// ManifestStatus is the status of one object in the member cluster.
    pub struct ManifestStatus {
        pub identifier: ResourceIdentifier,
        /// Status is the reflected status of the object in the member cluster.
        #[schemars(extend("x-raw" = true))]
        pub status?: RawExtension,
        pub health?: ResourceHealth,
    }

    /// ResourceIdentifier identifies an object of the Work.
    pub struct ResourceIdentifier {
        /// Ordinal is the index in the list of manifests.
        #[schemars(schema_with = "crate::object::plain_integer")]
        pub ordinal: i64,
        pub group(skip): String,
        pub version: String,
        pub kind: String,
        /// Resource is the resource type; it is always empty, but the schema requires it.
        pub resource: String,
        pub namespace(skip): String,
        pub name: String,
    }

    /// ResourceBindingSpec contains the resource template and the selected clusters, in the old version.
    pub struct ResourceBindingSpec {
        pub resource: ObjectReference,
        pub clusters(skip): Vec<TargetCluster>,
    }

    /// ObjectReference references the resource template, in the old version.
    pub struct ObjectReference {
        pub api_version: String,
        pub kind: String,
        pub namespace(skip): String,
        pub name: String,
        pub resource_version(skip): String,
        /// ReplicaResourceRequirements are the requirements of one replica.
        #[serde(rename = "resourcePerReplicas")]
        pub replica_resource_requirements(skip): ResourceList,
        pub replicas(skip): i32,
    }

    /// TargetCluster is a selected cluster, in the old version.
    pub struct TargetCluster {
        pub name: String,
        pub replicas(skip): i32,
    }

    /// ResourceBindingStatus is the status of a binding, in the old version.
    pub struct ResourceBindingStatus {
        pub conditions(skip): Vec<Condition>,
        pub aggregated_status(skip): Vec<AggregatedStatusItem>,
    }

    /// AggregatedStatusItem is the status in one cluster, in the old version.
    pub struct AggregatedStatusItem {
        pub cluster_name: String,
        #[schemars(extend("x-raw" = true))]
        pub status?: RawExtension,
        pub applied(skip): bool,
        pub applied_message(skip): String,
    }
}
