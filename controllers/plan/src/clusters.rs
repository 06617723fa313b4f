//! Cluster conditions: Karmada's `Ready` rule, the taints that follow from it, API enablements, and the objects that
//! a cluster being removed waits for. Crowsnest's own readiness rule is in [`super::health`].

use std::time::Duration;

use crowsnest_api::cluster::{ApiEnablement, ApiResource, Cluster};
use crowsnest_api::constants::{condition as condition_names, finalizer, taint as taint_keys};
use crowsnest_apimachinery::unstructured;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::annotations;
use super::conditions::{self, condition};

/// Result of probing a member's health endpoint, with the error of an unsuccessful probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    Healthy,
    /// The health endpoint responded without OK.
    Unhealthy(String),
    /// The health endpoint did not respond.
    Unreachable(String),
    /// No client could be built: the Cluster's API endpoint is invalid, or its Secret is missing.
    NoClient(String),
}

/// Karmada's Ready condition for the result of a probe.
pub fn ready_condition(health: &Health, now: Timestamp) -> Condition {
    let (status, reason, message) = match health {
        Health::Healthy => (true, "ClusterReady", "cluster is healthy and ready to accept workloads"),
        Health::Unhealthy(_) => {
            (false, "ClusterNotReady", "cluster is reachable but health endpoint responded without ok")
        }
        Health::Unreachable(_) => (false, "ClusterNotReachable", "cluster is not reachable"),
        Health::NoClient(error) => {
            let message = format!("failed to create a ClusterClient: {error}");
            return condition(condition_names::READY, false, "StatusCollectionFailed", message, now);
        }
    };
    condition(condition_names::READY, status, reason, message, now)
}

/// The last observed readiness. It is remembered so that a short change does not change the condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedReadiness {
    pub is_ready: bool,
    /// Monotonic time since which this readiness is observed. `None` since the first observation.
    pub since: Option<Duration>,
}

/// Time for which an observation must last before the condition changes.
#[derive(Debug, Clone, Copy)]
pub struct Thresholds {
    pub success: Duration,
    pub failure: Duration,
}

/// Karmada's threshold rule: returns the condition to publish and the observation to remember. The first observation
/// takes effect immediately.
pub fn apply_thresholds(
    observed: Condition,
    current: Option<&Condition>,
    last: Option<ObservedReadiness>,
    thresholds: Thresholds,
    now: Duration,
) -> (Condition, ObservedReadiness) {
    let is_ready = observed.status == "True";
    let Some(last) = last else { return (observed, ObservedReadiness { is_ready, since: None }) };
    let Some(current) = current else { return (observed, last) };
    let observation = if last.is_ready == is_ready { last } else { ObservedReadiness { is_ready, since: Some(now) } };
    let threshold = if is_ready { thresholds.success } else { thresholds.failure };
    let is_change = is_ready != (current.status == "True");
    let is_too_recent = is_change && observation.since.is_some_and(|since| now.saturating_sub(since) < threshold);
    (if is_too_recent { current.clone() } else { observed }, observation)
}

/// The taints that a cluster should have for its current `Ready` condition: a NoSchedule taint `not-ready` or
/// `unreachable` is added if the cluster is not ready, and an obsolete one removed. Other taints are kept.
pub fn taints(cluster: &Cluster, now: Timestamp) -> Vec<Taint> {
    let ready = conditions::find(&cluster.status.conditions, condition_names::READY).map(|ready| ready.status.as_str());
    let (added, removed): (Option<&str>, &[&str]) = match ready {
        Some("True") => (None, &[taint_keys::NOT_READY, taint_keys::UNREACHABLE]),
        Some("Unknown") => (Some(taint_keys::UNREACHABLE), &[taint_keys::NOT_READY]),
        Some(_) => (Some(taint_keys::NOT_READY), &[taint_keys::UNREACHABLE]),
        // Without a Ready condition, the taint is added, but none is removed.
        None => (Some(taint_keys::NOT_READY), &[]),
    };
    let has_key = |taint: &Taint, key: &str| taint.effect == "NoSchedule" && taint.key == key;
    let is_kept = |taint: &&Taint| !removed.iter().any(|key| has_key(taint, key));
    let mut taints: Vec<Taint> = cluster.spec.taints.iter().filter(is_kept).cloned().collect();
    if let Some(key) = added
        && !taints.iter().any(|taint| has_key(taint, key))
    {
        let (effect, time_added) = ("NoSchedule".to_owned(), Some(Time(now)));
        taints.push(Taint { key: key.to_owned(), effect, time_added, value: None });
    }
    taints
}

/// Reason why a Work of a cluster that is being removed still exists. `is_agent_managed` is true if the cluster's agent
/// applies it.
pub fn work_blocker(work: &Value, is_agent_managed: bool) -> String {
    let others = unstructured::finalizers(work).find(|finalizer| *finalizer != finalizer::EXECUTION_CONTROLLER);
    match others {
        Some(finalizer) => format!("blocked by finalizer {finalizer}"),
        None if is_agent_managed => "its agent has not removed its finalizer".to_owned(),
        None => "its manifests are not deleted from the cluster yet".to_owned(),
    }
}

/// Reason why the execution namespace of a cluster that is being removed still exists without Works: the problem that
/// the namespace controller reports.
pub fn namespace_blocker(namespace: &Value) -> String {
    let mut conditions = unstructured::list(namespace, &["status", "conditions"]).iter();
    let problem = conditions.find(|condition| unstructured::text(condition, &["status"]) == "True");
    match problem.map(|problem| unstructured::text(problem, &["message"])) {
        Some(message) if !message.is_empty() => message.to_owned(),
        _ => "the namespace controller has not deleted it yet".to_owned(),
    }
}

/// Reason why a binding still contains a cluster that is being removed.
pub fn binding_blocker(binding: &Value, scheduler: &str) -> String {
    let scheduler_name = unstructured::text(binding, &["spec", "schedulerName"]);
    let placement = unstructured::at(binding, &["spec", "placement"]);
    let suspended = unstructured::at(binding, &["spec", "suspension", "scheduling"]).and_then(Value::as_bool);
    if unstructured::is_terminating(binding) {
        "it is being deleted".to_owned()
    } else if suspended.unwrap_or_default() {
        "its scheduling is suspended".to_owned()
    } else if !scheduler_name.is_empty() && scheduler_name != scheduler {
        format!("schedulerName is {scheduler_name}")
    } else if placement.is_none_or(Value::is_null) {
        "it has no placement".to_owned()
    } else {
        "it is not rescheduled yet".to_owned()
    }
}

/// The `Removing` condition of a cluster, which lists the objects that its removal waits for. `plural` is their kind in
/// the plural, `blockers` has their names and reasons.
pub fn removing_condition(
    reason: &str,
    plural: &str,
    mut blockers: Vec<(String, String)>,
    now: Timestamp,
) -> Condition {
    condition(condition_names::REMOVING, false, reason, format!("waits for {}", list_names(plural, &mut blockers)), now)
}

/// Lists objects in a message: their number, and the first ten in order of their names, with reasons. `plural` is their
/// kind in the plural.
pub fn list_names(plural: &str, all: &mut [(String, String)]) -> String {
    /// Maximum number of listed names.
    const MAX_NAMES: usize = 10;
    all.sort();
    let format_object = |(name, reason): &(String, String)| match reason.as_str() {
        "" => name.clone(),
        reason => format!("{name} ({reason})"),
    };
    let names: Vec<String> = all.iter().take(MAX_NAMES).map(format_object).collect();
    let more = match all.len().saturating_sub(MAX_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{} {plural}: {}{more}", all.len(), names.join(", "))
}

/// API enablements from tuples of (group version, plural name, kind), sorted as the Cluster status keeps them.
pub fn api_enablements(resources: impl IntoIterator<Item = (String, String, String)>) -> Vec<ApiEnablement> {
    let mut sorted: std::collections::BTreeMap<String, std::collections::BTreeMap<String, String>> = Default::default();
    for (group_version, name, kind) in resources {
        sorted.entry(group_version).or_default().insert(name, kind);
    }
    sorted
        .into_iter()
        .map(|(group_version, resources)| ApiEnablement {
            group_version,
            resources: resources.into_iter().map(|(name, kind)| ApiResource { name, kind }).collect(),
        })
        .collect()
}

/// The condition for annotations with unsupported values. `None` if all annotations are supported.
pub fn annotations_condition(cluster: &Cluster, now: Timestamp) -> Option<Condition> {
    let unsupported = annotations::find_unsupported(cluster.metadata.annotations.as_ref());
    let warnings: Vec<String> = unsupported.iter().map(annotations::UnsupportedAnnotation::warning).collect();
    (!warnings.is_empty())
        .then(|| condition(condition_names::ANNOTATIONS_KNOWN, false, "UnknownValue", warnings.join("; "), now))
}

/// The condition `CompleteAPIEnablements`. `is_complete` is true if all API groups of the cluster could be listed.
pub fn api_condition(enablements: &[ApiEnablement], is_complete: bool, now: Timestamp) -> Condition {
    let (reason, message) = match (enablements.len(), is_complete) {
        (0, _) => {
            (condition_names::API_ENABLEMENTS_EMPTY, "collected empty APIEnablements from the cluster".to_owned())
        }
        (count, false) => {
            let message = format!("might collect partial APIEnablements({count}) from the cluster");
            (condition_names::API_ENABLEMENTS_PARTIAL, message)
        }
        (_, true) => {
            (condition_names::API_ENABLEMENTS_COMPLETE, "collected complete APIEnablements from the cluster".to_owned())
        }
    };
    let is_complete = reason == condition_names::API_ENABLEMENTS_COMPLETE;
    condition(condition_names::COMPLETE_API_ENABLEMENTS, is_complete, reason, message, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_annotations_are_reported() {
        let condition_of = |annotations: serde_json::Value| {
            let cluster = serde_json::json!({"metadata": {"name": "m1", "annotations": annotations}, "spec": {"syncMode": "Push"}});
            let cluster: Cluster = serde_json::from_value(cluster).expect("a Cluster");
            annotations_condition(&cluster, Timestamp::UNIX_EPOCH)
        };
        assert_eq!(
            condition_of(serde_json::json!({"proxy.crowsnest.io/exec": "disabled", "example.com/x": "y"})),
            None
        );
        let condition = condition_of(serde_json::json!({
            "proxy.crowsnest.io/exec": "off", "fleet.crowsnest.io/reached-through": "pigeon",
        }));
        let condition = condition.expect("a condition");
        assert_eq!((condition.type_.as_str(), condition.status.as_str()), ("AnnotationsKnown", "False"));
        let message = condition.message;
        assert!(
            message.contains("\"off\" is not supported") && message.contains("\"pigeon\" is not supported"),
            "{message}"
        );
    }

    fn cluster(ready: Option<&str>, taints: &[&str]) -> Cluster {
        let conditions: Vec<Value> = ready
            .map(|status| {
                serde_json::json!({
                    "type": "Ready", "status": status, "reason": "", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                })
            })
            .into_iter()
            .collect();
        let taints: Vec<Value> =
            taints.iter().map(|key| serde_json::json!({"key": key, "effect": "NoSchedule"})).collect();
        let cluster = serde_json::json!({
            "metadata": {"name": "m1"}, "spec": {"syncMode": "Push", "taints": taints}, "status": {"conditions": conditions},
        });
        serde_json::from_value(cluster).expect("a Cluster")
    }

    #[rstest::rstest]
    #[case::ready(Some("True"), &[taint_keys::NOT_READY, "team", taint_keys::UNREACHABLE], &["team"])]
    #[case::not_ready(Some("False"), &["team"], &["team", taint_keys::NOT_READY])]
    #[case::unreachable(Some("Unknown"), &[taint_keys::NOT_READY], &[taint_keys::UNREACHABLE])]
    #[case::reachable_again(Some("False"), &[taint_keys::UNREACHABLE], &[taint_keys::NOT_READY])]
    #[case::without_ready_condition(None, &[taint_keys::UNREACHABLE], &[taint_keys::UNREACHABLE, taint_keys::NOT_READY])]
    fn taints_follow_readiness(#[case] ready: Option<&str>, #[case] current: &[&str], #[case] expected: &[&str]) {
        let taints = taints(&cluster(ready, current), Timestamp::UNIX_EPOCH);
        assert_eq!(taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(), expected);
    }

    #[rstest::rstest]
    #[case(0, true, "Empty", "collected empty APIEnablements from the cluster")]
    #[case(2, false, "Partial", "might collect partial APIEnablements(2) from the cluster")]
    #[case(2, true, "Complete", "collected complete APIEnablements from the cluster")]
    fn api_enablements_use_karmadas_wording(
        #[case] groups: usize,
        #[case] complete: bool,
        #[case] reason: &str,
        #[case] message: &str,
    ) {
        let resources = (0..groups).map(|nth| (format!("g{nth}/v1"), "things".to_owned(), "Thing".to_owned()));
        let condition = api_condition(&api_enablements(resources), complete, Timestamp::UNIX_EPOCH);
        assert_eq!((condition.reason.as_str(), condition.message.as_str()), (reason, message));
        assert_eq!(condition.status == "True", reason == "Complete");
    }

    #[test]
    fn blockers_of_cluster_removal_are_named() {
        let binding = |spec: Value| serde_json::json!({"metadata": {"name": "b"}, "spec": spec});
        let placed = serde_json::json!({"clusterAffinity": {}});
        let cases = [
            (
                serde_json::json!({"placement": placed, "suspension": {"scheduling": true}}),
                "its scheduling is suspended",
            ),
            (serde_json::json!({"placement": placed, "schedulerName": "other"}), "schedulerName is other"),
            (serde_json::json!({"schedulerName": "default-scheduler"}), "it has no placement"),
            (serde_json::json!({"placement": placed}), "it is not rescheduled yet"),
        ];
        for (spec, expected) in cases {
            assert_eq!(binding_blocker(&binding(spec), "default-scheduler"), expected);
        }
        let (solved, failed) = (("False", "solved"), ("True", "Discovery failed for some groups"));
        for (conditions, expected) in [
            (vec![solved, failed], "Discovery failed for some groups"),
            (vec![solved], "the namespace controller has not deleted it yet"),
            (vec![("True", "")], "the namespace controller has not deleted it yet"),
            (vec![], "the namespace controller has not deleted it yet"),
        ] {
            let condition = |(status, message): (&str, &str)| serde_json::json!({"status": status, "message": message});
            let conditions: Vec<Value> = conditions.into_iter().map(condition).collect();
            let namespace = serde_json::json!({"status": {"conditions": conditions}});
            assert_eq!(namespace_blocker(&namespace), expected);
        }
        let blockers: Vec<_> = (0..12).rev().map(|nth| (format!("ns/b{nth:02}"), "why".to_owned())).collect();
        let condition =
            removing_condition(condition_names::REMOVING_BINDINGS, "bindings", blockers, Timestamp::UNIX_EPOCH);
        assert!(condition.message.starts_with("waits for 12 bindings: ns/b00 (why), ns/b01 (why), "), "{condition:?}");
        assert!(condition.message.ends_with("ns/b09 (why) and 2 more"), "{condition:?}");
    }
}
