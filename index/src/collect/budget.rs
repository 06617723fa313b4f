//! Limits the bytes of objects between the network and the store: pages being read, events being
//! processed, and batches queued for the writer.
//!
//! To exclude deadlocks, a task that holds a share must neither wait for another share nor wait indefinitely for a
//! member. A request that is larger than the limit gets all of it and runs alone.

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_store::Error;
use crowsnest_store::metrics::Metrics;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const PERMIT_BYTES: usize = 1 << 10;

/// Semaphores for the bytes in flight, in total and per cluster. A permit is one KiB.
pub(crate) struct Budget {
    all: Arc<Semaphore>,
    clusters: Mutex<HashMap<ClusterName, Arc<Semaphore>>>,
    cluster_permits: u32,
    metrics: Arc<Metrics>,
}

/// A share of the budget, released when dropped.
pub(crate) struct Share {
    cluster: Option<OwnedSemaphorePermit>,
    all: Option<OwnedSemaphorePermit>,
    metrics: Arc<Metrics>,
}

impl Budget {
    pub fn new(total_bytes: usize, cluster_bytes: usize, metrics: Arc<Metrics>) -> Self {
        let total_permits = permits(total_bytes);
        let (all, clusters) = (Arc::new(Semaphore::new(total_permits as usize)), Mutex::default());
        Self { all, clusters, cluster_permits: permits(cluster_bytes).min(total_permits), metrics }
    }

    /// Maximum bytes in flight of a cluster.
    pub fn max_cluster_bytes(&self) -> usize {
        self.cluster_permits as usize * PERMIT_BYTES
    }

    /// Waits for a share of a cluster. A request that exceeds the cluster's maximum gets the maximum. Fails after the cache
    /// has stopped.
    pub async fn acquire(&self, cluster: &ClusterName, bytes: usize) -> Result<Share, Error> {
        let count = permits(bytes).min(self.cluster_permits);
        let cluster_semaphore = {
            let mut clusters = self.clusters.lock();
            let entry = clusters.entry(cluster.clone());
            Arc::clone(entry.or_insert_with(|| Arc::new(Semaphore::new(self.cluster_permits as usize))))
        };
        // The cluster's own share is acquired first, because waiting for it does not block other clusters.
        let cluster = cluster_semaphore.acquire_many_owned(count).await.map_err(|_| Error::Stopped)?;
        let all = Arc::clone(&self.all).acquire_many_owned(count).await.map_err(|_| Error::Stopped)?;
        self.metrics.bytes_in_flight.add(u64::from(count) * PERMIT_BYTES as u64);
        Ok(Share { cluster: Some(cluster), all: Some(all), metrics: Arc::clone(&self.metrics) })
    }

    /// Removes all clusters for which `keep` is false. Shares that they still hold return to the total when released.
    pub fn retain(&self, keep: impl Fn(&ClusterName) -> bool) {
        self.clusters.lock().retain(|cluster, _| keep(cluster));
    }
}

impl Share {
    /// Splits off a part of the share, at most all of it.
    pub fn split(&mut self, bytes: usize) -> Self {
        self.split_off((permits(bytes) as usize).min(self.permits()))
    }

    /// Releases the bytes above `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        drop(self.split_off(self.permits().saturating_sub(permits(bytes) as usize)));
    }

    fn split_off(&mut self, count: usize) -> Self {
        let part = |permit: &mut Option<OwnedSemaphorePermit>| permit.as_mut().and_then(|permit| permit.split(count));
        Self { cluster: part(&mut self.cluster), all: part(&mut self.all), metrics: Arc::clone(&self.metrics) }
    }

    fn permits(&self) -> usize {
        self.all.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.metrics.bytes_in_flight.subtract((self.permits() * PERMIT_BYTES) as u64);
    }
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX >> 4).clamp(1, u32::MAX >> 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_store::fixtures::cluster;
    use futures::FutureExt;

    #[tokio::test]
    async fn shares_are_limited_and_released() {
        let metrics = Arc::new(Metrics::default());
        let budget = Budget::new(64 << 10, 16 << 10, Arc::clone(&metrics));
        let (one, two) = (cluster("one"), cluster("two"));
        // Larger than the limit: alone, and limited to the cluster's maximum.
        let mut all_of_one = budget.acquire(&one, 1 << 30).await.unwrap();
        assert_eq!(metrics.bytes_in_flight.get(), 16 << 10);
        assert!(budget.acquire(&one, 1).now_or_never().is_none(), "the cluster has its maximum");
        let share_of_two = budget.acquire(&two, 10 << 10).now_or_never().unwrap().unwrap();
        let part = all_of_one.split(5000);
        assert_eq!(metrics.bytes_in_flight.get(), 26 << 10, "a part counts once");
        all_of_one.shrink(1);
        assert_eq!(metrics.bytes_in_flight.get(), (1 + 5 + 10) << 10);
        drop((all_of_one, share_of_two));
        assert!(
            budget.acquire(&one, 11 << 10).now_or_never().is_some()
                && budget.acquire(&one, 12 << 10).now_or_never().is_none()
        );
        drop(part);
        assert_eq!((metrics.bytes_in_flight.get(), metrics.bytes_in_flight.peak()), (0, 26 << 10));
        let everyone = ["one", "two", "three", "four", "five"].map(cluster);
        let mut held = Vec::new();
        for cluster in &everyone {
            held.extend(budget.acquire(cluster, 16 << 10).now_or_never());
        }
        assert_eq!(held.len(), 4, "the total is not exceeded");
    }
}
