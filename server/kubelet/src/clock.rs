//! Time as a container's process sees it: it starts when the container did and catches up with the present without waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::pods::PodRuntime;
use super::shell::Clock;

/// Commands replayed before a script is taken to have slept until now.
const REPLAY_STEPS: u64 = 100_000;
/// Time that a command without a sleep takes.
const STEP: Duration = Duration::from_micros(100);
/// Commands may be this far ahead of the present: a timer is too coarse to wait for each.
const AHEAD: SignedDuration = SignedDuration::from_millis(10);

/// The clock of one process.
pub struct ProcessClock {
    at: Mutex<Timestamp>,
    runtime: Arc<dyn PodRuntime>,
    steps: AtomicU64,
}

impl ProcessClock {
    /// A clock set to the start of a process.
    pub fn new(started: Timestamp, runtime: Arc<dyn PodRuntime>) -> Self {
        Self { at: Mutex::new(started), runtime, steps: AtomicU64::new(0) }
    }

    /// Advances the clock and returns its new time.
    pub fn advance(&self, duration: Duration) -> Timestamp {
        let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        let mut at = self.at.lock();
        *at = at.checked_add(duration).unwrap_or(Timestamp::MAX);
        *at
    }

    /// Advances the clock by the duration of one command and returns its new time.
    pub fn advance_step(&self) -> Timestamp {
        if self.steps.fetch_add(1, Ordering::Relaxed) == REPLAY_STEPS {
            let now = self.runtime.now();
            let mut at = self.at.lock();
            *at = now.max(*at);
        }
        self.advance(STEP)
    }

    /// Waits until the present has reached `at`.
    pub async fn wait(&self, at: Timestamp) {
        let now = self.runtime.now();
        if at <= now {
            return tokio::task::consume_budget().await;
        }
        tokio::time::sleep(Duration::try_from(at.duration_since(now)).unwrap_or_default()).await;
    }
}

#[async_trait]
impl Clock for ProcessClock {
    fn now(&self) -> Timestamp {
        *self.at.lock()
    }

    async fn sleep(&self, duration: Duration) {
        let at = self.advance(duration);
        self.wait(at).await;
    }

    async fn step(&self) {
        let at = self.advance_step();
        if at.duration_since(self.runtime.now()) > AHEAD {
            self.wait(at).await
        } else {
            tokio::task::consume_budget().await
        }
    }
}
