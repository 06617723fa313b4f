//! apps.karmada.io/v1alpha1: rescheduling of workloads. Written by users; the status is written by the workload
//! rebalancer controller.

use crate::object::{api_structs, is_default, kind, string_enum};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The API group of this module.
pub const GROUP: &str = "apps.karmada.io";

kind! {
    /// WorkloadRebalancer requests that the listed workloads are rescheduled once.
    WorkloadRebalancer, Cluster, "apps.karmada.io", "v1alpha1", "workloadrebalancers" {
        spec: WorkloadRebalancerSpec,
        status(skip): WorkloadRebalancerStatus,
    }
}

api_structs! {
    /// WorkloadRebalancerSpec lists the workloads to reschedule.
    pub struct WorkloadRebalancerSpec {
        #[schemars(length(min = 1))]
        pub workloads: Vec<ObjectReference>,
        /// TTLSecondsAfterFinished is the time in seconds after which the finished object is deleted. If unset, it
        /// is not deleted automatically.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub ttl_seconds_after_finished: Option<i32>,
    }

    /// ObjectReference references a workload.
    pub struct ObjectReference {
        pub api_version: String,
        pub kind: String,
        pub name: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub namespace: String,
    }

    /// WorkloadRebalancerStatus is the progress of the rescheduling.
    pub struct WorkloadRebalancerStatus {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub observed_workloads: Vec<ObservedWorkload>,
        #[serde(skip_serializing_if = "is_default")]
        pub observed_generation: i64,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub finish_time: Option<Time>,
    }

    /// ObservedWorkload is the result for one workload.
    pub struct ObservedWorkload {
        pub workload: ObjectReference,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub result: Option<RebalanceResult>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub reason: Option<RebalanceFailedReason>,
    }
}

string_enum! { open
    /// RebalanceResult is the result of a rescheduling request.
    RebalanceResult { Successful = "Successful", Failed = "Failed" }
}

string_enum! { open
    /// RebalanceFailedReason is the reason of a failed request.
    RebalanceFailedReason { ReferencedBindingNotFound = "ReferencedBindingNotFound" }
}
