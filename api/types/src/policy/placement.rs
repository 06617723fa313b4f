//! Placement: which clusters, in which groups, with how many replicas each. Part of policies and bindings, and kept as
//! JSON in the `policy.karmada.io/applied-placement` annotation.

use crate::object::{is_default, shape, word};
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

shape! {
    /// Which clusters a template goes to.
    pub struct Placement {
        /// The clusters to choose from. Not together with `cluster_affinities`; neither means all.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub cluster_affinity: Option<ClusterAffinity>,
        /// Groups of clusters tried one after another; exactly one is used at a time.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub cluster_affinities: Vec<ClusterAffinityTerm>,
        /// Cluster taints that do not matter.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub cluster_tolerations: Vec<Toleration>,
        /// How the chosen clusters spread over regions, zones, providers.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub spread_constraints: Vec<SpreadConstraint>,
        /// How replicas are dealt out. Absent means every cluster gets all of them.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replica_scheduling: Option<ReplicaSchedulingStrategy>,
        /// Which workloads want to be together, or apart.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub workload_affinity: Option<WorkloadAffinity>,
    }

    /// A filter over clusters; all parts have to match.
    pub struct ClusterAffinity {
        /// Labels of the clusters.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub label_selector: Option<LabelSelector>,
        /// Provider, region or zone of the clusters.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub field_selector: Option<FieldSelector>,
        /// Names of the clusters; empty means any.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub cluster_names: Vec<String>,
        /// Clusters never chosen, whatever the rest says.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub exclude: Vec<String>,
    }

    /// A filter over the fields `provider`, `region` and `zone` of clusters.
    pub struct FieldSelector {
        /// Requirements, all of which have to hold.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub match_expressions: Vec<NodeSelectorRequirement>,
    }

    /// A named group of clusters.
    pub struct ClusterAffinityTerm {
        /// Name of the group.
        #[schemars(length(min = 1, max = 32))]
        pub affinity_name: String,
        #[serde(flatten)]
        pub affinity: ClusterAffinity,
        /// Further groups that are added, in order, when the group itself has not enough room.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub overflow_affinities: Vec<OverflowClusterAffinity>,
    }

    /// A named group of clusters that takes what another group has no room for.
    pub struct OverflowClusterAffinity {
        /// Name of the group.
        #[schemars(length(min = 1, max = 32))]
        pub affinity_name: String,
        #[serde(flatten)]
        pub affinity: ClusterAffinity,
    }

    /// How many groups of clusters are used.
    pub struct SpreadConstraint {
        /// The cluster field that makes the groups. Not together with `spread_by_label`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub spread_by_field: Option<SpreadFieldValue>,
        /// The cluster label that makes the groups.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub spread_by_label: String,
        /// At most so many groups; 0 means no limit.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(schema_with = "crate::object::plain_integer")]
        pub max_groups: i64,
        /// At least so many groups.
        #[serde(skip_serializing_if = "is_default")]
        #[schemars(schema_with = "crate::object::plain_integer")]
        pub min_groups: i64,
    }

    /// How replicas are dealt out to clusters.
    pub struct ReplicaSchedulingStrategy {
        /// Whether clusters get all replicas each, or a share.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("x-default" = "Divided"))]
        pub replica_scheduling_type: Option<ReplicaSchedulingType>,
        /// How shares are made. Only with `Divided`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub replica_division_preference: Option<ReplicaDivisionPreference>,
        /// The weights. Only with `Weighted`; absent means equal weights.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub weight_preference: Option<ClusterPreferences>,
    }

    /// Weights of clusters.
    pub struct ClusterPreferences {
        /// Fixed weights.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub static_weight_list: Vec<StaticClusterWeight>,
        /// Weights computed from the clusters; beats the fixed ones.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub dynamic_weight: Option<DynamicWeightFactor>,
    }

    /// The weight of the clusters a filter matches.
    pub struct StaticClusterWeight {
        pub target_cluster: ClusterAffinity,
        #[schemars(range(min = 1))]
        pub weight: i64,
    }

    /// Which workloads want to be together, or apart.
    pub struct WorkloadAffinity {
        /// Workloads with equal values of a label go to the same clusters.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub affinity: Option<WorkloadAffinityTerm>,
        /// Workloads with equal values of a label go to different clusters.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub anti_affinity: Option<WorkloadAntiAffinityTerm>,
    }

    /// The label that makes groups of workloads to keep together.
    pub struct WorkloadAffinityTerm {
        pub group_by_label_key: String,
    }

    /// The label that makes groups of workloads to keep apart.
    pub struct WorkloadAntiAffinityTerm {
        pub group_by_label_key: String,
    }
}

word! { closed
    /// A field of clusters that makes groups.
    SpreadFieldValue { Cluster = "cluster", Region = "region", Zone = "zone", Provider = "provider" }
}

word! { closed
    /// Whether clusters get all replicas each, or a share.
    ReplicaSchedulingType { Duplicated = "Duplicated", Divided = "Divided" }
}

word! { closed
    /// How shares of replicas are made.
    ReplicaDivisionPreference {
        /// As few clusters as have room.
        Aggregated = "Aggregated",
        /// By weight.
        Weighted = "Weighted",
    }
}

word! { closed
    /// What weights are computed from.
    DynamicWeightFactor { AvailableReplicas = "AvailableReplicas" }
}
