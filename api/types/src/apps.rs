//! apps.karmada.io/v1alpha1: asking for workloads to be scheduled anew. Written by users; reported on by the
//! rebalancer.

use crate::object::{is_default, kind, shape, word};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The API group of this module.
pub const GROUP: &str = "apps.karmada.io";

kind! {
    /// A list of workloads to schedule anew, once.
    WorkloadRebalancer, Cluster, "apps.karmada.io", "v1alpha1", "workloadrebalancers" {
        spec: WorkloadRebalancerSpec,
        status(skip): WorkloadRebalancerStatus,
    }
}

shape! {
    /// What is scheduled anew.
    pub struct WorkloadRebalancerSpec {
        #[schemars(length(min = 1))]
        pub workloads: Vec<ObjectReference>,
        /// How long, in seconds, this object stays after it is done. Absent means until somebody deletes it.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub ttl_seconds_after_finished: Option<i32>,
    }

    /// A workload.
    pub struct ObjectReference {
        pub api_version: String,
        pub kind: String,
        pub name: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
    }

    /// How far it is.
    pub struct WorkloadRebalancerStatus {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub observed_workloads: Vec<ObservedWorkload>,
        #[serde(skip_serializing_if = "is_default")]
        pub observed_generation: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub finish_time: Option<Time>,
    }

    /// What became of one workload.
    pub struct ObservedWorkload {
        pub workload: ObjectReference,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub result: Option<RebalanceResult>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub reason: Option<RebalanceFailedReason>,
    }
}

word! { open
    /// Whether scheduling anew was asked for.
    RebalanceResult { Successful = "Successful", Failed = "Failed" }
}

word! { open
    /// Why it was not.
    RebalanceFailedReason { ReferencedBindingNotFound = "ReferencedBindingNotFound" }
}
