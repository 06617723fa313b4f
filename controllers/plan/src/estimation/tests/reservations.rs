//! Reservations count exactly once until the pods run, and an incrementally updated free capacity equals a rebuilt one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::work::{ResourceBindingSpec, ResourceBindingStatus};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::{capacity_facts, cluster, key, spec, targets, yaml};
use crate::estimation::Estimator;
use crate::estimation::free_capacity::{EstimateCache, FreeCapacity};
use crate::estimation::ledger::{Ledger, MonotonicTime, RESERVATION_LIFETIME};
use crate::estimation::request::EstimateRequest;
use crate::gates::Gates;
use crate::scheduling::Estimate;

/// Status of a binding: health and ready replicas per cluster.
fn status(items: &[(&str, &str, Option<i32>)]) -> ResourceBindingStatus {
    let item = |(cluster, health, ready): &(&str, &str, Option<i32>)| {
        let mut item = json!({"clusterName": cluster, "applied": true, "health": health});
        if let Some(ready) = ready {
            item["status"] = json!({"replicas": ready, "readyReplicas": ready});
        }
        item
    };
    let items: Vec<Value> = items.iter().map(item).collect();
    serde_json::from_value(json!({"aggregatedStatus": items})).expect("a status")
}

/// A ledger where binding 1 has 4 replicas in `a` and 2 in `b`, written as generation 2.
fn reserved(now: MonotonicTime) -> Ledger {
    let mut ledger = Ledger::new(Gates::all());
    let assigned = targets(&[("a", 4), ("b", 2)]);
    ledger.reserve(&key(1), &spec(6, "1", &[]), &ResourceBindingStatus::default(), &assigned, now);
    ledger.confirm_write(&key(1), 2);
    ledger
}

#[rstest]
#[case::without_status(2, &[("a", 4), ("b", 2)], &[], (4, 2))]
#[case::healthy(2, &[("a", 4), ("b", 2)], &[("a", "Healthy", Some(4)), ("b", "Unhealthy", Some(0))], (0, 2))]
#[case::partly_ready(2, &[("a", 4), ("b", 2)], &[("a", "Unhealthy", Some(3)), ("b", "Unknown", None)], (1, 2))]
#[case::removed_target(3, &[("b", 2)], &[], (0, 2))]
#[case::reduced_target(3, &[("a", 1), ("b", 2)], &[], (1, 2))]
#[case::status_of_an_older_generation(1, &[], &[("a", "Healthy", Some(4))], (4, 2))]
fn status_releases_reservations(
    #[case] generation: i64,
    #[case] clusters: &[(&str, i32)],
    #[case] items: &[(&str, &str, Option<i32>)],
    #[case] expected: (i64, i64),
) {
    let mut ledger = reserved(Duration::ZERO);
    let freed = ledger.observe_status(&key(1), generation, &spec(6, "1", clusters), &status(items));
    assert_eq!((ledger.reserved_pods("a"), ledger.reserved_pods("b")), expected);
    assert_eq!(freed, expected != (4, 2));
}

#[test]
fn scaling_up_reserves_only_additional_replicas() {
    let now = Duration::ZERO;
    let mut ledger = Ledger::new(Gates::all());
    let (previous, healthy) = ([("a", 4)], status(&[("a", "Healthy", Some(4))]));
    ledger.reserve(&key(1), &spec(7, "1", &previous), &healthy, &targets(&[("a", 7)]), now);
    ledger.confirm_write(&key(1), 3);
    assert_eq!(ledger.reserved_pods("a"), 3);
    // The status does not report the new replicas yet.
    ledger.observe_status(&key(1), 3, &spec(7, "1", &[("a", 7)]), &healthy);
    assert_eq!(ledger.reserved_pods("a"), 3);
    ledger.observe_status(&key(1), 3, &spec(7, "1", &[("a", 7)]), &status(&[("a", "Unhealthy", Some(5))]));
    assert_eq!(ledger.reserved_pods("a"), 2);
    ledger.observe_status(&key(1), 3, &spec(7, "1", &[("a", 7)]), &status(&[("a", "Healthy", None)]));
    assert_eq!(ledger.reserved_pods("a"), 0);
    assert!(!ledger.has_reservations(&key(1)));
}

#[test]
fn unfulfilled_reservations_survive_a_new_decision() {
    let now = Duration::ZERO;
    let mut ledger = reserved(now);
    // One more replica in a, which reports none yet; b is removed, c is added.
    let spec = spec(8, "1", &[("a", 4), ("b", 2)]);
    ledger.reserve(&key(1), &spec, &ResourceBindingStatus::default(), &targets(&[("a", 5), ("c", 3)]), now);
    let reserved = |ledger: &Ledger| ["a", "b", "c"].map(|cluster| ledger.reserved_pods(cluster));
    assert_eq!(reserved(&ledger), [5, 0, 3]);
    assert!(ledger.discard_write(&key(1)), "c's capacity is released");
    assert_eq!(reserved(&ledger), [4, 2, 0]);
}

#[test]
fn reservations_end_with_their_binding_and_expire() {
    let now = Duration::ZERO;
    let mut ledger = reserved(now);
    assert!(ledger.forget(&key(1)));
    // The response to a write in progress arrives too late.
    ledger.confirm_write(&key(1), 3);
    assert_eq!((ledger.reserved_pods("a"), ledger.has_reservations(&key(1))), (0, false));

    let mut ledger = reserved(now);
    assert!(!ledger.expire(now + RESERVATION_LIFETIME - Duration::from_secs(1)));
    assert!(ledger.expire(now + RESERVATION_LIFETIME));
    assert_eq!((ledger.reserved_pods("a"), ledger.has_reservations(&key(1))), (0, false));
}

#[test]
fn components_are_reserved_as_whole_sets() {
    let spec: ResourceBindingSpec = yaml(
        "
resource: {apiVersion: flink.apache.org/v1beta1, kind: FlinkDeployment, namespace: team, name: job}
components:
- {name: job, replicas: 1, replicaRequirements: {resourceRequest: {cpu: '1'}}}
- {name: task, replicas: 3, replicaRequirements: {resourceRequest: {cpu: 500m}}}
",
    );
    let (now, empty_status) = (Duration::ZERO, ResourceBindingStatus::default());
    let mut ledger = Ledger::new(Gates::all());
    ledger.reserve(&key(1), &spec, &empty_status, &targets(&[("a", 0)]), now);
    assert_eq!(ledger.reserved_pods("a"), 4);
    let capacity = ledger.free_capacity(&cluster("a", "4"), &capacity_facts(&["4"]), &key(2));
    assert_eq!(
        capacity.estimate(&EstimateRequest::for_component_sets(&spec.components)),
        0,
        "2.5 of 4 CPUs are reserved"
    );
    assert_eq!(capacity.without_reservations().estimate(&EstimateRequest::for_component_sets(&spec.components)), 1);
    let capacity_of_own_binding = ledger.free_capacity(&cluster("a", "4"), &capacity_facts(&["4"]), &key(1));
    assert_eq!(
        capacity_of_own_binding.estimate(&EstimateRequest::for_component_sets(&spec.components)),
        1,
        "its own reservation is not subtracted"
    );
}

#[test]
fn feature_gate_disables_reservations() {
    let gates = Gates { scheduling_overcommit_protection: false, ..Gates::all() };
    let mut ledger = Ledger::new(gates);
    let assigned = targets(&[("a", 4)]);
    ledger.reserve(&key(1), &spec(4, "1", &[]), &ResourceBindingStatus::default(), &assigned, Duration::ZERO);
    assert_eq!((ledger.reserved_pods("a"), ledger.has_reservations(&key(1))), (0, false));
}

#[test]
fn burst_of_decisions_does_not_overcommit() {
    let (facts, node_facts) = (cluster("a", "8"), capacity_facts(&["4", "4"]));
    let mut ledger = Ledger::new(Gates::all());
    let cache = EstimateCache::default();
    let mut assigned = 0;
    for number in 0..20 {
        let spec = spec(3, "1", &[]);
        let free_capacities = vec![ledger.free_capacity(&facts, &node_facts, &key(number))];
        let estimator = Estimator { free_capacities, cache: &cache };
        let replicas = estimator.replicas(&[0], spec.replica_requirements.as_ref())[0].expect("known");
        if replicas >= 3 {
            assigned += 3;
            let empty_status = ResourceBindingStatus::default();
            ledger.reserve(&key(number), &spec, &empty_status, &targets(&[("a", 3)]), Duration::ZERO);
            ledger.confirm_write(&key(number), 1);
        }
    }
    assert_eq!(assigned, 6);
}

/// An event of a binding.
#[derive(Debug, Clone)]
enum Step {
    /// A scheduling decision: replicas per cluster.
    Decide([u8; 3]),
    WriteSucceeded,
    WriteFailed,
    /// A status update: ready replicas per cluster.
    Ready([u8; 3]),
    Healthy(u8),
    Deleted,
    /// Seconds pass.
    Wait(u16),
}

fn steps() -> impl Strategy<Value = Vec<(u8, Step)>> {
    let step = prop_oneof![
        3 => any::<[u8; 3]>().prop_map(|replicas| Step::Decide(replicas.map(|replicas| replicas % 6))),
        3 => Just(Step::WriteSucceeded),
        1 => Just(Step::WriteFailed),
        2 => any::<[u8; 3]>().prop_map(|ready| Step::Ready(ready.map(|ready| ready % 6))),
        1 => (0..3_u8).prop_map(Step::Healthy),
        1 => Just(Step::Deleted),
        1 => (0..400_u16).prop_map(Step::Wait),
    ];
    proptest::collection::vec((0..4_u8, step), 1..60)
}

const CLUSTERS: [&str; 3] = ["a", "b", "c"];

/// State of a binding in the control plane, and its expected reservations.
#[derive(Debug, Clone, Default)]
struct Model {
    generation: i64,
    clusters: [i32; 3],
    /// Reservations of the last written decision, by cluster.
    reserved: [i32; 3],
    /// Expiry of these reservations.
    until: Option<MonotonicTime>,
    /// Write in progress: assigned replicas, reservations and expiry.
    pending: Option<([i32; 3], [i32; 3], Option<MonotonicTime>)>,
}

impl Model {
    fn reserved(&self) -> [i32; 3] {
        self.pending.map_or(self.reserved, |(_, reserved, _)| reserved)
    }

    fn targets(clusters: [i32; 3]) -> Vec<(&'static str, i32)> {
        CLUSTERS.into_iter().zip(clusters).filter(|(_, replicas)| *replicas > 0).collect()
    }
}

proptest! {
    /// For every order of decisions, writes, status updates and deletions, the reservations equal the assigned pods
    /// that do not run, and an incrementally updated free capacity equals a rebuilt one.
    #[test]
    fn reservations_are_neither_lost_nor_doubled(steps in steps()) {
        let (mut ledger, mut now) = (Ledger::new(Gates::all()), Duration::ZERO);
        let mut models: BTreeMap<u8, Model> = BTreeMap::new();
        let facts = CLUSTERS.map(|name| cluster(name, "40"));
        let node_facts = capacity_facts(&["10", "10", "10", "10"]);
        for (number, step) in steps {
            let id = key(number);
            let is_write_pending = models.values().any(|model| model.pending.is_some());
            let model = models.entry(number).or_default();
            let total = |clusters: [i32; 3]| clusters.iter().sum::<i32>();
            match step.clone() {
                Step::Decide(replicas) if model.pending.is_none() && replicas != [0; 3] => {
                    let assigned = replicas.map(i32::from);
                    let spec = spec(total(assigned), "1", &Model::targets(model.clusters));
                    let empty_status = ResourceBindingStatus::default();
                    ledger.reserve(&id, &spec, &empty_status, &targets(&Model::targets(assigned)), now);
                    // The reservation contains the missing replicas and those assigned in addition to the previous ones.
                    let reserved: [i32; 3] = std::array::from_fn(|nth| {
                        let reported = model.clusters[nth] - model.reserved[nth];
                        (assigned[nth] - reported).max(0)
                    });
                    let grew = (0..3).any(|nth| reserved[nth] > 0 && reserved[nth] != model.reserved[nth]);
                    let until = if grew || total(model.reserved) == 0 { Some(now + RESERVATION_LIFETIME) } else { model.until };
                    model.pending = Some((assigned, reserved, until));
                }
                Step::WriteSucceeded => if let Some((clusters, reserved, until)) = model.pending.take() {
                    (model.clusters, model.reserved, model.until) = (clusters, reserved, until);
                    model.generation += 1;
                    ledger.confirm_write(&id, model.generation);
                },
                Step::WriteFailed => if model.pending.take().is_some() {
                    ledger.discard_write(&id);
                },
                Step::Ready(ready) => {
                    let ready = ready.map(i32::from);
                    let spec = spec(total(model.clusters), "1", &Model::targets(model.clusters));
                    let items: Vec<_> = CLUSTERS.into_iter().zip(ready).map(|(name, ready)| (name, "Unhealthy", Some(ready))).collect();
                    ledger.observe_status(&id, model.generation, &spec, &status(&items));
                    let missing: [i32; 3] = std::array::from_fn(|nth| (model.clusters[nth] - ready[nth]).max(0));
                    model.reserved = std::array::from_fn(|nth| model.reserved[nth].min(missing[nth]));
                }
                Step::Healthy(nth) => {
                    let spec = spec(total(model.clusters), "1", &Model::targets(model.clusters));
                    ledger.observe_status(&id, model.generation, &spec, &status(&[(CLUSTERS[usize::from(nth)], "Healthy", None)]));
                    model.reserved[usize::from(nth)] = 0;
                }
                Step::Deleted => {
                    ledger.forget(&id);
                    *model = Model { generation: model.generation, ..Model::default() };
                }
                Step::Wait(seconds) => {
                    now += Duration::from_secs(u64::from(seconds));
                    // Writes finish before reservations expire.
                    if !is_write_pending {
                        ledger.expire(now);
                        for model in models.values_mut().filter(|model| model.until.is_some_and(|until| until <= now)) {
                            model.reserved = [0; 3];
                        }
                    }
                }
                Step::Decide(_) => {}
            }
            for (nth, name) in CLUSTERS.into_iter().enumerate() {
                let expected: i64 = models.values().map(|model| i64::from(model.reserved()[nth])).sum();
                prop_assert_eq!(ledger.reserved_pods(name), expected, "in {} after {:?} of {}", name, &step, number);
                let capacity = ledger.free_capacity(&facts[nth], &node_facts, &key(99));
                let estimate = |capacity: &FreeCapacity| capacity.estimate(&EstimateRequest::for_replicas(spec(1, "1", &[]).replica_requirements.as_ref()));
                prop_assert_eq!(estimate(&capacity), 40 - expected.min(40));
                prop_assert_eq!(estimate(&capacity.without_reservations()), 40);
            }
        }
        for number in models.keys() {
            ledger.forget(&key(*number));
        }
        prop_assert!(CLUSTERS.iter().all(|name| ledger.reserved_pods(name) == 0));
    }

    /// A cached estimate equals a fresh one.
    #[test]
    fn estimates_are_cached_only_while_free_capacity_is_unchanged(steps in proptest::collection::vec((0..3_usize, 0..4_u8, 1..4_i32), 1..40)) {
        let facts = CLUSTERS.map(|name| cluster(name, "12"));
        let (mut ledger, cache) = (Ledger::new(Gates::all()), EstimateCache::default());
        let node_facts = capacity_facts(&["4", "4", "4"]);
        for (nth, number, replicas) in steps {
            let assigned = targets(&[(CLUSTERS[nth], replicas)]);
            ledger.reserve(&key(number), &spec(replicas, "1", &[]), &ResourceBindingStatus::default(), &assigned, Duration::ZERO);
            ledger.confirm_write(&key(number), 1);
            let free_capacities: Vec<Arc<FreeCapacity>> = facts.iter().map(|facts| ledger.free_capacity(facts, &node_facts, &key(9))).collect();
            let estimator = Estimator { free_capacities: free_capacities.clone(), cache: &cache };
            let spec = spec(1, "1500m", &[]);
            let request = EstimateRequest::for_replicas(spec.replica_requirements.as_ref());
            for cluster_indexes in [vec![0, 1, 2], vec![nth]] {
                let expected: Vec<Option<i32>> =
                    cluster_indexes.iter().map(|index| i32::try_from(free_capacities[*index].estimate(&request)).ok()).collect();
                prop_assert_eq!(estimator.replicas(&cluster_indexes, spec.replica_requirements.as_ref()), expected);
            }
        }
    }
}
