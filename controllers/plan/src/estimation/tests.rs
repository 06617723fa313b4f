//! Tests of estimates: tables, and the property that placing sets in bulk equals placing them one by one.

mod reservations;

use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::keys::BindingKey;
use crowsnest_api::work::{ResourceBindingSpec, ResourceBindingStatus, TargetCluster};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::capacity::{NodeFacts, PodFacts, free_nodes};
use super::free_capacity::CapacityFacts;
use super::ledger::Ledger;
use super::nodes::Nodes;
use super::quotas::{QuotaFacts, Quotas};
use super::request::{EstimateRequest, PodSet};
use super::summary::Summary;
use crate::gates::Gates;
use crate::scheduling::ClusterFacts;

fn yaml<T: serde::de::DeserializeOwned>(text: &str) -> T {
    serde_saphyr::from_str(text).expect("a valid fixture")
}

fn facts(cluster: Value) -> Arc<ClusterFacts> {
    Arc::new(ClusterFacts::new(serde_json::from_value::<Cluster>(cluster).expect("a cluster")))
}

fn cluster(name: &str, cpu: &str) -> Arc<ClusterFacts> {
    facts(json!({
        "metadata": {"name": name},
        "spec": {"syncMode": "Push"},
        "status": {"resourceSummary": {"allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "110"}}},
    }))
}

fn nodes(cpus: &[&str]) -> Nodes {
    let node = |(nth, cpu): (usize, &&str)| {
        NodeFacts::from_json(&json!({
            "metadata": {"name": format!("n{nth}"), "labels": {"nth": nth.to_string()}},
            "status": {"allocatable": {"cpu": cpu, "memory": "16Gi", "pods": "110"}},
        }))
    };
    free_nodes(&cpus.iter().enumerate().map(node).collect::<Vec<_>>(), &[]).into()
}

fn capacity_facts(cpus: &[&str]) -> CapacityFacts {
    CapacityFacts { nodes: Some(Arc::new(nodes(cpus))), quotas: None }
}

fn pod_sets(text: &str) -> Vec<PodSet> {
    PodSet::from_workload(&yaml::<ResourceBindingSpec>(text))
}

const NODES: &str = "
- metadata: {name: a, labels: {disk: ssd}}
  status: {allocatable: {cpu: '4', memory: 8Gi, pods: '10', example.com/gpu: '2'}}
- metadata: {name: b, labels: {disk: hdd}}
  spec: {taints: [{key: own, value: x, effect: NoSchedule}]}
  status: {allocatable: {cpu: '8', memory: 16Gi, pods: '10'}}
- metadata: {name: c, labels: {disk: ssd}}
  spec: {unschedulable: true}
  status: {allocatable: {cpu: '8', memory: 16Gi, pods: '10'}}
- metadata: {name: d, labels: {disk: hdd, size: '5'}}
  status: {allocatable: {cpu: '2', memory: 4Gi, pods: '3'}}
";
const PODS: &str = "
- {spec: {nodeName: a, containers: [{resources: {requests: {cpu: '1'}}}]}}
- {spec: {nodeName: d, containers: [{resources: {requests: {cpu: 500m}}}]}, metadata: {deletionTimestamp: '2026-01-01T00:00:00Z'}}
- {spec: {nodeName: a, containers: [{resources: {requests: {cpu: '3'}}}]}, status: {phase: Succeeded}}
- {spec: {containers: [{resources: {requests: {cpu: '3'}}}]}}
";

#[rstest]
#[case::without_requirements("~", 9 + 2)]
#[case::cpu("{resourceRequest: {cpu: '1'}}", 3 + 1)]
#[case::resource_of_one_node("{resourceRequest: {example.com/gpu: '1'}}", 2)]
#[case::toleration("{resourceRequest: {cpu: '1'}, nodeClaim: {tolerations: [{key: own, operator: Exists}]}}", 3 + 8 + 1)]
#[case::node_selector("{resourceRequest: {cpu: '1'}, nodeClaim: {nodeSelector: {disk: ssd}}}", 3)]
#[case::affinity(
    "{nodeClaim: {hardNodeAffinity: {nodeSelectorTerms: [{matchExpressions: [{key: size, operator: Gt, values: ['4']}]}]}}}",
    2
)]
#[case::node_name(
    "{nodeClaim: {hardNodeAffinity: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [a]}]}]}}}",
    9
)]
#[case::empty_term("{nodeClaim: {hardNodeAffinity: {nodeSelectorTerms: [{}]}}}", 0)]
#[case::larger_than_every_node("{resourceRequest: {cpu: '5'}}", 0)]
fn replicas_on_nodes(#[case] requirements: &str, #[case] expected: i64) {
    let read = |text| yaml::<Vec<Value>>(text);
    let facts: Vec<NodeFacts> = read(NODES).iter().map(NodeFacts::from_json).collect();
    let pods: Vec<PodFacts> = read(PODS).iter().map(PodFacts::from_json).collect();
    let nodes = Nodes::from(free_nodes(&facts, &pods));
    let requirements: Option<crowsnest_api::work::ReplicaRequirements> = yaml(requirements);
    assert_eq!(nodes.replicas(&PodSet::from_requirements(requirements.as_ref())), expected);
}

const SUMMARY: &str = "
allocatable: {cpu: '10', memory: 10Gi, pods: '20', example.com/gpu: '4'}
allocated: {cpu: '3', pods: '5'}
allocating: {cpu: '1', pods: '1'}
";
const MODELS: &str = "
- {grade: 0, ranges: [{name: cpu, min: '0', max: '2'}, {name: memory, min: '0', max: 4Gi}]}
- {grade: 1, ranges: [{name: cpu, min: '2', max: '4'}, {name: memory, min: 4Gi, max: 8Gi}]}
";

#[rstest]
#[case::pods("~", "[]", 14)]
#[case::cpu("{resourceRequest: {cpu: '2'}}", "[]", 3)]
#[case::resource_not_in_summary("{resourceRequest: {example.com/other: '1'}}", "[]", 0)]
#[case::without_requests("{resourceRequest: {}}", "[]", 14)]
#[case::models("{resourceRequest: {cpu: '1', memory: 1Gi}}", "[{grade: 0, count: 5}, {grade: 1, count: 3}]", 6)]
#[case::models_match_any_claim(
    "{resourceRequest: {cpu: '2'}, nodeClaim: {nodeSelector: {disk: ssd}}}",
    "[{grade: 1, count: 3}]",
    3
)]
fn replicas_by_summary(#[case] requirements: &str, #[case] counts: &str, #[case] expected: i64) {
    let mut summary: Value = yaml(SUMMARY);
    summary["allocatableModelings"] = yaml(counts);
    let cluster = facts(json!({
        "metadata": {"name": "m"}, "spec": {"syncMode": "Push", "resourceModels": yaml::<Value>(MODELS)},
        "status": {"resourceSummary": summary},
    }));
    let requirements: Option<crowsnest_api::work::ReplicaRequirements> = yaml(requirements);
    let mut ledger = Ledger::new(Gates::all());
    let capacity = ledger.free_capacity(&cluster, &CapacityFacts::default(), &BindingKey::default());
    assert_eq!(capacity.estimate(&EstimateRequest::for_replicas(requirements.as_ref())), expected);
    assert!(Summary::from_cluster(&cluster.cluster, false).expect("a summary").models.is_none());
}

#[rstest]
#[case::each_node_takes_two_sets(&["4", "4"], "[{name: a, replicas: 1, replicaRequirements: {resourceRequest: {cpu: '1'}}}, {name: b, replicas: 1, replicaRequirements: {resourceRequest: {cpu: '1'}}}]", 4)]
#[case::set_across_nodes(&["3", "3"], "[{name: a, replicas: 4, replicaRequirements: {resourceRequest: {cpu: '1'}}}]", 1)]
#[case::fragmented_capacity(&["3", "3"], "[{name: a, replicas: 1, replicaRequirements: {resourceRequest: {cpu: '2'}}}]", 2)]
#[case::without_requests(&["1"], "[{name: a, replicas: 2}]", 55)]
fn sets_on_nodes(#[case] cpus: &[&str], #[case] components: &str, #[case] expected: i64) {
    let pod_sets = pod_sets(&format!("components: {components}"));
    assert_eq!(nodes(cpus).sets(&pod_sets, i64::MAX), expected);
    assert_eq!(nodes(cpus).sets(&pod_sets, 1), expected.min(1));
}

const QUOTAS: &str = "
- metadata: {namespace: team, name: requests}
  status: {hard: {requests.cpu: '10', requests.example.com/gpu: '4', limits.cpu: '1', pods: '1'}, used: {requests.cpu: '4', requests.example.com/gpu: '1', limits.cpu: '1', pods: '1'}}
- metadata: {namespace: team, name: urgent}
  spec: {scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In, values: [urgent]}]}}
  status: {hard: {cpu: '2'}, used: {cpu: '0'}}
- metadata: {namespace: team, name: best-effort}
  spec: {scopes: [BestEffort]}
  status: {hard: {cpu: '0'}, used: {cpu: '0'}}
- metadata: {namespace: team, name: not-counted-yet}
  status: {hard: {cpu: '0'}}
- metadata: {namespace: other, name: over}
  status: {hard: {cpu: '1'}, used: {cpu: '2'}}
";

#[rstest]
#[case::requests("team", "{resourceRequest: {cpu: '2'}}", Some(3))]
#[case::extended_resource("team", "{resourceRequest: {cpu: 100m, example.com/gpu: '1'}}", Some(3))]
#[case::priority_class("team", "{resourceRequest: {cpu: '1'}, priorityClassName: urgent}", Some(2))]
#[case::resource_without_quota("team", "{resourceRequest: {memory: 1Gi}}", None)]
#[case::without_requirements("team", "~", None)]
#[case::used_up("other", "{resourceRequest: {cpu: '1'}}", Some(0))]
#[case::no_quota("none", "{resourceRequest: {cpu: '1'}}", None)]
fn quotas_limit_replicas(#[case] namespace: &str, #[case] requirements: &str, #[case] expected: Option<i64>) {
    let mut quotas = Quotas::default();
    for quota in yaml::<Vec<Value>>(QUOTAS) {
        let text = |field: &str| quota["metadata"][field].as_str().expect("named").to_owned();
        let in_namespace = quotas.namespaces.entry(text("namespace")).or_default();
        in_namespace.insert(text("name"), QuotaFacts::from_json(&quota));
    }
    let requirements: Option<crowsnest_api::work::ReplicaRequirements> = yaml(requirements);
    let request = EstimateRequest::for_replicas(requirements.as_ref());
    let capacity_facts = CapacityFacts { nodes: None, quotas: Some(Arc::new(quotas)) };
    let (facts, mut ledger) = (cluster("m", "100"), Ledger::new(Gates::all()));
    let capacity = ledger.free_capacity(&facts, &capacity_facts, &BindingKey::default());
    assert_eq!(capacity.quota_limit(&request, namespace), expected);

    // Reservations in the namespace count as used.
    let spec = spec(2, "1", &[]);
    let now = Duration::ZERO;
    ledger.reserve(&key(1), &spec, &ResourceBindingStatus::default(), &targets(&[("m", 2)]), now);
    let capacity = ledger.free_capacity(&facts, &capacity_facts, &BindingKey::default());
    let with_reservation =
        if namespace == "team" && requirements.is_some_and(|needs| needs.resource_request.contains_key("cpu")) {
            let remaining = replicas_in_quota(&request, 6);
            expected.map(|allowed| allowed.min(remaining))
        } else {
            expected
        };
    assert_eq!(capacity.quota_limit(&request, namespace), with_reservation);
}

/// Number of replicas that fit into `unused` CPUs of a quota, of which 2 are reserved.
fn replicas_in_quota(request: &EstimateRequest, unused: i64) -> i64 {
    let cpu = request.pod_sets[0]
        .template_requests
        .iter()
        .find(|amount| amount.name == "cpu")
        .map_or(1, |amount| amount.units);
    (unused - 2) * 1000 / cpu
}

fn key(number: u8) -> BindingKey {
    BindingKey::new("team", format!("binding-{number}"))
}

fn targets(targets: &[(&str, i32)]) -> Vec<TargetCluster> {
    let target = |(name, replicas): &(&str, i32)| TargetCluster {
        name: (*name).to_owned(),
        replicas: *replicas,
        ..TargetCluster::default()
    };
    targets.iter().map(target).collect()
}

/// A Deployment whose replicas request this much CPU.
fn spec(replicas: i32, cpu: &str, clusters: &[(&str, i32)]) -> ResourceBindingSpec {
    let mut spec: ResourceBindingSpec = serde_json::from_value(json!({
        "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "team", "name": "web"},
        "replicas": replicas, "replicaRequirements": {"resourceRequest": {"cpu": cpu}, "namespace": "team"},
    }))
    .expect("a spec");
    spec.clusters = targets(clusters);
    spec
}

/// Number of sets that fit if they are placed pod by pod, up to `limit`.
fn place_one_by_one(cpus: &[i64], components: &[(i32, i64)], limit: i64) -> i64 {
    let mut free = cpus.to_vec();
    for sets in 0..limit {
        for (replicas, cpu) in components {
            for _ in 0..*replicas {
                match free.iter_mut().find(|free| **free >= *cpu) {
                    Some(free) => *free -= cpu,
                    None => return sets,
                }
            }
        }
    }
    limit
}

fn components(components: &[(i32, i64)]) -> Vec<PodSet> {
    let component = |(nth, (replicas, cpu)): (usize, &(i32, i64))| {
        json!({
            "name": nth.to_string(), "replicas": replicas,
            "replicaRequirements": {"resourceRequest": {"cpu": format!("{cpu}m")}},
        })
    };
    let spec = json!({"components": components.iter().enumerate().map(component).collect::<Vec<_>>()});
    PodSet::from_workload(&serde_json::from_value(spec).expect("a spec"))
}

fn nodes_with_millicpus(cpus: &[i64]) -> Nodes {
    let cpus: Vec<String> = cpus.iter().map(|cpu| format!("{cpu}m")).collect();
    nodes(&cpus.iter().map(String::as_str).collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn sets_in_bulk_equal_sets_one_by_one(
        cpus in proptest::collection::vec(0..9_i64, 1..8),
        requests in proptest::collection::vec((0..4_i32, 1..4_i64), 1..4),
        limit in 0..60_i64,
    ) {
        let cpus: Vec<i64> = cpus.iter().map(|cpu| cpu * 1000).collect();
        let requests: Vec<(i32, i64)> = requests.iter().map(|(replicas, cpu)| (*replicas, cpu * 500)).collect();
        prop_assert_eq!(nodes_with_millicpus(&cpus).sets(&components(&requests), limit), place_one_by_one(&cpus, &requests, limit));
    }

    /// A group of identical nodes is filled like the same number of single nodes.
    #[test]
    fn identical_nodes_are_filled_like_single_ones(
        counts in proptest::collection::vec(0..5_i64, 2..4), cpu in 1..5_i64, pods in 0..40_i64,
    ) {
        let grades: Vec<Value> = (0..counts.len()).map(|grade| json!({
            "grade": grade, "ranges": [{"name": "cpu", "min": (2 * grade + 1).to_string(), "max": "99"}],
        })).collect();
        let model_counts: Vec<Value> =
            counts.iter().enumerate().map(|(grade, count)| json!({"grade": grade, "count": count})).collect();
        let mut modelled = Nodes::from_models(
            &serde_json::from_value::<Vec<_>>(json!(grades)).expect("models"),
            &serde_json::from_value::<Vec<_>>(json!(model_counts)).expect("counts"),
        );
        let each = |(grade, count): (usize, &i64)| {
            vec![1000 * (2 * i64::try_from(grade).unwrap() + 1); usize::try_from(*count).unwrap()]
        };
        let mut single = nodes_with_millicpus(&counts.iter().enumerate().flat_map(each).collect::<Vec<_>>());
        let pod_set = components(&[(1, cpu * 500)]).remove(0);
        modelled.place_pods(&pod_set, pods);
        single.place_pods(&pod_set, pods);
        for cpu in [250, 500, 1000, 1500] {
            let pod_set = components(&[(1, cpu)]).remove(0);
            prop_assert_eq!(modelled.replicas(&pod_set), single.replicas(&pod_set));
        }
    }
}
