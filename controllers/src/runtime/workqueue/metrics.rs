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
pub struct QueueCounters {
    /// Number of keys that were added to the queue.
    pub adds: u64,
    /// Number of requeues, and of keys that were added with a delay.
    pub retries: u64,
    /// Number of finished reconciles, by [`RESULTS`].
    pub results: [u64; RESULTS.len()],
    /// Time that keys spent in the queue, in seconds.
    pub queue_duration: Histogram,
    /// Duration of reconciles in seconds, with the buckets of client-go's work queues.
    pub work_duration: Histogram,
    /// Duration of reconciles in seconds, with the buckets of controller-runtime.
    pub reconcile_duration: Histogram,
}

impl QueueCounters {
    pub(super) fn new() -> Self {
        let workqueue_histogram = || Histogram::new(exponential_buckets(10e-9, 10.0, 12));
        QueueCounters {
            adds: 0,
            retries: 0,
            results: Default::default(),
            queue_duration: workqueue_histogram(),
            work_duration: workqueue_histogram(),
            reconcile_duration: Histogram::new(RECONCILE_BUCKETS),
        }
    }

    pub fn errors(&self) -> u64 {
        self.results[ERROR]
    }

    /// Records the time that a key spent in the queue.
    pub(super) fn record_wait(&self, wait: Duration) {
        self.queue_duration.observe(wait.as_secs_f64());
    }

    /// Records the result and the duration of a reconcile.
    pub(super) fn record_reconcile(&mut self, outcome: Result<Outcome, ()>, duration: Duration) {
        let result = match outcome {
            Ok(Outcome::Done) => 0,
            Err(()) => ERROR,
            Ok(Outcome::Requeue | Outcome::AwaitChange) => 2,
            Ok(Outcome::RequeueAfter(_)) => 3,
        };
        self.results[result] += 1;
        self.retries += u64::from(outcome != Ok(Outcome::Done));
        self.work_duration.observe(duration.as_secs_f64());
        self.reconcile_duration.observe(duration.as_secs_f64());
    }
}

/// Metrics of a queue at a point in time.
#[derive(Debug)]
pub struct QueueMetrics {
    /// Number of keys that wait for a worker.
    pub depth: usize,
    /// Number of keys that are being reconciled.
    pub active: usize,
    pub workers: usize,
    /// Total time that the workers have spent on their current keys.
    pub unfinished: Duration,
    /// The longest time that a worker has spent on its current key.
    pub longest: Duration,
    pub counts: QueueCounters,
}

/// Numbers of waiting keys by reason, named as in Kubernetes' `scheduler_pending_pods`.
#[derive(Debug, PartialEq, Eq)]
pub struct Pending {
    /// Ready keys.
    pub active: usize,
    /// Keys that are delayed after attempts without effect or failures.
    pub backoff: usize,
    /// Keys that await a change.
    pub unschedulable: usize,
}
