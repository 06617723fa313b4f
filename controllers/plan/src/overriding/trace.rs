//! Overrides with a trace: the differences of each rule, and the rule that failed.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::policy::Overriders;
use crowsnest_apimachinery::differences::find_differences;
use crowsnest_apimachinery::differences::{ComparisonKind, Difference};
use crowsnest_apimachinery::unstructured;
use serde::Serialize;
use serde_json::Value;

use super::{AppliedOverrides, AppliedRule, FailedOverride, OverridePolicy, apply_rule, matching_rules};

/// An applied rule and the differences that it made.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceStep {
    pub cluster_scoped: bool,
    pub policy: String,
    pub overriders: Overriders,
    pub differences: Vec<Difference>,
    /// Changes that no overrider names, with their reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// All applied rules in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OverrideTrace {
    pub steps: Vec<TraceStep>,
    /// The rule that failed. No further rules were applied.
    pub failed: Option<FailedOverride>,
}

impl OverrideTrace {
    /// The report for the Work's annotations.
    pub fn report(&self) -> AppliedOverrides {
        let rules = |cluster_scoped: bool| {
            let steps = self.steps.iter().filter(|step| step.cluster_scoped == cluster_scoped);
            steps
                .map(|step| AppliedRule { policy_name: step.policy.clone(), overriders: step.overriders.clone() })
                .collect()
        };
        AppliedOverrides { cluster: rules(true), namespaced: rules(false) }
    }
}

/// Applies overrides like [`super::apply`], and traces each rule.
pub fn apply(
    manifest: &mut Value,
    cluster: &Cluster,
    cluster_wide: &[OverridePolicy<'_>],
    namespaced: &[OverridePolicy<'_>],
) -> OverrideTrace {
    let mut trace = OverrideTrace::default();
    let namespaced = if unstructured::namespace(manifest).is_empty() { &[][..] } else { namespaced };
    for (cluster_scoped, policies) in [(true, cluster_wide), (false, namespaced)] {
        for (policy, overriders) in matching_rules(manifest, cluster, policies) {
            let before = manifest.clone();
            let notes = match apply_rule(manifest, policy, overriders, cluster_scoped) {
                Ok(notes) => notes,
                Err(failed) => {
                    trace.failed = Some(failed);
                    return trace;
                }
            };
            let (differences, _) = find_differences(&before, manifest, ComparisonKind::Versions);
            let (policy, overriders) = (policy.to_owned(), overriders.clone());
            trace.steps.push(TraceStep { cluster_scoped, policy, overriders, differences, notes });
        }
    }
    trace
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_api::policy::OverrideSpec;
    use serde_json::json;

    fn spec(operator: &str, path: &str) -> OverrideSpec {
        let rule = json!({"overriders": {"plaintext": [{"path": path, "operator": operator, "value": "x"}]}});
        serde_json::from_value(json!({"overrideRules": [rule]})).expect("a spec")
    }

    #[test]
    fn trace_has_the_differences_of_each_rule_and_the_result_of_apply() {
        let (wide, own) = (spec("add", "/data/wide"), spec("replace", "/data/own"));
        let policies = |spec, name| [OverridePolicy { name, spec }];
        let template = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "c", "namespace": "n"}, "data": {"own": "1"}});
        let (mut applied, mut traced) = (template.clone(), template);
        let cluster = Cluster::default();
        let report = super::super::apply(&mut applied, &cluster, &policies(&wide, "w"), &policies(&own, "o"));
        let trace = apply(&mut traced, &cluster, &policies(&wide, "w"), &policies(&own, "o"));
        assert_eq!((&applied, report.expect("applied")), (&traced, trace.report()));
        let paths: Vec<(&str, &str)> =
            trace.steps.iter().map(|step| (step.policy.as_str(), step.differences[0].path.as_str())).collect();
        assert_eq!(paths, [("w", "/data/wide"), ("o", "/data/own")]);
        let bad = spec("replace", "/nothing/here");
        let trace = apply(&mut traced, &cluster, &policies(&wide, "w"), &policies(&bad, "b"));
        assert_eq!((trace.steps.len(), trace.failed.expect("a failed rule").policy.as_str()), (1, "b"));
    }
}
