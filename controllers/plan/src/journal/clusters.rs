//! Journal entries of clusters: changes of readiness, taints, and halted or resumed evictions.

use crowsnest_api::cluster::Cluster;
use crowsnest_api::constants::{condition, taint as keys};
use crowsnest_api::policy::ClusterTaintPolicy;
use crowsnest_api::work::ObjectReference;
use crowsnest_apimachinery::taints;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{Action, Cause, Entry, id, unix_seconds};
use crate::conditions;

fn find_ready_condition(cluster: &Cluster) -> Option<&Condition> {
    conditions::find(&cluster.status.conditions, condition::READY)
}

fn new_entry(cluster: &Cluster, action: Action, id: String, cause: Cause, effect: Value, at: Timestamp) -> Entry {
    Entry {
        at,
        subject: ObjectReference::from_cluster(cluster),
        action,
        cluster: cluster.metadata.name.clone().unwrap_or_default(),
        cause,
        effect,
        generation: cluster.metadata.generation,
        is_warning: false,
        message: String::new(),
        id,
    }
}

fn id_of(cluster: &Cluster, action: Action, parts: &[&str]) -> String {
    let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
    id(&ObjectReference::from_cluster(cluster), uid, action, parts)
}

/// Id of the entry for the last change of a cluster's readiness. If readiness never changed, no such entry exists.
/// `None` without a Ready condition.
pub fn readiness_id(cluster: &Cluster) -> Option<String> {
    let ready = find_ready_condition(cluster)?;
    let since = unix_seconds(ready.last_transition_time.0);
    Some(id_of(cluster, Action::ReadinessChanged, &[&ready.status, &since]))
}

/// Entry for a change of readiness. `before` is the previous status of the Ready condition, `None` for a new cluster.
/// Returns `None` for a new cluster and for an unchanged status.
pub fn readiness_entry(cluster: &Cluster, before: Option<&str>, cause: &str, at: Timestamp) -> Option<Entry> {
    let ready = find_ready_condition(cluster)?;
    let before = before.filter(|before| *before != ready.status)?;
    let effect = json!({"ready": {"from": before, "to": ready.status}});
    let entry = new_entry(cluster, Action::ReadinessChanged, readiness_id(cluster)?, Cause::new(cause), effect, at);
    let message = format!("Ready is {} now: {cause}", ready.status);
    Some(Entry { is_warning: ready.status != "True", message, ..entry })
}

/// Reason why a cluster is not ready. `None` if it is.
pub fn not_ready_reason(cluster: &Cluster) -> Option<String> {
    let ready = find_ready_condition(cluster).filter(|ready| ready.status != "True")?;
    let signals = conditions::find(&cluster.status.conditions, condition::HEALTH_SIGNALS);
    let message = signals.map(|signals| signals.message.as_str()).filter(|message| !message.is_empty());
    let (status, since) = (&ready.status, ready.last_transition_time.0);
    Some(format!("Ready is {status} since {since}: {}", message.unwrap_or(&ready.message)))
}

/// Formats a taint as `key=value:effect`, or `key:effect` without a value.
pub fn format_taint(taint: &Taint) -> String {
    match taint.value.as_deref().filter(|value| !value.is_empty()) {
        Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
        None => format!("{}:{}", taint.key, taint.effect),
    }
}

/// Id of a taint's entry. `None` for a taint without `timeAdded`, whose id cannot be derived from the Cluster.
pub fn taint_id(cluster: &Cluster, taint: &Taint) -> Option<String> {
    let added_at = unix_seconds(taint.time_added.as_ref()?.0);
    Some(id_of(cluster, Action::ClusterTainted, &[&format_taint(taint), &added_at]))
}

/// Entries for taints that are new since `before`.
pub fn taint_entries(
    cluster: &Cluster,
    before: &[Taint],
    policies: &[ClusterTaintPolicy],
    at: Timestamp,
) -> Vec<Entry> {
    let new_taints = cluster.spec.taints.iter().filter(|taint| !before.contains(taint));
    let build_entry = |taint: &Taint| {
        let taint_text = format_taint(taint);
        let build_id = || id_of(cluster, Action::ClusterTainted, &[&taint_text, &at.to_string()]);
        let id = taint_id(cluster, taint).unwrap_or_else(build_id);
        let cause = taint_cause(cluster, taint, policies);
        let message = format!("Tainted with {taint_text}: {}", cause.text);
        let is_warning = taint.effect == taints::NO_EXECUTE;
        let entry = new_entry(cluster, Action::ClusterTainted, id, cause, json!({"taint": taint_text}), at);
        Entry { message, is_warning, ..entry }
    };
    new_taints.map(build_entry).collect()
}

fn taint_cause(cluster: &Cluster, taint: &Taint, policies: &[ClusterTaintPolicy]) -> Cause {
    let not_ready = not_ready_reason(cluster);
    let readiness_change = not_ready.as_ref().and_then(|_| readiness_id(cluster));
    let follows_readiness =
        taint.effect == taints::NO_SCHEDULE && [keys::NOT_READY, keys::UNREACHABLE].contains(&&*taint.key);
    if follows_readiness && let Some(reason) = &not_ready {
        return Cause::new(reason).caused_by(ObjectReference::from_cluster(cluster)).preceded_by(readiness_change);
    }
    let adds_taint = |policy: &&ClusterTaintPolicy| {
        policy
            .spec
            .taints
            .iter()
            .any(|policy_taint| policy_taint.key == taint.key && policy_taint.effect == taint.effect)
    };
    let Some(policy) = policies.iter().find(adds_taint) else {
        return Cause::new("added manually or by another controller");
    };
    let name = policy.metadata.name.as_deref().unwrap_or_default();
    let depends_on_readiness =
        policy.spec.add_on_conditions.iter().any(|add_condition| add_condition.condition_type == condition::READY);
    let reference = ObjectReference::new("policy.karmada.io/v1alpha1", "ClusterTaintPolicy", "", name);
    match not_ready.filter(|_| depends_on_readiness) {
        Some(reason) => Cause::new(format!("ClusterTaintPolicy {name}, since {reason}"))
            .caused_by(reference)
            .preceded_by(readiness_change),
        None => Cause::new(format!("ClusterTaintPolicy {name}")).caused_by(reference),
    }
}

/// The taint that evicts a workload with these tolerations: the first untolerated one, otherwise the first NoExecute
/// taint.
pub fn evicting_taint<'c>(cluster: &'c Cluster, tolerations: &[Toleration]) -> Option<&'c Taint> {
    let (all, evicts) = (&cluster.spec.taints, |taint: &Taint| taint.effect == taints::NO_EXECUTE);
    let untolerated = taints::first_untolerated_taint(all, tolerations, evicts);
    untolerated.or_else(|| all.iter().find(|taint| evicts(taint)))
}

/// Entry for evictions from a cluster that are halted or resumed. `previous` is the cluster's condition
/// `EvictionsHalted` before.
pub fn halted_entry(
    cluster: &Cluster,
    is_halted: bool,
    message: &str,
    previous: Option<&Condition>,
    at: Timestamp,
) -> Entry {
    let action = if is_halted { Action::EvictionsHalted } else { Action::EvictionsResumed };
    let entry_id = |action: Action, at: Timestamp| id_of(cluster, action, &[&unix_seconds(at)]);
    let before =
        previous.filter(|_| !is_halted).map(|halted| entry_id(Action::EvictionsHalted, halted.last_transition_time.0));
    let cause = Cause::new(message).preceded_by(before);
    let entry = new_entry(cluster, action, entry_id(action, at), cause, json!({"halted": is_halted}), at);
    Entry { is_warning: is_halted, message: message.to_owned(), ..entry }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    fn now() -> Timestamp {
        at("2026-01-01T10:05:03.25Z")
    }

    fn taint(key: &str, effect: &str, added: Option<&str>) -> Value {
        json!({"key": key, "effect": effect, "timeAdded": added})
    }

    fn cluster(ready: &str, taints: Value) -> Cluster {
        let value = json!({
            "metadata": {"name": "m1", "uid": "u1", "generation": 3}, "spec": {"syncMode": "Push", "taints": taints},
            "status": {"conditions": [
                {"type": "Ready", "status": ready, "reason": "R", "message": "cluster is not reachable",
                 "lastTransitionTime": "2026-01-01T10:05:00Z"},
                {"type": "HealthSignals", "status": "True", "reason": "SignalsAgree", "message": "readyz fails",
                 "lastTransitionTime": "2026-01-01T10:05:00Z"},
            ]},
        });
        serde_json::from_value(value).expect("a cluster")
    }

    fn policy(name: &str, key: &str, condition_type: &str) -> ClusterTaintPolicy {
        let value = json!({
            "metadata": {"name": name},
            "spec": {"taints": [{"key": key, "effect": "NoExecute"}],
                     "addOnConditions": [{"conditionType": condition_type, "operator": "NotIn", "statusValues": ["True"]}]},
        });
        serde_json::from_value(value).expect("a policy")
    }

    #[rstest]
    #[case::new_cluster(None, "False", None)]
    #[case::unchanged(Some("False"), "False", None)]
    #[case::became_not_ready(Some("True"), "False", Some(("Ready is False now: why", true)))]
    #[case::became_unknown(Some("False"), "Unknown", Some(("Ready is Unknown now: why", true)))]
    #[case::became_ready(Some("False"), "True", Some(("Ready is True now: why", false)))]
    fn readiness_changes_have_an_entry(
        #[case] before: Option<&str>,
        #[case] ready: &str,
        #[case] expected: Option<(&str, bool)>,
    ) {
        let cluster = cluster(ready, json!([]));
        let entry = readiness_entry(&cluster, before, "why", now());
        assert_eq!(entry.as_ref().map(|entry| (entry.message.as_str(), entry.is_warning)), expected);
        if let Some(entry) = entry {
            assert_eq!(Some(entry.id), readiness_id(&cluster), "the entry can be derived from the condition");
        }
    }

    const FIRST: &str = "2026-01-01T10:05:01Z";

    #[rstest]
    #[case::no_new_taint(
        "False", taint("a", "NoExecute", Some(FIRST)), json!([taint("a", "NoExecute", Some(FIRST))]), None
    )]
    #[case::added_for_readiness(
        "False", taint("cluster.karmada.io/not-ready", "NoSchedule", Some(FIRST)), json!([]),
        Some(("Ready is False since 2026-01-01T10:05:00Z: readyz fails", Some("Cluster m1"), true))
    )]
    #[case::added_by_a_policy_for_readiness(
        "False", taint("gone", "NoExecute", Some(FIRST)), json!([]),
        Some(("ClusterTaintPolicy leave, since Ready is False since 2026-01-01T10:05:00Z: readyz fails",
            Some("ClusterTaintPolicy leave"), true))
    )]
    #[case::added_by_a_policy_for_another_condition(
        "False", taint("full", "NoExecute", Some(FIRST)), json!([]),
        Some(("ClusterTaintPolicy full", Some("ClusterTaintPolicy full"), false))
    )]
    #[case::added_manually(
        "True", taint("drain", "NoExecute", Some(FIRST)), json!([]),
        Some(("added manually or by another controller", None, false))
    )]
    #[case::added_again(
        "True", taint("drain", "NoExecute", Some(FIRST)),
        json!([taint("drain", "NoExecute", Some("2026-01-01T09:00:00Z"))]),
        Some(("added manually or by another controller", None, false))
    )]
    fn new_taints_have_a_cause(
        #[case] ready: &str,
        #[case] new: Value,
        #[case] before: Value,
        #[case] expected: Option<(&str, Option<&str>, bool)>,
    ) {
        let cluster = cluster(ready, json!([new]));
        let before: Vec<Taint> = serde_json::from_value(before).expect("taints");
        let policies = [policy("full", "full", "NoSpace"), policy("leave", "gone", "Ready")];
        let entries = taint_entries(&cluster, &before, &policies, now());
        let caused_by = |entry: &Entry| {
            entry.cause.reference.as_ref().map(|caused_by| format!("{} {}", caused_by.kind, caused_by.name))
        };
        let entries: Vec<_> = entries
            .iter()
            .map(|entry| (entry.cause.text.clone(), caused_by(entry), entry.cause.previous == readiness_id(&cluster)))
            .collect();
        let expected = expected.map(|(text, caused_by, is_after_readiness_change)| {
            (text.to_owned(), caused_by.map(str::to_owned), is_after_readiness_change)
        });
        assert_eq!(entries, expected.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn entry_can_be_derived_from_the_taint() {
        let cluster = cluster("True", json!([taint("drain", "NoExecute", Some(FIRST)), taint("x", "NoExecute", None)]));
        let entries = taint_entries(&cluster, &[], &[], now());
        let named: Vec<_> = cluster.spec.taints.iter().map(|taint| taint_id(&cluster, taint)).collect();
        assert_eq!(named, [Some(entries[0].id.clone()), None]);
    }

    #[rstest]
    #[case::without_tolerations(json!([]), Some("a"))]
    #[case::first_taint_tolerated(json!([{"key": "a", "operator": "Exists"}]), Some("b"))]
    #[case::all_tolerated_for_some_time(json!([{"operator": "Exists", "tolerationSeconds": 1}]), Some("a"))]
    fn first_evicting_taint(#[case] tolerations: Value, #[case] expected: Option<&str>) {
        let taints =
            json!([taint("s", "NoSchedule", None), taint("a", "NoExecute", None), taint("b", "NoExecute", None)]);
        let tolerations: Vec<Toleration> = serde_json::from_value(tolerations).expect("tolerations");
        let cluster = cluster("True", taints);
        assert_eq!(evicting_taint(&cluster, &tolerations).map(|taint| taint.key.as_str()), expected);
    }

    #[test]
    fn resumed_evictions_refer_to_their_halt() {
        let cluster = cluster("False", json!([]));
        let halt = halted_entry(&cluster, true, "most are lost", None, at("2026-01-01T10:05:00Z"));
        let halted = conditions::condition("EvictionsHalted", true, "R", "most are lost", at("2026-01-01T10:05:00Z"));
        let resumed = halted_entry(&cluster, false, "evictions are resumed", Some(&halted), now());
        assert_eq!((halt.action, resumed.action), (Action::EvictionsHalted, Action::EvictionsResumed));
        assert_eq!((halt.is_warning, resumed.is_warning), (true, false));
        assert_eq!(resumed.cause.previous, Some(halt.id));
    }
}
