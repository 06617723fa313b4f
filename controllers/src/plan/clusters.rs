//! Clusters: when one counts as ready, which taints its condition brings, and what its status says it serves.

use crowsnest_api::cluster::{ApiEnablement, ApiResource, Cluster};
use crowsnest_api::constants::{condition as words, taint as keys};
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::conditions::{self, condition};
use crate::admission::annotations;

/// What a probe of a member's health endpoint said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    Healthy,
    /// It answers, but says it isn't well.
    Unhealthy,
    Unreachable,
}

pub fn ready_condition(health: Health, now: Timestamp) -> Condition {
    let (status, reason, message) = match health {
        Health::Healthy => (true, "ClusterReady", "cluster is healthy and ready to accept workloads"),
        Health::Unhealthy => {
            (false, "ClusterNotReady", "cluster is reachable but health endpoint responded without ok")
        }
        Health::Unreachable => (false, "ClusterNotReachable", "cluster is not reachable"),
    };
    condition(words::READY, status, reason, message, now)
}

/// What was observed of a cluster so far, so that a flicker doesn't flip its condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    pub ready: bool,
    pub since: Timestamp,
}

/// How long an observation must last before the condition follows it.
#[derive(Debug, Clone, Copy)]
pub struct Thresholds {
    pub success: SignedDuration,
    pub failure: SignedDuration,
}

/// The condition to show, and the observation to remember. The first observation counts at once.
pub fn with_thresholds(
    observed: Condition,
    shown: Option<&Condition>,
    last: Option<&Observed>,
    thresholds: Thresholds,
    now: Timestamp,
) -> (Condition, Observed) {
    let ready = observed.status == "True";
    let remembered = match last {
        Some(last) if last.ready == ready => last.clone(),
        _ => Observed { ready, since: now },
    };
    let (Some(shown), Some(_)) = (shown, last) else { return (observed, remembered) };
    let threshold = if ready { thresholds.success } else { thresholds.failure };
    let flips = ready != (shown.status == "True");
    let waits = flips && now < remembered.since.saturating_add(threshold).unwrap_or(now);
    (if waits { shown.clone() } else { observed }, remembered)
}

/// Taints after the Ready condition has been looked at: not ready and unreachable clusters take nothing new. A taint notes
/// when it was added.
pub fn taints(cluster: &Cluster, now: Timestamp) -> Vec<Taint> {
    let ready = conditions::find(&cluster.status.conditions, words::READY).map(|ready| ready.status.as_str());
    let wanted = match ready {
        Some("True") => None,
        Some("Unknown") => Some(keys::UNREACHABLE),
        _ => Some(keys::NOT_READY),
    };
    let ours = |taint: &Taint| {
        taint.effect == "NoSchedule" && (taint.key == keys::NOT_READY || taint.key == keys::UNREACHABLE)
    };
    let kept = |taint: &&Taint| !ours(taint) || wanted == Some(taint.key.as_str());
    let mut taints: Vec<Taint> = cluster.spec.taints.iter().filter(kept).cloned().collect();
    if let Some(key) = wanted
        && !taints.iter().any(ours)
    {
        let (effect, time_added) = ("NoSchedule".to_owned(), Some(Time(now)));
        taints.push(Taint { key: key.to_owned(), effect, time_added, value: None });
    }
    taints
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
    let kind = words::COMPLETE_API_ENABLEMENTS;
    match (enablements.is_empty(), complete) {
        (true, _) => {
            condition(kind, false, "EmptyAPIEnablements", "collected empty APIEnablements from the cluster", now)
        }
        (false, false) => condition(
            kind,
            false,
            "PartialAPIEnablements",
            "might collect partial APIEnablements from the cluster",
            now,
        ),
        (false, true) => {
            condition(kind, true, "CompleteAPIEnablements", "collected complete APIEnablements from the cluster", now)
        }
    }
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
}
