//! Indirect paths of a review: limited in number and time, because a search uses a thread.

use std::time::{Duration, Instant};

use crowsnest_apimachinery::rbac::indirect::Paths;
use crowsnest_apimachinery::status::ApiError;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::render::PathRenderer;

/// Maximum number of paths in a response.
const MOST_PATHS: usize = 1000;
/// Time after which no further cluster is searched.
const SEARCH_WITHIN: Duration = Duration::from_secs(10);
/// Concurrent searches of all callers; others wait.
static SEARCHES: Semaphore = Semaphore::const_new(2);

/// Evaluates a review on a thread of its own: the rules of a fleet are too many for one that serves connections.
pub(super) async fn evaluate(
    indirect: bool,
    review: impl FnOnce() -> Value + Send + 'static,
) -> Result<Value, ApiError> {
    let permit = if indirect { Some(SEARCHES.acquire().await.map_err(ApiError::internal)?) } else { None };
    let evaluation = move || {
        // Held by the thread, which does not end with the request.
        let _permit = permit;
        review()
    };
    tokio::task::spawn_blocking(evaluation).await.map_err(ApiError::internal)
}

/// Paths in all clusters.
pub(super) struct IndirectPaths {
    deadline: Instant,
    paths: Vec<Value>,
    warnings: Vec<String>,
}

impl IndirectPaths {
    pub fn new() -> Self {
        Self { deadline: Instant::now() + SEARCH_WITHIN, paths: Vec::new(), warnings: Vec::new() }
    }

    /// False, with a warning, if a limit is reached, so that the cluster is not searched.
    pub fn may_search(&mut self, cluster: &str) -> bool {
        let has_room = self.paths.len() < MOST_PATHS && Instant::now() < self.deadline;
        if !has_room {
            self.warnings.push(format!("indirect paths in cluster {cluster} were not searched: a limit was reached"));
        }
        has_room
    }

    /// Adds the paths of a cluster.
    pub fn add(&mut self, found: &Paths<'_>, renderer: &PathRenderer<'_>) {
        let room = MOST_PATHS.saturating_sub(self.paths.len());
        if found.truncated || found.paths.len() > room {
            let cluster = renderer.cluster;
            self.warnings.push(format!("some indirect paths in cluster {cluster} are omitted: there are too many"));
        }
        self.paths.extend(found.paths.iter().take(room).map(|path| renderer.path(path)));
    }

    /// Adds the paths to the status, and the warnings to those of the review.
    pub fn finish(self, status: &mut Value, warnings: &mut Vec<String>) {
        status["indirect"] = self.paths.into();
        warnings.extend(self.warnings);
    }
}
