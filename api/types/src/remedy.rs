//! remedy.karmada.io/v1alpha1: actions for clusters with certain conditions. Written by users; read by the remedy
//! controller.

use crate::object::{api_structs, kinds, string_enum};

/// The API group of this module.
pub const GROUP: &str = "remedy.karmada.io";

kinds! { "remedy.karmada.io", "v1alpha1";
    /// Remedy defines actions for clusters with certain conditions.
    Remedy(Cluster, "remedies") { spec: RemedySpec }
}

api_structs! {
    /// RemedySpec defines the clusters, conditions and actions.
    pub struct RemedySpec {
        /// ClusterAffinity selects the clusters. If unset, the remedy applies to all clusters.
        pub cluster_affinity?: ClusterAffinity,
        /// DecisionMatches start the actions if any of them matches. If unset, the actions always apply; if empty,
        /// never.
        pub decision_matches?: Vec<DecisionMatch>,
        /// Actions are the actions to perform.
        pub actions(skip): Vec<RemedyAction>,
    }

    /// ClusterAffinity selects clusters by name.
    pub struct ClusterAffinity {
        pub cluster_names(skip): Vec<String>,
    }

    /// DecisionMatch is a reason to start the actions.
    pub struct DecisionMatch {
        pub cluster_condition_match?: ClusterConditionRequirement,
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
