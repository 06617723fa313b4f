//! autoscaling.karmada.io/v1alpha1: scaling across clusters, by metrics and by the clock. Written by users; read and
//! reported on by the autoscaling controllers.

use crate::object::{kind, shape};
use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, HorizontalPodAutoscalerBehavior, HorizontalPodAutoscalerStatus, MetricSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The API group of this module.
pub const GROUP: &str = "autoscaling.karmada.io";

kind! {
    /// Scales a workload by metrics of all its clusters.
    FederatedHPA, Namespaced, "autoscaling.karmada.io", "v1alpha1", "federatedhpas" {
        spec: FederatedHPASpec,
        status(skip): HorizontalPodAutoscalerStatus,
    }
}

kind! {
    /// Scales a workload, or a FederatedHPA, by the clock.
    CronFederatedHPA, Namespaced, "autoscaling.karmada.io", "v1alpha1", "cronfederatedhpas" {
        spec: CronFederatedHPASpec,
        status(skip): CronFederatedHPAStatus,
    }
}

shape! {
    /// What is scaled, between which bounds, by which metrics.
    pub struct FederatedHPASpec {
        pub scale_target_ref: CrossVersionObjectReference,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub min_replicas: Option<i32>,
        pub max_replicas: i32,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub metrics: Vec<MetricSpec>,
        /// How fast it goes up and down.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub behavior: Option<HorizontalPodAutoscalerBehavior>,
    }

    /// What is scaled, and when.
    pub struct CronFederatedHPASpec {
        pub scale_target_ref: CrossVersionObjectReference,
        pub rules: Vec<CronFederatedHPARule>,
    }

    /// A time and the scale from then on.
    pub struct CronFederatedHPARule {
        #[schemars(length(min = 1, max = 32))]
        pub name: String,
        /// A cron expression.
        pub schedule: String,
        /// The replicas of a workload.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target_replicas: Option<i32>,
        /// The lower bound of a FederatedHPA.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target_min_replicas: Option<i32>,
        /// The upper bound of a FederatedHPA.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target_max_replicas: Option<i32>,
        /// Whether the rule rests.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(extend("x-default" = false))]
        pub suspend: Option<bool>,
        /// The zone the expression is read in; absent means the controller's.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub time_zone: Option<String>,
        /// How many successful runs are kept in the status.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 1, max = 32), extend("x-default" = 3))]
        pub successful_history_limit: Option<i32>,
        /// How many failed runs are kept in the status.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(range(min = 0, max = 32), extend("x-default" = 3))]
        pub failed_history_limit: Option<i32>,
    }

    /// What the rules have done.
    pub struct CronFederatedHPAStatus {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub execution_histories: Vec<ExecutionHistory>,
    }

    /// What one rule has done.
    pub struct ExecutionHistory {
        pub rule_name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub next_execution_time: Option<Time>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub successful_executions: Vec<SuccessfulExecution>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub failed_executions: Vec<FailedExecution>,
    }

    /// A run that worked.
    pub struct SuccessfulExecution {
        /// When it was due.
        pub schedule_time: Option<Time>,
        /// When it was done.
        pub execution_time: Option<Time>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub applied_replicas: Option<i32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub applied_max_replicas: Option<i32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        pub applied_min_replicas: Option<i32>,
    }

    /// A run that did not work.
    pub struct FailedExecution {
        /// When it was due.
        pub schedule_time: Option<Time>,
        /// When it was tried.
        pub execution_time: Option<Time>,
        /// Why it failed.
        pub message: String,
    }
}
