//! Keys of a queue with their order and delays. The caller passes the current time.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;

use crowsnest_component_base::retry::Backoff;
use tokio::time::Instant;

use super::metrics::{Counts, Measured, Pending};
use super::{Outcome, Priority};

/// Backoff after failures.
const FAILED: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(30));
/// Number of consecutive failures after which a key no longer counts as about to succeed.
const FIRST_FAILURES: u32 = 5;
/// Backoff after attempts without effect.
const LATER: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
pub(super) const PARKED: Duration = Duration::from_secs(300);

/// Position in the queue: by priority, then by arrival.
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
    /// True if a change requested it or it failed recently. Otherwise it is only a periodic requeue.
    is_requested: bool,
}

/// A key that is being reconciled.
#[derive(Debug)]
struct Running {
    priority: Priority,
    began: Instant,
    /// Set if it was enqueued again meanwhile: its priority, and the time of the first request.
    again: Option<(Priority, Instant)>,
    /// Value of `wakes` when it began.
    wakes: u64,
}

/// State of a queue.
#[derive(Debug)]
pub(super) struct State<K> {
    /// Ready keys, with the time since when they are ready.
    ready: BTreeMap<Turn, (K, Instant)>,
    queued: HashMap<K, Turn>,
    running: HashMap<K, Running>,
    times: BTreeMap<(Instant, u64), K>,
    delayed: HashMap<K, Delayed>,
    /// Delayed keys that are parked, with the time since when, and have not been woken.
    parked: HashMap<K, Instant>,
    /// Number of consecutive attempts without effect.
    attempts: HashMap<K, u32>,
    /// Source of sequence numbers for arrivals and delays.
    sequence: u64,
    wakes: u64,
    pub(super) closed: bool,
    /// Number of workers.
    pub(super) workers: usize,
    pub(super) counts: Counts,
}

impl<K: Hash + Eq + Clone> State<K> {
    pub(super) fn new() -> Self {
        State {
            ready: BTreeMap::new(),
            queued: HashMap::new(),
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

    /// Discards all keys, now and in the future.
    pub(super) fn close(&mut self) {
        *self = State { closed: true, ..State::new() };
    }

    /// True if no key is ready, being reconciled or due soon after a change or a first failure.
    pub(super) fn is_idle(&self) -> bool {
        self.ready.is_empty() && self.running.is_empty() && !self.delayed.values().any(|delayed| delayed.is_requested)
    }

    /// Keys that are ready or being reconciled.
    pub(super) fn due(&self) -> impl Iterator<Item = &K> {
        self.queued.keys().chain(self.running.keys())
    }

    fn next_number(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Enqueues a key. Returns true if a worker has more to do. A key that is already queued keeps its arrival among
    /// keys of the same priority, and keeps its priority if none is given.
    pub(super) fn add(&mut self, key: K, priority: Option<Priority>, now: Instant) -> bool {
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

    /// Returns true if the key was not ready before.
    fn put_in_turn(&mut self, key: K, priority: Option<Priority>, since: Instant) -> bool {
        let parked = self.parked.remove(&key).and_then(|_| self.undelay(&key));
        match self.queued.get(&key).copied() {
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
        self.queued.insert(key.clone(), turn);
        self.ready.insert(turn, (key, since));
    }

    /// Delays a key. Of two delays, the earlier takes effect.
    pub(super) fn delay(&mut self, key: K, at: Instant, priority: Option<Priority>, is_requested: bool) {
        if self.closed {
            return;
        }
        let mut is_requested = is_requested;
        if let Some(known) = self.delayed.get_mut(&key) {
            known.is_requested |= is_requested;
            is_requested = known.is_requested;
            if known.at.0 <= at {
                return;
            }
        }
        let known = self.undelay(&key);
        let at = (at, self.next_number());
        let priority = priority.or(known).unwrap_or_default();
        self.times.insert(at, key.clone());
        self.delayed.insert(key, Delayed { at, priority, is_requested });
    }

    /// Cancels a delay. Returns the key's priority.
    fn undelay(&mut self, key: &K) -> Option<Priority> {
        let delayed = self.delayed.remove(key)?;
        self.times.remove(&delayed.at);
        Some(delayed.priority)
    }

    /// Schedules the parked keys after a change that they may depend on. Each is woken once for any number of
    /// consecutive changes.
    pub(super) fn unpark(&mut self) {
        self.wakes += 1;
        for (key, since) in std::mem::take(&mut self.parked) {
            let at = since + self.backoff(&key, LATER);
            self.delay(key, at, None, false);
        }
    }

    fn backoff(&self, key: &K, backoff: Backoff) -> Duration {
        backoff.delay(self.attempts.get(key).copied().unwrap_or_default())
    }

    /// The next key for a worker, or the time of the next delayed key.
    pub(super) fn next(&mut self, now: Instant) -> Result<K, Option<Instant>> {
        while let Some(entry) = self.times.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.parked.remove(&key);
            let priority = self.delayed.remove(&key).map(|delayed| delayed.priority);
            // A key that is already queued keeps its current priority.
            let known = self.queued.contains_key(&key) || self.running.contains_key(&key);
            self.add(key, priority.filter(|_| !known), now);
        }
        let Some((turn, (key, since))) = self.ready.pop_first() else {
            return Err(self.times.first_key_value().map(|((at, _), _)| *at));
        };
        self.queued.remove(&key);
        self.counts.waited(now.saturating_duration_since(since));
        let running = Running { priority: turn.priority(), began: now, again: None, wakes: self.wakes };
        self.running.insert(key.clone(), running);
        Ok(key)
    }

    /// Records the result of a reconcile. Returns the number of consecutive attempts without effect.
    pub(super) fn finish(&mut self, key: K, outcome: Result<Outcome, ()>, now: Instant) -> u32 {
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
            Ok(Outcome::Again(delay)) => self.delay(key.clone(), now + delay, priority, false),
            // Unparked while it was being reconciled: requeue it, so that the change is not missed.
            Ok(Outcome::Parked) if !woken => {
                self.parked.insert(key.clone(), now);
                self.delay(key.clone(), now + PARKED, priority, false);
            }
            Ok(Outcome::Later | Outcome::Parked) => {
                self.delay(key.clone(), now + self.backoff(&key, LATER), priority, false);
            }
            Err(()) => {
                let at = now + self.backoff(&key, FAILED);
                self.delay(key.clone(), at, priority, attempts <= FIRST_FAILURES);
            }
        }
        if let Some((priority, since)) = running.and_then(|running| running.again)
            && !self.closed
        {
            self.put_in_turn(key, Some(priority), since);
        }
        attempts
    }

    pub(super) fn measured(&self, now: Instant) -> Measured {
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
    pub(super) fn pending(&self) -> Pending {
        let waits = |key: &&K| self.delayed.contains_key(*key) && !self.parked.contains_key(*key);
        let backoff = self.attempts.keys().filter(waits).count();
        Pending { active: self.ready.len(), backoff, unschedulable: self.parked.len() }
    }
}
