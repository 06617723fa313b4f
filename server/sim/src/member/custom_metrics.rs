//! custom.metrics.k8s.io of a member. Values are set by annotations of objects; a real cluster has an adapter for a
//! monitoring system instead.
//!
//! `metrics.sim.crowsnest.io/<metric>: "<quantity> [<label>=<value>,…]"` on a Pod, Node, Namespace, Service or
//! workload sets that metric. `metricLabelSelector` selects by these labels. Only running pods have values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use axum::body::Body;
use crowsnest_apimachinery::quantity::Quantity;
use crowsnest_apimachinery::selector::Selector;
use crowsnest_apimachinery::status::{ApiError, Reason};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_kube_apiserver::http::delegate::{Delegate, RankedGroup};
use http::{Method, Request, Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Labels;
use super::context::MemberContext;
use super::metrics::{error_response, json_response, parse_selector};
use super::pod::Phase;
use super::pod_lifecycle::format_time;
use super::store::{Key, StoreObject};

const GROUP: &str = "custom.metrics.k8s.io";
/// Served versions, preferred one first.
const VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];
/// Name that requests the metric of all objects.
const ALL_NAMES: &str = "*";
/// Prefix of the annotations, followed by the metric's name.
pub const ANNOTATION_PREFIX: &str = "metrics.sim.crowsnest.io/";

/// A resource that can have metrics.
#[derive(Debug, Clone, Copy)]
struct DescribedResource {
    /// Plural name with the group, such as `jobs.batch`.
    resource: &'static str,
    /// `apiVersion` in the form that adapters use: `/v1` for the core group.
    api_version: &'static str,
    kind: &'static str,
    namespaced: bool,
}

const fn namespaced_resource(
    resource: &'static str,
    api_version: &'static str,
    kind: &'static str,
) -> DescribedResource {
    DescribedResource { resource, api_version, kind, namespaced: true }
}

const PODS: DescribedResource = namespaced_resource("pods", "/v1", "Pod");

/// Calls `visit` with the resource, key, labels and annotations of each object of a resource, or of all resources.
fn visit_objects(
    context: &MemberContext,
    resource: Option<&str>,
    visit: &mut dyn FnMut(DescribedResource, &Key, &Labels, &Labels),
) {
    let is_requested = |described: DescribedResource| resource.is_none_or(|resource| resource == described.resource);
    if is_requested(PODS) {
        for pod in context.pods.all().iter().filter(|pod| pod.phase == Phase::Running) {
            visit(PODS, &pod.key, &pod.labels, &pod.annotations);
        }
    }
    let none = Labels::new();
    macro_rules! objects {
        ($($store:ident, $described:expr;)*) => { $(
            if is_requested($described) {
                for object in context.$store.all() {
                    let meta = &object.metadata;
                    let (labels, annotations) = (meta.labels.as_ref(), meta.annotations.as_ref());
                    visit($described, &object.key(), labels.unwrap_or(&none), annotations.unwrap_or(&none));
                }
            }
        )* };
    }
    objects!(
        nodes, DescribedResource { namespaced: false, ..namespaced_resource("nodes", "/v1", "Node") };
        namespaces, DescribedResource { namespaced: false, ..namespaced_resource("namespaces", "/v1", "Namespace") };
        services, namespaced_resource("services", "/v1", "Service");
        deployments, namespaced_resource("deployments.apps", "apps/v1", "Deployment");
        stateful_sets, namespaced_resource("statefulsets.apps", "apps/v1", "StatefulSet");
        daemon_sets, namespaced_resource("daemonsets.apps", "apps/v1", "DaemonSet");
        jobs, namespaced_resource("jobs.batch", "batch/v1", "Job");
    );
}

/// A value of a metric.
#[derive(Debug, PartialEq)]
struct Sample {
    value: Quantity,
    labels: BTreeMap<String, String>,
}

/// Parses an annotation's value. Malformed values are ignored, like those of the simulation's other annotations.
fn parse_sample(text: &str) -> Option<Sample> {
    let (value, labels) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    let pairs = labels.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let labels: Option<BTreeMap<String, String>> =
        pairs.map(|pair| pair.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))).collect();
    Some(Sample { value: Quantity::parse(value).ok()?, labels: labels? })
}

/// Parameters of a request.
struct MetricRequest<'a> {
    namespace: &'a str,
    resource: &'a str,
    name: &'a str,
    metric: &'a str,
}

/// Serves the API group from a member's stores.
pub struct CustomMetrics {
    context: Weak<MemberContext>,
}

impl CustomMetrics {
    pub fn new(context: &Arc<MemberContext>) -> Self {
        Self { context: Arc::downgrade(context) }
    }

    /// Names of the metrics of each resource; the boolean is true for namespaced resources.
    fn metrics_by_resource(&self) -> BTreeMap<(&'static str, bool), BTreeSet<String>> {
        let mut metrics_by_resource = BTreeMap::<_, BTreeSet<String>>::new();
        if let Some(context) = self.context.upgrade() {
            visit_objects(&context, None, &mut |described, _, _, annotations| {
                for metric in annotations.keys().filter_map(|name| name.strip_prefix(ANNOTATION_PREFIX)) {
                    let resource = (described.resource, described.namespaced);
                    metrics_by_resource.entry(resource).or_default().insert(metric.to_owned());
                }
            });
        }
        metrics_by_resource
    }

    fn handle(&self, request: &Request<Body>) -> Result<Value, ApiError> {
        let path = percent_encoding::percent_decode_str(request.uri().path()).decode_utf8_lossy();
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        if request.method() != Method::GET {
            return Err(ApiError::method_not_allowed());
        }
        let (version, metric_request) = match parts.as_slice() {
            [_, GROUP] => return Ok(self.api_group()),
            [_, _, version] => return Ok(self.api_resource_list(version)),
            [_, _, version, "namespaces", name, "metrics", metric] => {
                (version, MetricRequest { namespace: "", resource: "namespaces", name, metric })
            }
            [_, _, version, "namespaces", namespace, resource, name, metric] => {
                (version, MetricRequest { namespace, resource, name, metric })
            }
            [_, _, version, resource, name, metric] => {
                (version, MetricRequest { namespace: "", resource, name, metric })
            }
            _ => return Err(ApiError::unknown_resource()),
        };
        let object_selector = parse_selector(request, "labelSelector")?;
        let metric_selector = parse_selector(request, "metricLabelSelector")?;
        let items = self.metric_values(version, &metric_request, object_selector.as_ref(), metric_selector.as_ref());
        if items.is_empty() {
            let MetricRequest { resource, metric, .. } = metric_request;
            let text = format!("the server could not find the metric {metric} for {resource}");
            return Err(ApiError::new(Reason::NotFound, text));
        }
        Ok(
            json!({"kind": "MetricValueList", "apiVersion": format!("{GROUP}/{version}"), "metadata": {}, "items": items}),
        )
    }

    fn metric_values(
        &self,
        version: &str,
        request: &MetricRequest<'_>,
        object_selector: Option<&Selector>,
        metric_selector: Option<&Selector>,
    ) -> Vec<Value> {
        let Some(context) = self.context.upgrade() else { return Vec::new() };
        let (annotation, now) = (format!("{ANNOTATION_PREFIX}{}", request.metric), Timestamp::now());
        let mut values = BTreeMap::new();
        visit_objects(&context, Some(request.resource), &mut |described, key, labels, annotations| {
            let is_requested = *key.namespace == *request.namespace && [ALL_NAMES, &*key.name].contains(&request.name);
            let is_selected =
                request.name != ALL_NAMES || object_selector.is_none_or(|selector| selector.matches(labels));
            let Some(sample) = annotations
                .get(&annotation)
                .filter(|_| is_requested && is_selected)
                .and_then(|text| parse_sample(text))
            else {
                return;
            };
            if metric_selector.is_none_or(|selector| selector.matches(&sample.labels)) {
                let selector_json = metric_selector.map(|_| json!({"matchLabels": sample.labels}));
                values.insert(
                    key.clone(),
                    metric_value(version, described, key, request.metric, &sample, selector_json, now),
                );
            }
        });
        values.into_values().collect()
    }

    fn api_group(&self) -> Value {
        let versions =
            VERSIONS.map(|version| json!({"groupVersion": format!("{GROUP}/{version}"), "version": version}));
        json!({"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": versions, "preferredVersion": versions[0]})
    }

    fn api_resource_list(&self, version: &str) -> Value {
        let metrics_by_resource = self.metrics_by_resource();
        let metrics = metrics_by_resource
            .iter()
            .flat_map(|(resource, metrics)| metrics.iter().map(move |metric| (resource, metric)));
        let resource = |((resource, namespaced), metric): (&(&str, bool), &String)| json!({"name": format!("{resource}/{metric}"), "singularName": "", "namespaced": namespaced, "kind": "MetricValueList", "verbs": ["get"]});
        let resources: Vec<Value> = metrics.map(resource).collect();
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{version}"), "resources": resources})
    }
}

fn metric_value(
    version: &str,
    described: DescribedResource,
    key: &Key,
    metric: &str,
    sample: &Sample,
    selector: Option<Value>,
    now: Timestamp,
) -> Value {
    let mut object = json!({"kind": described.kind, "name": &*key.name, "apiVersion": described.api_version});
    if described.namespaced {
        object["namespace"] = json!(&*key.namespace);
    }
    let mut value = json!({"describedObject": object, "timestamp": format_time(now), "value": sample.value});
    if version == "v1beta1" {
        value["metricName"] = metric.into();
        value["selector"] = selector.into();
    } else {
        value["metric"] = json!({"name": metric});
        if let Some(selector) = selector {
            value["metric"]["selector"] = selector;
        }
    }
    value
}

#[async_trait]
impl Delegate for CustomMetrics {
    fn claims(&self, group: &str, version: &str) -> bool {
        group == GROUP && (version.is_empty() || VERSIONS.contains(&version))
    }

    async fn serve(&self, _user: &UserInfo, request: Request<Body>) -> Response<Body> {
        match self.handle(&request) {
            Ok(body) => json_response(StatusCode::OK, &body),
            Err(error) => error_response(&error),
        }
    }

    fn discovery(&self) -> Vec<RankedGroup> {
        let no_kind = || json!({"group": "", "version": "", "kind": ""});
        let kind = json!({"group": "", "version": "", "kind": "MetricValueList"});
        let metrics_by_resource = self.metrics_by_resource();
        // kubectl does not cache an empty list and would request it with each command.
        if metrics_by_resource.is_empty() {
            return Vec::new();
        }
        let resources: Vec<Value> = metrics_by_resource
            .into_iter()
            .map(|((parent, namespaced), metrics)| {
                let metrics =
                    metrics.iter().map(|metric| json!({"subresource": metric, "responseKind": kind, "verbs": ["get"]}));
                let metrics: Vec<Value> = metrics.collect();
                let scope = if namespaced { "Namespaced" } else { "Cluster" };
                json!({"resource": parent, "responseKind": no_kind(), "scope": scope, "singularResource": "", "verbs": [],
                    "subresources": metrics})
            })
            .collect();
        let version = |version| json!({"version": version, "freshness": "Current", "resources": resources});
        let versions: Vec<Value> = VERSIONS.into_iter().map(version).collect();
        let group = json!({"metadata": {"name": GROUP}, "versions": versions});
        vec![RankedGroup { priority: 100, group }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("12", Some(("12", "")))]
    #[case("1500m verb=GET,code=200", Some(("1500m", "code=200 verb=GET")))]
    #[case(" 5 ", Some(("5", "")))]
    #[case("many", None)]
    #[case("5 verb", None)]
    fn an_annotation_has_a_quantity_and_optional_labels(#[case] text: &str, #[case] expected: Option<(&str, &str)>) {
        let actual = parse_sample(text).map(|sample| {
            let labels: Vec<String> = sample.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
            (sample.value.to_string(), labels.join(" "))
        });
        assert_eq!(actual, expected.map(|(value, labels)| (value.to_owned(), labels.to_owned())));
    }

    #[test]
    fn values_have_the_form_of_the_requested_version() {
        let (key, now) = (Key::new("shop", "web"), Timestamp::UNIX_EPOCH);
        let sample = parse_sample("3 verb=GET").unwrap();
        let value = |version, selector| metric_value(version, PODS, &key, "qps", &sample, selector, now);
        let object = json!({"kind": "Pod", "namespace": "shop", "name": "web", "apiVersion": "/v1"});
        let at = "1970-01-01T00:00:00Z";
        assert_eq!(
            value("v1beta1", None),
            json!({"describedObject": object, "metricName": "qps", "timestamp": at, "value": "3", "selector": null})
        );
        let selector = json!({"matchLabels": {"verb": "GET"}});
        assert_eq!(
            value("v1beta2", Some(selector.clone())),
            json!({"describedObject": object, "metric": {"name": "qps", "selector": selector}, "timestamp": at, "value": "3"})
        );
    }
}
