//! Limits of concurrent requests, in total and per user; `layers::limit` acquires a permit for each request.
//!
//! A simpler alternative to kube-apiserver's priority and fairness: each user gets at most half of the permits,
//! further requests wait in a bounded queue. Administrators are exempt, as in kube-apiserver: they include
//! in-process clients, and requests that wait for a webhook or extension server depend on those.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::user::UserInfo;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Longest wait for a permit: most bursts end earlier, so that clients see no error.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

/// Most concurrent requests; 0 means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InFlight {
    /// Read-only requests.
    pub reads: usize,
    /// Modifying requests.
    pub writes: usize,
}

impl Default for InFlight {
    fn default() -> Self {
        Self { reads: 800, writes: 400 }
    }
}

/// Permits for one kind of request.
pub(super) struct Flights {
    places: Arc<Semaphore>,
    /// Most permits per user.
    share: usize,
    users: Mutex<HashMap<String, Line>>,
}

/// Queue of one user.
struct Line {
    places: Arc<Semaphore>,
    /// Running and waiting requests.
    length: usize,
}

/// A permit, until dropped.
pub(super) struct Flight {
    /// `None` for administrators if no permit was free.
    _place: Option<OwnedSemaphorePermit>,
    _own: Option<OwnedSemaphorePermit>,
    _line: Option<InLine>,
}

struct InLine {
    flights: Arc<Flights>,
    user: String,
    places: Arc<Semaphore>,
}

impl Drop for InLine {
    fn drop(&mut self) {
        let mut users = self.flights.users.lock();
        let Some(line) = users.get_mut(&self.user) else { return };
        line.length -= 1;
        if line.length == 0 {
            users.remove(&self.user);
        }
    }
}

impl Flights {
    /// Creates the permits; 0 means unlimited.
    pub(super) fn new(places: usize) -> Self {
        let places = if places == 0 { Semaphore::MAX_PERMITS } else { places.min(Semaphore::MAX_PERMITS) };
        Self { places: Arc::new(Semaphore::new(places)), share: places.div_ceil(2), users: Mutex::default() }
    }

    /// Waits for a permit. `None` if the user's queue is full or `timeout` expires.
    pub(super) async fn enter(self: &Arc<Self>, user: &UserInfo, timeout: Duration) -> Option<Flight> {
        if user.is_master() {
            return Some(Flight { _place: Arc::clone(&self.places).try_acquire_owned().ok(), _own: None, _line: None });
        }
        let line = self.join(&user.name)?;
        let own = Arc::clone(&line.places);
        let all = Arc::clone(&self.places);
        let places = async { Some((own.acquire_owned().await.ok()?, all.acquire_owned().await.ok()?)) };
        let (own, permit) = tokio::time::timeout(timeout, places).await.ok().flatten()?;
        Some(Flight { _place: Some(permit), _own: Some(own), _line: Some(line) })
    }

    /// Enters the user's queue, whose limit is twice the user's share of permits.
    fn join(self: &Arc<Self>, user: &str) -> Option<InLine> {
        let mut users = self.users.lock();
        if !users.contains_key(user) {
            users.insert(user.to_owned(), Line { places: Arc::new(Semaphore::new(self.share)), length: 0 });
        }
        let line = users.get_mut(user)?;
        if line.length >= self.share.saturating_mul(2) {
            return None;
        }
        line.length += 1;
        Some(InLine { flights: Arc::clone(self), user: user.to_owned(), places: Arc::clone(&line.places) })
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
        let flights = Arc::new(Flights::new(4));
        let (greedy, other, admin) = (user("greedy", &[]), user("other", &[]), user("admin", &[MASTERS]));
        let enter = |user| flights.enter(user, PATIENCE);
        let first = enter(&greedy).await.unwrap();
        let second = enter(&greedy).await.unwrap();
        assert!(enter(&greedy).now_or_never().is_none(), "waits although two places are free");
        let mut waiting = [Box::pin(enter(&greedy)), Box::pin(enter(&greedy))];
        assert!(waiting.iter_mut().all(|one| one.now_or_never().is_none()));
        assert!(matches!(enter(&greedy).now_or_never(), Some(None)), "the line is full");
        assert!(flights.enter(&greedy, Duration::ZERO).await.is_none());
        drop(waiting);
        assert!(flights.enter(&greedy, Duration::ZERO).await.is_none(), "the timeout expires");
        let third = enter(&other).await.unwrap();
        let fourth = enter(&admin).await.unwrap();
        assert!(flights.enter(&user("late", &[]), Duration::ZERO).await.is_none(), "four places are four places");
        let more = join_all((0..4).map(|_| enter(&admin))).await;
        assert!(more.iter().all(Option::is_some), "an administrator always gets an answer");
        drop((more, first));
        assert!(enter(&greedy).await.is_some());
        drop((second, third, fourth));
        assert!(flights.users.lock().is_empty(), "of those who left nothing is remembered");
        let many = join_all((0..4).map(|_| enter(&admin))).await;
        assert!(many.iter().all(Option::is_some));
        assert!(flights.enter(&other, Duration::ZERO).await.is_none(), "they take places where there are some");
    }
}
