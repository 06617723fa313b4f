//! ClusterTaintPolicies: taints that are added and removed by conditions of a cluster (Karmada's
//! `cluster-taint-policy-controller`).

use crowsnest_api::cluster::Cluster;
use crowsnest_api::policy::{ClusterTaintPolicy, MatchCondition, MatchConditionOperator};
use crowsnest_apimachinery::taints::NO_EXECUTE;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use super::conditions;
use super::selector::cluster_matches;

/// Taints of a cluster after applying all policies, oldest first, each on the result of the previous one. While
/// readiness is doubted, no NoExecute taint is added.
pub fn taints(cluster: &Cluster, policies: &[ClusterTaintPolicy], is_doubted: bool, now: Timestamp) -> Vec<Taint> {
    let mut sorted: Vec<&ClusterTaintPolicy> = policies.iter().collect();
    sorted
        .sort_by_key(|policy| (policy.metadata.creation_timestamp.as_ref().map(|time| time.0), &policy.metadata.name));
    let mut cluster = cluster.clone();
    for policy in sorted {
        let spec = &policy.spec;
        if spec.target_clusters.as_ref().is_some_and(|affinity| !cluster_matches(&cluster, affinity)) {
            continue;
        }
        let is_same = |taint: &Taint, policy_taint: &crowsnest_api::policy::Taint| {
            taint.key == policy_taint.key && taint.effect == policy_taint.effect
        };
        if matches(&cluster.status.conditions, &spec.add_on_conditions) {
            for policy_taint in spec.taints.iter().filter(|taint| !is_doubted || taint.effect != NO_EXECUTE) {
                if !cluster.spec.taints.iter().any(|taint| is_same(taint, policy_taint)) {
                    cluster.spec.taints.push(Taint {
                        key: policy_taint.key.clone(),
                        effect: policy_taint.effect.clone(),
                        value: (!policy_taint.value.is_empty()).then(|| policy_taint.value.clone()),
                        time_added: Some(Time(now)),
                    });
                }
            }
        }
        if matches(&cluster.status.conditions, &spec.remove_on_conditions) {
            cluster.spec.taints.retain(|taint| !spec.taints.iter().any(|policy_taint| is_same(taint, policy_taint)));
        }
    }
    cluster.spec.taints
}

/// True if all match conditions are met. False for an empty list, a condition that the cluster does not have, or an
/// unknown operator.
fn matches(conditions: &[Condition], match_conditions: &[MatchCondition]) -> bool {
    let is_met = |match_condition: &MatchCondition| {
        let Some(condition) = conditions::find(conditions, &match_condition.condition_type) else { return false };
        let is_listed = match_condition.status_values.contains(&condition.status);
        match match_condition.operator {
            MatchConditionOperator::In => is_listed,
            MatchConditionOperator::NotIn => !is_listed,
            MatchConditionOperator::Other(_) => false,
        }
    };
    !match_conditions.is_empty() && match_conditions.iter().all(is_met)
}

/// Message of the event for changed taints, in Karmada's format.
pub fn message(taints: &[Taint]) -> String {
    if taints.is_empty() {
        return "cluster now does not have taints".to_owned();
    }
    let descriptions = taints.iter().map(|taint| match taint.value.as_deref().unwrap_or_default() {
        "" => format!("{{Key:{},Effect:{}}}", taint.key, taint.effect),
        value => format!("{{Key:{},Value:{value},Effect:{}}}", taint.key, taint.effect),
    });
    format!("cluster now has taints([{}])", descriptions.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn policy(name: &str, age: &str, spec: Value) -> ClusterTaintPolicy {
        let metadata = json!({"name": name, "creationTimestamp": format!("2026-01-01T00:00:{age}Z")});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a policy")
    }

    fn ready_condition(operator: &str, status: &str) -> Value {
        json!([{"conditionType": "Ready", "operator": operator, "statusValues": [status]}])
    }

    fn taint(key: &str) -> Value {
        json!([{"key": key, "effect": "NoSchedule"}])
    }

    #[rstest]
    #[case::added(vec![json!({"addOnConditions": ready_condition("In", "True"), "taints": taint("new")})], vec!["own", "new"])]
    #[case::present_already(vec![json!({"addOnConditions": ready_condition("In", "True"), "taints": taint("own")})], vec!["own"])]
    #[case::removed(vec![json!({"removeOnConditions": ready_condition("NotIn", "False"), "taints": taint("own")})], vec![])]
    #[case::added_and_removed(
        vec![json!({"addOnConditions": ready_condition("In", "True"), "removeOnConditions": ready_condition("In", "True"), "taints": taint("new")})],
        vec!["own"]
    )]
    #[case::later_policy_wins(
        vec![
            json!({"removeOnConditions": ready_condition("In", "True"), "taints": taint("new")}),
            json!({"addOnConditions": ready_condition("In", "True"), "taints": taint("new")}),
        ],
        vec!["own", "new"]
    )]
    #[case::another_cluster(
        vec![json!({
            "targetClusters": {"clusterNames": ["m2"]}, "addOnConditions": ready_condition("In", "True"), "taints": taint("new"),
        })],
        vec!["own"]
    )]
    #[case::without_match_condition(vec![json!({"taints": taint("new")})], vec!["own"])]
    #[case::missing_condition(
        vec![json!({
            "addOnConditions": [{"conditionType": "Other", "operator": "NotIn", "statusValues": ["True"]}],
            "taints": taint("new"),
        })],
        vec!["own"]
    )]
    #[case::unknown_operator(vec![json!({"addOnConditions": ready_condition("Like", "True"), "taints": taint("new")})], vec!["own"])]
    fn taints_follow_conditions(#[case] specs: Vec<Value>, #[case] expected: Vec<&str>) {
        let cluster = json!({
            "metadata": {"name": "m1"},
            "spec": {"syncMode": "Push", "taints": [{"key": "own", "effect": "NoSchedule"}]},
            "status": {"conditions": [{
                "type": "Ready", "status": "True", "reason": "", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        });
        let cluster: Cluster = serde_json::from_value(cluster).expect("a cluster");
        // Policies are sorted by age, so their order in the list does not matter.
        let numbered = specs.into_iter().enumerate();
        let mut policies: Vec<_> =
            numbered.map(|(age, spec)| policy(&format!("p{age}"), &format!("{age:02}"), spec)).collect();
        policies.reverse();
        let taints = taints(&cluster, &policies, false, Timestamp::UNIX_EPOCH);
        assert_eq!(taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(), expected);
    }

    #[rstest]
    #[case(false, &["stop", "go"])]
    #[case(true, &["stop"])]
    fn no_execute_taints_are_not_added_while_readiness_is_doubted(#[case] is_doubted: bool, #[case] expected: &[&str]) {
        let cluster = json!({"metadata": {"name": "m1"}, "spec": {"syncMode": "Push"}, "status": {"conditions": [{
            "type": "Ready", "status": "False", "reason": "", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}});
        let cluster: Cluster = serde_json::from_value(cluster).expect("a cluster");
        let added = json!([{"key": "stop", "effect": "NoSchedule"}, {"key": "go", "effect": "NoExecute"}]);
        let policy = policy("p", "00", json!({"addOnConditions": ready_condition("In", "False"), "taints": added}));
        let taints = taints(&cluster, &[policy], is_doubted, Timestamp::UNIX_EPOCH);
        assert_eq!(taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(), expected);
    }

    #[rstest]
    #[case(json!([]), "cluster now does not have taints")]
    #[case(
        json!([{"key": "a", "effect": "NoSchedule"}, {"key": "b", "value": "v", "effect": "NoExecute"}]),
        "cluster now has taints([{Key:a,Effect:NoSchedule},{Key:b,Value:v,Effect:NoExecute}])"
    )]
    fn event_message_uses_karmadas_wording(#[case] taints: Value, #[case] expected: &str) {
        assert_eq!(message(&serde_json::from_value::<Vec<Taint>>(taints).expect("taints")), expected);
    }
}
