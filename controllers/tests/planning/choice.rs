//! Choice of the policy that claims an unclaimed template.

use crowsnest_api::policy::PropagationSpec;
use crowsnest_plan::propagation::choice::{Choice, Policy, choose};
use serde::Deserialize;
use serde_json::{Value, json};

use super::cases;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChoiceCase {
    policies: Vec<PolicyCase>,
    expected: Option<String>,
}

/// A policy of the namespace `shop`, or a ClusterPropagationPolicy.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PolicyCase {
    name: String,
    #[serde(default)]
    cluster_wide: bool,
    #[serde(default)]
    terminating: bool,
    spec: Value,
}

#[test]
fn unclaimed_templates() {
    let template = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "nginx"}}});
    for (name, case) in cases::<ChoiceCase>(include_str!("fixtures/choice.yaml")) {
        let read_spec = |policy: &PolicyCase| -> PropagationSpec {
            let mut spec = policy.spec.clone();
            spec["placement"] = json!({});
            serde_json::from_value(spec).unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        let specs: Vec<PropagationSpec> = case.policies.iter().map(read_spec).collect();
        let policies: Vec<Policy<'_>> = case
            .policies
            .iter()
            .zip(&specs)
            .map(|(policy, spec)| Policy {
                namespace: if policy.cluster_wide { "" } else { "shop" },
                name: &policy.name,
                permanent_id: "",
                is_terminating: policy.terminating,
                spec,
            })
            .collect();
        let chosen = match choose(&template, &policies, true).0 {
            Choice::Follow(policy) => Some(policy.name.to_owned()),
            Choice::Unmatched => None,
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(chosen, case.expected, "{name}");
    }
}
