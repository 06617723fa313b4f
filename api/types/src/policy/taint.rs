//! ClusterTaintPolicy: adds and removes taints of clusters depending on their conditions.

use crate::object::{api_structs, kinds, string_enum};
use crate::policy::ClusterAffinity;

kinds! { "policy.karmada.io", "v1alpha1";
    /// ClusterTaintPolicy adds taints to clusters and removes them, depending on cluster conditions.
    ClusterTaintPolicy(Cluster, "clustertaintpolicies") { spec: ClusterTaintPolicySpec }
}

api_structs! {
    /// ClusterTaintPolicySpec defines the clusters, the conditions and the taints.
    pub struct ClusterTaintPolicySpec {
        /// TargetClusters selects the clusters. If unset, the policy applies to all clusters.
        pub target_clusters?: ClusterAffinity,
        /// AddOnConditions are the conditions that must all match for the taints to be added. If empty, they are
        /// never added.
        pub add_on_conditions(skip): Vec<MatchCondition>,
        /// RemoveOnConditions are the conditions that must all match for the taints to be removed. If empty, they
        /// are never removed.
        pub remove_on_conditions(skip): Vec<MatchCondition>,
        /// Taints are the taints to add or remove.
        #[schemars(length(min = 1))]
        pub taints: Vec<Taint>,
    }

    /// MatchCondition matches a cluster condition. It never matches if the cluster does not have the condition.
    pub struct MatchCondition {
        pub condition_type: String,
        pub operator: MatchConditionOperator,
        /// StatusValues are the statuses to compare with: True, False or Unknown.
        pub status_values: Vec<String>,
    }

    /// Taint is the taint of a cluster, without the time at which it was added.
    pub struct Taint {
        pub key: String,
        pub effect: String,
        pub value(skip): String,
    }
}

string_enum! { open
    /// MatchConditionOperator defines whether a condition's status must or must not be one of the status values.
    MatchConditionOperator { In = "In", NotIn = "NotIn" }
}
