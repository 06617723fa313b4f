//! Work queue: each key is handled by one worker at a time, is never lost and never queued twice; failures return with growing
//! delay. The size of a queue is bounded by the number of its keys.
//!
//! Keys of higher priority come first, keys of one priority in the order of their arrival. After an attempt without effect a key
//! returns after a while ([`Outcome::Later`]), or is parked until a change that it may depend on ([`Outcome::Parked`],
//! [`Queue::unpark`]).

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

use crowsnest_component_base::spans::{SPANS, failed};
use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::field::Empty;
use tracing::{Instrument, Span};

pub use self::metrics::{Measured, Pending, RESULTS};
use self::state::State;
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

/// Higher goes first.
pub type Priority = i32;

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

    /// True if no key is ready, being reconciled or due soon after a change or a first failure.
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
        self.state.lock().is_idle()
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
        self.state.lock().due().for_each(see);
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
            state.delay(key, now + delay, None, true);
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
