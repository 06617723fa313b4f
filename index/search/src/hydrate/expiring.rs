//! A value that is dropped if its owner does not use it for some time, although the owner may never be polled again.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

/// A value that is dropped after a period without use.
pub(crate) struct Expiring<T> {
    state: Arc<Mutex<State<T>>>,
    _timer: AbortOnDropHandle<()>,
}

struct State<T> {
    /// None after it has expired or was taken.
    value: Option<T>,
    used_at: Instant,
}

impl<T: Send + 'static> Expiring<T> {
    /// Keeps a value until it has not been used for `max_idle`. Must be called within a runtime.
    pub fn new(value: T, max_idle: Duration) -> Self {
        let state = Arc::new(Mutex::new(State { value: Some(value), used_at: Instant::now() }));
        let watched = Arc::clone(&state);
        let timer = tokio::spawn(async move {
            loop {
                let next_check = watched.lock().expire(Instant::now(), max_idle);
                match next_check {
                    Some(next_check) => tokio::time::sleep_until(next_check.into()).await,
                    None => return,
                }
            }
        });
        Self { state, _timer: AbortOnDropHandle::new(timer) }
    }

    /// Records a use of the value.
    pub fn renew(&self) {
        self.state.lock().used_at = Instant::now();
    }

    /// The value; None if it has expired.
    pub fn take(self) -> Option<T> {
        self.state.lock().value.take()
    }
}

impl<T> State<T> {
    /// Drops the value if it has been idle for `max_idle`. Otherwise, returns the time at which it expires without further use.
    fn expire(&mut self, now: Instant, max_idle: Duration) -> Option<Instant> {
        let expires_at = self.used_at + max_idle;
        if expires_at <= now {
            self.value = None;
            return None;
        }
        Some(expires_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Times are seconds; values expire after 10 s.
    #[rstest]
    #[case::just_used(0, 0, Some(10))]
    #[case::idle(0, 9, Some(10))]
    #[case::used_since(8, 12, Some(18))]
    #[case::expired(0, 10, None)]
    #[case::expired_after_a_use(8, 30, None)]
    fn idle_values_expire(#[case] used: u64, #[case] now: u64, #[case] expires: Option<u64>) {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut state = State { value: Some(()), used_at: at(used) };
        assert_eq!(state.expire(at(now), Duration::from_secs(10)), expires.map(at));
        assert_eq!(state.value.is_some(), expires.is_some());
    }

    #[tokio::test]
    async fn the_value_is_dropped_although_its_owner_does_nothing() {
        let value = Arc::new(());
        let (dropped, kept) = (
            Expiring::new(Arc::clone(&value), Duration::ZERO),
            Expiring::new(Arc::clone(&value), Duration::from_secs(600)),
        );
        while Arc::strong_count(&value) == 3 {
            tokio::task::yield_now().await;
        }
        assert_eq!((dropped.take(), kept.take()), (None, Some(value)));
    }
}
