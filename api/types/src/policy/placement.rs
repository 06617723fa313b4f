//! Placement: the selection of clusters, their groups, and the division of replicas. Part of policies and bindings;
//! stored as JSON in the annotation `policy.karmada.io/applied-placement`.

use crate::object::{api_structs, string_enum};
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

api_structs! {
    /// Placement defines how clusters are selected for a resource.
    pub struct Placement {
        /// ClusterAffinity restricts the clusters to select from. It must not be set together with
        /// clusterAffinities. If neither is set, any cluster can be selected.
        pub cluster_affinity?: ClusterAffinity,
        /// ClusterAffinities are groups of clusters that are tried in order; only one group is used at a time.
        pub cluster_affinities(skip): Vec<ClusterAffinityTerm>,
        /// ClusterTolerations are the tolerations for cluster taints.
        pub cluster_tolerations(skip): Vec<Toleration>,
        /// SpreadConstraints define how the selected clusters are spread over regions, zones, providers or label
        /// values.
        pub spread_constraints(skip): Vec<SpreadConstraint>,
        /// ReplicaScheduling defines how replicas are assigned to the selected clusters. If unset, every cluster
        /// gets all replicas.
        pub replica_scheduling?: ReplicaSchedulingStrategy,
        /// WorkloadAffinity defines which workloads are scheduled together or apart.
        pub workload_affinity?: WorkloadAffinity,
    }

    /// ClusterAffinity is a filter that selects clusters. A cluster must match all parts.
    pub struct ClusterAffinity {
        /// LabelSelector selects clusters by label.
        pub label_selector?: LabelSelector,
        /// FieldSelector selects clusters by provider, region or zone.
        pub field_selector?: FieldSelector,
        /// ClusterNames are the names of the selected clusters. If empty, clusters of any name are selected.
        pub cluster_names(skip): Vec<String>,
        /// Exclude contains the names of clusters that are never selected.
        pub exclude(skip): Vec<String>,
    }

    /// FieldSelector selects clusters by the fields provider, region and zone.
    pub struct FieldSelector {
        /// MatchExpressions are the requirements on fields. A cluster must satisfy all of them.
        pub match_expressions(skip): Vec<NodeSelectorRequirement>,
    }

    /// ClusterAffinityTerm is a named group of clusters.
    pub struct ClusterAffinityTerm {
        /// AffinityName is the name of the group.
        #[schemars(length(min = 1, max = 32))]
        pub affinity_name: String,
        #[serde(flatten)]
        pub affinity: ClusterAffinity,
        /// OverflowAffinities are further groups that are added in order if the group has insufficient capacity.
        pub overflow_affinities(skip): Vec<OverflowClusterAffinity>,
    }

    /// OverflowClusterAffinity is a named group of clusters that is used when another group has insufficient
    /// capacity.
    pub struct OverflowClusterAffinity {
        /// AffinityName is the name of the group.
        #[schemars(length(min = 1, max = 32))]
        pub affinity_name: String,
        #[serde(flatten)]
        pub affinity: ClusterAffinity,
    }

    /// SpreadConstraint limits the number of groups of clusters that are selected.
    pub struct SpreadConstraint {
        /// SpreadByField is the cluster field that defines the groups. It must not be set together with
        /// spreadByLabel.
        pub spread_by_field?: SpreadFieldValue,
        /// SpreadByLabel is the cluster label whose values define the groups.
        pub spread_by_label(skip): String,
        /// MaxGroups is the maximum number of groups to select; 0 means no limit.
        #[schemars(schema_with = "crate::object::plain_integer")]
        pub max_groups(skip): i64,
        /// MinGroups is the minimum number of groups to select.
        #[schemars(schema_with = "crate::object::plain_integer")]
        pub min_groups(skip): i64,
    }

    /// ReplicaSchedulingStrategy defines how replicas are assigned to clusters.
    pub struct ReplicaSchedulingStrategy {
        /// ReplicaSchedulingType determines whether every cluster gets all replicas, or the replicas are divided
        /// among the clusters.
        #[schemars(extend("x-default" = "Divided"))]
        pub replica_scheduling_type?: ReplicaSchedulingType,
        /// ReplicaDivisionPreference determines how replicas are divided if replicaSchedulingType is Divided.
        pub replica_division_preference?: ReplicaDivisionPreference,
        /// WeightPreference contains the weights of clusters if replicaDivisionPreference is Weighted. If unset,
        /// all clusters have equal weights.
        pub weight_preference?: ClusterPreferences,
    }

    /// ClusterPreferences contains the weights of clusters.
    pub struct ClusterPreferences {
        /// StaticWeightList contains static weights.
        pub static_weight_list(skip): Vec<StaticClusterWeight>,
        /// DynamicWeight computes weights from the clusters. If set, staticWeightList is ignored.
        pub dynamic_weight?: DynamicWeightFactor,
    }

    /// StaticClusterWeight is the weight of the selected clusters.
    pub struct StaticClusterWeight {
        pub target_cluster: ClusterAffinity,
        #[schemars(range(min = 1))]
        pub weight: i64,
    }

    /// WorkloadAffinity defines which workloads are scheduled together or apart.
    pub struct WorkloadAffinity {
        /// Affinity schedules workloads with the same value of a label to the same clusters.
        pub affinity?: WorkloadAffinityTerm,
        /// AntiAffinity schedules workloads with the same value of a label to different clusters.
        pub anti_affinity?: WorkloadAntiAffinityTerm,
    }

    /// WorkloadAffinityTerm defines groups of workloads that are scheduled together.
    pub struct WorkloadAffinityTerm {
        pub group_by_label_key: String,
    }

    /// WorkloadAntiAffinityTerm defines groups of workloads that are scheduled apart.
    pub struct WorkloadAntiAffinityTerm {
        pub group_by_label_key: String,
    }
}

string_enum! { closed
    /// SpreadFieldValue is a cluster field that defines groups.
    SpreadFieldValue { Cluster = "cluster", Region = "region", Zone = "zone", Provider = "provider" }
}

string_enum! { closed
    /// ReplicaSchedulingType determines whether every cluster gets all replicas, or they are divided.
    ReplicaSchedulingType { Duplicated = "Duplicated", Divided = "Divided" }
}

string_enum! { closed
    /// ReplicaDivisionPreference determines how replicas are divided.
    ReplicaDivisionPreference {
        /// Uses as few clusters as possible.
        Aggregated = "Aggregated",
        /// Divides replicas by weight.
        Weighted = "Weighted",
    }
}

string_enum! { closed
    /// DynamicWeightFactor is a property of clusters from which weights are computed.
    DynamicWeightFactor { AvailableReplicas = "AvailableReplicas" }
}
