//! Metrics of a queue, as in client-go's work queues and controller-runtime's controllers.

use std::time::Duration;

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::Outcome;

/// Results of reconciles, as in controller-runtime.
pub const RESULTS: [&str; 4] = ["success", "error", "requeue", "requeue_after"];
const ERROR: usize = 1;

/// controller-runtime's buckets of reconcile durations.
const RECONCILE_BUCKETS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5,
    1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0,
];

/// Counters and histograms of a queue. Clones share the histograms.
#[derive(Debug, Clone)]
pub struct Counts {
    /// Number of keys that were added to the queue.
    pub adds: u64,
    /// Number of keys that were added with a delay.
    pub retries: u64,
    /// Number of finished reconciles, by [`RESULTS`].
    pub results: [u64; RESULTS.len()],
    /// Time that keys spent in the queue, in seconds.
    pub waited: Histogram,
    pub worked: Histogram,
    pub looked: Histogram,
}

impl Counts {
    pub(super) fn new() -> Self {
        let queued = || Histogram::new(exponential_buckets(10e-9, 10.0, 12));
        Counts {
            adds: 0,
            retries: 0,
            results: Default::default(),
            waited: queued(),
            worked: queued(),
            looked: Histogram::new(RECONCILE_BUCKETS),
        }
    }

    pub fn errors(&self) -> u64 {
        self.results[ERROR]
    }

    pub(super) fn waited(&self, waited: Duration) {
        self.waited.observe(waited.as_secs_f64());
    }

    pub(super) fn ended(&mut self, outcome: Result<Outcome, ()>, took: Duration) {
        let result = match outcome {
            Ok(Outcome::Done) => 0,
            Err(()) => ERROR,
            Ok(Outcome::Later | Outcome::Parked) => 2,
            Ok(Outcome::Again(_)) => 3,
        };
        self.results[result] += 1;
        self.retries += u64::from(outcome != Ok(Outcome::Done));
        self.worked.observe(took.as_secs_f64());
        self.looked.observe(took.as_secs_f64());
    }
}

/// Metrics of a queue at a point in time.
#[derive(Debug)]
pub struct Measured {
    /// Number of keys that wait for a worker.
    pub depth: usize,
    pub active: usize,
    pub workers: usize,
    /// Total time that the workers have spent on their current keys.
    pub unfinished: Duration,
    pub longest: Duration,
    pub counts: Counts,
}

/// Number of waiting keys: ready, in backoff, or parked until a change.
#[derive(Debug, PartialEq, Eq)]
pub struct Pending {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
}
