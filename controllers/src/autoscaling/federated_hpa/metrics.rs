//! Client of the control plane's metrics APIs `metrics.k8s.io` and `custom.metrics.k8s.io`. Error messages are those of
//! Kubernetes' HPA controller.

use std::collections::BTreeMap;
use std::time::Instant;

use crowsnest_api::constants::annotation;
use crowsnest_apimachinery::duration;
use crowsnest_apimachinery::quantity::Quantity;
use crowsnest_apimachinery::request::percent_encode;
use crowsnest_apimachinery::selector::Selector;
use k8s_openapi::api::autoscaling::v2::CrossVersionObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::Error;
use crate::autoscaling::find_resource;
use crate::runtime::context::Context;

use crowsnest_plan::autoscaling::metrics::{MetricQuery, MetricResult};
use crowsnest_plan::autoscaling::pods::Sample;

const RESOURCE_METRICS: &str = "/apis/metrics.k8s.io/v1beta1";
const CUSTOM_METRICS: &str = "/apis/custom.metrics.k8s.io/v1beta2";
/// Default window of a custom metric.
const DEFAULT_WINDOW: SignedDuration = SignedDuration::from_mins(1);

/// Queries metrics of the pods in a namespace that a selector matches.
pub(crate) struct MetricsClient<'a> {
    pub context: &'a Context,
    pub namespace: &'a str,
    pub selector: &'a Selector,
}

#[derive(Deserialize)]
struct List<T> {
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMetrics {
    metadata: ObjectMeta,
    timestamp: Timestamp,
    #[serde(default)]
    window: String,
    #[serde(default)]
    containers: Vec<ContainerMetrics>,
}

#[derive(Deserialize)]
struct ContainerMetrics {
    name: String,
    #[serde(default)]
    usage: BTreeMap<String, Quantity>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricValue {
    described_object: DescribedObject,
    timestamp: Timestamp,
    window_seconds: Option<i64>,
    value: Quantity,
}

#[derive(Deserialize)]
struct DescribedObject {
    #[serde(default)]
    name: String,
}

impl MetricsClient<'_> {
    /// Queries one metric. The error is the message to report.
    pub async fn query(&self, query: &MetricQuery<'_>) -> Result<MetricResult, String> {
        let started_at = Instant::now();
        let (kind, result) = match query {
            MetricQuery::Resource { resource, container } => {
                ("ResourceMetric", self.query_resource(resource, *container).await)
            }
            MetricQuery::Pods { metric, selector } => ("RawMetric", self.query_pods(metric, selector).await),
            MetricQuery::Object { metric, selector, object } => {
                ("ObjectMetric", self.query_object(metric, selector, object).await)
            }
        };
        self.context.metrics.autoscaling.record_pull(kind, started_at.elapsed(), result.is_ok());
        result
    }

    async fn query_resource(&self, resource: &str, container: Option<&str>) -> Result<MetricResult, String> {
        let selector = self.selector.to_string();
        let selector = percent_encode(&selector);
        let path = format!("{RESOURCE_METRICS}/namespaces/{}/pods?labelSelector={selector}", self.namespace);
        let list: List<PodMetrics> = self
            .get(&path, "unable to fetch metrics from resource metrics API", |code| {
                let problem = match code {
                    503 => "the server is currently unable to handle the request",
                    _ => "the server could not find the requested resource",
                };
                format!("{problem} (get pods.metrics.k8s.io)")
            })
            .await?;
        if list.items.is_empty() {
            return Err("no metrics returned from resource metrics API".to_owned());
        }
        let mut samples = Vec::with_capacity(list.items.len());
        for pod in &list.items {
            samples.extend(pod.sample(resource, container)?);
        }
        Ok(MetricResult::Samples(samples))
    }

    async fn query_pods(&self, metric: &str, selector: &Selector) -> Result<MetricResult, String> {
        let path = format!(
            "{CUSTOM_METRICS}/namespaces/{}/pods/*/{}?labelSelector={}&metricLabelSelector={}",
            self.namespace,
            percent_encode(metric),
            percent_encode(&self.selector.to_string()),
            percent_encode(&selector.to_string()),
        );
        let values = self.query_values(&path).await?;
        if values.is_empty() {
            return Err("no metrics returned from custom metrics API".to_owned());
        }
        let sample = |value: MetricValue| Sample {
            cluster: None,
            name: value.described_object.name,
            value: value.value.milli_value(),
            at: value.timestamp,
            window: value.window_seconds.map_or(DEFAULT_WINDOW, SignedDuration::from_secs),
        };
        Ok(MetricResult::Samples(values.into_iter().map(sample).collect()))
    }

    async fn query_object(
        &self,
        metric: &str,
        selector: &Selector,
        object: &CrossVersionObjectReference,
    ) -> Result<MetricResult, String> {
        let failure_message = |error: String| format!("unable to fetch metrics from custom metrics API: {error}");
        let api_version = object.api_version.as_deref().unwrap_or("v1");
        let object_path = if object.kind == "Namespace" && api_version == "v1" {
            // The metric of the autoscaler's own namespace. The name is ignored, so that no other namespace can be selected.
            "metrics".to_owned()
        } else {
            let resource = find_resource(self.context, api_version, &object.kind).await;
            let gvr = resource.map_err(|error| failure_message(error.message()))?.gvr;
            let group = if gvr.group.is_empty() { String::new() } else { format!(".{}", gvr.group) };
            format!("{}{group}/{}", gvr.resource, percent_encode(&object.name))
        };
        let path = format!(
            "{CUSTOM_METRICS}/namespaces/{}/{object_path}/{}?metricLabelSelector={}",
            self.namespace,
            percent_encode(metric),
            percent_encode(&selector.to_string()),
        );
        match self.query_values(&path).await?.as_slice() {
            [value] => Ok(MetricResult::Value(value.value.milli_value())),
            several => Err(failure_message(format!(
                "the custom metrics API server returned {} results when we asked for exactly one",
                several.len()
            ))),
        }
    }

    async fn query_values(&self, path: &str) -> Result<Vec<MetricValue>, String> {
        let unserved_message = |code| match code {
            503 => "the server is currently unable to handle the request".to_owned(),
            _ => "no custom metrics API (custom.metrics.k8s.io) registered".to_owned(),
        };
        let list: List<MetricValue> =
            self.get(path, "unable to fetch metrics from custom metrics API", unserved_message).await?;
        Ok(list.items)
    }

    /// Gets a path of a metrics API. `unserved_message` returns the message for an API that is not registered or has no
    /// backend, since the response is then not a Kubernetes Status.
    async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        context_message: &str,
        unserved_message: impl FnOnce(u16) -> String,
    ) -> Result<T, String> {
        let problem = match self.context.objects.read(path).await {
            Ok(response) => match T::deserialize(&response) {
                Ok(decoded) => return Ok(decoded),
                Err(error) => error.to_string(),
            },
            Err(error) => match error.code() {
                Some(code @ (404 | 503)) if !has_status(&error) => unserved_message(code),
                _ => error.message(),
            },
        };
        Err(format!("{context_message}: {problem}"))
    }
}

/// True if the server returned a Kubernetes Status.
fn has_status(error: &Error) -> bool {
    matches!(error.reason(), "NotFound" | "ServiceUnavailable")
}

impl PodMetrics {
    /// Usage of a resource by all containers of a pod, or by one. `None` unless it is known for each.
    fn sample(&self, resource: &str, container: Option<&str>) -> Result<Option<Sample>, String> {
        let metadata = &self.metadata;
        let name = metadata.name.clone().unwrap_or_default();
        let containers: Vec<&ContainerMetrics> = self
            .containers
            .iter()
            .filter(|metrics| container.is_none_or(|container| metrics.name == container))
            .collect();
        if let (Some(container), true) = (container, containers.is_empty()) {
            let namespace = metadata.namespace.as_deref().unwrap_or_default();
            return Err(format!(
                "failed to get container metrics: container {container} not present in metrics for pod {namespace}/{name}"
            ));
        }
        let usages: Option<Vec<i64>> =
            containers.iter().map(|metrics| metrics.usage.get(resource).map(|amount| amount.milli_value())).collect();
        let Some(usages) = usages.filter(|usages| !usages.is_empty()) else { return Ok(None) };
        let annotations = metadata.annotations.as_ref();
        Ok(Some(Sample {
            cluster: annotations.and_then(|all| all.get(annotation::QUERY_FROM_CLUSTER)).cloned(),
            name,
            value: usages.iter().fold(0, |sum, usage| sum.saturating_add(*usage)),
            at: self.timestamp,
            window: duration::parse(&self.window).unwrap_or_default(),
        }))
    }
}
