//! Eviction from tainted clusters. [`rate`] limits and halts evictions, [`tasks`] decides when an eviction task is
//! complete under the conditions of [`safety`], [`failback`] moves workloads back, and [`application`] evicts unhealthy
//! workloads.

pub mod application;
pub mod failback;
pub mod rate;
pub mod safety;
pub mod state;
pub mod tasks;

pub use safety::Safety;

use crowsnest_api::cluster::Cluster;
use crowsnest_api::policy::{FailoverBehavior, Placement, PurgeMode};
use crowsnest_api::work::{GracefulEvictionTask, ResourceBindingSpec};
use crowsnest_apimachinery::taints;
use k8s_openapi::api::core::v1::{Taint, Toleration};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Effect of a cluster's NoExecute taints on a binding assigned to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaintDecision {
    Stay,
    EvictAt(Timestamp),
}

/// Evaluates NoExecute taints. An untolerated taint evicts now. Otherwise the earliest end of a toleration with
/// `tolerationSeconds` decides, counted from the taint's `timeAdded`. Only the first toleration that matches a taint is
/// used, but it then applies to all taints that it matches.
pub fn evaluate_taints(cluster: &Cluster, tolerations: &[Toleration], now: Timestamp) -> TaintDecision {
    let taints: Vec<&Taint> = cluster.spec.taints.iter().filter(|taint| taint.effect == taints::NO_EXECUTE).collect();
    let find_toleration = |taint: &&Taint| tolerations.iter().find(|toleration| taints::tolerates(toleration, taint));
    let Some(used_tolerations) = taints.iter().map(find_toleration).collect::<Option<Vec<&Toleration>>>() else {
        return TaintDecision::EvictAt(now);
    };
    let limits = used_tolerations.iter().filter_map(|toleration| Some((toleration, toleration.toleration_seconds?)));
    let ends = limits.flat_map(|(toleration, seconds)| {
        let tolerated_taints = taints.iter().filter(|taint| taints::tolerates(toleration, taint));
        tolerated_taints.filter_map(move |taint| toleration_end(taint, seconds))
    });
    ends.min().map_or(TaintDecision::Stay, TaintDecision::EvictAt)
}

/// End of a toleration. Never, if the taint has no `timeAdded`.
fn toleration_end(taint: &Taint, seconds: i64) -> Option<Timestamp> {
    let time_added = taint.time_added.as_ref()?.0;
    Some(time_added.saturating_add(SignedDuration::from_secs(seconds.max(0))).unwrap_or(Timestamp::MAX))
}

/// Error of an applied placement. The tolerations of the binding are then unknown.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    #[error("the applied placement for ResourceBining can not be empty")]
    Missing,
    #[error("the applied placement cannot be read: {0}")]
    Unparsable(#[from] serde_json::Error),
}

/// Tolerations of the placement that the current scheduling result was made with.
pub fn applied_tolerations(applied_placement: Option<&str>) -> Result<Vec<Toleration>, PlacementError> {
    let text = applied_placement.filter(|text| !text.is_empty()).ok_or(PlacementError::Missing)?;
    Ok(serde_json::from_str::<Placement>(text)?.cluster_tolerations)
}

/// Purge mode of the taint manager: that of the policy's cluster failover, otherwise `default_mode`, which is
/// configured for the fleet.
pub fn purge_mode(failover: Option<&FailoverBehavior>, default_mode: PurgeMode) -> PurgeMode {
    match failover.and_then(|failover| failover.cluster.as_ref()) {
        Some(cluster) => cluster.purge_mode.clone().unwrap_or(PurgeMode::Gracefully),
        None => default_mode,
    }
}

/// The spec with `cluster` evicted: removed from the targets and added as graceful eviction task. `None` if it is not
/// a target.
pub fn evict(spec: &ResourceBindingSpec, cluster: &str, task: GracefulEvictionTask) -> Option<ResourceBindingSpec> {
    let target = spec.clusters.iter().find(|target| target.name == cluster)?;
    let replicas = (target.replicas > 0).then_some(target.replicas);
    let mut updated = spec.clone();
    updated.clusters.retain(|target| target.name != cluster);
    if !spec.evicts(cluster) {
        updated.graceful_eviction_tasks.push(GracefulEvictionTask {
            from_cluster: cluster.to_owned(),
            replicas,
            ..task
        });
    }
    Some(updated)
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
    #[case::tolerated_forever(json!([no_execute("a", Some(1))]), json!([{"operator": "Exists"}]), TaintDecision::Stay)]
    #[case::tolerated_for_some_time(
        json!([no_execute("a", Some(990))]), json!([{"operator": "Exists", "tolerationSeconds": 30}]),
        TaintDecision::EvictAt(at(1020))
    )]
    #[case::first_toleration_is_longer(
        json!([no_execute("a", Some(990))]),
        json!([{"operator": "Exists"}, {"operator": "Exists", "tolerationSeconds": 6}]),
        TaintDecision::Stay
    )]
    #[case::first_toleration_is_shorter(
        json!([no_execute("a", Some(990))]),
        json!([{"operator": "Exists", "tolerationSeconds": 6}, {"operator": "Exists"}]),
        TaintDecision::EvictAt(at(996))
    )]
    #[case::earliest_end_of_all_tolerated_taints(
        json!([no_execute("a", Some(990)), no_execute("b", Some(980))]),
        json!([{"key": "a", "operator": "Exists"}, {"operator": "Exists", "tolerationSeconds": 50}]),
        TaintDecision::EvictAt(at(1030))
    )]
    #[case::without_time_added(
        json!([no_execute("a", None)]), json!([{"operator": "Exists", "tolerationSeconds": 30}]), TaintDecision::Stay
    )]
    fn taints_evict(#[case] taints: Value, #[case] tolerations: Value, #[case] expected: TaintDecision) {
        let cluster: Cluster = read(json!({"metadata": {"name": "c"}, "spec": {"syncMode": "Push", "taints": taints}}));
        assert_eq!(evaluate_taints(&cluster, &read::<Vec<Toleration>>(tolerations), at(NOW)), expected);
    }

    #[rstest]
    #[case::missing(None, "the applied placement for ResourceBining can not be empty")]
    #[case::empty(Some(""), "the applied placement for ResourceBining can not be empty")]
    #[case::invalid_json(
        Some("{"),
        "the applied placement cannot be read: EOF while parsing an object at line 1 column 1"
    )]
    fn missing_applied_placement_is_an_error(#[case] annotation: Option<&str>, #[case] expected: &str) {
        assert_eq!(applied_tolerations(annotation).expect_err("no tolerations").to_string(), expected);
    }
}
