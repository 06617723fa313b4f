//! Work queues: each key is handled by one worker at a time, is never lost and never queued twice; failures come back
//! with growing delay. The size of a queue is bounded by the number of its keys.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Error;

/// How a reconcile ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Look again later even if nothing changes.
    Again(Duration),
}

const FIRST_DELAY: Duration = Duration::from_millis(10);
const LONGEST_DELAY: Duration = Duration::from_secs(30);

struct State<K> {
    ready: VecDeque<K>,
    queued: HashSet<K>,
    running: HashSet<K>,
    delayed: BTreeMap<(Instant, u64), K>,
    delayed_at: HashMap<K, (Instant, u64)>,
    failures: HashMap<K, u32>,
    sequence: u64,
    closed: bool,
}

/// A queue of keys. Cheap to clone; all clones are the same queue.
pub struct Queue<K> {
    name: &'static str,
    state: Arc<Mutex<State<K>>>,
    wake: Arc<Notify>,
    /// Counts the keys that were handled.
    finished: watch::Sender<u64>,
}

/// Any queue, to wait for, to count and to switch off.
pub trait Busy {
    fn name(&self) -> &'static str;

    /// Nobody will work on it: keys are not kept.
    fn close(&self);

    /// Whether there is nothing to do right now.
    fn is_idle(&self) -> bool;

    /// Changes whenever a key was handled.
    fn finished(&self) -> watch::Receiver<u64>;
}

impl<K> Busy for Queue<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.ready.clear();
        state.queued.clear();
        state.delayed.clear();
        state.delayed_at.clear();
    }

    fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.ready.is_empty() && state.running.is_empty()
    }

    fn finished(&self) -> watch::Receiver<u64> {
        self.finished.subscribe()
    }
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Queue {
            name: self.name,
            state: Arc::clone(&self.state),
            wake: Arc::clone(&self.wake),
            finished: self.finished.clone(),
        }
    }
}

impl<K: Hash + Eq + Clone + Debug + Send + 'static> Queue<K> {
    pub fn new(name: &'static str) -> Self {
        let state = State {
            ready: VecDeque::new(),
            queued: HashSet::new(),
            running: HashSet::new(),
            delayed: BTreeMap::new(),
            delayed_at: HashMap::new(),
            failures: HashMap::new(),
            sequence: 0,
            closed: false,
        };
        Queue {
            name,
            state: Arc::new(Mutex::new(state)),
            wake: Arc::new(Notify::new()),
            finished: watch::Sender::new(0),
        }
    }

    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Asks for `key` to be looked at. While a worker has it, it is looked at once more afterwards.
    pub fn add(&self, key: K) {
        let mut state = self.state.lock();
        if !state.closed && state.queued.insert(key.clone()) {
            state.ready.push_back(key);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Asks for `key` to be looked at after a while; the earlier of two such wishes counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        let at = Instant::now() + delay;
        match state.delayed_at.get(&key).copied() {
            Some((earlier, _)) if earlier <= at => return,
            Some(later) => {
                state.delayed.remove(&later);
            }
            None => {}
        }
        state.sequence += 1;
        let slot = (at, state.sequence);
        state.delayed.insert(slot, key.clone());
        state.delayed_at.insert(key, slot);
        drop(state);
        self.wake.notify_one();
    }

    /// The next key no worker has, or when to look again.
    fn next(&self) -> Result<K, Option<Instant>> {
        let mut state = self.state.lock();
        let now = Instant::now();
        while let Some(entry) = state.delayed.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            state.delayed_at.remove(&key);
            if state.queued.insert(key.clone()) {
                state.ready.push_back(key);
            }
        }
        for _ in 0..state.ready.len() {
            let Some(key) = state.ready.pop_front() else { break };
            if state.running.contains(&key) {
                state.ready.push_back(key);
                continue;
            }
            state.queued.remove(&key);
            state.running.insert(key.clone());
            return Ok(key);
        }
        Err(state.delayed.first_key_value().map(|((at, _), _)| *at))
    }

    fn finish(&self, key: K, result: Result<Outcome, Error>) {
        self.state.lock().running.remove(&key);
        match result {
            Ok(outcome) => {
                self.state.lock().failures.remove(&key);
                if let Outcome::Again(delay) = outcome {
                    self.add_after(key, delay);
                }
            }
            Err(error) => {
                let failures = {
                    let mut state = self.state.lock();
                    let failures = state.failures.entry(key.clone()).or_default();
                    *failures += 1;
                    *failures
                };
                let delay = FIRST_DELAY.saturating_mul(1 << failures.min(16)).min(LONGEST_DELAY);
                if error.is_waiting() || error.is_conflict() {
                    tracing::debug!(queue = self.name, ?key, %error, "try again");
                } else {
                    tracing::warn!(queue = self.name, ?key, %error, failures, "reconcile failed");
                }
                self.add_after(key, delay);
            }
        }
        self.finished.send_modify(|finished| *finished += 1);
        self.wake.notify_one();
    }

    /// Handles keys with up to `workers` at once until `stop`; running ones are finished first. A worker that panics
    /// ends the loop with an error, because its key would be lost.
    pub async fn run<F, R>(self, workers: usize, stop: CancellationToken, reconcile: F) -> Result<(), String>
    where
        F: Fn(K) -> R,
        R: Future<Output = Result<Outcome, Error>> + Send + 'static,
    {
        let mut running: JoinSet<(K, Result<Outcome, Error>)> = JoinSet::new();
        loop {
            let mut look_again = None;
            while running.len() < workers && !stop.is_cancelled() {
                match self.next() {
                    Ok(key) => {
                        let work = reconcile(key.clone());
                        running.spawn(async move { (key, work.await) });
                    }
                    Err(at) => {
                        look_again = at;
                        break;
                    }
                }
            }
            if stop.is_cancelled() && running.is_empty() {
                return Ok(());
            }
            tokio::select! {
                Some(joined) = running.join_next(), if !running.is_empty() => match joined {
                    Ok((key, result)) => self.finish(key, result),
                    Err(error) => return Err(format!("a worker of {} died: {error}", self.name)),
                },
                () = self.wake.notified() => {}
                () = sleep_until(look_again), if look_again.is_some() => {}
                () = stop.cancelled(), if !stop.is_cancelled() => {}
            }
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    if let Some(at) = at {
        tokio::time::sleep_until(at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_closed_queue_keeps_nothing() {
        let queue: Queue<u8> = Queue::new("test");
        queue.add(1);
        queue.close();
        queue.add(2);
        queue.add_after(3, Duration::ZERO);
        assert!(queue.is_closed() && queue.is_idle());
        assert_eq!(queue.next(), Err(None));
    }

    #[tokio::test]
    async fn a_key_added_while_running_runs_once_more_and_failures_come_back() {
        let queue: Queue<u8> = Queue::new("test");
        let stop = CancellationToken::new();
        let runs = Arc::new(AtomicUsize::new(0));
        queue.add(1);
        let (again, counter, end) = (queue.clone(), Arc::clone(&runs), stop.clone());
        let reconcile = move |key: u8| {
            let (again, counter, end) = (again.clone(), Arc::clone(&counter), end.clone());
            async move {
                match counter.fetch_add(1, Ordering::SeqCst) {
                    0 => {
                        again.add(key);
                        again.add(key);
                        Ok(Outcome::Done)
                    }
                    1 => Err(Error::Waiting("not yet".to_owned())),
                    _ => {
                        end.cancel();
                        Ok(Outcome::Done)
                    }
                }
            }
        };
        queue.run(4, stop, reconcile).await.expect("no worker dies");
        assert_eq!(runs.load(Ordering::SeqCst), 3);
    }
}
