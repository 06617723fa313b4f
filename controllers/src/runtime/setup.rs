//! Construction of controllers: the shared context, triggers for other controllers, and shared state.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::controller::{Controller, Key};
use crate::runtime::context::Context;
use crate::runtime::workqueue::{AnyQueue, Priority, Queue};

/// Enqueues keys of a controller. Cheap to clone.
pub struct Trigger<K>(Queue<K>);

impl<K> Clone for Trigger<K> {
    fn clone(&self) -> Self {
        Trigger(self.0.clone())
    }
}

impl<K: Key> Trigger<K> {
    /// Enqueues `key`. If it is being reconciled, it is reconciled again afterwards.
    pub fn add(&self, key: K) {
        self.0.add(key);
    }

    /// Enqueues `key`, and sets its priority.
    pub fn add_with_priority(&self, key: K, priority: Priority) {
        self.0.add_with_priority(key, priority);
    }

    /// Enqueues keys whose last reconcile was [`crate::runtime::workqueue::Outcome::AwaitChange`].
    pub fn requeue_awaiting(&self) {
        self.0.requeue_awaiting();
    }
}

/// Requests a full resync of all controllers. Cheap to clone.
#[derive(Clone, Default)]
pub struct Resync(Arc<Notify>);

impl Resync {
    pub fn request(&self) {
        self.0.notify_one();
    }

    pub(super) async fn wait_for_request(&self) {
        self.0.notified().await;
    }
}

/// The queue of a controller, as a distinct type for each controller, so that [`Setup::get_or_create_shared`]
/// distinguishes them.
struct ControllerQueue<C: Controller>(Queue<C::Key>);

/// Creates each controller, its queue and the shared state at the first request for it.
pub struct Setup {
    pub context: Arc<Context>,
    pub resync: Resync,
    created: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl Setup {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Setup { context, resync: Resync::default(), created: Mutex::default() }
    }

    pub fn context(&self) -> Arc<Context> {
        Arc::clone(&self.context)
    }

    /// State that several controllers share, one instance of each type.
    pub fn get_or_create_shared<T: Send + Sync + 'static>(&self, create: impl FnOnce(&Self) -> Arc<T>) -> Arc<T> {
        let existing = self.created.lock().get(&TypeId::of::<T>()).cloned();
        if let Some(existing) = existing.and_then(|existing| existing.downcast().ok()) {
            return existing;
        }
        // `create` may use this setup, so the lock must not be held.
        let created = create(self);
        self.created.lock().insert(TypeId::of::<T>(), Arc::<T>::clone(&created));
        created
    }

    /// Another controller, to call its methods. Two controllers must not need each other, because
    /// their construction would recurse. Triggers have no such restriction.
    pub fn controller<C: Controller>(&self) -> Arc<C> {
        self.get_or_create_shared(|setup| Arc::new(C::new(setup)))
    }

    /// A trigger that enqueues keys of another controller.
    pub fn trigger<C: Controller>(&self) -> Trigger<C::Key> {
        Trigger(self.queue::<C>())
    }

    /// The queue of a controller. It is closed, and discards keys, if the controller is disabled.
    pub(crate) fn queue<C: Controller>(&self) -> Queue<C::Key> {
        let queue = self.get_or_create_shared(|setup| {
            let queue = Queue::new(C::NAME).with_groups(C::group);
            if !setup.context.config.controllers.should_run(C::SWITCH) {
                queue.close();
            }
            Arc::new(ControllerQueue::<C>(match C::durations(&setup.context) {
                Some(durations) => queue.with_durations(durations),
                None => queue,
            }))
        });
        queue.0.clone()
    }
}
