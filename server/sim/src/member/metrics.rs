//! metrics.k8s.io of a member: simulated usage that varies every half minute and is equal for all clients within it.
//!
//! A pod's usage is derived from its UID and the time; annotations can set it (see [`super::podlife`]).

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use axum::body::Body;
use crowsnest_apimachinery::quantity::{Format, Quantity};
use crowsnest_apimachinery::selector::Selector as Labels;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_kube_apiserver::http::delegate::{Delegate, RankedGroup};
use http::{Method, Request, Response, StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::informer::Object;
use super::pod::{Phase, PodState};
use super::podlife::{time, usage};
use super::store::{Index, Key, Stored};
use super::world::World;

const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";
/// Duration of a sample in seconds.
const WINDOW: i64 = 30;

/// cpu in millicores, memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub cpu_milli: i64,
    pub memory: i64,
}

/// Usage of a running pod, per container in the order of its spec.
pub fn of_pod(pod: &PodState, now: Timestamp) -> Vec<(Arc<str>, Usage)> {
    let (fixed_cpu, fixed_memory) = usage(&pod.annotations);
    let containers = i64::try_from(pod.spec.containers.len().max(1)).unwrap_or(1);
    let sample = |container: &super::pod::ContainerSpec| {
        let (base, swing) = noise(&pod.uid, &container.name, now);
        // About half of the request, or a small value without one.
        let share = |requested: i64, default: i64| {
            let typical =
                if requested > 0 { requested * (25 + base % 45) / 100 } else { default * (40 + base % 120) / 100 };
            typical * (90 + swing % 21) / 100
        };
        Usage {
            cpu_milli: fixed_cpu.map_or_else(|| share(container.cpu_milli, 20).max(1), |cpu| cpu / containers),
            memory: fixed_memory
                .map_or_else(|| share(container.memory, 64 << 20).max(1 << 20), |memory| memory / containers),
        }
    };
    pod.spec.containers.iter().map(|container| (container.name.clone(), sample(container))).collect()
}

/// A constant of the container, and a value that changes with each window.
fn noise(uid: &str, container: &str, now: Timestamp) -> (i64, i64) {
    let digest = Sha256::digest(format!("{uid}/{container}").as_bytes());
    let base = i64::from(u16::from_le_bytes([digest[0], digest[1]]));
    let window = now.as_second() / WINDOW;
    let swing = (base + window).wrapping_mul(2_654_435_761).rem_euclid(1 << 31) >> 8;
    (base, swing)
}

fn quantities(usage: Usage) -> Value {
    json!({
        "cpu": Quantity::from_milli(usage.cpu_milli, Format::DecimalSI).to_string(),
        "memory": format!("{}Ki", usage.memory >> 10),
    })
}

/// Serves the API group from a member's stores.
pub struct Metrics {
    world: Weak<World>,
}

impl Metrics {
    pub fn new(world: &Arc<World>) -> Self {
        Self { world: Arc::downgrade(world) }
    }

    fn answer(&self, method: &Method, path: &str, selector: Option<Labels>) -> Result<Value, ApiError> {
        let Some(world) = self.world.upgrade() else {
            return Err(ApiError::internal("the member is stopping"));
        };
        if method != Method::GET {
            return Err(ApiError::method_not_allowed());
        }
        let selects = |labels: &super::Labels| selector.as_ref().is_none_or(|selector| selector.matches(labels));
        let parts: Vec<&str> = path.trim_matches('/').split('/').skip(3).collect();
        let now = Timestamp::now();
        let list = |kind: &str, items: Vec<Value>| {
            Ok(json!({"kind": kind, "apiVersion": format!("{GROUP}/{VERSION}"), "metadata": {}, "items": items}))
        };
        match parts.as_slice() {
            [] | [""] => Ok(resources()),
            ["nodes"] => {
                let mut nodes = world.nodes.all();
                nodes.sort_by_key(|node| node.key());
                nodes.retain(|node| selects(&node.metadata.labels.clone().unwrap_or_default()));
                list("NodeMetricsList", nodes.iter().filter_map(|node| node_metrics(&world, node, now)).collect())
            }
            ["nodes", name] => {
                let node =
                    world.nodes.get(&Key::new("", name)).ok_or_else(|| ApiError::not_found("", "nodes", name))?;
                node_metrics(&world, &node, now).ok_or_else(|| unmeasured("nodemetrics", name))
            }
            ["pods"] => {
                let mut pods = world.pods.all();
                pods.sort_by(|a, b| a.key.cmp(&b.key));
                pods.retain(|pod| selects(&pod.labels));
                list("PodMetricsList", pods.iter().filter_map(|pod| pod_metrics(pod, now)).collect())
            }
            ["namespaces", namespace, "pods"] => {
                let mut pods = world.pods.namespace(namespace);
                pods.retain(|pod| selects(&pod.labels));
                list("PodMetricsList", pods.iter().filter_map(|pod| pod_metrics(pod, now)).collect())
            }
            ["namespaces", namespace, "pods", name] => {
                let pod = world.pods.get(&Key::new(namespace, name));
                let pod = pod.ok_or_else(|| ApiError::not_found("", "pods", name))?;
                pod_metrics(&pod, now).ok_or_else(|| unmeasured("podmetrics", &format!("{namespace}/{name}")))
            }
            _ => Err(ApiError::unknown_resource()),
        }
    }
}

/// Error for an existing object without a sample, as metrics-server returns it.
fn unmeasured(resource: &str, name: &str) -> ApiError {
    ApiError::not_found(GROUP, resource, name)
}

fn resources() -> Value {
    let resource = |name: &str, kind: &str, namespaced: bool| json!({"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"]});
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": [resource("nodes", "NodeMetrics", false), resource("pods", "PodMetrics", true)]})
}

fn pod_metrics(pod: &PodState, now: Timestamp) -> Option<Value> {
    if pod.phase != Phase::Running {
        return None;
    }
    let containers: Vec<Value> =
        of_pod(pod, now).into_iter().map(|(name, usage)| json!({"name": &*name, "usage": quantities(usage)})).collect();
    Some(json!({
        "kind": "PodMetrics", "apiVersion": format!("{GROUP}/{VERSION}"),
        "metadata": {"name": &*pod.key.name, "namespace": &*pod.key.namespace, "creationTimestamp": time(now), "labels": &*pod.labels},
        "timestamp": time(now), "window": "30s", "containers": containers,
    }))
}

fn node_metrics(world: &World, node: &Object<k8s_openapi::api::core::v1::Node>, now: Timestamp) -> Option<Value> {
    if super::node::is_failed(node) {
        return None;
    }
    let name = node.key().name;
    // Usage of the system itself.
    let mut total = Usage { cpu_milli: 50 + noise(node.uid(), "system", now).1 % 30, memory: 600 << 20 };
    for pod in world.pods.by(&Index::Node(name.clone())).iter().filter(|pod| pod.phase == Phase::Running) {
        for (_, usage) in of_pod(pod, now) {
            total.cpu_milli += usage.cpu_milli;
            total.memory += usage.memory;
        }
    }
    Some(json!({
        "kind": "NodeMetrics", "apiVersion": format!("{GROUP}/{VERSION}"),
        "metadata": {"name": &*name, "creationTimestamp": time(now), "labels": node.metadata.labels},
        "timestamp": time(now), "window": "30s", "usage": quantities(total),
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
            return respond(StatusCode::OK, &group);
        }
        let selector = match selector(&request, "labelSelector") {
            Ok(selector) => selector,
            Err(error) => return refuse(&error),
        };
        match self.answer(request.method(), path, selector) {
            Ok(body) => respond(StatusCode::OK, &body),
            Err(error) => refuse(&error),
        }
    }

    fn discovery(&self) -> Vec<RankedGroup> {
        let resource = |name: &str, kind: &str, scope: &str| {
            json!({"resource": name, "responseKind": {"group": "", "version": "", "kind": kind}, "scope": scope,
                "singularResource": "", "verbs": ["get", "list"]})
        };
        let group = json!({
            "metadata": {"name": GROUP, "creationTimestamp": null},
            "versions": [{"version": VERSION, "freshness": "Current",
                "resources": [resource("nodes", "NodeMetrics", "Cluster"), resource("pods", "PodMetrics", "Namespaced")]}],
        });
        vec![RankedGroup { priority: 100, group }]
    }
}

/// Parses a label selector of a request.
pub(super) fn selector(request: &Request<Body>, name: &str) -> Result<Option<Labels>, ApiError> {
    let query = crowsnest_apimachinery::request::Query::parse(request.uri().query());
    let parsed = query.get(name).map(Labels::parse).transpose();
    parsed.map_err(|error| ApiError::bad_request(error.to_string()))
}

pub(super) fn refuse(error: &ApiError) -> Response<Body> {
    let code = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    respond(code, &error.to_status())
}

pub(super) fn respond(code: StatusCode, body: &Value) -> Response<Body> {
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
            Interner::default().pod(serde_json::from_value(pod).unwrap())
        };
        let at = |second: i64| Timestamp::from_second(1_767_225_600 + second).unwrap();
        let plain = pod(json!({}));
        assert_eq!(of_pod(&plain, at(0)), of_pod(&plain, at(29)));
        let (_, sample) = &of_pod(&plain, at(0))[0];
        assert!((200..800).contains(&sample.cpu_milli) && sample.memory < 1 << 30, "{sample:?}");
        let fixed = pod(json!({"sim.crowsnest.io/cpu": "250m", "sim.crowsnest.io/memory": "1Mi"}));
        assert_eq!(of_pod(&fixed, at(0))[0].1, Usage { cpu_milli: 250, memory: 1 << 20 });
    }
}
