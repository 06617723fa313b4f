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
    expires_at: Instant,
    duration: Duration,
}

impl ListPermit {
    pub async fn acquire(shared: &Shared, cluster: &ClusterName) -> Result<Self, Error> {
        let (of_cluster, of_all) = (shared.cluster_lists(cluster), Arc::clone(&shared.lists));
        let duration = shared.options.timeouts.list_permit;
        let mut permit = Self { of_cluster, of_all, held: None, expires_at: Instant::now(), duration };
        permit.renew().await?;
        Ok(permit)
    }

    /// Keeps the permits until their time is over, then queues behind waiting lists.
    pub async fn renew(&mut self) -> Result<(), Error> {
        if self.held.is_some() && Instant::now() < self.expires_at {
            return Ok(());
        }
        self.held = None;
        let of_cluster = Arc::clone(&self.of_cluster).acquire_owned().await.map_err(|_| Error::Stopped)?;
        let of_all = Arc::clone(&self.of_all).acquire_owned().await.map_err(|_| Error::Stopped)?;
        self.held = Some((of_cluster, of_all));
        self.expires_at = Instant::now() + self.duration;
        Ok(())
    }

    /// Waits for the member. If that exceeds the permits' time, they are released and the wait continues.
    pub async fn hold_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        if self.held.is_some() {
            if let Ok(done) = timeout_at(self.expires_at, &mut work).await {
                return done;
            }
            self.held = None;
        }
        work.await
    }
}
