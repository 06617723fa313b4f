//! Work queue: each key is handled by one worker at a time, is never lost and never queued twice; failures return with growing
//! delay. The size of a queue is bounded by the number of its keys.
//!
//! Keys of higher priority come first, keys of one priority in the order of their arrival. After an attempt without effect a key
//! returns after a while ([`Outcome::Later`]), or is parked until a change that it may depend on ([`Outcome::Parked`],
//! [`Queue::unpark`]).

mod metrics;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_component_base::retry::Backoff;
use crowsnest_component_base::spans::{SPANS, failed};
use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use self::metrics::Counts;
pub use self::metrics::{Measured, Pending, RESULTS};
use crate::Error;
use crate::metrics::Durations;

/// Result of a reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Reconcile again after a delay.
    Again(Duration),
    /// Without effect: reconcile again after one second, after twice as long each time in a row, at most after ten seconds.
    Later,
    /// In vain, and trying again is of no use before something else changes: look again when told so, no sooner than
    /// after [`Outcome::Later`], or after five minutes.
    Parked,
}

/// Delay after failures.
const FAILED: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(30));
/// Delay after attempts without effect.
const LATER: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
const PARKED: Duration = Duration::from_secs(300);

/// Higher goes first.
pub type Priority = i32;

/// A place in the queue: by priority, then by arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    behind: std::cmp::Reverse<Priority>,
    arrival: u64,
}

impl Turn {
    fn new(priority: Priority, arrival: u64) -> Self {
        Turn { behind: std::cmp::Reverse(priority), arrival }
    }

    fn priority(self) -> Priority {
        self.behind.0
    }
}

/// A key that becomes ready at a time.
#[derive(Debug, Clone, Copy)]
struct Delayed {
    at: (Instant, u64),
    priority: Priority,
}

/// A key that a worker reconciles.
#[derive(Debug)]
struct Running {
    priority: Priority,
    began: Instant,
    /// Enqueued again meanwhile, first at this time.
    again: Option<(Priority, Instant)>,
    /// Number of wakes of parked keys when it began.
    wakes: u64,
}

/// Keys and their times. Has no clock.
#[derive(Debug)]
struct State<K> {
    /// With the time since when the key is ready.
    ready: BTreeMap<Turn, (K, Instant)>,
    turns: HashMap<K, Turn>,
    running: HashMap<K, Running>,
    times: BTreeMap<(Instant, u64), K>,
    delayed: HashMap<K, Delayed>,
    /// Delayed keys that were tried in vain, since when, and that nothing has woken yet.
    parked: HashMap<K, Instant>,
    /// Number of attempts without effect in a row.
    attempts: HashMap<K, u32>,
    /// Numbers arrivals and delays.
    sequence: u64,
    wakes: u64,
    closed: bool,
    /// Number of workers.
    workers: usize,
    counts: Counts,
}

impl<K: Hash + Eq + Clone> State<K> {
    fn new() -> Self {
        State {
            ready: BTreeMap::new(),
            turns: HashMap::new(),
            running: HashMap::new(),
            times: BTreeMap::new(),
            delayed: HashMap::new(),
            parked: HashMap::new(),
            attempts: HashMap::new(),
            sequence: 0,
            wakes: 0,
            closed: false,
            workers: 0,
            counts: Counts::new(),
        }
    }

    /// Drops all keys, now and from now on.
    fn close(&mut self) {
        *self = State { closed: true, ..State::new() };
    }

    fn next_number(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Whether there is more to do now. A key that waits keeps its turn among its new equals, and the priority it has
    /// where none is given.
    fn add(&mut self, key: K, priority: Option<Priority>, now: Instant) -> bool {
        if self.closed {
            return false;
        }
        if let Some(running) = self.running.get_mut(&key) {
            self.counts.adds += u64::from(running.again.is_none());
            let (known, since) = running.again.unwrap_or((running.priority, now));
            running.again = Some((priority.unwrap_or(known), since));
            return false;
        }
        let is_new = self.put_in_turn(key, priority, now);
        self.counts.adds += u64::from(is_new);
        is_new
    }

    /// Whether the key was not ready before.
    fn put_in_turn(&mut self, key: K, priority: Option<Priority>, since: Instant) -> bool {
        let parked = self.parked.remove(&key).and_then(|_| self.undelay(&key));
        match self.turns.get(&key).copied() {
            Some(turn) => {
                if let Some(priority) = priority.filter(|priority| *priority != turn.priority()) {
                    let since = self.ready.remove(&turn).map_or(since, |(_, since)| since);
                    self.put(key, Turn::new(priority, turn.arrival), since);
                }
                false
            }
            None => {
                let arrival = self.next_number();
                self.put(key, Turn::new(priority.or(parked).unwrap_or_default(), arrival), since);
                true
            }
        }
    }

    fn put(&mut self, key: K, turn: Turn, since: Instant) {
        self.turns.insert(key.clone(), turn);
        self.ready.insert(turn, (key, since));
    }

    /// The earlier of two delays counts.
    fn delay(&mut self, key: K, at: Instant, priority: Option<Priority>) {
        if self.closed {
            return;
        }
        if self.delayed.get(&key).is_some_and(|known| known.at.0 <= at) {
            return;
        }
        let known = self.undelay(&key);
        let at = (at, self.next_number());
        let priority = priority.or(known).unwrap_or_default();
        self.times.insert(at, key.clone());
        self.delayed.insert(key, Delayed { at, priority });
    }

    /// The priority it would have had.
    fn undelay(&mut self, key: &K) -> Option<Priority> {
        let delayed = self.delayed.remove(key)?;
        self.times.remove(&delayed.at);
        Some(delayed.priority)
    }

    /// Something changed that parked keys may depend on: they are looked at as soon as they may be. Each is woken once,
    /// so that many changes in a row cost no more than the first.
    fn unpark(&mut self) {
        self.wakes += 1;
        for (key, since) in std::mem::take(&mut self.parked) {
            let at = since + self.backoff(&key, LATER);
            self.delay(key, at, None);
        }
    }

    fn backoff(&self, key: &K, backoff: Backoff) -> Duration {
        backoff.delay(self.attempts.get(key).copied().unwrap_or_default())
    }

    /// The next key for a worker, or when to look again.
    fn next(&mut self, now: Instant) -> Result<K, Option<Instant>> {
        while let Some(entry) = self.times.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.parked.remove(&key);
            let priority = self.delayed.remove(&key).map(|delayed| delayed.priority);
            // A key that is already ready may have another priority by now.
            let known = self.turns.contains_key(&key) || self.running.contains_key(&key);
            self.add(key, priority.filter(|_| !known), now);
        }
        let Some((turn, (key, since))) = self.ready.pop_first() else {
            return Err(self.times.first_key_value().map(|((at, _), _)| *at));
        };
        self.turns.remove(&key);
        self.counts.waited(now.saturating_duration_since(since));
        let running = Running { priority: turn.priority(), began: now, again: None, wakes: self.wakes };
        self.running.insert(key.clone(), running);
        Ok(key)
    }

    /// A worker is done with a key; how often it was tried in vain.
    fn finish(&mut self, key: K, outcome: Result<Outcome, ()>, now: Instant) -> u32 {
        let running = self.running.remove(&key);
        let priority = running.as_ref().map(|running| running.priority);
        if let Some(running) = &running {
            self.counts.ended(outcome, now.saturating_duration_since(running.began));
        }
        let attempts = match outcome {
            Ok(Outcome::Done | Outcome::Again(_)) => {
                self.attempts.remove(&key);
                0
            }
            Ok(Outcome::Later | Outcome::Parked) | Err(()) => {
                let attempts = self.attempts.entry(key.clone()).or_default();
                *attempts = attempts.saturating_add(1);
                *attempts
            }
        };
        let woken = running.as_ref().is_some_and(|running| running.wakes != self.wakes);
        match outcome {
            Ok(Outcome::Done) => {}
            Ok(Outcome::Again(delay)) => self.delay(key.clone(), now + delay, priority),
            // The wake came while this key was reconciled and must not be lost.
            Ok(Outcome::Parked) if !woken => {
                self.parked.insert(key.clone(), now);
                self.delay(key.clone(), now + PARKED, priority);
            }
            Ok(Outcome::Later | Outcome::Parked) => {
                self.delay(key.clone(), now + self.backoff(&key, LATER), priority);
            }
            Err(()) => self.delay(key.clone(), now + self.backoff(&key, FAILED), priority),
        }
        if let Some((priority, since)) = running.and_then(|running| running.again)
            && !self.closed
        {
            self.put_in_turn(key, Some(priority), since);
        }
        attempts
    }

    fn measured(&self, now: Instant) -> Measured {
        let running = self.running.values().map(|running| now.saturating_duration_since(running.began));
        Measured {
            depth: self.ready.len(),
            active: self.running.len(),
            workers: self.workers,
            unfinished: running.clone().sum(),
            longest: running.max().unwrap_or_default(),
            counts: self.counts.clone(),
        }
    }

    /// Numbers of waiting keys by reason.
    fn pending(&self) -> Pending {
        let waits = |key: &&K| self.delayed.contains_key(*key) && !self.parked.contains_key(*key);
        let backoff = self.attempts.keys().filter(waits).count();
        Pending { active: self.ready.len(), backoff, unschedulable: self.parked.len() }
    }
}

/// A queue of keys. Cheap to clone; all clones are the same queue.
pub struct Queue<K> {
    name: &'static str,
    state: Arc<Mutex<State<K>>>,
    wake: Arc<Notify>,
    /// Counts the keys that were handled.
    finished: watch::Sender<u64>,
    /// Histogram of durations.
    timed: Option<Durations>,
}

/// A queue, independent of its key type.
pub trait Busy {
    fn name(&self) -> &'static str;

    /// Closes the queue: it keeps no keys.
    fn close(&self);

    /// Whether no key is ready or being reconciled.
    fn is_idle(&self) -> bool;

    /// Changes whenever a key was handled.
    fn finished(&self) -> watch::Receiver<u64>;

    /// Metrics; `None` of a closed queue.
    fn measured(&self) -> Option<Measured>;

    /// A handle of this queue.
    fn shared(&self) -> Box<dyn Busy + Send + Sync>;
}

impl<K: Hash + Eq + Clone + Send + 'static> Busy for Queue<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn close(&self) {
        self.state.lock().close();
    }

    fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.ready.is_empty() && state.running.is_empty()
    }

    fn finished(&self) -> watch::Receiver<u64> {
        self.finished.subscribe()
    }

    fn measured(&self) -> Option<Measured> {
        let state = self.state.lock();
        (!state.closed).then(|| state.measured(Instant::now()))
    }

    fn shared(&self) -> Box<dyn Busy + Send + Sync> {
        Box::new(self.clone())
    }
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Queue {
            name: self.name,
            state: Arc::clone(&self.state),
            wake: Arc::clone(&self.wake),
            finished: self.finished.clone(),
            timed: self.timed.clone(),
        }
    }
}

impl<K: Hash + Eq + Clone + Debug + Send + 'static> Queue<K> {
    pub fn new(name: &'static str) -> Self {
        Queue {
            name,
            state: Arc::new(Mutex::new(State::new())),
            wake: Arc::new(Notify::new()),
            finished: watch::Sender::new(0),
            timed: None,
        }
    }

    /// Records the duration of each reconcile.
    pub fn timed(self, durations: Durations) -> Self {
        Queue { timed: Some(durations), ..self }
    }

    /// Calls `see` with each key that is ready or being reconciled.
    pub fn each_due(&self, see: impl FnMut(&K)) {
        let state = self.state.lock();
        state.turns.keys().chain(state.running.keys()).for_each(see);
    }

    /// Numbers of waiting keys by reason; `None` of a closed queue.
    pub fn pending(&self) -> Option<Pending> {
        let state = self.state.lock();
        (!state.closed).then(|| state.pending())
    }

    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Enqueues `key`. While it is being reconciled, it is reconciled once more afterwards.
    pub fn add(&self, key: K) {
        self.add_as(key, None);
    }

    /// Enqueues `key` with the priority that it has from now on.
    pub fn add_first(&self, key: K, priority: Priority) {
        self.add_as(key, Some(priority));
    }

    fn add_as(&self, key: K, priority: Option<Priority>) {
        let now = Instant::now();
        if self.state.lock().add(key, priority, now) {
            self.wake.notify_one();
        }
    }

    /// Enqueues `key` after a delay; the earlier of two delays counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        let now = Instant::now();
        {
            let mut state = self.state.lock();
            state.counts.retries += 1;
            state.delay(key, now + delay, None);
        }
        self.wake.notify_one();
    }

    /// Something changed that parked keys may depend on.
    pub fn unpark(&self) {
        self.state.lock().unpark();
        self.wake.notify_one();
    }

    fn next(&self) -> Result<K, Option<Instant>> {
        self.state.lock().next(Instant::now())
    }

    /// Span of one reconcile.
    fn span(&self, key: &K) -> Span {
        tracing::info_span!(
            target: SPANS,
            "reconcile",
            otel.name = %format_args!("reconcile {}", self.name),
            otel.status_code = Empty,
            crowsnest.controller = self.name,
            crowsnest.key = ?key,
            crowsnest.outcome = Empty,
            error.type = Empty,
        )
    }

    fn finish(&self, key: K, result: Result<Outcome, Error>) {
        let outcome = result.as_ref().map(|outcome| *outcome).map_err(|_| ());
        let failures = self.state.lock().finish(key.clone(), outcome, Instant::now());
        if let Err(error) = result {
            if error.is_waiting() || error.is_conflict() {
                tracing::debug!(queue = self.name, ?key, %error, "try again");
            } else {
                tracing::warn!(queue = self.name, ?key, %error, failures, "reconcile failed");
            }
        }
        self.finished.send_modify(|finished| *finished += 1);
        self.wake.notify_one();
    }

    /// Handles keys with up to `workers` at once until `stop`; running ones are finished first. A panic is a failure of its key,
    /// which is tried again later: one object must not end the work on all others.
    pub async fn run<F, R>(self, workers: usize, stop: CancellationToken, reconcile: F) -> Result<(), String>
    where
        F: Fn(K) -> R,
        R: Future<Output = Result<Outcome, Error>> + Send + 'static,
    {
        let mut running: JoinSet<(K, Result<Outcome, Error>)> = JoinSet::new();
        self.state.lock().workers = workers;
        loop {
            let mut look_again = None;
            while running.len() < workers && !stop.is_cancelled() {
                match self.next() {
                    Ok(key) => {
                        let (work, timed) = (reconcile(key.clone()), self.timed.clone());
                        let span = self.span(&key);
                        running.spawn(async move {
                            let began = Instant::now();
                            let result = AssertUnwindSafe(work.instrument(span.clone())).catch_unwind().await;
                            let result = result.unwrap_or_else(|panic| Err(panicked(panic.as_ref())));
                            note(&span, &result);
                            if let Some(timed) = timed {
                                timed.note(began.elapsed(), result.is_ok());
                            }
                            (key, result)
                        });
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

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let message = panic.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    tracing::error!(message, "a worker panicked");
    Error::Panicked(message.to_owned())
}

/// Records the result without the error text, which may contain parts of an object.
fn note(span: &Span, result: &Result<Outcome, Error>) {
    match result {
        Ok(outcome) => {
            span.record("crowsnest.outcome", tracing::field::debug(outcome));
        }
        Err(error) if error.is_conflict() => failed(span, "conflict"),
        Err(error) if error.is_waiting() => failed(span, "waiting"),
        Err(_) => failed(span, "failed"),
    }
}

async fn sleep_until(at: Option<Instant>) {
    if let Some(at) = at {
        tokio::time::sleep_until(at).await;
    }
}
