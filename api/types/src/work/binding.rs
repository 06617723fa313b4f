//! work.karmada.io/v1alpha2: ResourceBinding and ClusterResourceBinding, one per propagated resource template.

use std::collections::BTreeMap;

use crate::object::{api_structs, kinds};
use crate::policy::{self, ConflictResolution, FailoverBehavior, Placement, PurgeMode, ResourceList};
use crate::work::ResourceHealth;
use k8s_openapi::api::core::v1::{NodeSelector, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;

kinds! { "work.karmada.io", "v1alpha2";
    /// ResourceBinding represents the scheduling of a namespaced resource template to clusters.
    ResourceBinding(Namespaced, "resourcebindings") { spec: ResourceBindingSpec, status(skip): ResourceBindingStatus }

    /// ClusterResourceBinding represents the scheduling of a cluster-scoped resource template to clusters.
    ClusterResourceBinding(Cluster, "clusterresourcebindings") {
        spec: ResourceBindingSpec, status(skip): ResourceBindingStatus
    }
}

api_structs! {
    /// ResourceBindingSpec contains the resource template, its requirements, the rules of its policy, and the
    /// selected clusters.
    pub struct ResourceBindingSpec {
        /// Resource references the resource template.
        pub resource: ObjectReference,
        /// PropagateDeps defines whether objects that the template references are propagated with it.
        pub propagate_deps(skip): bool,
        /// ReplicaRequirements are the requirements of one replica, for workloads with a single pod template.
        pub replica_requirements?: ReplicaRequirements,
        /// Replicas is the number of replicas of the template.
        pub replicas(skip): i32,
        /// Components are the requirements of a workload with several pod templates.
        pub components(skip): Vec<Component>,
        /// Clusters are the clusters selected by the scheduler.
        pub clusters(skip): Vec<TargetCluster>,
        /// Placement defines how clusters are selected; it is copied from the policy.
        pub placement?: Placement,
        /// GracefulEvictionTasks are the pending evictions from clusters.
        pub graceful_eviction_tasks(skip): Vec<GracefulEvictionTask>,
        /// RequiredBy lists the bindings that depend on this template.
        pub required_by(skip): Vec<BindingSnapshot>,
        /// SchedulerName is the name of the scheduler for this binding.
        pub scheduler_name(skip): String,
        /// Failover defines when and how the workload is migrated from a failed cluster.
        pub failover?: FailoverBehavior,
        /// ConflictResolution defines how to proceed if an object of the same name, which is not managed by
        /// Karmada, already exists in a member cluster.
        #[schemars(extend("x-default" = "Abort"))]
        pub conflict_resolution?: ConflictResolution,
        /// RescheduleTriggeredAt requests rescheduling if it is later than the last scheduling.
        pub reschedule_triggered_at?: Time,
        /// Suspension suspends parts of the propagation.
        pub suspension?: Suspension,
        /// PreserveResourcesOnDeletion defines whether objects in member clusters are kept when the template is
        /// deleted.
        pub preserve_resources_on_deletion?: bool,
        /// SchedulePriority is the priority of the binding in the scheduling queue.
        pub schedule_priority?: SchedulePriority,
        /// WorkloadAffinityGroups are the groups for workload affinity and anti-affinity.
        pub workload_affinity_groups?: WorkloadAffinityGroups,
    }

    /// ObjectReference references an object in the control plane, such as the resource template of a binding.
    #[derive(Eq, PartialOrd, Ord)]
    pub struct ObjectReference {
        pub api_version: String,
        pub kind: String,
        /// Namespace is empty for cluster-scoped templates.
        pub namespace(skip): String,
        pub name: String,
        pub uid(skip): String,
        /// ResourceVersion is the resourceVersion from which the binding was derived.
        pub resource_version(skip): String,
    }

    /// ReplicaRequirements are the requirements of one replica.
    pub struct ReplicaRequirements {
        /// NodeClaim restricts the nodes of the replica.
        pub node_claim?: NodeClaim,
        /// ResourceRequest contains the requested resources.
        pub resource_request(skip): ResourceList,
        pub namespace(skip): String,
        pub priority_class_name(skip): String,
    }

    /// Component is a part of a workload with several pod templates.
    pub struct Component {
        #[schemars(length(max = 32))]
        pub name: String,
        pub replicas: i32,
        /// ReplicaRequirements are the requirements of one replica of the component.
        pub replica_requirements?: ComponentReplicaRequirements,
    }

    /// ComponentReplicaRequirements are the requirements of one replica of a component.
    pub struct ComponentReplicaRequirements {
        pub node_claim?: NodeClaim,
        pub resource_request(skip): ResourceList,
        pub priority_class_name(skip): String,
    }

    /// NodeClaim restricts the nodes of a replica.
    pub struct NodeClaim {
        pub hard_node_affinity?: NodeSelector,
        pub node_selector(skip): BTreeMap<String, String>,
        pub tolerations(skip): Vec<Toleration>,
    }

    /// TargetCluster is a selected cluster with its assigned replicas.
    pub struct TargetCluster {
        pub name: String,
        pub replicas(skip): i32,
        /// Components are the assigned replicas of the components.
        pub components(skip): Vec<TargetComponent>,
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
        #[schemars(extend("enum" = ["Directly", "Gracefully", "Never"]))]
        pub purge_mode?: PurgeMode,
        /// Replicas is the number of replicas that were assigned to the cluster.
        pub replicas?: i32,
        /// Reason is a brief machine-readable reason for the eviction.
        #[schemars(length(min = 1, max = 32), regex(pattern = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"))]
        pub reason: String,
        /// Message is a human-readable message about the eviction.
        #[schemars(length(max = 1024))]
        pub message(skip): String,
        /// Producer is the controller that created the task.
        pub producer: String,
        /// GracePeriodSeconds is the maximum time in seconds for which the workload is kept in the cluster.
        pub grace_period_seconds?: i32,
        /// SuppressDeletion keeps the workload in the cluster until its removal is confirmed.
        pub suppress_deletion?: bool,
        /// PreservedLabelState contains labels that are added to the new workload.
        pub preserved_label_state(skip): BTreeMap<String, String>,
        /// CreationTimestamp is the time at which the task was created.
        pub creation_timestamp?: Time,
        /// ClustersBeforeFailover are the clusters of the workload before its migration.
        pub clusters_before_failover(skip): Vec<String>,
    }

    /// BindingSnapshot references another binding with its selected clusters at the time of the snapshot.
    pub struct BindingSnapshot {
        pub namespace(skip): String,
        pub name: String,
        pub clusters(skip): Vec<TargetCluster>,
    }

    /// Suspension suspends parts of the propagation.
    pub struct Suspension {
        #[serde(flatten)]
        pub policy: policy::Suspension,
        /// Scheduling suspends the scheduling. It can only be set on the binding itself.
        pub scheduling?: bool,
    }

    /// SchedulePriority is the priority in the scheduling queue.
    pub struct SchedulePriority {
        /// Priority is the priority value; bindings with higher values are scheduled first.
        #[schemars(extend("x-default" = 0))]
        pub priority(skip): i32,
    }

    /// WorkloadAffinityGroups are groups of workloads, in the form "label key=label value".
    pub struct WorkloadAffinityGroups {
        pub affinity_group(skip): String,
        pub anti_affinity_group(skip): String,
    }

    /// ResourceBindingStatus is the status of the binding.
    pub struct ResourceBindingStatus {
        /// SchedulerObservedGeneration is the generation that the scheduler has observed.
        pub scheduler_observed_generation(skip): i64,
        /// SchedulerObservedAffinityName is the name of the affinity group in use.
        #[serde(rename = "schedulerObservingAffinityName")]
        pub scheduler_observed_affinity_name(skip): String,
        pub last_scheduled_time?: Time,
        /// Conditions are the conditions of the binding: Scheduled and FullyApplied.
        pub conditions(skip): Vec<Condition>,
        /// AggregatedStatus is the status per cluster.
        pub aggregated_status(skip): Vec<AggregatedStatusItem>,
    }

    /// AggregatedStatusItem is the status in one cluster.
    pub struct AggregatedStatusItem {
        pub cluster_name: String,
        /// Status is the reflected status of the object in the member cluster.
        #[schemars(extend("x-raw" = true))]
        pub status?: RawExtension,
        /// Applied is true if the object was applied to the cluster.
        pub applied(skip): bool,
        /// AppliedMessage is the error if the object was not applied.
        pub applied_message(skip): String,
        pub health?: ResourceHealth,
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
