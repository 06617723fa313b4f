//! work.karmada.io/v1alpha2: ResourceBinding and ClusterResourceBinding, one per propagated resource template.

use std::collections::BTreeMap;

use crate::object::{api_structs, is_default, kind};
use crate::policy::{self, ConflictResolution, FailoverBehavior, Placement, PurgeMode, ResourceList};
use crate::work::ResourceHealth;
use k8s_openapi::api::core::v1::{NodeSelector, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;

kind! {
    /// ResourceBinding represents the scheduling of a namespaced resource template to clusters.
    ResourceBinding, Namespaced, "work.karmada.io", "v1alpha2", "resourcebindings" {
        spec: ResourceBindingSpec,
        status(skip): ResourceBindingStatus,
    }
}

kind! {
    /// ClusterResourceBinding represents the scheduling of a cluster-scoped resource template to clusters.
    ClusterResourceBinding, Cluster, "work.karmada.io", "v1alpha2", "clusterresourcebindings" {
        spec: ResourceBindingSpec,
        status(skip): ResourceBindingStatus,
    }
}

api_structs! {
    /// ResourceBindingSpec contains the resource template, its requirements, the rules of its policy, and the
    /// selected clusters.
    pub struct ResourceBindingSpec {
        /// Resource references the resource template.
        pub resource: ObjectReference,
        /// PropagateDeps defines whether objects that the template references are propagated with it.
        #[serde(skip_serializing_if = "is_default")]
        pub propagate_deps: bool,
        /// ReplicaRequirements are the requirements of one replica, for workloads with a single pod template.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replica_requirements: Option<ReplicaRequirements>,
        /// Replicas is the number of replicas of the template.
        #[serde(skip_serializing_if = "is_default")]
        pub replicas: i32,
        /// Components are the requirements of a workload with several pod templates.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub components: Vec<Component>,
        /// Clusters are the clusters selected by the scheduler.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub clusters: Vec<TargetCluster>,
        /// Placement defines how clusters are selected; it is copied from the policy.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub placement: Option<Placement>,
        /// GracefulEvictionTasks are the pending evictions from clusters.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub graceful_eviction_tasks: Vec<GracefulEvictionTask>,
        /// RequiredBy lists the bindings that depend on this template.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub required_by: Vec<BindingSnapshot>,
        /// SchedulerName is the name of the scheduler for this binding.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub scheduler_name: String,
        /// Failover defines when and how the workload is migrated from a failed cluster.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub failover: Option<FailoverBehavior>,
        /// ConflictResolution defines how to proceed if an object of the same name, which is not managed by
        /// Karmada, already exists in a member cluster.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("x-default" = "Abort"))]
        pub conflict_resolution: Option<ConflictResolution>,
        /// RescheduleTriggeredAt requests rescheduling if it is later than the last scheduling.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub reschedule_triggered_at: Option<Time>,
        /// Suspension suspends parts of the propagation.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub suspension: Option<Suspension>,
        /// PreserveResourcesOnDeletion defines whether objects in member clusters are kept when the template is
        /// deleted.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub preserve_resources_on_deletion: Option<bool>,
        /// SchedulePriority is the priority of the binding in the scheduling queue.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub schedule_priority: Option<SchedulePriority>,
        /// WorkloadAffinityGroups are the groups for workload affinity and anti-affinity.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub workload_affinity_groups: Option<WorkloadAffinityGroups>,
    }

    /// ObjectReference references an object in the control plane, such as the resource template of a binding.
    #[derive(Eq, PartialOrd, Ord)]
    pub struct ObjectReference {
        pub api_version: String,
        pub kind: String,
        /// Namespace is empty for cluster-scoped templates.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
        pub name: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub uid: String,
        /// ResourceVersion is the resourceVersion from which the binding was derived.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub resource_version: String,
    }

    /// ReplicaRequirements are the requirements of one replica.
    pub struct ReplicaRequirements {
        /// NodeClaim restricts the nodes of the replica.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub node_claim: Option<NodeClaim>,
        /// ResourceRequest contains the requested resources.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub resource_request: ResourceList,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub priority_class_name: String,
    }

    /// Component is a part of a workload with several pod templates.
    pub struct Component {
        #[schemars(length(max = 32))]
        pub name: String,
        pub replicas: i32,
        /// ReplicaRequirements are the requirements of one replica of the component.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replica_requirements: Option<ComponentReplicaRequirements>,
    }

    /// ComponentReplicaRequirements are the requirements of one replica of a component.
    pub struct ComponentReplicaRequirements {
        #[serde(skip_serializing_if = "Option::is_none")]
        pub node_claim: Option<NodeClaim>,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub resource_request: ResourceList,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub priority_class_name: String,
    }

    /// NodeClaim restricts the nodes of a replica.
    pub struct NodeClaim {
        #[serde(skip_serializing_if = "Option::is_none")]
        pub hard_node_affinity: Option<NodeSelector>,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub node_selector: BTreeMap<String, String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub tolerations: Vec<Toleration>,
    }

    /// TargetCluster is a selected cluster with its assigned replicas.
    pub struct TargetCluster {
        pub name: String,
        #[serde(skip_serializing_if = "is_default")]
        pub replicas: i32,
        /// Components are the assigned replicas of the components.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub components: Vec<TargetComponent>,
    }

    /// TargetComponent is the number of replicas of a component that are assigned to a cluster.
    pub struct TargetComponent {
        pub name: String,
        pub replicas: i32,
    }

    /// GracefulEvictionTask is the eviction of the workload from one cluster.
    pub struct GracefulEvictionTask {
        /// FromCluster is the name of the cluster.
        pub from_cluster: String,
        /// PurgeMode defines how the workload is removed from the cluster.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("enum" = ["Directly", "Gracefully", "Never"]))]
        pub purge_mode: Option<PurgeMode>,
        /// Replicas is the number of replicas that were assigned to the cluster.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replicas: Option<i32>,
        /// Reason is a brief machine-readable reason for the eviction.
        #[schemars(length(min = 1, max = 32), regex(pattern = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"))]
        pub reason: String,
        /// Message is a human-readable message about the eviction.
        #[serde(skip_serializing_if = "String::is_empty")]
        #[schemars(length(max = 1024))]
        pub message: String,
        /// Producer is the controller that created the task.
        pub producer: String,
        /// GracePeriodSeconds is the maximum time in seconds for which the workload is kept in the cluster.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub grace_period_seconds: Option<i32>,
        /// SuppressDeletion keeps the workload in the cluster until its removal is confirmed.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub suppress_deletion: Option<bool>,
        /// PreservedLabelState contains labels that are added to the new workload.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub preserved_label_state: BTreeMap<String, String>,
        /// CreationTimestamp is the time at which the task was created.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub creation_timestamp: Option<Time>,
        /// ClustersBeforeFailover are the clusters of the workload before its migration.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub clusters_before_failover: Vec<String>,
    }

    /// BindingSnapshot references another binding with its selected clusters at the time of the snapshot.
    pub struct BindingSnapshot {
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
        pub name: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub clusters: Vec<TargetCluster>,
    }

    /// Suspension suspends parts of the propagation.
    pub struct Suspension {
        #[serde(flatten)]
        pub policy: policy::Suspension,
        /// Scheduling suspends the scheduling. It can only be set on the binding itself.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub scheduling: Option<bool>,
    }

    /// SchedulePriority is the priority in the scheduling queue.
    pub struct SchedulePriority {
        /// Priority is the priority value; bindings with higher values are scheduled first.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(extend("x-default" = 0))]
        pub priority: i32,
    }

    /// WorkloadAffinityGroups are groups of workloads, in the form "label key=label value".
    pub struct WorkloadAffinityGroups {
        #[serde(skip_serializing_if = "String::is_empty")]
        pub affinity_group: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub anti_affinity_group: String,
    }

    /// ResourceBindingStatus is the status of the binding.
    pub struct ResourceBindingStatus {
        /// SchedulerObservedGeneration is the generation that the scheduler has observed.
        #[serde(skip_serializing_if = "is_default")]
        pub scheduler_observed_generation: i64,
        /// SchedulerObservedAffinityName is the name of the affinity group in use.
        #[serde(skip_serializing_if = "String::is_empty", rename = "schedulerObservingAffinityName")]
        pub scheduler_observed_affinity_name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub last_scheduled_time: Option<Time>,
        /// Conditions are the conditions of the binding: Scheduled and FullyApplied.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub conditions: Vec<Condition>,
        /// AggregatedStatus is the status per cluster.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub aggregated_status: Vec<AggregatedStatusItem>,
    }

    /// AggregatedStatusItem is the status in one cluster.
    pub struct AggregatedStatusItem {
        pub cluster_name: String,
        /// Status is the reflected status of the object in the member cluster.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("x-raw" = true))]
        pub status: Option<RawExtension>,
        /// Applied is true if the object was applied to the cluster.
        #[serde(skip_serializing_if = "is_default")]
        pub applied: bool,
        /// AppliedMessage is the error if the object was not applied.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub applied_message: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub health: Option<ResourceHealth>,
    }
}

impl ResourceBindingSpec {
    /// True if the template is a workload: it has replicas or pod requirements.
    pub fn is_workload(&self) -> bool {
        self.replicas > 0 || self.replica_requirements.is_some() || !self.components.is_empty()
    }

    /// True if a cluster is selected.
    pub fn targets(&self, cluster: &str) -> bool {
        self.clusters.iter().any(|target| target.name == cluster)
    }

    /// True if the workload is being evicted from a cluster.
    pub fn evicts(&self, cluster: &str) -> bool {
        self.graceful_eviction_tasks.iter().any(|task| task.from_cluster == cluster)
    }
}
