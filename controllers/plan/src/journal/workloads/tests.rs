//! Tests of the causes and messages of workload entries.

use super::*;
use rstest::rstest;
use serde::de::DeserializeOwned;

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("readable")
}

fn at(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

const NOW: &str = "2026-01-01T10:05:10Z";
const EVICTED: &str = "2026-01-01T10:05:05Z";

fn binding() -> Value {
    json!({"metadata": {"name": "web-deployment", "namespace": "shop", "uid": "b1", "generation": 4, "annotations": {
        "propagationpolicy.karmada.io/namespace": "shop", "propagationpolicy.karmada.io/name": "spread",
    }}})
}

/// A spec with targets such as `m1:2`, and eviction tasks.
fn spec(clusters: &[&str], tasks: Value) -> ResourceBindingSpec {
    let target = |text: &&str| {
        let (name, replicas) = text.split_once(':').unwrap_or((text, "0"));
        json!({"name": name, "replicas": replicas.parse::<i32>().expect("a number")})
    };
    read(json!({
        "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "shop", "name": "web", "uid": "t1"},
        "replicas": 2, "gracefulEvictionTasks": tasks,
        "clusters": clusters.iter().map(target).collect::<Vec<_>>(),
    }))
}

fn task(cluster: &str, message: &str) -> Value {
    json!({"fromCluster": cluster, "reason": "TaintUntolerated", "producer": "TaintManager", "replicas": 2,
        "purgeMode": "Gracefully", "creationTimestamp": EVICTED, "message": message})
}

/// Cluster `m1`, not ready and tainted for it.
fn clusters() -> Clusters {
    let m1 = json!({
        "metadata": {"name": "m1", "uid": "u1"},
        "spec": {"syncMode": "Push", "taints": [
            {"key": "gone", "effect": "NoExecute", "timeAdded": "2026-01-01T10:05:01Z"},
        ]},
        "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "R", "message": "not reachable",
            "lastTransitionTime": "2026-01-01T10:05:00Z"}]},
    });
    Clusters::from([("m1".to_owned(), Arc::new(read(m1)))])
}

fn status(value: Value) -> ResourceBindingStatus {
    read(value)
}

/// Action, message, cause, and true if the entry refers to a previous one.
fn summaries(entries: &[Entry]) -> Vec<(&'static str, &str, String, bool)> {
    let by = |entry: &Entry| {
        entry.cause.reference.as_ref().map_or_else(String::new, |by| format!("{}/{}", by.kind, by.name))
    };
    let all = entries.iter();
    all.map(|entry| (entry.action.name(), entry.message.as_str(), by(entry), entry.cause.previous.is_some())).collect()
}

#[test]
fn entries_of_an_eviction_are_chained() {
    let (binding, clusters) = (binding(), clusters());
    let before = spec(&["m1:2"], json!([]));
    let after = spec(&[], json!([task("m1", "")]));
    let change = BindingChange::from_binding(&binding, &before, at(NOW));
    let evicted = eviction_entries(&change, (&before, &after), &clusters, &[]);
    let reason = "its taint gone:NoExecute is not tolerated; Ready is False since 2026-01-01T10:05:00Z: not reachable";
    let message = format!("Evicted from m1: {reason}");
    assert_eq!(summaries(&evicted), [("Evicted", message.as_str(), "Cluster/m1".to_owned(), true)]);
    let m1 = &clusters["m1"];
    assert_eq!(evicted[0].cause.previous, taint_id(m1, &m1.spec.taints[0]));
    let taint_entries = super::super::clusters::taint_entries(m1, &[], &[], at(NOW));
    assert_eq!(evicted[0].cause.previous.as_ref(), Some(&taint_entries[0].id));

    let to = spec(&["m2:2"], json!([])).clusters;
    let status = status(json!({"lastScheduledTime": "2026-01-01T09:00:00Z"}));
    let rescheduling = Rescheduling {
        before: &after,
        status: &status,
        to: &to,
        trigger: Some(Trigger::ReplicasChanged),
        no_fit: None,
        requested_by: None,
    };
    let rescheduling_entry = rescheduling_entry(&change, &rescheduling).expect("an entry");
    assert_eq!(rescheduling_entry.cause.previous.as_ref(), Some(&evicted[0].id));
    let message = "Rescheduled from m1:2 to m2:2: it was evicted from m1 (TaintUntolerated)";
    assert_eq!(rescheduling_entry.message, message);
    let effect = json!({"from": [{"cluster": "m1", "replicas": 2}], "to": [{"cluster": "m2", "replicas": 2}],
        "trigger": "ReplicasChanged"});
    assert_eq!(rescheduling_entry.effect, effect);

    let healthy = json!({"aggregatedStatus": [{"clusterName": "m2", "health": "Healthy"}]});
    let (leaving, gone) = (spec(&["m2:2"], json!([task("m1", "")])), spec(&["m2:2"], json!([])));
    let ended = ongoing_eviction_entries(&change, (&leaving, &gone), &read(healthy), &[], &clusters);
    let message = "Evict from cluster m1 has ended: it is healthy in m2:2";
    assert_eq!(summaries(&ended), [("EvictionEnded", message, "Cluster/m1".to_owned(), true)]);
    assert_eq!(ended[0].cause.previous.as_ref(), Some(&evicted[0].id));
}

#[rstest]
#[case::nothing_changed(task("m1", "w"), json!([task("m1", "w")]), &[], json!({}), None)]
#[case::kept(
    task("m1", ""), json!([task("m1", "no healthy replacement: it is not healthy in m2")]), &[], json!({}),
    Some(("EvictionKept", "Evict from cluster m1 waits: no healthy replacement: it is not healthy in m2."))
)]
#[case::cancelled(
    task("m1", ""), json!([]), &["m1"], json!({}),
    Some(("EvictionCancelled", "Evict from cluster m1 is cancelled: the copy has not been replaced."))
)]
#[case::grace_period_expired(
    task("m1", ""), json!([]), &[], json!({}),
    Some(("EvictionEnded", "Evict from cluster m1 has ended: its grace period expired"))
)]
#[case::cluster_deleted(
    task("m9", ""), json!([]), &[], json!({}),
    Some(("EvictionEnded", "Evict from cluster m9 has ended: the cluster no longer exists"))
)]
fn outcomes_of_evictions(
    #[case] before: Value,
    #[case] after: Value,
    #[case] cancelled: &[&str],
    #[case] health: Value,
    #[case] expected: Option<(&str, &str)>,
) {
    let binding = binding();
    let (before, after) = (spec(&["m2:2"], json!([before])), spec(&["m2:2"], after));
    let change = BindingChange::from_binding(&binding, &before, at(NOW));
    let cancelled: Vec<String> = cancelled.iter().map(|name| (*name).to_owned()).collect();
    let entries = ongoing_eviction_entries(&change, (&before, &after), &read(health), &cancelled, &clusters());
    let summaries: Vec<_> = summaries(&entries).into_iter().map(|(action, message, ..)| (action, message)).collect();
    assert_eq!(summaries, expected.into_iter().collect::<Vec<_>>());
}

#[rstest]
#[case::first_placement(&[], json!([]), &["m1:2"], Trigger::ReplicasChanged, None)]
#[case::scaled_up_in_its_cluster(&["m1:1"], json!([]), &["m1:2"], Trigger::ReplicasChanged, None)]
#[case::scaled_down_in_its_cluster(&["m1:3", "m2:1"], json!([]), &["m1:1", "m2:1"], Trigger::ReplicasChanged, None)]
#[case::the_same(&["m1:2"], json!([]), &["m1:2"], Trigger::Reconcile, None)]
#[case::replicas_redistributed(
    &["m1:3", "m2:1"], json!([]), &["m1:1", "m2:3"], Trigger::RescheduleRequested,
    Some(("Rescheduled from m1:3, m2:1 to m1:1, m2:3: rescheduling was requested", "", false))
)]
#[case::another_placement(
    &["m1:2"], json!([]), &["m2:2"], Trigger::PlacementChanged,
    Some(("Rescheduled from m1:2 to m2:2: its placement changed", "PropagationPolicy/spread", false))
)]
#[case::another_cluster_fits(
    &["m1"], json!([]), &["m1", "m2"], Trigger::Reconcile,
    Some(("Rescheduled from m1 to m1, m2: the fitting clusters changed", "", false))
)]
#[case::cluster_removed(
    &["m1:2"], json!([]), &["m2:2"], Trigger::TargetTerminating,
    Some(("Rescheduled from m1:2 to m2:2: m1 is being removed", "Cluster/m1", false))
)]
#[case::scaled_into_another(
    &["m1:1"], json!([]), &["m1:1", "m2:1"], Trigger::ReplicasChanged,
    Some(("Rescheduled from m1:1 to m1:1, m2:1: 2 replicas are requested, 1 were assigned", "", false))
)]
#[case::evicted(
    &[], json!([task("m1", "")]), &["m2:2"], Trigger::ReplicasChanged,
    Some(("Rescheduled from m1:2 to m2:2: it was evicted from m1 (TaintUntolerated)", "Cluster/m1", true))
)]
#[case::evicted_and_placement_changed(
    &[], json!([task("m1", "")]), &["m2:2"], Trigger::PlacementChanged,
    Some(("Rescheduled from m1:2 to m2:2: its placement changed", "PropagationPolicy/spread", false))
)]
fn moves_and_their_triggers(
    #[case] from: &[&str],
    #[case] tasks: Value,
    #[case] to: &[&str],
    #[case] trigger: Trigger,
    #[case] expected: Option<(&str, &str, bool)>,
) {
    let (binding, before, to) = (binding(), spec(from, tasks), spec(to, json!([])).clusters);
    let status = status(json!({"lastScheduledTime": "2026-01-01T09:00:00Z"}));
    let trigger = Some(trigger);
    let rescheduling =
        Rescheduling { before: &before, status: &status, to: &to, trigger, no_fit: None, requested_by: None };
    let entry = rescheduling_entry(&BindingChange::from_binding(&binding, &before, at(NOW)), &rescheduling);
    let entries: Vec<Entry> = entry.into_iter().collect();
    let summaries: Vec<_> =
        summaries(&entries).into_iter().map(|(_, message, by, after)| (message, by, after)).collect();
    let expected = expected.map(|(message, by, after)| (message, by.to_owned(), after));
    assert_eq!(summaries, expected.into_iter().collect::<Vec<_>>());
}

/// Evictions before the last scheduling are not a cause of the next one.
#[test]
fn old_evictions_are_not_a_cause() {
    let (binding, before) = (binding(), spec(&["m2"], json!([task("m1", "")])));
    let to = spec(&["m2", "m3"], json!([])).clusters;
    let status = status(json!({"lastScheduledTime": "2026-01-01T10:05:06Z"}));
    let trigger = Some(Trigger::Reconcile);
    let rescheduling =
        Rescheduling { before: &before, status: &status, to: &to, trigger, no_fit: None, requested_by: None };
    let change = BindingChange::from_binding(&binding, &before, at(NOW));
    let entry = rescheduling_entry(&change, &rescheduling).expect("an entry");
    assert_eq!(entry.message, "Rescheduled from m2 to m2, m3: the fitting clusters changed");
}

#[test]
fn no_fitting_cluster_is_a_warning() {
    let (binding, before) = (binding(), spec(&["m1:2"], json!([])));
    let status = status(json!({}));
    let (trigger, nothing) = (Some(Trigger::PlacementChanged), Some("0/3 clusters are available"));
    let rescheduling =
        Rescheduling { before: &before, status: &status, to: &[], trigger, no_fit: nothing, requested_by: None };
    let change = BindingChange::from_binding(&binding, &before, at(NOW));
    let entry = rescheduling_entry(&change, &rescheduling).expect("an entry");
    let message = "Rescheduled from m1:2 to no cluster: 0/3 clusters are available (its placement changed)";
    assert_eq!((entry.message.as_str(), entry.is_warning), (message, true));
}

#[test]
fn descheduling_is_the_cause_of_the_move() {
    let (binding, before) = (binding(), spec(&["m1:3", "m2:1"], json!([])));
    let change = BindingChange::from_binding(&binding, &before, at(NOW));
    let reduced = spec(&["m1:1", "m2:1"], json!([]));
    let descheduled = descheduling_entry(&change, &before.clusters, &reduced.clusters, "Binding has been descheduled");
    let effect = json!({"taken": [{"cluster": "m1", "replicas": 2}]});
    assert_eq!((descheduled.cluster.as_str(), &descheduled.effect), ("m1", &effect));
    let to = spec(&["m1:1", "m2:3"], json!([])).clusters;
    let (status, trigger) = (status(json!({})), Some(Trigger::ReplicasChanged));
    let requested_by = Some(descheduled.id.as_str());
    let from = spec(&["m1:2", "m2:2"], json!([]));
    let rescheduling = Rescheduling { before: &from, status: &status, to: &to, trigger, no_fit: None, requested_by };
    let entry = rescheduling_entry(&change, &rescheduling).expect("an entry");
    assert_eq!((entry.cause.text.as_str(), entry.cause.previous), ("it was descheduled", Some(descheduled.id)));
}

#[test]
fn failback_refers_to_readiness_and_evictions() {
    let binding = binding();
    let home = json!({"fromCluster": "m2", "reason": "ReturnHome", "producer": "GoingHome",
        "creationTimestamp": EVICTED});
    let (before, going) = (spec(&["m2:2"], json!([])), spec(&[], json!([home])));
    let change = BindingChange::from_binding(&binding, &before, at(NOW));
    let clusters = clusters();
    let to = spec(&["m1:2"], json!([])).clusters;
    let entries = failback_entries(&change, (&before, &going), &to, &clusters, "Failing back to m1.");
    let expected = [
        ("ReturnedHome", "Failing back to m1.", "Cluster/m1".to_owned(), true),
        ("Evicted", "Evicted from m2: it fails back to its original clusters", "Deployment/web".to_owned(), true),
    ];
    assert_eq!(summaries(&entries), expected);
    assert_eq!(entries[0].cause.previous, readiness_id(&clusters["m1"]));
    assert_eq!(entries[1].cause.previous.as_ref(), Some(&entries[0].id));
}

#[test]
fn repeated_checks_have_the_same_entry() {
    let binding: ResourceBinding = read(json!({
        "metadata": {"name": "web-deployment", "namespace": "shop", "uid": "b1", "generation": 4},
        "spec": spec(&["m1:3"], json!([])),
    }));
    let quota = ObjectReference::new("policy.karmada.io/v1alpha1", "FederatedResourceQuota", "shop", "cpus");
    let exceeded = |requested: &str| ExceededQuota {
        quota: quota.clone(),
        resource: "cpu".to_owned(),
        requested: requested.parse().expect("a quantity"),
        limit: "2".parse().expect("a quantity"),
    };
    let [first, second, other] = [("2630m", NOW), ("2630m", "2026-01-01T11:00:00Z"), ("3", NOW)]
        .map(|(requested, now)| quota_denied_entry(&binding, &binding.spec.clusters, &exceeded(requested), at(now)));
    assert_eq!((first.id == second.id, first.id == other.id), (true, false));
    let effect =
        json!({"resource": "cpu", "requested": 2.63, "limit": 2, "wanted": [{"cluster": "m1", "replicas": 3}]});
    assert_eq!(first.effect, effect);
    assert_eq!(first.cause.reference, Some(quota));

    let spec = spec(&["m1:2"], json!([]));
    let value = serde_json::to_value(&binding).expect("JSON");
    let entry = |now: &str, reason: &str| {
        kept_unhealthy_entry(&BindingChange::from_binding(&value, &spec, at(now)), &["m1".to_owned()], reason, "waits")
    };
    assert_eq!(entry(NOW, "why").id, entry("2026-01-01T11:00:00Z", "why").id);
    assert_ne!(entry(NOW, "why").id, entry(NOW, "another").id);
}
