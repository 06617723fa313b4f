//! Pod failure policies and success policies of Jobs.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{PodFailurePolicy, PodFailurePolicyRule, SuccessPolicy};

use crate::member::pod::{ContainerPhase, ContainerView, PodState};

use super::indexes::parse_indexes;

/// Effect of a failed pod on its Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Counts towards the backoff limit.
    Counts,
    /// Is replaced without being counted.
    Ignored,
    /// Counts, and fails the pod's index permanently.
    FailsIndex,
    /// Counts, and fails the Job with this message.
    FailsJob(String),
}

/// Evaluates a failed pod; the first matching rule decides.
pub fn failure_of(policy: Option<&PodFailurePolicy>, pod: &PodState) -> Failure {
    let rules = policy.map(|policy| policy.rules.as_slice()).unwrap_or_default();
    for (index, rule) in rules.iter().enumerate() {
        let Some(cause) = cause(rule, pod) else { continue };
        return match rule.action.as_str() {
            "Ignore" => Failure::Ignored,
            "FailIndex" => Failure::FailsIndex,
            "FailJob" => Failure::FailsJob(format!("{cause} matching FailJob rule at index {index}")),
            _ => Failure::Counts,
        };
    }
    Failure::Counts
}

/// The container or condition that a rule matches, with Kubernetes' message.
fn cause(rule: &PodFailurePolicyRule, pod: &PodState) -> Option<String> {
    let key = &pod.key;
    if let Some(wanted) = &rule.on_exit_codes {
        let of = |view: &ContainerView| match view.doing {
            ContainerPhase::Terminated { exit_code, .. } if exit_code != 0 => {
                let named = wanted.container_name.as_ref().is_none_or(|name| **name == *view.name);
                let listed = wanted.values.contains(&exit_code);
                let matches = if wanted.operator == "NotIn" { !listed } else { listed };
                (named && matches)
                    .then(|| format!("Container {} for pod {key} failed with exit code {exit_code}", view.name))
            }
            _ => None,
        };
        return pod.containers.iter().chain(&pod.init).find_map(of);
    }
    let wanted = rule.on_pod_conditions.as_deref().unwrap_or_default();
    let matches = |kind: &str, status: &str| {
        wanted.iter().any(|pattern| pattern.type_ == kind && pattern.status.as_deref().unwrap_or("True") == status)
    };
    let found = pod.foreign_conditions.iter().find(|condition| matches(&condition.type_, &condition.status))?;
    Some(format!("Pod {key} has condition {}", found.type_))
}

/// Message of the first rule in a success policy that the succeeded indexes meet.
pub fn meets(policy: Option<&SuccessPolicy>, completions: i32, succeeded: &BTreeSet<i32>) -> Option<String> {
    if succeeded.is_empty() {
        return None;
    }
    let enough = |count: Option<i32>, have: usize| {
        count.is_some_and(|count| usize::try_from(count).is_ok_and(|count| have >= count))
    };
    let rules = policy.map(|policy| policy.rules.as_slice()).unwrap_or_default();
    let met = rules.iter().position(|rule| match &rule.succeeded_indexes {
        None => enough(rule.succeeded_count, succeeded.len()),
        Some(indexes) => {
            let wanted: BTreeSet<i32> =
                parse_indexes(indexes).into_iter().filter(|index| *index < completions).collect();
            let have = wanted.intersection(succeeded).count();
            !wanted.is_empty() && (have == wanted.len() || enough(rule.succeeded_count, have))
        }
    });
    met.map(|index| format!("Matched rules at index {index}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::member::interner::Interner;

    #[rstest::rstest]
    #[case(json!([]), 1, Failure::Counts)]
    #[case(json!([{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}}]), 42, Failure::Ignored)]
    #[case(json!([{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}}]), 1, Failure::Counts)]
    #[case(json!([{"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [42]}}]), 1, Failure::FailsIndex)]
    #[case(json!([{"action": "Ignore", "onExitCodes": {"containerName": "other", "operator": "In", "values": [1]}},
                  {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]), 1,
        Failure::FailsJob("Container c for pod ns/p failed with exit code 1 matching FailJob rule at index 1".into()))]
    #[case(json!([{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]), 1,
        Failure::FailsJob("Pod ns/p has condition DisruptionTarget matching FailJob rule at index 0".into()))]
    #[case(json!([{"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]), 1, Failure::Counts)]
    fn failure_policy_rules_are_evaluated(#[case] rules: Value, #[case] exit_code: i32, #[case] expected: Failure) {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "ns"},
            "spec": {"containers": [{"name": "c"}]},
            "status": {"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True"}],
                "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"terminated": {"exitCode": exit_code}}}]},
        });
        let pod = Interner::default().pod(serde_json::from_value(pod).unwrap());
        let policy = serde_json::from_value(json!({"rules": rules})).unwrap();
        assert_eq!(failure_of(Some(&policy), &pod), expected);
    }

    #[rstest::rstest]
    #[case(json!([{"succeededCount": 2}]), "0,3", Some(0))]
    #[case(json!([{"succeededCount": 3}]), "0,3", None)]
    #[case(json!([{"succeededIndexes": "0"}]), "0", Some(0))]
    #[case(json!([{"succeededIndexes": "0-1"}]), "0", None)]
    #[case(json!([{"succeededIndexes": "1"}, {"succeededIndexes": "0-4", "succeededCount": 2}]), "0,3", Some(1))]
    #[case(json!([{"succeededCount": 0}]), "", None)]
    fn success_policy_rules_are_evaluated(#[case] rules: Value, #[case] succeeded: &str, #[case] rule: Option<usize>) {
        let policy = serde_json::from_value(json!({"rules": rules})).unwrap();
        let expected = rule.map(|index| format!("Matched rules at index {index}"));
        assert_eq!(meets(Some(&policy), 5, &parse_indexes(succeeded)), expected);
    }
}
