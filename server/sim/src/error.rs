//! Errors of the simulation.

use crowsnest_component_base::client_errors::describe_cause;

/// Error of a simulated member, its load or its faults.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request to the cluster's own API failed.
    #[error("{operation}: {source}")]
    Api {
        operation: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// An operation of a cluster, such as its start, failed.
    #[error("cluster {cluster}: {reason}")]
    Cluster { cluster: String, reason: String },
    /// An I/O operation on a file, socket or directory failed.
    #[error("{operation}: {source}")]
    Io {
        operation: String,
        #[source]
        source: std::io::Error,
    },
    /// The user gave an invalid value.
    #[error("{0}")]
    Invalid(String),
    /// An object in storage cannot be decoded.
    #[error("cannot decode {object} from storage: {reason}")]
    Decode { object: String, reason: String },
    /// An object cannot be encoded.
    #[error("cannot encode {object}: {source}")]
    Encode {
        object: &'static str,
        #[source]
        source: serde_json::Error,
    },
}

/// Result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Wraps the error of a request with a description of the operation.
    pub fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        let operation = operation.into();
        move |source| Error::Api { operation, source: Box::new(source) }
    }

    /// The API server's message for a rejected request, the innermost causes for other failed requests, and the whole
    /// text for other errors.
    pub fn message(&self) -> String {
        match self {
            Error::Api { source, .. } => describe_cause(source),
            other => other.to_string(),
        }
    }

    /// True if the API server rejected the request with this HTTP status.
    fn has_status(&self, code: u16) -> bool {
        matches!(self, Error::Api { source, .. } if matches!(&**source, kube::Error::Api(status) if status.code == code))
    }

    /// True if the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.has_status(404)
    }

    /// True for a conflict: the object exists already, or has changed since it was read.
    pub fn is_conflict(&self) -> bool {
        self.has_status(409)
    }
}
