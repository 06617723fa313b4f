//! PropagationPolicy and ClusterPropagationPolicy.

use crate::object::{api_structs, kinds, string_enum};
use crate::policy::Placement;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

kinds! { "policy.karmada.io", "v1alpha1";
    /// PropagationPolicy propagates the selected resources of its namespace to member clusters.
    PropagationPolicy(Namespaced, "propagationpolicies") { spec: PropagationSpec }

    /// ClusterPropagationPolicy propagates the selected resources of any namespace, or cluster-scoped resources, to
    /// member clusters.
    ClusterPropagationPolicy(Cluster, "clusterpropagationpolicies") { spec: PropagationSpec }
}

api_structs! {
    /// PropagationSpec defines which resources are propagated, to which clusters, and how.
    pub struct PropagationSpec {
        /// ResourceSelectors select the resources to propagate. A resource must match at least one of them.
        #[schemars(length(min = 1))]
        pub resource_selectors: Vec<ResourceSelector>,
        /// Association is deprecated and has no effect. Use propagateDeps instead.
        pub association(skip): bool,
        /// PropagateDeps defines whether objects that a resource references, such as ConfigMaps and Secrets, are
        /// propagated with it.
        pub propagate_deps(skip): bool,
        /// Placement defines how clusters are selected.
        #[schemars(extend("x-optional" = true))]
        pub placement: Placement,
        /// Priority decides between policies that match a resource equally specifically: the policy with the
        /// highest number is applied.
        #[schemars(extend("x-default" = 0))]
        pub priority?: i32,
        /// Preemption defines whether this policy may take over resources from policies with lower priority.
        #[schemars(extend("x-default" = "Never"))]
        pub preemption?: PreemptionBehavior,
        /// DependentOverrides are the names of override policies that must exist before a resource is propagated.
        pub dependent_overrides(skip): Vec<String>,
        /// SchedulerName is the name of the scheduler for the bindings of this policy. It is immutable.
        #[schemars(extend("x-default" = "default-scheduler"))]
        pub scheduler_name(skip): String,
        /// Failover defines when and how workloads are migrated from a failed cluster.
        pub failover?: FailoverBehavior,
        /// ConflictResolution defines how to proceed if an object of the same name, which is not managed by
        /// Karmada, already exists in a member cluster.
        #[schemars(extend("x-default" = "Abort"))]
        pub conflict_resolution?: ConflictResolution,
        /// ActivationPreference defines when a change of this policy takes effect on propagated resources. If
        /// empty, it takes effect immediately.
        pub activation_preference?: ActivationPreference,
        /// Suspension suspends parts of the propagation.
        pub suspension?: Suspension,
        /// PreserveResourcesOnDeletion defines whether objects in member clusters are kept when their resource
        /// template is deleted.
        pub preserve_resources_on_deletion?: bool,
        /// SchedulePriority defines the source of the scheduling priority.
        pub schedule_priority?: SchedulePriority,
    }

    /// ResourceSelector selects resources of one kind. If a name is set, the label selector is ignored. If neither
    /// is set, all resources of the kind are selected.
    pub struct ResourceSelector {
        /// APIVersion is the API version of the resources.
        pub api_version: String,
        /// Kind is the kind of the resources.
        pub kind: String,
        /// Namespace is the namespace of the resources. If empty, it is the namespace of the policy, or any
        /// namespace in a cluster-scoped policy.
        pub namespace(skip): String,
        /// Name is the name of the resource.
        pub name(skip): String,
        /// LabelSelector selects resources by label. It is ignored if a name is set.
        pub label_selector?: LabelSelector,
    }

    /// Suspension suspends the dispatching to member clusters.
    pub struct Suspension {
        /// Dispatching suspends the dispatching to all clusters.
        pub dispatching?: bool,
        /// DispatchingOnClusters suspends the dispatching to some clusters. It must not be set together with
        /// dispatching.
        pub dispatching_on_clusters?: SuspendClusters,
    }

    /// SuspendClusters lists the clusters for which dispatching is suspended.
    pub struct SuspendClusters {
        pub cluster_names(skip): Vec<String>,
    }

    /// FailoverBehavior defines when and how workloads are migrated.
    pub struct FailoverBehavior {
        /// Application defines the migration of unhealthy workloads. If unset, they are not migrated.
        pub application?: ApplicationFailoverBehavior,
        /// Cluster defines the migration from failed clusters.
        pub cluster?: ClusterFailoverBehavior,
    }

    /// ApplicationFailoverBehavior defines the migration of unhealthy workloads.
    pub struct ApplicationFailoverBehavior {
        /// DecisionConditions define when a workload is migrated.
        pub decision_conditions: DecisionConditions,
        /// PurgeMode defines how the workload is removed from the original cluster.
        #[schemars(extend("enum" = ["Directly", "Gracefully", "Never"], "x-default" = "Gracefully"))]
        pub purge_mode?: PurgeMode,
        /// GracePeriodSeconds is the maximum time in seconds for which the original workload is kept until the new
        /// one is healthy. It is only used if purgeMode is Gracefully.
        pub grace_period_seconds?: i32,
        /// StatePreservation defines which status values of the original workload are passed to the new one.
        pub state_preservation?: StatePreservation,
    }

    /// ClusterFailoverBehavior defines the migration of workloads from a failed cluster.
    pub struct ClusterFailoverBehavior {
        /// PurgeMode defines how the workload is removed from the original cluster.
        #[schemars(extend("enum" = ["Directly", "Gracefully"], "x-default" = "Gracefully"))]
        pub purge_mode?: PurgeMode,
        /// StatePreservation defines which status values of the original workload are passed to the new one.
        pub state_preservation?: StatePreservation,
    }

    /// DecisionConditions define when a workload is migrated.
    pub struct DecisionConditions {
        /// TolerationSeconds is the time in seconds for which the workload may be unhealthy before it is migrated.
        #[schemars(extend("x-default" = 300))]
        pub toleration_seconds?: i32,
    }

    /// StatePreservation defines which status values are preserved during a migration.
    pub struct StatePreservation {
        pub rules: Vec<StatePreservationRule>,
    }

    /// StatePreservationRule passes a status value to the new workload as a label.
    pub struct StatePreservationRule {
        /// AliasLabelName is the key of the label that is added to the new workload.
        pub alias_label_name: String,
        /// JSONPath is the path of the value within the status of the original workload.
        pub json_path: String,
    }

    /// SchedulePriority defines the source of the scheduling priority.
    pub struct SchedulePriority {
        /// PriorityClassSource is the type of the priority class.
        pub priority_class_source: PriorityClassSource,
        /// PriorityClassName is the name of the priority class.
        pub priority_class_name: String,
    }
}

string_enum! { open
    /// PurgeMode defines how a workload is removed from the original cluster.
    PurgeMode {
        /// Remove it immediately.
        Directly = "Directly",
        /// Remove it when the new workload is healthy, or after the grace period.
        Gracefully = "Gracefully",
        /// Keep it until it is removed manually.
        Never = "Never",
    }
}

string_enum! { closed
    /// PreemptionBehavior defines whether a policy may take over resources from others.
    PreemptionBehavior { Always = "Always", Never = "Never" }
}

string_enum! { closed
    /// ConflictResolution defines how to proceed with an existing object that is not managed by Karmada.
    ConflictResolution { Abort = "Abort", Overwrite = "Overwrite" }
}

string_enum! { closed
    /// ActivationPreference defines when a changed policy takes effect.
    ActivationPreference {
        /// Only together with a change of the resource template.
        Lazy = "Lazy",
    }
}

string_enum! { closed
    /// PriorityClassSource is the type of a priority class.
    PriorityClassSource { KubePriorityClass = "KubePriorityClass" }
}
