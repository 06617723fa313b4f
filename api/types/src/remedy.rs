//! remedy.karmada.io/v1alpha1: what to do when a cluster reports trouble. Written by users; read by the remedy
//! controller.

use crate::object::{kind, shape, word};

/// The API group of this module.
pub const GROUP: &str = "remedy.karmada.io";

kind! {
    /// Actions taken for clusters in a condition.
    Remedy, Cluster, "remedy.karmada.io", "v1alpha1", "remedies" {
        spec: RemedySpec,
    }
}

shape! {
    /// Which clusters, in which conditions, get which actions.
    pub struct RemedySpec {
        /// The clusters; absent means all.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub cluster_affinity: Option<ClusterAffinity>,
        /// Any of these starts the actions; absent means always, an empty list never.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub decision_matches: Option<Vec<DecisionMatch>>,
        /// The actions.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub actions: Vec<RemedyAction>,
    }

    /// Clusters by name.
    pub struct ClusterAffinity {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub cluster_names: Vec<String>,
    }

    /// One reason to act.
    pub struct DecisionMatch {
        #[serde(skip_serializing_if = "Option::is_none")]
        pub cluster_condition_match: Option<ClusterConditionRequirement>,
    }

    /// A test of a cluster condition.
    pub struct ClusterConditionRequirement {
        pub condition_type: String,
        pub operator: ClusterConditionOperator,
        pub condition_status: String,
    }
}

word! { closed
    /// How a condition's status is compared.
    ClusterConditionOperator { Equal = "Equal", NotEqual = "NotEqual" }
}

word! { open
    /// What is done.
    RemedyAction {
        /// Multi-cluster services stop sending traffic to the cluster.
        TrafficControl = "TrafficControl",
    }
}
