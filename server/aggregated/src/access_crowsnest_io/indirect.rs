//! Indirect paths of a review. Their number and the time of the search are limited, because a search occupies a thread.

use std::time::{Duration, Instant};

use crowsnest_apimachinery::rbac::indirect::Paths;
use crowsnest_apimachinery::status::ApiError;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::render::PathRenderer;

/// Maximum number of paths in a response.
const MAX_PATHS: usize = 1000;
/// Time after which no further cluster is searched.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of concurrent searches of all callers; further reviews wait.
static SEARCH_PERMITS: Semaphore = Semaphore::const_new(2);

/// Evaluates a review on a blocking thread, because the rules of a fleet take too long to evaluate on a thread that
/// serves connections. The token is cancelled if the request is: the review must check it and return early.
pub(super) async fn evaluate(
    indirect: bool,
    review: impl FnOnce(&CancellationToken) -> Value + Send + 'static,
) -> Result<Value, ApiError> {
    let permit = if indirect { Some(SEARCH_PERMITS.acquire().await.map_err(ApiError::internal)?) } else { None };
    let cancellation = CancellationToken::new();
    let _cancellation_guard = cancellation.clone().drop_guard();
    let evaluation = move || {
        // The thread owns the permit, because it continues until the review checks the token.
        let _permit = permit;
        review(&cancellation)
    };
    tokio::task::spawn_blocking(evaluation).await.map_err(ApiError::internal)
}

/// Indirect paths in all clusters, within the limits.
pub(super) struct IndirectPaths {
    deadline: Instant,
    paths: Vec<Value>,
    warnings: Vec<String>,
}

impl IndirectPaths {
    pub fn new() -> Self {
        Self { deadline: Instant::now() + SEARCH_TIMEOUT, paths: Vec::new(), warnings: Vec::new() }
    }

    /// False, with a warning, if a limit is reached, so that the cluster is not searched.
    pub fn may_search(&mut self, cluster: &str) -> bool {
        let is_within_limits = self.paths.len() < MAX_PATHS && Instant::now() < self.deadline;
        if !is_within_limits {
            self.warnings.push(format!("indirect paths in cluster {cluster} were not searched: a limit was reached"));
        }
        is_within_limits
    }

    /// Adds the paths of a cluster.
    pub fn add(&mut self, found: &Paths<'_>, renderer: &PathRenderer<'_>) {
        let remaining = MAX_PATHS.saturating_sub(self.paths.len());
        if found.is_truncated || found.paths.len() > remaining {
            let cluster = renderer.cluster;
            self.warnings.push(format!("some indirect paths in cluster {cluster} are omitted: there are too many"));
        }
        self.paths.extend(found.paths.iter().take(remaining).map(|path| renderer.path(path)));
    }

    /// Adds the paths to the status, and the warnings to those of the review.
    pub fn finish(self, status: &mut Value, warnings: &mut Vec<String>) {
        status["indirect"] = self.paths.into();
        warnings.extend(self.warnings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Number of units of work that the review could do after its request is cancelled.
    const REMAINING_UNITS: usize = 100;

    /// The review waits for each unit of its work, so that the number of units does not depend on the speed of the machine.
    #[tokio::test]
    async fn a_cancelled_request_stops_its_review() {
        let (units, pending_units) = mpsc::channel();
        let (done, mut done_units) = tokio::sync::mpsc::unbounded_channel();
        let review = move |cancellation: &CancellationToken| {
            while !cancellation.is_cancelled() && pending_units.recv().is_ok() {
                done.send(()).ok();
            }
            Value::Null
        };
        let request = tokio::spawn(evaluate(true, review));
        units.send(()).unwrap();
        assert_eq!(done_units.recv().await, Some(()));
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
        for _ in 0..REMAINING_UNITS {
            // Fails if the review has ended.
            units.send(()).ok();
        }
        drop(units);
        let mut count = 0;
        while done_units.recv().await.is_some() {
            count += 1;
        }
        assert!(count <= 1, "{count} units were done after the request was cancelled");
        // The permit of the review is available again.
        assert_eq!(evaluate(true, |_| Value::Bool(true)).await.unwrap(), true);
    }
}
