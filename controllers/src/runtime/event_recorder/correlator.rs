//! Correlation of events, as in client-go's `EventCorrelator`: equal events are one event with a count, similar ones
//! are combined, and an object's events are rate-limited. Has no side effects: time is an argument.
//!
//! Repetitions are counted in memory, and the count is written at intervals. Writes of successes are delayed for a
//! second, so that a burst is recognized before its first event is written. In a burst of propagated templates, each
//! template gets one event, about its newest step, and its binding and Works get none.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crowsnest_component_base::burst::{BurstDetector, BurstLimits};
use crowsnest_component_base::token_bucket::TokenBucket;
use k8s_openapi::jiff::Timestamp;
use lru::LruCache;
use serde_json::Value;

use super::Severity;
use super::scheduled_writes::{ScheduledWrite, ScheduledWrites, WriteKind};

/// Capacity of each cache: of events without a scheduled write, of groups of similar events, and of objects. As in
/// client-go.
const CACHE_CAPACITY: usize = 4096;
/// Maximum number of scheduled writes of each class: failures, successes and counts. Further ones are dropped.
const MAX_SCHEDULED: usize = 4096;
/// Number of distinct messages at which similar events (of one object, severity and reason) are combined.
/// As in client-go.
const MAX_SIMILAR: usize = 10;
/// Time without a similar event after which the messages are counted from zero again. As in client-go.
const SIMILAR_INTERVAL: Duration = Duration::from_secs(600);
/// Prefix of the message of combined events, as in client-go.
const COMBINED_PREFIX: &str = "(combined from similar events): ";
/// Token bucket of the writes of events about one object: its capacity, and its rate per second. The rate is
/// client-go's, the capacity twice that of client-go, since one recorder replaces those of several components.
const OBJECT_BURST: f64 = 50.0;
const OBJECT_RATE: f64 = 1.0 / 300.0;
/// Token bucket of created success events: its rate per second, and its capacity.
const SUCCESS_RATE: f64 = 50.0;
const SUCCESS_BURST: f64 = 200.0;
/// Token bucket of created failure events while the control plane is under write load: its rate per second, and its
/// capacity.
const LOADED_FAILURE_RATE: f64 = 40.0;
const LOADED_FAILURE_BURST: f64 = 40.0;
/// Limits above which propagation steps are a burst: their rate per second, and the number that begins a burst.
const STEP_BURST: BurstLimits = BurstLimits { rate_per_second: 50.0, begin_threshold: 200.0 };

/// A recorded event.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Object reference (`involvedObject`).
    pub regarding: Arc<Value>,
    pub severity: Severity,
    pub reason: &'static str,
    pub message: String,
    pub at: Timestamp,
}

/// Identity of an event: a hash of its object, severity, reason and message, for combined events without the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct EventKey(u64);

/// An event to be written, with all occurrences so far.
#[derive(Debug, Clone)]
pub(super) struct Occurrences {
    /// The last occurrence.
    pub entry: Entry,
    pub first: Timestamp,
    pub count: u64,
}

/// Namespace and name of a written event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventName {
    pub namespace: String,
    pub name: String,
}

/// A write that is due.
#[derive(Debug)]
pub(super) struct DueWrite {
    pub key: EventKey,
    pub occurrences: Occurrences,
    /// The event whose count is updated. `None` if it is created.
    pub written: Option<EventName>,
}

/// Occurrences of an event, and its last write.
#[derive(Debug)]
struct EventState {
    occurrences: Occurrences,
    /// The written event. `None` before its first write.
    written: Option<EventName>,
    last_write: Option<Instant>,
    /// Sequence number of the last occurrence.
    sequence: u64,
}

impl EventState {
    fn new(entry: Entry, sequence: u64) -> Self {
        let occurrences = Occurrences { first: entry.at, count: 1, entry };
        EventState { occurrences, written: None, last_write: None, sequence }
    }

    fn repeat(&mut self, entry: Entry, sequence: u64) {
        let Occurrences { first, count, .. } = self.occurrences;
        (self.occurrences, self.sequence) = (Occurrences { first, count: count + 1, entry }, sequence);
    }
}

/// Effect of a recorded occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordOutcome {
    /// Its write is scheduled, and not due before the writer wakes.
    Scheduled,
    /// Its write is scheduled, and due before the writer would wake.
    WakeWriter,
    /// It is not written, because too many writes are scheduled.
    Dropped,
}

/// Distinct messages of similar events.
#[derive(Debug, Default)]
struct SimilarEvents {
    messages: HashSet<u64>,
    last: Option<Instant>,
}

#[derive(Debug)]
struct ObjectState {
    writes: TokenBucket,
    /// Time of the last write of a success about the object.
    last_success: Option<Instant>,
}

pub(super) struct Correlator {
    /// Events whose write is scheduled or in progress.
    scheduled: HashMap<EventKey, EventState>,
    /// Recent other events.
    idle: LruCache<EventKey, EventState>,
    similar: LruCache<u64, SimilarEvents>,
    objects: LruCache<u64, ObjectState>,
    scheduled_writes: ScheduledWrites,
    /// Time at which the writer wakes. `None` if no write is scheduled.
    wakes_at: Option<Instant>,
    successes: TokenBucket,
    /// Limit of failure events while the control plane is under write load.
    loaded_failures: TokenBucket,
    /// Burst of propagation steps.
    steps: BurstDetector,
    /// Number of events that are being created.
    in_flight: usize,
    /// Number of recorded occurrences, from which sequence numbers are taken.
    recorded: u64,
}

fn lru_cache<K: Hash + Eq, V>() -> LruCache<K, V> {
    LruCache::new(NonZeroUsize::new(CACHE_CAPACITY).unwrap_or(NonZeroUsize::MIN))
}

fn hash(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

impl Correlator {
    pub fn new(now: Instant) -> Self {
        Correlator {
            scheduled: HashMap::new(),
            idle: lru_cache(),
            similar: lru_cache(),
            objects: lru_cache(),
            scheduled_writes: ScheduledWrites::default(),
            wakes_at: None,
            successes: TokenBucket::new(SUCCESS_RATE, SUCCESS_BURST, now),
            loaded_failures: TokenBucket::new(LOADED_FAILURE_RATE, LOADED_FAILURE_BURST, now),
            steps: BurstDetector::new(STEP_BURST),
            in_flight: 0,
            recorded: 0,
        }
    }

    /// True if no creation of an event is scheduled or in progress.
    pub fn is_flushed(&self) -> bool {
        self.in_flight == 0 && self.scheduled_writes.failures.is_empty() && self.scheduled_writes.successes.is_empty()
    }

    /// Records an occurrence.
    pub fn record(&mut self, mut entry: Entry, now: Instant) -> RecordOutcome {
        self.recorded += 1;
        let sequence = self.recorded;
        let (object, kind) = (hash(entry.regarding.to_string()), WriteKind::from_entry(&entry));
        let group = hash((object, entry.severity, entry.reason));
        let key = match self.count_similar(group, &entry.message, now) {
            true => {
                entry.message.insert_str(0, COMBINED_PREFIX);
                EventKey(group)
            }
            false => EventKey(hash((group, &entry.message))),
        };
        let series = self.scheduled.get(&key).or_else(|| self.idle.peek(&key));
        if kind.is_step() && series.is_none_or(|series| series.written.is_none()) {
            self.steps.observe(now);
        }
        if let Some(series) = self.scheduled.get_mut(&key) {
            series.repeat(entry, sequence);
            return RecordOutcome::Scheduled;
        }
        let state = match self.idle.pop(&key) {
            Some(mut series) => {
                series.repeat(entry, sequence);
                series
            }
            None => EventState::new(entry, sequence),
        };
        let (kind, delayed_since) = match state.last_write.filter(|_| state.written.is_some()) {
            Some(last) => (kind.count_update(), last),
            None => (kind, now),
        };
        self.schedule(ScheduledWrite { key, object, kind, delayed_since }, state, now)
    }

    fn schedule(&mut self, write: ScheduledWrite, state: EventState, now: Instant) -> RecordOutcome {
        if self.scheduled_writes.class_mut(write.kind).len() >= MAX_SCHEDULED {
            self.idle.put(write.key, state);
            return RecordOutcome::Dropped;
        }
        let due = now + write.delay(now, self.steps.time_to_end(now));
        self.scheduled.insert(write.key, state);
        self.scheduled_writes.class_mut(write.kind).push(write);
        if self.wakes_at.is_some_and(|at| at <= due) {
            return RecordOutcome::Scheduled;
        }
        self.wakes_at = Some(due);
        RecordOutcome::WakeWriter
    }

    /// Counts a message of similar events. Returns true if they are combined.
    fn count_similar(&mut self, group: u64, message: &str, now: Instant) -> bool {
        let similar = self.similar.get_or_insert_mut(group, SimilarEvents::default);
        if similar.last.is_some_and(|last| now.saturating_duration_since(last) > SIMILAR_INTERVAL) {
            similar.messages.clear();
        }
        similar.last = Some(now);
        let message = hash(message);
        if similar.messages.len() < MAX_SIMILAR {
            similar.messages.insert(message);
        }
        similar.messages.len() >= MAX_SIMILAR
    }

    /// Removes and returns at most `limit` due writes. `is_busy` is true while the control plane is under write load.
    pub fn take_due(&mut self, now: Instant, is_busy: bool, limit: usize) -> Vec<DueWrite> {
        let burst = self.steps.started_at(now);
        if let Some(burst_start) = burst {
            self.drop_superseded_steps(burst_start);
        }
        let is_burst = burst.is_some();
        let mut due = Vec::new();
        for write in std::mem::take(&mut self.scheduled_writes).into_writes() {
            let is_due =
                due.len() < limit && now.saturating_duration_since(write.delayed_since) >= write.kind.delay(is_burst);
            if is_due && self.try_permit(write.kind, now, is_busy) {
                due.extend(self.begin(&write, now));
            } else {
                self.scheduled_writes.class_mut(write.kind).push(write);
            }
        }
        due
    }

    /// Takes a token for a write, if its kind is rate-limited. Returns true if the write is permitted now.
    fn try_permit(&mut self, kind: WriteKind, now: Instant, is_busy: bool) -> bool {
        match kind {
            WriteKind::Failure => !is_busy || self.loaded_failures.try_take(now),
            WriteKind::Count(_) => !is_busy,
            WriteKind::Success | WriteKind::TemplateStep | WriteKind::WorkStep => {
                !is_busy && self.successes.try_take(now)
            }
        }
    }

    /// Delay after which the writer wakes, because a write may be due then. `None` if none is scheduled.
    pub fn plan_wake(&mut self, now: Instant) -> Option<Duration> {
        /// Interval of checks of the write load and the rates.
        const CHECK_INTERVAL: Duration = Duration::from_millis(100);
        let burst = self.steps.time_to_end(now);
        let delay = self
            .scheduled_writes
            .iter()
            .map(|write| write.delay(now, burst))
            .min()
            .map(|delay| delay.max(CHECK_INTERVAL));
        self.wakes_at = delay.map(|delay| now + delay);
        delay
    }

    /// Begins a write. `None` if the rate limit of the object is exceeded.
    fn begin(&mut self, write: &ScheduledWrite, now: Instant) -> Option<DueWrite> {
        let new = || ObjectState { writes: TokenBucket::new(OBJECT_RATE, OBJECT_BURST, now), last_success: None };
        let object = self.objects.get_or_insert_mut(write.object, new);
        if !object.writes.try_take(now) {
            let state = self.scheduled.remove(&write.key)?;
            self.idle.put(write.key, state);
            return None;
        }
        let series = self.scheduled.get(&write.key)?;
        if write.kind.is_success() {
            object.last_success = Some(now);
        }
        self.in_flight += usize::from(series.written.is_none());
        let (key, occurrences) = (write.key, series.occurrences.clone());
        Some(DueWrite { key, occurrences, written: series.written.clone() })
    }

    /// Ends a write. `written` is the event, or `None` if it does not exist: an event that was deleted in the meantime
    /// is created again.
    pub fn end(&mut self, write: &DueWrite, written: Option<EventName>, now: Instant) {
        self.in_flight -= usize::from(write.written.is_none());
        let Some(mut series) = self.scheduled.remove(&write.key) else { return };
        let was_deleted = written.is_none() && write.written.is_some();
        let is_repeated = written.is_some() && series.occurrences.count > write.occurrences.count;
        (series.written, series.last_write) = (written, Some(now));
        let kind = WriteKind::from_entry(&series.occurrences.entry);
        let kind = match (was_deleted, is_repeated) {
            (true, _) => kind,
            (false, true) => kind.count_update(),
            (false, false) => {
                self.idle.put(write.key, series);
                return;
            }
        };
        let object = hash(series.occurrences.entry.regarding.to_string());
        self.schedule(ScheduledWrite { key: write.key, object, kind, delayed_since: now }, series, now);
    }

    /// Drops scheduled propagation steps during a burst: all steps about bindings and Works, the steps of templates
    /// that got an event since the burst began, and of each other template all steps but the newest. That one is
    /// scheduled at the time of the first.
    fn drop_superseded_steps(&mut self, burst_start: Instant) {
        let mut newest: HashMap<u64, (u64, ScheduledWrite)> = HashMap::new();
        let mut dropped = Vec::new();
        for write in std::mem::take(&mut self.scheduled_writes.successes) {
            let last_success = self.objects.peek(&write.object).and_then(|object| object.last_success);
            let has_event = last_success.is_some_and(|at| at >= burst_start);
            match write.kind {
                WriteKind::Failure | WriteKind::Success | WriteKind::Count(_) => {
                    self.scheduled_writes.successes.push(write);
                }
                WriteKind::TemplateStep if !has_event => {
                    let sequence = self.scheduled.get(&write.key).map_or(0, |series| series.sequence);
                    dropped.extend(keep_newer(&mut newest, sequence, write));
                }
                WriteKind::TemplateStep | WriteKind::WorkStep => dropped.push(write.key),
            }
        }
        self.scheduled_writes.successes.extend(newest.into_values().map(|(_, write)| write));
        self.scheduled_writes.successes.sort_by_key(|write| write.delayed_since);
        for key in dropped {
            self.scheduled.remove(&key);
        }
    }
}

/// Keeps the newer of two steps of a template, scheduled at the earlier time of both. Returns the key of the dropped
/// step.
fn keep_newer(
    newest: &mut HashMap<u64, (u64, ScheduledWrite)>,
    sequence: u64,
    write: ScheduledWrite,
) -> Option<EventKey> {
    let object = write.object;
    let (older, newer) = match newest.remove(&object) {
        Some(kept) if kept.0 > sequence => ((sequence, write), Some(kept)),
        Some(kept) => (kept, Some((sequence, write))),
        None => ((sequence, write), None),
    };
    let Some((sequence, newer)) = newer else {
        newest.insert(object, older);
        return None;
    };
    let delayed_since = older.1.delayed_since.min(newer.delayed_since);
    newest.insert(object, (sequence, ScheduledWrite { delayed_since, ..newer }));
    Some(older.1.key)
}
