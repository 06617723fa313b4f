//! Errors of a sink, their classes for conditions, and the next step of an operator.

use crowsnest_index::export::ExportError;
use neo4rs::{Neo4jClientErrorKind, Neo4jErrorKind};
use std::time::Duration;

/// Error of a sink; it waits and tries again.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    #[error("invalid address {address:?}: {reason}")]
    Address { address: String, reason: String },
    #[error("cannot write the CA certificate of the graph database to a temporary file: {0}")]
    CaCertificates(std::io::Error),
    #[error("{context}: the graph database did not respond within {} s", .after.as_secs())]
    Timeout { context: &'static str, after: Duration },
    #[error("{context}: the graph database returned more than {limit} rows")]
    TooManyRows { context: &'static str, limit: usize },
    #[error("{context}: {}", describe(.source))]
    Bolt {
        context: &'static str,
        #[source]
        source: Box<neo4rs::Error>,
    },
    #[error("the database belongs to the sink {0}")]
    DuplicateSink(String),
    #[error(
        "the sink is no longer the writer of the database: another process took over, or the database was replaced"
    )]
    Fenced,
    #[error(transparent)]
    Source(#[from] ExportError),
    #[error(transparent)]
    Cache(#[from] crowsnest_store::Error),
}

/// The error without the library's own prefix.
fn describe(error: &neo4rs::Error) -> String {
    match error {
        neo4rs::Error::Neo4j(error) => format!("{} ({})", error.message(), error.code()),
        neo4rs::Error::IOError { detail } => detail.to_string(),
        error => error.to_string(),
    }
}

/// Class of a [`SinkError`], the reason of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkFailure {
    InvalidAddress,
    Unreachable,
    CredentialsRejected,
    DatabaseNotFound,
    DuplicateSink,
    /// The database rejected a statement.
    Refused,
    /// The cache cannot be read at present.
    CacheBehind,
}

impl SinkFailure {
    /// Reason of a condition.
    pub fn reason(self) -> &'static str {
        match self {
            Self::InvalidAddress => "InvalidAddress",
            Self::Unreachable => "Unreachable",
            Self::CredentialsRejected => "CredentialsRejected",
            Self::DatabaseNotFound => "DatabaseNotFound",
            Self::DuplicateSink => "NamedTwice",
            Self::Refused => "Refused",
            Self::CacheBehind => "CacheBehind",
        }
    }

    /// The next step of an operator.
    pub fn advice(self) -> &'static str {
        match self {
            Self::InvalidAddress => "correct spec.address: bolt://HOST:PORT or bolt+s://HOST:PORT",
            Self::Unreachable => {
                "check that the database runs, that spec.address names its Bolt port, and that network policies allow the connection"
            }
            Self::CredentialsRejected => "correct username and password in the Secret of spec.secretRef",
            Self::DatabaseNotFound => "create the database, or correct spec.database",
            Self::DuplicateSink => {
                "name another database, or delete that sink and its CrowsnestSink, CrowsnestSync and Resource nodes"
            }
            Self::Refused => {
                "see the log of the database; it must be Neo4j 5 and let the user write and create constraints"
            }
            Self::CacheBehind => "see `crowsnest cache status`; the sink continues by itself",
        }
    }
}

impl SinkError {
    /// Wraps a database error; `context` is the beginning of the message.
    pub(crate) fn bolt(context: &'static str) -> impl FnOnce(neo4rs::Error) -> Self {
        move |source| Self::Bolt { context, source: Box::new(source) }
    }

    /// Class of the error.
    pub fn failure(&self) -> SinkFailure {
        match self {
            Self::Address { .. } => SinkFailure::InvalidAddress,
            Self::Timeout { .. } | Self::Fenced => SinkFailure::Unreachable,
            Self::DuplicateSink(_) => SinkFailure::DuplicateSink,
            Self::TooManyRows { .. } => SinkFailure::Refused,
            Self::Source(_) | Self::Cache(_) | Self::CaCertificates(_) => SinkFailure::CacheBehind,
            Self::Bolt { source, .. } => classify_bolt_error(source),
        }
    }

    /// True if smaller transactions may succeed: the database needed too much time or memory.
    pub(crate) fn needs_smaller_batches(&self) -> bool {
        match self {
            Self::Timeout { .. } => true,
            Self::Bolt { source, .. } => match &**source {
                neo4rs::Error::ConnectionTimedOut => true,
                neo4rs::Error::Neo4j(error) => {
                    ["OutOfMemory", "TransactionTimedOut"].iter().any(|name| error.code().contains(name))
                }
                _ => false,
            },
            _ => false,
        }
    }

    /// The error with its causes and the next step, on one line.
    pub fn message(&self) -> String {
        let text = match self {
            Self::Source(error) => error.chain(),
            Self::Cache(error) => error.chain(),
            error => error.to_string(),
        };
        format!("{text}; {}", self.failure().advice())
    }
}

fn classify_bolt_error(error: &neo4rs::Error) -> SinkFailure {
    match error {
        neo4rs::Error::AuthenticationError(_) => SinkFailure::CredentialsRejected,
        neo4rs::Error::Neo4j(error) => match error.kind() {
            Neo4jErrorKind::Client(Neo4jClientErrorKind::Security(_)) => SinkFailure::CredentialsRejected,
            Neo4jErrorKind::Client(Neo4jClientErrorKind::FatalDiscovery) => SinkFailure::DatabaseNotFound,
            Neo4jErrorKind::Transient => SinkFailure::Unreachable,
            _ => SinkFailure::Refused,
        },
        neo4rs::Error::UrlParseError(_)
        | neo4rs::Error::UnsupportedScheme(_)
        | neo4rs::Error::InvalidDnsName(_)
        | neo4rs::Error::InvalidConfig => SinkFailure::InvalidAddress,
        neo4rs::Error::IOError { .. }
        | neo4rs::Error::ConnectionError
        | neo4rs::Error::ConnectionTimedOut
        | neo4rs::Error::ProtocolMismatch(_)
        | neo4rs::Error::UnsupportedVersion(..) => SinkFailure::Unreachable,
        _ => SinkFailure::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn bolt(source: neo4rs::Error) -> SinkError {
        SinkError::Bolt { context: "cannot write to the graph database", source: Box::new(source) }
    }

    #[rstest]
    #[case::statement(SinkError::Timeout { context: "cannot write", after: Duration::from_secs(60) }, true)]
    #[case::message(bolt(neo4rs::Error::ConnectionTimedOut), true)]
    #[case::connection(bolt(neo4rs::Error::ConnectionError), false)]
    #[case::fenced(SinkError::Fenced, false)]
    fn timeouts_need_smaller_batches(#[case] error: SinkError, #[case] expected: bool) {
        assert_eq!(error.needs_smaller_batches(), expected);
    }
}
