//! Descheduler decisions: removes replicas of divided Deployments from clusters where they are unschedulable. The
//! scheduler then assigns them elsewhere, because fewer replicas are assigned than the template requests.

use std::collections::BTreeMap;

use crowsnest_api::constants::annotation;
use crowsnest_api::policy::{Placement, ReplicaDivisionPreference, ReplicaSchedulingType};
use crowsnest_api::work::{
    AggregatedStatusItem, ObjectReference, ResourceBindingSpec, ResourceBindingStatus, TargetCluster,
};
use crowsnest_apimachinery::unstructured;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::scheduling::scheduling_type;

const POD_TEMPLATE_HASH: &str = "pod-template-hash";

/// True for Deployments whose replicas are divided by available replicas.
pub fn is_candidate(binding: &Value, resource: &ObjectReference) -> bool {
    resource.api_version == "apps/v1"
        && resource.kind == "Deployment"
        && !unstructured::is_terminating(binding)
        && applied_placement(binding).is_some_and(|placement| is_divided_dynamically(&placement))
}

/// The placement of the last scheduling result. `None` if the annotation cannot be parsed.
fn applied_placement(binding: &Value) -> Option<Placement> {
    serde_json::from_str(unstructured::annotation(binding, annotation::APPLIED_PLACEMENT)?).ok()
}

fn is_divided_dynamically(placement: &Placement) -> bool {
    let strategy = placement.replica_scheduling.as_ref();
    let weights = strategy.and_then(|strategy| strategy.weight_preference.as_ref());
    scheduling_type(placement) == ReplicaSchedulingType::Divided
        && match strategy.and_then(|strategy| strategy.replica_division_preference.as_ref()) {
            Some(ReplicaDivisionPreference::Aggregated) => true,
            Some(ReplicaDivisionPreference::Weighted) => {
                weights.is_some_and(|weights| weights.dynamic_weight.is_some())
            }
            _ => false,
        }
}

/// Ready replicas in a cluster. `None` if its status does not report them.
fn ready_replicas(status: &ResourceBindingStatus, cluster: &str) -> Option<i32> {
    // The last item of a cluster counts.
    let of_cluster = |item: &&AggregatedStatusItem| item.cluster_name == cluster && item.status.is_some();
    let item = status.aggregated_status.iter().rev().find(of_cluster)?;
    i32::try_from(unstructured::integer(&item.status.as_ref()?.0, &["readyReplicas"])?).ok()
}

/// Clusters with fewer ready than assigned replicas.
pub fn clusters_lacking_replicas(spec: &ResourceBindingSpec, status: &ResourceBindingStatus) -> Vec<String> {
    let lacks = |target: &&TargetCluster| ready_replicas(status, &target.name).unwrap_or(-1) < target.replicas;
    spec.clusters.iter().filter(lacks).map(|target| target.name.clone()).collect()
}

/// Replicas after descheduling.
#[derive(Debug, Clone, PartialEq)]
pub struct ReducedAssignment {
    pub clusters: Vec<TargetCluster>,
    /// Message of the event.
    pub message: String,
}

/// Removes unschedulable replicas from the assignment of clusters, but no ready ones. A cluster with more unschedulable
/// than assigned replicas is being changed already and is skipped. `None` if nothing is removed.
pub fn reduce(
    spec: &ResourceBindingSpec,
    status: &ResourceBindingStatus,
    unschedulable: &BTreeMap<String, i32>,
) -> Option<ReducedAssignment> {
    let mut clusters = spec.clusters.clone();
    let mut message = "Binding has been descheduled".to_owned();
    let mut total: i32 = 0;
    let lacking = clusters_lacking_replicas(spec, status);
    for target in clusters.iter_mut().filter(|target| lacking.contains(&target.name)) {
        let unschedulable = unschedulable.get(&target.name).copied().unwrap_or_default();
        if unschedulable <= 0 || unschedulable > target.replicas {
            continue;
        }
        let ready = ready_replicas(status, &target.name).filter(|ready| *ready <= target.replicas).unwrap_or_default();
        let remaining = (target.replicas - unschedulable).max(ready);
        let removed = target.replicas - remaining;
        target.replicas = remaining;
        total = total.saturating_add(removed);
        message.push_str(&format!(", {removed} replica(s) in cluster({})", target.name));
    }
    message.push_str(&format!(", {total} total descheduled replica(s)"));
    (total > 0).then_some(ReducedAssignment { clusters, message })
}

/// A pod that the member's scheduler could not place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnschedulablePod {
    /// UID of the pod's controller.
    pub owner: String,
    /// Time at which it became unschedulable.
    pub since: Timestamp,
}

impl UnschedulablePod {
    pub fn from_json(pod: &Value) -> Option<Self> {
        let list = |path: &[&str]| unstructured::at(pod, path).and_then(Value::as_array);
        let conditions = list(&["status", "conditions"]);
        let scheduled_condition = conditions
            .into_iter()
            .flatten()
            .find(|condition| unstructured::text(condition, &["type"]) == "PodScheduled")?;
        let is_unschedulable = unstructured::text(scheduled_condition, &["status"]) == "False"
            && unstructured::text(scheduled_condition, &["reason"]) == "Unschedulable";
        if !is_unschedulable || matches!(unstructured::text(pod, &["status", "phase"]), "Succeeded" | "Failed") {
            return None;
        }
        let controls = |owner: &&Value| owner.get("controller").and_then(Value::as_bool).unwrap_or_default();
        let owner = list(&["metadata", "ownerReferences"]).into_iter().flatten().find(controls)?;
        let since =
            unstructured::text(scheduled_condition, &["lastTransitionTime"]).parse().unwrap_or(Timestamp::UNIX_EPOCH);
        Some(UnschedulablePod { owner: unstructured::text(owner, &["uid"]).to_owned(), since })
    }
}

/// True if a pod that became unschedulable at `since` has been unschedulable for longer than the threshold. A negative
/// threshold counts as zero.
pub fn exceeds_threshold(since: Timestamp, threshold: SignedDuration, now: Timestamp) -> bool {
    now.duration_since(since) > threshold.max(SignedDuration::ZERO)
}

/// The ReplicaSet of a Deployment's current pod template: the oldest match, as the Deployment controller chooses.
pub fn current_replica_set<'r>(deployment: &Deployment, replica_sets: &'r [ReplicaSet]) -> Option<&'r ReplicaSet> {
    let uid = deployment.metadata.uid.as_deref().unwrap_or_default();
    let template = without_hash(&deployment.spec.template);
    let is_match = |set: &&ReplicaSet| {
        let owners = set.metadata.owner_references.iter().flatten();
        let controlled = owners.filter(|owner| owner.controller.unwrap_or_default()).any(|owner| owner.uid == uid);
        controlled && set.spec.template.as_ref().is_some_and(|candidate| without_hash(candidate) == template)
    };
    let age = |set: &&ReplicaSet| {
        let created = set.metadata.creation_timestamp.as_ref().map(|created| created.0);
        (created.unwrap_or(Timestamp::UNIX_EPOCH), set.metadata.name.clone())
    };
    replica_sets.iter().filter(is_match).min_by_key(age)
}

/// A pod template without the label that the Deployment controller adds to its ReplicaSets.
fn without_hash(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    if let Some(metadata) = &mut template.metadata {
        let labels = metadata.labels.take().map(|mut labels| {
            labels.remove(POD_TEMPLATE_HASH);
            labels
        });
        metadata.labels = labels.filter(|labels| !labels.is_empty());
    }
    // API servers omit metadata or write `creationTimestamp: null`.
    template.metadata = template.metadata.filter(|metadata| *metadata != Default::default());
    template
}
