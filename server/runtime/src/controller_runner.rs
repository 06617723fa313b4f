//! Runs the controllers of this process: active on the leader, read-only on a standby, which serves explanations and
//! plans.
//!
//! With leader election, one task acquires the Leases, runs active controllers while this process holds them, and stops
//! the controllers before another process can start its own: the write fence closes by this process's own clock, before
//! the Leases expire.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use crowsnest_component_base::metrics::Series;
use crowsnest_controllers::reports::Reports;
use crowsnest_controllers::runtime::write_fence::{ClockReading, Fence};
use crowsnest_controllers::runtime::{Config, Manager, MetricsReader, UnhealthyReason};
use crowsnest_index::GlobalCache;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;

use crate::leader_election::{
    Campaign, Election, ElectionOutcome, ElectionThread, Heartbeat, Timings, attempt_timeout, retry_delay,
};

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
        let (manager, leadership) = match &leader_election_mode {
            LeaderElectionMode::Always => {
                (Manager::start(cache.clone(), config.clone(), stop.clone()), LeadershipStatus::Always)
            }
            LeaderElectionMode::Never => {
                (Manager::observe(cache.clone(), config.clone(), stop.clone()), LeadershipStatus::Never)
            }
            LeaderElectionMode::Elected(_) => (
                // Stopped by the election task, before it releases the Leases.
                Manager::observe(cache.clone(), config.clone(), CancellationToken::new()),
                LeadershipStatus::Standby { leader: None },
            ),
        };
        let current = Arc::new(ArcSwap::from_pointee(ManagerReaders::new(&manager)));
        let (leadership_sender, leadership) = watch::channel(leadership);
        let (task, election_thread) = match leader_election_mode {
            LeaderElectionMode::Always | LeaderElectionMode::Never => {
                let stop = stop.clone();
                let task = tokio::spawn(async move {
                    stop.cancelled().await;
                    manager.stop().await;
                    drop(leadership_sender);
                });
                (task, None)
            }
            LeaderElectionMode::Elected(election) => {
                let (controllers, timings) = (Handle::current(), election.timings);
                let task = ElectionTask {
                    cache: cache.clone(),
                    config,
                    campaign: Campaign::new(&election),
                    identity: election.identity,
                    timings,
                    heartbeat: Heartbeat::new(controllers.clone(), timings.renew_deadline),
                    controllers,
                    current: Arc::clone(&current),
                    leadership: leadership_sender,
                    state: State::Observing(manager),
                    unhealthy_since: None,
                };
                (election.thread.handle().spawn(task.run(stop.clone())), Some(election.thread))
            }
        };
        Self { current, leadership, task: Mutex::new(Some(task)), stop, _election_thread: election_thread }
    }

    /// Failure that only a restart of this process resolves. `None` if there is none.
    pub fn failure(&self) -> Option<String> {
        if self.stop.is_cancelled() {
            return None;
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

/// Controllers that the leader election task currently runs.
enum State {
    /// Read-only, on a standby.
    Observing(Manager),
    Active {
        manager: Manager,
        fence: Fence,
        term: u64,
    },
    /// The previous manager has stopped and the next one has not started.
    Stopped,
}

/// State of the leader election task.
struct ElectionTask {
    cache: GlobalCache,
    config: Config,
    campaign: Campaign,
    identity: String,
    timings: Timings,
    /// Runtime of the controllers. The election has a thread of its own.
    controllers: Handle,
    /// Heartbeat of `controllers`, which must run a task within the renew deadline.
    heartbeat: Heartbeat,
    current: Arc<ArcSwap<ManagerReaders>>,
    leadership: watch::Sender<LeadershipStatus>,
    state: State,
    /// Time at which the cache or the controllers became unhealthy. `None` while they are healthy.
    unhealthy_since: Option<Instant>,
}

impl ElectionTask {
    async fn run(mut self, stop: CancellationToken) {
        loop {
            let started_at = Instant::now();
            self.try_elect(&stop).await;
            let delay = retry_delay(&self.timings, started_at.elapsed(), rand::random());
            let fence = match &self.state {
                State::Active { fence, .. } => Some(fence.clone()),
                _ => None,
            };
            let fence_closes = async {
                match fence {
                    Some(fence) => fence.wait_for_end().await,
                    None => std::future::pending().await,
                }
            };
            let fence_closed = tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(delay) => false,
                () = fence_closes => true,
            };
            if fence_closed {
                self.stand_by(None, "the renew deadline has passed").await;
            }
        }
        self.stop_manager().await;
        self.campaign.release().await;
    }

    /// Tries once to acquire or renew the Leases, and becomes leader or standby depending on the outcome.
    async fn try_elect(&mut self, stop: &CancellationToken) {
        if let Err(reason) = self.check_health() {
            self.stand_by(None, &reason).await;
            self.campaign.release().await;
            return;
        }
        let started_at = ClockReading::now();
        let attempt = tokio::time::timeout(attempt_timeout(&self.timings), self.campaign.try_acquire_or_renew());
        let Some(outcome) = stop.run_until_cancelled(attempt).await else { return };
        match outcome {
            Ok(Ok(ElectionOutcome::Holder { term })) => self.become_leader(term, started_at).await,
            Ok(Ok(ElectionOutcome::OtherHolder { lease, holder })) => {
                let reason = format!("{holder} holds the lease {lease}");
                self.stand_by(Some(holder), &reason).await;
            }
            // A term stays valid until its write fence closes.
            Ok(Err(error)) => tracing::warn!(%error, "cannot acquire or renew the leases of the controllers"),
            Err(_) => tracing::warn!(
                "cannot acquire or renew the leases of the controllers: the control plane does not respond"
            ),
        }
    }

    /// Returns an error if this process must not hold the Leases because it is unhealthy. A leader may be unhealthy for
    /// the renew deadline.
    fn check_health(&mut self) -> Result<(), String> {
        self.heartbeat.check(Instant::now()).map_err(|error| error.to_string())?;
        let manager_health = match &self.state {
            State::Active { manager, .. } => match &*manager.health().borrow() {
                Err(UnhealthyReason::Broken(reason)) => Err(reason.clone()),
                // The initial sync has no time limit.
                Ok(()) | Err(UnhealthyReason::Starting) => Ok(()),
            },
            _ => Ok(()),
        };
        match self.cache.check_ready().and(manager_health) {
            Ok(()) => {
                self.unhealthy_since = None;
                Ok(())
            }
            Err(reason) => {
                let since = *self.unhealthy_since.get_or_insert_with(Instant::now);
                let is_leader = matches!(self.state, State::Active { .. });
                if is_leader && since.elapsed() < self.timings.renew_deadline { Ok(()) } else { Err(reason) }
            }
        }
    }

    /// Starts active controllers, or extends the write fence of those that already run in this term. `started_at` is the
    /// start of the attempt: the term is valid for the renew deadline from then on.
    async fn become_leader(&mut self, term: u64, started_at: ClockReading) {
        let duration = self.timings.renew_deadline;
        if let State::Active { fence, term: current, .. } = &self.state {
            if *current == term && fence.is_open(ClockReading::now()) {
                fence.extend(started_at, duration);
                return;
            }
            // The closed fence has refused writes of these controllers, so they are replaced.
            fence.close();
            tracing::warn!(term, "lease not renewed in time; restarting the controllers");
        }
        self.stop_manager().await;
        let fence = Fence::closed();
        fence.extend(started_at, duration);
        let config = Config { fence: fence.clone(), ..self.config.clone() };
        let manager = {
            let _context = self.controllers.enter();
            Manager::start(self.cache.clone(), config, CancellationToken::new())
        };
        self.publish(&manager);
        tracing::info!(term, identity = self.identity, "became leader");
        self.leadership.send_replace(LeadershipStatus::Leader { term });
        self.state = State::Active { manager, fence, term };
    }

    /// Closes the write fence and replaces active controllers with read-only ones. While the runtime of the controllers
    /// hangs, this waits for them to stop; meanwhile the Leases are not renewed, and expire.
    async fn stand_by(&mut self, leader: Option<String>, reason: &str) {
        if let State::Active { fence, term, .. } = &self.state {
            fence.close();
            tracing::warn!(term, reason, "lost leadership");
        }
        self.leadership.send_if_modified(|status| {
            let next = LeadershipStatus::Standby { leader: leader.clone() };
            let changed = *status != next;
            if changed {
                tracing::info!(reason, "running as standby");
                *status = next;
            }
            changed
        });
        if let State::Active { .. } = self.state {
            self.stop_manager().await;
        }
        if let State::Stopped = self.state {
            let manager = {
                let _context = self.controllers.enter();
                Manager::observe(self.cache.clone(), self.config.clone(), CancellationToken::new())
            };
            self.publish(&manager);
            self.state = State::Observing(manager);
        }
    }

    /// Makes the readers of a new manager available to callers of [`ControllerRunner`].
    fn publish(&self, manager: &Manager) {
        let next = ManagerReaders::with_predecessor(&self.current.load(), manager);
        self.current.store(Arc::new(next));
    }

    async fn stop_manager(&mut self) {
        match std::mem::replace(&mut self.state, State::Stopped) {
            State::Observing(manager) | State::Active { manager, .. } => manager.stop().await,
            State::Stopped => {}
        }
    }
}
