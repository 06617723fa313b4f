//! Permit for a list, limited in time.

use super::Shared;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_store::Error;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Lists hold their permits for a limited time, so that a slow or large member delays the lists of others by at
/// most that time.
pub(super) struct ListPermit {
    of_cluster: Arc<Semaphore>,
    of_all: Arc<Semaphore>,
    held: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
    ends: Instant,
    length: Duration,
}

impl ListPermit {
    pub async fn take(shared: &Shared, cluster: &ClusterName) -> Result<Self, Error> {
        let (of_cluster, of_all) = (shared.cluster_lists(cluster), Arc::clone(&shared.lists));
        let length = shared.options.timeouts.turn;
        let mut turn = Self { of_cluster, of_all, held: None, ends: Instant::now(), length };
        turn.renew().await?;
        Ok(turn)
    }

    /// Keeps the permits until their time is over, then queues behind waiting lists.
    pub async fn renew(&mut self) -> Result<(), Error> {
        if self.held.is_some() && Instant::now() < self.ends {
            return Ok(());
        }
        self.held = None;
        let of_cluster = Arc::clone(&self.of_cluster).acquire_owned().await.map_err(|_| Error::Stopped)?;
        let of_all = Arc::clone(&self.of_all).acquire_owned().await.map_err(|_| Error::Stopped)?;
        self.held = Some((of_cluster, of_all));
        self.ends = Instant::now() + self.length;
        Ok(())
    }

    /// Waits for the member. If that exceeds the permits' time, they are released and the wait continues.
    pub async fn lend<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        if self.held.is_some() {
            if let Ok(done) = timeout_at(self.ends, &mut work).await {
                return done;
            }
            self.held = None;
        }
        work.await
    }
}
