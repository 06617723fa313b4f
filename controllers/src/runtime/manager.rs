//! Manager: starts the controllers, and reports when one of their tasks stops.

use std::collections::BTreeMap;
use std::sync::Arc;

use crowsnest_index::GlobalCache;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cache::Cache;
use crate::journal::Journal;
use crate::reports;
use crate::runtime::config::Config;
use crate::runtime::context::Context;
use crate::runtime::dynamic_client::DynamicClient;
use crate::runtime::event_recorder::EventRecorder;
use crate::runtime::workqueue::AnyQueue;
use crate::runtime::write_fence::Fence;
use crate::scheduling::scheduler::Scheduler;

use crate::Error;
use crate::runtime::dispatcher::Dispatcher;
use crate::runtime::supervisor::{BackgroundTasks, expect_stop, supervise};
use crate::runtime::{Registry, Setup};

/// Reason why the controllers are not healthy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnhealthyReason {
    #[error("the initial sync with the control plane has not finished")]
    Starting,
    /// A task stopped unexpectedly. Only a restart recovers.
    #[error("{0}")]
    Broken(String),
}

/// The running controllers.
pub struct Manager {
    context: Arc<Context>,
    dispatcher: Arc<Dispatcher>,
    scheduler: Arc<Scheduler>,
    health: watch::Receiver<Result<(), UnhealthyReason>>,
    stop: CancellationToken,
    supervisor: tokio::task::JoinHandle<()>,
}

impl Manager {
    /// Starts all controllers against the control plane of the cache's fleet. The cache must have been opened
    /// with [`crate::cache::indexed_labels`]. Returns immediately; [`Manager::health`] reports when the initial sync
    /// with the control plane has finished, and when a task has stopped.
    pub fn start(global_cache: GlobalCache, config: Config, stop: CancellationToken) -> Self {
        Self::start_with(&Registry::default(), global_cache, config, stop)
    }

    /// Starts the controllers of a registry.
    pub fn start_with(registry: &Registry, global_cache: GlobalCache, config: Config, stop: CancellationToken) -> Self {
        Self::run(registry, global_cache, config, stop, false)
    }

    /// Caches the control plane like [`Manager::start`], so that [`Manager::reports`] works, but runs no controllers,
    /// since another process does.
    pub fn observe(global_cache: GlobalCache, config: Config, stop: CancellationToken) -> Self {
        Self::run(&Registry::default(), global_cache, Config { fence: Fence::closed(), ..config }, stop, true)
    }

    fn run(
        registry: &Registry,
        global_cache: GlobalCache,
        config: Config,
        stop: CancellationToken,
        is_observer: bool,
    ) -> Self {
        let stop = stop.child_token();
        let fleet = global_cache.fleet().clone();
        let (cache, informer) = Cache::new(global_cache, config.max_decoded_bytes);
        let event_client = DynamicClient::with_fence(fleet.control_plane(), config.fence.clone());
        let (events, event_writer) = EventRecorder::new(event_client, "crowsnest-controllers", stop.child_token());
        let close_journal = CancellationToken::new();
        // This client has no fence, so that entries about completed writes are created even after leadership was lost.
        let (journal_client, write_load) = (DynamicClient::new(fleet.control_plane()), Arc::clone(events.write_load()));
        let (journal, journal_writer) =
            Journal::new(journal_client, "crowsnest-controllers", write_load, stop.clone(), close_journal.clone());
        let context = Context::new(fleet, cache, events, journal, config);
        let setup = Setup::new(Arc::clone(&context));
        let dispatcher = Arc::new(Dispatcher::new(&setup, registry));
        if is_observer {
            dispatcher.queues().for_each(AnyQueue::close);
        }
        context.metrics.register_queues(dispatcher.queues());
        let (health, reader) = watch::channel(Err(UnhealthyReason::Starting));
        let background = BackgroundTasks {
            informer,
            event_recorder: expect_stop(event_writer, "the event recorder", stop.clone()),
            journal: expect_stop(journal_writer, "the journal", close_journal.clone()),
            close_journal,
        };
        let tasks = supervise(Arc::clone(&dispatcher), Arc::clone(&context), health, stop.clone(), background);
        let (scheduler, supervisor) = (setup.controller(), tokio::spawn(tasks));
        Manager { context, dispatcher, scheduler, health: reader, stop, supervisor }
    }

    /// `Ok` after the initial sync with the control plane, while all tasks run.
    pub fn health(&self) -> watch::Receiver<Result<(), UnhealthyReason>> {
        self.health.clone()
    }

    /// Reports about placements.
    pub fn reports(&self) -> reports::Reports {
        reports::Reports::new(Arc::clone(&self.context), Arc::clone(&self.scheduler))
    }

    /// Metrics of the controllers.
    pub fn metrics(&self) -> MetricsReader {
        MetricsReader(Arc::clone(&self.context))
    }

    /// Runs a full resync now, in addition to the periodic ones.
    pub async fn run_full_resync(&self) -> Result<(), Error> {
        self.dispatcher.run_full_resync().await
    }

    /// Waits until all changes of the cache and all writes of this process are dispatched, no controller has a due
    /// key or a deferred write, and all recorded events and journal entries are created. Periodic reconciles, repeated
    /// failures and updates of the counts of events are not awaited.
    pub async fn wait_until_idle(&self) {
        let mut finished: Vec<_> = self.dispatcher.queues().map(AnyQueue::finished).collect();
        let (mut undispatched, mut dispatched) =
            (self.context.cache.undispatched_writes(), self.context.cache.last_dispatched());
        let (events, journal) = (&self.context.events, &self.context.journal);
        loop {
            dispatched.mark_unchanged();
            let is_dispatched = *undispatched.borrow_and_update() == 0 && self.context.cache.is_dispatched();
            let is_idle = is_dispatched && self.dispatcher.is_idle();
            // A write in the meantime may have enqueued a key in a queue that was checked before.
            if is_idle && !undispatched.has_changed().unwrap_or_default() {
                if events.is_flushed() && journal.is_flushed() {
                    return;
                }
                events.wait_flushed().await;
                journal.wait_flushed().await;
                continue;
            }
            let next = finished.iter_mut().map(|finished| Box::pin(finished.changed()));
            tokio::select! {
                _ = futures::future::select_all(next) => {}
                _ = undispatched.changed() => {}
                _ = dispatched.changed() => {}
            }
        }
    }

    /// Number of reconciles per controller.
    pub fn reconciles(&self) -> BTreeMap<&'static str, u64> {
        self.dispatcher.queues().map(|queue| (queue.name(), *queue.finished().borrow())).collect()
    }

    /// Waits for this many more reconciles of all controllers together.
    pub async fn wait_for_reconciles(&self, times: u64) {
        let mut finished: Vec<_> = self.dispatcher.queues().map(AnyQueue::finished).collect();
        let mut target = None;
        loop {
            let reconciles = finished.iter_mut().map(|finished| *finished.borrow_and_update()).sum::<u64>();
            if reconciles >= *target.get_or_insert(reconciles + times) {
                return;
            }
            let next = finished.iter_mut().map(|finished| Box::pin(finished.changed()));
            drop(futures::future::select_all(next).await);
        }
    }

    /// Total number of objects that all controllers have read from the cache, with or without their bodies.
    pub fn objects_read(&self) -> u64 {
        self.context.cache.objects_read()
    }

    /// Stops the controllers once their running reconciles have finished.
    pub async fn stop(self) {
        self.stop.cancel();
        // Only the shutdown of the runtime cancels the supervisor.
        if let Err(error) = self.supervisor.await
            && error.is_panic()
        {
            tracing::error!(%error, "the controllers' supervisor failed");
        }
    }
}

/// Reads the metrics of the controllers.
#[derive(Clone)]
pub struct MetricsReader(Arc<Context>);

impl MetricsReader {
    /// Writes all metrics as OpenMetrics text, without the terminating `# EOF`.
    pub fn write(&self, out: &mut String) -> std::fmt::Result {
        self.0.metrics.write(out)
    }
}
