//! Eviction from tainted clusters, and when an eviction has ended. Evictions of unhealthy workloads are [`application`]'s.

pub mod application;
pub mod state;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::policy::{FailoverBehavior, Placement, PurgeMode};
use crowsnest_api::taints;
use crowsnest_api::work::{GracefulEvictionTask, ResourceBindingSpec, ResourceBindingStatus, ResourceHealth};
use k8s_openapi::api::core::v1::{Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// What a cluster's NoExecute taints mean for a binding that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaintDecision {
    Stay,
    EvictAt(Timestamp),
}

/// Not tolerated: now. Tolerated for a time: at the earliest end, counted from when each taint was put. Of several
/// tolerations that cover a taint the first is used, and for all the taints it covers.
pub fn by_taints(cluster: &Cluster, tolerations: &[Toleration], now: Timestamp) -> TaintDecision {
    let taints: Vec<&Taint> = cluster.spec.taints.iter().filter(|taint| taint.effect == taints::NO_EXECUTE).collect();
    let covering = |taint: &&Taint| tolerations.iter().find(|toleration| taints::tolerates(toleration, taint));
    let Some(used) = taints.iter().map(covering).collect::<Option<Vec<&Toleration>>>() else {
        return TaintDecision::EvictAt(now);
    };
    let ends = used.iter().filter_map(|toleration| Some((toleration, toleration.toleration_seconds?)));
    let ends = ends.flat_map(|(toleration, seconds)| {
        let covered = taints.iter().filter(|taint| taints::tolerates(toleration, taint));
        covered.filter_map(move |taint| end_of(taint, seconds))
    });
    ends.min().map_or(TaintDecision::Stay, TaintDecision::EvictAt)
}

/// When a taint has been tolerated for so long; never, when it isn't known since when it is there.
fn end_of(taint: &Taint, seconds: i64) -> Option<Timestamp> {
    let added = taint.time_added.as_ref()?.0;
    Some(added.saturating_add(SignedDuration::from_secs(seconds.max(0))).unwrap_or(Timestamp::MAX))
}

/// Why the taint manager can't tell what a binding tolerates.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    #[error("the applied placement for ResourceBining can not be empty")]
    Missing,
    #[error("the applied placement cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
}

/// The tolerations of the placement the current result was made with.
pub fn applied_tolerations(applied_placement: Option<&str>) -> Result<Vec<Toleration>, PlacementError> {
    let text = applied_placement.filter(|text| !text.is_empty()).ok_or(PlacementError::Missing)?;
    Ok(serde_json::from_str::<Placement>(text)?.cluster_tolerations)
}

/// How the taint manager evicts: the policy's cluster failover mode, else the fleet's.
pub fn purge_mode(failover: Option<&FailoverBehavior>, fleet: PurgeMode) -> PurgeMode {
    match failover.and_then(|failover| failover.cluster.as_ref()) {
        Some(cluster) => cluster.purge_mode.clone().unwrap_or(PurgeMode::Gracefully),
        None => fleet,
    }
}

/// The spec with `cluster` evicted: it is no target any more, and a task remembers it. `None` when it was no target.
pub fn evict(spec: &ResourceBindingSpec, cluster: &str, task: GracefulEvictionTask) -> Option<ResourceBindingSpec> {
    let target = spec.clusters.iter().find(|target| target.name == cluster)?;
    let replicas = (target.replicas > 0).then_some(target.replicas);
    let mut evicted = spec.clone();
    evicted.clusters.retain(|target| target.name != cluster);
    if !spec.evicts(cluster) {
        evicted.graceful_eviction_tasks.push(GracefulEvictionTask {
            from_cluster: cluster.to_owned(),
            replicas,
            ..task
        });
    }
    Some(evicted)
}

/// The tasks that go on, and when to look again.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskPlan {
    pub tasks: Vec<GracefulEvictionTask>,
    pub look_again: Option<Timestamp>,
}

/// What an eviction needs to end (`--failover-safety`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Safety {
    /// Something that has replaced the copy.
    #[default]
    Safe,
    /// As Karmada: time is enough, and a binding without any target counts as healthy.
    Karmada,
}

/// What the end of an eviction depends on.
pub struct Evicting<'a> {
    pub safety: Safety,
    pub generation: i64,
    pub spec: &'a ResourceBindingSpec,
    pub status: &'a ResourceBindingStatus,
    /// For tasks that don't say how long the copy is kept.
    pub timeout: SignedDuration,
    /// Clusters that are gone or going, which keep no copy whatever is decided here.
    pub leaving: &'a [String],
}

impl Evicting<'_> {
    fn is_healthy(&self, cluster: &str) -> bool {
        let item = self.status.aggregated_status.iter().find(|item| item.cluster_name == cluster);
        item.is_some_and(|item| item.health == Some(ResourceHealth::Healthy))
    }

    /// Whether every copy that should be is there and well. No target at all replaces nothing.
    fn is_replaced(&self) -> bool {
        let targets = &self.spec.clusters;
        self.status.scheduler_observed_generation == self.generation
            && (self.safety == Safety::Karmada || !targets.is_empty())
            && targets.iter().all(|target| self.is_healthy(&target.name))
    }

    /// Whether the copy may go when its time is over: not when it is the last good one, unless that was asked for.
    fn may_time_out(&self, task: &GracefulEvictionTask) -> bool {
        self.safety == Safety::Karmada
            || task.purge_mode == Some(PurgeMode::Directly)
            || self.leaving.contains(&task.from_cluster)
            || self.spec.clusters.iter().any(|target| self.is_healthy(&target.name))
    }

    fn end_of(&self, task: &GracefulEvictionTask, created: Timestamp) -> Timestamp {
        let seconds = task.grace_period_seconds.map(|seconds| SignedDuration::from_secs(seconds.into()));
        created.saturating_add(seconds.unwrap_or(self.timeout)).unwrap_or(Timestamp::MAX)
    }
}

/// Ends tasks whose replacement is healthy or whose time is over; stamps new ones. A task whose time is over while nothing
/// has replaced the copy goes on until something has.
pub fn tasks(evicting: &Evicting<'_>, now: Timestamp) -> TaskPlan {
    let replaced = evicting.is_replaced();
    let mut plan = TaskPlan { tasks: Vec::new(), look_again: None };
    for task in &evicting.spec.graceful_eviction_tasks {
        let Some(created) = &task.creation_timestamp else {
            plan.tasks.push(GracefulEvictionTask { creation_timestamp: Some(Time(now)), ..task.clone() });
            continue;
        };
        match task.suppress_deletion {
            Some(true) => plan.tasks.push(task.clone()),
            Some(false) => {}
            None if replaced => {}
            None => {
                let end = evicting.end_of(task, created.0);
                if now < end {
                    plan.look_again = Some(plan.look_again.map_or(end, |earlier| earlier.min(end)));
                    plan.tasks.push(task.clone());
                } else if !evicting.may_time_out(task) {
                    plan.tasks.push(task.clone());
                }
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("readable")
    }

    fn no_execute(key: &str, added: Option<i64>) -> Value {
        json!({"key": key, "effect": "NoExecute", "timeAdded": added.map(|second| at(second).to_string())})
    }

    const NOW: i64 = 1000;

    #[rstest]
    #[case::no_taint(json!([]), json!([]), TaintDecision::Stay)]
    #[case::another_effect(json!([{"key": "a", "effect": "NoSchedule"}]), json!([]), TaintDecision::Stay)]
    #[case::not_tolerated(json!([no_execute("a", Some(990))]), json!([]), TaintDecision::EvictAt(at(NOW)))]
    #[case::one_of_two_not_tolerated(
        json!([no_execute("a", Some(990)), no_execute("b", Some(990))]), json!([{"key": "a", "operator": "Exists"}]),
        TaintDecision::EvictAt(at(NOW))
    )]
    #[case::for_ever(json!([no_execute("a", Some(1))]), json!([{"operator": "Exists"}]), TaintDecision::Stay)]
    #[case::for_a_time(
        json!([no_execute("a", Some(990))]), json!([{"operator": "Exists", "tolerationSeconds": 30}]),
        TaintDecision::EvictAt(at(1020))
    )]
    #[case::the_first_counts_not_the_shortest(
        json!([no_execute("a", Some(990))]),
        json!([{"operator": "Exists"}, {"operator": "Exists", "tolerationSeconds": 6}]),
        TaintDecision::Stay
    )]
    #[case::the_first_counts_though_it_is_shorter(
        json!([no_execute("a", Some(990))]),
        json!([{"operator": "Exists", "tolerationSeconds": 6}, {"operator": "Exists"}]),
        TaintDecision::EvictAt(at(996))
    )]
    #[case::the_earliest_end_of_all_it_covers(
        json!([no_execute("a", Some(990)), no_execute("b", Some(980))]),
        json!([{"key": "a", "operator": "Exists"}, {"operator": "Exists", "tolerationSeconds": 50}]),
        TaintDecision::EvictAt(at(1030))
    )]
    #[case::since_when_is_unknown(
        json!([no_execute("a", None)]), json!([{"operator": "Exists", "tolerationSeconds": 30}]), TaintDecision::Stay
    )]
    fn taints_evict(#[case] taints: Value, #[case] tolerations: Value, #[case] expected: TaintDecision) {
        let cluster: Cluster = read(json!({"metadata": {"name": "c"}, "spec": {"syncMode": "Push", "taints": taints}}));
        assert_eq!(by_taints(&cluster, &read::<Vec<Toleration>>(tolerations), at(NOW)), expected);
    }

    #[rstest]
    #[case::missing(None, "the applied placement for ResourceBining can not be empty")]
    #[case::empty(Some(""), "the applied placement for ResourceBining can not be empty")]
    #[case::garbled(Some("{"), "the applied placement cannot be read: EOF while parsing an object at line 1 column 1")]
    fn without_an_applied_placement_nothing_is_known(#[case] annotation: Option<&str>, #[case] expected: &str) {
        assert_eq!(applied_tolerations(annotation).expect_err("no tolerations").to_string(), expected);
    }

    /// An eviction from `old` with a grace period of 60 s that began at 900; whether it goes on at 930 and at 1000.
    #[rstest]
    #[case::replaced(json!(["new"]), &[("new", "Healthy")], json!({}), [false, false])]
    #[case::half_replaced(json!(["new", "other"]), &[("new", "Healthy")], json!({}), [true, false])]
    #[case::replacement_unwell(json!(["new"]), &[("new", "Unhealthy")], json!({}), [true, true])]
    #[case::replacement_unknown(json!(["new"]), &[], json!({}), [true, true])]
    #[case::nowhere_to_go(json!([]), &[("old", "Healthy")], json!({}), [true, true])]
    #[case::nowhere_to_go_but_purged(json!([]), &[], json!({"purgeMode": "Directly"}), [true, false])]
    #[case::nowhere_to_go_but_confirmed(json!([]), &[], json!({"suppressDeletion": false}), [false, false])]
    #[case::kept_by_hand(json!(["new"]), &[("new", "Healthy")], json!({"suppressDeletion": true}), [true, true])]
    #[case::its_cluster_leaves(json!([]), &[], json!({"fromCluster": "leaving"}), [true, false])]
    fn an_eviction_ends(
        #[case] targets: Value,
        #[case] health: &[(&str, &str)],
        #[case] special: Value,
        #[case] expected: [bool; 2],
    ) {
        let mut task = json!({"fromCluster": "old", "reason": "", "producer": "", "gracePeriodSeconds": 60,
            "creationTimestamp": at(900).to_string()});
        for (field, value) in special.as_object().expect("fields") {
            task[field] = value.clone();
        }
        let targets: Vec<Value> =
            targets.as_array().expect("names").iter().map(|name| json!({"name": name, "replicas": 1})).collect();
        let items: Vec<Value> =
            health.iter().map(|(name, health)| json!({"clusterName": name, "health": health})).collect();
        let spec: ResourceBindingSpec =
            read(json!({"resource": {"apiVersion": "v1", "kind": "ConfigMap", "name": "c"},
            "clusters": targets, "gracefulEvictionTasks": [task]}));
        let status: ResourceBindingStatus = read(json!({"schedulerObservedGeneration": 3, "aggregatedStatus": items}));
        let leaving = ["leaving".to_owned()];
        let timeout = SignedDuration::from_secs(600);
        let safety = Safety::Safe;
        let evicting = Evicting { safety, generation: 3, spec: &spec, status: &status, timeout, leaving: &leaving };
        for (now, goes_on) in [(930, expected[0]), (NOW, expected[1])] {
            let plan = tasks(&evicting, at(now));
            assert_eq!(plan.tasks.len(), usize::from(goes_on), "at {now}");
            // A copy that is kept beyond its time waits for its replacement, not for the clock.
            let suppressed = spec.graceful_eviction_tasks[0].suppress_deletion.is_some();
            let waits = goes_on && now < 960 && !suppressed;
            assert_eq!(plan.look_again, waits.then(|| at(960)), "at {now}");
        }
        let unseen = tasks(&Evicting { generation: 4, ..evicting }, at(930));
        assert_eq!(unseen.tasks.len(), usize::from(special["suppressDeletion"] != json!(false)));
    }

    /// The same eviction where Karmada's rule was asked for; the replacement, if any, is not well.
    #[rstest]
    #[case::nowhere_to_go(json!([]), [false, false])]
    #[case::replacement_unwell(json!([{"name": "new", "replicas": 1}]), [true, false])]
    fn with_karmadas_rule_time_is_enough(#[case] targets: Value, #[case] expected: [bool; 2]) {
        let spec: ResourceBindingSpec =
            read(json!({"resource": {"apiVersion": "v1", "kind": "ConfigMap", "name": "c"}, "clusters": targets,
            "gracefulEvictionTasks": [{"fromCluster": "old", "reason": "", "producer": "", "gracePeriodSeconds": 60,
                "creationTimestamp": at(900).to_string()}]}));
        let status: ResourceBindingStatus = read(json!({"schedulerObservedGeneration": 3}));
        let timeout = SignedDuration::from_secs(600);
        let evicting =
            Evicting { safety: Safety::Karmada, generation: 3, spec: &spec, status: &status, timeout, leaving: &[] };
        for (now, goes_on) in [(930, expected[0]), (NOW, expected[1])] {
            assert_eq!(tasks(&evicting, at(now)).tasks.len(), usize::from(goes_on), "at {now}");
        }
    }
}
