//! Limits of concurrent requests, in total and per user; `layers::limit_concurrency` acquires a permit for each request.
//!
//! A simpler alternative to kube-apiserver's priority and fairness: each user gets at most half of the permits,
//! further requests wait in a bounded queue. Administrators are exempt, as in kube-apiserver: they include
//! in-process clients, and requests that wait for a webhook or extension server depend on those.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::dropped_requests::DroppedRequests;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum time that a request waits for a permit; most bursts end earlier, so that clients see no error.
pub(super) const PERMIT_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum number of concurrent requests; 0 means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InFlightLimits {
    /// Read-only requests.
    pub reads: usize,
    /// Modifying requests.
    pub writes: usize,
}

impl Default for InFlightLimits {
    fn default() -> Self {
        Self { reads: 800, writes: 400 }
    }
}

/// Permits for reads or for writes.
pub(super) struct RequestPermits {
    permits: Arc<Semaphore>,
    /// Maximum number of permits per user.
    permits_per_user: usize,
    users: Mutex<HashMap<String, UserQueue>>,
    dropped: DroppedRequests,
}

/// Queue of one user.
struct UserQueue {
    permits: Arc<Semaphore>,
    /// Running and waiting requests.
    length: usize,
}

/// A permit, which is released when dropped.
pub(super) struct RequestPermit {
    /// `None` for administrators if no permit was free.
    _permit: Option<OwnedSemaphorePermit>,
    _user_permit: Option<OwnedSemaphorePermit>,
    _queue_slot: Option<QueueSlot>,
}

struct QueueSlot {
    owner: Arc<RequestPermits>,
    user: String,
    permits: Arc<Semaphore>,
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        let mut users = self.owner.users.lock();
        let Some(queue) = users.get_mut(&self.user) else { return };
        queue.length -= 1;
        if queue.length == 0 {
            users.remove(&self.user);
        }
    }
}

impl RequestPermits {
    /// Creates the permits; 0 means unlimited.
    pub(super) fn new(permits: usize) -> Self {
        let permits = if permits == 0 { Semaphore::MAX_PERMITS } else { permits.min(Semaphore::MAX_PERMITS) };
        Self {
            permits: Arc::new(Semaphore::new(permits)),
            permits_per_user: permits.div_ceil(2),
            users: Mutex::default(),
            dropped: DroppedRequests::default(),
        }
    }

    /// Records a request that gets no permit; returns its error.
    pub(super) fn reject(&self, now: Instant) -> ApiError {
        self.dropped.reject(now)
    }

    /// Waits for a permit. `None` if the user's queue is full or `timeout` expires.
    pub(super) async fn acquire(self: &Arc<Self>, user: &UserInfo, timeout: Duration) -> Option<RequestPermit> {
        if user.is_master() {
            return Some(RequestPermit {
                _permit: Arc::clone(&self.permits).try_acquire_owned().ok(),
                _user_permit: None,
                _queue_slot: None,
            });
        }
        let slot = self.enter_queue(&user.name)?;
        let user_permits = Arc::clone(&slot.permits);
        let all_permits = Arc::clone(&self.permits);
        let acquire_both =
            async { Some((user_permits.acquire_owned().await.ok()?, all_permits.acquire_owned().await.ok()?)) };
        let (user_permit, permit) = tokio::time::timeout(timeout, acquire_both).await.ok().flatten()?;
        Some(RequestPermit { _permit: Some(permit), _user_permit: Some(user_permit), _queue_slot: Some(slot) })
    }

    /// Enters the user's queue, whose limit is twice the user's share of permits.
    fn enter_queue(self: &Arc<Self>, user: &str) -> Option<QueueSlot> {
        let mut users = self.users.lock();
        if !users.contains_key(user) {
            users.insert(
                user.to_owned(),
                UserQueue { permits: Arc::new(Semaphore::new(self.permits_per_user)), length: 0 },
            );
        }
        let queue = users.get_mut(user)?;
        if queue.length >= self.permits_per_user.saturating_mul(2) {
            return None;
        }
        queue.length += 1;
        Some(QueueSlot { owner: Arc::clone(self), user: user.to_owned(), permits: Arc::clone(&queue.permits) })
    }
}

#[cfg(test)]
mod tests {
    use crowsnest_apimachinery::user::MASTERS;
    use futures::FutureExt;
    use futures::future::join_all;

    use super::*;

    fn user(name: &str, groups: &[&str]) -> UserInfo {
        UserInfo {
            name: name.into(),
            groups: groups.iter().map(|&group| group.into()).collect(),
            ..UserInfo::default()
        }
    }

    #[tokio::test]
    async fn users_are_limited_and_queues_bounded() {
        let permits = Arc::new(RequestPermits::new(4));
        let (greedy, other, admin) = (user("greedy", &[]), user("other", &[]), user("admin", &[MASTERS]));
        let acquire = |user| permits.acquire(user, PERMIT_TIMEOUT);
        let first = acquire(&greedy).await.unwrap();
        let second = acquire(&greedy).await.unwrap();
        assert!(acquire(&greedy).now_or_never().is_none(), "waits although two permits are free");
        let mut waiting = [Box::pin(acquire(&greedy)), Box::pin(acquire(&greedy))];
        assert!(waiting.iter_mut().all(|request| request.now_or_never().is_none()));
        assert!(matches!(acquire(&greedy).now_or_never(), Some(None)), "the queue is full");
        assert!(permits.acquire(&greedy, Duration::ZERO).await.is_none());
        drop(waiting);
        assert!(permits.acquire(&greedy, Duration::ZERO).await.is_none(), "the timeout expires");
        let third = acquire(&other).await.unwrap();
        let fourth = acquire(&admin).await.unwrap();
        assert!(permits.acquire(&user("late", &[]), Duration::ZERO).await.is_none(), "all permits are in use");
        let more = join_all((0..4).map(|_| acquire(&admin))).await;
        assert!(more.iter().all(Option::is_some), "administrators are not limited");
        drop((more, first));
        assert!(acquire(&greedy).await.is_some());
        drop((second, third, fourth));
        assert!(permits.users.lock().is_empty(), "queues without requests are removed");
        let many = join_all((0..4).map(|_| acquire(&admin))).await;
        assert!(many.iter().all(Option::is_some));
        assert!(permits.acquire(&other, Duration::ZERO).await.is_none(), "requests of administrators use free permits");
    }
}
