//! work.karmada.io/v1alpha2: ResourceBinding and ClusterResourceBinding, one per propagated template.

use std::collections::BTreeMap;

use crate::object::{is_default, kind, shape};
use crate::policy::{self, ConflictResolution, FailoverBehavior, Placement, PurgeMode, ResourceList};
use crate::work::ResourceHealth;
use k8s_openapi::api::core::v1::{NodeSelector, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;

kind! {
    /// Ties a namespaced template to the clusters it goes to.
    ResourceBinding, Namespaced, "work.karmada.io", "v1alpha2", "resourcebindings" {
        spec: ResourceBindingSpec,
        status(skip): ResourceBindingStatus,
    }
}

kind! {
    /// Ties a cluster-scoped template to the clusters it goes to.
    ClusterResourceBinding, Cluster, "work.karmada.io", "v1alpha2", "clusterresourcebindings" {
        spec: ResourceBindingSpec,
        status(skip): ResourceBindingStatus,
    }
}

shape! {
    /// The template, what it needs, what its policy asks for, and the clusters it got.
    pub struct ResourceBindingSpec {
        /// The template.
        pub resource: ObjectReference,
        /// Whether objects the template refers to travel with it.
        #[serde(skip_serializing_if = "is_default")]
        pub propagate_deps: bool,
        /// What one replica needs. Only of workloads with a single pod template.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replica_requirements: Option<ReplicaRequirements>,
        /// How many replicas the template asks for.
        #[serde(skip_serializing_if = "is_default")]
        pub replicas: i32,
        /// What the parts of a workload with several pod templates need.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub components: Vec<Component>,
        /// The clusters chosen by the scheduler.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub clusters: Vec<TargetCluster>,
        /// Where the template may go, taken from the policy.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub placement: Option<Placement>,
        /// Copies that are being taken out of clusters.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub graceful_eviction_tasks: Vec<GracefulEvictionTask>,
        /// Bindings that need this template wherever they go.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub required_by: Vec<BindingSnapshot>,
        /// The scheduler that takes care of this binding.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub scheduler_name: String,
        /// When and how the workload leaves a cluster in trouble.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub failover: Option<FailoverBehavior>,
        /// What happens when a member already has an object of the same name that we do not manage.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("x-default" = "Abort"))]
        pub conflict_resolution: Option<ConflictResolution>,
        /// Asks for scheduling anew when later than the last time it was done.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub reschedule_triggered_at: Option<Time>,
        /// Which parts of propagation are held back.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub suspension: Option<Suspension>,
        /// Whether member objects stay when the template is deleted.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub preserve_resources_on_deletion: Option<bool>,
        /// The place of this binding in the scheduling queue.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub schedule_priority: Option<SchedulePriority>,
        /// The groups of workloads this one wants to be with, or away from.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub workload_affinity_groups: Option<WorkloadAffinityGroups>,
    }

    /// An object of the control plane, such as the template of a binding.
    #[derive(Eq, PartialOrd, Ord)]
    pub struct ObjectReference {
        pub api_version: String,
        pub kind: String,
        /// Empty for cluster-scoped templates.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
        pub name: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub uid: String,
        /// The resourceVersion the binding was last derived from.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub resource_version: String,
    }

    /// What one replica needs.
    pub struct ReplicaRequirements {
        /// Which nodes it can use.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub node_claim: Option<NodeClaim>,
        /// How much of each resource it requests.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub resource_request: ResourceList,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub priority_class_name: String,
    }

    /// One part of a workload with several pod templates.
    pub struct Component {
        #[schemars(length(max = 32))]
        pub name: String,
        pub replicas: i32,
        /// What one replica of this part needs.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replica_requirements: Option<ComponentReplicaRequirements>,
    }

    /// What one replica of a component needs.
    pub struct ComponentReplicaRequirements {
        #[serde(skip_serializing_if = "Option::is_none")]
        pub node_claim: Option<NodeClaim>,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub resource_request: ResourceList,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub priority_class_name: String,
    }

    /// Which nodes a replica can use.
    pub struct NodeClaim {
        #[serde(skip_serializing_if = "Option::is_none")]
        pub hard_node_affinity: Option<NodeSelector>,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub node_selector: BTreeMap<String, String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub tolerations: Vec<Toleration>,
    }

    /// A cluster chosen and its share.
    pub struct TargetCluster {
        pub name: String,
        #[serde(skip_serializing_if = "is_default")]
        pub replicas: i32,
        /// The shares of the components.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub components: Vec<TargetComponent>,
    }

    /// A component's share in a cluster.
    pub struct TargetComponent {
        pub name: String,
        pub replicas: i32,
    }

    /// The removal of one cluster's copy.
    pub struct GracefulEvictionTask {
        /// The cluster left.
        pub from_cluster: String,
        /// What becomes of the copy there.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("enum" = ["Directly", "Gracefully", "Never"]))]
        pub purge_mode: Option<PurgeMode>,
        /// How many replicas it had.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replicas: Option<i32>,
        /// Why, in one word.
        #[schemars(length(min = 1, max = 32), regex(pattern = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"))]
        pub reason: String,
        /// Why, in a sentence.
        #[serde(skip_serializing_if = "String::is_empty")]
        #[schemars(length(max = 1024))]
        pub message: String,
        /// Who asked for it.
        pub producer: String,
        /// How long, in seconds, the copy may stay at most.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub grace_period_seconds: Option<i32>,
        /// Whether the copy stays until somebody confirms the removal.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub suppress_deletion: Option<bool>,
        /// Labels the replacement gets.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub preserved_label_state: BTreeMap<String, String>,
        /// When the task was made.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub creation_timestamp: Option<Time>,
        /// The clusters the workload was in before it moved.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub clusters_before_failover: Vec<String>,
    }

    /// Another binding and the clusters it had when last looked at.
    pub struct BindingSnapshot {
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
        pub name: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub clusters: Vec<TargetCluster>,
    }

    /// Which parts of propagation are held back.
    pub struct Suspension {
        #[serde(flatten)]
        pub policy: policy::Suspension,
        /// Holds back scheduling. Set on the binding itself only.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub scheduling: Option<bool>,
    }

    /// The place in the scheduling queue.
    pub struct SchedulePriority {
        /// Higher goes first.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(extend("x-default" = 0))]
        pub priority: i32,
    }

    /// Groups of workloads, as `<label key>=<label value>`.
    pub struct WorkloadAffinityGroups {
        #[serde(skip_serializing_if = "String::is_empty")]
        pub affinity_group: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub anti_affinity_group: String,
    }

    /// What became of the binding.
    pub struct ResourceBindingStatus {
        /// The generation the scheduler has dealt with.
        #[serde(skip_serializing_if = "is_default")]
        pub scheduler_observed_generation: i64,
        /// The group of clusters in use, by name.
        #[serde(skip_serializing_if = "String::is_empty", rename = "schedulerObservingAffinityName")]
        pub scheduler_observed_affinity_name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub last_scheduled_time: Option<Time>,
        /// `Scheduled`, `FullyApplied`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub conditions: Vec<Condition>,
        /// Status per cluster.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub aggregated_status: Vec<AggregatedStatusItem>,
    }

    /// Status in one cluster.
    pub struct AggregatedStatusItem {
        pub cluster_name: String,
        /// The reflected part of the member object's status.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("x-raw" = true))]
        pub status: Option<RawExtension>,
        /// Whether the object was applied.
        #[serde(skip_serializing_if = "is_default")]
        pub applied: bool,
        /// Why it was not.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub applied_message: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub health: Option<ResourceHealth>,
    }
}

impl ResourceBindingSpec {
    /// Whether the template is a workload: it asks for replicas or says what pods need.
    pub fn is_workload(&self) -> bool {
        self.replicas > 0 || self.replica_requirements.is_some() || !self.components.is_empty()
    }

    /// Whether a cluster is among those chosen.
    pub fn targets(&self, cluster: &str) -> bool {
        self.clusters.iter().any(|target| target.name == cluster)
    }

    /// Whether the copy in a cluster is being taken out.
    pub fn evicts(&self, cluster: &str) -> bool {
        self.graceful_eviction_tasks.iter().any(|task| task.from_cluster == cluster)
    }
}
