//! autoscaling.karmada.io/v1alpha1: scaling across clusters by metrics and by schedule. Written by users; the
//! status is written by the autoscaling controllers.

use crate::object::{api_structs, kind};
use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HorizontalPodAutoscalerBehavior, HorizontalPodAutoscalerStatus, MetricSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The API group of this module.
pub const GROUP: &str = "autoscaling.karmada.io";

kind! {
    /// FederatedHPA scales a workload by the metrics of all its clusters.
    FederatedHPA, Namespaced, "autoscaling.karmada.io", "v1alpha1", "federatedhpas" {
        spec: FederatedHPASpec,
        status(skip): HorizontalPodAutoscalerStatus,
    }
}

kind! {
    /// CronFederatedHPA scales a workload or a FederatedHPA by schedule.
    CronFederatedHPA, Namespaced, "autoscaling.karmada.io", "v1alpha1", "cronfederatedhpas" {
        spec: CronFederatedHPASpec,
        status(skip): CronFederatedHPAStatus,
    }
}

api_structs! {
    /// FederatedHPASpec defines the target, the limits and the metrics of the scaling.
    pub struct FederatedHPASpec {
        pub scale_target_ref: CrossVersionObjectReference,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub min_replicas: Option<i32>,
        pub max_replicas: i32,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub metrics: Vec<MetricSpec>,
        /// Behavior configures the scaling up and down.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub behavior: Option<HorizontalPodAutoscalerBehavior>,
    }

    /// CronFederatedHPASpec defines the target and the schedules.
    pub struct CronFederatedHPASpec {
        pub scale_target_ref: CrossVersionObjectReference,
        pub rules: Vec<CronFederatedHPARule>,
    }

    /// CronFederatedHPARule is a schedule and the scale to set.
    pub struct CronFederatedHPARule {
        #[schemars(length(min = 1, max = 32))]
        pub name: String,
        /// Schedule is a cron expression.
        pub schedule: String,
        /// TargetReplicas is the number of replicas of the workload.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target_replicas: Option<i32>,
        /// TargetMinReplicas is the minimum number of replicas of the FederatedHPA.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target_min_replicas: Option<i32>,
        /// TargetMaxReplicas is the maximum number of replicas of the FederatedHPA.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target_max_replicas: Option<i32>,
        /// Suspend suspends the rule.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("x-default" = false))]
        pub suspend: Option<bool>,
        /// TimeZone is the time zone of the schedule. If unset, it is the time zone of the controller.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub time_zone: Option<String>,
        /// SuccessfulHistoryLimit is the number of successful executions kept in the status.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 1, max = 32), extend("x-default" = 3))]
        pub successful_history_limit: Option<i32>,
        /// FailedHistoryLimit is the number of failed executions kept in the status.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 0, max = 32), extend("x-default" = 3))]
        pub failed_history_limit: Option<i32>,
    }

    /// CronFederatedHPAStatus is the execution history of all rules.
    pub struct CronFederatedHPAStatus {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub execution_histories: Vec<ExecutionHistory>,
    }

    /// ExecutionHistory is the execution history of a rule.
    pub struct ExecutionHistory {
        pub rule_name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub next_execution_time: Option<Time>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub successful_executions: Vec<SuccessfulExecution>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub failed_executions: Vec<FailedExecution>,
    }

    /// SuccessfulExecution is a successful execution.
    pub struct SuccessfulExecution {
        /// ScheduleTime is the scheduled time.
        pub schedule_time: Option<Time>,
        /// ExecutionTime is the time of the execution.
        pub execution_time: Option<Time>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub applied_replicas: Option<i32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub applied_max_replicas: Option<i32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub applied_min_replicas: Option<i32>,
    }

    /// FailedExecution is a failed execution.
    pub struct FailedExecution {
        /// ScheduleTime is the scheduled time.
        pub schedule_time: Option<Time>,
        /// ExecutionTime is the time of the execution.
        pub execution_time: Option<Time>,
        /// Message is the error.
        pub message: String,
    }
}
