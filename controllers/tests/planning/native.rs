//! Interpretation of built-in kinds: replicas and requirements, revision, retention, status, health, and
//! dependencies.

use crowsnest_interpreter::default::native::{NativeKind, find};
use crowsnest_interpreter::default::replicas;
use crowsnest_interpreter::default::status::MemberStatus;
use crowsnest_plan::gates::Gates;
use serde::Deserialize;
use serde_json::{Value, json};

use super::case_results;

fn native_kind(object: &Value) -> &'static NativeKind {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    find(text("apiVersion"), text("kind")).expect("a native kind")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ObjectCase {
    object: Value,
}

#[test]
fn replicas_and_requirements() {
    insta::assert_yaml_snapshot!(case_results(include_str!("fixtures/replicas.yaml"), |case: ObjectCase| {
        let requirements = replicas::requirements(&case.object, Gates::default());
        json!({"replicas": native_kind(&case.object).read_replicas(&case.object), "requirements": requirements})
    }));
}

#[test]
fn revision() {
    insta::assert_yaml_snapshot!(case_results(include_str!("fixtures/revision.yaml"), |case: ObjectCase| {
        let mut revised = case.object.clone();
        native_kind(&case.object).revise_replicas(&mut revised, 7);
        json!(json_patch::diff(&case.object, &revised))
    }));
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RetentionCase {
    desired: Value,
    observed: Value,
}

#[test]
fn retention() {
    insta::assert_yaml_snapshot!(case_results(include_str!("fixtures/retention.yaml"), |case: RetentionCase| {
        let mut retained = case.desired.clone();
        if let Some(retain) = native_kind(&case.desired).retain {
            retain(&mut retained, &case.observed);
        }
        json!(json_patch::diff(&case.desired, &retained))
    }));
}

#[test]
fn reflection() {
    insta::assert_yaml_snapshot!(case_results(include_str!("fixtures/reflection.yaml"), |case: ObjectCase| {
        json!(native_kind(&case.object).reflect(&case.object))
    }));
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AggregationCase {
    object: Value,
    members: Vec<Member>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Member {
    cluster: String,
    status: Option<Value>,
}

#[test]
fn aggregation() {
    insta::assert_yaml_snapshot!(case_results(include_str!("fixtures/aggregation.yaml"), |case: AggregationCase| {
        let reported: Vec<MemberStatus<'_>> = case
            .members
            .iter()
            .map(|member| MemberStatus { cluster: &member.cluster, status: member.status.as_ref() })
            .collect();
        json!(native_kind(&case.object).aggregate(&case.object, &reported, "2026-01-01T00:00:00Z"))
    }));
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HealthCase {
    object: Value,
    healthy: bool,
}

#[test]
fn health() {
    for (name, case) in super::cases::<HealthCase>(include_str!("fixtures/health.yaml")) {
        let health = native_kind(&case.object).health.expect("a rule");
        assert_eq!(health(&case.object), case.healthy, "{name}");
    }
}

#[test]
fn dependencies() {
    insta::assert_yaml_snapshot!(case_results(include_str!("fixtures/dependencies.yaml"), |case: ObjectCase| {
        json!(native_kind(&case.object).dependencies.map(|of| of(&case.object)))
    }));
}
