//! Follows the change log of all replicas into this replica's tail, in order and without duplicates.
//!
//! Notifications announce commits; in addition, the log is polled every second. The writer publishes its own
//! changes directly if they are next in order; the tail takes each seq once, from the first source.

use super::{Claims, STOP_AFTER};
use crate::index::Health;
use crowsnest_store::Error;
use crowsnest_store::Store;
use crowsnest_store::postgres::{CHANGES_AT_ONCE, Log, PostgresStore};
use crowsnest_store::tail::Tail;
use sqlx::postgres::PgListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const POLL: Duration = Duration::from_secs(1);
/// Name in [`Health`].
const CHANGES: &str = "changes of other replicas";

pub(crate) struct LogFollower {
    pub store: Arc<PostgresStore>,
    pub tail: Arc<Tail>,
    pub claims: Arc<Claims>,
    /// Notified with each commit, because states of collections may have changed as well.
    pub heard: Arc<Notify>,
    pub health: watch::Sender<Health>,
}

impl LogFollower {
    /// Runs until stopped; an outage only causes a delay.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let mut listener: Option<PgListener> = None;
        let mut followed = Instant::now();
        loop {
            if listener.is_none() {
                listener = tokio::time::timeout(POLL, self.store.listen()).await.ok().and_then(Result::ok);
            }
            match self.catch_up().await {
                Ok(()) => {
                    followed = Instant::now();
                    self.health.send_if_modified(|health| health.remove(CHANGES).is_some());
                }
                Err(error) => {
                    self.fails(followed, error.chain());
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
                () = self.claims.behind.notified() => {}
                () = tokio::time::sleep(POLL) => {
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
                    self.heard.notify_one();
                }
            }
        }
    }

    /// A short outage only causes a delay. A replica that stays behind becomes unready, so that readers use another
    /// one.
    fn fails(&self, followed: Instant, trouble: String) {
        if followed.elapsed() < STOP_AFTER {
            tracing::debug!(trouble, "cannot follow the changes of other replicas");
        } else if !self.health.borrow().contains_key(CHANGES) {
            tracing::warn!(
                trouble,
                "cannot follow the changes of other replicas; the data of this replica is becoming stale"
            );
            self.health.send_modify(|health| drop(health.insert(CHANGES, trouble)));
        }
    }

    async fn catch_up(&self) -> Result<(), Error> {
        loop {
            match self.store.changes(self.tail.latest(), CHANGES_AT_ONCE).await? {
                Log::Changes(changes) if changes.is_empty() => return Ok(()),
                // Changes that the writer published in the meantime are skipped; the result cannot have gaps.
                Log::Changes(changes) => drop(self.tail.publish(changes)),
                Log::Pruned(latest) => {
                    tracing::warn!(%latest, "changes of other replicas were pruned before they were read; readers list again");
                    self.tail.restart(latest);
                }
            }
        }
    }
}
