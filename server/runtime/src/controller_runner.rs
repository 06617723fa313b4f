//! Runs the controllers of this process: active on the leader, read-only on a standby, which serves explanations and
//! plans.
//!
//! With leader election, one task acquires the Leases, runs active controllers while this process holds them, and stops
//! the controllers before another process can start its own: the write fence closes by this process's own clock, before
//! the Leases expire.

mod election_task;

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use crowsnest_component_base::metrics::Series;
use crowsnest_controllers::reports::Reports;
use crowsnest_controllers::runtime::write_fence::Fence;
use crowsnest_controllers::runtime::{Config, Manager, MetricsReader, UnhealthyReason};
use crowsnest_index::GlobalCache;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;

use crate::leader_election::{Election, ElectionThread};
pub use election_task::ControllersHang;
use election_task::{ControllerFactory, ElectionReaders, ElectionTask, HANG_LIMIT, RunningControllers, stop_within};

/// Determines when the controllers of this process are active.
#[derive(Clone)]
pub enum LeaderElectionMode {
    /// Always active: no other process runs controllers.
    Always,
    /// Active while this process holds the Leases.
    Elected(Election),
    /// Never active: other processes run the controllers.
    Never,
}

/// State of the leader election, as shown in the ready line of `serve`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeadershipStatus {
    /// Active without leader election.
    Always,
    /// Never active.
    Never,
    Leader {
        term: u64,
    },
    /// `leader` is the holder identity in the Lease; `None` while it is unknown.
    Standby {
        leader: Option<String>,
    },
}

/// Text of the ready line of `serve`.
impl fmt::Display for LeadershipStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("runs the controllers, without leader election"),
            Self::Never => f.write_str("runs no controllers"),
            Self::Leader { term } => write!(f, "leader, term {term}"),
            Self::Standby { leader: Some(leader) } => write!(f, "standby, {leader} leads"),
            Self::Standby { leader: None } => f.write_str("standby"),
        }
    }
}

/// Handle of the controllers of this process. The caller must call [`ControllerRunner::stop`].
pub struct ControllerRunner {
    current: Arc<ArcSwap<ManagerReaders>>,
    leadership: watch::Receiver<LeadershipStatus>,
    /// Set if the controllers hang. Closed without leader election.
    hang: watch::Receiver<Option<ControllersHang>>,
    task: Mutex<Option<JoinHandle<()>>>,
    stop: CancellationToken,
    /// Runs `task`; `None` without leader election.
    _election_thread: Option<Arc<ElectionThread>>,
}

/// Readers of the running [`Manager`].
#[derive(Clone)]
struct ManagerReaders {
    health: watch::Receiver<Result<(), UnhealthyReason>>,
    reports: Reports,
    metrics: MetricsReader,
    /// True if an earlier manager has synced: then the process counts as healthy while this one syncs.
    has_synced_before: bool,
}

impl ManagerReaders {
    fn new(manager: &Manager) -> Self {
        Self {
            health: manager.health(),
            reports: manager.reports(),
            metrics: manager.metrics(),
            has_synced_before: false,
        }
    }

    fn with_predecessor(previous: &Self, manager: &Manager) -> Self {
        let has_synced_before = previous.has_synced_before || previous.health.borrow().is_ok();
        Self { has_synced_before, ..Self::new(manager) }
    }
}

impl ControllerRunner {
    /// Starts the controllers, or the leader election that starts them.
    pub fn start(cache: &GlobalCache, config: Config, leader_election_mode: LeaderElectionMode) -> Self {
        let stop = CancellationToken::new();
        match leader_election_mode {
            LeaderElectionMode::Always => {
                let fence = config.fence.clone();
                let manager = Manager::start(cache.clone(), config, stop.clone());
                Self::without_election(manager, Some(fence), LeadershipStatus::Always, stop)
            }
            LeaderElectionMode::Never => {
                let manager = Manager::observe(cache.clone(), config, stop.clone());
                Self::without_election(manager, None, LeadershipStatus::Never, stop)
            }
            LeaderElectionMode::Elected(election) => Self::with_election(cache, config, election, stop),
        }
    }

    /// `fence` is that of active controllers.
    fn without_election(
        manager: Manager,
        fence: Option<Fence>,
        status: LeadershipStatus,
        stop: CancellationToken,
    ) -> Self {
        let current = Arc::new(ArcSwap::from_pointee(ManagerReaders::new(&manager)));
        let (leadership_sender, leadership) = watch::channel(status);
        let (_, hang) = watch::channel(None);
        let stop_token = stop.clone();
        let task = tokio::spawn(async move {
            stop_token.cancelled().await;
            if let Err(hang) = stop_within(HANG_LIMIT, manager, fence.as_ref()).await {
                tracing::error!(error = %hang, "the process stops without its controllers");
            }
            drop(leadership_sender);
        });
        Self { current, leadership, hang, task: Mutex::new(Some(task)), stop, _election_thread: None }
    }

    fn with_election(cache: &GlobalCache, config: Config, election: Election, stop: CancellationToken) -> Self {
        // Stopped by the election task, before it releases the Leases.
        let observer = Manager::observe(cache.clone(), config.clone(), CancellationToken::new());
        let current = Arc::new(ArcSwap::from_pointee(ManagerReaders::new(&observer)));
        let (runtime, clock) = (Handle::current(), config.clock.clone());
        let factory =
            ManagerFactory { cache: cache.clone(), config, runtime: runtime.clone(), current: Arc::clone(&current) };
        let (task, readers) = ElectionTask::new(&election, factory, observer, clock, runtime);
        let task = election.thread.handle().spawn(task.run(stop.clone()));
        let ElectionReaders { leadership, hang } = readers;
        Self { current, leadership, hang, task: Mutex::new(Some(task)), stop, _election_thread: Some(election.thread) }
    }

    /// Failure that only a restart of this process resolves. `None` if there is none.
    pub fn failure(&self) -> Option<String> {
        if self.stop.is_cancelled() {
            return None;
        }
        if let Some(hang) = &*self.hang.borrow() {
            return Some(hang.to_string());
        }
        if self.task.lock().as_ref().is_none_or(JoinHandle::is_finished) {
            return Some("the leader election task stopped unexpectedly".to_owned());
        }
        match &*self.current.load().health.borrow() {
            // A leader recovers by itself: it releases the Leases and starts other controllers.
            Err(UnhealthyReason::Broken(reason))
                if !matches!(self.leadership_status(), LeadershipStatus::Leader { .. }) =>
            {
                Some(reason.clone())
            }
            _ => None,
        }
    }

    /// Waits until the controllers hang. Only the end of the process recovers, without waiting for its tasks.
    pub async fn wait_for_hang(&self) -> ControllersHang {
        let mut receiver = self.hang.clone();
        let hang = receiver.wait_for(Option::is_some).await.ok().and_then(|hang| hang.clone());
        match hang {
            Some(hang) => hang,
            // There is no leader election, or its task has ended.
            None => std::future::pending().await,
        }
    }

    /// Readiness: an error with the reason while this process must not receive requests.
    pub fn health(&self) -> Result<(), String> {
        if let Some(reason) = self.failure() {
            return Err(reason);
        }
        let readers = self.current.load();
        match &*readers.health.borrow() {
            Err(UnhealthyReason::Starting) if readers.has_synced_before => Ok(()),
            health => health.clone().map_err(|reason| reason.to_string()),
        }
    }

    /// Reports that explain placements. Fails with the reason until the caches have synced.
    pub fn reports(&self) -> Result<Reports, String> {
        let readers = self.current.load_full();
        let health = readers.health.borrow().clone();
        health.map(|()| readers.reports.clone()).map_err(|reason| reason.to_string())
    }

    pub fn metrics(&self) -> MetricsReader {
        self.current.load().metrics.clone()
    }

    pub fn leadership_status(&self) -> LeadershipStatus {
        self.leadership.borrow().clone()
    }

    /// Waits until this process or another one holds the Leases.
    pub async fn wait_for_leader(&self) -> LeadershipStatus {
        let mut leadership = self.leadership.clone();
        let result = leadership.wait_for(|status| !matches!(status, LeadershipStatus::Standby { leader: None })).await;
        result.map_or_else(|_| self.leadership_status(), |status| status.clone())
    }

    /// Streams whether the controllers of this process are active: the current value and all changes.
    pub fn stream_is_active(&self) -> impl Stream<Item = bool> + Send + use<> {
        let is_active = |status| matches!(status, LeadershipStatus::Always | LeadershipStatus::Leader { .. });
        WatchStream::new(self.leadership.clone()).map(is_active)
    }

    /// Metrics of leader election: client-go's `leader_election_master_status` per Lease, and the number of the term.
    pub fn series(&self) -> Vec<Series> {
        let (is_leader, term) = match self.leadership_status() {
            LeadershipStatus::Leader { term } => (1, Some(term)),
            LeadershipStatus::Standby { .. } => (0, None),
            LeadershipStatus::Always | LeadershipStatus::Never => return Vec::new(),
        };
        let gauge = |name, help, labels, value| Series { name, help, is_counter: false, labels, value };
        let help = "1 if this process holds the lease, 0 if it is a standby.";
        // A leader holds all Leases, so each series has the same value.
        let mut all = crowsnest_api::names::LEASES
            .map(|lease| gauge("leader_election_master_status", help, vec![("name", lease.to_owned())], is_leader))
            .to_vec();
        if let Some(term) = term {
            let help = "Number of lease transitions when this process acquired the lease.";
            all.push(gauge("crowsnest_leader_term", help, Vec::new(), term));
        }
        all
    }

    /// Stops the controllers, then releases the Leases.
    pub async fn stop(&self) {
        self.stop.cancel();
        let task = self.task.lock().take();
        if let Some(task) = task
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the leader election task stopped unexpectedly");
        }
    }
}

/// Starts [`Manager`]s in the runtime of the controllers, and makes their readers available to callers of
/// [`ControllerRunner`].
struct ManagerFactory {
    cache: GlobalCache,
    config: Config,
    runtime: Handle,
    current: Arc<ArcSwap<ManagerReaders>>,
}

impl ManagerFactory {
    fn publish(&self, manager: &Manager) {
        let next = ManagerReaders::with_predecessor(&self.current.load(), manager);
        self.current.store(Arc::new(next));
    }
}

impl ControllerFactory for ManagerFactory {
    type Controllers = Manager;

    fn start(&self, fence: Fence) -> Manager {
        let _context = self.runtime.enter();
        let config = Config { fence, ..self.config.clone() };
        let manager = Manager::start(self.cache.clone(), config, CancellationToken::new());
        self.publish(&manager);
        manager
    }

    fn observe(&self) -> Manager {
        let _context = self.runtime.enter();
        let manager = Manager::observe(self.cache.clone(), self.config.clone(), CancellationToken::new());
        self.publish(&manager);
        manager
    }

    fn check_cache(&self) -> Result<(), String> {
        self.cache.check_ready()
    }
}

impl RunningControllers for Manager {
    fn health(&self) -> Result<(), UnhealthyReason> {
        Manager::health(self).borrow().clone()
    }

    async fn stop(self) {
        Manager::stop(self).await;
    }
}
