//! Metrics of a queue, as client-go's work queues and controller-runtime's controllers have them.

use std::time::Duration;

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::Outcome;

/// How looks end, in controller-runtime's words.
pub const RESULTS: [&str; 4] = ["success", "error", "requeue", "requeue_after"];
const ERROR: usize = 1;

/// controller-runtime's buckets of reconciles.
const LOOKS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5,
    1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0,
];

/// See the module. Clones share their histograms.
#[derive(Debug, Clone)]
pub struct Counts {
    /// Keys that got a place in the queue.
    pub adds: u64,
    /// Keys that are to be looked at again after a while.
    pub retries: u64,
    /// Looks that ended, by [`RESULTS`].
    pub results: [u64; RESULTS.len()],
    /// From the wish to the look.
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
            looked: Histogram::new(LOOKS),
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

/// A queue at one moment.
#[derive(Debug)]
pub struct Measured {
    /// Keys that wait for a worker.
    pub depth: usize,
    pub active: usize,
    pub workers: usize,
    /// What the workers have spent on the keys that they have.
    pub unfinished: Duration,
    pub longest: Duration,
    pub counts: Counts,
}

/// Keys that wait: for a worker, for another try, for something else to change.
#[derive(Debug, PartialEq, Eq)]
pub struct Pending {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
}
