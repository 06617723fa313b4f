//! Errors of the simulation.

use crowsnest_component_base::client_errors::reason;

/// Errors while a control plane or a simulated member starts, runs or gets a fault. Sources are kept.
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
    /// A value given by the user cannot be understood.
    #[error("{0}")]
    Invalid(String),
    /// An object in storage cannot be read.
    #[error("{what} as stored: {reason}")]
    Stored { what: String, reason: String },
    /// An object that should have been encodable was not.
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
    /// Names the request that failed.
    pub fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        let what = what.into();
        move |source| Error::Api { what, source: Box::new(source) }
    }

    /// The HTTP status of a refused request, when that is what failed.
    pub fn code(&self) -> Option<u16> {
        match self {
            Error::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    /// The API server's message for a refused request; otherwise the causes of the error.
    pub fn message(&self) -> String {
        match self {
            Error::Api { source, .. } => reason(source),
            other => other.to_string(),
        }
    }

    /// The object is gone.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Someone else was quicker: already there, or changed since it was read.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }
}
