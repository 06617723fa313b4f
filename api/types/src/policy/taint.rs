//! ClusterTaintPolicy: taints that come and go with cluster conditions.

use crate::object::{kind, shape, word};
use crate::policy::ClusterAffinity;

kind! {
    /// Adds taints to clusters while conditions hold, and removes them again.
    ClusterTaintPolicy, Cluster, "policy.karmada.io", "v1alpha1", "clustertaintpolicies" {
        spec: ClusterTaintPolicySpec,
    }
}

shape! {
    /// Which clusters get which taints, and when.
    pub struct ClusterTaintPolicySpec {
        /// The clusters; absent means all.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target_clusters: Option<ClusterAffinity>,
        /// The taints are added when all of these match. None means never.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub add_on_conditions: Vec<MatchCondition>,
        /// The taints are removed when all of these match. None means never.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub remove_on_conditions: Vec<MatchCondition>,
        /// The taints.
        #[schemars(length(min = 1))]
        pub taints: Vec<Taint>,
    }

    /// A test of one cluster condition. A condition the cluster does not have never matches.
    pub struct MatchCondition {
        pub condition_type: String,
        pub operator: MatchConditionOperator,
        /// The statuses compared with: `True`, `False`, `Unknown`.
        pub status_values: Vec<String>,
    }

    /// A taint without the time it was added.
    pub struct Taint {
        pub key: String,
        pub effect: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub value: String,
    }
}

word! { open
    /// How a condition's status is compared.
    MatchConditionOperator { In = "In", NotIn = "NotIn" }
}
