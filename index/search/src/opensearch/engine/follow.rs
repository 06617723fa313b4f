//! Refreshes the index so that searches find the written documents, and reports the writer's progress as metrics.

use super::lag::LagClock;
use super::scan;
use crate::opensearch::client::{Client, ClientError, Request};
use crate::opensearch::source::StoreSource;
use crate::opensearch::writer::{Progress, State, Writer};
use crowsnest_store::Seq;
use crowsnest_store::metrics::Metrics;
use crowsnest_store::tail::Tail;
use http::Method;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Maximum time between two measurements of the lag.
const MAX_MEASURE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval and timeout of measurements of the index's size.
const SIZE_INTERVAL: Duration = Duration::from_secs(60);
const SIZE_TIMEOUT: Duration = Duration::from_secs(2);

/// Task that follows the progress of a writer.
pub(super) struct ProgressFollower {
    pub writer: Arc<Writer<StoreSource>>,
    pub client: Arc<Client>,
    pub alias: String,
    pub tail: Arc<Tail>,
    pub metrics: Arc<Metrics>,
    /// See [`crate::engine::EngineContext::committed`].
    pub committed: Arc<AtomicU64>,
    pub searchable: watch::Sender<Seq>,
    pub write_failure: watch::Sender<Option<String>>,
    /// Size of the index and its replicas in bytes.
    pub size: watch::Sender<Option<u64>>,
    /// Minimum time between two refreshes.
    pub interval: Duration,
}

#[derive(Deserialize)]
struct RefreshResponse {
    #[serde(rename = "_shards")]
    shards: Shards,
}

#[derive(Deserialize)]
struct Shards {
    #[serde(default)]
    failed: u64,
}

impl ProgressFollower {
    /// Runs until stopped.
    pub async fn run(self, stop: CancellationToken) {
        let mut progress = self.writer.watch();
        let mut before = Progress::default();
        let mut clock = LagClock::default();
        let mut measure_at = Instant::now();
        loop {
            let now = progress.borrow_and_update().clone();
            self.report(&before, &now);
            let written = Seq(now.position);
            let follows = matches!(now.state, State::Following | State::Standby);
            if follows && written != *self.searchable.borrow() {
                match stop.run_until_cancelled(self.refresh()).await {
                    None => return,
                    Some(Ok(true)) => {
                        self.metrics.text_commits.add(1);
                        self.searchable.send_replace(written);
                    }
                    Some(Ok(false)) => tracing::debug!("a shard of the search engine did not refresh"),
                    Some(Err(error)) => tracing::debug!(error = error.chain(), "cannot refresh the index"),
                }
            }
            let (latest, found) = (self.tail.latest().0, self.searchable.borrow().0);
            self.metrics.text_lag.set(latest.saturating_sub(found));
            self.metrics.text_lag_seconds.set(clock.tick(Instant::now(), latest, found).as_secs());
            before = now;
            if measure_at <= Instant::now() {
                measure_at = Instant::now() + SIZE_INTERVAL;
                match stop.run_until_cancelled(self.measure()).await {
                    None => return,
                    Some(Ok(bytes)) => drop(self.size.send_replace(bytes)),
                    Some(Err(error)) => tracing::debug!(error = error.chain(), "cannot read the size of the index"),
                }
            }
            let pause = async {
                tokio::time::sleep(self.interval).await;
                drop(tokio::time::timeout(MAX_MEASURE_INTERVAL, progress.changed()).await);
            };
            if stop.run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

    /// Updates the metrics and the write failure by the changes of the writer's progress.
    fn report(&self, before: &Progress, now: &Progress) {
        self.committed.store(now.position, Ordering::Relaxed);
        let counters = [
            (&self.metrics.text_documents, now.written, before.written),
            (&self.metrics.text_retries, now.retried, before.retried),
            (&self.metrics.text_refused, now.dead_letters, before.dead_letters),
            (&self.metrics.text_rebuilds, now.rebuilds, before.rebuilds),
            (&self.metrics.text_bulks, now.rounds, before.rounds),
            (&self.metrics.text_bulk_microseconds, now.round_microseconds, before.round_microseconds),
        ];
        counters.into_iter().for_each(|(counter, now, before)| counter.add(now.saturating_sub(before)));
        let write_failure = match &now.state {
            State::Waiting { reason } => Some(reason.clone()),
            _ => None,
        };
        self.write_failure.send_if_modified(|current| {
            let is_changed = *current != write_failure;
            *current = write_failure;
            is_changed
        });
    }

    /// Size of the index and its replicas in bytes; None if the response lacks it.
    async fn measure(&self) -> Result<Option<u64>, ClientError> {
        let path = format!("/{}/_stats/store?filter_path=_all.total.store.size_in_bytes", self.alias);
        let response = self.client.send(&Request { timeout: Some(SIZE_TIMEOUT), ..Request::get(path) }).await?;
        let stats: Value = serde_json::from_slice(&response.body)
            .map_err(|source| ClientError::Unreadable { operation: "the size of the index", source })?;
        Ok(stats.pointer("/_all/total/store/size_in_bytes").and_then(Value::as_u64))
    }

    /// Makes all written documents visible to searches. Returns false if a shard failed to refresh.
    async fn refresh(&self) -> Result<bool, ClientError> {
        let response = self.client.send(&Request::new(Method::POST, format!("/{}/_refresh", self.alias))).await?;
        let refreshed: RefreshResponse = serde_json::from_slice(&response.body)
            .map_err(|source| ClientError::Unreadable { operation: "a refresh", source })?;
        Ok(refreshed.shards.failed == 0)
    }
}

/// Closes the points in time whose ids are received, until stopped.
pub(super) async fn close_all(client: Arc<Client>, mut ids: mpsc::Receiver<String>, stop: CancellationToken) {
    while let Some(Some(id)) = stop.run_until_cancelled(ids.recv()).await {
        stop.run_until_cancelled(scan::close(&client, &id)).await;
    }
}
