//! Data-driven cases: `fixtures/*.yaml` have objects of each kind, and the results of each rule.

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_apimachinery::unstructured;
use serde::Deserialize;
use serde_json::json;

use super::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fixture {
    /// `apiVersion kind`.
    kind: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    case: String,
    /// The template or member object.
    object: Value,
    /// The member object, if the template is needed as well.
    #[serde(default)]
    live: Value,
    /// Reported status per cluster.
    #[serde(default)]
    members: BTreeMap<String, Value>,
    /// Replicas that the scheduler assigned to the member.
    #[serde(default)]
    assigned: i32,
    /// True if quotas are considered.
    #[serde(default)]
    quotas: bool,
    /// Result of each rule. A string is an error message.
    expected: BTreeMap<String, Value>,
}

const FIXTURES: [&str; 10] = [
    include_str!("fixtures/argo.yaml"),
    include_str!("fixtures/flink.yaml"),
    include_str!("fixtures/flux.yaml"),
    include_str!("fixtures/kruise.yaml"),
    include_str!("fixtures/kubeflow.yaml"),
    include_str!("fixtures/kyverno.yaml"),
    include_str!("fixtures/ray.yaml"),
    include_str!("fixtures/spark.yaml"),
    include_str!("fixtures/training.yaml"),
    include_str!("fixtures/volcano.yaml"),
];

const NOW: &str = "2026-01-01T00:00:00Z";

fn value_or_error<T>(result: Result<T, RuleError>, to_value: impl FnOnce(T) -> Value) -> Value {
    result.map_or_else(|error| json!(error.to_string()), to_value)
}

fn dependency(dependency: &Dependency) -> Value {
    json!(format!("{} {}/{}", dependency.kind, dependency.namespace, dependency.name))
}

impl Case {
    fn object(&self, api_version: &str, kind: &str) -> Value {
        let mut object = self.object.clone();
        unstructured::set(&mut object, &["apiVersion"], json!(api_version));
        unstructured::set(&mut object, &["kind"], json!(kind));
        object
    }

    fn apply_rule(&self, row: &ThirdPartyKind, rule: &str) -> Option<Value> {
        let object = self.object(row.api_version, row.kind);
        let gates = Gates { resource_quota_estimate: self.quotas, ..Gates::default() };
        let change = |changed: Value| json!(json_patch::diff(&object, &changed));
        let result = match rule {
            "replicas" => value_or_error(row.replicas?(&object, gates), |(replicas, _)| json!(replicas)),
            "requirements" => value_or_error(row.replicas?(&object, gates), |(_, requirements)| json!(requirements)),
            "components" => value_or_error(row.components?(&object, gates), |components| json!(components)),
            "revised" => {
                let mut revised = object.clone();
                row.revise?(&mut revised, self.assigned);
                change(revised)
            }
            "retained" => {
                let mut retained = object.clone();
                row.retain?(&mut retained, &self.live);
                change(retained)
            }
            "reflected" => row.reflect_status(&object)?,
            "aggregated" => {
                let is_reported = |status: &Value| !status.is_null();
                let members: Vec<MemberStatus<'_>> = self
                    .members
                    .iter()
                    .map(|(cluster, value)| MemberStatus {
                        cluster,
                        status: Some(value).filter(|value| is_reported(value)),
                    })
                    .collect();
                value_or_error(row.aggregate_status(&object, &members, NOW)?, |aggregated| aggregated)
            }
            "healthy" => value_or_error(row.health?(&object), |healthy| json!(healthy)),
            "dependencies" => {
                value_or_error(row.sorted_dependencies(&object)?, |found| found.iter().map(dependency).collect())
            }
            other => panic!("{}: there is no rule {other}", self.case),
        };
        Some(result)
    }
}

fn fixtures() -> Vec<(&'static ThirdPartyKind, Vec<Case>)> {
    let read = |text| serde_saphyr::from_str::<Vec<Fixture>>(text).expect("fixtures");
    let row = |fixture: Fixture| {
        let (api_version, kind) = fixture.kind.split_once(' ').expect("a version and a kind");
        (find(api_version, kind).unwrap_or_else(|| panic!("no row for {}", fixture.kind)), fixture.cases)
    };
    FIXTURES.into_iter().flat_map(read).map(row).collect()
}

#[test]
fn rules_return_the_expected_results() {
    let mut wrong = Vec::new();
    for (row, cases) in fixtures() {
        for case in &cases {
            for (rule, expected) in &case.expected {
                let result = case.apply_rule(row, rule);
                if result.as_ref() != Some(expected) {
                    let result = result.unwrap_or_default();
                    wrong.push(format!(
                        "{}, {}, {rule}:\n  expected {expected}\n  got    {result}",
                        row.kind, case.case
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn each_rule_has_a_case() {
    let mut tested: BTreeSet<(&str, &str, String)> = BTreeSet::new();
    for (row, cases) in fixtures() {
        let rules = cases.into_iter().flat_map(|case| case.expected.into_keys());
        tested.extend(rules.map(|rule| (row.api_version, row.kind, rule)));
    }
    for row in FAMILIES.into_iter().flatten() {
        let rules = [
            ("replicas", row.replicas.is_some()),
            ("requirements", row.replicas.is_some()),
            ("components", row.components.is_some()),
            ("revised", row.revise.is_some()),
            ("retained", row.retain.is_some()),
            ("reflected", row.reflect.is_some()),
            ("aggregated", row.aggregate.is_some()),
            ("healthy", row.health.is_some()),
            ("dependencies", row.dependencies.is_some()),
        ];
        for (rule, _) in rules.into_iter().filter(|(_, exists)| *exists) {
            assert!(tested.contains(&(row.api_version, row.kind, rule.to_owned())), "{}: no case for {rule}", row.kind);
        }
    }
}

#[test]
fn kinds_are_those_of_karmada() {
    let kinds: Vec<String> =
        FAMILIES.into_iter().flatten().map(|row| format!("{} {}", row.api_version, row.kind)).collect();
    assert_eq!(kinds.len(), 27);
    assert_eq!(kinds.iter().collect::<BTreeSet<_>>().len(), 27);
    assert!(find("apps.kruise.io/v1alpha1", "StatefulSet").is_none());
    assert!(find("batch/v1", "Job").is_none());
}
