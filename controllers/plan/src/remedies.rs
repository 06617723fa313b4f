//! Remedies: actions that follow from the conditions of a cluster (Karmada's `remedy-controller`).

use std::collections::BTreeSet;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::remedy::{ClusterConditionOperator, DecisionMatch, Remedy};

use super::conditions;

/// Actions of all remedies that apply to a cluster, sorted and without duplicates.
pub fn actions(cluster: &Cluster, remedies: &[Remedy]) -> Vec<String> {
    let applying =
        remedies.iter().filter(|remedy| selects_cluster(cluster, remedy) && matches_conditions(cluster, remedy));
    let actions: BTreeSet<&str> =
        applying.flat_map(|remedy| remedy.spec.actions.iter().map(|action| action.as_str())).collect();
    actions.into_iter().map(str::to_owned).collect()
}

/// True if a remedy selects a cluster: all clusters, or those it names.
pub fn selects_cluster(cluster: &Cluster, remedy: &Remedy) -> bool {
    let name = cluster.metadata.name.as_deref().unwrap_or_default();
    let affinity = remedy.spec.cluster_affinity.as_ref();
    affinity.is_none_or(|affinity| affinity.cluster_names.iter().any(|named| named == name))
}

/// True if a remedy's requirements are met. A remedy without `decisionMatches` always applies, one with an empty list
/// never; otherwise a condition of the cluster must match one of the list.
fn matches_conditions(cluster: &Cluster, remedy: &Remedy) -> bool {
    let is_met = |decision: &DecisionMatch| {
        let Some(requirement) = &decision.cluster_condition_match else { return false };
        let Some(condition) = conditions::find(&cluster.status.conditions, &requirement.condition_type) else {
            return false;
        };
        match requirement.operator {
            ClusterConditionOperator::Equal => condition.status == requirement.condition_status,
            ClusterConditionOperator::NotEqual => condition.status != requirement.condition_status,
            ClusterConditionOperator::Other(_) => false,
        }
    };
    remedy.spec.decision_matches.as_ref().is_none_or(|matches| matches.iter().any(is_met))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn when(operator: &str, status: &str) -> Value {
        json!([{"clusterConditionMatch": {
            "conditionType": "ServiceDomainNameResolutionReady", "operator": operator, "conditionStatus": status,
        }}])
    }

    #[rstest]
    #[case::always(json!({"actions": ["TrafficControl"]}), vec!["TrafficControl"])]
    #[case::never(json!({"actions": ["TrafficControl"], "decisionMatches": []}), vec![])]
    #[case::equal(json!({"actions": ["TrafficControl"], "decisionMatches": when("Equal", "False")}), vec!["TrafficControl"])]
    #[case::not_equal(json!({"actions": ["TrafficControl"], "decisionMatches": when("NotEqual", "False")}), vec![])]
    #[case::missing_condition(
        json!({"actions": ["TrafficControl"], "decisionMatches": [{"clusterConditionMatch": {
            "conditionType": "Other", "operator": "NotEqual", "conditionStatus": "True",
        }}]}),
        vec![]
    )]
    #[case::named_cluster(json!({"actions": ["B", "A", "B"], "clusterAffinity": {"clusterNames": ["m1"]}}), vec!["A", "B"])]
    #[case::other_cluster_named(json!({"actions": ["A"], "clusterAffinity": {"clusterNames": ["m2"]}}), vec![])]
    #[case::no_cluster_named(json!({"actions": ["A"], "clusterAffinity": {}}), vec![])]
    fn remedies_apply(#[case] spec: Value, #[case] expected: Vec<&str>) {
        let cluster = json!({
            "metadata": {"name": "m1"}, "spec": {"syncMode": "Push"},
            "status": {"conditions": [{
                "type": "ServiceDomainNameResolutionReady", "status": "False", "reason": "", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        });
        let cluster: Cluster = serde_json::from_value(cluster).expect("a cluster");
        let remedy: Remedy =
            serde_json::from_value(json!({"metadata": {"name": "r"}, "spec": spec})).expect("a remedy");
        assert_eq!(actions(&cluster, &[remedy]), expected);
    }
}
