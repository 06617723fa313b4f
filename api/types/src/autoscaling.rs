//! autoscaling.karmada.io/v1alpha1: scaling across clusters by metrics and by schedule. Written by users; the
//! status is written by the autoscaling controllers.

use crate::object::{api_structs, kinds};
use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HorizontalPodAutoscalerBehavior, HorizontalPodAutoscalerStatus, MetricSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The API group of this module.
pub const GROUP: &str = "autoscaling.karmada.io";

kinds! { "autoscaling.karmada.io", "v1alpha1";
    /// FederatedHPA scales a workload by the metrics of all its clusters.
    FederatedHPA(Namespaced, "federatedhpas") { spec: FederatedHPASpec, status(skip): HorizontalPodAutoscalerStatus }

    /// CronFederatedHPA scales a workload or a FederatedHPA by schedule.
    CronFederatedHPA(Namespaced, "cronfederatedhpas") {
        spec: CronFederatedHPASpec, status(skip): CronFederatedHPAStatus
    }
}

api_structs! {
    /// FederatedHPASpec defines the target, the limits and the metrics of the scaling.
    pub struct FederatedHPASpec {
        pub scale_target_ref: CrossVersionObjectReference,
        pub min_replicas?: i32,
        pub max_replicas: i32,
        pub metrics(skip): Vec<MetricSpec>,
        /// Behavior configures the scaling up and down.
        pub behavior?: HorizontalPodAutoscalerBehavior,
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
        pub target_replicas?: i32,
        /// TargetMinReplicas is the minimum number of replicas of the FederatedHPA.
        pub target_min_replicas?: i32,
        /// TargetMaxReplicas is the maximum number of replicas of the FederatedHPA.
        pub target_max_replicas?: i32,
        /// Suspend suspends the rule.
        #[schemars(extend("x-default" = false))]
        pub suspend?: bool,
        /// TimeZone is the time zone of the schedule. If unset, it is the time zone of the controller.
        pub time_zone?: String,
        /// SuccessfulHistoryLimit is the number of successful executions kept in the status.
        #[schemars(range(min = 1, max = 32), extend("x-default" = 3))]
        pub successful_history_limit?: i32,
        /// FailedHistoryLimit is the number of failed executions kept in the status.
        #[schemars(range(min = 0, max = 32), extend("x-default" = 3))]
        pub failed_history_limit?: i32,
    }

    /// CronFederatedHPAStatus is the execution history of all rules.
    pub struct CronFederatedHPAStatus {
        pub execution_histories(skip): Vec<ExecutionHistory>,
    }

    /// ExecutionHistory is the execution history of a rule.
    pub struct ExecutionHistory {
        pub rule_name: String,
        pub next_execution_time?: Time,
        pub successful_executions(skip): Vec<SuccessfulExecution>,
        pub failed_executions(skip): Vec<FailedExecution>,
    }

    /// SuccessfulExecution is a successful execution.
    pub struct SuccessfulExecution {
        /// ScheduleTime is the scheduled time.
        pub schedule_time: Option<Time>,
        /// ExecutionTime is the time of the execution.
        pub execution_time: Option<Time>,
        pub applied_replicas?: i32,
        pub applied_max_replicas?: i32,
        pub applied_min_replicas?: i32,
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
