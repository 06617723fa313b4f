//! Keys of a queue with their order and delays. The caller passes the current time.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::time::Duration;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::retry::Backoff;
use tokio::time::Instant;

use super::metrics::{Pending, QueueCounters, QueueMetrics};
use super::{Outcome, Priority};

/// Backoff after failures.
const FAILURE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(30));
/// Number of consecutive failures up to which a key in backoff keeps the queue from being idle.
const FIRST_FAILURES: u32 = 5;
/// Backoff after attempts without effect.
const REQUEUE_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
/// Time after which a key that awaits a change is reconciled even if nothing changed.
pub(super) const MAX_CHANGE_WAIT: Duration = Duration::from_secs(300);

/// Order of a ready key: by descending priority, then by arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct QueueOrder {
    priority: std::cmp::Reverse<Priority>,
    arrival: u64,
}

impl QueueOrder {
    fn new(priority: Priority, arrival: u64) -> Self {
        QueueOrder { priority: std::cmp::Reverse(priority), arrival }
    }

    fn priority(self) -> Priority {
        self.priority.0
    }
}

/// A key that becomes ready at a time.
#[derive(Debug, Clone, Copy)]
struct DelayedKey {
    at: (Instant, u64),
    priority: Priority,
    /// True if a change requested it or it failed recently; false for a periodic requeue.
    is_requested: bool,
}

/// A key that is being reconciled.
#[derive(Debug)]
struct RunningKey {
    group: Option<ClusterName>,
    priority: Priority,
    started_at: Instant,
    /// Priority and time of the first request to reconcile it again, if it was enqueued meanwhile.
    requested: Option<(Priority, Instant)>,
    /// Value of [`State::changes`] when its reconcile began.
    changes: u64,
}

/// Returns the group of a key: the member whose responses its reconcile waits for, if any.
pub(super) type GroupOf<K> = fn(&K) -> Option<ClusterName>;

/// State of a queue.
#[derive(Debug)]
pub(super) struct State<K> {
    /// Ready keys of each group in order, with the time at which they became ready. No map is empty.
    ready: HashMap<Option<ClusterName>, BTreeMap<QueueOrder, (K, Instant)>>,
    /// Order of each ready key.
    queued: HashMap<K, QueueOrder>,
    running: HashMap<K, RunningKey>,
    /// Number of running keys of each group that has any.
    running_by_group: HashMap<ClusterName, usize>,
    /// Groups with a reconcile that timed out since their last successful one. They share the workers of one group.
    unresponsive: HashSet<ClusterName>,
    pub(super) group_of: GroupOf<K>,
    /// Delayed keys by time. The sequence number distinguishes keys with the same time.
    by_time: BTreeMap<(Instant, u64), K>,
    delayed: HashMap<K, DelayedKey>,
    /// Delayed keys that await a change, with the time since which they do.
    awaiting: HashMap<K, Instant>,
    /// Number of consecutive attempts without effect.
    attempts: HashMap<K, u32>,
    /// Source of sequence numbers for arrivals and delays.
    sequence: u64,
    /// Number of calls of [`State::requeue_awaiting`].
    changes: u64,
    pub(super) closed: bool,
    /// Number of workers.
    pub(super) workers: usize,
    pub(super) counts: QueueCounters,
}

impl<K: Hash + Eq + Clone> State<K> {
    pub(super) fn new() -> Self {
        State {
            ready: HashMap::new(),
            queued: HashMap::new(),
            running: HashMap::new(),
            running_by_group: HashMap::new(),
            unresponsive: HashSet::new(),
            group_of: |_| None,
            by_time: BTreeMap::new(),
            delayed: HashMap::new(),
            awaiting: HashMap::new(),
            attempts: HashMap::new(),
            sequence: 0,
            changes: 0,
            closed: false,
            workers: 0,
            counts: QueueCounters::new(),
        }
    }

    /// Discards all keys, now and in the future.
    pub(super) fn close(&mut self) {
        *self = State { closed: true, ..State::new() };
    }

    /// True if no key is ready, being reconciled, delayed after a change, or in backoff after its first failures.
    pub(super) fn is_idle(&self) -> bool {
        self.queued.is_empty() && self.running.is_empty() && !self.delayed.values().any(|delayed| delayed.is_requested)
    }

    /// Keys that are ready or being reconciled.
    pub(super) fn ready_or_running(&self) -> impl Iterator<Item = &K> {
        self.queued.keys().chain(self.running.keys())
    }

    fn next_number(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Enqueues a key. Returns true if it became ready, so that a worker must be woken. A key that is
    /// already queued keeps its arrival among keys of the same priority, and keeps its priority if none is given.
    pub(super) fn add(&mut self, key: K, priority: Option<Priority>, now: Instant) -> bool {
        if self.closed {
            return false;
        }
        if let Some(running) = self.running.get_mut(&key) {
            self.counts.adds += u64::from(running.requested.is_none());
            let (requested_priority, since) = running.requested.unwrap_or((running.priority, now));
            running.requested = Some((priority.unwrap_or(requested_priority), since));
            return false;
        }
        let is_new = self.make_ready(key, priority, now);
        self.counts.adds += u64::from(is_new);
        is_new
    }

    /// Makes a key ready, or changes the priority of a ready key. Returns true if it was not ready before.
    fn make_ready(&mut self, key: K, priority: Option<Priority>, since: Instant) -> bool {
        let awaited_priority = self.awaiting.remove(&key).and_then(|_| self.cancel_delay(&key));
        match self.queued.get(&key).copied() {
            Some(order) => {
                if let Some(priority) = priority.filter(|priority| *priority != order.priority()) {
                    let since = self.take_ready((self.group_of)(&key), order).map_or(since, |(_, since)| since);
                    self.insert_ready(key, QueueOrder::new(priority, order.arrival), since);
                }
                false
            }
            None => {
                let arrival = self.next_number();
                self.insert_ready(
                    key,
                    QueueOrder::new(priority.or(awaited_priority).unwrap_or_default(), arrival),
                    since,
                );
                true
            }
        }
    }

    fn insert_ready(&mut self, key: K, order: QueueOrder, since: Instant) {
        self.queued.insert(key.clone(), order);
        self.ready.entry((self.group_of)(&key)).or_default().insert(order, (key, since));
    }

    /// Removes a key from the ready keys of its group.
    fn take_ready(&mut self, group: Option<ClusterName>, order: QueueOrder) -> Option<(K, Instant)> {
        let Entry::Occupied(mut keys) = self.ready.entry(group) else { return None };
        let taken = keys.get_mut().remove(&order);
        if keys.get().is_empty() {
            keys.remove();
        }
        taken
    }

    /// Number of running keys of a group.
    fn running_count(&self, group: &ClusterName) -> usize {
        self.running_by_group.get(group).copied().unwrap_or_default()
    }

    /// Group and order of the first ready key that may start. A group may start a key if it occupies fewer workers than
    /// are idle, like the dynamic threshold of shared-memory switches: a group alone occupies half of the workers,
    /// and a responsive group without a running key never waits while a worker is idle. All unresponsive groups
    /// together are limited like one. Keys without a group are not limited.
    fn first_startable(&self) -> Option<(Option<ClusterName>, QueueOrder)> {
        let idle = self.workers.saturating_sub(self.running.len());
        let unresponsive: usize = self.unresponsive.iter().map(|group| self.running_count(group)).sum();
        let may_start = |group: &ClusterName| match self.unresponsive.contains(group) {
            true => unresponsive < idle,
            false => self.running_count(group) < idle,
        };
        let startable = self.ready.iter().filter(|(group, _)| match group {
            Some(group) => may_start(group),
            None => true,
        });
        let first_keys = startable.filter_map(|(group, keys)| keys.first_key_value().map(|(order, _)| (group, *order)));
        first_keys.min_by_key(|(_, order)| *order).map(|(group, order)| (group.clone(), order))
    }

    /// Records whether a member responded to the requests of a key's reconcile. A successful reconcile without requests
    /// counts as a response: if the member is still unresponsive, the next timeout limits its group again.
    pub(super) fn record_response(&mut self, key: &K, responded: bool) {
        let Some(group) = (self.group_of)(key) else { return };
        match responded {
            true => self.unresponsive.remove(&group),
            false => self.unresponsive.insert(group),
        };
    }

    /// Enqueues a key at `at`. Of two delays, the earlier takes effect.
    pub(super) fn delay(&mut self, key: K, at: Instant, priority: Option<Priority>, is_requested: bool) {
        if self.closed {
            return;
        }
        let mut is_requested = is_requested;
        if let Some(delayed) = self.delayed.get_mut(&key) {
            delayed.is_requested |= is_requested;
            is_requested = delayed.is_requested;
            if delayed.at.0 <= at {
                return;
            }
        }
        let earlier_priority = self.cancel_delay(&key);
        let at = (at, self.next_number());
        let priority = priority.or(earlier_priority).unwrap_or_default();
        self.by_time.insert(at, key.clone());
        self.delayed.insert(key, DelayedKey { at, priority, is_requested });
    }

    /// Cancels the delay of a key. Returns the priority that it was delayed with.
    fn cancel_delay(&mut self, key: &K) -> Option<Priority> {
        let delayed = self.delayed.remove(key)?;
        self.by_time.remove(&delayed.at);
        Some(delayed.priority)
    }

    /// Schedules the keys that await a change, after one that they may depend on. Each becomes due once its backoff has
    /// passed; further changes until then have no effect on it.
    pub(super) fn requeue_awaiting(&mut self) {
        self.changes += 1;
        for (key, since) in std::mem::take(&mut self.awaiting) {
            let at = since + self.backoff(&key, REQUEUE_BACKOFF);
            self.delay(key, at, None, false);
        }
    }

    fn backoff(&self, key: &K, backoff: Backoff) -> Duration {
        backoff.delay(self.attempts.get(key).copied().unwrap_or_default())
    }

    /// Starts the next ready key whose group has a worker left and returns it, or returns the time of the next delayed
    /// key. Delayed keys that are due become ready first.
    pub(super) fn next(&mut self, now: Instant) -> Result<K, Option<Instant>> {
        while let Some(entry) = self.by_time.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.awaiting.remove(&key);
            let priority = self.delayed.remove(&key).map(|delayed| delayed.priority);
            // A key that is already queued keeps its current priority.
            let is_present = self.queued.contains_key(&key) || self.running.contains_key(&key);
            self.add(key, priority.filter(|_| !is_present), now);
        }
        let startable = self.first_startable();
        let Some((group, order, (key, since))) = startable
            .and_then(|(group, order)| self.take_ready(group.clone(), order).map(|taken| (group, order, taken)))
        else {
            return Err(self.by_time.first_key_value().map(|((at, _), _)| *at));
        };
        self.queued.remove(&key);
        if let Some(group) = &group {
            *self.running_by_group.entry(group.clone()).or_default() += 1;
        }
        self.counts.record_wait(now.saturating_duration_since(since));
        let running =
            RunningKey { group, priority: order.priority(), started_at: now, requested: None, changes: self.changes };
        self.running.insert(key.clone(), running);
        Ok(key)
    }

    /// Records the result of a reconcile. Returns the number of consecutive attempts without effect.
    pub(super) fn finish(&mut self, key: K, outcome: Result<Outcome, ()>, now: Instant) -> u32 {
        let running = self.running.remove(&key);
        let priority = running.as_ref().map(|running| running.priority);
        if let Some(running) = &running {
            self.counts.record_reconcile(outcome, now.saturating_duration_since(running.started_at));
            self.release_worker(running.group.as_ref());
        }
        let attempts = match outcome {
            Ok(Outcome::Done | Outcome::RequeueAfter(_)) => {
                self.attempts.remove(&key);
                0
            }
            Ok(Outcome::Requeue | Outcome::AwaitChange) | Err(()) => {
                let attempts = self.attempts.entry(key.clone()).or_default();
                *attempts = attempts.saturating_add(1);
                *attempts
            }
        };
        let changed_meanwhile = running.as_ref().is_some_and(|running| running.changes != self.changes);
        match outcome {
            Ok(Outcome::Done) => {}
            Ok(Outcome::RequeueAfter(delay)) => self.delay(key.clone(), now + delay, priority, false),
            // Changed while the key was being reconciled: requeue it, so that the change is not missed.
            Ok(Outcome::AwaitChange) if !changed_meanwhile => {
                self.awaiting.insert(key.clone(), now);
                self.delay(key.clone(), now + MAX_CHANGE_WAIT, priority, false);
            }
            Ok(Outcome::Requeue | Outcome::AwaitChange) => {
                self.delay(key.clone(), now + self.backoff(&key, REQUEUE_BACKOFF), priority, false);
            }
            Err(()) => {
                let at = now + self.backoff(&key, FAILURE_BACKOFF);
                self.delay(key.clone(), at, priority, attempts <= FIRST_FAILURES);
            }
        }
        if let Some((priority, since)) = running.and_then(|running| running.requested)
            && !self.closed
        {
            self.make_ready(key, Some(priority), since);
        }
        attempts
    }

    fn release_worker(&mut self, group: Option<&ClusterName>) {
        let Some(group) = group else { return };
        let remaining = self.running_count(group).saturating_sub(1);
        match remaining {
            0 => self.running_by_group.remove(group),
            remaining => self.running_by_group.insert(group.clone(), remaining),
        };
    }

    pub(super) fn metrics(&self, now: Instant) -> QueueMetrics {
        let running = self.running.values().map(|running| now.saturating_duration_since(running.started_at));
        QueueMetrics {
            depth: self.queued.len(),
            active: self.running.len(),
            workers: self.workers,
            unfinished: running.clone().sum(),
            longest: running.max().unwrap_or_default(),
            counts: self.counts.clone(),
        }
    }

    /// Numbers of waiting keys by reason.
    pub(super) fn pending(&self) -> Pending {
        let waits = |key: &&K| self.delayed.contains_key(*key) && !self.awaiting.contains_key(*key);
        let backoff = self.attempts.keys().filter(waits).count();
        Pending { active: self.queued.len(), backoff, unschedulable: self.awaiting.len() }
    }
}
