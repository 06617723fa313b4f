//! Encodings of Karmada's Go programs: proto3 by protoc-gen-go, Kubernetes types by gogo.

use super::*;
use rstest::rstest;
use serde_json::{Value, json};

/// Parses bytes in hexadecimal, with text in quotes; `|` separates fields for readability.
fn bytes(notation: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (nth, part) in notation.split('"').enumerate() {
        if nth % 2 == 1 {
            bytes.extend(part.bytes());
            continue;
        }
        let digits: Vec<u8> = part.bytes().filter(u8::is_ascii_hexdigit).collect();
        for pair in digits.chunks(2) {
            bytes.push(u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
        }
    }
    bytes
}

fn requirements(value: Value) -> work::ReplicaRequirements {
    serde_json::from_value(value).unwrap()
}

fn with_node_claim(claim: Value) -> Value {
    json!({"nodeClaim": claim})
}

#[rstest]
#[case::empty(json!({}), "")]
#[case::names(
    json!({"namespace": "shop", "priorityClassName": "high"}),
    r#"1a 04 "shop" | 22 04 "high""#
)]
// Map entries are messages. The value of an entry is an encoded Quantity message.
#[case::requests(
    json!({"resourceRequest": {"cpu": "100m", "memory": "256Mi"}}),
    r#"2a 0d | 0a 03 "cpu" 12 06 0a 04 "100m" | 2a 11 | 0a 06 "memory" 12 07 0a 05 "256Mi""#
)]
#[case::selector(
    with_node_claim(json!({"nodeSelector": {"disk": "ssd"}})),
    r#"0a 0d | 12 0b | 0a 04 "disk" 12 03 "ssd""#
)]
#[case::affinity(
    with_node_claim(json!({"hardNodeAffinity": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]},
    ]}})),
    r#"0a 16 | 22 14 | 0a 12 0a 10 0a 04 "zone" 12 02 "In" 1a 01 "a" 1a 01 "b""#
)]
// gogo also encodes an empty value and effect.
#[case::toleration(
    with_node_claim(json!({"tolerations": [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 60}]})),
    r#"0a 15 | 2a 13 | 0a 03 "gpu" 12 06 "Exists" 1a 00 22 00 28 3c"#
)]
fn requirements_have_karmadas_encoding(#[case] requirements_json: Value, #[case] wire: &str) {
    let expected = requirements(requirements_json);
    let encoded = ReplicaRequirements::from(&expected).encode_to_vec();
    assert_eq!(encoded, bytes(wire));
    let decoded = ReplicaRequirements::decode(encoded.as_slice()).unwrap();
    assert_eq!(work::ReplicaRequirements::try_from(&decoded).unwrap(), expected);
}

#[rstest]
#[case::empty_texts_are_written(r#"0a 03 "gpu" 12 06 "Exists" 1a 00 22 00"#)]
#[case::empty_texts_are_omitted(r#"0a 03 "gpu" 12 06 "Exists""#)]
fn tolerations_are_decoded_with_and_without_empty_strings(#[case] wire: &str) {
    let claim = NodeClaim { tolerations_bytes: vec![bytes(wire)], ..NodeClaim::default() };
    let decoded = work::NodeClaim::try_from(&claim).unwrap();
    let expected: work::NodeClaim =
        serde_json::from_value(json!({"tolerations": [{"key": "gpu", "operator": "Exists"}]})).unwrap();
    assert_eq!(decoded, expected);
}

#[rstest]
#[case::present(r#"0a 00"#)]
#[case::omitted("")]
fn an_empty_quantity_is_zero(#[case] wire: &str) {
    let requirements = ReplicaRequirements {
        resource_request_bytes: BTreeMap::from([("cpu".to_owned(), bytes(wire))]),
        ..ReplicaRequirements::default()
    };
    let decoded = work::ReplicaRequirements::try_from(&requirements).unwrap();
    assert_eq!(decoded.resource_request["cpu"].0, "0");
}

#[rstest]
#[case::invalid_quantity(
    ReplicaRequirements {
        resource_request_bytes: BTreeMap::from([("cpu".to_owned(), bytes(r#"0a 04 "much""#))]),
        ..ReplicaRequirements::default()
    },
    "the requested amount of cpu is not a quantity: \"much\""
)]
#[case::undecodable_quantity(
    ReplicaRequirements {
        resource_request_bytes: BTreeMap::from([("cpu".to_owned(), b"invalid".to_vec())]),
        ..ReplicaRequirements::default()
    },
    "cannot decode resourceRequestBytes"
)]
#[case::affinity(
    ReplicaRequirements {
        node_claim: Some(NodeClaim { node_affinity_bytes: b"invalid".to_vec(), ..NodeClaim::default() }),
        ..ReplicaRequirements::default()
    },
    "cannot decode nodeAffinityBytes"
)]
#[case::tolerations(
    ReplicaRequirements {
        node_claim: Some(NodeClaim { tolerations_bytes: vec![b"invalid".to_vec()], ..NodeClaim::default() }),
        ..ReplicaRequirements::default()
    },
    "cannot decode tolerationsBytes"
)]
fn decoding_errors_name_the_field(#[case] wire: ReplicaRequirements, #[case] expected: &str) {
    assert_eq!(work::ReplicaRequirements::try_from(&wire).unwrap_err().to_string(), expected);
}

#[test]
fn requests_and_responses_have_karmadas_encoding() {
    let component: work::Component = serde_json::from_value(json!({
        "name": "tm", "replicas": 2,
        "replicaRequirements": {"priorityClassName": "high", "resourceRequest": {"cpu": "1"}},
    }))
    .unwrap();
    let request = MaxAvailableComponentSetsRequest {
        cluster: "m1".to_owned(),
        components: vec![Component::from(&component)],
        namespace: "ns".to_owned(),
        assumed_workloads: vec![AssumedWorkload { namespace: "ns".to_owned(), components: Vec::new() }],
    };
    let requirements = r#"1a 04 "high" 22 0a 0a 03 "cpu" 12 03 0a 01 "1""#;
    let wire = format!(r#"0a 02 "m1" | 12 1a 0a 02 "tm" 12 12 {requirements} 18 02 | 1a 02 "ns" | 22 04 0a 02 "ns""#);
    assert_eq!(request.encode_to_vec(), bytes(&wire));
    assert_eq!(work::Component::try_from(&request.components[0]).unwrap(), component);

    let unschedulable = UnschedulableReplicasRequest {
        cluster: "m1".to_owned(),
        resource: Some(ObjectReference {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            namespace: "ns".to_owned(),
            name: "web".to_owned(),
        }),
        unschedulable_threshold: 300_000_000_000,
    };
    let wire = r#"0a 02 "m1" | 12 1e 0a 07 "apps/v1" 12 0a "Deployment" 1a 02 "ns" 22 03 "web" | 18 80 f0 92 cb dd 08"#;
    assert_eq!(unschedulable.encode_to_vec(), bytes(wire));

    assert_eq!(MaxAvailableReplicasResponse { max_replicas: 300 }.encode_to_vec(), bytes("08 ac 02"));
    assert_eq!(MaxAvailableComponentSetsResponse { max_sets: 1 }.encode_to_vec(), bytes("08 01"));
    // The zero value is not encoded in proto3.
    assert_eq!(MaxAvailableReplicasResponse { max_replicas: 0 }.encode_to_vec(), bytes(""));
    // A negative number takes ten bytes.
    let negative = MaxAvailableReplicasResponse::decode(bytes("08 ff ff ff ff ff ff ff ff ff 01").as_slice()).unwrap();
    assert_eq!(negative.max_replicas, -1);
}

#[test]
fn method_paths_begin_with_the_service() {
    for method in [MAX_AVAILABLE_REPLICAS, MAX_AVAILABLE_COMPONENT_SETS, GET_UNSCHEDULABLE_REPLICAS] {
        assert!(method.starts_with(&format!("/{SERVICE}/")), "{method}");
    }
}
