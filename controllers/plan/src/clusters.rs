//! Clusters: when one counts as ready by Karmada's rule, which taints its condition brings, what its status says it serves, and what
//! one that leaves waits for. Ours of readiness is [`super::health`].

use std::time::Duration;

use crowsnest_api::cluster::{ApiEnablement, ApiResource, Cluster};
use crowsnest_api::constants::{condition as words, finalizer, taint as keys};
use crowsnest_apimachinery::unstructured;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::annotations;
use super::conditions::{self, condition};

/// What a probe of a member's health endpoint said, and why it was not well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    Healthy,
    /// It answers, but says it isn't well.
    Unhealthy(String),
    Unreachable(String),
    /// Nobody can even ask: what the Cluster says is no address, or its Secret is missing.
    NoClient(String),
}

pub fn ready_condition(health: &Health, now: Timestamp) -> Condition {
    let (status, reason, message) = match health {
        Health::Healthy => (true, "ClusterReady", "cluster is healthy and ready to accept workloads"),
        Health::Unhealthy(_) => {
            (false, "ClusterNotReady", "cluster is reachable but health endpoint responded without ok")
        }
        Health::Unreachable(_) => (false, "ClusterNotReachable", "cluster is not reachable"),
        Health::NoClient(why) => {
            let message = format!("failed to create a ClusterClient: {why}");
            return condition(words::READY, false, "StatusCollectionFailed", message, now);
        }
    };
    condition(words::READY, status, reason, message, now)
}

/// What was observed of a cluster so far, so that a flicker doesn't flip its condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    pub ready: bool,
    /// By the monotonic clock; of the very first observation nobody knows.
    pub since: Option<Duration>,
}

/// How long an observation must last before the condition follows it.
#[derive(Debug, Clone, Copy)]
pub struct Thresholds {
    pub success: Duration,
    pub failure: Duration,
}

/// Karmada's rule: the condition to show, and the observation to remember. The first observation counts at once.
pub fn with_thresholds(
    observed: Condition,
    shown: Option<&Condition>,
    last: Option<Observed>,
    thresholds: Thresholds,
    now: Duration,
) -> (Condition, Observed) {
    let ready = observed.status == "True";
    let Some(last) = last else { return (observed, Observed { ready, since: None }) };
    let Some(shown) = shown else { return (observed, last) };
    let remembered = if last.ready == ready { last } else { Observed { ready, since: Some(now) } };
    let threshold = if ready { thresholds.success } else { thresholds.failure };
    let flips = ready != (shown.status == "True");
    let waits = flips && remembered.since.is_some_and(|since| now.saturating_sub(since) < threshold);
    (if waits { shown.clone() } else { observed }, remembered)
}

/// Taints after the Ready condition has been looked at: not ready and unreachable clusters take nothing new. A taint notes
/// when it was added.
pub fn taints(cluster: &Cluster, now: Timestamp) -> Vec<Taint> {
    let ready = conditions::find(&cluster.status.conditions, words::READY).map(|ready| ready.status.as_str());
    let (wanted, unwanted): (Option<&str>, &[&str]) = match ready {
        Some("True") => (None, &[keys::NOT_READY, keys::UNREACHABLE]),
        Some("Unknown") => (Some(keys::UNREACHABLE), &[keys::NOT_READY]),
        Some(_) => (Some(keys::NOT_READY), &[keys::UNREACHABLE]),
        // Of a cluster nothing is known of yet, nothing is taken back either.
        None => (Some(keys::NOT_READY), &[]),
    };
    let is = |taint: &Taint, key: &str| taint.effect == "NoSchedule" && taint.key == key;
    let kept = |taint: &&Taint| !unwanted.iter().any(|key| is(taint, key));
    let mut taints: Vec<Taint> = cluster.spec.taints.iter().filter(kept).cloned().collect();
    if let Some(key) = wanted
        && !taints.iter().any(|taint| is(taint, key))
    {
        let (effect, time_added) = ("NoSchedule".to_owned(), Some(Time(now)));
        taints.push(Taint { key: key.to_owned(), effect, time_added, value: None });
    }
    taints
}

/// Why a Work of a cluster that leaves is still there.
pub fn work_stays(work: &Value, is_agents: bool) -> String {
    let others = unstructured::finalizers(work).find(|finalizer| *finalizer != finalizer::EXECUTION_CONTROLLER);
    match others {
        Some(finalizer) => format!("held by finalizer {finalizer}"),
        None if is_agents => "its agent has not let it go".to_owned(),
        None => "what it made is not taken away yet".to_owned(),
    }
}

/// Why a binding still has a cluster that leaves.
pub fn binding_stays(binding: &Value, scheduler: &str) -> String {
    let named = unstructured::text(binding, &["spec", "schedulerName"]);
    let placement = unstructured::at(binding, &["spec", "placement"]);
    let suspended = unstructured::at(binding, &["spec", "suspension", "scheduling"]).and_then(Value::as_bool);
    if unstructured::is_terminating(binding) {
        "it is being deleted".to_owned()
    } else if suspended.unwrap_or_default() {
        "its scheduling is suspended".to_owned()
    } else if !named.is_empty() && named != scheduler {
        format!("schedulerName is {named}")
    } else if placement.is_none_or(Value::is_null) {
        "no policy places it".to_owned()
    } else {
        "it is not scheduled anew yet".to_owned()
    }
}

/// What a cluster that leaves waits for: names with their reasons, of which the first are told.
pub fn removing(reason: &str, what: &str, mut waits: Vec<(String, String)>, now: Timestamp) -> Condition {
    condition(words::REMOVING, false, reason, format!("waits for {}", named(what, &mut waits)), now)
}

/// A count, and the first names, in order.
pub fn named(what: &str, all: &mut [(String, String)]) -> String {
    /// Names that are told.
    const NAMED: usize = 10;
    all.sort();
    let one = |(name, why): &(String, String)| match why.as_str() {
        "" => name.clone(),
        why => format!("{name} ({why})"),
    };
    let names: Vec<String> = all.iter().take(NAMED).map(one).collect();
    let more = match all.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{} {what}: {}{more}", all.len(), names.join(", "))
}

/// One (group version, plural name, kind) per served resource, sorted as the status keeps them.
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

/// Says which of our annotations are not known, and what they are taken for; none when all are.
pub fn annotations_condition(cluster: &Cluster, now: Timestamp) -> Option<Condition> {
    let misfits = annotations::misfits(cluster.metadata.annotations.as_ref());
    let said: Vec<String> = misfits.iter().map(annotations::Misfit::warning).collect();
    (!said.is_empty()).then(|| condition(words::ANNOTATIONS_KNOWN, false, "UnknownValue", said.join("; "), now))
}

/// Whether the list of served resources is whole.
pub fn api_condition(enablements: &[ApiEnablement], complete: bool, now: Timestamp) -> Condition {
    let (reason, message) = match (enablements.len(), complete) {
        (0, _) => (words::API_ENABLEMENTS_EMPTY, "collected empty APIEnablements from the cluster".to_owned()),
        (some, false) => {
            let message = format!("might collect partial APIEnablements({some}) from the cluster");
            (words::API_ENABLEMENTS_PARTIAL, message)
        }
        (_, true) => (words::API_ENABLEMENTS_COMPLETE, "collected complete APIEnablements from the cluster".to_owned()),
    };
    let is_complete = reason == words::API_ENABLEMENTS_COMPLETE;
    condition(words::COMPLETE_API_ENABLEMENTS, is_complete, reason, message, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_that_nobody_knows_are_told() {
        let said = |annotations: serde_json::Value| {
            let cluster = serde_json::json!({"metadata": {"name": "m1", "annotations": annotations}, "spec": {"syncMode": "Push"}});
            let cluster: Cluster = serde_json::from_value(cluster).expect("a Cluster");
            annotations_condition(&cluster, Timestamp::UNIX_EPOCH)
        };
        assert_eq!(said(serde_json::json!({"proxy.crowsnest.io/exec": "disabled", "example.com/x": "y"})), None);
        let condition = said(serde_json::json!({
            "proxy.crowsnest.io/exec": "off", "fleet.crowsnest.io/reached-through": "pigeon",
        }));
        let condition = condition.expect("a condition");
        assert_eq!((condition.type_.as_str(), condition.status.as_str()), ("AnnotationsKnown", "False"));
        let message = condition.message;
        assert!(message.contains("\"off\" is not known") && message.contains("\"pigeon\" is not known"), "{message}");
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
    #[case::ready(Some("True"), &[keys::NOT_READY, "own", keys::UNREACHABLE], &["own"])]
    #[case::not_ready(Some("False"), &["own"], &["own", keys::NOT_READY])]
    #[case::not_reachable_any_more(Some("Unknown"), &[keys::NOT_READY], &[keys::UNREACHABLE])]
    #[case::reachable_again(Some("False"), &[keys::UNREACHABLE], &[keys::NOT_READY])]
    #[case::nothing_is_known(None, &[keys::UNREACHABLE], &[keys::UNREACHABLE, keys::NOT_READY])]
    fn readiness_brings_and_takes_taints(
        #[case] ready: Option<&str>,
        #[case] given: &[&str],
        #[case] expected: &[&str],
    ) {
        let taints = taints(&cluster(ready, given), Timestamp::UNIX_EPOCH);
        assert_eq!(taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(), expected);
    }

    #[rstest::rstest]
    #[case(0, true, "Empty", "collected empty APIEnablements from the cluster")]
    #[case(2, false, "Partial", "might collect partial APIEnablements(2) from the cluster")]
    #[case(2, true, "Complete", "collected complete APIEnablements from the cluster")]
    fn enablements_are_told_in_karmadas_words(
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
    fn what_a_leaving_cluster_waits_for_is_named() {
        let binding = |spec: Value| serde_json::json!({"metadata": {"name": "b"}, "spec": spec});
        let placed = serde_json::json!({"clusterAffinity": {}});
        let cases = [
            (
                serde_json::json!({"placement": placed, "suspension": {"scheduling": true}}),
                "its scheduling is suspended",
            ),
            (serde_json::json!({"placement": placed, "schedulerName": "other"}), "schedulerName is other"),
            (serde_json::json!({"schedulerName": "ours"}), "no policy places it"),
            (serde_json::json!({"placement": placed}), "it is not scheduled anew yet"),
        ];
        for (spec, expected) in cases {
            assert_eq!(binding_stays(&binding(spec), "ours"), expected);
        }
        let waits: Vec<_> = (0..12).rev().map(|nth| (format!("ns/b{nth:02}"), "why".to_owned())).collect();
        let condition = removing(words::REMOVING_BINDINGS, "bindings", waits, Timestamp::UNIX_EPOCH);
        assert!(condition.message.starts_with("waits for 12 bindings: ns/b00 (why), ns/b01 (why), "), "{condition:?}");
        assert!(condition.message.ends_with("ns/b09 (why) and 2 more"), "{condition:?}");
    }
}
