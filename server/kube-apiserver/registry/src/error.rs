//! The crate's error: failures outside of a request (start, storage, TLS) and within the store.
//!
//! Handlers return [`crowsnest_apimachinery::status::ApiError`]; the registry converts the store's errors in one
//! place.

use std::path::PathBuf;

use crate::storage::Revision;

/// Failure of the server or its storage.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the object already exists")]
    AlreadyExists,
    #[error("the object does not exist")]
    NotFound,
    #[error("the object is at revision {current}")]
    Conflict { current: Revision },
    /// The revision is older than the retained history.
    #[error("too old resource version: {requested} ({oldest})")]
    Expired { requested: Revision, oldest: Revision },
    #[error("cannot decode a stored object: {0}")]
    Corrupt(String),
    #[error("the object nests deeper than {} levels", crowsnest_apimachinery::nesting::MAX_DEPTH)]
    TooDeep,
    #[error("the object has {size} bytes; the limit is {}", crate::storage::MAX_OBJECT_BYTES)]
    TooLarge { size: usize },
    #[error("the store is closed")]
    Closed,
    #[error("the store accepts no writes because a commit failed: {0}")]
    WritesDisabled(String),
    #[error("database: {0}")]
    Database(#[from] sqlx::Error),
    #[error("data directory {path} has version {found}; this program supports versions up to {supported}")]
    NewerData { path: PathBuf, found: i64, supported: i64 },
    #[error("data directory {path} is used by another process")]
    Locked { path: PathBuf },
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Credentials(#[from] crowsnest_apiserver::error::Error),
    #[error("a task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
    #[error("in-process client: {0}")]
    Client(#[from] Box<kube::Error>),
    #[error("{0}")]
    Status(#[from] crowsnest_apimachinery::status::ApiError),
}

/// Result of setup and storage functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
