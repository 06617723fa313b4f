//! The dispatcher: passes changes of the cache to the derived caches, and to the controllers that watch them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use crowsnest_apimachinery::names::{ClusterName, Gvr, NamespacedName};
use tokio_util::sync::CancellationToken;

use super::registered_controller::{RegisteredController, Task};
use super::registry::Registry;
use super::setup::{Resync, Setup};
use crate::Error;
use crate::cache::derived_caches::DerivedCaches;
use crate::cache::{Change, EventHandler};
use crate::runtime::context::Context;
use crate::runtime::discovery::Discoverer;
use crate::runtime::dynamic_client::Resource;
use crate::runtime::workqueue::AnyQueue;

/// All controllers and the caches that they share.
pub(crate) struct Dispatcher {
    context: Arc<Context>,
    derived_caches: DerivedCaches,
    pub(crate) discoverer: Arc<Discoverer>,
    controllers: Vec<Box<dyn RegisteredController>>,
    pub(crate) resync: Resync,
}

impl Dispatcher {
    pub(crate) fn new(setup: &Setup, registry: &Registry) -> Self {
        Dispatcher {
            context: setup.context(),
            derived_caches: DerivedCaches::new(setup),
            discoverer: Arc::new(Discoverer::new(setup)),
            controllers: registry.create(setup),
            resync: setup.resync.clone(),
        }
    }

    pub(crate) fn queues(&self) -> impl Iterator<Item = &dyn AnyQueue> {
        self.controllers.iter().map(|controller| controller.queue())
    }

    /// Resources of the control plane that the controllers watch, without duplicates.
    pub(crate) fn resources(&self) -> Vec<Resource> {
        let needed = self.controllers.iter().flat_map(|controller| controller.resources());
        let distinct: BTreeMap<Gvr, Resource> = needed.map(|resource| (resource.gvr.clone(), resource)).collect();
        distinct.into_values().collect()
    }

    /// Enqueues every key of every controller without a resync period of its own. A failed list of keys does not
    /// affect other controllers; the first error is returned.
    pub(crate) async fn run_full_resync(&self) -> Result<(), Error> {
        let mut result = Ok(());
        for controller in &self.controllers {
            if let Err(error) = controller.run_full_resync().await {
                tracing::warn!(controller = controller.queue().name(), %error, "cannot list the keys of a controller");
                result = result.and(Err(error));
            }
        }
        result
    }

    pub(crate) async fn prepare(&self) {
        for controller in &self.controllers {
            controller.prepare().await;
        }
    }

    /// True if no queue has a due key and no controller has a deferred write.
    pub(crate) fn is_idle(&self) -> bool {
        // Checked twice, since a reconcile may begin to write a deferred status after its queue was checked, and
        // another may defer its write and end before its queue is checked.
        !self.has_deferred_writes() && self.queues().all(AnyQueue::is_idle) && !self.has_deferred_writes()
    }

    fn has_deferred_writes(&self) -> bool {
        self.controllers.iter().any(|controller| controller.has_deferred_writes())
    }

    pub(crate) fn tasks(&self, stop: &CancellationToken) -> Vec<Task> {
        self.controllers.iter().flat_map(|controller| controller.tasks(stop)).collect()
    }

    /// Runs full resyncs: after each period, and when one is requested.
    pub(crate) async fn run_resyncs(self: Arc<Self>, stop: CancellationToken) -> Result<(), String> {
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(self.context.config.periods.full_resync) => {}
                () = self.resync.wait_for_request() => {}
            }
            // Queues keep their keys, and the next resync enqueues the others.
            if let Err(error) = self.run_full_resync().await {
                tracing::error!(%error, "full resync failed");
            }
        }
    }
}

#[async_trait]
impl EventHandler for Dispatcher {
    async fn on_change(&self, change: &Change) -> Result<(), Error> {
        self.derived_caches.update(change);
        for controller in &self.controllers {
            controller.handle(change).await?;
        }
        if change.cluster.is_control_plane() {
            self.discoverer.on_change(change);
            self.derived_caches.forget_deleted_cluster(change);
        }
        Ok(())
    }

    fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>) {
        for controller in &self.controllers {
            controller.retain(cluster, resource, keys);
        }
        self.derived_caches.retain(cluster, resource, keys);
    }

    fn request_resync(&self) {
        self.resync.request();
    }
}
