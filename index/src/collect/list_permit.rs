//! Permit for a list, limited in time.

use super::Shared;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_store::Error;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Permit to list a resource: one of the lists of its cluster and one of all lists. It is held for a limited time, so
/// that a slow or large member delays the lists of others by at most that time.
pub(super) struct ListPermit {
    cluster_lists: Arc<Semaphore>,
    all_lists: Arc<Semaphore>,
    permits: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
    expires_at: Instant,
    duration: Duration,
}

impl ListPermit {
    pub async fn acquire(shared: &Shared, cluster: &ClusterName) -> Result<Self, Error> {
        let (cluster_lists, all_lists) = (shared.cluster_lists(cluster), Arc::clone(&shared.lists));
        let duration = shared.options.timeouts.list_permit;
        let mut permit = Self { cluster_lists, all_lists, permits: None, expires_at: Instant::now(), duration };
        permit.renew().await?;
        Ok(permit)
    }

    /// Acquires the permits if they are not held or have expired. Expired ones are released first, so that other
    /// lists that wait acquire them before this one.
    pub async fn renew(&mut self) -> Result<(), Error> {
        if self.permits.is_some() && Instant::now() < self.expires_at {
            return Ok(());
        }
        self.permits = None;
        let cluster_permit = Arc::clone(&self.cluster_lists).acquire_owned().await.map_err(|_| Error::Stopped)?;
        let permit = Arc::clone(&self.all_lists).acquire_owned().await.map_err(|_| Error::Stopped)?;
        self.permits = Some((cluster_permit, permit));
        self.expires_at = Instant::now() + self.duration;
        Ok(())
    }

    /// Waits for a request to the member. If the permits expire in the meantime, they are released and the wait
    /// continues.
    pub async fn run<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        if self.permits.is_some() {
            if let Ok(done) = timeout_at(self.expires_at, &mut work).await {
                return done;
            }
            self.permits = None;
        }
        work.await
    }
}
