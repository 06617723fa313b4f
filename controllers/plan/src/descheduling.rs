//! Descheduling: which replicas of divided Deployments no node of their cluster takes, so that they had better go
//! elsewhere. Decides for the descheduler; the scheduler then finds them a place, since fewer are assigned than the
//! template asks for.

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

/// Whether the replicas of a binding were divided by what its clusters have room for, and pods of its kind can be found.
pub fn is_considered(binding: &Value, resource: &ObjectReference) -> bool {
    resource.api_version == "apps/v1"
        && resource.kind == "Deployment"
        && !unstructured::is_terminating(binding)
        && applied_placement(binding).is_some_and(|placement| is_divided_by_room(&placement))
}

/// The placement the result was made for; one that cannot be read counts as none.
fn applied_placement(binding: &Value) -> Option<Placement> {
    serde_json::from_str(unstructured::annotation(binding, annotation::APPLIED_PLACEMENT)?).ok()
}

fn is_divided_by_room(placement: &Placement) -> bool {
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

/// How many replicas are ready in a cluster; `None` where it does not tell.
fn ready(status: &ResourceBindingStatus, cluster: &str) -> Option<i32> {
    // What is told last counts.
    let of_cluster = |item: &&AggregatedStatusItem| item.cluster_name == cluster && item.status.is_some();
    let item = status.aggregated_status.iter().rev().find(of_cluster)?;
    i32::try_from(unstructured::integer(&item.status.as_ref()?.0, &["readyReplicas"])?).ok()
}

/// The clusters where not all that is assigned is ready.
pub fn lacking(spec: &ResourceBindingSpec, status: &ResourceBindingStatus) -> Vec<String> {
    let lacks = |target: &&TargetCluster| ready(status, &target.name).unwrap_or(-1) < target.replicas;
    spec.clusters.iter().filter(lacks).map(|target| target.name.clone()).collect()
}

/// Less for some clusters.
#[derive(Debug, Clone, PartialEq)]
pub struct Reduced {
    pub clusters: Vec<TargetCluster>,
    /// As an event tells it.
    pub message: String,
}

/// Takes from clusters what no node of theirs takes, but nothing that is ready. A cluster where more is unschedulable
/// than was assigned is on its way to something else, and stays. `None` where nothing is taken.
pub fn reduce(
    spec: &ResourceBindingSpec,
    status: &ResourceBindingStatus,
    unschedulable: &BTreeMap<String, i32>,
) -> Option<Reduced> {
    let mut clusters = spec.clusters.clone();
    let mut message = "Binding has been descheduled".to_owned();
    let mut total: i32 = 0;
    let lacking = lacking(spec, status);
    for target in clusters.iter_mut().filter(|target| lacking.contains(&target.name)) {
        let unschedulable = unschedulable.get(&target.name).copied().unwrap_or_default();
        if unschedulable <= 0 || unschedulable > target.replicas {
            continue;
        }
        let kept = ready(status, &target.name).filter(|ready| *ready <= target.replicas).unwrap_or_default();
        let stays = (target.replicas - unschedulable).max(kept);
        let taken = target.replicas - stays;
        target.replicas = stays;
        total = total.saturating_add(taken);
        message.push_str(&format!(", {taken} replica(s) in cluster({})", target.name));
    }
    message.push_str(&format!(", {total} total descheduled replica(s)"));
    (total > 0).then_some(Reduced { clusters, message })
}

/// A pod that no node takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unscheduled {
    /// UID of what controls it.
    pub owner: String,
    /// When that was found.
    pub since: Timestamp,
}

impl Unscheduled {
    pub fn of(pod: &Value) -> Option<Self> {
        let list = |path: &[&str]| unstructured::at(pod, path).and_then(Value::as_array);
        let conditions = list(&["status", "conditions"]);
        let found =
            conditions.into_iter().flatten().find(|one| unstructured::text(one, &["type"]) == "PodScheduled")?;
        let is_unschedulable = unstructured::text(found, &["status"]) == "False"
            && unstructured::text(found, &["reason"]) == "Unschedulable";
        if !is_unschedulable || matches!(unstructured::text(pod, &["status", "phase"]), "Succeeded" | "Failed") {
            return None;
        }
        let controls = |owner: &&Value| owner.get("controller").and_then(Value::as_bool).unwrap_or_default();
        let owner = list(&["metadata", "ownerReferences"]).into_iter().flatten().find(controls)?;
        let since = unstructured::text(found, &["lastTransitionTime"]).parse().unwrap_or(Timestamp::UNIX_EPOCH);
        Some(Unscheduled { owner: unstructured::text(owner, &["uid"]).to_owned(), since })
    }
}

/// Whether something that began then has lasted longer than a threshold; one below zero is none.
pub fn lasts(since: Timestamp, threshold: SignedDuration, now: Timestamp) -> bool {
    now.duration_since(since) > threshold.max(SignedDuration::ZERO)
}

/// The ReplicaSet of a Deployment's present pod template: the oldest of those that have it, as the Deployment's controller
/// chooses.
pub fn newest<'r>(deployment: &Deployment, replica_sets: &'r [ReplicaSet]) -> Option<&'r ReplicaSet> {
    let uid = deployment.metadata.uid.as_deref().unwrap_or_default();
    let template = without_hash(&deployment.spec.template);
    let is_its = |set: &&ReplicaSet| {
        let owners = set.metadata.owner_references.iter().flatten();
        let controlled = owners.filter(|owner| owner.controller.unwrap_or_default()).any(|owner| owner.uid == uid);
        controlled && set.spec.template.as_ref().is_some_and(|own| without_hash(own) == template)
    };
    let age = |set: &&ReplicaSet| {
        let created = set.metadata.creation_timestamp.as_ref().map(|created| created.0);
        (created.unwrap_or(Timestamp::UNIX_EPOCH), set.metadata.name.clone())
    };
    replica_sets.iter().filter(is_its).min_by_key(age)
}

/// A pod template without the label that Deployments put on those of their ReplicaSets.
fn without_hash(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    if let Some(metadata) = &mut template.metadata {
        let labels = metadata.labels.take().map(|mut labels| {
            labels.remove(POD_TEMPLATE_HASH);
            labels
        });
        metadata.labels = labels.filter(|labels| !labels.is_empty());
    }
    // An API server writes `creationTimestamp: null` or nothing.
    template.metadata = template.metadata.filter(|metadata| *metadata != Default::default());
    template
}
