//! Pod failure policies and success policies of Jobs.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{PodFailurePolicy, PodFailurePolicyRule, SuccessPolicy};

use crate::member::pod::{ContainerPhase, ContainerView, PodState};

use super::indexes::parse_indexes;

/// Action of a pod failure policy, with the message of `FailJob`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureAction {
    /// The failure counts towards the backoff limit.
    Count,
    /// The pod is replaced without being counted.
    Ignore,
    /// The failure counts and fails the pod's index permanently.
    FailIndex,
    /// The failure counts and fails the Job with this message.
    FailJob(String),
}

/// Determines the action for a failed pod by the first matching rule; `Count` if none matches.
pub fn classify_failure(policy: Option<&PodFailurePolicy>, pod: &PodState) -> FailureAction {
    let rules = policy.map(|policy| policy.rules.as_slice()).unwrap_or_default();
    for (index, rule) in rules.iter().enumerate() {
        let Some(cause) = match_rule(rule, pod) else { continue };
        return match rule.action.as_str() {
            "Ignore" => FailureAction::Ignore,
            "FailIndex" => FailureAction::FailIndex,
            "FailJob" => FailureAction::FailJob(format!("{cause} matching FailJob rule at index {index}")),
            _ => FailureAction::Count,
        };
    }
    FailureAction::Count
}

/// Returns Kubernetes' message about the container or condition that a rule matches; `None` if it does not match.
fn match_rule(rule: &PodFailurePolicyRule, pod: &PodState) -> Option<String> {
    let key = &pod.key;
    if let Some(requirement) = &rule.on_exit_codes {
        let match_container = |view: &ContainerView| match view.state {
            ContainerPhase::Terminated { exit_code, .. } if exit_code != 0 => {
                let is_named = requirement.container_name.as_ref().is_none_or(|name| **name == *view.name);
                let is_listed = requirement.values.contains(&exit_code);
                let matches = if requirement.operator == "NotIn" { !is_listed } else { is_listed };
                (is_named && matches)
                    .then(|| format!("Container {} for pod {key} failed with exit code {exit_code}", view.name))
            }
            _ => None,
        };
        return pod.containers.iter().chain(&pod.init_containers).find_map(match_container);
    }
    let patterns = rule.on_pod_conditions.as_deref().unwrap_or_default();
    let matches = |kind: &str, status: &str| {
        patterns.iter().any(|pattern| pattern.type_ == kind && pattern.status.as_deref().unwrap_or("True") == status)
    };
    let condition = pod.foreign_conditions.iter().find(|condition| matches(&condition.type_, &condition.status))?;
    Some(format!("Pod {key} has condition {}", condition.type_))
}

/// Returns Kubernetes' message about the first rule of a success policy that the succeeded indexes satisfy; `None` if
/// they satisfy none.
pub fn match_success_policy(
    policy: Option<&SuccessPolicy>,
    completions: i32,
    succeeded: &BTreeSet<i32>,
) -> Option<String> {
    if succeeded.is_empty() {
        return None;
    }
    let is_reached = |count: Option<i32>, succeeded: usize| {
        count.is_some_and(|count| usize::try_from(count).is_ok_and(|count| succeeded >= count))
    };
    let rules = policy.map(|policy| policy.rules.as_slice()).unwrap_or_default();
    let rule_index = rules.iter().position(|rule| match &rule.succeeded_indexes {
        None => is_reached(rule.succeeded_count, succeeded.len()),
        Some(indexes) => {
            let required: BTreeSet<i32> =
                parse_indexes(indexes).into_iter().filter(|index| *index < completions).collect();
            let count = required.intersection(succeeded).count();
            !required.is_empty() && (count == required.len() || is_reached(rule.succeeded_count, count))
        }
    });
    rule_index.map(|index| format!("Matched rules at index {index}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::member::interner::Interner;

    #[rstest::rstest]
    #[case(json!([]), 1, FailureAction::Count)]
    #[case(json!([{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}}]), 42, FailureAction::Ignore)]
    #[case(json!([{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}}]), 1, FailureAction::Count)]
    #[case(json!([{"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [42]}}]), 1, FailureAction::FailIndex)]
    #[case(json!([{"action": "Ignore", "onExitCodes": {"containerName": "other", "operator": "In", "values": [1]}},
                  {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]), 1,
        FailureAction::FailJob("Container c for pod ns/p failed with exit code 1 matching FailJob rule at index 1".into()))]
    #[case(json!([{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]), 1,
        FailureAction::FailJob("Pod ns/p has condition DisruptionTarget matching FailJob rule at index 0".into()))]
    #[case(json!([{"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]), 1, FailureAction::Count)]
    fn the_first_matching_failure_rule_decides(
        #[case] rules: Value,
        #[case] exit_code: i32,
        #[case] expected: FailureAction,
    ) {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "ns"},
            "spec": {"containers": [{"name": "c"}]},
            "status": {"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True"}],
                "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"terminated": {"exitCode": exit_code}}}]},
        });
        let pod = Interner::default().intern_pod(serde_json::from_value(pod).unwrap());
        let policy = serde_json::from_value(json!({"rules": rules})).unwrap();
        assert_eq!(classify_failure(Some(&policy), &pod), expected);
    }

    #[rstest::rstest]
    #[case(json!([{"succeededCount": 2}]), "0,3", Some(0))]
    #[case(json!([{"succeededCount": 3}]), "0,3", None)]
    #[case(json!([{"succeededIndexes": "0"}]), "0", Some(0))]
    #[case(json!([{"succeededIndexes": "0-1"}]), "0", None)]
    #[case(json!([{"succeededIndexes": "1"}, {"succeededIndexes": "0-4", "succeededCount": 2}]), "0,3", Some(1))]
    #[case(json!([{"succeededCount": 0}]), "", None)]
    fn the_first_satisfied_success_rule_is_reported(
        #[case] rules: Value,
        #[case] succeeded: &str,
        #[case] rule: Option<usize>,
    ) {
        let policy = serde_json::from_value(json!({"rules": rules})).unwrap();
        let expected = rule.map(|index| format!("Matched rules at index {index}"));
        assert_eq!(match_success_policy(Some(&policy), 5, &parse_indexes(succeeded)), expected);
    }
}
