//! Reconciliation errors. Every variant is retried with backoff; [`Error::Waiting`] is not a failure.

use std::time::Duration;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::status::ApiError;
use crowsnest_component_base::client_errors::api_error;

use crate::estimator::EstimatorError;

use crowsnest_plan::eviction::PlacementError;
use crowsnest_plan::eviction::application::ApplicationError;
use crowsnest_plan::eviction::state::StateError;
use crowsnest_plan::overriding;

/// Error of a reconcile, or of a read or write by a controller.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{operation}: {}", api_message(source))]
    Request {
        operation: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error(transparent)]
    Cache(#[from] crowsnest_index::Error),
    #[error(transparent)]
    Members(#[from] crowsnest_members::Error),
    #[error("cannot decode {object}")]
    Decode {
        object: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("cluster {cluster} does not serve {api_version} {kind}")]
    UnknownKind { cluster: ClusterName, api_version: String, kind: String },
    /// With the message that Karmada's informer cache returns.
    #[error("Cluster.cluster.karmada.io {0:?} not found")]
    ClusterNotFound(String),
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
    /// A precondition is not met yet.
    #[error("waiting: {0}")]
    Waiting(String),
    /// A failure without a variant of its own, as a message.
    #[error("{0}")]
    Other(String),
    /// A bug. The object is retried later.
    #[error("reconciliation panicked: {0}")]
    Panicked(String),
    /// A request that was aborted because its response was not complete in time.
    #[error("{operation}: no complete response within {after:?}")]
    Timeout { operation: String, after: Duration },
    /// Discovery in a cluster did not finish in time. Not a failure, like [`Error::Waiting`].
    #[error("discovery in cluster {cluster} timed out after {seconds} s")]
    DiscoveryTimeout { cluster: ClusterName, seconds: u64 },
    /// A request that was not sent, or was aborted, because another replica may be the leader by now.
    #[error("{0} was not completed: this process is no longer the leader")]
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

/// The message of the API server's response, or that of the error itself if there is no response.
pub fn api_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// Joins messages without duplicates, in the format of `Aggregate` in k8s.io/apimachinery/pkg/util/errors.
pub fn aggregate_messages(messages: impl IntoIterator<Item = String>) -> String {
    let mut distinct: Vec<String> = Vec::new();
    for message in messages {
        if !distinct.contains(&message) {
            distinct.push(message);
        }
    }
    match distinct.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

impl Error {
    pub fn request(operation: impl Into<String>, source: kube::Error) -> Self {
        Error::Request { operation: operation.into(), source: Box::new(source) }
    }

    /// HTTP status code of the API server's response, if any.
    pub fn code(&self) -> Option<u16> {
        match self {
            Error::Request { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    /// Reason in the `Status` of the API server's response; empty without one.
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

    /// True if another client wrote or created the object first. A retry reads the current version.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// True if the API server rejected the object as invalid, so that the same write would be rejected again.
    pub fn is_invalid(&self) -> bool {
        self.code() == Some(422)
    }

    /// True if an Event of the object must report the failure. Conflicts, unmet preconditions and writes after the loss
    /// of leadership are not reported.
    pub fn needs_event(&self) -> bool {
        !self.is_conflict() && !self.is_waiting() && !matches!(self, Error::Fenced(_))
    }

    /// True if an API server did not accept a connection or did not respond in time.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Error::Timeout { .. } | Error::DiscoveryTimeout { .. }) || is_dial_timeout(self)
    }

    /// True if a write that failed with this error may have been applied: the API server did not respond, or failed
    /// while it processed the write.
    pub fn has_unknown_outcome(&self) -> bool {
        match self {
            Error::Timeout { .. } | Error::Fenced(_) => true,
            Error::Request { .. } => self.code().is_none_or(|code| code >= 500),
            _ => false,
        }
    }

    pub fn is_waiting(&self) -> bool {
        matches!(self, Error::Waiting(_) | Error::DiscoveryTimeout { .. })
    }
}

/// True if a connection to a member was not accepted in time. The member client's connector returns this error, which
/// is a source of the failed request.
fn is_dial_timeout(error: &Error) -> bool {
    let sources = std::iter::successors(std::error::Error::source(error), |source| source.source());
    sources
        .filter_map(|source| source.downcast_ref::<crowsnest_members::Error>())
        .any(|source| matches!(source, crowsnest_members::Error::DialTimeout { .. }))
}
