//! Properties of all scheduling decisions, for random clusters and bindings.

use std::collections::BTreeMap;

use crowsnest_api::policy::Placement;
use crowsnest_api::policy::SpreadFieldValue::Region;
use crowsnest_api::work::{ResourceBindingSpec, ResourceBindingStatus, TargetCluster};
use crowsnest_plan::gates::Gates;
use crowsnest_plan::scheduling::{Plan, Report};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use super::scenario::{Member, SchedulingScenario};

#[derive(Debug, Clone)]
struct SchedulingCase {
    members: BTreeMap<String, Member>,
    replicas: i32,
    placement: Placement,
    assigned_before: BTreeMap<String, i32>,
    uid: String,
}

fn member() -> impl Strategy<Value = Member> {
    let region = select(vec!["", "east", "west"]).prop_map(str::to_owned);
    (proptest::option::weighted(0.9, 0..30_i32), region, 0..10_u8).prop_map(|(free_replicas, region, oddity)| Member {
        free_replicas,
        region,
        taints: if oddity == 0 { vec![json!({"key": "k", "effect": "NoSchedule"})] } else { Vec::new() },
        lacks_kind: oddity == 1,
        terminating: oddity == 2,
        ..Member::default()
    })
}

const DUPLICATED: &str = "Duplicated";

fn strategies() -> impl Strategy<Value = Value> {
    let divided = |preference: &str, weights: Value| {
        json!({
            "replicaSchedulingType": "Divided", "replicaDivisionPreference": preference, "weightPreference": weights,
        })
    };
    let weight = |name: &str, weight: i64| json!({"targetCluster": {"clusterNames": [name]}, "weight": weight});
    prop_oneof![
        Just(json!({"replicaSchedulingType": DUPLICATED})),
        Just(divided("Aggregated", Value::Null)),
        Just(divided("Weighted", Value::Null)),
        Just(divided("Weighted", json!({"dynamicWeight": "AvailableReplicas"}))),
        (1..5_i64, 1..5_i64).prop_map(move |(one, two)| {
            divided("Weighted", json!({"staticWeightList": [weight("m1", one), weight("m2", two)]}))
        }),
    ]
}

fn constraints() -> impl Strategy<Value = Value> {
    let by =
        |field: &str, least: i64, most: i64| json!({"spreadByField": field, "minGroups": least, "maxGroups": most});
    prop_oneof![
        3 => Just(json!([])),
        1 => (1..3_i64, 0..3_i64).prop_map(move |(least, more)| json!([by("cluster", least, least + more)])),
        1 => (1..3_i64, 0..3_i64).prop_map(move |(least, more)| json!([by("region", 1, 2), by("cluster", least, least + more)])),
    ]
}

fn affinities() -> impl Strategy<Value = Value> {
    prop_oneof![
        3 => Just(json!({})),
        1 => Just(json!({"clusterAffinity": {"exclude": ["m3"]}})),
        1 => Just(json!({"clusterAffinities": [
            {"affinityName": "a", "clusterNames": ["m1", "m4"], "overflowAffinities": [{"affinityName": "b", "clusterNames": ["m2"]}]},
            {"affinityName": "c", "exclude": ["m5"]},
        ]})),
    ]
}

fn scheduling_cases(spread: bool) -> impl Strategy<Value = SchedulingCase> {
    let placement =
        (strategies(), constraints(), affinities()).prop_map(move |(strategy, constraints, mut placement)| {
            placement["replicaScheduling"] = strategy;
            if spread {
                placement["spreadConstraints"] = constraints;
            }
            serde_json::from_value(placement).expect("a placement")
        });
    let members = proptest::collection::btree_map("m[1-9]", member(), 1..8);
    let assigned_before = proptest::collection::btree_map("m[1-9]", 1..10_i32, 0..4);
    (members, 1..40_i32, placement, assigned_before, "[a-f0-9]{4}").prop_map(
        |(members, replicas, placement, assigned_before, uid)| SchedulingCase {
            members,
            replicas,
            placement,
            assigned_before,
            uid,
        },
    )
}

/// State after the previous decision.
#[derive(Debug, Clone, Default)]
struct PreviousDecision {
    targets: Vec<TargetCluster>,
    applied: Option<String>,
    affinity: String,
    fresh: bool,
}

impl SchedulingCase {
    fn before(&self) -> PreviousDecision {
        let target = |(name, replicas): (&String, &i32)| TargetCluster {
            name: name.clone(),
            replicas: *replicas,
            ..TargetCluster::default()
        };
        PreviousDecision { targets: self.assigned_before.iter().map(target).collect(), ..PreviousDecision::default() }
    }

    fn decide(&self, before: &PreviousDecision, order: &[Index]) -> (Plan, Report) {
        let mut members: Vec<(&str, &Member)> =
            self.members.iter().map(|(name, member)| (name.as_str(), member)).collect();
        for (position, index) in order.iter().enumerate().take(members.len()) {
            let other = index.index(members.len());
            members.swap(position, other);
        }
        let mut spec: ResourceBindingSpec = serde_json::from_value(json!({
            "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "n", "name": "d", "uid": self.uid},
            "replicas": self.replicas,
            "placement": self.placement,
        }))
        .expect("a spec");
        spec.clusters.clone_from(&before.targets);
        let mut status = json!({
            "schedulerObservingAffinityName": before.affinity, "lastScheduledTime": "2026-01-01T00:00:00Z",
        });
        if before.fresh {
            status["lastScheduledTime"] = json!("2025-01-01T00:00:00Z");
            let now = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
            spec.reschedule_triggered_at = Some(now);
        }
        let status: ResourceBindingStatus = serde_json::from_value(status).expect("a status");
        let applied = before.applied.as_deref();
        let (gates, propagate_empty) = (Gates::default(), false);
        SchedulingScenario { members, spec: &spec, status: &status, applied, peers: &[], gates, propagate_empty }
            .decide()
    }

    fn is_duplicated(&self) -> bool {
        json!(self.placement)["replicaScheduling"]["replicaSchedulingType"] == DUPLICATED
    }

    /// State after a decision, with the placement from the annotation that the scheduler writes.
    fn after(&self, plan: &Plan) -> Option<PreviousDecision> {
        let Plan::Schedule { clusters, affinity } = plan else { return None };
        Some(PreviousDecision {
            targets: clusters.clone(),
            applied: Some(serde_json::to_string(&self.placement).expect("an annotation")),
            affinity: affinity.clone().unwrap_or_default(),
            fresh: false,
        })
    }
}

fn replicas_by_cluster(targets: &[TargetCluster]) -> BTreeMap<&str, i32> {
    targets.iter().map(|target| (target.name.as_str(), target.replicas)).collect()
}

fn total(targets: &[TargetCluster]) -> i32 {
    targets.iter().map(|target| target.replicas).sum()
}

/// Number of replicas in other clusters than before.
fn moved_replicas(before: &[TargetCluster], after: &[TargetCluster]) -> i32 {
    let (before, after) = (replicas_by_cluster(before), replicas_by_cluster(after));
    let names: std::collections::BTreeSet<&str> = before.keys().chain(after.keys()).copied().collect();
    let of = |assigned: &BTreeMap<&str, i32>, name: &str| assigned.get(name).copied().unwrap_or_default();
    names.into_iter().map(|name| (of(&before, name) - of(&after, name)).abs()).sum()
}

/// True if it was decided by the affinity with overflow tiers.
fn is_tiered(plan: &Plan) -> bool {
    matches!(plan, Plan::Schedule { affinity: Some(affinity), .. } if affinity == "a")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_replica_is_assigned(case in scheduling_cases(true)) {
        let (decision, _) = case.decide(&case.before(), &[]);
        if let Plan::Schedule { clusters, .. } = &decision {
            prop_assert!(!clusters.is_empty());
            prop_assert_eq!(replicas_by_cluster(clusters).len(), clusters.len(), "a cluster twice: {:?}", clusters);
            if is_tiered(&decision) && case.is_duplicated() {
                // With several tiers, each tier duplicates its replicas, as in Karmada.
            } else if case.is_duplicated() {
                prop_assert!(clusters.iter().all(|target| target.replicas == case.replicas), "{:?}", clusters);
            } else {
                prop_assert_eq!(total(clusters), case.replicas, "{:?}", clusters);
            }
        }
    }

    #[test]
    fn rejected_clusters_are_never_targets(case in scheduling_cases(true)) {
        let (decision, report) = case.decide(&case.before(), &[]);
        let used = report.terms.last().map(|term| term.clusters.as_slice()).unwrap_or_default();
        if let Plan::Schedule { clusters, .. } = &decision {
            for target in clusters {
                let entry = used.iter().find(|cluster| cluster.name == target.name);
                prop_assert!(entry.is_some_and(|entry| entry.rejected.is_none() && entry.selected), "{}", target.name);
                prop_assert!(!case.members[&target.name].terminating);
            }
        }
    }

    /// Except for duplicates with region constraints (a region with copies is preferred, so that other regions may be
    /// removed) and with tiers (a tier with copies has more capacity).
    #[test]
    fn a_second_decision_changes_nothing(case in scheduling_cases(true)) {
        let regional = case.placement.spread_constraints.iter().any(|by| by.spread_by_field == Some(Region));
        prop_assume!(!(regional && case.is_duplicated()));
        let (first, _) = case.decide(&case.before(), &[]);
        prop_assume!(!(is_tiered(&first) && case.is_duplicated()));
        let Some(after) = case.after(&first) else { return Ok(()) };
        let (second, _) = case.decide(&after, &[]);
        match &second {
            Plan::Schedule { clusters, .. } => {
                prop_assert!(case.is_duplicated(), "divided again: {:?}", clusters);
                prop_assert_eq!(moved_replicas(&after.targets, clusters), 0, "{:?} to {:?}", after.targets, clusters);
            }
            other => prop_assert_eq!(other, &Plan::Keep),
        }
    }

    #[test]
    fn the_order_of_clusters_has_no_effect(case in scheduling_cases(true), order in proptest::collection::vec(any::<Index>(), 8)) {
        let (in_order, _) = case.decide(&case.before(), &[]);
        let (shuffled, _) = case.decide(&case.before(), &order);
        prop_assert_eq!(in_order, shuffled);
    }

    #[test]
    fn changing_one_replica_moves_one(case in scheduling_cases(false), more in any::<bool>()) {
        let (first, _) = case.decide(&case.before(), &[]);
        // Released capacity in an earlier tier is used first.
        let counted = !case.is_duplicated() && !is_tiered(&first);
        let Some(after) = case.after(&first).filter(|_| counted) else { return Ok(()) };
        let scaled = SchedulingCase { replicas: case.replicas + if more { 1 } else { -1 }, ..case.clone() };
        let (second, _) = scaled.decide(&after, &[]);
        let counted = scaled.replicas > 0 && !is_tiered(&second);
        if let (Plan::Schedule { clusters, .. }, true) = (&second, counted) {
            prop_assert_eq!(moved_replicas(&after.targets, clusters), 1, "{:?} to {:?}", after.targets, clusters);
        }
    }

    /// A fresh decision may move any replica; a steady one removes none while scaling up. Both are equal if nothing
    /// was scheduled before.
    #[test]
    fn steady_decisions_keep_replicas_and_fresh_ones_do_not(case in scheduling_cases(false)) {
        let nothing = PreviousDecision::default();
        let as_fresh = |before: PreviousDecision| PreviousDecision { fresh: true, ..before };
        let (steady, _) = case.decide(&nothing, &[]);
        let (fresh, _) = case.decide(&as_fresh(nothing), &[]);
        match (&steady, &fresh) {
            (Plan::Fail { .. }, Plan::Fail { .. }) => {}
            _ => prop_assert_eq!(&steady, &fresh),
        }
        let weights = &json!(case.placement)["replicaScheduling"];
        let by_capacity = weights["replicaDivisionPreference"] == "Aggregated" || !weights["weightPreference"]["dynamicWeight"].is_null();
        let before = case.before();
        let (steady, report) = case.decide(&before, &[]);
        let feasible = report.terms.last().map(|term| term.clusters.as_slice()).unwrap_or_default();
        let stays = |name: &str| feasible.iter().any(|cluster| cluster.name == name && cluster.rejected.is_none());
        let kept: Vec<&TargetCluster> = before.targets.iter().filter(|target| stays(&target.name)).collect();
        let held: i32 = kept.iter().map(|target| target.replicas).sum();
        let grows = by_capacity && held <= case.replicas && !is_tiered(&steady);
        if let (Plan::Schedule { clusters, .. }, true) = (&steady, grows) {
            let replicas = replicas_by_cluster(clusters);
            for target in kept {
                let free_replicas = case.members[&target.name].free_replicas.unwrap_or(case.replicas);
                let has = replicas.get(target.name.as_str()).copied().unwrap_or_default();
                prop_assert!(has >= target.replicas, "{} lost some: {:?}", target.name, clusters);
                prop_assert!(has <= target.replicas + free_replicas, "{} has too many: {:?}", target.name, clusters);
            }
        }
    }
}
