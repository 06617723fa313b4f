//! Workload controllers: Deployments, ReplicaSets, ReplicationControllers, StatefulSets, DaemonSets, Jobs and
//! CronJobs.
//!
//! Each controller consists of a pure function, which computes a plan from the contents of the stores, and a function
//! that applies it. Controllers see their own writes at once (see [`super::store`]), so they do not need the
//! expectations of kube-controller-manager.

pub mod cronjob;
pub mod daemonset;
pub mod deployment;
pub mod job;
pub mod pods;
pub mod replicaset;
pub mod revision;
pub mod rollout;
pub mod statefulset;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use kube::Resource;

use crate::error::Result;

use super::context::{MemberContext, ObjectStore};
use super::informer::controller_of;
use super::queue::{self, Queue};
use super::store::{Index, Key, StoreObject};

/// Delay before a workload that is being written in bulk is checked again.
const BULK_WRITE_DELAY: Duration = Duration::from_millis(500);

/// Work queue of a controller.
pub type KeyQueue = Arc<Queue<Key>>;

/// Starts all workload controllers.
pub fn start(context: &Arc<MemberContext>) {
    let controllers: [fn(&Arc<MemberContext>); 6] =
        [replicaset::start, deployment::start, statefulset::start, daemonset::start, job::start, cronjob::start];
    controllers.into_iter().for_each(|start| start(context));
}

/// Creates a queue to which the keys of all changed objects in `store` are added.
pub fn new_change_queue<K>(store: &ObjectStore<K>) -> KeyQueue
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
{
    let changed_keys = KeyQueue::default();
    let queue = changed_keys.clone();
    store.on_change(move |old, new| match (new, old) {
        (Some(object), _) => queue.add(object.key()),
        (None, Some(object)) => queue.forget(&object.key()),
        (None, None) => {}
    });
    changed_keys
}

/// Adds the owner's key to a queue for each change of a pod that is controlled by an object of `kind`.
pub fn enqueue_pod_owners(context: &MemberContext, kind: &'static str, queue: &KeyQueue) {
    let queue = queue.clone();
    context.pods.on_change(move |old, new| {
        for pod in [old, new].into_iter().flatten() {
            if let Some(owner) = pod.owner.as_ref().filter(|owner| &*owner.kind == kind) {
                queue.add(Key { namespace: pod.key.namespace.clone(), name: owner.name.as_ref().into() });
            }
        }
    });
}

/// Adds the owner's key to a queue for each change of an object in `store` that is controlled by an object of `kind`.
pub fn enqueue_owners<K>(store: &ObjectStore<K>, kind: &'static str, queue: &KeyQueue)
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
{
    let queue = queue.clone();
    store.on_change(move |old, new| {
        for object in [old, new].into_iter().flatten() {
            if let Some(owner) = controller_of(object.meta()).filter(|owner| owner.kind == kind) {
                queue.add(Key::new(&object.key().namespace, &owner.name));
            }
        }
    });
}

/// Adds the keys of all objects of `store` in the namespace of an orphaned pod to a queue: one of them may adopt the
/// pod.
pub fn enqueue_orphan_candidates<K>(context: &MemberContext, store: &ObjectStore<K>, queue: &KeyQueue)
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
{
    let (queue, candidates) = (queue.clone(), Arc::downgrade(store));
    context.pods.on_change(move |_, new| {
        let (Some(pod), Some(candidates)) = (new.filter(|pod| pod.owner.is_none()), candidates.upgrade()) else {
            return;
        };
        for object in candidates.by_index(&Index::Namespace(pod.key.namespace.clone())) {
            queue.add(object.key());
        }
    });
}

/// Runs a controller as a task of the member, with at most `max_concurrent` reconciliations at a time. `work` returns
/// the delay after which the key is reconciled again, or `None`.
pub fn spawn_controller<F>(
    context: &Arc<MemberContext>,
    name: &'static str,
    queue: KeyQueue,
    max_concurrent: usize,
    work: impl Fn(Arc<MemberContext>, Key) -> F + Send + Sync + 'static,
) where
    F: Future<Output = Result<Option<Duration>>> + Send + 'static,
{
    let (shared, stop) = (context.clone(), context.stop.clone());
    context.spawn_when_synced(name, async move {
        queue::run(name, queue, max_concurrent, stop, |key| work(shared.clone(), key)).await
    });
}

/// The count, or `None` for zero, which Go's `omitempty` omits in a status.
pub fn nonzero(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

/// Number of items, as a counter of a status.
pub fn count<T>(items: impl IntoIterator<Item = T>) -> i32 {
    i32::try_from(items.into_iter().count()).unwrap_or(i32::MAX)
}
