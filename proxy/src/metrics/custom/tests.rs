//! Tests of metric values, paths and discovery.

use super::*;
use rstest::rstest;

fn v1beta1(name: &str, at: &str, value: &str) -> Value {
    json!({"describedObject": {"kind": "Pod", "namespace": "a", "name": name, "apiVersion": "/v1"}, "metricName": "qps",
        "timestamp": at, "window": 60, "value": value, "selector": null})
}

fn v1beta2(name: &str, at: &str, value: &str) -> Value {
    json!({"describedObject": {"kind": "Pod", "namespace": "a", "name": name, "apiVersion": "/v1"}, "metric": {"name": "qps"},
        "timestamp": at, "windowSeconds": 60, "value": value})
}

fn parse(version: Version, items: &[Value]) -> Vec<MetricValue> {
    MetricValue::parse_list(version, json!({"items": items}).to_string().as_bytes()).unwrap()
}

const OLD: &str = "2026-01-01T00:00:00Z";
const NEW: &str = "2026-01-01T00:01:00Z";

#[test]
fn values_of_the_same_name_are_summed_in_both_versions() {
    let mut values = parse(Version::V1beta2, &[v1beta2("web", NEW, "1500m"), v1beta2("api", NEW, "1")]);
    values.extend(parse(Version::V1beta1, &[v1beta1("web", OLD, "500m")]));
    let sums = sum_by_object(values);
    let encode = |version| -> Vec<Value> { sums.iter().map(|sum| sum.clone().encode(version).unwrap()).collect() };
    assert_eq!(encode(Version::V1beta2), [v1beta2("api", NEW, "1"), v1beta2("web", OLD, "2")]);
    assert_eq!(encode(Version::V1beta1), [v1beta1("api", NEW, "1"), v1beta1("web", OLD, "2")]);
}

#[test]
fn selectors_and_windows_are_converted_between_versions() {
    let selector = json!({"matchLabels": {"verb": "GET"}});
    let mut old = v1beta1("web", OLD, "3");
    old["selector"] = selector.clone();
    old.as_object_mut().unwrap().remove("window");
    let mut new = v1beta2("web", OLD, "3");
    new["metric"]["selector"] = selector;
    new.as_object_mut().unwrap().remove("windowSeconds");
    for (from, value) in [(Version::V1beta1, &old), (Version::V1beta2, &new)] {
        let value = parse(from, std::slice::from_ref(value)).pop().unwrap();
        assert_eq!(value.clone().encode(Version::V1beta1).unwrap(), old);
        assert_eq!(value.encode(Version::V1beta2).unwrap(), new);
    }
}

#[rstest]
#[case("namespaces/a/pods/*/qps", Some(("pods", "/namespaces/a/pods/*/qps", "?labelSelector=b%3Dc&metricLabelSelector=d%3De")))]
#[case("namespaces/a/deployments.apps/web/qps",
    Some(("deployments.apps", "/namespaces/a/deployments.apps/web/qps", "?metricLabelSelector=d%3De")))]
#[case("nodes/n/load", Some(("nodes", "/nodes/n/load", "?metricLabelSelector=d%3De")))]
#[case("namespaces/a/metrics/qps", Some(("namespaces", "/namespaces/a/metrics/qps", "?metricLabelSelector=d%3De")))]
#[case("namespaces/*/metrics/job:qps", Some(("namespaces", "/namespaces/*/metrics/job:qps", "?metricLabelSelector=d%3De")))]
#[case("namespaces/a/pods/web", None)]
#[case("namespaces/a/status", None)]
#[case("nodes/n", None)]
fn metric_queries_have_a_path_and_query_in_members(#[case] path: &str, #[case] expected: Option<(&str, &str, &str)>) {
    let native = NativePath::parse(&format!("/apis/{GROUP}/v1beta2/{path}")).unwrap();
    let parameters = Query::parse(Some("labelSelector=b%3Dc&metricLabelSelector=d%3De"));
    let paths = MetricQuery::from_path(&native).map(|metric_query| {
        (
            metric_query.object_resource.to_owned(),
            metric_query.path(Version::V1beta1),
            metric_query.query(&parameters).unwrap(),
        )
    });
    let expected = expected.map(|(object_resource, path, query)| {
        (object_resource.to_owned(), format!("/apis/{GROUP}/v1beta1{path}"), query.to_owned())
    });
    assert_eq!(paths, expected);
}

#[rstest]
#[case(json!({"versions": [{"version": "v1beta1"}, {"version": "v1beta2"}]}), Some(Version::V1beta2))]
#[case(json!({"versions": [{"version": "v1beta1"}]}), Some(Version::V1beta1))]
#[case(json!({"versions": [{"version": "v3"}]}), None)]
fn the_preferred_version_is_used(#[case] group: Value, #[case] expected: Option<Version>) {
    assert_eq!(preferred_version(group.to_string().as_bytes()).unwrap(), expected);
}

#[test]
fn discovery_lists_metrics_with_a_described_resource() {
    let list = json!({"resources": [{"name": "pods/qps", "namespaced": true, "verbs": ["get"]}, {"name": "pods"}]});
    let metrics = parse_metrics(list.to_string().as_bytes()).unwrap();
    assert_eq!(*metrics, [Metric { name: "pods/qps".into(), namespaced: true }]);
}

#[test]
fn cached_discovery_expires() {
    let now = Instant::now();
    assert_eq!(unless_expired(Some((now, 1)), now + CACHE_TTL / 2), Some(1));
    assert_eq!(unless_expired(Some((now, 1)), now + CACHE_TTL), None);
    assert_eq!(unless_expired::<i32>(None, now), None);
}
