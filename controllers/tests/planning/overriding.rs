//! Overrides: patched fields, the effect of each overrider, and the selection of policies.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::policy::{FieldOverrider, FieldPatchOperation, OverrideSpec, Overriders, RuleWithCluster};
use crowsnest_plan::overriding::{self, OverridePolicy};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{answers, value_or_error};

/// A policy with one rule for all clusters.
fn of_one_rule(overriders: Overriders) -> OverrideSpec {
    OverrideSpec {
        override_rules: vec![RuleWithCluster { overriders, ..RuleWithCluster::default() }],
        ..OverrideSpec::default()
    }
}

fn overridden(object: &Value, overriders: Overriders) -> Result<Value, overriding::FailedOverride> {
    let mut changed = object.clone();
    let spec = of_one_rule(overriders);
    overriding::apply(&mut changed, &Cluster::default(), &[OverridePolicy { name: "o", spec: &spec }], &[])?;
    Ok(changed)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Field {
    text: String,
    #[serde(default)]
    json: Vec<FieldPatchOperation>,
    #[serde(default)]
    yaml: Vec<FieldPatchOperation>,
}

#[test]
fn fields() {
    insta::assert_yaml_snapshot!(answers(include_str!("fixtures/fields.yaml"), |field: Field| {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"f": field.text}});
        let field_path = "/data/f".to_owned();
        let field_overrider = vec![FieldOverrider { field_path, json: field.json, yaml: field.yaml }];
        let changed = overridden(&object, Overriders { field_overrider, ..Overriders::default() });
        value_or_error(changed.map(|mut object| object["data"]["f"].take()))
    }));
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Overridden {
    object: Value,
    overriders: Overriders,
}

#[test]
fn overriders() {
    insta::assert_yaml_snapshot!(answers(include_str!("fixtures/overriders.yaml"), |case: Overridden| {
        value_or_error(
            overridden(&case.object, case.overriders).map(|changed| json!(json_patch::diff(&case.object, &changed))),
        )
    }));
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Policies {
    object: Value,
    #[serde(default)]
    cluster: Cluster,
    #[serde(default)]
    cluster_wide: Vec<Policy>,
    #[serde(default)]
    namespaced: Vec<Policy>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Policy {
    name: String,
    spec: OverrideSpec,
}

fn borrowed(policies: &[Policy]) -> Vec<OverridePolicy<'_>> {
    policies.iter().map(|policy| OverridePolicy { name: &policy.name, spec: &policy.spec }).collect()
}

#[test]
fn policies() {
    insta::assert_yaml_snapshot!(answers(include_str!("fixtures/policies.yaml"), |case: Policies| {
        let mut changed = case.object.clone();
        let (cluster_wide, namespaced) = (borrowed(&case.cluster_wide), borrowed(&case.namespaced));
        value_or_error(overriding::apply(&mut changed, &case.cluster, &cluster_wide, &namespaced).map(|report| {
            let (cluster_wide, namespaced) = report.annotations();
            let change = json_patch::diff(&case.object, &changed);
            json!({"change": change, "clusterWide": cluster_wide, "namespaced": namespaced})
        }))
    }));
}
