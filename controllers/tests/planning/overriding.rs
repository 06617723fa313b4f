//! Overrides: patched fields, the effect of each overrider, and the selection of policies.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::policy::{FieldOverrider, FieldPatchOperation, OverrideSpec, Overriders, RuleWithCluster};
use crowsnest_plan::overriding::{self, OverridePolicy};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{case_results, value_or_error};

/// A policy with one rule for all clusters.
fn spec_with_rule(overriders: Overriders) -> OverrideSpec {
    OverrideSpec {
        override_rules: vec![RuleWithCluster { overriders, ..RuleWithCluster::default() }],
        ..OverrideSpec::default()
    }
}

fn apply_overriders(object: &Value, overriders: Overriders) -> Result<Value, overriding::FailedOverride> {
    let mut changed = object.clone();
    let spec = spec_with_rule(overriders);
    overriding::apply(&mut changed, &Cluster::default(), &[OverridePolicy { name: "o", spec: &spec }], &[])?;
    Ok(changed)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FieldCase {
    text: String,
    #[serde(default)]
    json: Vec<FieldPatchOperation>,
    #[serde(default)]
    yaml: Vec<FieldPatchOperation>,
}

#[test]
fn fields() {
    insta::assert_yaml_snapshot!(case_results(include_str!("fixtures/fields.yaml"), |field: FieldCase| {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"f": field.text}});
        let field_path = "/data/f".to_owned();
        let field_overrider = vec![FieldOverrider { field_path, json: field.json, yaml: field.yaml }];
        let changed = apply_overriders(&object, Overriders { field_overrider, ..Overriders::default() });
        value_or_error(changed.map(|mut object| object["data"]["f"].take()))
    }));
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OverriderCase {
    object: Value,
    overriders: Overriders,
}

#[test]
fn overriders() {
    insta::assert_yaml_snapshot!(case_results(include_str!("fixtures/overriders.yaml"), |case: OverriderCase| {
        value_or_error(
            apply_overriders(&case.object, case.overriders)
                .map(|changed| json!(json_patch::diff(&case.object, &changed))),
        )
    }));
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PolicyCase {
    object: Value,
    #[serde(default)]
    cluster: Cluster,
    #[serde(default)]
    cluster_wide: Vec<NamedSpec>,
    #[serde(default)]
    namespaced: Vec<NamedSpec>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedSpec {
    name: String,
    spec: OverrideSpec,
}

fn to_policies(policies: &[NamedSpec]) -> Vec<OverridePolicy<'_>> {
    policies.iter().map(|policy| OverridePolicy { name: &policy.name, spec: &policy.spec }).collect()
}

#[test]
fn policies() {
    insta::assert_yaml_snapshot!(case_results(include_str!("fixtures/policies.yaml"), |case: PolicyCase| {
        let mut changed = case.object.clone();
        let (cluster_wide, namespaced) = (to_policies(&case.cluster_wide), to_policies(&case.namespaced));
        value_or_error(overriding::apply(&mut changed, &case.cluster, &cluster_wide, &namespaced).map(|report| {
            let (cluster_wide, namespaced) = report.annotations();
            let change = json_patch::diff(&case.object, &changed);
            json!({"change": change, "clusterWide": cluster_wide, "namespaced": namespaced})
        }))
    }));
}
