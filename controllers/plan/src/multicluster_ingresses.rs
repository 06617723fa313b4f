//! MultiClusterIngress status: locations of the backend services, and clusters whose traffic is blocked. Load
//! balancers read it.

use std::collections::BTreeSet;

use crowsnest_api::networking::{MultiClusterIngressStatus, ServiceLocation};
use k8s_openapi::api::networking::v1::{IngressBackend, IngressSpec};
use serde_json::{Value, json};

/// Names of the backend services.
pub fn backends(spec: &IngressSpec) -> BTreeSet<String> {
    let rules = spec.rules.iter().flatten().filter_map(|rule| rule.http.as_ref());
    let paths = rules.flat_map(|http| http.paths.iter().map(|path| &path.backend));
    let all = spec.default_backend.iter().chain(paths);
    all.filter_map(|backend: &IngressBackend| Some(backend.service.as_ref()?.name.clone())).collect()
}

/// Status for the clusters of the backend services. Services without a cluster are omitted. The load balancer address
/// belongs to another writer.
pub fn status(
    services: impl IntoIterator<Item = (String, BTreeSet<String>)>,
    is_blocked: impl Fn(&str) -> bool,
) -> MultiClusterIngressStatus {
    let with_clusters = services.into_iter().filter(|(_, clusters)| !clusters.is_empty());
    let service_locations: Vec<ServiceLocation> = with_clusters
        .map(|(name, clusters)| ServiceLocation { name, clusters: clusters.into_iter().collect() })
        .collect();
    let clusters: BTreeSet<&String> = service_locations.iter().flat_map(|location| &location.clusters).collect();
    let traffic_block_clusters = clusters.into_iter().filter(|name| is_blocked(name)).cloned().collect();
    MultiClusterIngressStatus { load_balancer: None, traffic_block_clusters, service_locations }
}

/// Merge patch of the status. `None` if nothing changed.
pub fn patch(current: &MultiClusterIngressStatus, desired: &MultiClusterIngressStatus) -> Option<Value> {
    let fields = |status: &MultiClusterIngressStatus| {
        let null_if_empty = |list: Value| if list.as_array().is_some_and(Vec::is_empty) { Value::Null } else { list };
        json!({
            "trafficBlockClusters": null_if_empty(json!(status.traffic_block_clusters)),
            "serviceLocations": null_if_empty(json!(status.service_locations)),
        })
    };
    let (current, desired) = (fields(current), fields(desired));
    (current != desired).then(|| json!({"status": desired}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn spec(value: Value) -> IngressSpec {
        serde_json::from_value(value).unwrap()
    }

    fn backend(service: &str) -> Value {
        json!({"service": {"name": service, "port": {"number": 80}}})
    }

    #[test]
    fn backends_of_rules_and_default_backend() {
        let path = |backend: Value| json!({"pathType": "Prefix", "path": "/", "backend": backend});
        let bucket = json!({"resource": {"apiGroup": "s.io", "kind": "Bucket", "name": "b"}});
        let spec = spec(json!({"defaultBackend": backend("web"), "rules": [
            {"host": "a", "http": {"paths": [path(backend("web")), path(backend("api")), path(bucket)]}},
            {"host": "b"}]}));
        assert_eq!(backends(&spec), ["api".to_owned(), "web".to_owned()].into());
        assert_eq!(backends(&IngressSpec::default()), BTreeSet::new());
    }

    /// Status from `service=cluster,cluster` items.
    fn status_of(services: &str, blocked: &[&str]) -> MultiClusterIngressStatus {
        let services = services.split_whitespace().map(|service| {
            let (name, clusters) = service.split_once('=').unwrap();
            (name.to_owned(), clusters.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect())
        });
        status(services, |name| blocked.contains(&name))
    }

    #[rstest]
    #[case::unchanged("web=m1,m2", &["m2"], None)]
    #[case::moved("api=m3 web=m1,m2", &["m2", "m9"], Some(json!({"trafficBlockClusters": ["m2"],
        "serviceLocations": [{"name": "api", "clusters": ["m3"]}, {"name": "web", "clusters": ["m1", "m2"]}]})))]
    #[case::no_blocked_cluster("web=m1,m2", &[], Some(json!({"trafficBlockClusters": null,
        "serviceLocations": [{"name": "web", "clusters": ["m1", "m2"]}]})))]
    #[case::no_location("web=", &["m2"], Some(json!({"trafficBlockClusters": null, "serviceLocations": null})))]
    fn only_changes_are_written(#[case] services: &str, #[case] blocked: &[&str], #[case] expected: Option<Value>) {
        let current =
            MultiClusterIngressStatus { load_balancer: Some(Default::default()), ..status_of("web=m2,m1", &["m2"]) };
        let written = patch(&current, &status_of(services, blocked));
        assert_eq!(written, expected.map(|status| json!({"status": status})));
    }
}
