//! Errors of a sink, their classes for conditions, and the next step of an operator.

use crate::dialect::Dialect;
use crowsnest_index::export::ExportError;
use neo4rs::{Neo4jClientErrorKind, Neo4jErrorKind};
use std::time::Duration;

/// Context of errors of the statements that write objects.
pub(crate) const WRITE: &str = "cannot write to the graph database";
/// Context of errors of commits.
pub(crate) const COMMIT: &str = "cannot commit to the graph database";

/// Error of a sink; it waits and tries again.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    #[error("invalid address {address:?}: {reason}")]
    Address { address: String, reason: String },
    #[error("cannot write the CA certificate of the graph database to a temporary file: {0}")]
    CaCertificates(#[source] std::io::Error),
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
        "the sink is no longer the writer of the database: another process or sink took over, or the database was replaced"
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
    /// Another process or sink has become the writer, or the database was replaced.
    WriterReplaced,
    /// The CA certificate cannot be stored for the client.
    CertificateNotStored,
    /// The database rejected a statement.
    Refused,
    /// The cache cannot be read at present.
    CacheBehind,
    /// The cache no longer has all deletions that are missing in the graph.
    HistoryTooShort,
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
            Self::WriterReplaced => "WriterReplaced",
            Self::CertificateNotStored => "CertificateNotStored",
            Self::Refused => "Refused",
            Self::CacheBehind => "CacheBehind",
            Self::HistoryTooShort => "HistoryTooShort",
        }
    }

    /// True if the sink may succeed at another IP address of the database, for example at that of a running server or of the
    /// leader of a cluster.
    pub fn depends_on_address(self) -> bool {
        matches!(self, Self::Unreachable | Self::DatabaseNotFound | Self::Refused)
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
            Self::WriterReplaced => {
                "the sink claims the database again automatically; if this repeats, check that only one Crowsnest installation runs the controllers of this control plane"
            }
            Self::CertificateNotStored => {
                "allow Crowsnest to write to its directory for temporary files (TMPDIR), and check the free disk space"
            }
            Self::Refused => {
                "see the log of the database; it must be Neo4j 5 or Memgraph, and the user needs permission to write and to create constraints"
            }
            Self::CacheBehind => "see `crowsnest cache status`; the sink continues automatically",
            Self::HistoryTooShort => {
                "the sink writes everything again automatically; if this repeats, writing takes longer than the cache keeps deletions: raise --cache-history and --cache-history-bytes"
            }
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
            Self::Timeout { .. } => SinkFailure::Unreachable,
            Self::Fenced => SinkFailure::WriterReplaced,
            Self::DuplicateSink(_) => SinkFailure::DuplicateSink,
            Self::CaCertificates(_) => SinkFailure::CertificateNotStored,
            Self::TooManyRows { .. } => SinkFailure::Refused,
            Self::Source(ExportError::Pruned) => SinkFailure::HistoryTooShort,
            Self::Source(_) | Self::Cache(_) => SinkFailure::CacheBehind,
            Self::Bolt { source, .. } => classify_bolt_error(source),
        }
    }

    /// True if the store no longer has all deletions after the position, so that everything must be written again.
    pub(crate) fn needs_reload(&self) -> bool {
        matches!(self, Self::Source(ExportError::Pruned))
    }

    /// True if smaller transactions may succeed: the database needed too much time or memory to write one. The size
    /// makes no difference for a database that is unreachable or locked by another transaction.
    pub(crate) fn needs_smaller_batches(&self) -> bool {
        let depends_on_size = |context: &str| [WRITE, COMMIT].contains(&context);
        match self {
            Self::Timeout { context, .. } => depends_on_size(context),
            Self::Bolt { context, source } if depends_on_size(context) => match &**source {
                neo4rs::Error::ConnectionTimedOut => true,
                neo4rs::Error::Neo4j(error) => is_resource_failure(error.code(), error.message()),
                _ => false,
            },
            _ => false,
        }
    }

    /// Dialect of the database that reported the error; None if it is unknown.
    pub(crate) fn dialect(&self) -> Option<Dialect> {
        match self {
            Self::Bolt { source, .. } => match &**source {
                neo4rs::Error::Neo4j(error) => Dialect::from_failure_code(error.code()),
                _ => None,
            },
            _ => None,
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

/// True if a database reports that it needed too much time or memory. Memgraph has one code for all failures.
fn is_resource_failure(code: &str, message: &str) -> bool {
    let is_neo4j = ["OutOfMemory", "TransactionTimedOut"].iter().any(|name| code.contains(name));
    is_neo4j || Dialect::from_failure_code(code) == Some(Dialect::Memgraph) && message.contains("Memory limit exceeded")
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

    #[rstest]
    #[case::address(SinkError::Address { address: "x".to_owned(), reason: "y".to_owned() }, "InvalidAddress", "spec.address")]
    #[case::timeout(SinkError::Timeout { context: "cannot write", after: Duration::from_secs(60) }, "Unreachable", "runs")]
    #[case::connection(bolt(neo4rs::Error::ConnectionError), "Unreachable", "network policies")]
    #[case::credentials(bolt(neo4rs::Error::AuthenticationError("no".to_owned())), "CredentialsRejected", "spec.secretRef")]
    #[case::fenced(SinkError::Fenced, "WriterReplaced", "automatically")]
    #[case::certificate(SinkError::CaCertificates(std::io::ErrorKind::StorageFull.into()), "CertificateNotStored", "TMPDIR")]
    #[case::duplicate(SinkError::DuplicateSink("other".to_owned()), "NamedTwice", "another database")]
    #[case::rows(SinkError::TooManyRows { context: "cannot read", limit: 1 }, "Refused", "log of the database")]
    #[case::cache(SinkError::Cache(crowsnest_store::Error::Incomplete), "CacheBehind", "cache status")]
    #[case::pruned(
        SinkError::Source(ExportError::Pruned),
        "HistoryTooShort",
        "--cache-history and --cache-history-bytes"
    )]
    fn each_failure_has_its_own_next_step(#[case] error: SinkError, #[case] reason: &str, #[case] advice: &str) {
        assert_eq!(error.failure().reason(), reason);
        assert!(error.message().ends_with(error.failure().advice()));
        assert!(error.failure().advice().contains(advice), "{}", error.message());
    }

    #[rstest]
    #[case::connection(bolt(neo4rs::Error::ConnectionError), true)]
    #[case::rejected(SinkError::TooManyRows { context: "cannot read", limit: 1 }, true)]
    #[case::credentials(bolt(neo4rs::Error::AuthenticationError("no".to_owned())), false)]
    #[case::another_sink(SinkError::DuplicateSink("other".to_owned()), false)]
    #[case::another_process(SinkError::Fenced, false)]
    #[case::cache(SinkError::Cache(crowsnest_store::Error::Incomplete), false)]
    fn only_failures_of_a_server_depend_on_its_address(#[case] error: SinkError, #[case] expected: bool) {
        assert_eq!(error.failure().depends_on_address(), expected);
    }

    #[rstest]
    #[case::neo4j_memory("Neo.TransientError.General.OutOfMemoryError", "", true)]
    #[case::neo4j_time("Neo.ClientError.Transaction.TransactionTimedOut", "", true)]
    #[case::neo4j_syntax("Neo.ClientError.Statement.SyntaxError", "Memory limit exceeded!", false)]
    #[case::memgraph_memory("Memgraph.TransientError.MemgraphError.MemgraphError", "Memory limit exceeded!", true)]
    #[case::memgraph_conflict("Memgraph.TransientError.MemgraphError.MemgraphError", "conflicting transactions", false)]
    fn databases_report_a_lack_of_time_or_memory(#[case] code: &str, #[case] message: &str, #[case] expected: bool) {
        assert_eq!(is_resource_failure(code, message), expected);
    }

    fn bolt(source: neo4rs::Error) -> SinkError {
        bolt_in(WRITE, source)
    }

    fn bolt_in(context: &'static str, source: neo4rs::Error) -> SinkError {
        SinkError::Bolt { context, source: Box::new(source) }
    }

    fn timeout(context: &'static str) -> SinkError {
        SinkError::Timeout { context, after: Duration::from_secs(60) }
    }

    const CONNECT: &str = "cannot connect to the graph database";

    #[rstest]
    #[case::statement(timeout(WRITE), true)]
    #[case::commit(timeout(COMMIT), true)]
    #[case::message(bolt(neo4rs::Error::ConnectionTimedOut), true)]
    #[case::begin(timeout(CONNECT), false)]
    #[case::connecting(bolt_in(CONNECT, neo4rs::Error::ConnectionTimedOut), false)]
    #[case::lock(timeout("cannot prepare the graph database"), false)]
    #[case::connection(bolt(neo4rs::Error::ConnectionError), false)]
    #[case::fenced(SinkError::Fenced, false)]
    fn transactions_that_time_out_need_smaller_batches(#[case] error: SinkError, #[case] expected: bool) {
        assert_eq!(error.needs_smaller_batches(), expected);
    }
}
