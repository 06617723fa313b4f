//! Errors of a reconcile. Every variant is retried with backoff; [`Error::Waiting`] is not a failure.

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
    #[error("{what} is not what it should be")]
    Decode {
        what: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("{cluster} does not serve {api_version} {kind}")]
    UnknownKind { cluster: ClusterName, api_version: String, kind: String },
    /// In the words of a Go client's cache, which Karmada passes on.
    #[error("Cluster.cluster.karmada.io {0:?} not found")]
    NoCluster(String),
    #[error(transparent)]
    Override(#[from] overriding::Failed),
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
    /// A bug of ours. The work on the object is tried again later.
    #[error("the work on it panicked: {0}")]
    Panicked(String),
    #[error("{0} is given up: this process does not lead the controllers any more")]
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

/// The API server's own words where it gave any.
pub fn api_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// Several messages as one, each once, as Go prints an aggregate of errors.
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

    /// The HTTP status the API server answered with.
    pub fn code(&self) -> Option<u16> {
        match self {
            Error::Request { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    /// The reason the API server gave.
    pub fn reason(&self) -> &str {
        match self {
            Error::Request { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => &status.reason,
                _ => "",
            },
            _ => "",
        }
    }

    /// The text a user sees in a condition: the API server's message, or this error's own.
    pub fn message(&self) -> String {
        match self {
            Error::Request { source, .. } => api_message(source),
            other => other.to_string(),
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Somebody else wrote first, or was there first; the next try sees it.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// The object is not valid. The same write will be refused again.
    pub fn is_invalid(&self) -> bool {
        self.code() == Some(422)
    }

    /// True if a failure is reported in an Event of its object. Conflicts, waits for a precondition and writes that another
    /// process does now are not.
    pub fn is_reported(&self) -> bool {
        !self.is_conflict() && !self.is_waiting() && !matches!(self, Error::Fenced(_))
    }

    pub fn is_waiting(&self) -> bool {
        matches!(self, Error::Waiting(_))
    }
}
