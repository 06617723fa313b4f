//! Overrides with a trace: the differences of each rule, and the rule that failed.

use crowsnest_api::cluster::Cluster;
use crowsnest_apimachinery::differences::find_differences;
use crowsnest_apimachinery::differences::{ComparisonKind, Difference};
use crowsnest_apimachinery::unstructured;
use serde_json::Value;

use super::{AppliedOverrides, AppliedRule, FailedOverride, OverridePolicy, apply_rule, matching_rules};

/// An applied rule and the differences that it made.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceStep {
    /// True if the policy is a ClusterOverridePolicy.
    pub cluster_scoped: bool,
    pub rule: AppliedRule,
    pub differences: Vec<Difference>,
    /// Changes that no overrider requests, with their reasons.
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
            steps.map(|step| step.rule.clone()).collect()
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
            let rule = AppliedRule { policy_name: policy.to_owned(), overriders: overriders.clone() };
            trace.steps.push(TraceStep { cluster_scoped, rule, differences, notes });
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
        let (cluster_scoped_spec, namespaced_spec) = (spec("add", "/data/wide"), spec("replace", "/data/own"));
        let policies = |spec, name| [OverridePolicy { name, spec }];
        let template = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "c", "namespace": "n"}, "data": {"own": "1"}});
        let (mut applied, mut traced) = (template.clone(), template);
        let cluster = Cluster::default();
        let report = super::super::apply(
            &mut applied,
            &cluster,
            &policies(&cluster_scoped_spec, "w"),
            &policies(&namespaced_spec, "o"),
        );
        let trace =
            apply(&mut traced, &cluster, &policies(&cluster_scoped_spec, "w"), &policies(&namespaced_spec, "o"));
        assert_eq!((&applied, report.expect("applied")), (&traced, trace.report()));
        let paths: Vec<(&str, &str)> = trace
            .steps
            .iter()
            .map(|step| (step.rule.policy_name.as_str(), step.differences[0].path.as_str()))
            .collect();
        assert_eq!(paths, [("w", "/data/wide"), ("o", "/data/own")]);
        let bad = spec("replace", "/nothing/here");
        let trace = apply(&mut traced, &cluster, &policies(&cluster_scoped_spec, "w"), &policies(&bad, "b"));
        assert_eq!((trace.steps.len(), trace.failed.expect("a failed rule").policy.as_str()), (1, "b"));
    }
}
