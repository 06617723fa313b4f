//! Clock of a container's process. It starts at the container's start time and catches up with the current time without
//! waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::pods::PodRuntime;
use super::shell::Clock;

/// Number of commands after which the clock of a replay jumps to the current time: the script is assumed to have
/// waited.
const MAX_REPLAYED_COMMANDS: u64 = 100_000;
/// Simulated duration of a command other than `sleep`.
const COMMAND_DURATION: Duration = Duration::from_micros(100);
/// Maximum time by which the clock may be ahead of the current time before a command waits. Timers are too coarse to
/// wait for each command.
const MAX_LEAD: SignedDuration = SignedDuration::from_millis(10);

/// The clock of one process.
pub struct ProcessClock {
    at: Mutex<Timestamp>,
    runtime: Arc<dyn PodRuntime>,
    /// Number of commands so far.
    commands: AtomicU64,
}

impl ProcessClock {
    /// Creates a clock set to the start time of a process.
    pub fn new(started: Timestamp, runtime: Arc<dyn PodRuntime>) -> Self {
        Self { at: Mutex::new(started), runtime, commands: AtomicU64::new(0) }
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
        if self.commands.fetch_add(1, Ordering::Relaxed) == MAX_REPLAYED_COMMANDS {
            let now = self.runtime.now();
            let mut at = self.at.lock();
            *at = now.max(*at);
        }
        self.advance(COMMAND_DURATION)
    }

    /// Waits until the current time has reached `at`.
    pub async fn wait_until(&self, at: Timestamp) {
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
        self.wait_until(at).await;
    }

    async fn step(&self) {
        let at = self.advance_step();
        if at.duration_since(self.runtime.now()) > MAX_LEAD {
            self.wait_until(at).await
        } else {
            tokio::task::consume_budget().await
        }
    }
}
