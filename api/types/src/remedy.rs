//! remedy.karmada.io/v1alpha1: actions for clusters with certain conditions. Written by users; read by the remedy
//! controller.

use crate::object::{api_structs, kind, string_enum};

/// The API group of this module.
pub const GROUP: &str = "remedy.karmada.io";

kind! {
    /// Remedy defines actions for clusters with certain conditions.
    Remedy, Cluster, "remedy.karmada.io", "v1alpha1", "remedies" {
        spec: RemedySpec,
    }
}

api_structs! {
    /// RemedySpec defines the clusters, conditions and actions.
    pub struct RemedySpec {
        /// ClusterAffinity selects the clusters. If unset, the remedy applies to all clusters.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub cluster_affinity: Option<ClusterAffinity>,
        /// DecisionMatches start the actions if any of them matches. If unset, the actions always apply; if empty,
        /// never.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub decision_matches: Option<Vec<DecisionMatch>>,
        /// Actions are the actions to perform.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub actions: Vec<RemedyAction>,
    }

    /// ClusterAffinity selects clusters by name.
    pub struct ClusterAffinity {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub cluster_names: Vec<String>,
    }

    /// DecisionMatch is a reason to start the actions.
    pub struct DecisionMatch {
        #[serde(skip_serializing_if = "Option::is_none")]
        pub cluster_condition_match: Option<ClusterConditionRequirement>,
    }

    /// ClusterConditionRequirement is a requirement on a cluster condition.
    pub struct ClusterConditionRequirement {
        pub condition_type: String,
        pub operator: ClusterConditionOperator,
        pub condition_status: String,
    }
}

string_enum! { closed
    /// ClusterConditionOperator is the comparison of a condition's status.
    ClusterConditionOperator { Equal = "Equal", NotEqual = "NotEqual" }
}

string_enum! { open
    /// RemedyAction is an action to perform.
    RemedyAction {
        /// Multi-cluster services send no traffic to the cluster.
        TrafficControl = "TrafficControl",
    }
}
