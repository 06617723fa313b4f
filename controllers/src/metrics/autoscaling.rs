//! Metrics of FederatedHPAs, with the names of Karmada and of Kubernetes' HPA controller.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::{StaticLabelHistograms, StaticLabels};

/// Scaling direction of an evaluation or of a single metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    ScaleUp,
    ScaleDown,
    None,
}

impl Action {
    pub fn from_replicas(before: i32, after: i32) -> Self {
        match after.cmp(&before) {
            std::cmp::Ordering::Greater => Action::ScaleUp,
            std::cmp::Ordering::Less => Action::ScaleDown,
            std::cmp::Ordering::Equal => Action::None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Action::ScaleUp => "scale_up",
            Action::ScaleDown => "scale_down",
            Action::None => "none",
        }
    }
}

/// Failure of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    None,
    /// The spec is invalid.
    Spec,
    Internal,
}

impl Failure {
    fn name(self) -> &'static str {
        match self {
            Failure::None => "none",
            Failure::Spec => "spec",
            Failure::Internal => "internal",
        }
    }
}

/// Metrics of FederatedHPA evaluations.
pub struct AutoscalingMetrics {
    pulls: StaticLabelHistograms<2>,
    evaluations: Family<StaticLabels<2>, Counter>,
    evaluation_durations: StaticLabelHistograms<2>,
    metrics: Family<StaticLabels<3>, Counter>,
    metric_durations: StaticLabelHistograms<3>,
}

fn buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

impl AutoscalingMetrics {
    pub(super) fn new() -> Self {
        AutoscalingMetrics {
            pulls: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.01, 2.0, 12))),
            evaluations: Family::default(),
            evaluation_durations: Family::new_with_constructor(buckets),
            metrics: Family::default(),
            metric_durations: Family::new_with_constructor(buckets),
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let name = "federatedhpa_pull_metrics_duration_seconds";
        registry.register(name, "Duration of fetching the values of a metric, by result", self.pulls.clone());
        let name = "horizontal_pod_autoscaler_controller_reconciliations";
        registry.register(name, "Number of FederatedHPA reconciliations, by action", self.evaluations.clone());
        let name = "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds";
        registry.register(name, "Duration of a FederatedHPA reconciliation", self.evaluation_durations.clone());
        let name = "horizontal_pod_autoscaler_controller_metric_computation";
        registry.register(name, "Number of metric computations, by action", self.metrics.clone());
        let name = "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds";
        registry.register(name, "Duration of a metric computation", self.metric_durations.clone());
    }

    /// Records a query to a metrics API.
    pub fn record_pull(&self, kind: &'static str, duration: Duration, is_success: bool) {
        let result = if is_success { "success" } else { "error" };
        self.pulls.get_or_create(&[("result", result), ("metricType", kind)]).observe(duration.as_secs_f64());
    }

    /// Records an evaluation of a FederatedHPA.
    pub fn record_evaluation(&self, action: Action, failure: Failure, duration: Duration) {
        let labels = [("action", action.name()), ("error", failure.name())];
        self.evaluations.get_or_create(&labels).inc();
        self.evaluation_durations.get_or_create(&labels).observe(duration.as_secs_f64());
    }

    /// Records the computation of one metric of a type.
    pub fn record_metric(&self, kind: &'static str, action: Action, failure: Failure, duration: Duration) {
        let labels = [("action", action.name()), ("error", failure.name()), ("metric_type", kind)];
        self.metrics.get_or_create(&labels).inc();
        self.metric_durations.get_or_create(&labels).observe(duration.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode_registry;

    #[test]
    fn evaluations_have_kubernetes_metric_names() {
        let autoscaling = AutoscalingMetrics::new();
        let mut registry = Registry::default();
        autoscaling.register(&mut registry);
        let duration = Duration::from_millis(30);
        autoscaling.record_pull("ResourceMetric", duration, true);
        autoscaling.record_evaluation(Action::from_replicas(3, 5), Failure::None, duration);
        autoscaling.record_metric("Resource", Action::from_replicas(3, 2), Failure::None, duration);
        autoscaling.record_metric("Pods", Action::from_replicas(3, 3), Failure::Spec, duration);
        let mut text = String::new();
        encode_registry(&mut text, &registry).expect("text");
        let hpa = "horizontal_pod_autoscaler_controller";
        for line in [
            "federatedhpa_pull_metrics_duration_seconds_bucket{le=\"20.48\",result=\"success\",metricType=\"ResourceMetric\"} 1",
            &format!("{hpa}_reconciliations_total{{action=\"scale_up\",error=\"none\"}} 1"),
            &format!("{hpa}_reconciliation_duration_seconds_sum{{action=\"scale_up\",error=\"none\"}} 0.03"),
            &format!(
                "{hpa}_metric_computation_total{{action=\"scale_down\",error=\"none\",metric_type=\"Resource\"}} 1"
            ),
            &format!(
                "{hpa}_metric_computation_duration_seconds_count{{action=\"none\",error=\"spec\",metric_type=\"Pods\"}} 1"
            ),
        ] {
            assert!(text.lines().any(|actual| actual == line), "no {line} in\n{text}");
        }
    }
}
