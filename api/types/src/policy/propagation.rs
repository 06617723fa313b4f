//! PropagationPolicy and ClusterPropagationPolicy.

use crate::object::{is_default, kind, shape, word};
use crate::policy::Placement;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

kind! {
    /// Selects resource templates of its own namespace and says where they go.
    PropagationPolicy, Namespaced, "policy.karmada.io", "v1alpha1", "propagationpolicies" {
        spec: PropagationSpec,
    }
}

kind! {
    /// Selects resource templates of any namespace, or cluster-scoped ones, and says where they go.
    ClusterPropagationPolicy, Cluster, "policy.karmada.io", "v1alpha1", "clusterpropagationpolicies" {
        spec: PropagationSpec,
    }
}

shape! {
    /// What to propagate, where to, and how it behaves on the way.
    pub struct PropagationSpec {
        /// The templates this policy takes; an object matching any selector is taken.
        #[schemars(length(min = 1))]
        pub resource_selectors: Vec<ResourceSelector>,
        /// Deprecated and without effect.
        #[serde(skip_serializing_if = "is_default")]
        pub association: bool,
        /// Whether objects a template refers to (ConfigMaps, Secrets, …) travel with it.
        #[serde(skip_serializing_if = "is_default")]
        pub propagate_deps: bool,
        /// Where the templates go.
        #[schemars(extend("x-optional" = true))]
        pub placement: Placement,
        /// The policy with the highest number wins when several match a template with equal closeness.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("x-default" = 0))]
        pub priority: Option<i32>,
        /// Whether this policy may take templates from policies of lower priority.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("x-default" = "Never"))]
        pub preemption: Option<PreemptionBehavior>,
        /// Override policies that have to exist before a template is propagated.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub dependent_overrides: Vec<String>,
        /// The scheduler that takes care of the bindings of this policy. It can not be changed later.
        #[serde(skip_serializing_if = "String::is_empty")]
        #[schemars(extend("x-default" = "default-scheduler"))]
        pub scheduler_name: String,
        /// When and how a workload leaves a cluster in trouble.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub failover: Option<FailoverBehavior>,
        /// What happens when a member already has an object of the same name that we do not manage.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("x-default" = "Abort"))]
        pub conflict_resolution: Option<ConflictResolution>,
        /// When a change of this policy reaches templates already propagated. Empty means at once.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub activation_preference: Option<ActivationPreference>,
        /// Which parts of propagation are held back.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub suspension: Option<Suspension>,
        /// Whether member objects stay when their template is deleted.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub preserve_resources_on_deletion: Option<bool>,
        /// Where the scheduling priority of the templates comes from.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub schedule_priority: Option<SchedulePriority>,
    }

    /// Picks objects of one kind. The name beats the label selector; neither means all objects of the kind.
    pub struct ResourceSelector {
        /// API version of the kind, taken literally.
        pub api_version: String,
        /// The kind, taken literally.
        pub kind: String,
        /// Namespace of the objects. Empty means the policy's namespace, or any namespace in a cluster-wide policy.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
        /// Name of the one object.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub name: String,
        /// Labels the objects carry. Not looked at when a name is given.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub label_selector: Option<LabelSelector>,
    }

    /// Holds back the delivery to member clusters.
    pub struct Suspension {
        /// Holds back delivery to all clusters.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub dispatching: Option<bool>,
        /// Holds back delivery to some clusters. Not together with `dispatching`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub dispatching_on_clusters: Option<SuspendClusters>,
    }

    /// The clusters delivery is held back for.
    pub struct SuspendClusters {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub cluster_names: Vec<String>,
    }

    /// When and how a workload leaves a cluster.
    pub struct FailoverBehavior {
        /// What to do when the workload itself is unhealthy. Absent means nothing.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub application: Option<ApplicationFailoverBehavior>,
        /// What to do when the cluster fails.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub cluster: Option<ClusterFailoverBehavior>,
    }

    /// Moving an unhealthy workload.
    pub struct ApplicationFailoverBehavior {
        /// When the move begins.
        pub decision_conditions: DecisionConditions,
        /// What becomes of the copy in the cluster left behind.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("enum" = ["Directly", "Gracefully", "Never"], "x-default" = "Gracefully"))]
        pub purge_mode: Option<PurgeMode>,
        /// How long, in seconds, the old copy is kept at most while the new one comes up. Only with `Gracefully`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub grace_period_seconds: Option<i32>,
        /// Status values of the old copy handed to the new one.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub state_preservation: Option<StatePreservation>,
    }

    /// Moving workloads away from a failed cluster.
    pub struct ClusterFailoverBehavior {
        /// What becomes of the copy in the cluster left behind.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("enum" = ["Directly", "Gracefully"], "x-default" = "Gracefully"))]
        pub purge_mode: Option<PurgeMode>,
        /// Status values of the old copy handed to the new one.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub state_preservation: Option<StatePreservation>,
    }

    /// What has to hold before a workload is moved.
    pub struct DecisionConditions {
        /// How long, in seconds, the workload may be unhealthy.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("x-default" = 300))]
        pub toleration_seconds: Option<i32>,
    }

    /// Which status values survive a move.
    pub struct StatePreservation {
        pub rules: Vec<StatePreservationRule>,
    }

    /// One status value, handed on as a label.
    pub struct StatePreservationRule {
        /// Key of the label the new copy gets.
        pub alias_label_name: String,
        /// Where the value is found within the old copy's status.
        pub json_path: String,
    }

    /// Where the scheduling priority of a template comes from.
    pub struct SchedulePriority {
        /// Which sort of priority class is meant.
        pub priority_class_source: PriorityClassSource,
        /// Name of the priority class.
        pub priority_class_name: String,
    }
}

word! { open
    /// What becomes of the copy in the cluster a workload leaves.
    PurgeMode {
        /// Removed at once.
        Directly = "Directly",
        /// Removed when the replacement is healthy, or after the grace period.
        Gracefully = "Gracefully",
        /// Kept until somebody removes it.
        Never = "Never",
    }
}

word! { closed
    /// Whether a policy may take templates from another.
    PreemptionBehavior { Always = "Always", Never = "Never" }
}

word! { closed
    /// What happens to a member object of the same name that we do not manage.
    ConflictResolution { Abort = "Abort", Overwrite = "Overwrite" }
}

word! { closed
    /// When a changed policy takes effect.
    ActivationPreference {
        /// Only together with a change of the template.
        Lazy = "Lazy",
    }
}

word! { closed
    /// Which sort of priority class is meant.
    PriorityClassSource { KubePriorityClass = "KubePriorityClass" }
}
