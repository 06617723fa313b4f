//! Horizontal pod autoscaler controller with simulated usage: cpu and memory of pods, as utilization or average
//! value.

use crate::member::world::MANAGER;
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

use super::metrics::of_pod;
use super::pod::{Phase, PodState};
use super::resources::{milli, whole};
use super::store::{Key, Stored};
use super::workload::pods::Parent;
use super::workload::{keys_of, spawn};
use super::world::World;

/// Defaults of kube-controller-manager.
const EVERY: Duration = Duration::from_secs(15);
const TOLERANCE: f64 = 0.1;
const STABLE: SignedDuration = SignedDuration::from_secs(300);

/// Recent recommendations of each autoscaler.
type Recommendations = Arc<Mutex<HashMap<Key, Vec<(Timestamp, i32)>>>>;

pub fn start(world: &Arc<World>) {
    let keys = keys_of(&world.autoscalers);
    let recommendations = Recommendations::default();
    let forgotten = recommendations.clone();
    world.autoscalers.on_change(move |old, new| {
        if let (Some(gone), None) = (old, new) {
            forgotten.lock().remove(&gone.key());
        }
    });
    spawn(world, "horizontalpodautoscaler", keys, 2, move |world, key| {
        let recommendations = recommendations.clone();
        async move { reconcile(&world, &key, &recommendations).await }
    });
}

/// A measured metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Usage divided by target: above 1 more pods are needed.
    pub ratio: f64,
    pub status: MetricStatus,
}

/// Number of replicas that brings every metric to its target: the maximum over the metrics.
pub fn desired(current: i32, ready: i32, measured: &[Measured]) -> i32 {
    let recommend = |measured: &Measured| {
        if (measured.ratio - 1.0).abs() <= TOLERANCE {
            return current;
        }
        // Replica counts are far below 2^31.
        (measured.ratio * f64::from(ready)).ceil() as i32
    };
    measured.iter().map(recommend).max().unwrap_or(current)
}

fn resource_of(kind: &str, api_version: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: api_version.into(),
        kind: kind.into(),
        plural: format!("{}s", kind.to_lowercase()),
    }
}

async fn reconcile(world: &World, key: &Key, recommendations: &Recommendations) -> Result<Option<Duration>> {
    let Some(scaler) = world.autoscalers.get(key) else { return Ok(None) };
    let spec = &scaler.spec;
    let now = Timestamp::now();
    let parent = Parent::new(&scaler, "autoscaling/v2", "HorizontalPodAutoscaler", "horizontal-pod-autoscaler");
    let mut report = Report::new(&scaler, now);
    let target = &spec.scale_target_ref;
    let resource = resource_of(&target.kind, target.api_version.as_deref().unwrap_or("v1"));
    let api: Api<DynamicObject> = Api::namespaced_with(world.client.clone(), &key.namespace, &resource);
    let scale = match api.get_scale(&target.name).await {
        Ok(scale) => scale,
        Err(error) => {
            let message = format!("the HPA controller was unable to get the target's current scale: {error}");
            report.set("AbleToScale", "False", "FailedGetScale", &message);
            parent.record(world, true, "FailedGetScale", error.to_string());
            report.write(world, &scaler).await?;
            return Ok(Some(EVERY));
        }
    };
    let current = scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or_default();
    report.status.current_replicas = Some(scale.status.as_ref().map_or(0, |status| status.replicas));
    report.status.desired_replicas = current;
    report.set(
        "AbleToScale",
        "True",
        "SucceededGetScale",
        "the HPA controller was able to get the target's current scale",
    );
    if current == 0 {
        let message = "scaling is disabled since the replica count of the target is zero";
        report.set("ScalingActive", "False", "ScalingDisabled", message);
        report.write(world, &scaler).await?;
        return Ok(Some(EVERY));
    }
    let selector = scale.status.as_ref().and_then(|status| status.selector.clone()).unwrap_or_default();
    let pods = selected(world, &key.namespace, &selector);
    match measure(world, spec, &pods, now) {
        Err(message) => {
            report.set("ScalingActive", "False", "FailedGetResourceMetric", &message);
            parent.record(world, true, "FailedGetResourceMetric", message);
        }
        Ok(measured) => {
            let message = "the HPA was able to successfully calculate a replica count from cpu resource utilization (percentage of request)";
            report.set("ScalingActive", "True", "ValidMetricFound", message);
            report.status.current_metrics = Some(measured.iter().map(|measured| measured.status.clone()).collect());
            let ready = pods.iter().filter(|pod| pod.is_ready()).count();
            let raw = desired(current, i32::try_from(ready).unwrap_or(i32::MAX), &measured);
            let stable = stabilize(recommendations, key, raw, current, now);
            let (min, max) = (spec.min_replicas.unwrap_or(1), spec.max_replicas);
            let wanted = stable.clamp(min, max);
            report.limits(stable, min, max);
            report.status.desired_replicas = wanted;
            if wanted != current {
                let patch = json!({"spec": {"replicas": wanted}});
                api.patch_scale(&target.name, &PatchParams::apply(MANAGER), &Patch::Merge(&patch))
                    .await
                    .map_err(Error::api(format!("scale {} {}", target.kind, target.name)))?;
                let reason = if wanted > current { "above" } else { "below" };
                let message = format!(
                    "New size: {wanted}; reason: cpu resource utilization (percentage of request) {reason} target"
                );
                parent.record(world, false, "SuccessfulRescale", message);
                report.set(
                    "AbleToScale",
                    "True",
                    "SucceededRescale",
                    &format!("the HPA controller was able to update the target scale to {wanted}"),
                );
                report.status.last_scale_time = Some(Time(now));
            } else {
                report.set("AbleToScale", "True", "ReadyForNewScale", "recommended size matches current size");
            }
        }
    }
    report.write(world, &scaler).await?;
    Ok(Some(EVERY))
}

fn selected(world: &World, namespace: &str, selector: &str) -> Vec<Arc<PodState>> {
    let Ok(selector) = crowsnest_apimachinery::selector::Selector::parse(selector) else { return Vec::new() };
    let mut pods = world.pods.namespace(namespace);
    pods.retain(|pod| pod.is_active() && selector.matches(&pod.labels));
    pods
}

/// Applies the downscale stabilization window: not below the highest recommendation in it.
fn stabilize(recommendations: &Recommendations, key: &Key, raw: i32, current: i32, now: Timestamp) -> i32 {
    let mut recommendations = recommendations.lock();
    let past = recommendations.entry(key.clone()).or_insert_with(|| vec![(now, current)]);
    past.push((now, raw));
    past.retain(|(at, _)| now.duration_since(*at) <= STABLE);
    if raw >= current {
        raw
    } else {
        past.iter().map(|(_, recommendation)| *recommendation).max().unwrap_or(raw).min(current)
    }
}

fn measure(
    world: &World,
    spec: &HorizontalPodAutoscalerSpec,
    pods: &[Arc<PodState>],
    now: Timestamp,
) -> Result<Vec<Measured>, String> {
    let mut measured = Vec::new();
    for metric in spec.metrics.iter().flatten() {
        let Some(source) = metric.resource.as_ref().filter(|_| metric.type_ == "Resource") else {
            return Err(format!(
                "invalid metrics (1 invalid out of 1), first error is: unsupported metric source type {:?}",
                metric.type_
            ));
        };
        if !world.features.metrics {
            return Err(format!(
                "failed to get {} utilization: unable to get metrics for resource {}: unable to fetch metrics from resource metrics API: \
                 the server could not find the requested resource (get pods.metrics.k8s.io)",
                source.name, source.name
            ));
        }
        measured.push(measure_resource(&source.name, &source.target, pods, now)?);
    }
    Ok(measured)
}

fn measure_resource(
    name: &str,
    target: &MetricTarget,
    pods: &[Arc<PodState>],
    now: Timestamp,
) -> Result<Measured, String> {
    let running: Vec<_> = pods.iter().filter(|pod| pod.phase == Phase::Running && pod.is_ready()).collect();
    let count = i64::try_from(running.len()).unwrap_or(i64::MAX);
    if count == 0 {
        return Err(format!("failed to get {name} utilization: no metrics returned from resource metrics API"));
    }
    let cpu = name == "cpu";
    let used = |pod: &PodState| -> i64 {
        of_pod(pod, now).iter().map(|(_, usage)| if cpu { usage.cpu_milli } else { usage.memory }).sum()
    };
    let total: i64 = running.iter().map(|pod| used(pod)).sum();
    let average = total / count;
    let shown = if cpu { format!("{average}m") } else { average.to_string() };
    let mut current = MetricValueStatus { average_value: Some(Quantity(shown)), ..MetricValueStatus::default() };
    let ratio = if let Some(wanted) = target.average_utilization {
        let requested: i64 =
            running.iter().map(|pod| if cpu { pod.spec.requests.cpu_milli } else { pod.spec.requests.memory }).sum();
        if requested == 0 {
            let pod = &running[0].key.name;
            return Err(format!(
                "failed to get {name} utilization: missing request for {name} in container of Pod {pod}"
            ));
        }
        let percent = total * 100 / requested;
        current.average_utilization = Some(i32::try_from(percent).unwrap_or(i32::MAX));
        percent as f64 / f64::from(wanted.max(1))
    } else if let Some(wanted) = &target.average_value {
        let wanted = if cpu { milli(wanted) } else { whole(wanted) };
        average as f64 / wanted.max(1) as f64
    } else {
        return Err("invalid resource metric source: neither an average utilization target nor an average value (usage) target was set".into());
    };
    let status = MetricStatus {
        type_: "Resource".into(),
        resource: Some(ResourceMetricStatus { name: name.to_owned(), current }),
        ..MetricStatus::default()
    };
    Ok(Measured { ratio, status })
}

/// The status under construction.
struct Report {
    status: HorizontalPodAutoscalerStatus,
    now: Timestamp,
}

impl Report {
    fn new(scaler: &HorizontalPodAutoscaler, now: Timestamp) -> Self {
        let mut status = scaler.status.clone().unwrap_or_default();
        status.observed_generation = scaler.metadata.generation;
        status.current_metrics = None;
        Self { status, now }
    }

    fn set(&mut self, kind: &str, holds: &str, reason: &str, message: &str) {
        let conditions = self.status.conditions.get_or_insert_default();
        let since = conditions.iter().find(|known| known.type_ == kind && known.status == holds);
        let since = since.and_then(|known| known.last_transition_time.clone()).or(Some(Time(self.now)));
        let condition = HorizontalPodAutoscalerCondition {
            type_: kind.into(),
            status: holds.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_transition_time: since,
            observed_generation: self.status.observed_generation,
        };
        match conditions.iter_mut().find(|known| known.type_ == kind) {
            Some(known) => *known = condition,
            None => conditions.push(condition),
        }
    }

    fn limits(&mut self, desired: i32, min: i32, max: i32) {
        if desired > max {
            self.set(
                "ScalingLimited",
                "True",
                "TooManyReplicas",
                "the desired replica count is more than the maximum replica count",
            );
        } else if desired < min {
            self.set(
                "ScalingLimited",
                "True",
                "TooFewReplicas",
                "the desired replica count is less than the minimum replica count",
            );
        } else {
            self.set(
                "ScalingLimited",
                "False",
                "DesiredWithinRange",
                "the desired count is within the acceptable range",
            );
        }
    }

    async fn write(self, world: &World, scaler: &super::informer::Object<HorizontalPodAutoscaler>) -> Result<()> {
        world.set_status(&world.autoscalers, scaler, scaler.status.as_ref(), &self.status).await
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
    fn largest_recommendation_is_used(
        #[case] current: i32,
        #[case] ready: i32,
        #[case] ratios: &[f64],
        #[case] expected: i32,
    ) {
        let measured: Vec<_> =
            ratios.iter().map(|ratio| Measured { ratio: *ratio, status: MetricStatus::default() }).collect();
        assert_eq!(desired(current, ready, &measured), expected);
    }

    #[test]
    fn downscale_waits_for_the_window() {
        let (recommendations, key) = (Recommendations::default(), Key::new("ns", "web"));
        let at = |second: i64| Timestamp::from_second(1_767_225_600 + second).unwrap();
        assert_eq!(stabilize(&recommendations, &key, 2, 6, at(0)), 6);
        assert_eq!(stabilize(&recommendations, &key, 2, 6, at(200)), 6);
        assert_eq!(stabilize(&recommendations, &key, 2, 6, at(301)), 2);
        assert_eq!(stabilize(&recommendations, &key, 9, 2, at(302)), 9);
    }
}
