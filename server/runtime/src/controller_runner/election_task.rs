//! Task of leader election: acquires and renews the Leases, and starts and stops controllers accordingly.

#[cfg(test)]
mod tests;

use std::time::Duration;

use crowsnest_controllers::runtime::UnhealthyReason;
use crowsnest_controllers::runtime::clock::Clock;
use crowsnest_controllers::runtime::write_fence::{ClockReading, Fence};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::LeadershipStatus;
use crate::leader_election::{Campaign, Election, ElectionOutcome, Heartbeat, Timings, attempt_timeout, retry_delay};

/// Time within which controllers must stop, and their runtime must run a task after it missed the renew deadline. Soon after the
/// write fence ends, running reconciles are cancelled at their next await, so that only controllers that hang need longer. Without
/// leader election, a slow reconcile may need longer as well.
pub(super) const HANG_LIMIT: Duration = Duration::from_secs(60);

/// The controllers do not stop, or their runtime runs no tasks, so this process can neither lead nor stand by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the controllers of this process hang: they have not responded for {0:?}")]
pub struct ControllersHang(Duration);

/// Starts controllers in their runtime.
pub(super) trait ControllerFactory: Send + 'static {
    type Controllers: RunningControllers;

    /// Starts active controllers, which write while `fence` is open.
    fn start(&self, fence: Fence) -> Self::Controllers;

    /// Starts read-only controllers.
    fn observe(&self) -> Self::Controllers;

    /// Returns an error with the reason if the cache of the controllers is not ready.
    fn check_cache(&self) -> Result<(), String>;
}

/// Controllers that a [`ControllerFactory`] has started.
pub(super) trait RunningControllers: Send + 'static {
    fn health(&self) -> Result<(), UnhealthyReason>;

    /// Stops the controllers once their running reconciles have finished.
    fn stop(self) -> impl Future<Output = ()> + Send;
}

/// Controllers that the task currently runs.
enum State<C> {
    /// Read-only, on a standby.
    Observing(C),
    Active {
        controllers: C,
        fence: Fence,
        term: u64,
    },
    /// The previous controllers have stopped and the next ones have not started.
    Stopped,
}

/// Results of the task.
pub(super) struct ElectionReaders {
    pub leadership: watch::Receiver<LeadershipStatus>,
    /// Set when the task has ended because the controllers hang.
    pub hang: watch::Receiver<Option<ControllersHang>>,
}

/// State of the leader election task.
pub(super) struct ElectionTask<F: ControllerFactory> {
    factory: F,
    campaign: Campaign,
    identity: String,
    timings: Timings,
    clock: Clock,
    /// Heartbeat of the controllers' runtime, which must run a task within the renew deadline. The election has a thread of
    /// its own.
    heartbeat: Heartbeat,
    /// [`HANG_LIMIT`], except in tests.
    hang_limit: Duration,
    leadership: watch::Sender<LeadershipStatus>,
    hang: watch::Sender<Option<ControllersHang>>,
    state: State<F::Controllers>,
    /// Time at which the cache or the controllers became unhealthy. `None` while they are healthy.
    unhealthy_since: Option<Duration>,
}

impl<F: ControllerFactory> ElectionTask<F> {
    /// `observer` are read-only controllers, which run already; `runtime` is the runtime of all controllers.
    pub fn new(
        election: &Election,
        factory: F,
        observer: F::Controllers,
        clock: Clock,
        runtime: Handle,
    ) -> (Self, ElectionReaders) {
        let (leadership, leadership_reader) = watch::channel(LeadershipStatus::Standby { leader: None });
        let (hang, hang_reader) = watch::channel(None);
        let task = Self {
            factory,
            campaign: Campaign::new(election, &clock),
            identity: election.identity.clone(),
            timings: election.timings,
            clock,
            heartbeat: Heartbeat::new(runtime, election.timings.renew_deadline),
            hang_limit: HANG_LIMIT,
            leadership,
            hang,
            state: State::Observing(observer),
            unhealthy_since: None,
        };
        (task, ElectionReaders { leadership: leadership_reader, hang: hang_reader })
    }

    /// Participates in the election until `stop`, or until the controllers hang. Then the Leases are not released, but
    /// expire: requests of the controllers may still be in flight.
    pub async fn run(mut self, stop: CancellationToken) {
        if let Err(hang) = self.elect(&stop).await {
            tracing::error!(error = %hang, "left the leader election");
            self.hang.send_replace(Some(hang));
        }
    }

    async fn elect(&mut self, stop: &CancellationToken) -> Result<(), ControllersHang> {
        loop {
            let started_at = self.now();
            self.try_elect(stop).await?;
            let delay = retry_delay(&self.timings, self.now().saturating_sub(started_at), rand::random());
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
                self.stand_by(None, "the renew deadline has passed").await?;
            }
        }
        self.stop_controllers().await?;
        self.campaign.release().await;
        Ok(())
    }

    /// Time since the start of the clock.
    fn now(&self) -> Duration {
        self.clock.now().mono
    }

    /// Tries once to acquire or renew the Leases, and becomes leader or standby depending on the outcome.
    async fn try_elect(&mut self, stop: &CancellationToken) -> Result<(), ControllersHang> {
        if let Err(error) = self.heartbeat.check(self.clock.now().mono) {
            self.stand_by(None, &error.to_string()).await?;
            // On a standby, `stand_by` stops no controllers, so it does not notice that their runtime hangs.
            run_within(self.hang_limit, self.heartbeat.wait_for_task()).await?;
            self.campaign.release().await;
            return Ok(());
        }
        if let Err(reason) = self.check_health() {
            self.stand_by(None, &reason).await?;
            self.campaign.release().await;
            return Ok(());
        }
        let started_at = ClockReading::now();
        let attempt = tokio::time::timeout(attempt_timeout(&self.timings), self.campaign.try_acquire_or_renew());
        let Some(outcome) = stop.run_until_cancelled(attempt).await else { return Ok(()) };
        match outcome {
            Ok(Ok(ElectionOutcome::Holder { term })) => self.become_leader(term, started_at).await?,
            Ok(Ok(ElectionOutcome::OtherHolder { lease, holder })) => {
                let reason = format!("{holder} holds the lease {lease}");
                self.stand_by(Some(holder), &reason).await?;
            }
            // A term stays valid until its write fence closes.
            Ok(Err(error)) => tracing::warn!(%error, "cannot acquire or renew the leases of the controllers"),
            Err(_) => tracing::warn!(
                "cannot acquire or renew the leases of the controllers: the control plane does not respond"
            ),
        }
        Ok(())
    }

    /// Returns an error if this process must not hold the Leases because it is unhealthy. A leader may be unhealthy for
    /// the renew deadline.
    fn check_health(&mut self) -> Result<(), String> {
        let controller_health = match &self.state {
            State::Active { controllers, .. } => match controllers.health() {
                Err(UnhealthyReason::Broken(reason)) => Err(reason),
                // The initial sync has no time limit.
                Ok(()) | Err(UnhealthyReason::Starting) => Ok(()),
            },
            _ => Ok(()),
        };
        match self.factory.check_cache().and(controller_health) {
            Ok(()) => {
                self.unhealthy_since = None;
                Ok(())
            }
            Err(reason) => {
                let now = self.now();
                let since = *self.unhealthy_since.get_or_insert(now);
                let is_leader = matches!(self.state, State::Active { .. });
                if is_leader && now.saturating_sub(since) < self.timings.renew_deadline { Ok(()) } else { Err(reason) }
            }
        }
    }

    /// Starts active controllers, or extends the write fence of those that already run in this term. `started_at` is the
    /// start of the attempt: the term is valid for the renew deadline from then on.
    async fn become_leader(&mut self, term: u64, started_at: ClockReading) -> Result<(), ControllersHang> {
        let duration = self.timings.renew_deadline;
        if let State::Active { fence, term: current, .. } = &self.state {
            if *current == term && fence.is_open(ClockReading::now()) {
                fence.extend(started_at, duration);
                return Ok(());
            }
            // The closed fence has refused writes of these controllers, so they are replaced.
            fence.close();
            tracing::warn!(term, "lease not renewed in time; restarting the controllers");
        }
        self.stop_controllers().await?;
        let fence = Fence::closed();
        fence.extend(started_at, duration);
        let controllers = self.factory.start(fence.clone());
        tracing::info!(term, identity = self.identity, "became leader");
        self.leadership.send_replace(LeadershipStatus::Leader { term });
        self.state = State::Active { controllers, fence, term };
        Ok(())
    }

    /// Closes the write fence and replaces active controllers with read-only ones. While the runtime of the controllers
    /// hangs, this waits for them to stop; meanwhile the Leases are not renewed, and expire.
    async fn stand_by(&mut self, leader: Option<String>, reason: &str) -> Result<(), ControllersHang> {
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
            self.stop_controllers().await?;
        }
        if let State::Stopped = self.state {
            self.state = State::Observing(self.factory.observe());
        }
        Ok(())
    }

    /// Stops the controllers: see [`stop_within`].
    async fn stop_controllers(&mut self) -> Result<(), ControllersHang> {
        let (controllers, fence) = match std::mem::replace(&mut self.state, State::Stopped) {
            State::Observing(controllers) => (controllers, None),
            State::Active { controllers, fence, .. } => (controllers, Some(fence)),
            State::Stopped => return Ok(()),
        };
        stop_within(self.hang_limit, controllers, fence.as_ref()).await
    }
}

/// Stops controllers. If they do not stop in time, their write fence is closed.
pub(super) async fn stop_within(
    limit: Duration,
    controllers: impl RunningControllers,
    fence: Option<&Fence>,
) -> Result<(), ControllersHang> {
    let result = run_within(limit, controllers.stop()).await;
    if let (Err(_), Some(fence)) = (&result, fence) {
        fence.close();
    }
    result
}

/// Waits for controllers or their runtime.
async fn run_within(limit: Duration, future: impl Future<Output = ()>) -> Result<(), ControllersHang> {
    tokio::time::timeout(limit, future).await.map_err(|_| ControllersHang(limit))
}
