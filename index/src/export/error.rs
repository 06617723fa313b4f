//! Errors of exports, and their classes in the status.

use crowsnest_search::opensearch::client::{ClientError, ErrorResponse};
use crowsnest_search::opensearch::writer::WriterError;
use crowsnest_store::Error;

/// Reason why an export is delayed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Store(#[from] Error),
    #[error("cannot save the state of the export")]
    State(#[source] serde_json::Error),
    #[error("cannot decode {content} from the backend")]
    InvalidResponse {
        content: &'static str,
        #[source]
        source: serde_json::Error,
    },
    #[error("the backend does not accept documents: {0}")]
    WritesRejected(String),
    #[error("the index {index} cannot be written to: {error_response}")]
    Index { index: String, error_response: ErrorResponse },
    #[error("only {responded} of {total} shards of {index} responded")]
    Partial { index: String, responded: u64, total: u64 },
    #[error("{other} is an index, not an alias; delete or rename it")]
    AliasIsIndex { other: String },
    #[error("this backend is already configured with another address: {0}")]
    DuplicateBackend(String),
    /// The comparison is repeated with a higher epoch.
    #[error("the backend contains documents of a later epoch, {epoch}")]
    Ahead { epoch: u64 },
    /// Deletions after the position were pruned.
    #[error("deletions after the export position are no longer kept")]
    Pruned,
}

/// Class of an [`ExportError`], for the status of the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFailure {
    Unreachable,
    Credentials,
    Certificate,
    Unsupported,
    DuplicateBackend,
    /// The backend responds, but rejects documents.
    Refused,
    /// The cause is in this process.
    Internal,
}

impl ExportError {
    /// The error with its causes, on one line.
    pub fn chain(&self) -> String {
        let causes = std::iter::successors(std::error::Error::source(self), |error| error.source());
        match self {
            Self::Client(error) => error.chain(),
            Self::Store(error) => error.chain(),
            _ => causes.fold(self.to_string(), |text, cause| format!("{text}: {cause}")),
        }
    }

    pub fn failure(&self) -> ExportFailure {
        match self {
            Self::Client(error) => classify_client_error(error),
            Self::Index { error_response, .. } if matches!(error_response.status, 401 | 403) => {
                ExportFailure::Credentials
            }
            Self::Index { .. } | Self::WritesRejected(_) | Self::Partial { .. } | Self::AliasIsIndex { .. } => {
                ExportFailure::Refused
            }
            Self::DuplicateBackend(_) => ExportFailure::DuplicateBackend,
            Self::InvalidResponse { .. } => ExportFailure::Refused,
            Self::Store(_) | Self::State(_) | Self::Ahead { .. } | Self::Pruned => ExportFailure::Internal,
        }
    }

    /// True if the same request may succeed later without a change of configuration.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Client(error) => error.is_retryable(),
            Self::DuplicateBackend(_) | Self::AliasIsIndex { .. } => false,
            Self::Index { error_response, .. } => error_response.is_retryable(),
            _ => true,
        }
    }
}

/// Class of a client's failure, including a failure to create it.
pub fn classify_client_error(error: &ClientError) -> ExportFailure {
    match error {
        ClientError::Connection { .. } if error.is_about_certificates() => ExportFailure::Certificate,
        ClientError::Setup { .. } => ExportFailure::Certificate,
        ClientError::Connection { .. }
        | ClientError::Deadline { .. }
        | ClientError::Redirect { .. }
        | ClientError::NoHosts
        | ClientError::Address { .. }
        | ClientError::LocalAddress { .. }
        | ClientError::ProxyAddress => ExportFailure::Unreachable,
        ClientError::Credentials(_) | ClientError::CredentialFile { .. } => ExportFailure::Credentials,
        ClientError::Unsupported(_) | ClientError::NotElasticsearch { .. } => ExportFailure::Unsupported,
        ClientError::Refused { error_response, .. } => match error_response.status {
            401 | 403 => ExportFailure::Credentials,
            502..=504 => ExportFailure::Unreachable,
            _ => ExportFailure::Refused,
        },
        ClientError::NoCryptography | ClientError::Compress(_) => ExportFailure::Internal,
        ClientError::TooLarge { .. } | ClientError::Unreadable { .. } => ExportFailure::Refused,
    }
}

impl ExportError {
    pub(super) fn from_writer(index: &str, error: WriterError) -> Self {
        match error {
            WriterError::Client(error) => Self::Client(error),
            WriterError::Index(error_response) => Self::Index { index: index.to_owned(), error_response },
            error => Self::WritesRejected(error.to_string()),
        }
    }
}
