//! Workload controllers: Deployments, ReplicaSets, ReplicationControllers, StatefulSets, DaemonSets, Jobs and
//! CronJobs.
//!
//! Each controller consists of a pure plan from the stores' contents and a function that applies it. Controllers see
//! their own writes at once (see [`super::store`]), so they need no expectations.

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

use super::queue::{self, Queue};
use super::store::{Index, Key, Stored};
use super::world::{Objects, World};

/// Delay for a workload that is being written in bulk.
const BULK_WRITE_DELAY: Duration = Duration::from_millis(500);

/// Work queue of a controller.
pub type Keys = Arc<Queue<Key>>;

/// Starts all workload controllers.
pub fn start(world: &Arc<World>) {
    replicaset::start(world);
    deployment::start(world);
    statefulset::start(world);
    daemonset::start(world);
    job::start(world);
    cronjob::start(world);
}

/// A queue to which the keys of all changed objects in `store` are added.
pub fn keys_of<K>(store: &Objects<K>) -> Keys
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
{
    let keys = Keys::default();
    let queue = keys.clone();
    store.on_change(move |old, new| match (new, old) {
        (Some(object), _) => queue.add(object.key()),
        (None, Some(object)) => queue.forget(&object.key()),
        (None, None) => {}
    });
    keys
}

/// Adds the owner's key for each change of a pod controlled by a `kind`.
pub fn follow_pods(world: &World, kind: &'static str, keys: &Keys) {
    let queue = keys.clone();
    world.pods.on_change(move |old, new| {
        for pod in [old, new].into_iter().flatten() {
            if let Some(owner) = pod.owner.as_ref().filter(|owner| &*owner.kind == kind) {
                queue.add(Key { namespace: pod.key.namespace.clone(), name: owner.name.as_ref().into() });
            }
        }
    });
}

/// Adds all objects of `store` in the namespace of an orphaned pod, one of which may adopt it.
pub fn follow_orphans<K>(world: &World, store: &Objects<K>, keys: &Keys)
where
    K: Resource<DynamicType = ()> + Send + Sync + 'static,
{
    let (queue, candidates) = (keys.clone(), Arc::downgrade(store));
    world.pods.on_change(move |_, new| {
        let (Some(pod), Some(candidates)) = (new.filter(|pod| pod.owner.is_none()), candidates.upgrade()) else {
            return;
        };
        for object in candidates.by(&Index::Namespace(pod.key.namespace.clone())) {
            queue.add(object.key());
        }
    });
}

/// Runs a controller as a task of the member.
pub fn spawn<F>(
    world: &Arc<World>,
    name: &'static str,
    keys: Keys,
    at_once: usize,
    work: impl Fn(Arc<World>, Key) -> F + Send + Sync + 'static,
) where
    F: Future<Output = Result<Option<Duration>>> + Send + 'static,
{
    let (shared, stop) = (world.clone(), world.stop.clone());
    world.work(name, async move { queue::run(name, keys, at_once, stop, |key| work(shared.clone(), key)).await });
}

/// Omits a zero in a status, like Go's `omitempty`.
pub fn nonzero(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

/// The size of a collection as a status counter.
pub fn count<T>(items: impl IntoIterator<Item = T>) -> i32 {
    i32::try_from(items.into_iter().count()).unwrap_or(i32::MAX)
}
