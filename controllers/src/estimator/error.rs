//! Errors of the estimator client.

use std::path::PathBuf;
use std::sync::Arc;

/// Failure of an estimator request, or of building its client.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EstimatorError {
    /// The Service of the estimator has no usable address.
    #[error("scheduler estimator of cluster {cluster}: {reason}")]
    Address { cluster: String, reason: String },
    /// Connecting failed recently, and the estimator is still skipped.
    #[error("cannot reach the scheduler estimator of cluster {cluster}")]
    Unreachable { cluster: String },
    /// The estimator or the connection returned a gRPC status. Karmada's message.
    #[error("gRPC request cluster({cluster}) estimator error when calling {method}: {}", status.message())]
    Request {
        cluster: String,
        method: &'static str,
        #[source]
        status: Arc<tonic::Status>,
    },
    /// A certificate or key file cannot be read, or the files do not match.
    #[error("cannot use the scheduler estimators' certificates: {}: {reason}", file.display())]
    Certificates { file: PathBuf, reason: String },
}
