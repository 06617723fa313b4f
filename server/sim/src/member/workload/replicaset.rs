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
use crate::member::informer::Object;
use crate::member::pod::{Phase, PodState};
use crate::member::store::{Key, Stored};
use crate::member::world::{NamespacedKind, Objects, World};

use super::pods::{self, Parent};
use super::{BULK_WRITE_DELAY, count, follow_orphans, follow_pods, keys_of, nonzero, spawn};

/// Maximum number of pods created or deleted at a time.
const BURST: usize = 500;

/// A kind that maintains a number of pods.
trait Replicated: NamespacedKind {
    const API_VERSION: &'static str;
    const KIND: &'static str;
    /// Source of events and name of the controller.
    const COMPONENT: &'static str;

    fn store(world: &World) -> &Objects<Self>;

    /// The object as a ReplicaSet.
    fn as_set(&self) -> Cow<'_, ReplicaSet>;

    /// Writes a status that was computed for [`Replicated::as_set`].
    fn set_status(
        world: &World,
        object: &Object<Self>,
        status: ReplicaSetStatus,
    ) -> impl Future<Output = Result<()>> + Send;
}

impl Replicated for ReplicaSet {
    const API_VERSION: &'static str = "apps/v1";
    const KIND: &'static str = "ReplicaSet";
    const COMPONENT: &'static str = "replicaset-controller";

    fn store(world: &World) -> &Objects<Self> {
        &world.replica_sets
    }

    fn as_set(&self) -> Cow<'_, ReplicaSet> {
        Cow::Borrowed(self)
    }

    async fn set_status(world: &World, object: &Object<Self>, status: ReplicaSetStatus) -> Result<()> {
        world.set_status(&world.replica_sets, object, object.status.as_ref(), &status).await
    }
}

impl Replicated for ReplicationController {
    const API_VERSION: &'static str = "v1";
    const KIND: &'static str = "ReplicationController";
    const COMPONENT: &'static str = "replication-controller";

    fn store(world: &World) -> &Objects<Self> {
        &world.replication_controllers
    }

    fn as_set(&self) -> Cow<'_, ReplicaSet> {
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

    async fn set_status(world: &World, object: &Object<Self>, status: ReplicaSetStatus) -> Result<()> {
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
        world.set_status(&world.replication_controllers, object, object.status.as_ref(), &status).await
    }
}

pub fn start(world: &Arc<World>) {
    follow::<ReplicaSet>(world);
    follow::<ReplicationController>(world);
}

fn follow<K: Replicated>(world: &Arc<World>) {
    let store = K::store(world);
    let keys = keys_of(store);
    follow_pods(world, K::KIND, &keys);
    follow_orphans(world, store, &keys);
    spawn(world, K::COMPONENT, keys, 8, |world, key| async move { reconcile::<K>(&world, &key).await });
}

/// Actions to reach the desired number of active pods.
#[derive(Debug, Default)]
pub struct Plan {
    pub create: usize,
    pub delete: Vec<Arc<PodState>>,
}

/// Computes the pods to create or delete. The least useful pods are deleted first, in Kubernetes' order.
pub fn plan(want: i32, pods: &[Arc<PodState>]) -> Plan {
    let mut active: Vec<&Arc<PodState>> = pods.iter().filter(|pod| pod.is_active()).collect();
    let want = usize::try_from(want).unwrap_or_default();
    if active.len() <= want {
        return Plan { create: (want - active.len()).min(BURST), delete: Vec::new() };
    }
    let mut crowd: HashMap<&str, usize> = HashMap::new();
    for pod in &active {
        *crowd.entry(pod.node.as_deref().unwrap_or_default()).or_default() += 1;
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
        let doubled = crowd.get(pod.node.as_deref().unwrap_or_default()).copied().unwrap_or_default();
        (
            pod.node.is_some(),
            phase,
            pod.is_ready(),
            cost,
            Reverse(doubled),
            Reverse(pod.ready_since),
            Reverse(pod.restarts()),
            Reverse(pod.created),
            pod.key.clone(),
        )
    });
    let surplus = (active.len() - want).min(BURST);
    Plan { create: 0, delete: active.into_iter().take(surplus).cloned().collect() }
}

/// Computes the status from the pods.
pub fn status(set: &ReplicaSet, pods: &[Arc<PodState>], failure: Option<&str>, now: Timestamp) -> ReplicaSetStatus {
    let spec = set.spec.clone();
    let wait = i64::from(spec.min_ready_seconds.unwrap_or_default());
    let template =
        spec.template.and_then(|template| template.metadata).and_then(|meta| meta.labels).unwrap_or_default();
    let active = || pods.iter().filter(|pod| pod.is_active());
    let labeled = active().filter(|pod| template.iter().all(|(name, value)| pod.labels.get(name) == Some(value)));
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
        available_replicas: nonzero(count(active().filter(|pod| pod.is_available(wait, now)))),
        observed_generation: set.metadata.generation,
        conditions: (!conditions.is_empty()).then_some(conditions),
        ..ReplicaSetStatus::default()
    }
}

/// Time until the next ready pod becomes available.
pub fn next_available<'a>(
    pods: impl IntoIterator<Item = &'a Arc<PodState>>,
    min_ready_seconds: i32,
    now: Timestamp,
) -> Option<Duration> {
    let wait = i64::from(min_ready_seconds);
    let left = |pod: &Arc<PodState>| pod.ready_since.map(|since| wait - (now.as_second() - since.as_second()));
    let soonest = pods.into_iter().filter_map(left).filter(|left| *left > 0).min()?;
    Some(Duration::from_secs(u64::try_from(soonest).unwrap_or_default()))
}

async fn reconcile<K: Replicated>(world: &World, key: &Key) -> Result<Option<Duration>> {
    let Some(object) = K::store(world).get(key) else { return Ok(None) };
    if world.is_held(object.uid()) {
        return Ok(Some(BULK_WRITE_DELAY));
    }
    let parent = Parent::new(&object, K::API_VERSION, K::KIND, K::COMPONENT);
    let set = object.as_set();
    let spec = &set.spec;
    let deleting = set.metadata.deletion_timestamp.is_some();
    let selector = Selector::valid_or_nothing(&spec.selector);
    let mut pods = pods::claim(world, &parent, &selector, deleting).await?;
    let mut failure: Option<Error> = None;
    if !deleting {
        let plan = plan(spec.replicas.unwrap_or(1), &pods);
        let template = spec.template.clone().unwrap_or_default();
        let wanted = (0..plan.create).map(|_| pods::from_template(&parent, &template)).collect::<Vec<_>>();
        if !wanted.is_empty() {
            failure = pods::create(world, &parent, wanted).await.err();
        }
        pods::delete(world, &parent, &plan.delete).await?;
        if plan.create > 0 || !plan.delete.is_empty() {
            pods = world.pods.owned(&parent.subject.uid);
        }
    }
    let now = Timestamp::now();
    let message = failure.as_ref().map(Error::message);
    let status = status(&set, &pods, message.as_deref(), now);
    K::set_status(world, &object, status).await?;
    match failure {
        Some(error) => Err(error),
        None => Ok(next_available(&pods, spec.min_ready_seconds.unwrap_or_default(), now)),
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
        Arc::new(Interner::default().pod(serde_json::from_value(pod).unwrap()))
    }

    #[test]
    fn least_useful_pods_are_deleted_first() {
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
        let set = controller.as_set();
        assert_eq!(
            (set.spec.replicas, set.spec.min_ready_seconds, set.metadata.generation),
            (Some(2), Some(1), Some(2))
        );
        assert!(Selector::valid_or_nothing(&set.spec.selector).matches(&[("app".to_owned(), "x".to_owned())].into()));
        let (failing, well) =
            (status(&set, &[], Some("again"), Timestamp::now()), status(&set, &[], None, Timestamp::now()));
        assert_eq!(failing.conditions, set.status.as_ref().unwrap().conditions);
        assert_eq!(well.conditions, None);
    }
}
