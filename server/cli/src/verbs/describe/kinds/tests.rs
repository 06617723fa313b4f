//! Tests that compare descriptions with golden files.

use super::*;
use serde_json::json;

use crate::verbs::describe::render::render_description;

fn describe_fixture(fixture: &str) -> String {
    let fixture: Value = serde_saphyr::from_str(fixture).unwrap();
    let names = [PODS, REPLICA_SETS, SLICES, LEASES, QUOTAS, LIMITS, SECRETS];
    let related = names.iter().filter_map(|name| Some((*name, Ok(fixture["related"][*name].as_array()?.clone()))));
    let now = "2026-01-01T00:10:00Z".parse().unwrap();
    render_description(&fixture["object"], Some("member1"), &related.collect(), None, now)
}

#[rstest::rstest]
#[case::pod(include_str!("fixtures/pod.yaml"), include_str!("fixtures/pod.txt"))]
#[case::deployment(include_str!("fixtures/deployment.yaml"), include_str!("fixtures/deployment.txt"))]
#[case::node(include_str!("fixtures/node.yaml"), include_str!("fixtures/node.txt"))]
#[case::service(include_str!("fixtures/service.yaml"), include_str!("fixtures/service.txt"))]
#[case::binding(include_str!("fixtures/binding.yaml"), include_str!("fixtures/binding.txt"))]
#[case::policy(include_str!("fixtures/policy.yaml"), include_str!("fixtures/policy.txt"))]
#[case::work(include_str!("fixtures/work.yaml"), include_str!("fixtures/work.txt"))]
#[case::cluster(include_str!("fixtures/cluster.yaml"), include_str!("fixtures/cluster.txt"))]
#[case::statefulset(include_str!("fixtures/statefulset.yaml"), include_str!("fixtures/statefulset.txt"))]
#[case::daemonset(include_str!("fixtures/daemonset.yaml"), include_str!("fixtures/daemonset.txt"))]
#[case::job(include_str!("fixtures/job.yaml"), include_str!("fixtures/job.txt"))]
#[case::cronjob(include_str!("fixtures/cronjob.yaml"), include_str!("fixtures/cronjob.txt"))]
#[case::autoscaler(include_str!("fixtures/autoscaler.yaml"), include_str!("fixtures/autoscaler.txt"))]
#[case::ingress(include_str!("fixtures/ingress.yaml"), include_str!("fixtures/ingress.txt"))]
#[case::claim(include_str!("fixtures/claim.yaml"), include_str!("fixtures/claim.txt"))]
#[case::namespace(include_str!("fixtures/namespace.yaml"), include_str!("fixtures/namespace.txt"))]
#[case::account(include_str!("fixtures/account.yaml"), include_str!("fixtures/account.txt"))]
fn descriptions_match_the_golden_files(#[case] fixture: &str, #[case] expected: &str) {
    assert_eq!(describe_fixture(fixture), expected);
}

fn describe(object: Value, related: &RelatedObjects) -> String {
    render_description(&object, None, related, None, jiff::Timestamp::UNIX_EPOCH)
}

#[test]
fn secret_values_are_hidden() {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db"}, "type": "Opaque",
        "data": {"password": "aHVudGVyMg=="}});
    let output = describe(secret, &RelatedObjects::new());
    assert!(output.ends_with("\nType:  Opaque\n\nData\n====\npassword:  7 bytes\n"), "{output}");
    assert!(!output.contains("aHVudGVyMg") && output.contains("Cluster:      <control plane>\n"), "{output}");
}

#[test]
fn config_maps_show_their_data() {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"},
        "data": {"b": "two\nlines", "a": "1"}, "binaryData": {"c": "AAAA"}});
    let output = describe(map, &RelatedObjects::new());
    let expected = "\nData\n====\na:\n----\n1\n\nb:\n----\ntwo\nlines\n\n\nBinaryData\n====\nc: 3 bytes\n\n";
    assert!(output.ends_with(expected), "{output}");
}

#[test]
fn missing_related_objects_are_reported() {
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}});
    let forbidden = RelatedObjects::from([(PODS, Err("pods is forbidden".to_owned()))]);
    assert!(describe(claim, &forbidden).contains("Used By:       <unknown: pods is forbidden>\n"));
}

#[rstest::rstest]
#[case(json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db", "namespace": "shop"},
    "spec": {"selector": {"matchLabels": {"app": "db"}}}}),
    &[(PODS, "/api/v1/namespaces/shop/pods?labelSelector=app%3Ddb")])]
#[case(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"}}),
    &[(SLICES, "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices?labelSelector=kubernetes%2Eio%2Fservice%2Dname%20in%20%28web%29")])]
#[case(json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "web", "namespace": "shop"}}), &[])]
#[case(json!({"apiVersion": "example.io/v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"}}), &[])]
fn related_objects_are_requested(#[case] object: Value, #[case] expected: &[(&str, &str)]) {
    let requests = related_requests(&object);
    let requests: Vec<(&str, &str)> = requests.iter().map(|(name, path)| (*name, path.as_str())).collect();
    assert_eq!(requests, expected);
}
