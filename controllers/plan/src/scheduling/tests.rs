//! Complete decisions: results are stable, and [`explain`] decides the same as [`plan`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_api::work::{Component, ReplicaRequirements, ResourceBindingSpec, ResourceBindingStatus, TargetCluster};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::{
    Binding, ClusterFacts, Estimate, NoopObserver, Observer, Plan, Plugins, SchedulingContext, Step, explain,
    is_placement_changed, plan,
};
use crate::gates::Gates;

/// Estimator with a fixed capacity per cluster.
struct FixedCapacity(Vec<i32>);

impl Estimate for FixedCapacity {
    fn replicas(&self, cluster_indexes: &[usize], _: Option<&ReplicaRequirements>) -> Vec<Option<i32>> {
        cluster_indexes.iter().map(|index| self.0.get(*index).copied()).collect()
    }

    fn component_sets(&self, cluster_indexes: &[usize], _: &[Component], _: &str) -> Vec<Option<i32>> {
        self.replicas(cluster_indexes, None)
    }
}

fn fleet(clusters: usize) -> Vec<Arc<ClusterFacts>> {
    let cluster = |nth: usize| {
        let cluster = json!({
            "metadata": {"name": format!("m{nth:02}"), "labels": {"tier": if nth.is_multiple_of(2) { "gold" } else { "silver" }}},
            "spec": {"syncMode": "Push", "region": format!("r{}", nth % 3)},
            "status": {"apiEnablements": [
                {"groupVersion": "apps/v1", "resources": [{"name": "deployments", "kind": "Deployment"}]},
            ]},
        });
        Arc::new(ClusterFacts::new(serde_json::from_value(cluster).expect("a cluster")))
    };
    (0..clusters).map(cluster).collect()
}

/// One of seven placements. 0 and 1 duplicate replicas and 2 has static weights; only the others depend on capacity.
fn placement(placement_id: u8) -> Value {
    let divided = |preference: &str, weights: Value| {
        let mut strategy = json!({"replicaSchedulingType": "Divided", "replicaDivisionPreference": preference});
        strategy["weightPreference"] = weights;
        strategy
    };
    let dynamic = || divided("Weighted", json!({"dynamicWeight": "AvailableReplicas"}));
    let gold = json!({"labelSelector": {"matchLabels": {"tier": "gold"}}});
    let constraint =
        |field: &str, max_groups: u32| json!({"spreadByField": field, "minGroups": 1, "maxGroups": max_groups});
    match placement_id {
        0 => json!({"clusterAffinity": gold, "replicaScheduling": {"replicaSchedulingType": "Duplicated"}}),
        1 => json!({"spreadConstraints": [constraint("cluster", 2)]}),
        2 => json!({"replicaScheduling": divided("Weighted", json!({"staticWeightList": [
            {"targetCluster": {"clusterNames": ["m00"]}, "weight": 1},
            {"targetCluster": {"clusterNames": ["m01", "m02"]}, "weight": 3},
        ]}))}),
        3 => json!({"replicaScheduling": dynamic()}),
        4 => json!({"clusterAffinity": gold, "replicaScheduling": divided("Aggregated", Value::Null)}),
        5 => {
            json!({"spreadConstraints": [constraint("region", 2), constraint("cluster", 3)], "replicaScheduling": dynamic()})
        }
        _ => json!({
            "clusterAffinities": [
                {"affinityName": "none", "clusterNames": ["missing"]},
                {"affinityName": "gold", "labelSelector": {"matchLabels": {"tier": "gold"}}},
            ],
            "replicaScheduling": dynamic(),
        }),
    }
}

fn spec(placement_id: u8, replicas: i32) -> ResourceBindingSpec {
    serde_json::from_value(json!({
        "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "team", "name": "web", "uid": "u"},
        "replicas": replicas, "replicaRequirements": {"resourceRequest": {"cpu": "1"}},
        "placement": placement(placement_id),
    }))
    .expect("a spec")
}

/// A binding as stored after each decision.
struct StoredBinding {
    spec: ResourceBindingSpec,
    status: ResourceBindingStatus,
    applied: Option<String>,
}

impl StoredBinding {
    fn binding(&self) -> Binding<'_> {
        Binding { generation: 1, applied_placement: self.applied.as_deref(), spec: &self.spec, status: &self.status }
    }

    fn write(&mut self, clusters: Vec<TargetCluster>, affinity: Option<String>) {
        self.applied = Some(serde_json::to_string(&self.spec.placement).expect("JSON"));
        self.spec.clusters = clusters;
        self.status.scheduler_observed_affinity_name = affinity.unwrap_or_default();
    }

    fn total(&self) -> i32 {
        self.spec.clusters.iter().map(|target| target.replicas).sum()
    }

    fn by_cluster(&self) -> BTreeMap<&str, i32> {
        self.spec.clusters.iter().map(|target| (target.name.as_str(), target.replicas)).collect()
    }
}

fn context<'a>(clusters: &'a [Arc<ClusterFacts>], capacities: &'a FixedCapacity) -> SchedulingContext<'a> {
    SchedulingContext {
        clusters,
        estimate: capacities,
        peers: &[],
        gates: Gates::all(),
        plugins: Plugins::default(),
        propagate_empty_workloads: false,
        observer: &NoopObserver,
    }
}

proptest! {
    #[test]
    fn results_are_stable_and_scaling_up_moves_no_replicas(
        placement_id in 0..7_u8, replicas in 1..40_i32, capacities in proptest::collection::vec(0..30_i32, 3..12),
    ) {
        let (clusters, capacities) = (fleet(capacities.len()), FixedCapacity(capacities));
        let context = context(&clusters, &capacities);
        let mut stored =
            StoredBinding { spec: spec(placement_id, replicas), status: ResourceBindingStatus::default(), applied: None };
        let (decided, report) = plan(&context, &stored.binding());
        prop_assert!(report.terms.iter().all(|term| term.clusters.is_empty()), "reports of decisions have no clusters");
        prop_assert_eq!(&explain(&context, &stored.binding()).0, &decided, "explaining decides the same");
        let Plan::Schedule { clusters: assigned, affinity } = decided else {
            // Without capacity, scheduling fails; static weights and duplication need none.
            prop_assert!(placement_id >= 3, "{:?}", decided);
            return Ok(());
        };
        stored.write(assigned.clone(), affinity);
        let duplicated = placement_id < 2;
        if duplicated {
            prop_assert!(assigned.iter().all(|target| target.replicas == replicas));
        } else {
            prop_assert_eq!(stored.total(), replicas);
        }
        match plan(&context, &stored.binding()).0 {
            Plan::Keep => {}
            Plan::Schedule { clusters, .. } => prop_assert_eq!(&clusters, &assigned),
            other => prop_assert!(false, "{:?}", other),
        }
        stored.spec.replicas += 1;
        if let Plan::Schedule { clusters, affinity } = plan(&context, &stored.binding()).0 {
            let before: BTreeMap<String, i32> =
                stored.by_cluster().into_iter().map(|(name, replicas)| (name.to_owned(), replicas)).collect();
            stored.write(clusters, affinity);
            let after = stored.by_cluster();
            let lost = before.iter().any(|(name, had)| after.get(name.as_str()).is_none_or(|has| has < had));
            prop_assert!(!lost, "{:?} -> {:?}", before, after);
        }
    }
}

#[rstest]
#[case::never_applied(None, true)]
#[case::empty(Some(""), true)]
#[case::unreadable(Some("{"), false)]
#[case::another_type(Some(r#"{"clusterTolerations": 3}"#), false)]
#[case::the_same(Some(r#"{"clusterAffinity": {"clusterNames": ["m1"]}}"#), false)]
#[case::other(Some(r#"{"clusterAffinity": {"clusterNames": ["m2"]}}"#), true)]
fn placements_change(#[case] applied: Option<&str>, #[case] expected: bool) {
    let placement = serde_json::from_value(json!({"clusterAffinity": {"clusterNames": ["m1"]}})).expect("a placement");
    assert_eq!(is_placement_changed(&placement, applied, ""), expected);
}

#[test]
fn unschedulable_binding_counts_and_explains_reasons() {
    let (clusters, capacities) = (fleet(3), FixedCapacity(vec![1; 3]));
    let mut stored = StoredBinding { spec: spec(0, 1), status: ResourceBindingStatus::default(), applied: None };
    stored.spec.resource.kind = "Job".to_owned();
    let context = context(&clusters, &capacities);
    let (decided, report) = explain(&context, &stored.binding());
    let Plan::Clear { error } = decided else { panic!("{decided:?}") };
    let expected = "0/3 clusters are available: 1 cluster(s) did not match the placement cluster affinity constraint, \
                    2 cluster(s) did not have the API resource.";
    assert_eq!(error.to_string(), expected);
    let filters: Vec<_> =
        report.terms[0].clusters.iter().map(|entry| entry.rejected.as_ref().map(|rejected| rejected.filter)).collect();
    assert_eq!(filters, [Some("APIEnablement"), Some("ClusterAffinity"), Some("APIEnablement")]);
}

/// A Job, a kind that no cluster serves, with affinity to gold clusters, one of which is a target already.
#[rstest]
#[case::all("*", &[Some("APIEnablement"), Some("ClusterAffinity"), None], 100)]
#[case::no_affinity("*,-ClusterAffinity", &[Some("APIEnablement"), Some("APIEnablement"), None], 100)]
#[case::no_enablement("*,-APIEnablement", &[None, Some("ClusterAffinity"), None], 100)]
#[case::no_locality("*,-ClusterLocality", &[Some("APIEnablement"), Some("ClusterAffinity"), None], 0)]
#[case::none("", &[None; 3], 0)]
fn disabled_filters_reject_no_cluster(#[case] plugins: &str, #[case] filters: &[Option<&str>], #[case] score: i64) {
    let (clusters, capacities) = (fleet(3), FixedCapacity(vec![1; 3]));
    let mut stored = StoredBinding { spec: spec(0, 1), status: ResourceBindingStatus::default(), applied: None };
    stored.spec.resource.kind = "Job".to_owned();
    stored.spec.clusters = vec![TargetCluster { name: "m02".to_owned(), replicas: 1, ..TargetCluster::default() }];
    let context = SchedulingContext { plugins: plugins.parse().expect("plugins"), ..context(&clusters, &capacities) };
    let entries = explain(&context, &stored.binding()).1.terms.remove(0).clusters;
    let seen: Vec<_> = entries.iter().map(|report| report.rejected.as_ref().map(|rejected| rejected.filter)).collect();
    assert_eq!(seen, filters);
    assert_eq!(entries[2].score, score);
}

/// A current target and another cluster, both with a taint that no toleration covers unless one is given.
#[rstest]
#[case::evicts(json!({"key": "down", "effect": "NoExecute"}), json!([]), Some("down:NoExecute"))]
#[case::with_value(json!({"key": "a", "value": "b", "effect": "NoExecute"}), json!([]), Some("a=b:NoExecute"))]
#[case::stays(json!({"key": "down", "effect": "NoSchedule"}), json!([]), None)]
#[case::tolerated(json!({"key": "down", "effect": "NoExecute"}), json!([{"key": "down", "operator": "Exists"}]), None)]
fn taints_that_evict_a_target_are_reported(
    #[case] taint: Value,
    #[case] tolerations: Value,
    #[case] expected: Option<&str>,
) {
    let tainted = fleet(3).into_iter().map(|facts| {
        let mut cluster = facts.cluster.clone();
        cluster.spec.taints = vec![serde_json::from_value(taint.clone()).expect("a taint")];
        Arc::new(ClusterFacts::new(cluster))
    });
    let (clusters, capacities): (Vec<_>, _) = (tainted.collect(), FixedCapacity(vec![1; 3]));
    let mut stored = StoredBinding { spec: spec(0, 1), status: ResourceBindingStatus::default(), applied: None };
    let placement = stored.spec.placement.as_mut().expect("a placement");
    placement.cluster_tolerations = serde_json::from_value(tolerations).expect("tolerations");
    stored.spec.clusters = vec![TargetCluster { name: "m02".to_owned(), replicas: 1, ..TargetCluster::default() }];
    let entries = explain(&context(&clusters, &capacities), &stored.binding()).1.terms.remove(0).clusters;
    assert_eq!((entries[2].rejected.is_none(), entries[2].evicted_by.as_deref()), (true, expected));
    assert!(entries.iter().take(2).all(|entry| entry.evicted_by.is_none()));
}

#[test]
fn failed_terms_are_reported_by_index() {
    let (clusters, capacities) = (fleet(3), FixedCapacity(vec![5; 3]));
    let stored = StoredBinding { spec: spec(6, 2), status: ResourceBindingStatus::default(), applied: None };
    let (decided, report) = plan(&context(&clusters, &capacities), &stored.binding());
    assert!(matches!(decided, Plan::Schedule { affinity: Some(affinity), .. } if affinity == "gold"));
    let tried: Vec<_> = report.terms.iter().map(|term| (term.index, term.error.is_some())).collect();
    assert_eq!(tried, [(0, true), (1, false)]);
}

/// Started (false) and ended (true) steps.
#[derive(Default)]
struct RecordedSteps(RefCell<Vec<(Step, bool)>>);

impl Observer for RecordedSteps {
    fn step_started(&self, step: Step) {
        self.0.borrow_mut().push((step, false));
    }

    fn step_ended(&self, step: Step) {
        self.0.borrow_mut().push((step, true));
    }
}

/// The first term matches no cluster; the last case has too little capacity.
#[rstest]
#[case::by_terms(6, 5, &[Step::Filter, Step::Filter, Step::Score, Step::Select, Step::AssignReplicas])]
#[case::at_once(3, 5, &[Step::Filter, Step::Score, Step::Select, Step::AssignReplicas])]
#[case::without_capacity(3, 0, &[Step::Filter, Step::Score, Step::Select, Step::AssignReplicas])]
fn steps_are_observed_until_one_fails(#[case] placement_id: u8, #[case] capacity: i32, #[case] expected: &[Step]) {
    let (clusters, capacities) = (fleet(3), FixedCapacity(vec![capacity; 3]));
    let mut stored =
        StoredBinding { spec: spec(placement_id, 2), status: ResourceBindingStatus::default(), applied: None };
    let steps = RecordedSteps::default();
    let context = SchedulingContext { observer: &steps, ..context(&clusters, &capacities) };
    let (decided, _) = plan(&context, &stored.binding());
    let each = expected.iter().flat_map(|step| [(*step, false), (*step, true)]);
    assert_eq!(steps.0.take(), each.collect::<Vec<_>>());
    // Keeping a result runs no steps.
    if let Plan::Schedule { clusters, affinity } = decided {
        stored.write(clusters, affinity);
        plan(&context, &stored.binding());
        assert_eq!(steps.0.take(), []);
    }
}
