//! metrics.k8s.io of a member: simulated usage that changes every 30 seconds and is equal for all clients in between.
//!
//! A pod's usage is derived from its UID and the time; annotations can set it (see [`super::pod_lifecycle`]).

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use axum::body::Body;
use crowsnest_apimachinery::quantity::{Format, Quantity};
use crowsnest_apimachinery::selector::Selector;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_kube_apiserver::http::delegate::{Delegate, RankedGroup};
use http::{Method, Request, Response, StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::context::MemberContext;
use super::informer::Object;
use super::pod::{Phase, PodState};
use super::pod_lifecycle::{annotated_usage, format_time};
use super::store::{Index, Key, StoreObject};

const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";
/// Duration of a sample in seconds.
const WINDOW_SECONDS: i64 = 30;

/// Usage of compute resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub cpu_milli: i64,
    pub memory_bytes: i64,
}

/// Usage of the containers of a running pod, in the order of its spec.
pub fn pod_usage(pod: &PodState, now: Timestamp) -> Vec<(Arc<str>, Usage)> {
    let (fixed_cpu, fixed_memory) = annotated_usage(&pod.annotations);
    let containers = i64::try_from(pod.spec.containers.len().max(1)).unwrap_or(1);
    let sample = |container: &super::pod::ContainerSpec| {
        let (base, swing) = noise(&pod.uid, &container.name, now);
        // 25 % to 69 % of the request, or a small value without a request; 10 % more or less in each window.
        let share = |requested: i64, default: i64| {
            let typical =
                if requested > 0 { requested * (25 + base % 45) / 100 } else { default * (40 + base % 120) / 100 };
            typical * (90 + swing % 21) / 100
        };
        Usage {
            cpu_milli: fixed_cpu.map_or_else(|| share(container.cpu_milli, 20).max(1), |cpu| cpu / containers),
            memory_bytes: fixed_memory
                .map_or_else(|| share(container.memory_bytes, 64 << 20).max(1 << 20), |memory| memory / containers),
        }
    };
    pod.spec.containers.iter().map(|container| (container.name.clone(), sample(container))).collect()
}

/// Two pseudorandom values: one that is constant for the container, and one that changes with each window.
fn noise(uid: &str, container: &str, now: Timestamp) -> (i64, i64) {
    let digest = Sha256::digest(format!("{uid}/{container}").as_bytes());
    let base = i64::from(u16::from_le_bytes([digest[0], digest[1]]));
    let window = now.as_second() / WINDOW_SECONDS;
    let swing = (base + window).wrapping_mul(2_654_435_761).rem_euclid(1 << 31) >> 8;
    (base, swing)
}

fn usage_quantities(usage: Usage) -> Value {
    json!({
        "cpu": Quantity::from_milli(usage.cpu_milli, Format::DecimalSI).to_string(),
        "memory": format!("{}Ki", usage.memory_bytes >> 10),
    })
}

/// Serves the API group from a member's stores.
pub struct Metrics {
    context: Weak<MemberContext>,
}

impl Metrics {
    pub fn new(context: &Arc<MemberContext>) -> Self {
        Self { context: Arc::downgrade(context) }
    }

    fn handle(&self, method: &Method, path: &str, selector: Option<Selector>) -> Result<Value, ApiError> {
        let Some(context) = self.context.upgrade() else {
            return Err(ApiError::internal("the member is stopping"));
        };
        if method != Method::GET {
            return Err(ApiError::method_not_allowed());
        }
        let is_selected = |labels: &super::Labels| selector.as_ref().is_none_or(|selector| selector.matches(labels));
        let parts: Vec<&str> = path.trim_matches('/').split('/').skip(3).collect();
        let now = Timestamp::now();
        let list = |kind: &str, items: Vec<Value>| {
            Ok(json!({"kind": kind, "apiVersion": format!("{GROUP}/{VERSION}"), "metadata": {}, "items": items}))
        };
        match parts.as_slice() {
            [] | [""] => Ok(api_resource_list()),
            ["nodes"] => {
                let mut nodes = context.nodes.all();
                nodes.sort_by_key(|node| node.key());
                nodes.retain(|node| is_selected(&node.metadata.labels.clone().unwrap_or_default()));
                list("NodeMetricsList", nodes.iter().filter_map(|node| node_metrics(&context, node, now)).collect())
            }
            ["nodes", name] => {
                let node =
                    context.nodes.get(&Key::new("", name)).ok_or_else(|| ApiError::not_found("", "nodes", name))?;
                node_metrics(&context, &node, now).ok_or_else(|| no_sample_error("nodemetrics", name))
            }
            ["pods"] => {
                let mut pods = context.pods.all();
                pods.sort_by(|a, b| a.key.cmp(&b.key));
                pods.retain(|pod| is_selected(&pod.labels));
                list("PodMetricsList", pods.iter().filter_map(|pod| pod_metrics(pod, now)).collect())
            }
            ["namespaces", namespace, "pods"] => {
                let mut pods = context.pods.in_namespace(namespace);
                pods.retain(|pod| is_selected(&pod.labels));
                list("PodMetricsList", pods.iter().filter_map(|pod| pod_metrics(pod, now)).collect())
            }
            ["namespaces", namespace, "pods", name] => {
                let pod = context.pods.get(&Key::new(namespace, name));
                let pod = pod.ok_or_else(|| ApiError::not_found("", "pods", name))?;
                pod_metrics(&pod, now).ok_or_else(|| no_sample_error("podmetrics", &format!("{namespace}/{name}")))
            }
            _ => Err(ApiError::unknown_resource()),
        }
    }
}

/// Error for an existing object without a sample, as metrics-server returns it.
fn no_sample_error(resource: &str, name: &str) -> ApiError {
    ApiError::not_found(GROUP, resource, name)
}

fn api_resource_list() -> Value {
    let resource = |name: &str, kind: &str, namespaced: bool| json!({"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"]});
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": [resource("nodes", "NodeMetrics", false), resource("pods", "PodMetrics", true)]})
}

fn pod_metrics(pod: &PodState, now: Timestamp) -> Option<Value> {
    if pod.phase != Phase::Running {
        return None;
    }
    let containers: Vec<Value> = pod_usage(pod, now)
        .into_iter()
        .map(|(name, usage)| json!({"name": &*name, "usage": usage_quantities(usage)}))
        .collect();
    Some(json!({
        "kind": "PodMetrics", "apiVersion": format!("{GROUP}/{VERSION}"),
        "metadata": {"name": &*pod.key.name, "namespace": &*pod.key.namespace, "creationTimestamp": format_time(now), "labels": &*pod.labels},
        "timestamp": format_time(now), "window": "30s", "containers": containers,
    }))
}

fn node_metrics(
    context: &MemberContext,
    node: &Object<k8s_openapi::api::core::v1::Node>,
    now: Timestamp,
) -> Option<Value> {
    if super::node::is_failed(node) {
        return None;
    }
    let name = node.key().name;
    // Usage of the system itself.
    let mut total = Usage { cpu_milli: 50 + noise(node.uid(), "system", now).1 % 30, memory_bytes: 600 << 20 };
    for pod in context.pods.by_index(&Index::Node(name.clone())).iter().filter(|pod| pod.phase == Phase::Running) {
        for (_, usage) in pod_usage(pod, now) {
            total.cpu_milli += usage.cpu_milli;
            total.memory_bytes += usage.memory_bytes;
        }
    }
    Some(json!({
        "kind": "NodeMetrics", "apiVersion": format!("{GROUP}/{VERSION}"),
        "metadata": {"name": &*name, "creationTimestamp": format_time(now), "labels": node.metadata.labels},
        "timestamp": format_time(now), "window": "30s", "usage": usage_quantities(total),
    }))
}

#[async_trait]
impl Delegate for Metrics {
    fn claims(&self, group: &str, version: &str) -> bool {
        group == GROUP && (version == VERSION || version.is_empty())
    }

    async fn serve(&self, _user: &UserInfo, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path();
        if path.trim_matches('/') == format!("apis/{GROUP}") {
            let version = json!({"groupVersion": format!("{GROUP}/{VERSION}"), "version": VERSION});
            let group = json!({"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version], "preferredVersion": version});
            return json_response(StatusCode::OK, &group);
        }
        let selector = match parse_selector(&request, "labelSelector") {
            Ok(selector) => selector,
            Err(error) => return error_response(&error),
        };
        match self.handle(request.method(), path, selector) {
            Ok(body) => json_response(StatusCode::OK, &body),
            Err(error) => error_response(&error),
        }
    }

    fn discovery(&self) -> Vec<RankedGroup> {
        let resource = |name: &str, kind: &str, scope: &str| {
            json!({"resource": name, "responseKind": {"group": "", "version": "", "kind": kind}, "scope": scope,
                "singularResource": "", "verbs": ["get", "list"]})
        };
        let group = json!({
            "metadata": {"name": GROUP},
            "versions": [{"version": VERSION, "freshness": "Current",
                "resources": [resource("nodes", "NodeMetrics", "Cluster"), resource("pods", "PodMetrics", "Namespaced")]}],
        });
        vec![RankedGroup { priority: 100, group }]
    }
}

/// Parses a label selector of a request.
pub(super) fn parse_selector(request: &Request<Body>, name: &str) -> Result<Option<Selector>, ApiError> {
    let query = crowsnest_apimachinery::request::Query::parse(request.uri().query());
    let parsed = query.get(name).map(Selector::parse).transpose();
    parsed.map_err(|error| ApiError::bad_request(error.to_string()))
}

pub(super) fn error_response(error: &ApiError) -> Response<Body> {
    let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json_response(code, &error.to_status())
}

pub(super) fn json_response(code: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::interner::Interner;

    #[test]
    fn usage_is_constant_within_a_window_unless_annotated() {
        let pod = |annotations: Value| {
            let pod = json!({"metadata": {"name": "p", "uid": "u", "annotations": annotations}, "spec": {"containers": [
                {"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}});
            Interner::default().intern_pod(serde_json::from_value(pod).unwrap())
        };
        let at = |second: i64| Timestamp::from_second(1_767_225_600 + second).unwrap();
        let plain = pod(json!({}));
        assert_eq!(pod_usage(&plain, at(0)), pod_usage(&plain, at(29)));
        let (_, sample) = &pod_usage(&plain, at(0))[0];
        assert!((200..800).contains(&sample.cpu_milli) && sample.memory_bytes < 1 << 30, "{sample:?}");
        let fixed = pod(json!({"sim.crowsnest.io/cpu": "250m", "sim.crowsnest.io/memory": "1Mi"}));
        assert_eq!(pod_usage(&fixed, at(0))[0].1, Usage { cpu_milli: 250, memory_bytes: 1 << 20 });
    }
}
