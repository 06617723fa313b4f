//! Runs the controllers of this process: active on the leader, read-only on a standby, which can answer requests for explanations and
//! plans.
//!
//! With leader election, one task acquires the Leases, runs active controllers while this process holds them, and stops the controllers
//! before another process can start its own: their write fence closes by the clock of this process.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use crowsnest_component_base::metrics::Series;
use crowsnest_controllers::reports::Reports;
use crowsnest_controllers::runtime::write_fence::{ClockReading, Fence};
use crowsnest_controllers::runtime::{Config, Manager, MetricsReader, UnhealthyReason};
use crowsnest_index::Index;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;

use crate::leader_election::{Campaign, Election, ElectionOutcome, attempt, pause};

/// Leader election mode: decides whether the controllers of this process are active.
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
    Alone,
    Watching,
    Leading { term: u64 },
    Following { leader: Option<String> },
}

/// Text of the ready line of `serve`.
impl fmt::Display for LeadershipStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alone => f.write_str("runs the controllers, without leader election"),
            Self::Watching => f.write_str("runs no controllers"),
            Self::Leading { term } => write!(f, "leader, term {term}"),
            Self::Following { leader: Some(leader) } => write!(f, "standby, {leader} leads"),
            Self::Following { leader: None } => f.write_str("standby"),
        }
    }
}

/// Handle of the controllers of this process. The caller must call [`ControllerRunner::stop`].
pub struct ControllerRunner {
    current: Arc<ArcSwap<ManagerReaders>>,
    standing: watch::Receiver<LeadershipStatus>,
    task: Mutex<Option<JoinHandle<()>>>,
    stop: CancellationToken,
}

/// Readers of the running [`Manager`].
#[derive(Clone)]
struct ManagerReaders {
    health: watch::Receiver<Result<(), UnhealthyReason>>,
    reports: Reports,
    metrics: MetricsReader,
    /// An earlier manager has synced: while this one has not, the process counts as healthy.
    synced_before: bool,
}

impl ManagerReaders {
    fn of(manager: &Manager) -> Self {
        Self { health: manager.health(), reports: manager.reports(), metrics: manager.metrics(), synced_before: false }
    }

    fn after(before: &Self, manager: &Manager) -> Self {
        let synced_before = before.synced_before || before.health.borrow().is_ok();
        Self { synced_before, ..Self::of(manager) }
    }
}

impl ControllerRunner {
    pub fn start(
        index: &Index,
        config: Config,
        leader_election_mode: LeaderElectionMode,
        stop: &CancellationToken,
    ) -> Self {
        let stop = stop.child_token();
        let (manager, standing) = match &leader_election_mode {
            LeaderElectionMode::Always => {
                (Manager::start(index.clone(), config.clone(), stop.clone()), LeadershipStatus::Alone)
            }
            LeaderElectionMode::Never => {
                (Manager::observe(index.clone(), config.clone(), stop.clone()), LeadershipStatus::Watching)
            }
            LeaderElectionMode::Elected(_) => (
                // Stopped by the election task, before it releases the Leases.
                Manager::observe(index.clone(), config.clone(), CancellationToken::new()),
                LeadershipStatus::Following { leader: None },
            ),
        };
        let current = Arc::new(ArcSwap::from_pointee(ManagerReaders::of(&manager)));
        let (standing_sender, standing) = watch::channel(standing);
        let task = match leader_election_mode {
            LeaderElectionMode::Always | LeaderElectionMode::Never => {
                let stop = stop.clone();
                tokio::spawn(async move {
                    stop.cancelled().await;
                    manager.stop().await;
                    drop(standing_sender);
                })
            }
            LeaderElectionMode::Elected(election) => {
                let task = ElectionTask {
                    index: index.clone(),
                    config,
                    campaign: Campaign::new(&election),
                    election,
                    current: Arc::clone(&current),
                    standing: standing_sender,
                    state: State::Observing(manager),
                    unwell: None,
                };
                tokio::spawn(task.run(stop.clone()))
            }
        };
        Self { current, standing, task: Mutex::new(Some(task)), stop }
    }

    /// Failure from which this process does not recover without a restart.
    pub fn death(&self) -> Option<String> {
        if self.stop.is_cancelled() {
            return None;
        }
        if self.task.lock().as_ref().is_none_or(JoinHandle::is_finished) {
            return Some("the leader election task stopped unexpectedly".to_owned());
        }
        match &*self.current.load().health.borrow() {
            // A leader recovers by itself: it releases the Leases and starts other controllers.
            Err(UnhealthyReason::Broken(why)) if !matches!(self.standing(), LeadershipStatus::Leading { .. }) => {
                Some(why.clone())
            }
            _ => None,
        }
    }

    /// Readiness: an error while this process must not receive requests.
    pub fn health(&self) -> Result<(), String> {
        if let Some(why) = self.death() {
            return Err(why);
        }
        let readers = self.current.load();
        match &*readers.health.borrow() {
            Err(UnhealthyReason::Starting) if readers.synced_before => Ok(()),
            health => health.clone().map_err(|why| why.to_string()),
        }
    }

    /// Explanations of objects' placements. An error with the reason until the caches have synced.
    pub fn reports(&self) -> Result<Reports, String> {
        let readers = self.current.load_full();
        let health = readers.health.borrow().clone();
        health.map(|()| readers.reports.clone()).map_err(|why| why.to_string())
    }

    pub fn metrics(&self) -> MetricsReader {
        self.current.load().metrics.clone()
    }

    pub fn standing(&self) -> LeadershipStatus {
        self.standing.borrow().clone()
    }

    /// Waits until this process or another one holds the Leases.
    pub async fn wait_until_decided(&self) -> LeadershipStatus {
        let mut standing = self.standing.clone();
        let known =
            standing.wait_for(|standing| !matches!(standing, LeadershipStatus::Following { leader: None })).await;
        known.map_or_else(|_| self.standing(), |standing| standing.clone())
    }

    /// Streams whether the controllers of this process are active: the current value and all changes.
    pub fn acts(&self) -> impl Stream<Item = bool> + Send + use<> {
        let acts = |standing| matches!(standing, LeadershipStatus::Alone | LeadershipStatus::Leading { .. });
        WatchStream::new(self.standing.clone()).map(acts)
    }

    /// Metrics of leader election: client-go's `leader_election_master_status` per Lease, and the number of the term.
    pub fn series(&self) -> Vec<Series> {
        let (leads, term) = match self.standing() {
            LeadershipStatus::Leading { term } => (1, Some(term)),
            LeadershipStatus::Following { .. } => (0, None),
            LeadershipStatus::Alone | LeadershipStatus::Watching => return Vec::new(),
        };
        let gauge = |name, help, labels, value| Series { name, help, counts: false, labels, value };
        let help = "1 if this process holds the lease, 0 if it is a standby.";
        // A leader holds all Leases, so each series has the same value.
        let mut all = crowsnest_api::names::LEASES
            .map(|lease| gauge("leader_election_master_status", help, vec![("name", lease.to_owned())], leads))
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

enum State {
    Observing(Manager),
    Active {
        manager: Manager,
        fence: Fence,
        term: u64,
    },
    /// The previous manager was stopped and the next is not started.
    Stopped,
}

/// State of the leader election task.
struct ElectionTask {
    index: Index,
    config: Config,
    campaign: Campaign,
    election: Election,
    current: Arc<ArcSwap<ManagerReaders>>,
    standing: watch::Sender<LeadershipStatus>,
    state: State,
    /// Time since which the cache or the controllers have been unhealthy.
    unwell: Option<Instant>,
}

impl ElectionTask {
    async fn run(mut self, stop: CancellationToken) {
        loop {
            self.elect(&stop).await;
            let fence = match &self.state {
                State::Active { fence, .. } => Some(fence.clone()),
                _ => None,
            };
            let ended = async {
                match fence {
                    Some(fence) => fence.wait_for_end().await,
                    None => std::future::pending().await,
                }
            };
            let fence_closed = tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(pause(&self.election.times, rand::random())) => false,
                () = ended => true,
            };
            if fence_closed {
                self.stand_by(None, "the renew deadline has passed").await;
            }
        }
        self.stop_manager().await;
        self.campaign.release().await;
    }

    /// Tries once to acquire or renew the Leases, and becomes leader or standby by the outcome.
    async fn elect(&mut self, stop: &CancellationToken) {
        if let Err(why) = self.check_health() {
            self.stand_by(None, &why).await;
            self.campaign.release().await;
            return;
        }
        let began = ClockReading::now();
        let electing = tokio::time::timeout(attempt(&self.election.times), self.campaign.try_acquire_or_renew());
        let Some(outcome) = stop.run_until_cancelled(electing).await else { return };
        match outcome {
            Ok(Ok(ElectionOutcome::Held { term })) => self.become_leader(term, began).await,
            Ok(Ok(ElectionOutcome::HeldByOther { lease, holder })) => {
                let why = format!("{holder} holds the lease {lease}");
                self.stand_by(Some(holder), &why).await;
            }
            // A term stays valid until its write fence closes.
            Ok(Err(error)) => tracing::warn!(%error, "cannot acquire or renew the leases of the controllers"),
            Err(_) => tracing::warn!(
                "cannot acquire or renew the leases of the controllers: the control plane does not respond"
            ),
        }
    }

    /// Returns an error if this process must not hold the Leases because it is unhealthy. A leader may be unhealthy for the renew
    /// deadline.
    fn check_health(&mut self) -> Result<(), String> {
        let well = match &self.state {
            State::Active { manager, .. } => match &*manager.health().borrow() {
                Err(UnhealthyReason::Broken(why)) => Err(why.clone()),
                // The initial sync has no time limit.
                Ok(()) | Err(UnhealthyReason::Starting) => Ok(()),
            },
            _ => Ok(()),
        };
        match self.index.check_ready().and(well) {
            Ok(()) => {
                self.unwell = None;
                Ok(())
            }
            Err(why) => {
                let since = *self.unwell.get_or_insert_with(Instant::now);
                let leads = matches!(self.state, State::Active { .. });
                if leads && since.elapsed() < self.election.times.renew { Ok(()) } else { Err(why) }
            }
        }
    }

    async fn become_leader(&mut self, term: u64, began: ClockReading) {
        let duration = self.election.times.renew;
        if let State::Active { fence, term: current, .. } = &self.state {
            if *current == term && fence.is_open(ClockReading::now()) {
                fence.extend(began, duration);
                return;
            }
            // The closed fence has refused writes of these controllers, so they are replaced.
            fence.close();
            tracing::warn!(term, "lease not renewed in time; restarting the controllers");
        }
        self.stop_manager().await;
        let fence = Fence::closed();
        fence.extend(began, duration);
        let config = Config { fence: fence.clone(), ..self.config.clone() };
        let manager = Manager::start(self.index.clone(), config, CancellationToken::new());
        self.publish(&manager);
        tracing::info!(term, identity = self.election.identity, "became leader");
        self.standing.send_replace(LeadershipStatus::Leading { term });
        self.state = State::Active { manager, fence, term };
    }

    async fn stand_by(&mut self, leader: Option<String>, why: &str) {
        if let State::Active { fence, term, .. } = &self.state {
            fence.close();
            tracing::warn!(term, why, "lost leadership");
        }
        self.standing.send_if_modified(|standing| {
            let next = LeadershipStatus::Following { leader: leader.clone() };
            let changed = *standing != next;
            if changed {
                tracing::info!(why, "standing by");
                *standing = next;
            }
            changed
        });
        if let State::Active { .. } = self.state {
            self.stop_manager().await;
        }
        if let State::Stopped = self.state {
            let manager = Manager::observe(self.index.clone(), self.config.clone(), CancellationToken::new());
            self.publish(&manager);
            self.state = State::Observing(manager);
        }
    }

    fn publish(&self, manager: &Manager) {
        let next = ManagerReaders::after(&self.current.load(), manager);
        self.current.store(Arc::new(next));
    }

    async fn stop_manager(&mut self) {
        match std::mem::replace(&mut self.state, State::Stopped) {
            State::Observing(manager) | State::Active { manager, .. } => manager.stop().await,
            State::Stopped => {}
        }
    }
}
