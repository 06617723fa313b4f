//! Errors of the simulation.

use crowsnest_component_base::client_errors::reason;

/// Error at the start or operation of a control plane or simulated member, or of a fault.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request to the cluster's own API failed.
    #[error("{what}: {source}")]
    Api {
        what: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server could not start.
    #[error("cluster {cluster}: {reason}")]
    Start { cluster: String, reason: String },
    /// A file, socket or directory.
    #[error("{what}: {source}")]
    Io {
        what: String,
        #[source]
        source: std::io::Error,
    },
    /// An invalid value given by the user.
    #[error("{0}")]
    Invalid(String),
    /// An object in storage cannot be decoded.
    #[error("{what} as stored: {reason}")]
    Stored { what: String, reason: String },
    /// An object cannot be encoded.
    #[error("encode {what}: {source}")]
    Encode {
        what: &'static str,
        #[source]
        source: serde_json::Error,
    },
}

/// Result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Wraps the error of a request with its description.
    pub fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        let what = what.into();
        move |source| Error::Api { what, source: Box::new(source) }
    }

    /// The HTTP status of a rejected request, if that is the cause.
    pub fn code(&self) -> Option<u16> {
        match self {
            Error::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    /// The API server's message for a rejected request; otherwise the causes of the error.
    pub fn message(&self) -> String {
        match self {
            Error::Api { source, .. } => reason(source),
            other => other.to_string(),
        }
    }

    /// True if the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// True for a conflict: the object exists already, or has changed since it was read.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }
}
