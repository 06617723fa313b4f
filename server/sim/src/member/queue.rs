//! Work queue of a controller: a key is queued at most once and never processed concurrently; with delays and backoff
//! per key.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_component_base::retry::Backoff;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::Result;

/// Backoff of failed keys.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(30));

struct State<K> {
    ready: VecDeque<K>,
    /// Keys in `ready`, and keys that were added while they were being processed.
    dirty: HashSet<K>,
    processing: HashSet<K>,
    /// Times and tickets of delayed keys. A ticket that is not in `tickets` is obsolete.
    delayed: BinaryHeap<Reverse<(Instant, u64)>>,
    /// Delayed keys by ticket.
    tickets: HashMap<u64, K>,
    /// Earliest time and ticket of each delayed key.
    due: HashMap<K, (Instant, u64)>,
    next_ticket: u64,
    failures: HashMap<K, u32>,
}

/// A controller's work queue.
pub struct Queue<K> {
    state: Mutex<State<K>>,
    wake: Notify,
}

impl<K: Clone + Eq + Hash> Default for Queue<K> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                ready: VecDeque::new(),
                dirty: HashSet::new(),
                processing: HashSet::new(),
                delayed: BinaryHeap::new(),
                tickets: HashMap::new(),
                due: HashMap::new(),
                next_ticket: 0,
                failures: HashMap::new(),
            }),
            wake: Notify::new(),
        }
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// Adds a key.
    pub fn add(&self, key: K) {
        let mut state = self.state.lock();
        state.push(key);
        drop(state);
        self.wake.notify_one();
    }

    /// Adds a key after a delay. If a delayed key is added again, the earlier time counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let at = Instant::now() + delay;
        let mut state = self.state.lock();
        if state.due.get(&key).is_some_and(|(due, _)| *due <= at) {
            return;
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        if let Some((_, old)) = state.due.insert(key.clone(), (at, ticket)) {
            state.tickets.remove(&old);
        }
        state.tickets.insert(ticket, key);
        state.delayed.push(Reverse((at, ticket)));
        drop(state);
        self.wake.notify_one();
    }

    /// Drops the delay and failures of a key whose object was deleted.
    pub fn forget(&self, key: &K) {
        let mut state = self.state.lock();
        state.failures.remove(key);
        if let Some((_, ticket)) = state.due.remove(key) {
            state.tickets.remove(&ticket);
        }
    }

    /// Takes the next key. [`Queue::mark_done`] must be called afterwards.
    async fn next(&self) -> K {
        loop {
            let next_due = {
                let mut state = self.state.lock();
                let next_due = state.promote_due(Instant::now());
                if let Some(key) = state.ready.pop_front() {
                    state.dirty.remove(&key);
                    state.processing.insert(key.clone());
                    return key;
                }
                next_due
            };
            match next_due {
                Some(at) => tokio::select! {
                    () = self.wake.notified() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                None => self.wake.notified().await,
            }
        }
    }

    fn mark_done(&self, key: &K) {
        let mut state = self.state.lock();
        state.processing.remove(key);
        if state.dirty.contains(key) {
            state.ready.push_back(key.clone());
            drop(state);
            self.wake.notify_one();
        }
    }

    fn reset_failures(&self, key: &K) {
        self.state.lock().failures.remove(key);
    }

    /// Counts a failure of a key and returns the delay before the next attempt.
    fn record_failure(&self, key: &K) -> Duration {
        let mut state = self.state.lock();
        let failures = state.failures.entry(key.clone()).or_default();
        *failures += 1;
        RETRY_BACKOFF.delay(*failures)
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn push(&mut self, key: K) {
        if self.dirty.insert(key.clone()) && !self.processing.contains(&key) {
            self.ready.push_back(key);
        }
    }

    /// Moves keys that are due to the ready list; returns the time of the next one.
    fn promote_due(&mut self, now: Instant) -> Option<Instant> {
        while let Some(Reverse((at, ticket))) = self.delayed.peek().copied() {
            if !self.tickets.contains_key(&ticket) {
                self.delayed.pop();
                continue;
            }
            if at > now {
                return Some(at);
            }
            self.delayed.pop();
            if let Some(key) = self.tickets.remove(&ticket) {
                self.due.remove(&key);
                self.push(key);
            }
        }
        None
    }
}

/// Processes the queue's keys, at most `max_concurrent` at a time, until cancelled. `work` returns the delay after
/// which the key is processed again, or `None`. Failed keys are retried with increasing delay.
pub async fn run<K, F, W>(
    name: &'static str,
    queue: Arc<Queue<K>>,
    max_concurrent: usize,
    stop: CancellationToken,
    work: W,
) where
    K: Clone + Eq + Hash + std::fmt::Debug,
    F: Future<Output = Result<Option<Duration>>>,
    W: Fn(K) -> F,
{
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Some((key, outcome)) = running.next(), if !running.is_empty() => {
                finish(name, &queue, key, outcome);
            }
            key = queue.next(), if running.len() < max_concurrent => {
                let future = work(key.clone());
                running.push(async move { (key, future.await) });
            }
        }
    }
}

fn finish<K>(name: &'static str, queue: &Queue<K>, key: K, outcome: Result<Option<Duration>>)
where
    K: Clone + Eq + Hash + std::fmt::Debug,
{
    match outcome {
        Ok(delay) => {
            queue.reset_failures(&key);
            if let Some(delay) = delay {
                queue.add_after(key.clone(), delay);
            }
        }
        Err(error) => {
            let delay = queue.record_failure(&key);
            if error.is_conflict() || error.is_not_found() {
                tracing::debug!(controller = name, ?key, %error, "a reconciliation conflicted; retrying");
            } else {
                tracing::warn!(controller = name, ?key, %error, retry = ?delay, "a reconciliation failed; retrying");
            }
            queue.add_after(key.clone(), delay);
        }
    }
    queue.mark_done(&key);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_earliest_delay_counts_and_keys_added_during_processing_are_requeued() {
        let queue = Queue::default();
        queue.add_after("late", Duration::from_secs(100));
        queue.add_after("late", Duration::from_millis(5));
        queue.add_after("late", Duration::from_secs(600));
        queue.add("now");
        queue.add("now");
        assert_eq!(queue.next().await, "now");
        queue.add("now");
        assert_eq!(queue.next().await, "late");
        queue.mark_done(&"now");
        assert_eq!(queue.next().await, "now");
        assert!(queue.state.lock().tickets.is_empty());
    }
}
