//! Decides whether a process writes to a shared index: while it is elected, or if no other process makes progress.

use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// State by which one process decides whether it writes to the shared index.
#[derive(Debug)]
pub(super) struct Turn {
    elected: watch::Receiver<bool>,
    timeout: Duration,
    /// Position that was read last.
    position: u64,
    /// Time since which the position has not advanced although there are newer changes.
    since: Instant,
    /// Writes without being elected, until the next election.
    substitutes: bool,
}

impl Turn {
    /// `timeout`: time without observed progress after which a process that is not elected writes, too. The elected one may
    /// use another backend, or lack a connection to the engine.
    pub fn new(elected: watch::Receiver<bool>, timeout: Duration, now: Instant) -> Self {
        Self { elected, timeout, position: 0, since: now, substitutes: false }
    }

    pub fn writes(&self) -> bool {
        *self.elected.borrow() || self.substitutes
    }

    /// Records a position that was read.
    pub fn read(&mut self, position: u64, latest: u64, now: Instant) {
        if position != self.position || position >= latest {
            (self.position, self.since) = (position, now);
        }
        self.wait(now);
    }

    /// Records that no position could be read.
    pub fn wait(&mut self, now: Instant) {
        if now.saturating_duration_since(self.since) >= self.timeout && !self.writes() {
            tracing::warn!(
                "the elected replica made no observed progress: this replica writes to the search engine, too"
            );
            self.substitutes = true;
        }
    }

    /// Returns after the next election.
    pub async fn changed(&mut self) {
        if self.elected.changed().await.is_err() {
            // A single process has no elections.
            std::future::pending::<()>().await;
        }
        (self.since, self.substitutes) = (Instant::now(), false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_writes_that_is_elected_or_sees_no_progress() {
        let (elect, elected) = watch::channel(false);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut turn = Turn::new(elected, Duration::from_secs(30), start);
        for (second, position, latest, writes) in
            [(10, 5, 9, false), (20, 7, 9, false), (45, 7, 9, false), (49, 9, 9, false), (78, 9, 12, false)]
        {
            turn.read(position, latest, at(second));
            assert_eq!(turn.writes(), writes, "after {second} s");
        }
        turn.wait(at(79));
        assert!(turn.writes(), "the position has not moved for 30 s");
        elect.send_replace(false);
        turn.changed().await;
        assert!(!turn.writes(), "another one is elected");
        elect.send_replace(true);
        turn.changed().await;
        assert!(turn.writes());
    }
}
