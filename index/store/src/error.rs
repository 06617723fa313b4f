//! Errors of the crates in `index/`.

use crowsnest_apimachinery::names::{ClusterName, Gvr};
use std::time::Duration;
use tokio::task::JoinError;

/// Error of the cache or of search.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "the result is incomplete because a limit was reached; narrow the query, or extend the time limit with timeout:"
    )]
    Incomplete,
    #[error(transparent)]
    Fleet(#[from] crowsnest_members::Error),
    #[error("the cache's database {problem}")]
    Store {
        problem: String,
        #[source]
        source: sqlx::Error,
    },
    #[error(
        "the cache's database {problem}: it is damaged; `crowsnest cache rebuild` deletes it, and the next start fills it again"
    )]
    Damaged {
        problem: String,
        #[source]
        source: sqlx::Error,
    },
    #[error("{0}")]
    StoreFormat(String),
    #[error("{database} is in use by {replicas}; stop all replicas first")]
    InUse { database: String, replicas: String },
    #[error("cannot decode the cached {object}")]
    Decode {
        object: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("cannot compress a body for the cache: {0}")]
    Compress(String),
    #[error("cannot decompress a cached body: {0}")]
    Decompress(String),
    #[error("cluster {cluster} sent an invalid response for {resource}")]
    Malformed {
        cluster: ClusterName,
        resource: Gvr,
        #[source]
        source: serde_json::Error,
    },
    #[error("cluster {cluster} responded to a request for {resource} with {status}: {message}")]
    ErrorResponse {
        cluster: ClusterName,
        resource: Gvr,
        status: u16,
        message: String,
        /// Minimum delay before the next request.
        retry_after: Option<Duration>,
    },
    #[error("cluster {cluster} sent a {part} of {resource} larger than {limit} bytes")]
    TooLarge { cluster: ClusterName, resource: Gvr, part: &'static str, limit: usize },
    #[error("the response of cluster {cluster} for {resource} was interrupted: {reason}")]
    Interrupted { cluster: ClusterName, resource: Gvr, reason: String },
    #[error("cluster {cluster} did not send a page of {resource} within {timeout:?}")]
    PageTimeout { cluster: ClusterName, resource: Gvr, timeout: Duration },
    #[error("the text index {problem}")]
    Text {
        problem: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("there is no index backend {name:?}; known backends: {known}")]
    UnknownBackend { name: String, known: String },
    #[error("this index backend can only be rebuilt while crowsnest is stopped; run `crowsnest cache rebuild --text`")]
    RebuildNotSupported,
    #[error(transparent)]
    SearchEngine(Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot access {path}")]
    Io {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("another replica now collects these clusters")]
    Fenced,
    #[error("label {0} is not indexed")]
    LabelNotIndexed(String),
    #[error("the cache is shutting down")]
    Stopped,
    #[error("the query timed out after {0} ms")]
    Deadline(u64),
}

impl Error {
    pub fn store(problem: impl Into<String>, source: sqlx::Error) -> Self {
        let problem = problem.into();
        if is_damage(&source) { Self::Damaged { problem, source } } else { Self::Store { problem, source } }
    }

    pub fn text(problem: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Text { problem, source: source.into() }
    }

    /// True if the database was unavailable or busy, so that a retry may succeed.
    pub fn is_outage(&self) -> bool {
        let Self::Store { source, .. } = self else { return false };
        match source {
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::PoolTimedOut => true,
            // SQLSTATE classes 08 (connection), 53 (resources), 57 (operator intervention), 40 (transaction rollback),
            // and the codes of lock timeout and idle-in-transaction timeout.
            sqlx::Error::Database(error) => error.code().is_some_and(|code| {
                ["08", "53", "57", "40", "55P03", "25P03"].iter().any(|class| code.starts_with(class))
            }),
            _ => false,
        }
    }

    /// True if a member's response is invalid, so that a repeated request would return the same.
    pub fn is_invalid_response(&self) -> bool {
        matches!(self, Self::Malformed { .. } | Self::TooLarge { .. })
    }

    /// Returns the error with its causes on one line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = std::error::Error::source(self);
        while let Some(cause) = next {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            next = cause.source();
        }
        text
    }
}

/// Result of a joined task. Resumes the task's panic; a cancelled task returns [`Error::Stopped`].
pub fn join_result<T>(joined: Result<Result<T, Error>, JoinError>) -> Result<T, Error> {
    match joined {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Error::Stopped),
    }
}

/// True if the file is not a SQLite database or is corrupt (SQLITE_NOTADB, SQLITE_CORRUPT and their extended codes).
fn is_damage(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.try_downcast_ref::<sqlx::sqlite::SqliteError>());
    let code = code.and_then(|error| sqlx::error::DatabaseError::code(error)?.parse::<u32>().ok());
    code.is_some_and(|code| matches!(code & 0xff, 11 | 26))
}

/// The requested changes are no longer kept; the reader has to list again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("changes before {oldest} are no longer kept")]
pub struct Gone {
    /// The oldest change that can still be read.
    pub oldest: crate::Seq,
}
