//! Reconciliation errors. Every variant is retried with backoff; [`Error::Waiting`] is not a failure.

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_component_base::client_errors::api_error;

use crate::estimator::EstimatorError;

use crowsnest_plan::eviction::PlacementError;
use crowsnest_plan::eviction::application::ApplicationError;
use crowsnest_plan::eviction::state::StateError;
use crowsnest_plan::overriding;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what}: {}", api_message(source))]
    Request {
        what: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error(transparent)]
    Cache(#[from] crowsnest_index::Error),
    #[error(transparent)]
    Fleet(#[from] crowsnest_members::Error),
    #[error("cannot decode {what}")]
    Decode {
        what: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("{cluster} does not serve {api_version} {kind}")]
    UnknownKind { cluster: ClusterName, api_version: String, kind: String },
    /// The message of Karmada's informer cache.
    #[error("Cluster.cluster.karmada.io {0:?} not found")]
    NoCluster(String),
    #[error(transparent)]
    Override(#[from] overriding::FailedOverride),
    #[error(transparent)]
    Interpreter(#[from] crowsnest_interpreter::Error),
    #[error(transparent)]
    Estimator(#[from] EstimatorError),
    #[error(transparent)]
    Placement(#[from] PlacementError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Application(#[from] ApplicationError),
    #[error("waiting: {0}")]
    Waiting(String),
    #[error("{0}")]
    Apply(String),
    /// A bug. The object is retried later.
    #[error("reconciliation panicked: {0}")]
    Panicked(String),
    #[error("{0} was not executed: this process is no longer the leader")]
    Fenced(String),
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        match error {
            Error::Request { source, .. } => api_error(*source),
            Error::UnknownKind { api_version, kind, .. } => {
                Self::bad_request(format!("no matches for kind {kind:?} in version {api_version:?}"))
            }
            other => Self::internal(other),
        }
    }
}

/// The API server's message, if any.
pub fn api_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// Merges messages without duplicates, like Go's aggregated errors.
pub fn aggregated(messages: impl IntoIterator<Item = String>) -> String {
    let mut each: Vec<String> = Vec::new();
    for message in messages {
        if !each.contains(&message) {
            each.push(message);
        }
    }
    match each.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

impl Error {
    pub fn request(what: impl Into<String>, source: kube::Error) -> Self {
        Error::Request { what: what.into(), source: Box::new(source) }
    }

    /// HTTP status code of the API server's response.
    pub fn code(&self) -> Option<u16> {
        match self {
            Error::Request { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    /// Reason of the API server's Status.
    pub fn reason(&self) -> &str {
        match self {
            Error::Request { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => &status.reason,
                _ => "",
            },
            _ => "",
        }
    }

    /// Message for a condition: the API server's, or that of the error itself.
    pub fn message(&self) -> String {
        match self {
            Error::Request { source, .. } => api_message(source),
            other => other.to_string(),
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Another client wrote or created the object first. A retry will see its version.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// The object is invalid, so the write would be rejected again.
    pub fn is_invalid(&self) -> bool {
        self.code() == Some(422)
    }

    /// True if the failure is reported in an Event of the object. Conflicts, unmet preconditions and writes after the
    /// loss of leadership are not.
    pub fn is_reported(&self) -> bool {
        !self.is_conflict() && !self.is_waiting() && !matches!(self, Error::Fenced(_))
    }

    pub fn is_waiting(&self) -> bool {
        matches!(self, Error::Waiting(_))
    }
}
