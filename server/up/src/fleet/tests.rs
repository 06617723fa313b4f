//! Tests of member settings, inline and in files: parsed shapes and error messages.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// Summarizes each member in one line: name, number of nodes, provider, region and zones.
fn summarize(members: &[MemberRequest]) -> Vec<String> {
    let line = |MemberRequest { name, shape }: &MemberRequest| match shape {
        None => name.to_string(),
        Some(shape) => {
            let count: usize = shape.nodes.iter().map(|nodes| nodes.count).sum();
            format!("{name} {count} {}/{}/{}", shape.provider, shape.region, shape.zones.join("+"))
        }
    };
    members.iter().map(line).collect()
}

fn parse(text: &str) -> Result<Vec<MemberRequest>, String> {
    text.parse::<MembersArg>().and_then(MembersArg::read).map_err(|error| error.to_string())
}

#[rstest]
#[case::number("3", &["member1", "member2", "member3"])]
#[case::none("0", &[])]
#[case::names("m1, m2", &["m1", "m2"])]
#[case::settings("east:nodes=2", &["east 2 sim/region-1/region-1-a+region-1-b+region-1-c"])]
#[case::some_with_settings("a;b:nodes=1,zone=z;c", &["a", "b 1 sim//z", "c"])]
#[case::shared_settings("a,b:region=eu", &["a 3 sim/eu/eu-a+eu-b+eu-c", "b 3 sim/eu/eu-a+eu-b+eu-c"])]
#[case::number_with_settings("2:nodes=0,provider=", &["member1 0 /region-1/region-1-a+region-1-b+region-1-c", "member2 0 /region-2/region-2-a+region-2-b+region-2-c"])]
#[case::several_zones("a:region=eu,zones=eu-1+eu-2", &["a 3 sim/eu/eu-1+eu-2"])]
fn inline_settings_are_parsed(#[case] text: &str, #[case] expected: &[&str]) {
    assert_eq!(summarize(&parse(text).unwrap()), expected);
}

#[test]
fn node_settings_are_parsed() {
    let text = "a:version=1.35,cpu=500m,memory=1Gi,pods=20,ephemeral-storage=5Gi,nvidia.com/gpu=2,instance-type=big,label=disk=ssd,\
                label=example.com/rack=,taint=gpu=yes:NoSchedule,taint=gpu:NoExecute";
    let members = parse(text).unwrap();
    let shape = members[0].shape.as_ref().unwrap();
    let nodes = serde_json::to_value(&shape.nodes[0]).unwrap();
    let expected = json!({
        "count": 3, "instanceType": "big", "region": "region-1", "zones": ["region-1-a", "region-1-b", "region-1-c"],
        "allocatable": {"cpu": "500m", "memory": "1Gi", "pods": "20", "ephemeral-storage": "5Gi", "nvidia.com/gpu": "2"},
        "labels": {"disk": "ssd", "example.com/rack": ""},
        "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}, {"key": "gpu", "effect": "NoExecute"}],
    });
    assert_eq!((shape.kubernetes_version.as_str(), nodes), ("v1.35.0", expected));
}

#[rstest]
#[case("m1,m1", "m1 is named twice")]
#[case("m1;m1:nodes=2", "m1 is named twice")]
#[case("m1,cp", "cp names a kubeconfig of the fleet itself; choose another")]
#[case("999", "at most 200 members can be simulated")]
#[case("150;x:nodes=1;60", "at most 200 members can be simulated")]
#[case("Not_A_Name", "invalid cluster name \"Not_A_Name\"")]
#[case("a;", "invalid cluster name \"\"")]
#[case("a:", "a: \"\" is not a setting; expected KEY=VALUE with nodes, region")]
#[case("a:cpu", "a: \"cpu\" is not a setting")]
#[case("a:gpu=4", "a: unknown setting \"gpu\"; expected nodes, region")]
#[case("a:nodes=many", "a: nodes=many: expected a number from 0 to 1000")]
#[case("a:nodes=-1", "a.nodes[0].count: Invalid value: -1: member a must have from 0 to 1000 nodes")]
#[case("nodes=-1", "\"nodes=-1\" names no member; expected MEMBER:KEY=VALUE")]
#[case("a:taint=gpu", "a: taint=gpu: expected taint=KEY[=VALUE]:EFFECT")]
#[case("a:label=disk", "a: label=disk: expected label=KEY=VALUE")]
#[case(
    "a:taint=gpu:Never",
    "a.nodes[0].taints[0].effect: Unsupported value: \"Never\": supported values: \"NoSchedule\""
)]
#[case("a:cpu=lots", "a.nodes[0].allocatable[cpu]: Invalid value: \"lots\": must be a quantity")]
#[case("a:cpu=-1", "a.nodes[0].allocatable[cpu]: Invalid value: \"-1\": must not be negative")]
#[case(
    "a:nvidia.com/gpu=1500m",
    "a.nodes[0].allocatable[nvidia.com/gpu]: Invalid value: \"1500m\": must be an integer"
)]
#[case("a:version=2.0", "a.kubernetesVersion: Invalid value: \"2.0\": must be a Kubernetes version")]
#[case("a:version=1.x", "a.kubernetesVersion: Invalid value: \"1.x\"")]
#[case("a:zones=x+x", "a.zones[1]: Duplicate value: \"x\"")]
#[case("a:zones=x+", "a.zones[1]: Required value: a zone must have a name")]
#[case("a:region=my region", "a.region: Invalid value: \"my region\"")]
#[case("a:nodes=1001", "a.nodes[0].count: Invalid value: 1001: member a must have from 0 to 1000 nodes")]
#[case(
    "a:label=topology.kubernetes.io/zone=x",
    "a.nodes[0].labels[topology.kubernetes.io/zone]: Forbidden: the label is set from zones"
)]
#[case("fleet.yml", "cannot read the file of members \"fleet.yml\"")]
fn invalid_inline_settings_are_rejected(#[case] text: &str, #[case] expected: &str) {
    let error = parse(text).unwrap_err();
    assert!(error.starts_with(expected), "{error}");
}

/// Writes the text to a file and reads the members from it.
fn parse_file(text: &str) -> Result<Vec<MemberRequest>, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fleet.yaml");
    std::fs::write(&path, text).unwrap();
    let read = MembersArg::File(path.clone()).read();
    read.map_err(|error| error.to_string().replace(&format!("{path:?}"), "F"))
}

/// The example of the documentation.
const EXAMPLE: &str = include_str!("../../../../docs/fleet-shapes/fleet.yaml");

#[test]
fn documented_file_is_parsed() {
    let members = parse_file(EXAMPLE).unwrap();
    let expected = ["east 3 acme/eu/eu-1+eu-2", "west 2 acme/us/us-1+us-2", "gpu 3 acme/eu/eu-1+eu-3"];
    assert_eq!(summarize(&members), expected);
    let gpu = members[2].shape.as_ref().unwrap();
    assert_eq!(gpu.nodes[1].allocatable["nvidia.com/gpu"], "4");
    assert_eq!((gpu.nodes[0].region.as_str(), gpu.nodes[1].taints[0].key.as_str()), ("eu", "nvidia.com/gpu"));
}

#[test]
fn members_of_files_have_the_default_shape() {
    let members = parse_file("members: [{name: a}, {name: b}]").unwrap();
    let shapes: Vec<MemberShape> = members.into_iter().filter_map(|member| member.shape).collect();
    assert_eq!(shapes, [MemberShape::default_for_index(0), MemberShape::default_for_index(1)]);
}

#[rstest]
#[case::no_list("[]", "the file must be an object with the list `members`")]
#[case::no_members("fleet: []", "fleet: unknown field `fleet`, expected `members`")]
#[case::no_name("members: [{nodes: []}]", "members[0]: missing field `name`")]
#[case::misspelled_field("members: [{name: a, zonez: [x]}]", "members[0].zonez: unknown field `zonez`")]
#[case::misspelled_nested_field(
    "members: [{name: a, nodes: [{}, {alocatable: {}}]}]",
    "members[0].nodes[1].alocatable: unknown field"
)]
#[case::version(
    "members: [{name: a, kubernetesVersion: 1.35}]",
    "members[0].kubernetesVersion: invalid type: floating point"
)]
#[case::amounts(
    "members: [{name: a, nodes: [{allocatable: {cpu: [1]}}]}]",
    "members[0].nodes[0].allocatable[cpu]: Invalid value: [1]: must be a quantity"
)]
#[case::resource(
    "members: [{name: a, nodes: [{allocatable: {gpu: 1}}]}]",
    "members[0].nodes[0].allocatable[gpu]: Invalid value: \"gpu\": must be cpu, memory"
)]
#[case::taint(
    "members: [{name: a, nodes: [{taints: [{key: a b, effect: NoSchedule}]}]}]",
    "members[0].nodes[0].taints[0].key: Invalid value: \"a b\""
)]
#[case::same_taint(
    "members: [{name: a, nodes: [{taints: [{key: a, effect: NoSchedule}, {key: a, effect: NoSchedule}]}]}]",
    "members[0].nodes[0].taints[1]: Duplicate value"
)]
#[case::negative_count(
    "members: [{name: a, nodes: [{count: -1}]}]",
    "members[0].nodes[0].count: Invalid value: -1: member a must have from 0 to 1000 nodes"
)]
#[case::many_nodes(
    "members: [{name: a, nodes: [{count: 600}, {count: 401}]}]",
    "members[0].nodes: Invalid value: 1001: member a must have from 0 to 1000 nodes"
)]
#[case::names("members: [{name: a}, {name: a}]", "members[1].name: Invalid value: \"a\": a is named twice")]
#[case::several("members: [{name: A}, {name: a, region: ' '}]", "[members[0].name: Invalid value")]
#[case::not_yaml("members: [", "")]
fn invalid_files_are_rejected(#[case] text: &str, #[case] expected: &str) {
    let error = parse_file(text).unwrap_err();
    assert!(error.starts_with(&format!("file of members F: {expected}")), "{error}");
}

/// The data directory stores shapes as JSON.
#[test]
fn shapes_round_trip_through_json() {
    for member in parse_file(EXAMPLE).unwrap() {
        let shape = member.shape.unwrap();
        let text: Value = serde_json::to_value(&shape).unwrap();
        assert_eq!(serde_json::from_value::<MemberShape>(text).unwrap(), shape);
    }
}
