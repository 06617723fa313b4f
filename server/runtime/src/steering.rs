//! The controllers of this process: acting if it leads, else following the control plane, so that this process can answer requests
//! for explanations and plans while another one acts.
//!
//! With leader election, one task acquires the Leases, lets the controllers act while they are held, and stops them before another
//! process can start: their write fence closes by this process' own clock.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use crowsnest_component_base::metrics::Series;
use crowsnest_controllers::reports::Reports;
use crowsnest_controllers::runtime::write_fence::{Fence, Now};
use crowsnest_controllers::runtime::{Config, Manager, MetricsReader, Unwell};
use crowsnest_index::Index;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;

use crate::leader_election::{Campaign, Election, ElectionOutcome, attempt, pause};

/// Whether the controllers of this process act.
#[derive(Clone)]
pub enum Steers {
    /// There is no other process.
    Always,
    /// While it holds the leases.
    Elected(Election),
    /// Others do.
    Never,
}

/// What this process is for the controllers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    Alone,
    Watching,
    Leading { term: u64 },
    Following { leader: Option<String> },
}

/// Text of the ready line of `serve`.
impl fmt::Display for Standing {
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

/// See the module. Stopped by whoever started it.
pub struct Steering {
    shown: Arc<Shown>,
    standing: watch::Receiver<Standing>,
    task: Mutex<Option<JoinHandle<()>>>,
    stop: CancellationToken,
}

/// Of the controllers that run.
#[derive(Clone)]
struct Face {
    health: watch::Receiver<Result<(), Unwell>>,
    reports: Reports,
    metrics: MetricsReader,
    /// Others before them had read the control plane: that these have not yet is a moment between two of them.
    again: bool,
}

impl Face {
    fn of(manager: &Manager) -> Self {
        Self { health: manager.health(), reports: manager.reports(), metrics: manager.metrics(), again: false }
    }

    fn after(before: &Self, manager: &Manager) -> Self {
        let again = before.again || before.health.borrow().is_ok();
        Self { again, ..Self::of(manager) }
    }
}

type Shown = ArcSwap<Face>;

impl Steering {
    pub fn start(index: &Index, config: Config, steers: Steers, stop: &CancellationToken) -> Self {
        let stop = stop.child_token();
        let (manager, standing) = match &steers {
            Steers::Always => (Manager::start(index.clone(), config.clone(), stop.clone()), Standing::Alone),
            Steers::Never => (Manager::observe(index.clone(), config.clone(), stop.clone()), Standing::Watching),
            Steers::Elected(_) => (
                // Ended by the task below, in its order.
                Manager::observe(index.clone(), config.clone(), CancellationToken::new()),
                Standing::Following { leader: None },
            ),
        };
        let shown = Arc::new(Shown::from_pointee(Face::of(&manager)));
        let (tell, standing) = watch::channel(standing);
        let task = match steers {
            Steers::Always | Steers::Never => {
                let stop = stop.clone();
                tokio::spawn(async move {
                    stop.cancelled().await;
                    manager.stop().await;
                    drop(tell);
                })
            }
            Steers::Elected(election) => {
                let helm = Helm {
                    index: index.clone(),
                    config,
                    campaign: Campaign::new(&election),
                    election,
                    shown: Arc::clone(&shown),
                    tell,
                    at: At::Watching(manager),
                    unwell: None,
                };
                tokio::spawn(helm.run(stop.clone()))
            }
        };
        Self { shown, standing, task: Mutex::new(Some(task)), stop }
    }

    /// What has died here and does not come back by itself.
    pub fn death(&self) -> Option<String> {
        if self.stop.is_cancelled() {
            return None;
        }
        if self.task.lock().as_ref().is_none_or(JoinHandle::is_finished) {
            return Some("the task that steers has died".to_owned());
        }
        match &*self.shown.load().health.borrow() {
            // Whoever leads gives the leases back then, and begins anew.
            Err(Unwell::Broken(why)) if !matches!(self.standing(), Standing::Leading { .. }) => Some(why.clone()),
            _ => None,
        }
    }

    /// Whether others should ask here.
    pub fn health(&self) -> Result<(), String> {
        if let Some(why) = self.death() {
            return Err(why);
        }
        let face = self.shown.load();
        match &*face.health.borrow() {
            Err(Unwell::Starting) if face.again => Ok(()),
            health => health.clone().map_err(|why| why.to_string()),
        }
    }

    /// Why objects are where they are; while the control plane has not been read, why that is not known.
    pub fn reports(&self) -> Result<Reports, String> {
        let face = self.shown.load_full();
        let health = face.health.borrow().clone();
        health.map(|()| face.reports.clone()).map_err(|why| why.to_string())
    }

    pub fn metrics(&self) -> MetricsReader {
        self.shown.load().metrics.clone()
    }

    pub fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    /// Waits until it is known whether this process leads.
    pub async fn decided(&self) -> Standing {
        let mut standing = self.standing.clone();
        let known = standing.wait_for(|standing| !matches!(standing, Standing::Following { leader: None })).await;
        known.map_or_else(|_| self.standing(), |standing| standing.clone())
    }

    /// Whether the controllers of this process act, now and after each change.
    pub fn acts(&self) -> impl Stream<Item = bool> + Send + use<> {
        let acts = |standing| matches!(standing, Standing::Alone | Standing::Leading { .. });
        WatchStream::new(self.standing.clone()).map(acts)
    }

    /// Under client-go's name, and the number of the term.
    pub fn series(&self) -> Vec<Series> {
        let (leads, term) = match self.standing() {
            Standing::Leading { term } => (1, Some(term)),
            Standing::Following { .. } => (0, None),
            Standing::Alone | Standing::Watching => return Vec::new(),
        };
        let gauge = |name, help, labels, value| Series { name, help, counts: false, labels, value };
        let help = "Whether this process holds the lease: 1 if it does.";
        // All of them are held, or none.
        let mut all = crowsnest_api::names::LEASES
            .map(|lease| gauge("leader_election_master_status", help, vec![("name", lease.to_owned())], leads))
            .to_vec();
        if let Some(term) = term {
            let help = "How often the lease has gone to another process, as it was when this one took it.";
            all.push(gauge("crowsnest_leader_term", help, Vec::new(), term));
        }
        all
    }

    /// Ends the controllers, and then gives back the leases.
    pub async fn stop(&self) {
        self.stop.cancel();
        let task = self.task.lock().take();
        if let Some(task) = task
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the task that steers has died");
        }
    }
}

enum At {
    Watching(Manager),
    Acting {
        manager: Manager,
        fence: Fence,
        term: u64,
    },
    /// Between two of them.
    Nowhere,
}

/// The task of a process that stands for election.
struct Helm {
    index: Index,
    config: Config,
    campaign: Campaign,
    election: Election,
    shown: Arc<Shown>,
    tell: watch::Sender<Standing>,
    at: At,
    /// Since when it could not do its work.
    unwell: Option<Instant>,
}

impl Helm {
    async fn run(mut self, stop: CancellationToken) {
        loop {
            self.turn(&stop).await;
            let fence = match &self.at {
                At::Acting { fence, .. } => Some(fence.clone()),
                _ => None,
            };
            let ended = async {
                match fence {
                    Some(fence) => fence.ended().await,
                    None => std::future::pending().await,
                }
            };
            let over = tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(pause(&self.election.times, rand::random())) => false,
                () = ended => true,
            };
            if over {
                self.follow(None, "the control plane has not renewed its lease in time").await;
            }
        }
        self.end().await;
        self.campaign.release().await;
    }

    /// Makes one attempt to hold the leases, and leads or follows by its outcome.
    async fn turn(&mut self, stop: &CancellationToken) {
        if let Err(why) = self.fit() {
            self.follow(None, &why).await;
            self.campaign.release().await;
            return;
        }
        let began = Now::read();
        let electing = tokio::time::timeout(attempt(&self.election.times), self.campaign.try_acquire_or_renew());
        let Some(outcome) = stop.run_until_cancelled(electing).await else { return };
        match outcome {
            Ok(Ok(ElectionOutcome::Held { term })) => self.lead(term, began).await,
            Ok(Ok(ElectionOutcome::HeldByOther { lease, holder })) => {
                let why = format!("{holder} holds the lease {lease}");
                self.follow(Some(holder), &why).await;
            }
            // What was granted before lasts until its fence ends.
            Ok(Err(error)) => tracing::warn!(%error, "cannot acquire or renew the leases of the controllers"),
            Err(_) => tracing::warn!(
                "cannot acquire or renew the leases of the controllers: the control plane does not respond"
            ),
        }
    }

    /// Whether it is of use that this process leads. What passes is waited for.
    fn fit(&mut self) -> Result<(), String> {
        let well = match &self.at {
            At::Acting { manager, .. } => match &*manager.health().borrow() {
                Err(Unwell::Broken(why)) => Err(why.clone()),
                // The first look takes what it takes.
                Ok(()) | Err(Unwell::Starting) => Ok(()),
            },
            _ => Ok(()),
        };
        match self.index.ready().and(well) {
            Ok(()) => {
                self.unwell = None;
                Ok(())
            }
            Err(why) => {
                let since = *self.unwell.get_or_insert_with(Instant::now);
                let leads = matches!(self.at, At::Acting { .. });
                if leads && since.elapsed() < self.election.times.renew { Ok(()) } else { Err(why) }
            }
        }
    }

    async fn lead(&mut self, term: u64, began: Now) {
        let lasts = self.election.times.renew;
        if let At::Acting { fence, term: of, .. } = &self.at {
            if *of == term && fence.is_open(Now::read()) {
                fence.extend(began, lasts);
                return;
            }
            // Whatever the loops were at has been refused meanwhile: they begin anew.
            fence.close();
            tracing::warn!(term, "the lease was not renewed in time: the controllers begin anew");
        }
        self.end().await;
        let fence = Fence::closed();
        fence.extend(began, lasts);
        let config = Config { fence: fence.clone(), ..self.config.clone() };
        let manager = Manager::start(self.index.clone(), config, CancellationToken::new());
        self.show(&manager);
        tracing::info!(term, me = self.election.me, "leads the controllers");
        self.tell.send_replace(Standing::Leading { term });
        self.at = At::Acting { manager, fence, term };
    }

    async fn follow(&mut self, leader: Option<String>, why: &str) {
        if let At::Acting { fence, term, .. } = &self.at {
            fence.close();
            tracing::warn!(term, why, "does not lead the controllers any more");
        }
        self.tell.send_if_modified(|standing| {
            let next = Standing::Following { leader: leader.clone() };
            let changed = *standing != next;
            if changed {
                tracing::info!(why, "follows");
                *standing = next;
            }
            changed
        });
        if let At::Acting { .. } = self.at {
            self.end().await;
        }
        if let At::Nowhere = self.at {
            let manager = Manager::observe(self.index.clone(), self.config.clone(), CancellationToken::new());
            self.show(&manager);
            self.at = At::Watching(manager);
        }
    }

    fn show(&self, manager: &Manager) {
        let next = Face::after(&self.shown.load(), manager);
        self.shown.store(Arc::new(next));
    }

    async fn end(&mut self) {
        match std::mem::replace(&mut self.at, At::Nowhere) {
            At::Watching(manager) | At::Acting { manager, .. } => manager.stop().await,
            At::Nowhere => {}
        }
    }
}
