//! Errors of the estimator client.

use std::path::PathBuf;
use std::sync::Arc;

/// Why an estimator gave no answer, or why its client could not be built.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EstimatorError {
    /// The estimator's Service names no address that can be dialled.
    #[error("scheduler estimator of cluster {cluster}: {reason}")]
    Address { cluster: String, reason: String },
    /// The last dial failed, and the pause after it has not ended.
    #[error("scheduler estimator of cluster {cluster}: it was not reached")]
    Unreachable { cluster: String },
    /// The estimator, or the connection to it, returned a gRPC status. Karmada's text.
    #[error("gRPC request cluster({cluster}) estimator error when calling {method}: {}", status.message())]
    Answer {
        cluster: String,
        method: &'static str,
        #[source]
        status: Arc<tonic::Status>,
    },
    /// A certificate or key file could not be read, or the files don't belong together.
    #[error("the scheduler estimators' certificates: {}: {reason}", file.display())]
    Certificates { file: PathBuf, reason: String },
}
