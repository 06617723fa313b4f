//! apps.karmada.io/v1alpha1: rescheduling of workloads. Written by users; the status is written by the workload
//! rebalancer controller.

use crate::object::{api_structs, kinds, string_enum};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The API group of this module.
pub const GROUP: &str = "apps.karmada.io";

kinds! { "apps.karmada.io", "v1alpha1";
    /// WorkloadRebalancer requests that the listed workloads are rescheduled once.
    WorkloadRebalancer(Cluster, "workloadrebalancers") {
        spec: WorkloadRebalancerSpec, status(skip): WorkloadRebalancerStatus
    }
}

api_structs! {
    /// WorkloadRebalancerSpec lists the workloads to reschedule.
    pub struct WorkloadRebalancerSpec {
        #[schemars(length(min = 1))]
        pub workloads: Vec<ObjectReference>,
        /// TTLSecondsAfterFinished is the time in seconds after which the finished object is deleted. If unset, it
        /// is not deleted automatically.
        pub ttl_seconds_after_finished?: i32,
    }

    /// ObjectReference references a workload.
    pub struct ObjectReference {
        pub api_version: String,
        pub kind: String,
        pub name: String,
        pub namespace(skip): String,
    }

    /// WorkloadRebalancerStatus is the progress of the rescheduling.
    pub struct WorkloadRebalancerStatus {
        pub observed_workloads(skip): Vec<ObservedWorkload>,
        pub observed_generation(skip): i64,
        pub finish_time?: Time,
    }

    /// ObservedWorkload is the result for one workload.
    pub struct ObservedWorkload {
        pub workload: ObjectReference,
        pub result?: RebalanceResult,
        pub reason?: RebalanceFailedReason,
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
