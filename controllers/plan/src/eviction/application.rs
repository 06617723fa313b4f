//! Application failover: evicts a workload from clusters where it has been unhealthy for too long (Karmada's
//! `resource-binding-application-failover-controller` and the one for ClusterResourceBindings).

use crowsnest_api::constants::eviction;
use crowsnest_api::policy::{ApplicationFailoverBehavior, PurgeMode};
use crowsnest_api::work::{GracefulEvictionTask, ResourceBindingSpec, ResourceBindingStatus, ResourceHealth};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::evict;
use super::state::{StateError, preserved_labels};

/// Default of `decisionConditions.tolerationSeconds`.
const DEFAULT_TOLERATION_SECONDS: i32 = 300;

/// Error that prevents the eviction of an unhealthy workload.
#[derive(Debug, thiserror::Error)]
pub enum ApplicationError {
    #[error("GracefulEviction featureGate must be enabled when purgeMode is Gracefully")]
    GracefulEvictionDisabled,
    #[error(transparent)]
    State(#[from] StateError),
}

/// The failover behavior of a workload, if it has one. It requires `propagateDeps`, since dependencies must move
/// with it.
pub fn behavior(spec: &ResourceBindingSpec) -> Option<&ApplicationFailoverBehavior> {
    let application = spec.failover.as_ref()?.application.as_ref()?;
    spec.propagate_deps.then_some(application)
}

/// Targets where the workload is unhealthy, except those it is being evicted from.
pub fn unhealthy_targets(spec: &ResourceBindingSpec, status: &ResourceBindingStatus) -> Vec<String> {
    let is_unhealthy = |cluster: &str| {
        let item = status.aggregated_status.iter().find(|item| item.cluster_name == cluster);
        item.is_some_and(|item| item.health == Some(ResourceHealth::Unhealthy))
    };
    let names = spec.clusters.iter().map(|target| target.name.as_str());
    names.filter(|name| is_unhealthy(name) && !spec.evicts(name)).map(str::to_owned).collect()
}

/// True if the workload would run in no cluster after leaving the clusters `leaving`, and its purge mode is not
/// `Directly`.
pub fn is_last_copy(spec: &ResourceBindingSpec, behavior: &ApplicationFailoverBehavior, leaving: &[String]) -> bool {
    behavior.purge_mode != Some(PurgeMode::Directly)
        && spec.clusters.iter().all(|target| leaving.contains(&target.name))
}

/// Seconds for which the workload may be unhealthy before it is evicted.
pub fn toleration_seconds(behavior: &ApplicationFailoverBehavior) -> u64 {
    let seconds = behavior.decision_conditions.toleration_seconds.unwrap_or(DEFAULT_TOLERATION_SECONDS);
    u64::try_from(seconds).unwrap_or_default()
}

/// Feature gates that application failover depends on.
#[derive(Debug, Clone, Copy)]
pub struct FailoverGates {
    /// Feature gate `GracefulEviction`.
    pub graceful_eviction: bool,
    /// Feature gate `StatefulFailoverInjection`.
    pub preserves_state: bool,
}

/// The spec with the workload evicted from all `clusters`.
pub fn evict_all(
    spec: &ResourceBindingSpec,
    status: &ResourceBindingStatus,
    behavior: &ApplicationFailoverBehavior,
    clusters: &[String],
    producer: &str,
    gates: FailoverGates,
    now: Timestamp,
) -> Result<ResourceBindingSpec, ApplicationError> {
    let mode = behavior.purge_mode.clone().unwrap_or(PurgeMode::Gracefully);
    if mode == PurgeMode::Gracefully && !gates.graceful_eviction {
        return Err(ApplicationError::GracefulEvictionDisabled);
    }
    let rules = behavior.state_preservation.as_ref().filter(|rules| gates.preserves_state && !rules.rules.is_empty());
    let before: Vec<String> = spec.clusters.iter().map(|target| target.name.clone()).collect();
    let mut remaining = spec.clone();
    for cluster in clusters {
        let mut task = GracefulEvictionTask {
            purge_mode: Some(mode.clone()),
            reason: eviction::REASON_APPLICATION_FAILURE.to_owned(),
            producer: producer.to_owned(),
            creation_timestamp: Some(Time(now)),
            ..GracefulEvictionTask::default()
        };
        match mode {
            PurgeMode::Gracefully => task.grace_period_seconds = behavior.grace_period_seconds,
            PurgeMode::Never => task.suppress_deletion = Some(true),
            _ => {}
        }
        if let Some(rules) = rules {
            task.preserved_label_state = preserved_labels(rules, status, cluster)?;
            task.clusters_before_failover = before.clone();
        }
        if let Some(evicted) = evict(&remaining, cluster, task) {
            remaining = evicted;
        }
    }
    Ok(remaining)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("readable")
    }

    fn spec(application: Value) -> ResourceBindingSpec {
        read(json!({
            "resource": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "propagateDeps": true,
            "clusters": [{"name": "m1", "replicas": 2}, {"name": "m2", "replicas": 1}],
            "failover": {"application": application},
        }))
    }

    fn status(health: &[(&str, &str)]) -> ResourceBindingStatus {
        let item =
            |(name, health): &(&str, &str)| json!({"clusterName": name, "health": health, "status": {"replicas": 2}});
        read(json!({"aggregatedStatus": health.iter().map(item).collect::<Vec<_>>()}))
    }

    #[rstest]
    #[case::healthy(&[("m1", "Healthy"), ("m2", "Healthy")], &[])]
    #[case::unknown(&[("m1", "Unknown")], &[])]
    #[case::unhealthy_outside_the_targets(&[("m3", "Unhealthy")], &[])]
    #[case::unhealthy_target(&[("m1", "Unhealthy"), ("m2", "Healthy")], &["m1"])]
    fn unhealthy_targets_are_found(#[case] health: &[(&str, &str)], #[case] expected: &[&str]) {
        assert_eq!(unhealthy_targets(&spec(json!({})), &status(health)), expected);
    }

    #[rstest]
    #[case::one_of_two(json!({}), &["m1"], false)]
    #[case::all(json!({}), &["m2", "m1"], true)]
    #[case::all_purged_directly(json!({"purgeMode": "Directly"}), &["m2", "m1"], false)]
    fn last_clusters_are_kept(#[case] application: Value, #[case] leaving: &[&str], #[case] expected: bool) {
        let spec = spec(application);
        let leaving: Vec<String> = leaving.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(is_last_copy(&spec, behavior(&spec).expect("a failover behavior"), &leaving), expected);
    }

    fn task(application: Value, gates: FailoverGates) -> Result<Value, String> {
        let spec = spec(application);
        let behavior = behavior(&spec).expect("a failover behavior").clone();
        let clusters = ["m1".to_owned()];
        let status = status(&[("m1", "Unhealthy")]);
        let evicted = evict_all(&spec, &status, &behavior, &clusters, "producer", gates, Timestamp::UNIX_EPOCH);
        let evicted = evicted.map_err(|error| error.to_string())?;
        assert_eq!(evicted.clusters.iter().map(|target| target.name.as_str()).collect::<Vec<_>>(), ["m2"]);
        let mut task = json!(evicted.graceful_eviction_tasks[0]);
        for field in ["fromCluster", "replicas", "reason", "producer", "creationTimestamp"] {
            assert!(task.as_object_mut().is_some_and(|task| task.remove(field).is_some()), "{field}");
        }
        Ok(task)
    }

    const ON: FailoverGates = FailoverGates { graceful_eviction: true, preserves_state: true };

    #[rstest]
    #[case::directly(json!({"purgeMode": "Directly"}), ON, Ok(json!({"purgeMode": "Directly"})))]
    #[case::gracefully(
        json!({"purgeMode": "Gracefully", "gracePeriodSeconds": 60}), ON,
        Ok(json!({"purgeMode": "Gracefully", "gracePeriodSeconds": 60}))
    )]
    #[case::never(json!({"purgeMode": "Never"}), ON, Ok(json!({"purgeMode": "Never", "suppressDeletion": true})))]
    #[case::graceful_eviction_disabled(
        json!({}), FailoverGates { graceful_eviction: false, ..ON },
        Err("GracefulEviction featureGate must be enabled when purgeMode is Gracefully")
    )]
    #[case::state_preserved(
        json!({"purgeMode": "Directly", "statePreservation": {"rules": [{"aliasLabelName": "was", "jsonPath": "{.replicas}"}]}}),
        ON,
        Ok(json!({
            "purgeMode": "Directly", "preservedLabelState": {"was": "2"}, "clustersBeforeFailover": ["m1", "m2"],
        }))
    )]
    #[case::state_preservation_disabled(
        json!({"purgeMode": "Directly", "statePreservation": {"rules": [{"aliasLabelName": "was", "jsonPath": "{.replicas}"}]}}),
        FailoverGates { preserves_state: false, ..ON },
        Ok(json!({"purgeMode": "Directly"}))
    )]
    fn eviction_task_has_purge_mode_and_preserved_state(
        #[case] application: Value,
        #[case] gates: FailoverGates,
        #[case] expected: Result<Value, &str>,
    ) {
        assert_eq!(task(application, gates), expected.map_err(str::to_owned));
    }
}
