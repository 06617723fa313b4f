//! Follows the change log of all replicas into this replica's tail, in order and without duplicates.
//!
//! Notifications announce commits; in addition, the log is polled every second. The writer publishes its own
//! changes directly if they are next in order; the tail takes each seq once, from the first source.

use super::{Claims, STOP_AFTER};
use crate::cache::Health;
use crowsnest_store::Error;
use crowsnest_store::Store;
use crowsnest_store::postgres::{LogPage, MAX_CHANGES_PER_READ, PostgresStore};
use crowsnest_store::tail::Tail;
use sqlx::postgres::PgListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Name in [`Health`].
const HEALTH_KEY: &str = "changes of other replicas";

pub(crate) struct LogFollower {
    pub store: Arc<PostgresStore>,
    pub tail: Arc<Tail>,
    pub claims: Arc<Claims>,
    /// Notified with each commit, because states of collections may have changed as well.
    pub commit_notify: Arc<Notify>,
    pub health: watch::Sender<Health>,
}

impl LogFollower {
    /// Runs until stopped; an outage only causes a delay.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let mut listener: Option<PgListener> = None;
        let mut last_success = Instant::now();
        loop {
            if listener.is_none() {
                listener = tokio::time::timeout(POLL_INTERVAL, self.store.listen()).await.ok().and_then(Result::ok);
            }
            match self.catch_up().await {
                Ok(()) => {
                    last_success = Instant::now();
                    self.health.send_if_modified(|health| health.remove(HEALTH_KEY).is_some());
                }
                Err(error) => {
                    self.report_failure(last_success, error.chain());
                    listener = None;
                }
            }
            let received = async {
                match &mut listener {
                    Some(listener) => listener.try_recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = self.claims.missing_changes.notified() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {
                    // Notifications were missed: reconnect.
                    if self.store.latest().await.is_ok_and(|latest| latest > self.tail.latest()) {
                        listener = None;
                    }
                }
                received = received => {
                    match received {
                        Ok(Some(_)) => while listener.as_mut().is_some_and(|l| l.next_buffered().is_some()) {},
                        Ok(None) | Err(_) => listener = None,
                    }
                    self.commit_notify.notify_one();
                }
            }
        }
    }

    /// A short outage only causes a delay. A replica that stays behind becomes unready, so that readers use another
    /// one.
    fn report_failure(&self, last_success: Instant, reason: String) {
        if last_success.elapsed() < STOP_AFTER {
            tracing::debug!(reason, "cannot follow the changes of other replicas");
        } else if !self.health.borrow().contains_key(HEALTH_KEY) {
            tracing::warn!(
                reason,
                "cannot follow the changes of other replicas; the data of this replica is becoming stale"
            );
            self.health.send_modify(|health| drop(health.insert(HEALTH_KEY, reason)));
        }
    }

    async fn catch_up(&self) -> Result<(), Error> {
        loop {
            match self.store.changes(self.tail.latest(), MAX_CHANGES_PER_READ).await? {
                LogPage::Changes(changes) if changes.is_empty() => return Ok(()),
                // Changes that the writer published in the meantime are skipped; the result cannot have gaps.
                LogPage::Changes(changes) => drop(self.tail.publish(changes)),
                LogPage::Pruned(latest) => {
                    tracing::warn!(%latest, "changes of other replicas were pruned before they were read; readers list again");
                    self.tail.restart(latest);
                }
            }
        }
    }
}
