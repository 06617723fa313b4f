//! `custom.metrics.k8s.io` for all members. Each member is queried in the newest version it serves. As in Karmada,
//! values of objects with the same name are summed across clusters.
//!
//! The version and the metrics of each member are cached, because clients read discovery often.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::quantity::Quantity;
use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::request::path_segment;
use crowsnest_apimachinery::selector::Selector;
use crowsnest_members::Member;
use futures::future::join_all;
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{MemberIdentity, MemberResponse, failure_reason, format_query, json_value_response, with_warnings};
use crate::merged::MissingCluster;
use crate::native::{NativePath, Verb};
use crate::{Body, Error, Proxy};

const GROUP: &str = "custom.metrics.k8s.io";
/// Selects all objects of a resource.
const ALL: &str = "*";
/// Metrics of namespaces themselves have a separate path.
const NAMESPACES: &str = "namespaces";
const CACHE_TTL: Duration = Duration::from_secs(30);
/// Time limit for discovery; the aggregating API server gives up after 5 s.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(2);

/// In order of preference.
const VERSIONS: [Version; 2] = [Version::V1beta2, Version::V1beta1];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1beta1,
    V1beta2,
}

impl Version {
    fn name(self) -> &'static str {
        match self {
            Self::V1beta1 => "v1beta1",
            Self::V1beta2 => "v1beta2",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        VERSIONS.into_iter().find(|version| version.name() == name)
    }
}

/// A metric in discovery, as `resource/metric`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Metric {
    pub name: String,
    #[serde(default)]
    pub namespaced: bool,
}

/// Cached discovery of the members.
#[derive(Debug, Default)]
pub(crate) struct DiscoveryCache(Mutex<HashMap<ClusterName, MemberDiscovery>>);

/// Cached discovery of the member with this uid.
#[derive(Debug, Clone, Default)]
struct MemberDiscovery {
    uid: String,
    /// Version of the group, and when it was read; the inner `None` means that the member does not serve the group.
    version: Option<(Instant, Option<Version>)>,
    metrics: Option<(Instant, Arc<[Metric]>)>,
}

impl DiscoveryCache {
    fn get(&self, member: &Member) -> MemberDiscovery {
        self.0.lock().get(member.name()).filter(|discovery| discovery.uid == member.uid()).cloned().unwrap_or_default()
    }

    fn update(&self, member: &Member, change: impl FnOnce(&mut MemberDiscovery)) {
        let mut all = self.0.lock();
        let discovery = all.entry(member.name().clone()).or_default();
        if discovery.uid != member.uid() {
            *discovery = MemberDiscovery { uid: member.uid().to_owned(), ..MemberDiscovery::default() };
        }
        change(discovery);
    }

    /// Drops members that left the fleet.
    fn retain_members(&self, members: &BTreeSet<&ClusterName>) {
        self.0.lock().retain(|cluster, _| members.contains(cluster));
    }
}

/// A cached value, unless it has expired.
fn unless_expired<V>(cached: Option<(Instant, V)>, now: Instant) -> Option<V> {
    cached.filter(|(at, _)| now.duration_since(*at) < CACHE_TTL).map(|(_, value)| value)
}

/// The values that a request selects.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MetricQuery<'a> {
    namespace: &'a str,
    /// Resource with group of the object to which the metric belongs.
    object_resource: &'a str,
    /// A name, or [`ALL`].
    object: &'a str,
    metric: &'a str,
}

impl<'a> MetricQuery<'a> {
    fn from_path(native: &'a NativePath) -> Option<Self> {
        let (namespace, resource) = (native.namespace.as_str(), &*native.resource.resource);
        let (name, subresource) = (native.name.as_str(), native.subresource.as_str());
        match (resource, name, subresource) {
            (_, "", _) => None,
            // Metrics of the namespace itself.
            ("metrics", metric, "") if !namespace.is_empty() => {
                Some(Self { namespace: "", object_resource: NAMESPACES, object: namespace, metric })
            }
            (_, _, "") | (NAMESPACES, ..) => None,
            (object_resource, object, metric) => Some(Self { namespace, object_resource, object, metric }),
        }
    }

    /// Path of the values in a member.
    fn path(&self, version: Version) -> String {
        let root = format!("/apis/{GROUP}/{}", version.name());
        let Self { namespace, object_resource, object, metric } = self;
        let metric = path_segment(metric);
        if *object_resource == NAMESPACES {
            return format!("{root}/namespaces/{}/metrics/{metric}", path_segment(object));
        }
        let namespace_path =
            if namespace.is_empty() { String::new() } else { format!("/namespaces/{}", path_segment(namespace)) };
        format!("{root}{namespace_path}/{}/{}/{metric}", path_segment(object_resource), path_segment(object))
    }

    /// Query string with the selectors.
    fn query(&self, parameters: &Query) -> Result<String, Error> {
        let selects_by_label = self.object == ALL && self.object_resource != NAMESPACES;
        let labels = if selects_by_label { parameters.get("labelSelector").unwrap_or_default() } else { "" };
        let metrics = parameters.get("metricLabelSelector").unwrap_or_default();
        for selector in [labels, metrics] {
            Selector::parse(selector).map_err(|error| Error::BadRequest(error.to_string()))?;
        }
        Ok(format_query([("labelSelector", labels), ("metricLabelSelector", metrics)]))
    }
}

/// A metric value of either version.
#[derive(Debug, Clone, PartialEq)]
struct MetricValue {
    described_object: Value,
    name: String,
    selector: Option<Value>,
    timestamp: String,
    window: Option<i64>,
    value: Quantity,
}

/// MetricValue of v1beta1.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricValueV1beta1 {
    described_object: Value,
    metric_name: String,
    timestamp: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window: Option<i64>,
    value: Quantity,
    #[serde(default)]
    selector: Option<Value>,
}

/// MetricValue of v1beta2.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricValueV1beta2 {
    described_object: Value,
    metric: Identifier,
    timestamp: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window_seconds: Option<i64>,
    value: Quantity,
}

#[derive(Serialize, Deserialize)]
struct Identifier {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    selector: Option<Value>,
}

#[derive(Deserialize)]
struct List<T> {
    items: Option<Vec<T>>,
}

impl MetricValue {
    /// Decodes the values of a member's list.
    fn parse_list(version: Version, list: &[u8]) -> Result<Vec<Self>, serde_json::Error> {
        Ok(match version {
            Version::V1beta1 => {
                let list: List<MetricValueV1beta1> = serde_json::from_slice(list)?;
                list.items.into_iter().flatten().map(Self::from).collect()
            }
            Version::V1beta2 => {
                let list: List<MetricValueV1beta2> = serde_json::from_slice(list)?;
                list.items.into_iter().flatten().map(Self::from).collect()
            }
        })
    }

    /// Encodes the value in a version.
    fn encode(self, version: Version) -> Result<Value, serde_json::Error> {
        let Self { described_object, name, selector, timestamp, window, value } = self;
        match version {
            Version::V1beta1 => serde_json::to_value(MetricValueV1beta1 {
                described_object,
                metric_name: name,
                timestamp,
                window,
                value,
                selector,
            }),
            Version::V1beta2 => serde_json::to_value(MetricValueV1beta2 {
                described_object,
                metric: Identifier { name, selector },
                timestamp,
                window_seconds: window,
                value,
            }),
        }
    }

    /// Namespace and name of the described object.
    fn object_key(&self) -> (String, String) {
        let text = |key: &str| self.described_object[key].as_str().unwrap_or_default().to_owned();
        (text("namespace"), text("name"))
    }

    /// Adds another value. The timestamp of the sum is the older of the two.
    fn add(&mut self, other: &Self) {
        self.value += other.value;
        let timestamp = |value: &Self| value.timestamp.parse::<Timestamp>().ok();
        if timestamp(other).zip(timestamp(self)).is_some_and(|(other_time, own_time)| other_time < own_time) {
            self.timestamp.clone_from(&other.timestamp);
        }
    }
}

impl From<MetricValueV1beta1> for MetricValue {
    fn from(value: MetricValueV1beta1) -> Self {
        let MetricValueV1beta1 { described_object, metric_name, timestamp, window, value, selector } = value;
        Self { described_object, name: metric_name, selector, timestamp, window, value }
    }
}

impl From<MetricValueV1beta2> for MetricValue {
    fn from(value: MetricValueV1beta2) -> Self {
        let MetricValueV1beta2 {
            described_object,
            metric: Identifier { name, selector },
            timestamp,
            window_seconds,
            value,
        } = value;
        Self { described_object, name, selector, timestamp, window: window_seconds, value }
    }
}

/// Sums the values of each object, by namespace and name.
fn sum_by_object(values: impl IntoIterator<Item = MetricValue>) -> Vec<MetricValue> {
    let mut sums: BTreeMap<(String, String), MetricValue> = BTreeMap::new();
    for value in values {
        match sums.get_mut(&value.object_key()) {
            Some(sum) => sum.add(&value),
            None => {
                sums.insert(value.object_key(), value);
            }
        }
    }
    sums.into_values().collect()
}

/// The metrics in an APIResourceList.
fn parse_metrics(list: &[u8]) -> Result<Arc<[Metric]>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Resources {
        resources: Option<Vec<Metric>>,
    }
    let Resources { resources } = serde_json::from_slice(list)?;
    Ok(resources.into_iter().flatten().filter(|metric| metric.name.contains('/')).collect())
}

/// The preferred version of an APIGroup.
fn preferred_version(group: &[u8]) -> Result<Option<Version>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Group {
        versions: Vec<Served>,
    }
    #[derive(Deserialize)]
    struct Served {
        version: String,
    }
    let Group { versions } = serde_json::from_slice(group)?;
    Ok(VERSIONS.into_iter().find(|version| versions.iter().any(|served| served.version == version.name())))
}

impl Proxy {
    /// `custom.metrics.k8s.io` of all Ready members with this process' own permissions, as the control plane serves
    /// it. `path` is native.
    pub async fn custom_metrics(&self, path: &str, request: Request<Body>) -> Response<Body> {
        self.sum_custom_metrics(path, request).await.unwrap_or_else(Error::into_response)
    }

    async fn sum_custom_metrics(&self, path: &str, request: Request<Body>) -> Result<Response<Body>, Error> {
        let native = NativePath::parse(path).ok_or(Error::UnknownResource)?;
        let version = Version::parse(&native.resource.version).ok_or(Error::UnknownResource)?;
        let metric_query = MetricQuery::from_path(&native).ok_or(Error::UnknownResource)?;
        let parameters = Query::parse(request.uri().query());
        if native.verb(request.method(), &parameters) != Verb::Get {
            return Err(Error::MethodNotAllowed);
        }
        let query = metric_query.query(&parameters)?;
        let (metric_query, query) = (&metric_query, query.as_str());
        let (members, mut missing) = self.ready_members();
        self.report_clusters(&request, || members.iter().map(|member| member.name().clone()).collect());
        let responses = members
            .iter()
            .map(|member| async move { (member.name().clone(), self.read_values(member, metric_query, query).await) });
        let mut values = Vec::new();
        for (cluster, response) in join_all(responses).await {
            match response {
                Ok(member_values) => values.extend(member_values),
                Err(reason) => missing.push(MissingCluster { cluster, reason }),
            }
        }
        let response = match sum_by_object(values) {
            none if none.is_empty() => {
                let no_metric = Error::NoMetric {
                    metric: metric_query.metric.to_owned(),
                    object_resource: metric_query.object_resource.to_owned(),
                };
                no_metric.into_response()
            }
            sums => {
                let items: Result<Vec<Value>, _> = sums.into_iter().map(|sum| sum.encode(version)).collect();
                json_value_response(
                    &json!({"kind": "MetricValueList", "apiVersion": format!("{GROUP}/{}", version.name()),
                    "metadata": {}, "items": items?}),
                )
            }
        };
        Ok(with_warnings(response, &missing))
    }

    /// A member's values, or the reason why they are missing; empty if the member does not serve the group.
    async fn read_values(
        &self,
        member: &Arc<Member>,
        metric_query: &MetricQuery<'_>,
        query: &str,
    ) -> Result<Vec<MetricValue>, String> {
        let Some(version) = self.find_version(member).await? else { return Ok(Vec::new()) };
        match self.get_from_member(member, MemberIdentity::ServiceAccount, &metric_query.path(version), query).await {
            MemberResponse::Ok(list) => MetricValue::parse_list(version, &list)
                .map_err(|error| format!("sent an invalid list of metrics: {error}")),
            MemberResponse::Other(StatusCode::NOT_FOUND, _) => Ok(Vec::new()),
            MemberResponse::Other(code, body) => Err(failure_reason(code, &body)),
            MemberResponse::NoResponse(error) => Err(error.to_string()),
        }
    }

    /// The preferred version that a member serves; None if it does not serve the group.
    async fn find_version(&self, member: &Arc<Member>) -> Result<Option<Version>, String> {
        if let Some(version) = unless_expired(self.inner.metrics.get(member).version, Instant::now()) {
            return Ok(version);
        }
        let version =
            match self.get_from_member(member, MemberIdentity::ServiceAccount, &format!("/apis/{GROUP}"), "").await {
                MemberResponse::Ok(group) => {
                    preferred_version(&group).map_err(|error| format!("sent an invalid APIGroup: {error}"))?
                }
                MemberResponse::Other(StatusCode::NOT_FOUND, _) => None,
                MemberResponse::Other(code, body) => return Err(failure_reason(code, &body)),
                MemberResponse::NoResponse(error) => return Err(error.to_string()),
            };
        self.inner.metrics.update(member, |discovery| discovery.version = Some((Instant::now(), version)));
        Ok(version)
    }

    /// The metrics of all Ready members, by name. A member that does not respond contributes its last known
    /// metrics.
    pub async fn list_custom_metrics(&self) -> Vec<Metric> {
        let (members, _) = self.ready_members();
        let responses = join_all(members.iter().map(|member| self.find_metrics(member))).await;
        let all = self.inner.fleet.members();
        self.inner.metrics.retain_members(&all.iter().map(|member| member.name()).collect());
        // If clusters disagree on whether a metric is namespaced, the first one decides.
        let mut metrics: BTreeMap<String, bool> = BTreeMap::new();
        for metric in responses.iter().flat_map(|metrics| metrics.iter()) {
            metrics.entry(metric.name.clone()).or_insert(metric.namespaced);
        }
        metrics.into_iter().map(|(name, namespaced)| Metric { name, namespaced }).collect()
    }

    /// The metrics that a member serves, from the cache if they are not expired.
    async fn find_metrics(&self, member: &Arc<Member>) -> Arc<[Metric]> {
        let before = self.inner.metrics.get(member).metrics;
        if let Some(metrics) = unless_expired(before.clone(), Instant::now()) {
            return metrics;
        }
        let discovered = tokio::time::timeout(DISCOVERY_TIMEOUT, self.discover_metrics(member)).await;
        match discovered.unwrap_or_else(|_| Err(format!("no response within {} s", DISCOVERY_TIMEOUT.as_secs()))) {
            Ok(metrics) => {
                self.inner
                    .metrics
                    .update(member, |discovery| discovery.metrics = Some((Instant::now(), Arc::clone(&metrics))));
                metrics
            }
            Err(reason) => {
                tracing::debug!(cluster = %member.name(), reason, "cannot refresh the metrics of a member; using the last known ones");
                before.map(|(_, metrics)| metrics).unwrap_or_default()
            }
        }
    }

    async fn discover_metrics(&self, member: &Arc<Member>) -> Result<Arc<[Metric]>, String> {
        let Some(version) = self.find_version(member).await? else { return Ok(Arc::default()) };
        match self
            .get_from_member(member, MemberIdentity::ServiceAccount, &format!("/apis/{GROUP}/{}", version.name()), "")
            .await
        {
            MemberResponse::Ok(list) => parse_metrics(&list).map_err(|error| error.to_string()),
            MemberResponse::Other(code, body) => Err(failure_reason(code, &body)),
            MemberResponse::NoResponse(error) => Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
