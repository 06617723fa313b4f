//! Errors of requests to a search engine.

use super::detect::{DetectedServer, SUPPORTED};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::path::PathBuf;
use std::time::Duration;

/// Length in characters to which the `type` of an error response is truncated.
const MAX_TYPE_CHARS: usize = 128;
/// Length in characters to which the `reason` of an error response is truncated.
const MAX_REASON_CHARS: usize = 512;

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no address of the search engine is given")]
    NoHosts,
    /// The address is not quoted: it may contain a password.
    #[error("address {index} of the search engine {problem}")]
    Address { index: usize, problem: &'static str },
    #[error(
        "address {index} of the search engine is a {kind} address of this host; set --allow-local-endpoints to allow it"
    )]
    LocalAddress { index: usize, kind: &'static str },
    /// The address is not quoted: it may contain a password.
    #[error("the proxy's address is not a URL")]
    ProxyAddress,
    #[error("cannot use the search engine's credentials: {0}")]
    Credentials(String),
    #[error("cannot read the search engine's credentials from {}", path.display())]
    CredentialFile {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("no cryptography provider of rustls is installed in this process")]
    NoCryptography,
    #[error("cannot set up the connection to the search engine: {part}")]
    Setup {
        part: &'static str,
        #[source]
        source: reqwest::Error,
    },
    #[error("cannot compress a request to the search engine")]
    Compress(#[source] std::io::Error),
    #[error("the connection to {host} failed")]
    Connection {
        host: String,
        #[source]
        source: reqwest::Error,
    },
    #[error("{host} did not respond within {timeout:?}")]
    Deadline { host: String, timeout: Duration },
    #[error("{host} responded with a redirect ({status}), which is not followed")]
    Redirect { host: String, status: u16 },
    #[error("{host} responded with more than {limit} bytes")]
    TooLarge { host: String, limit: usize },
    #[error("{host} returned {error_response}")]
    Refused { host: String, error_response: ErrorResponse },
    #[error("cannot read the search engine's response to {operation}")]
    Unreadable {
        operation: &'static str,
        #[source]
        source: serde_json::Error,
    },
    #[error("the search engine is {0}, which is not supported: use {SUPPORTED}")]
    Unsupported(DetectedServer),
    #[error("{host} responds like Elasticsearch {version} but without the header X-Elastic-Product: use {SUPPORTED}")]
    NotElasticsearch { host: String, version: String },
}

/// An error response of an engine, for a request or for one item of a bulk request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{status} {kind}: {reason}")]
pub struct ErrorResponse {
    /// HTTP status.
    pub status: u16,
    /// `error.type`, empty when the engine sent none.
    pub kind: String,
    /// `error.reason` with that of the cause, truncated to 512 characters.
    pub reason: String,
}

/// An `error` object as engines send it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum ErrorBody {
    Object {
        #[serde(rename = "type", default)]
        kind: Option<String>,
        #[serde(default)]
        reason: Option<String>,
        #[serde(default)]
        caused_by: Option<Cause>,
    },
    Text(String),
    Other(IgnoredAny),
}

#[derive(Debug, Deserialize)]
pub(crate) struct Cause {
    #[serde(default)]
    reason: Option<String>,
}

#[derive(Deserialize)]
struct ErrorResponseBody {
    error: Option<ErrorBody>,
}

impl ClientError {
    /// True if the same request may succeed later without a change of configuration.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connection { source, .. } => !is_certificate_error(source),
            Self::Deadline { .. } => true,
            Self::Refused { error_response, .. } => error_response.is_retryable(),
            _ => false,
        }
    }

    /// True if another node may respond, because this one is unreachable or temporarily unavailable.
    pub(super) fn allows_other_host(&self) -> bool {
        match self {
            Self::Connection { .. } | Self::Deadline { .. } => true,
            Self::Refused { error_response, .. } => matches!(error_response.status, 502..=504),
            _ => false,
        }
    }

    /// The error with its causes, on one line.
    pub fn chain(&self) -> String {
        let causes = std::iter::successors(std::error::Error::source(self), |error| error.source());
        causes.fold(self.to_string(), |text, cause| format!("{text}: {cause}"))
    }

    /// True if the engine's certificate or the client certificate was refused.
    pub fn is_about_certificates(&self) -> bool {
        matches!(self, Self::Connection { source, .. } if is_certificate_error(source))
    }

    /// The error response of the engine; None for other failures.
    pub fn error_response(&self) -> Option<&ErrorResponse> {
        match self {
            Self::Refused { error_response, .. } => Some(error_response),
            _ => None,
        }
    }

    /// True for an error response with this `error.type`; it is empty if the engine sent none.
    pub fn is_kind(&self, kind: &str) -> bool {
        self.error_response().is_some_and(|error_response| error_response.kind == kind)
    }

    /// HTTP status of an error response; None for other failures.
    pub fn status(&self) -> Option<u16> {
        self.error_response().map(|error_response| error_response.status)
    }
}

impl ErrorResponse {
    /// Reads the body of a failed request. An empty or invalid body yields an empty kind and reason.
    pub(crate) fn parse(status: u16, body: &[u8]) -> Self {
        match serde_json::from_slice::<ErrorResponseBody>(body) {
            Ok(ErrorResponseBody { error: Some(error) }) => Self::new(status, Some(error)),
            _ => Self::new(status, None),
        }
    }

    pub(crate) fn new(status: u16, error: Option<ErrorBody>) -> Self {
        let (kind, reason) = match error {
            Some(ErrorBody::Object { kind, reason, caused_by }) => {
                let reason = reason.unwrap_or_default();
                let cause = caused_by.and_then(|cause| cause.reason).filter(|cause| !reason.contains(cause.as_str()));
                (kind.unwrap_or_default(), cause.map(|cause| format!("{reason}: {cause}")).unwrap_or(reason))
            }
            Some(ErrorBody::Text(reason)) => (String::new(), reason),
            Some(ErrorBody::Other(_)) | None => (String::new(), String::new()),
        };
        Self { status, kind: truncate(kind, MAX_TYPE_CHARS), reason: truncate(reason, MAX_REASON_CHARS) }
    }

    /// True for overload and unavailable nodes: the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self.status {
            429 | 502..=504 => true,
            500 => self.kind == "node_not_connected_exception" || self.kind == "node_disconnected_exception",
            _ => false,
        }
    }

    /// True if the index, and not the request or the document, is the cause: it is missing, closed or blocked, or the caller
    /// has no permission to it.
    pub fn is_about_index(&self) -> bool {
        matches!(
            self.kind.as_str(),
            "index_not_found_exception" | "index_closed_exception" | "cluster_block_exception" | "security_exception"
        ) || matches!(self.status, 401 | 403)
    }
}

/// Truncates an engine's text to a number of characters; control characters become spaces.
fn truncate(text: String, characters: usize) -> String {
    let mut truncated: String = text.chars().take(characters).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if truncated.len() < text.len() {
        truncated.push('…');
    }
    truncated
}

/// True if the engine's certificate or the client certificate was refused, so that a retry does not help.
fn is_certificate_error(error: &reqwest::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let text = error.to_string();
        if text.contains("certificate") || text.contains("CertificateRequired") {
            return true;
        }
        cause = error.source();
    }
    false
}

impl From<ClientError> for crowsnest_store::Error {
    fn from(error: ClientError) -> Self {
        Self::SearchEngine(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::object(
        br#"{"error":{"root_cause":[],"type":"illegal_argument_exception","reason":"no"},"status":400}"#,
        "illegal_argument_exception",
        "no"
    )]
    #[case::cause(
        br#"{"error":{"type":"mapper_parsing_exception","reason":"failed to parse","caused_by":{"type":"x","reason":"For input"}}}"#,
        "mapper_parsing_exception",
        "failed to parse: For input"
    )]
    #[case::text(br#"{"error":"alias [a] missing","status":404}"#, "", "alias [a] missing")]
    #[case::number(br#"{"error":7}"#, "", "")]
    #[case::html(b"<html>Bad gateway</html>", "", "")]
    #[case::empty(b"", "", "")]
    fn error_bodies_are_parsed(#[case] body: &[u8], #[case] kind: &str, #[case] reason: &str) {
        let expected = ErrorResponse { status: 400, kind: kind.to_owned(), reason: reason.to_owned() };
        assert_eq!(ErrorResponse::parse(400, body), expected);
    }

    #[test]
    fn long_reasons_are_cut_by_characters() {
        let body = format!(r#"{{"error":{{"type":"t","reason":"{}"}}}}"#, "ä\\n".repeat(4000));
        let error_response = ErrorResponse::parse(400, body.as_bytes());
        assert_eq!(error_response.reason.chars().count(), MAX_REASON_CHARS + 1);
        assert!(!error_response.reason.contains('\n') && error_response.reason.ends_with('…'));
    }
}
