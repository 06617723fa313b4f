//! Decides whether a process writes to a shared index: while it is elected, or if no other process makes progress.

use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// State by which one process decides whether it writes to the shared index.
#[derive(Debug)]
pub(super) struct WriteElection {
    elected: watch::Receiver<bool>,
    timeout: Duration,
    /// Position that was read last.
    position: u64,
    /// Time since which the position has not advanced although there are newer changes.
    since: Instant,
    /// Writes without being elected, until the next election.
    is_substitute: bool,
}

impl WriteElection {
    /// `timeout`: time without observed progress after which a process that is not elected writes, too. The elected one may
    /// use another backend, or lack a connection to the engine.
    pub fn new(elected: watch::Receiver<bool>, timeout: Duration, now: Instant) -> Self {
        Self { elected, timeout, position: 0, since: now, is_substitute: false }
    }

    pub fn should_write(&self) -> bool {
        *self.elected.borrow() || self.is_substitute
    }

    /// Records a position that was read.
    pub fn record_position(&mut self, position: u64, latest: u64, now: Instant) {
        if position != self.position || position >= latest {
            (self.position, self.since) = (position, now);
        }
        self.check_timeout(now);
    }

    /// Takes over if no progress has been observed for the timeout.
    pub fn check_timeout(&mut self, now: Instant) {
        if now.saturating_duration_since(self.since) >= self.timeout && !self.should_write() {
            tracing::warn!(
                "no progress of the elected replica was observed; this replica writes to the search engine as well"
            );
            self.is_substitute = true;
        }
    }

    /// Returns after the next election.
    pub async fn wait_for_election(&mut self) {
        if self.elected.changed().await.is_err() {
            // A single process has no elections.
            std::future::pending::<()>().await;
        }
        (self.since, self.is_substitute) = (Instant::now(), false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_writes_if_it_is_elected_or_observes_no_progress() {
        let (elect, elected) = watch::channel(false);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut election = WriteElection::new(elected, Duration::from_secs(30), start);
        for (second, position, latest, writes) in
            [(10, 5, 9, false), (20, 7, 9, false), (45, 7, 9, false), (49, 9, 9, false), (78, 9, 12, false)]
        {
            election.record_position(position, latest, at(second));
            assert_eq!(election.should_write(), writes, "after {second} s");
        }
        election.check_timeout(at(79));
        assert!(election.should_write(), "the position has not moved for 30 s");
        elect.send_replace(false);
        election.wait_for_election().await;
        assert!(!election.should_write(), "another one is elected");
        elect.send_replace(true);
        election.wait_for_election().await;
        assert!(election.should_write());
    }
}
