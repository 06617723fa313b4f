//! HorizontalPodAutoscaler controller for the simulated CPU and memory usage of pods, as utilization or average value.

use crate::member::context::FIELD_MANAGER;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerSpec,
    HorizontalPodAutoscalerStatus, MetricStatus, MetricTarget, MetricValueStatus, ResourceMetricStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::discovery::ApiResource;
use parking_lot::Mutex;
use serde_json::json;

use crate::error::{Error, Result};

use super::context::MemberContext;
use super::metrics::pod_usage;
use super::pod::{Phase, PodState};
use super::resources::{milli_value, whole_value};
use super::store::{Key, StoreObject};
use super::workload::pods::WorkloadOwner;
use super::workload::{new_change_queue, spawn_controller};

/// kube-controller-manager's default `--horizontal-pod-autoscaler-sync-period`.
const SYNC_INTERVAL: Duration = Duration::from_secs(15);
/// kube-controller-manager's default `--horizontal-pod-autoscaler-tolerance`.
const TOLERANCE: f64 = 0.1;
/// kube-controller-manager's default `--horizontal-pod-autoscaler-downscale-stabilization`.
const DOWNSCALE_STABILIZATION: SignedDuration = SignedDuration::from_secs(300);

/// Recent recommendations of each autoscaler.
type Recommendations = Arc<Mutex<HashMap<Key, Vec<(Timestamp, i32)>>>>;

pub fn start(context: &Arc<MemberContext>) {
    let keys = new_change_queue(&context.autoscalers);
    let recommendations = Recommendations::default();
    let recommendations_to_prune = recommendations.clone();
    context.autoscalers.on_change(move |old, new| {
        if let (Some(deleted), None) = (old, new) {
            recommendations_to_prune.lock().remove(&deleted.key());
        }
    });
    spawn_controller(context, "horizontalpodautoscaler", keys, 2, move |context, key| {
        let recommendations = recommendations.clone();
        async move { reconcile(&context, &key, &recommendations).await }
    });
}

/// A measurement of a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// Usage divided by target; above 1, more pods are needed.
    pub ratio: f64,
    pub status: MetricStatus,
}

/// Recommends a number of replicas: the largest of the numbers that bring each metric to its target.
pub fn recommend_replicas(current: i32, ready: i32, measurements: &[Measurement]) -> i32 {
    let recommend = |measurement: &Measurement| {
        if (measurement.ratio - 1.0).abs() <= TOLERANCE {
            return current;
        }
        // Replica counts are far below 2^31.
        (measurement.ratio * f64::from(ready)).ceil() as i32
    };
    measurements.iter().map(recommend).max().unwrap_or(current)
}

fn api_resource(kind: &str, api_version: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: api_version.into(),
        kind: kind.into(),
        plural: format!("{}s", kind.to_lowercase()),
    }
}

async fn reconcile(context: &MemberContext, key: &Key, recommendations: &Recommendations) -> Result<Option<Duration>> {
    let Some(scaler) = context.autoscalers.get(key) else { return Ok(None) };
    let spec = &scaler.spec;
    let now = Timestamp::now();
    let owner = WorkloadOwner::new(&scaler, "horizontal-pod-autoscaler");
    let mut status_update = StatusUpdate::new(&scaler, now);
    let target = &spec.scale_target_ref;
    let resource = api_resource(&target.kind, target.api_version.as_deref().unwrap_or("v1"));
    let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), &key.namespace, &resource);
    let scale = match api.get_scale(&target.name).await {
        Ok(scale) => scale,
        Err(error) => {
            let message = format!("the HPA controller was unable to get the target's current scale: {error}");
            status_update.set_condition("AbleToScale", "False", "FailedGetScale", &message);
            owner.record_event(context, true, "FailedGetScale", error.to_string());
            status_update.write(context, &scaler).await?;
            return Ok(Some(SYNC_INTERVAL));
        }
    };
    let current = scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or_default();
    status_update.status.current_replicas = Some(scale.status.as_ref().map_or(0, |status| status.replicas));
    status_update.status.desired_replicas = current;
    status_update.set_condition(
        "AbleToScale",
        "True",
        "SucceededGetScale",
        "the HPA controller was able to get the target's current scale",
    );
    if current == 0 {
        let message = "scaling is disabled since the replica count of the target is zero";
        status_update.set_condition("ScalingActive", "False", "ScalingDisabled", message);
        status_update.write(context, &scaler).await?;
        return Ok(Some(SYNC_INTERVAL));
    }
    let selector = scale.status.as_ref().and_then(|status| status.selector.clone()).unwrap_or_default();
    let pods = select_pods(context, &key.namespace, &selector);
    match measure(context, spec, &pods, now) {
        Err(message) => {
            status_update.set_condition("ScalingActive", "False", "FailedGetResourceMetric", &message);
            owner.record_event(context, true, "FailedGetResourceMetric", message);
        }
        Ok(measurements) => {
            let message = "the HPA was able to successfully calculate a replica count from cpu resource utilization (percentage of request)";
            status_update.set_condition("ScalingActive", "True", "ValidMetricFound", message);
            status_update.status.current_metrics =
                Some(measurements.iter().map(|measurement| measurement.status.clone()).collect());
            let ready = pods.iter().filter(|pod| pod.is_ready()).count();
            let recommendation = recommend_replicas(current, i32::try_from(ready).unwrap_or(i32::MAX), &measurements);
            let stabilized = stabilize(recommendations, key, recommendation, current, now);
            let (min, max) = (spec.min_replicas.unwrap_or(1), spec.max_replicas);
            let desired = stabilized.clamp(min, max);
            status_update.set_scaling_limited(stabilized, min, max);
            status_update.status.desired_replicas = desired;
            if desired != current {
                let patch = json!({"spec": {"replicas": desired}});
                api.patch_scale(&target.name, &PatchParams::apply(FIELD_MANAGER), &Patch::Merge(&patch))
                    .await
                    .map_err(Error::api(format!("scale {} {}", target.kind, target.name)))?;
                let reason = if desired > current { "above" } else { "below" };
                let message = format!(
                    "New size: {desired}; reason: cpu resource utilization (percentage of request) {reason} target"
                );
                owner.record_event(context, false, "SuccessfulRescale", message);
                status_update.set_condition(
                    "AbleToScale",
                    "True",
                    "SucceededRescale",
                    &format!("the HPA controller was able to update the target scale to {desired}"),
                );
                status_update.status.last_scale_time = Some(Time(now));
            } else {
                status_update.set_condition(
                    "AbleToScale",
                    "True",
                    "ReadyForNewScale",
                    "recommended size matches current size",
                );
            }
        }
    }
    status_update.write(context, &scaler).await?;
    Ok(Some(SYNC_INTERVAL))
}

fn select_pods(context: &MemberContext, namespace: &str, selector: &str) -> Vec<Arc<PodState>> {
    let Ok(selector) = crowsnest_apimachinery::selector::Selector::parse(selector) else { return Vec::new() };
    let mut pods = context.pods.in_namespace(namespace);
    pods.retain(|pod| pod.is_active() && selector.matches(&pod.labels));
    pods
}

/// Applies the downscale stabilization window: the result is not below the highest recommendation in the window.
fn stabilize(recommendations: &Recommendations, key: &Key, recommendation: i32, current: i32, now: Timestamp) -> i32 {
    let mut recommendations = recommendations.lock();
    let history = recommendations.entry(key.clone()).or_insert_with(|| vec![(now, current)]);
    history.push((now, recommendation));
    history.retain(|(at, _)| now.duration_since(*at) <= DOWNSCALE_STABILIZATION);
    if recommendation >= current {
        recommendation
    } else {
        history.iter().map(|(_, replicas)| *replicas).max().unwrap_or(recommendation).min(current)
    }
}

fn measure(
    context: &MemberContext,
    spec: &HorizontalPodAutoscalerSpec,
    pods: &[Arc<PodState>],
    now: Timestamp,
) -> Result<Vec<Measurement>, String> {
    let mut measurements = Vec::new();
    for metric in spec.metrics.iter().flatten() {
        let Some(source) = metric.resource.as_ref().filter(|_| metric.type_ == "Resource") else {
            return Err(format!(
                "invalid metrics (1 invalid out of 1), first error is: unsupported metric source type {:?}",
                metric.type_
            ));
        };
        if !context.features.metrics {
            return Err(format!(
                "failed to get {} utilization: unable to get metrics for resource {}: unable to fetch metrics from resource metrics API: \
                 the server could not find the requested resource (get pods.metrics.k8s.io)",
                source.name, source.name
            ));
        }
        measurements.push(measure_resource(&source.name, &source.target, pods, now)?);
    }
    Ok(measurements)
}

fn measure_resource(
    name: &str,
    target: &MetricTarget,
    pods: &[Arc<PodState>],
    now: Timestamp,
) -> Result<Measurement, String> {
    let running: Vec<_> = pods.iter().filter(|pod| pod.phase == Phase::Running && pod.is_ready()).collect();
    let count = i64::try_from(running.len()).unwrap_or(i64::MAX);
    if count == 0 {
        return Err(format!("failed to get {name} utilization: no metrics returned from resource metrics API"));
    }
    let is_cpu = name == "cpu";
    let usage_of = |pod: &PodState| -> i64 {
        pod_usage(pod, now).iter().map(|(_, usage)| if is_cpu { usage.cpu_milli } else { usage.memory_bytes }).sum()
    };
    let total: i64 = running.iter().map(|pod| usage_of(pod)).sum();
    let average = total / count;
    let text = if is_cpu { format!("{average}m") } else { average.to_string() };
    let mut current = MetricValueStatus { average_value: Some(Quantity(text)), ..MetricValueStatus::default() };
    let ratio = if let Some(target) = target.average_utilization {
        let requested: i64 = running
            .iter()
            .map(|pod| if is_cpu { pod.spec.requests.cpu_milli } else { pod.spec.requests.memory_bytes })
            .sum();
        if requested == 0 {
            let pod = &running[0].key.name;
            return Err(format!(
                "failed to get {name} utilization: missing request for {name} in container of Pod {pod}"
            ));
        }
        let percent = total * 100 / requested;
        current.average_utilization = Some(i32::try_from(percent).unwrap_or(i32::MAX));
        percent as f64 / f64::from(target.max(1))
    } else if let Some(target) = &target.average_value {
        let target = if is_cpu { milli_value(target) } else { whole_value(target) };
        average as f64 / target.max(1) as f64
    } else {
        return Err("invalid resource metric source: neither an average utilization target nor an average value (usage) target was set".into());
    };
    let status = MetricStatus {
        type_: "Resource".into(),
        resource: Some(ResourceMetricStatus { name: name.to_owned(), current }),
        ..MetricStatus::default()
    };
    Ok(Measurement { ratio, status })
}

/// The next status of an autoscaler, under construction.
struct StatusUpdate {
    status: HorizontalPodAutoscalerStatus,
    now: Timestamp,
}

impl StatusUpdate {
    fn new(scaler: &HorizontalPodAutoscaler, now: Timestamp) -> Self {
        let mut status = scaler.status.clone().unwrap_or_default();
        status.observed_generation = scaler.metadata.generation;
        status.current_metrics = None;
        Self { status, now }
    }

    fn set_condition(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        let conditions = self.status.conditions.get_or_insert_default();
        let since = conditions.iter().find(|existing| existing.type_ == kind && existing.status == status);
        let since = since.and_then(|existing| existing.last_transition_time.clone()).or(Some(Time(self.now)));
        let condition = HorizontalPodAutoscalerCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_transition_time: since,
            observed_generation: self.status.observed_generation,
        };
        match conditions.iter_mut().find(|existing| existing.type_ == kind) {
            Some(existing) => *existing = condition,
            None => conditions.push(condition),
        }
    }

    /// Sets the condition ScalingLimited.
    fn set_scaling_limited(&mut self, desired: i32, min: i32, max: i32) {
        if desired > max {
            self.set_condition(
                "ScalingLimited",
                "True",
                "TooManyReplicas",
                "the desired replica count is more than the maximum replica count",
            );
        } else if desired < min {
            self.set_condition(
                "ScalingLimited",
                "True",
                "TooFewReplicas",
                "the desired replica count is less than the minimum replica count",
            );
        } else {
            self.set_condition(
                "ScalingLimited",
                "False",
                "DesiredWithinRange",
                "the desired count is within the acceptable range",
            );
        }
    }

    async fn write(
        self,
        context: &MemberContext,
        scaler: &super::informer::Object<HorizontalPodAutoscaler>,
    ) -> Result<()> {
        context.set_status(&context.autoscalers, scaler, scaler.status.as_ref(), &self.status).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case(4, 4, &[2.0], 8)]
    #[case(4, 4, &[1.05], 4)]
    #[case(4, 4, &[0.4, 0.8], 4)]
    #[case(4, 4, &[0.4], 2)]
    #[case(4, 4, &[], 4)]
    fn the_largest_recommendation_of_all_metrics_is_used(
        #[case] current: i32,
        #[case] ready: i32,
        #[case] ratios: &[f64],
        #[case] expected: i32,
    ) {
        let measurements: Vec<_> =
            ratios.iter().map(|ratio| Measurement { ratio: *ratio, status: MetricStatus::default() }).collect();
        assert_eq!(recommend_replicas(current, ready, &measurements), expected);
    }

    #[test]
    fn replicas_decrease_after_the_stabilization_window() {
        let (recommendations, key) = (Recommendations::default(), Key::new("ns", "web"));
        let at = |second: i64| Timestamp::from_second(1_767_225_600 + second).unwrap();
        assert_eq!(stabilize(&recommendations, &key, 2, 6, at(0)), 6);
        assert_eq!(stabilize(&recommendations, &key, 2, 6, at(200)), 6);
        assert_eq!(stabilize(&recommendations, &key, 2, 6, at(301)), 2);
        assert_eq!(stabilize(&recommendations, &key, 9, 2, at(302)), 9);
    }
}
