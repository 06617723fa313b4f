//! Replay of a container's command from its start, for the log of a run without a process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::mpsc;

use super::{LineDestination, LineSink, LogEvent};
use crate::clock::ProcessClock;
use crate::pods::{PodRuntime, Run};
use crate::shell::{Clock, Shell, Stdio};
use crate::stream::{Input, Output};

/// Runs a container's command from its start. Sleeps that end before the current time return immediately.
pub(super) async fn replay(
    mut shell: Shell,
    runtime: Arc<dyn PodRuntime>,
    run: Run,
    command: Vec<String>,
    events: mpsc::Sender<LogEvent>,
    follow: bool,
) {
    let clock = Arc::new(ReplayClock {
        process: ProcessClock::new(run.started, runtime.clone()),
        end: run.finished.map(|(at, ..)| at),
        runtime,
        events: events.clone(),
        follow,
    });
    shell.clock = clock.clone();
    let lines: Output = Arc::new(LineSink::new(clock, LineDestination::Events(events)));
    // The exit code is not needed: the pod's status has it already.
    shell.start(&command, Stdio::new(Input::empty(), lines.clone(), lines.clone())).await;
    if let Err(error) = lines.finish().await {
        tracing::trace!(%error, "the log reader disconnected");
    }
}

/// The clock of a replay. It reports when it reaches the current time or the end of the run.
struct ReplayClock {
    process: ProcessClock,
    end: Option<Timestamp>,
    runtime: Arc<dyn PodRuntime>,
    events: mpsc::Sender<LogEvent>,
    follow: bool,
}

impl ReplayClock {
    async fn advance_to(&self, at: Timestamp) {
        let now = self.runtime.now();
        let replay_end = self.end.map_or(now, |end| end.min(now));
        if at > replay_end {
            // When the reader disconnects, the surrounding `select!` drops this future.
            if self.events.send(LogEvent::CaughtUp).await.is_err() || !self.follow || self.end.is_some() {
                return std::future::pending().await;
            }
        }
        self.process.wait_until(at).await;
    }
}

#[async_trait]
impl Clock for ReplayClock {
    fn now(&self) -> Timestamp {
        self.process.now()
    }

    async fn sleep(&self, duration: Duration) {
        self.advance_to(self.process.advance(duration)).await;
    }

    async fn step(&self) {
        self.advance_to(self.process.advance_step()).await;
    }
}
