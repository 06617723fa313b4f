//! Work queue: each key is reconciled by one worker at a time, is never lost and never queued twice. Failed keys are
//! requeued with exponential backoff. The size of a queue is bounded by the number of its keys.
//!
//! Keys of higher priority are processed first; keys of the same priority are first in, first out. After an attempt
//! without effect a key is requeued with a delay ([`Outcome::Requeue`]), or awaits a change that it may depend on
//! ([`Outcome::AwaitChange`], [`Queue::requeue_awaiting`]).
//!
//! Keys can belong to groups, one for each member ([`Queue::with_groups`]). A group starts a key only while it occupies
//! fewer workers than are idle: one slow member occupies at most half of the workers (rounded up), two occupy a third
//! each, and so on. Members whose requests time out are limited together, like one member.

mod metrics;
mod state;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt::Debug;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::spans::{SPAN_TARGET, record_error};
use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::field::Empty;
use tracing::{Instrument, Span};

pub use self::metrics::{Pending, QueueMetrics, RESULTS};
use self::state::State;
use crate::Error;
use crate::metrics::Durations;

/// Result of a reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Reconcile again after this delay.
    RequeueAfter(Duration),
    /// The attempt had no effect: reconcile again after one second. The delay doubles with each consecutive attempt, up
    /// to ten seconds.
    Requeue,
    /// The attempt had no effect, and will have none until something else changes: reconcile again after
    /// [`Queue::requeue_awaiting`], but not before the delay of [`Outcome::Requeue`], or after five minutes.
    AwaitChange,
}

/// Priority of a key. Higher values are processed first.
pub type Priority = i32;

/// A queue of keys. Clones are cheap and share the queue.
pub struct Queue<K> {
    name: &'static str,
    state: Arc<Mutex<State<K>>>,
    wake: Arc<Notify>,
    /// Number of reconciled keys.
    finished: watch::Sender<u64>,
    /// Histogram of reconcile durations, if the controller has one.
    durations: Option<Durations>,
}

/// A queue, independent of its key type.
pub trait AnyQueue {
    fn name(&self) -> &'static str;

    /// Closes the queue, which then discards keys.
    fn close(&self);

    /// True if no key is ready, being reconciled, delayed after a change, or in backoff after its first failures.
    fn is_idle(&self) -> bool;

    /// Number of reconciled keys.
    fn finished(&self) -> watch::Receiver<u64>;

    /// Metrics, or `None` if the queue is closed.
    fn metrics(&self) -> Option<QueueMetrics>;

    /// Another handle of this queue.
    fn clone_handle(&self) -> Box<dyn AnyQueue + Send + Sync>;
}

impl<K: Hash + Eq + Clone + Send + 'static> AnyQueue for Queue<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn close(&self) {
        self.state.lock().close();
    }

    fn is_idle(&self) -> bool {
        self.state.lock().is_idle()
    }

    fn finished(&self) -> watch::Receiver<u64> {
        self.finished.subscribe()
    }

    fn metrics(&self) -> Option<QueueMetrics> {
        let state = self.state.lock();
        (!state.closed).then(|| state.metrics(Instant::now()))
    }

    fn clone_handle(&self) -> Box<dyn AnyQueue + Send + Sync> {
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
            durations: self.durations.clone(),
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
            durations: None,
        }
    }

    /// Records the duration of each reconcile in a histogram.
    pub fn with_durations(self, durations: Durations) -> Self {
        Queue { durations: Some(durations), ..self }
    }

    /// Limits the workers of each group of keys. Keys for which `group_of` returns `None` are not limited. Must be
    /// called before the first key is added.
    pub fn with_groups(self, group_of: fn(&K) -> Option<ClusterName>) -> Self {
        self.state.lock().group_of = group_of;
        self
    }

    /// Calls `visit` with each key that is ready or being reconciled.
    pub fn for_each_ready_or_running(&self, visit: impl FnMut(&K)) {
        self.state.lock().ready_or_running().for_each(visit);
    }

    /// Numbers of waiting keys by reason, or `None` if the queue is closed.
    pub fn pending(&self) -> Option<Pending> {
        let state = self.state.lock();
        (!state.closed).then(|| state.pending())
    }

    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Enqueues `key`. If it is being reconciled, it is reconciled again afterwards.
    pub fn add(&self, key: K) {
        self.enqueue(key, None);
    }

    /// Enqueues `key`, and sets its priority.
    pub fn add_with_priority(&self, key: K, priority: Priority) {
        self.enqueue(key, Some(priority));
    }

    fn enqueue(&self, key: K, priority: Option<Priority>) {
        let now = Instant::now();
        if self.state.lock().add(key, priority, now) {
            self.wake.notify_one();
        }
    }

    /// Enqueues `key` after a delay. Of two delays, the earlier takes effect.
    pub fn add_after(&self, key: K, delay: Duration) {
        let now = Instant::now();
        {
            let mut state = self.state.lock();
            state.counts.retries += 1;
            state.delay(key, now + delay, None, true);
        }
        self.wake.notify_one();
    }

    /// Enqueues the keys that await a change, after one that they may depend on.
    pub fn requeue_awaiting(&self) {
        self.state.lock().requeue_awaiting();
        self.wake.notify_one();
    }

    /// The next ready key, or the time at which a delayed key becomes ready.
    fn next(&self) -> Result<K, Option<Instant>> {
        self.state.lock().next(Instant::now())
    }

    /// Span of one reconcile.
    fn span(&self, key: &K) -> Span {
        tracing::info_span!(
            target: SPAN_TARGET,
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
        let failures = {
            let mut state = self.state.lock();
            match &result {
                Ok(_) => state.record_response(&key, true),
                Err(error) if error.is_timeout() => state.record_response(&key, false),
                Err(_) => {}
            }
            state.finish(key.clone(), outcome, Instant::now())
        };
        if let Err(error) = result {
            // Only the 1st, 2nd, 4th, 8th, … consecutive failure of a key is logged as a warning.
            if error.is_waiting() || error.is_conflict() || !failures.is_power_of_two() {
                tracing::debug!(queue = self.name, ?key, %error, failures, "reconcile will be retried");
            } else {
                tracing::warn!(queue = self.name, ?key, %error, failures, "reconcile failed");
            }
        }
        self.finished.send_modify(|finished| *finished += 1);
        self.wake.notify_one();
    }

    /// Reconciles keys with up to `workers` tasks until `stop`, and then waits for the running ones. A panic is
    /// treated as a failure of its key, which is retried, so that one object cannot stop the reconciliation of
    /// others.
    pub async fn run<F, R>(self, workers: usize, stop: CancellationToken, reconcile: F) -> Result<(), String>
    where
        F: Fn(K) -> R,
        R: Future<Output = Result<Outcome, Error>> + Send + 'static,
    {
        let mut running: JoinSet<(K, Result<Outcome, Error>)> = JoinSet::new();
        self.state.lock().workers = workers;
        loop {
            let mut next_delayed = None;
            while running.len() < workers && !stop.is_cancelled() {
                match self.next() {
                    Ok(key) => {
                        let (work, durations) = (reconcile(key.clone()), self.durations.clone());
                        let span = self.span(&key);
                        running.spawn(async move {
                            let started_at = Instant::now();
                            let result = AssertUnwindSafe(work.instrument(span.clone())).catch_unwind().await;
                            let result = result.unwrap_or_else(|panic| Err(panic_error(panic.as_ref())));
                            record_result(&span, &result);
                            if let Some(durations) = durations {
                                durations.record(started_at.elapsed(), result.is_ok());
                            }
                            (key, result)
                        });
                    }
                    Err(at) => {
                        next_delayed = at;
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
                    Err(error) => return Err(format!("a worker of {} failed: {error}", self.name)),
                },
                () = self.wake.notified() => {}
                () = sleep_until(next_delayed), if next_delayed.is_some() => {}
                () = stop.cancelled(), if !stop.is_cancelled() => {}
            }
        }
    }
}

fn panic_error(panic: &(dyn Any + Send)) -> Error {
    let message = panic.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    tracing::error!(message, "a reconciliation panicked");
    Error::Panicked(message.to_owned())
}

/// Records the result without the error message, which may contain parts of an object.
fn record_result(span: &Span, result: &Result<Outcome, Error>) {
    match result {
        Ok(outcome) => {
            span.record("crowsnest.outcome", tracing::field::debug(outcome));
        }
        Err(error) if error.is_conflict() => record_error(span, "conflict"),
        Err(error) if error.is_waiting() => record_error(span, "waiting"),
        Err(_) => record_error(span, "failed"),
    }
}

async fn sleep_until(at: Option<Instant>) {
    if let Some(at) = at {
        tokio::time::sleep_until(at).await;
    }
}
