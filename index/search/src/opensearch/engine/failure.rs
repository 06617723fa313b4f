//! Reasons why the engine did not complete a search.

use crate::opensearch::client::ClientError;
use crate::opensearch::dsl::DslError;
use crate::opensearch::order::{HitError, OrderError};
use crate::opensearch::response::{PartialReason, ResponseError};
use crate::opensearch::writer::WriterError;
use crowsnest_store::Error;

/// Reason why the engine did not complete a search.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Query(#[from] DslError),
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error("the search engine did not respond in time")]
    Deadline,
    #[error("a limit was reached before everything was found")]
    Incomplete,
    #[error("the response of the search engine is incomplete: {0}")]
    Partial(PartialReason),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Response(#[from] ResponseError),
    #[error("{0}: nothing was searched")]
    Index(WriterError),
    #[error("cannot read manifests")]
    Store(#[source] Error),
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Response(error.into())
    }
}

impl From<HitError> for Failure {
    fn from(error: HitError) -> Self {
        Self::Response(error.into())
    }
}

impl Failure {
    /// True if the engine has no index of that name.
    pub fn is_missing_index(&self) -> bool {
        let Self::Client(error) = self else { return false };
        error.is_kind("index_not_found_exception")
    }

    /// The notice for the caller, which names no node. Errors of the store and unreadable responses are returned as
    /// errors.
    pub fn into_notice(self) -> Result<String, Error> {
        let error = match self {
            Self::Client(ClientError::Deadline { .. }) => return Self::Deadline.into_notice(),
            Self::Client(error) => error,
            Self::Store(error) => return Err(error),
            Self::Response(_) => return Err(self.into_error()),
            other => return Ok(other.to_string()),
        };
        tracing::warn!(error = error.chain(), "a search in the search engine failed");
        Ok(match error.error_response() {
            Some(error_response) if error_response.status == 400 => {
                format!("the search engine refuses the query: {}", error_response.reason)
            }
            Some(error_response) if error_response.kind == "index_not_found_exception" => {
                "the search engine has no index yet: nothing was searched".to_owned()
            }
            Some(error_response) => {
                format!("the search engine refuses requests now ({}): nothing was searched", error_response.status)
            }
            None => "the search engine does not respond: nothing was searched".to_owned(),
        })
    }

    /// The error for methods that cannot return an incomplete result.
    pub fn into_error(self) -> Error {
        match self {
            Self::Deadline | Self::Incomplete | Self::Partial(_) => Error::Incomplete,
            Self::Store(error) => error,
            other => Error::text("cannot be searched", other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opensearch::client::ErrorResponse;
    use rstest::rstest;

    fn refused_failure(status: u16, kind: &str) -> Failure {
        let error_response = ErrorResponse { status, kind: kind.to_owned(), reason: "too much effort".to_owned() };
        Failure::Client(ClientError::Refused { host: "http://engine.example:9200".to_owned(), error_response })
    }

    #[rstest]
    #[case::refused(refused_failure(400, "x"), Some("the search engine refuses the query: too much effort"))]
    #[case::no_index(
        refused_failure(404, "index_not_found_exception"),
        Some("the search engine has no index yet: nothing was searched")
    )]
    #[case::overload(
        refused_failure(429, "x"),
        Some("the search engine refuses requests now (429): nothing was searched")
    )]
    #[case::unreachable(
        Failure::Client(ClientError::NoHosts),
        Some("the search engine does not respond: nothing was searched")
    )]
    #[case::another_cache(
        Failure::Index(WriterError::OtherSource),
        Some("the index behind the alias was filled from another cache and is being replaced: nothing was searched")
    )]
    #[case::late(Failure::Deadline, Some("the search engine did not respond in time"))]
    #[case::too_deep(DslError::Depth(30).into(), Some("the expanded query is nested 30 levels deep; the search engine accepts at most 18"))]
    #[case::unreadable(Failure::Response(ResponseError::Missing("a facet")), None)]
    fn notices_name_no_node(#[case] failure: Failure, #[case] expected: Option<&str>) {
        assert_eq!(failure.into_notice().ok().as_deref(), expected);
    }
}
