//! Removal of replicas by the descheduler, because they are unschedulable in their cluster.

use std::collections::BTreeMap;

use crowsnest_api::work::{ObjectReference, ResourceBindingSpec, ResourceBindingStatus};
use crowsnest_plan::descheduling::{
    UnschedulablePod, clusters_lacking_replicas, current_replica_set, exceeds_threshold, is_candidate, reduce,
};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use super::cases;

type Replicas = BTreeMap<String, i32>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeschedulingCase {
    assigned: Replicas,
    ready: Replicas,
    unschedulable: Replicas,
    #[serde(default)]
    expected: Option<Replicas>,
    #[serde(default)]
    message: String,
}

#[test]
fn unschedulable_replicas_are_removed() {
    for (name, case) in cases::<DeschedulingCase>(include_str!("fixtures/descheduling.yaml")) {
        let target = |(name, replicas): (&String, &i32)| json!({"name": name, "replicas": replicas});
        let spec = json!({"clusters": case.assigned.iter().map(target).collect::<Vec<_>>()});
        let spec: ResourceBindingSpec = serde_json::from_value(spec).unwrap();
        let item = |(name, ready): (&String, &i32)| json!({"clusterName": name, "status": {"readyReplicas": ready}});
        let status = json!({"aggregatedStatus": case.ready.iter().map(item).collect::<Vec<_>>()});
        let status: ResourceBindingStatus = serde_json::from_value(status).unwrap();
        let reduced = reduce(&spec, &status, &case.unschedulable);
        let actual = reduced.as_ref().map(|reduced| {
            reduced.clusters.iter().map(|target| (target.name.clone(), target.replicas)).collect::<Replicas>()
        });
        assert_eq!(actual, case.expected, "{name}");
        let message = format!("Binding has been descheduled, {} descheduled replica(s)", case.message);
        assert_eq!(reduced.map(|reduced| reduced.message), case.expected.map(|_| message), "{name}");
    }
}

#[test]
fn clusters_that_lack_replicas_are_queried() {
    let spec = json!({"clusters": [
        {"name": "m1", "replicas": 3}, {"name": "m2", "replicas": 2}, {"name": "m3", "replicas": 4},
        {"name": "m4", "replicas": 1}, {"name": "m5"},
    ]});
    let status = json!({"aggregatedStatus": [
        {"clusterName": "m1", "status": {"readyReplicas": 2}}, {"clusterName": "m2", "status": {"readyReplicas": 2}},
        {"clusterName": "m3", "status": {"replicas": 4}}, {"clusterName": "m4"},
    ]});
    let spec: ResourceBindingSpec = serde_json::from_value(spec).unwrap();
    let status: ResourceBindingStatus = serde_json::from_value(status).unwrap();
    // As in Karmada, a cluster without status counts as lacking replicas, even with none assigned.
    assert_eq!(clusters_lacking_replicas(&spec, &status), ["m1", "m3", "m4", "m5"]);
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CandidateCase {
    #[serde(default)]
    api_version: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    applied: Option<Value>,
    #[serde(default)]
    annotation: Option<String>,
    #[serde(default)]
    deleted: bool,
    expected: bool,
}

#[test]
fn only_dynamically_divided_workloads_are_considered() {
    for (name, case) in cases::<CandidateCase>(include_str!("fixtures/candidates.yaml")) {
        let mut metadata = json!({"name": "web-deployment", "namespace": "default"});
        if let Some(applied) = case.annotation.or(case.applied.map(|applied| applied.to_string())) {
            metadata["annotations"] = json!({"policy.karmada.io/applied-placement": applied});
        }
        if case.deleted {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let resource = ObjectReference {
            api_version: case.api_version.unwrap_or_else(|| "apps/v1".to_owned()),
            kind: case.kind.unwrap_or_else(|| "Deployment".to_owned()),
            ..ObjectReference::default()
        };
        assert_eq!(is_candidate(&json!({"metadata": metadata}), &resource), case.expected, "{name}");
    }
}

#[test]
fn unschedulable_pods() {
    let pod = |phase: &str, status: &str, reason: &str, controller: bool| {
        UnschedulablePod::from_json(&json!({
            "metadata": {"ownerReferences": [{"uid": "other"}, {"uid": "set", "controller": controller}]},
            "status": {"phase": phase, "conditions": [
                {"type": "Ready", "status": "False", "reason": "Unschedulable"},
                {"type": "PodScheduled", "status": status, "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ]},
        }))
    };
    let since: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let expected = UnschedulablePod { owner: "set".to_owned(), since };
    assert_eq!(pod("Pending", "False", "Unschedulable", true), Some(expected));
    assert_eq!(pod("Pending", "False", "SchedulingGated", true), None);
    assert_eq!(pod("Running", "True", "", true), None);
    assert_eq!(pod("Failed", "False", "Unschedulable", true), None);
    assert_eq!(pod("Pending", "False", "Unschedulable", false), None);

    let minutes = SignedDuration::from_mins;
    assert!(!exceeds_threshold(since, minutes(5), since + minutes(5)));
    assert!(exceeds_threshold(since, minutes(5), since + minutes(6)));
    assert!(exceeds_threshold(since, minutes(-5), since + minutes(1)), "a negative threshold is zero");
    assert!(!exceeds_threshold(since, minutes(-5), since), "a pod that has just become unschedulable does not count");
}

#[test]
fn the_newest_replica_set_has_the_template() {
    let template = |image: &str, hash: &str| {
        let mut labels = json!({"app": "web"});
        if !hash.is_empty() {
            labels["pod-template-hash"] = json!(hash);
        }
        json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": image}]}})
    };
    let deployment = json!({
        "metadata": {"name": "web", "uid": "deployment"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template("nginx:2", "")},
    });
    let deployment: Deployment = serde_json::from_value(deployment).unwrap();
    let set = |name: &str, day: u8, image: &str, owner: &str| -> ReplicaSet {
        serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": format!("2026-01-{day:02}T00:00:00Z"),
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": owner, "controller": true},
                ]},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template(image, name)},
        }))
        .unwrap()
    };
    let sets = [
        set("old", 1, "nginx:1", "deployment"),
        set("foreign", 2, "nginx:2", "another"),
        set("second", 4, "nginx:2", "deployment"),
        set("first-b", 3, "nginx:2", "deployment"),
        set("first-a", 3, "nginx:2", "deployment"),
    ];
    let name = |sets: &[ReplicaSet]| current_replica_set(&deployment, sets).and_then(|set| set.metadata.name.clone());
    assert_eq!(name(&sets).as_deref(), Some("first-a"), "the oldest of those with the template");
    assert_eq!(name(&sets[..2]), None);
}
