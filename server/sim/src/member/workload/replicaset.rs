//! ReplicaSet and ReplicationController controller: maintains the number of active pods. As in Kubernetes, a
//! ReplicationController is treated as a ReplicaSet.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::selector::Selector;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetSpec, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};

use crate::error::{Error, Result};
use crate::member::context::{MemberContext, NamespacedKind, ObjectStore};
use crate::member::informer::Object;
use crate::member::pod::{Phase, PodState};
use crate::member::store::{Key, StoreObject};

use super::pods::{self, WorkloadOwner};
use super::{
    BULK_WRITE_DELAY, count, enqueue_orphan_candidates, enqueue_pod_owners, new_change_queue, nonzero, spawn_controller,
};

/// Maximum number of pods that are created or deleted at a time.
const MAX_PODS_PER_STEP: usize = 500;

/// A kind that maintains a number of pods.
trait ReplicaKind: NamespacedKind + k8s_openapi::Resource {
    /// Source of events and name of the controller.
    const COMPONENT: &'static str;

    fn store(context: &MemberContext) -> &ObjectStore<Self>;

    /// The object as a ReplicaSet.
    fn as_replica_set(&self) -> Cow<'_, ReplicaSet>;

    /// Writes a status that was computed for [`ReplicaKind::as_replica_set`].
    fn set_status(
        context: &MemberContext,
        object: &Object<Self>,
        status: ReplicaSetStatus,
    ) -> impl Future<Output = Result<()>> + Send;
}

impl ReplicaKind for ReplicaSet {
    const COMPONENT: &'static str = "replicaset-controller";

    fn store(context: &MemberContext) -> &ObjectStore<Self> {
        &context.replica_sets
    }

    fn as_replica_set(&self) -> Cow<'_, ReplicaSet> {
        Cow::Borrowed(self)
    }

    async fn set_status(context: &MemberContext, object: &Object<Self>, status: ReplicaSetStatus) -> Result<()> {
        context.set_status(&context.replica_sets, object, object.status.as_ref(), &status).await
    }
}

impl ReplicaKind for ReplicationController {
    const COMPONENT: &'static str = "replication-controller";

    fn store(context: &MemberContext) -> &ObjectStore<Self> {
        &context.replication_controllers
    }

    fn as_replica_set(&self) -> Cow<'_, ReplicaSet> {
        let spec = self.spec.clone().unwrap_or_default();
        let status = self.status.clone().unwrap_or_default();
        let condition = |condition: ReplicationControllerCondition| ReplicaSetCondition {
            last_transition_time: condition.last_transition_time,
            message: condition.message,
            reason: condition.reason,
            status: Some(condition.status),
            type_: Some(condition.type_),
        };
        Cow::Owned(ReplicaSet {
            metadata: self.metadata.clone(),
            spec: ReplicaSetSpec {
                min_ready_seconds: spec.min_ready_seconds,
                replicas: spec.replicas,
                selector: LabelSelector { match_labels: spec.selector, match_expressions: None },
                template: spec.template,
            },
            status: Some(ReplicaSetStatus {
                conditions: status.conditions.map(|conditions| conditions.into_iter().map(condition).collect()),
                ..ReplicaSetStatus::default()
            }),
        })
    }

    async fn set_status(context: &MemberContext, object: &Object<Self>, status: ReplicaSetStatus) -> Result<()> {
        let condition = |condition: ReplicaSetCondition| ReplicationControllerCondition {
            last_transition_time: condition.last_transition_time,
            message: condition.message,
            reason: condition.reason,
            status: condition.status.unwrap_or_default(),
            type_: condition.type_.unwrap_or_default(),
        };
        let status = ReplicationControllerStatus {
            replicas: status.replicas,
            fully_labeled_replicas: status.fully_labeled_replicas,
            ready_replicas: status.ready_replicas,
            available_replicas: status.available_replicas,
            observed_generation: status.observed_generation,
            conditions: status.conditions.map(|conditions| conditions.into_iter().map(condition).collect()),
        };
        context.set_status(&context.replication_controllers, object, object.status.as_ref(), &status).await
    }
}

pub fn start(context: &Arc<MemberContext>) {
    start_kind::<ReplicaSet>(context);
    start_kind::<ReplicationController>(context);
}

fn start_kind<K: ReplicaKind>(context: &Arc<MemberContext>) {
    let store = K::store(context);
    let keys = new_change_queue(store);
    enqueue_pod_owners(context, K::KIND, &keys);
    enqueue_orphan_candidates(context, store, &keys);
    spawn_controller(
        context,
        K::COMPONENT,
        keys,
        8,
        |context, key| async move { reconcile::<K>(&context, &key).await },
    );
}

/// Actions to reach the desired number of active pods.
#[derive(Debug, Default)]
pub struct Plan {
    pub create: usize,
    pub delete: Vec<Arc<PodState>>,
}

/// Computes the pods to create or delete. Pods are deleted in the order of Kubernetes' ReplicaSet controller
/// (`ActivePodsWithRanks`).
pub fn plan(replicas: i32, pods: &[Arc<PodState>]) -> Plan {
    let mut active: Vec<&Arc<PodState>> = pods.iter().filter(|pod| pod.is_active()).collect();
    let replicas = usize::try_from(replicas).unwrap_or_default();
    if active.len() <= replicas {
        return Plan { create: (replicas - active.len()).min(MAX_PODS_PER_STEP), delete: Vec::new() };
    }
    let mut pods_by_node: HashMap<&str, usize> = HashMap::new();
    for pod in &active {
        *pods_by_node.entry(pod.node.as_deref().unwrap_or_default()).or_default() += 1;
    }
    active.sort_by_key(|pod| {
        let phase = match pod.phase {
            Phase::Pending => 0,
            Phase::Unknown => 1,
            _ => 2,
        };
        let cost: i64 = pod
            .annotations
            .get("controller.kubernetes.io/pod-deletion-cost")
            .and_then(|cost| cost.parse().ok())
            .unwrap_or_default();
        let pods_on_node = pods_by_node.get(pod.node.as_deref().unwrap_or_default()).copied().unwrap_or_default();
        (
            pod.node.is_some(),
            phase,
            pod.is_ready(),
            cost,
            Reverse(pods_on_node),
            Reverse(pod.ready_since),
            Reverse(pod.restarts()),
            Reverse(pod.created),
            pod.key.clone(),
        )
    });
    let surplus = (active.len() - replicas).min(MAX_PODS_PER_STEP);
    Plan { create: 0, delete: active.into_iter().take(surplus).cloned().collect() }
}

/// Computes the status from the pods. `failure` is the error of creating pods.
pub fn compute_status(
    set: &ReplicaSet,
    pods: &[Arc<PodState>],
    failure: Option<&str>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let spec = set.spec.clone();
    let min_ready_seconds = i64::from(spec.min_ready_seconds.unwrap_or_default());
    let template_labels =
        spec.template.and_then(|template| template.metadata).and_then(|meta| meta.labels).unwrap_or_default();
    let active = || pods.iter().filter(|pod| pod.is_active());
    let labeled =
        active().filter(|pod| template_labels.iter().all(|(name, value)| pod.labels.get(name) == Some(value)));
    let mut conditions = set.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    match failure {
        None => conditions.retain(|condition| condition.type_.as_deref() != Some("ReplicaFailure")),
        Some(message) if !conditions.iter().any(|condition| condition.type_.as_deref() == Some("ReplicaFailure")) => {
            conditions.push(ReplicaSetCondition {
                last_transition_time: Some(Time(now)),
                message: Some(message.to_owned()),
                reason: Some("FailedCreate".into()),
                status: Some("True".into()),
                type_: Some("ReplicaFailure".into()),
            });
        }
        Some(_) => {}
    }
    ReplicaSetStatus {
        replicas: count(active()),
        fully_labeled_replicas: nonzero(count(labeled)),
        ready_replicas: nonzero(count(active().filter(|pod| pod.is_ready()))),
        available_replicas: nonzero(count(active().filter(|pod| pod.is_available(min_ready_seconds, now)))),
        observed_generation: set.metadata.generation,
        conditions: (!conditions.is_empty()).then_some(conditions),
        ..ReplicaSetStatus::default()
    }
}

/// Time until the next ready pod becomes available; `None` if there is no such pod.
pub fn time_until_available<'a>(
    pods: impl IntoIterator<Item = &'a Arc<PodState>>,
    min_ready_seconds: i32,
    now: Timestamp,
) -> Option<Duration> {
    let min_ready_seconds = i64::from(min_ready_seconds);
    let remaining_seconds =
        |pod: &Arc<PodState>| pod.ready_since.map(|since| min_ready_seconds - (now.as_second() - since.as_second()));
    let seconds = pods.into_iter().filter_map(remaining_seconds).filter(|seconds| *seconds > 0).min()?;
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or_default()))
}

async fn reconcile<K: ReplicaKind>(context: &MemberContext, key: &Key) -> Result<Option<Duration>> {
    let Some(object) = K::store(context).get(key) else { return Ok(None) };
    if context.is_suspended(object.uid()) {
        return Ok(Some(BULK_WRITE_DELAY));
    }
    let owner = WorkloadOwner::new(&object, K::COMPONENT);
    let set = object.as_replica_set();
    let spec = &set.spec;
    let is_deleted = set.metadata.deletion_timestamp.is_some();
    let selector = Selector::from_label_selector_or_nothing(&spec.selector);
    let mut pods = pods::claim(context, &owner, &selector, is_deleted).await?;
    let mut failure: Option<Error> = None;
    if !is_deleted {
        let plan = plan(spec.replicas.unwrap_or(1), &pods);
        let template = spec.template.clone().unwrap_or_default();
        let new_pods = (0..plan.create).map(|_| pods::from_template(&owner, &template)).collect::<Vec<_>>();
        if !new_pods.is_empty() {
            failure = pods::create(context, &owner, new_pods).await.err();
        }
        pods::delete(context, &owner, &plan.delete).await?;
        if plan.create > 0 || !plan.delete.is_empty() {
            pods = context.pods.owned_by(&owner.subject.uid);
        }
    }
    let now = Timestamp::now();
    let message = failure.as_ref().map(Error::message);
    let status = compute_status(&set, &pods, message.as_deref(), now);
    K::set_status(context, &object, status).await?;
    match failure {
        Some(error) => Err(error),
        None => Ok(time_until_available(&pods, spec.min_ready_seconds.unwrap_or_default(), now)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::member::interner::Interner;

    fn pod(name: &str, node: Option<&str>, ready: bool, cost: &str) -> Arc<PodState> {
        let status = if ready { "True" } else { "False" };
        let pod = json!({
            "metadata": {"name": name, "uid": name, "annotations": {"controller.kubernetes.io/pod-deletion-cost": cost}},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": if node.is_some() { "Running" } else { "Pending" }, "conditions": [
                {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        });
        Arc::new(Interner::default().intern_pod(serde_json::from_value(pod).unwrap()))
    }

    #[test]
    fn pods_are_deleted_in_the_order_of_kubernetes() {
        let pods = [
            pod("costly", Some("a"), true, "5"),
            pod("ready-a1", Some("a"), true, "0"),
            pod("ready-b", Some("b"), true, "0"),
            pod("unready", Some("b"), false, "0"),
            pod("unbound", None, false, "0"),
            pod("ready-a2", Some("a"), true, "0"),
        ];
        let order: Vec<_> = plan(0, &pods).delete.iter().map(|pod| pod.key.name.to_string()).collect();
        assert_eq!(order, ["unbound", "unready", "ready-a1", "ready-a2", "ready-b", "costly"]);
        assert_eq!(plan(9, &pods).create, 3);
        assert_eq!(plan(5, &pods).delete.len(), 1);
    }

    #[test]
    fn replication_controllers_are_treated_as_replica_sets() {
        let controller: ReplicationController = serde_json::from_value(json!({
            "metadata": {"name": "rc", "generation": 2},
            "spec": {"replicas": 2, "minReadySeconds": 1, "selector": {"app": "x"}, "template": {"metadata": {"labels": {"app": "x"}}}},
            "status": {"replicas": 1, "conditions": [{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}]},
        }))
        .unwrap();
        let set = controller.as_replica_set();
        assert_eq!(
            (set.spec.replicas, set.spec.min_ready_seconds, set.metadata.generation),
            (Some(2), Some(1), Some(2))
        );
        let selector = Selector::from_label_selector_or_nothing(&set.spec.selector);
        assert!(selector.matches(&[("app".to_owned(), "x".to_owned())].into()));
        let failing = compute_status(&set, &[], Some("again"), Timestamp::now());
        let healthy = compute_status(&set, &[], None, Timestamp::now());
        assert_eq!(failing.conditions, set.status.as_ref().unwrap().conditions);
        assert_eq!(healthy.conditions, None);
    }
}
