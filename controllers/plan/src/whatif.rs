//! Plans of proposed changes: an object as it would be stored, a Cluster that is lost, the policy that a template would
//! follow, and planned Works.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::condition;
use crowsnest_api::policy::ClusterTaintPolicy;
use crowsnest_api::work::ObjectReference;
use crowsnest_apimachinery::differences::find_differences;
use crowsnest_apimachinery::differences::{ComparisonKind, Difference};
use crowsnest_apimachinery::unstructured;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};

use super::clusters::{self, Health};
use super::conditions;
use super::health::lease;
use super::propagation::choice::ConsideredPolicy;
use super::propagation::{Choice, Claim, Policy, choose, claim};
use super::report::{Change, ObjectPlan};
use super::taint_policies;

/// Placeholder for ids that are generated on creation.
pub const UNKNOWN_ID: &str = "known-after-apply";

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The result of `kubectl apply`: merges the manifest into the live object, and removes fields that were applied last
/// time and are absent now.
pub fn simulate_apply(live: Option<&Value>, manifest: &Value) -> Value {
    let mut manifest = manifest.clone();
    unstructured::remove(&mut manifest, &["status"]);
    let Some(live) = live else { return manifest };
    let mut merged = live.clone();
    // The last-applied configuration always contains annotations, possibly empty ones.
    if unstructured::at(&manifest, &["metadata", "annotations"]).is_none() {
        unstructured::set(&mut manifest, &["metadata", "annotations"], Value::Object(Map::new()));
    }
    let last = unstructured::annotation(live, LAST_APPLIED).and_then(|text| serde_json::from_str::<Value>(text).ok());
    if let Some(removal_patch) = last.and_then(|last| removal_patch(&last, &manifest)) {
        json_patch::merge(&mut merged, &removal_patch);
    }
    // The annotation is written by the next apply.
    unstructured::remove(&mut manifest, &["metadata", "annotations", LAST_APPLIED]);
    json_patch::merge(&mut merged, &manifest);
    merged
}

/// Merge patch that removes the fields of `last` that the manifest lacks.
fn removal_patch(last: &Value, manifest: &Value) -> Option<Value> {
    let (last, manifest) = (last.as_object()?, manifest.as_object()?);
    let mut patch = Map::new();
    for (key, value) in last {
        match manifest.get(key) {
            None => {
                patch.insert(key.clone(), Value::Null);
            }
            Some(current) => {
                if let Some(nested) = removal_patch(value, current) {
                    patch.insert(key.clone(), nested);
                }
            }
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Planned change of an object from `before` to `after`. `None` is an object that does not exist.
pub fn plan_object(before: Option<&Value>, after: Option<&Value>) -> ObjectPlan {
    let differences: Vec<Difference> = match (before, after) {
        (None, _) | (_, None) => Vec::new(),
        (Some(before), Some(after)) => {
            let (all, _) = find_differences(before, after, ComparisonKind::Versions);
            all.into_iter().filter(|difference| difference.path != "/metadata/generation").collect()
        }
    };
    let change = Change::between(before, after, |_, _| differences.is_empty());
    ObjectPlan {
        reference: ObjectReference::from_object(after.or(before).unwrap_or(&Value::Null)),
        change,
        differences,
    }
}

/// A Cluster as the controllers would leave it after it became unreachable: not ready, with the taints of the cluster
/// controller and of the policies. The readiness of a cluster that is reported by its agent becomes `Unknown`.
pub fn lose_cluster(
    cluster: &Cluster,
    policies: &[ClusterTaintPolicy],
    is_reported_by_agent: bool,
    now: Timestamp,
) -> Cluster {
    let mut lost = cluster.clone();
    let ready = match is_reported_by_agent {
        true => lease::unknown_condition(conditions::find(&cluster.status.conditions, condition::READY), now),
        false => Some(clusters::ready_condition(&Health::Unreachable(String::new()), now)),
    };
    if let Some(ready) = ready {
        conditions::set(&mut lost.status.conditions, ready);
    }
    lost.spec.taints = clusters::taints(&lost, now);
    lost.spec.taints = taint_policies::taints(&lost, policies, false, now);
    lost
}

/// Policy choice once all controllers have reconciled.
pub struct PredictedChoice<'a> {
    pub choice: Choice<'a>,
    pub considered: Vec<ConsideredPolicy>,
    /// The template without its current claim, if that would be released.
    pub unclaimed: Option<Value>,
}

/// Chooses like the detector once it has reconciled: deleted policies release their templates, and so do changed ones
/// (`is_proposed`) that no longer select them.
pub fn predict_choice<'a>(
    template: &Value,
    policies: &[Policy<'a>],
    is_proposed: impl Fn(&Policy<'a>) -> bool,
    preemption: bool,
) -> PredictedChoice<'a> {
    let (choice, considered) = choose(template, policies, preemption);
    let is_released = match &choice {
        Choice::Release => true,
        Choice::Unselected(owner) => is_proposed(owner),
        _ => false,
    };
    match claim::release(template, Claim::from_object(template).id()).filter(|_| is_released) {
        None => PredictedChoice { choice, considered, unclaimed: None },
        Some(patch) => {
            let mut unclaimed = template.clone();
            json_patch::merge(&mut unclaimed, &patch);
            let (choice, considered) = choose(&unclaimed, policies, preemption);
            PredictedChoice { choice, considered, unclaimed: Some(unclaimed) }
        }
    }
}

/// The template after a policy has claimed it.
pub fn with_claim(template: &Value, policy: &Policy<'_>) -> Value {
    let mut claimed = template.clone();
    if let Some(patch) = claim::patch(template, policy) {
        json_patch::merge(&mut claimed, &patch);
    }
    claimed
}

/// The only manifest of a Work.
pub fn manifest_of(work: &Value) -> Option<&Value> {
    unstructured::at(work, &["spec", "workload", "manifests"])?.as_array()?.first()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_api::policy::PropagationSpec;
    use rstest::rstest;
    use serde_json::json;

    fn live(spec: Value, last: Value) -> Value {
        let mut live = json!({"metadata": {"name": "x", "uid": "u", "annotations": {"own": "1"}}, "spec": spec});
        if !last.is_null() {
            unstructured::set_annotation(&mut live, LAST_APPLIED, &last.to_string());
        }
        live
    }

    #[rstest]
    #[case::given_fields_are_merged(json!({"a": 1, "b": 2}), json!(null), json!({"a": 3}), json!({"a": 3, "b": 2}))]
    #[case::previously_applied_field_is_removed(json!({"a": 1, "b": 2}), json!({"spec": {"a": 1, "b": 2}}), json!({"a": 1}), json!({"a": 1}))]
    #[case::defaults_are_kept(json!({"a": 1, "d": 0}), json!({"spec": {"a": 1}}), json!({"a": 2}), json!({"a": 2, "d": 0}))]
    #[case::nested_fields(json!({"m": {"x": 1, "y": 2}}), json!({"spec": {"m": {"x": 1}}}), json!({"m": {}}), json!({"m": {"y": 2}}))]
    #[case::lists_are_replaced(json!({"l": [1, 2]}), json!(null), json!({"l": [3]}), json!({"l": [3]}))]
    fn objects_are_merged_like_kubectl_apply(
        #[case] spec: Value,
        #[case] last: Value,
        #[case] manifest_spec: Value,
        #[case] expected: Value,
    ) {
        let manifest = json!({"metadata": {"name": "x"}, "spec": manifest_spec, "status": {"never": true}});
        let merged = simulate_apply(Some(&live(spec, last)), &manifest);
        assert_eq!(merged["spec"], expected);
        assert_eq!((&merged["metadata"]["uid"], &merged["metadata"]["annotations"]["own"]), (&json!("u"), &json!("1")));
        assert_eq!(merged.get("status"), None);
        assert_eq!(simulate_apply(None, &manifest)["spec"], manifest["spec"]);
    }

    #[test]
    fn annotations_of_others_are_kept() {
        let last = json!({"metadata": {"annotations": {"mine": "1"}, "name": "x"}, "spec": {}});
        let mut live = live(json!({}), last.clone());
        unstructured::set_annotation(&mut live, "mine", "1");
        let merged = simulate_apply(Some(&live), &json!({"metadata": {"name": "x"}, "spec": {}}));
        let annotations: Vec<String> = unstructured::annotations(&merged).into_keys().collect();
        assert_eq!(annotations, [LAST_APPLIED, "own"]);
    }

    #[rstest]
    #[case::by_probes(false, "True", json!(["False"]), "False", &["own:NoExecute", "cluster.karmada.io/not-ready:NoSchedule", "gone:NoExecute"])]
    #[case::by_its_agent(true, "True", json!(["Unknown"]), "Unknown", &["own:NoExecute", "cluster.karmada.io/unreachable:NoSchedule", "gone:NoExecute"])]
    #[case::silent_already(true, "Unknown", json!(["Unknown"]), "Unknown", &["own:NoExecute", "cluster.karmada.io/unreachable:NoSchedule", "gone:NoExecute"])]
    #[case::policy_for_another_status(false, "True", json!(["Unknown"]), "False", &["own:NoExecute", "cluster.karmada.io/not-ready:NoSchedule"])]
    fn lost_cluster_gets_the_taints_of_the_controllers(
        #[case] is_reported_by_agent: bool,
        #[case] status: &str,
        #[case] evicting_statuses: Value,
        #[case] expected_status: &str,
        #[case] expected_taints: &[&str],
    ) {
        let ready = json!({"type": "Ready", "status": status, "reason": "", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let cluster: Cluster = serde_json::from_value(json!({
            "metadata": {"name": "m1"}, "spec": {"syncMode": "Push", "taints": [{"key": "own", "effect": "NoExecute"}]},
            "status": {"conditions": [ready]},
        }))
        .expect("a Cluster");
        let policy: ClusterTaintPolicy = serde_json::from_value(json!({"metadata": {"name": "gone"}, "spec": {
            "addOnConditions": [{"conditionType": "Ready", "operator": "In", "statusValues": evicting_statuses}],
            "taints": [{"key": "gone", "effect": "NoExecute"}],
        }}))
        .expect("a policy");
        let lost = lose_cluster(&cluster, &[policy], is_reported_by_agent, Timestamp::UNIX_EPOCH);
        let taints: Vec<String> =
            lost.spec.taints.iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect();
        assert_eq!(taints, expected_taints);
        let ready = conditions::find(&lost.status.conditions, condition::READY).map(|ready| ready.status.as_str());
        assert_eq!(ready, Some(expected_status));
    }

    fn spec(kind: &str, priority: i32) -> PropagationSpec {
        let selectors = json!([{"apiVersion": "v1", "kind": kind}]);
        serde_json::from_value(json!({"resourceSelectors": selectors, "priority": priority})).expect("a spec")
    }

    #[test]
    fn changed_policy_releases_unselected_templates() {
        let (maps, secrets) = (spec("ConfigMap", 0), spec("Secret", 0));
        let policy = |name, spec| Policy { namespace: "n", name, permanent_id: name, is_terminating: false, spec };
        let template = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "n"}});
        let owned = with_claim(&template, &policy("old", &maps));
        let policies = [policy("old", &secrets), policy("other", &maps)];
        let predicted = predict_choice(&owned, &policies, |_| false, false);
        assert!(
            matches!(predicted.choice, Choice::Unselected(owner) if owner.name == "old")
                && predicted.unclaimed.is_none()
        );
        let predicted = predict_choice(&owned, &policies, |policy| policy.name == "old", false);
        assert!(
            matches!(predicted.choice, Choice::Follow(policy) if policy.name == "other")
                && predicted.unclaimed.is_some()
        );
        // A deleted policy releases its templates, too.
        let predicted = predict_choice(&owned, &policies[1..], |_| false, false);
        assert!(
            matches!(predicted.choice, Choice::Follow(policy) if policy.name == "other")
                && predicted.unclaimed.is_some()
        );
    }

    #[test]
    fn differences_ignore_the_generation() {
        let object = |generation: i64, data: &str| {
            json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "c", "generation": generation}, "data": {"a": data}})
        };
        let paths = |before: Option<&Value>, after: Option<&Value>| {
            let plan = plan_object(before, after);
            (plan.change, plan.differences.into_iter().map(|difference| difference.path).collect::<Vec<_>>())
        };
        assert_eq!(paths(None, Some(&object(1, "x"))), (Change::Added, vec![]));
        assert_eq!(paths(Some(&object(1, "x")), Some(&object(2, "x"))), (Change::Unchanged, vec![]));
        let changed = (Change::Changed, vec!["/data/a".to_owned()]);
        assert_eq!(paths(Some(&object(1, "x")), Some(&object(2, "y"))), changed);
        assert_eq!(paths(Some(&object(1, "x")), None), (Change::Removed, vec![]));
    }
}
