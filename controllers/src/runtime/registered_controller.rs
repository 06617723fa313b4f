//! A controller with its queue and watches, independent of its key type.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::controller::Controller;
use super::setup::Setup;
use super::watch::{Source, Watch};
use crate::Error;
use crate::cache::Change;
use crate::runtime::dynamic_client::Resource;
use crate::runtime::workqueue::{AnyQueue, Outcome, Priority, Queue};
use crate::runtime::write_fence::Fence;

/// Time for which a reconcile may continue after the write fence has ended, such as to record the writes that it has completed.
const FENCED_GRACE: Duration = Duration::from_secs(10);

pub(crate) type Task = BoxFuture<'static, Result<(), String>>;

/// A registered controller, independent of its key type.
#[async_trait]
pub(crate) trait RegisteredController: Send + Sync {
    fn queue(&self) -> &dyn AnyQueue;

    /// Resources of the control plane that the controller watches.
    fn resources(&self) -> Vec<Resource>;

    /// Enqueues the keys of a change.
    async fn handle(&self, change: &Change) -> Result<(), Error>;

    /// Calls [`Controller::retain`], if the controller is enabled.
    fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>);

    /// Enqueues every key, if the controller is enabled and has no resync period of its own.
    async fn run_full_resync(&self) -> Result<(), Error>;

    /// Calls [`Controller::prepare`], if the controller is enabled.
    async fn prepare(&self);

    /// True if a write of the controller is deferred.
    fn has_deferred_writes(&self) -> bool;

    /// Workers and the other tasks of the controller. Empty if its queue is closed.
    fn tasks(&self, stop: &CancellationToken) -> Vec<Task>;
}

/// A controller of a registry with its queue and watches.
pub(super) struct ControllerEntry<C: Controller> {
    controller: Arc<C>,
    queue: Queue<C::Key>,
    watches: Vec<Watch<C>>,
    workers: usize,
    resync_period: Option<Duration>,
    is_enabled: bool,
    /// Its end stops the reconciles.
    fence: Fence,
}

impl<C: Controller> ControllerEntry<C> {
    pub(super) fn create(setup: &Setup) -> Box<dyn RegisteredController> {
        let (controller, config) = (setup.controller::<C>(), &setup.context.config);
        Box::new(ControllerEntry {
            watches: C::watches(&setup.context.kinds),
            controller,
            queue: setup.queue::<C>(),
            workers: C::workers(config),
            resync_period: C::resync_period(config),
            is_enabled: config.controllers.should_run(C::SWITCH),
            fence: config.fence.clone(),
        })
    }

    fn enqueue(&self, key: C::Key, priority: Option<Priority>, after: Duration) {
        match (after.is_zero(), priority) {
            (false, _) => self.queue.add_after(key, after),
            (true, Some(priority)) => self.queue.add_with_priority(key, priority),
            (true, None) => self.queue.add(key),
        }
    }
}

/// Enqueues every key of a controller after a delay.
async fn resync<C: Controller>(controller: &C, queue: &Queue<C::Key>, after: Duration) -> Result<(), Error> {
    for key in controller.keys().await? {
        match after.is_zero() {
            true => queue.add(key),
            false => queue.add_after(key, after),
        }
    }
    Ok(())
}

#[async_trait]
impl<C: Controller> RegisteredController for ControllerEntry<C> {
    fn queue(&self) -> &dyn AnyQueue {
        &self.queue
    }

    fn resources(&self) -> Vec<Resource> {
        let control_plane_resources = |watch: &Watch<C>| match &watch.source {
            Source::ControlPlane(resources) => resources.clone(),
            _ => Vec::new(),
        };
        self.watches.iter().flat_map(control_plane_resources).collect()
    }

    async fn handle(&self, change: &Change) -> Result<(), Error> {
        if !self.is_enabled {
            return Ok(());
        }
        for watch in &self.watches {
            let requests = watch.requests(&self.controller, change).await?;
            if let Some(after) = requests.all {
                resync(&*self.controller, &self.queue, after).await?;
            }
            for request in requests.requests {
                self.enqueue(request.key, request.priority, request.after);
            }
        }
        Ok(())
    }

    fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>) {
        if self.is_enabled {
            self.controller.retain(cluster, resource, keys);
        }
    }

    async fn run_full_resync(&self) -> Result<(), Error> {
        match self.is_enabled && self.resync_period.is_none() {
            true => resync(&*self.controller, &self.queue, Duration::ZERO).await,
            false => Ok(()),
        }
    }

    async fn prepare(&self) {
        if self.is_enabled {
            self.controller.prepare().await;
        }
    }

    fn has_deferred_writes(&self) -> bool {
        self.controller.has_deferred_writes()
    }

    fn tasks(&self, stop: &CancellationToken) -> Vec<Task> {
        if self.queue.is_closed() {
            return Vec::new();
        }
        let (controller, fence) = (Arc::clone(&self.controller), self.fence.clone());
        let reconcile =
            move |key| stop_after_fence(Arc::clone(&controller).reconcile(key), fence.clone(), FENCED_GRACE);
        let mut tasks = vec![self.queue.clone().run(self.workers, stop.clone(), reconcile).boxed()];
        tasks.extend(Arc::clone(&self.controller).key_source(stop.clone()));
        if let Some(period) = self.resync_period {
            let (controller, queue, stop) = (Arc::clone(&self.controller), self.queue.clone(), stop.clone());
            tasks.push(resync_periodically(controller, queue, period, stop).boxed());
        }
        tasks
    }
}

/// Runs a reconcile, and cancels it if it continues for `grace` after the fence has ended: a former leader must stop its controllers
/// soon, but a reconcile may call several webhooks with long timeouts one after the other.
async fn stop_after_fence(
    reconcile: impl Future<Output = Result<Outcome, Error>>,
    fence: Fence,
    grace: Duration,
) -> Result<Outcome, Error> {
    let grace_ends = async {
        fence.wait_for_end().await;
        tokio::time::sleep(grace).await;
    };
    tokio::select! {
        biased;
        result = reconcile => result,
        () = grace_ends => Err(Error::Fenced("the reconcile".to_owned())),
    }
}

/// Resyncs a controller that has its own resync period: immediately, and then periodically.
async fn resync_periodically<C: Controller>(
    controller: Arc<C>,
    queue: Queue<C::Key>,
    period: Duration,
    stop: CancellationToken,
) -> Result<(), String> {
    loop {
        if let Err(error) = resync(&*controller, &queue, Duration::ZERO).await {
            tracing::warn!(controller = C::NAME, %error, "resync failed");
        }
        if stop.run_until_cancelled(tokio::time::sleep(period)).await.is_none() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::fence_is_open(false, true)]
    #[case::completes_after_the_fence_has_ended(true, true)]
    #[case::continues_after_the_fence_has_ended(true, false)]
    #[tokio::test]
    async fn a_reconcile_is_cancelled_after_the_fence_has_ended(#[case] has_ended: bool, #[case] completes: bool) {
        let fence = Fence::default();
        if has_ended {
            fence.close();
        }
        let reconcile = async {
            match completes {
                true => Ok(Outcome::Done),
                false => std::future::pending().await,
            }
        };
        match stop_after_fence(reconcile, fence, Duration::ZERO).await {
            Ok(outcome) => assert!(completes && outcome == Outcome::Done),
            Err(error) => assert!(!completes && matches!(error, Error::Fenced(_)), "{error}"),
        }
    }
}
