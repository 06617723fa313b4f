//! Search permits limit the number of concurrent searches; the next permit goes to the request that arrived first.
//!
//! A search needs several permits (text search, reading hits, reasons). If they were granted in the order of the calls,
//! each of them would wait behind the first permits of all newer requests, and latency would be unpredictable.

use crowsnest_store::Error;
use crowsnest_store::error::join_result;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// The permits of a process, which limit concurrent searches.
pub struct SearchPermits {
    state: Mutex<State>,
}

struct State {
    free: usize,
    /// Waiting requests by arrival time; the number of the call breaks ties.
    waiting: BTreeMap<(Instant, u64), oneshot::Sender<SearchPermit>>,
    /// Number of the last call that had to wait.
    number: u64,
}

/// Permission to use one core for a search. When dropped, it is passed to the next request.
pub struct SearchPermit {
    permits: Arc<SearchPermits>,
}

impl std::fmt::Debug for SearchPermits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SearchPermits")
    }
}

impl SearchPermits {
    pub fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { free: permits.max(1), waiting: BTreeMap::new(), number: 0 }) })
    }

    /// One permit for each core.
    pub fn for_cores() -> Arc<Self> {
        Self::new(std::thread::available_parallelism().map_or(1, NonZero::get))
    }

    /// Waits for a permit for a request that arrived at `requested_at`. Dropping the future cancels the wait.
    pub async fn acquire(self: &Arc<Self>, requested_at: Instant) -> SearchPermit {
        loop {
            let receiver = {
                let mut state = self.state.lock();
                if state.free > 0 {
                    state.free -= 1;
                    return SearchPermit { permits: Arc::clone(self) };
                }
                let (sender, receiver) = oneshot::channel();
                state.number += 1;
                let key = (requested_at, state.number);
                state.waiting.insert(key, sender);
                receiver
            };
            // A sender is dropped only after it has sent its permit.
            if let Ok(permit) = receiver.await {
                return permit;
            }
        }
    }

    /// Runs blocking work of a request within a permit.
    pub async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        requested_at: Instant,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.acquire(requested_at).await.run(work).await
    }
}

impl SearchPermit {
    /// Runs blocking work and releases the permit when it ends, even if the future is dropped earlier.
    pub async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let work = move || {
            let _permit = self;
            work()
        };
        join_result(tokio::task::spawn_blocking(work).await)
    }
}

impl Drop for SearchPermit {
    fn drop(&mut self) {
        let permits = &self.permits;
        loop {
            let next = {
                let mut state = permits.state.lock();
                let next = state.waiting.pop_first();
                if next.is_none() {
                    state.free += 1;
                }
                next
            };
            let Some((_, sender)) = next else { return };
            if sender.is_closed() {
                continue;
            }
            // If the receiver was dropped in the meantime, the permit is dropped here and passes to the next request.
            drop(sender.send(SearchPermit { permits: Arc::clone(permits) }));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use rstest::rstest;
    use std::time::Duration;

    /// Numbers are arrival times; futures in `cancelled` are dropped before a permit is released.
    #[rstest]
    #[case::first_arrival_first(&[3, 1, 2], &[], &[1, 2, 3])]
    #[case::ties_in_call_order(&[1, 1, 0], &[], &[0, 1, 1])]
    #[case::cancelled_requests_are_skipped(&[3, 1, 2], &[1], &[2, 3])]
    fn permits_go_to_the_request_that_arrived_first(
        #[case] arrivals: &[u64],
        #[case] cancelled: &[u64],
        #[case] expected: &[u64],
    ) {
        let (permits, started_at) = (SearchPermits::new(1), Instant::now());
        let mut current_permit = permits.acquire(started_at).now_or_never();
        let mut waiting: Vec<_> = arrivals
            .iter()
            .map(|at| (*at, Box::pin(permits.acquire(started_at + Duration::from_secs(*at)))))
            .map(|(at, mut permit)| {
                assert!((&mut permit).now_or_never().is_none());
                (at, permit)
            })
            .collect();
        waiting.retain(|(at, _)| !cancelled.contains(at));
        let mut order = Vec::new();
        while current_permit.take().is_some() && !waiting.is_empty() {
            let next = waiting.iter_mut().position(|(_, permit)| {
                current_permit = permit.now_or_never();
                current_permit.is_some()
            });
            order.push(waiting.remove(next.unwrap()).0);
        }
        assert_eq!(order, expected);
        assert!(permits.acquire(started_at).now_or_never().is_some(), "a permit was lost");
    }
}
