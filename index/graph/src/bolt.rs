//! Connection to a graph database over Bolt.

use crate::error::{COMMIT, SinkError};
use neo4rs::{BoltList, BoltMap, BoltNull, BoltType, ConfigBuilder, Database, Graph, Query, Txn};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt;
use std::io::Write as _;
use std::time::Duration;

/// Supported schemes. `neo4j:` (routing to the leader of a cluster) needs unstable features of neo4rs.
const SCHEMES: [&str; 2] = ["bolt", TLS_SCHEME];
/// Scheme of addresses with TLS.
const TLS_SCHEME: &str = "bolt+s";
/// Time limit of one statement, and of opening a connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of rows read from a result.
const MAX_RESULT_ROWS: usize = 500_000;

/// A database and its credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct BoltTarget {
    /// `bolt://HOST:PORT`, or `bolt+s://HOST:PORT` for TLS.
    pub address: String,
    /// Empty without credentials.
    pub username: String,
    pub password: String,
    /// Empty: the default database of the user.
    pub database: String,
    /// CA certificates for the database in PEM; None: those of the system.
    pub ca_certificates: Option<String>,
}

impl fmt::Debug for BoltTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, username, database, .. } = self;
        write!(f, "BoltTarget {{ {address:?}, username: {username:?}, database: {database:?} }}")
    }
}

/// A checked address of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoltAddress {
    /// Normalised address: the scheme is lower case, and surrounding spaces are removed.
    pub url: String,
    /// True for `bolt+s:`.
    pub has_tls: bool,
    /// Name or IP address, without brackets.
    pub host: String,
    /// Default 7687.
    pub port: u16,
}

/// Checks a `bolt:` or `bolt+s:` address.
pub fn parse_address(address: &str) -> Result<BoltAddress, SinkError> {
    let invalid = |reason: &str| SinkError::Address { address: address.to_owned(), reason: reason.to_owned() };
    let url = url::Url::parse(address).map_err(|error| invalid(&error.to_string()))?;
    if !SCHEMES.contains(&url.scheme()) {
        return Err(invalid("the scheme must be bolt or bolt+s"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("credentials belong in a Secret"));
    }
    if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
        return Err(invalid("it must end with the port"));
    }
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(|| invalid("it has no host"))?;
    Ok(BoltAddress {
        has_tls: url.scheme() == TLS_SCHEME,
        host: host.trim_matches(['[', ']']).to_owned(),
        port: url.port().unwrap_or(7687),
        url: url.to_string(),
    })
}

/// A connection to a graph database, with one transaction at a time.
pub struct Bolt {
    graph: Graph,
}

/// Parameters of a statement.
pub type Parameters = Vec<(&'static str, Value)>;

impl Bolt {
    /// Prepares a connection; it is opened with the first transaction.
    pub fn new(target: &BoltTarget) -> Result<Self, SinkError> {
        const CONTEXT: &str = "cannot use the address of the graph database";
        let address = parse_address(&target.address)?;
        let mut config = ConfigBuilder::default()
            .uri(address.url)
            .user(&target.username)
            .password(&target.password)
            .max_connections(1)
            // The library applies it to each message that it receives.
            .connection_timeout(REQUEST_TIMEOUT);
        if !target.database.is_empty() {
            config = config.db(Database::from(target.database.as_str()));
        }
        // The library accepts certificates as a file only, and reads it in `build`.
        let file =
            target.ca_certificates.as_deref().map(write_temp_file).transpose().map_err(SinkError::CaCertificates)?;
        if let Some(file) = &file {
            config = config.with_client_certificate(file.path());
        }
        let config = config.build().map_err(SinkError::bolt(CONTEXT))?;
        let graph = Graph::connect(config).map_err(SinkError::bolt(CONTEXT))?;
        Ok(Self { graph })
    }

    /// Begins a transaction; opens the connection if necessary.
    pub async fn begin(&self) -> Result<Transaction, SinkError> {
        const CONTEXT: &str = "cannot connect to the graph database";
        let transaction = with_timeout(CONTEXT, self.graph.start_txn()).await?;
        Ok(Transaction { transaction })
    }

    /// Runs a statement without a result, for which the database begins and commits a transaction. The library repeats it
    /// after transient failures, within the time limit of a statement.
    pub async fn run_auto_commit(&self, context: &'static str, text: &str) -> Result<(), SinkError> {
        with_timeout(context, self.graph.run(new_query(text, Vec::new()))).await
    }
}

fn write_temp_file(text: &str) -> std::io::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(text.as_bytes())?;
    file.flush()?;
    Ok(file)
}

/// A transaction; rolled back unless it is committed.
pub struct Transaction {
    transaction: Txn,
}

impl Transaction {
    /// Runs a statement without a result. `context` is the beginning of the error message.
    pub async fn run(&mut self, context: &'static str, text: &str, parameters: Parameters) -> Result<(), SinkError> {
        with_timeout(context, self.transaction.run(new_query(text, parameters))).await
    }

    /// Runs a statement and reads its rows. Fails if there are more than 500,000. `context` is the beginning of the error
    /// message.
    pub async fn query<T: DeserializeOwned>(
        &mut self,
        context: &'static str,
        text: &str,
        parameters: Parameters,
    ) -> Result<Vec<T>, SinkError> {
        let transaction = &mut self.transaction;
        let rows = with_timeout(context, async {
            let mut stream = transaction.execute(new_query(text, parameters)).await?;
            let mut rows = Vec::new();
            while let Some(row) = stream.next(transaction.handle()).await? {
                rows.push(row.to::<T>()?);
                if rows.len() > MAX_RESULT_ROWS {
                    break;
                }
            }
            Ok(rows)
        })
        .await?;
        if rows.len() > MAX_RESULT_ROWS {
            return Err(SinkError::TooManyRows { context, limit: MAX_RESULT_ROWS });
        }
        Ok(rows)
    }

    pub async fn commit(self) -> Result<(), SinkError> {
        with_timeout(COMMIT, self.transaction.commit()).await
    }
}

async fn with_timeout<T>(
    context: &'static str,
    request: impl Future<Output = Result<T, neo4rs::Error>>,
) -> Result<T, SinkError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(result) => result.map_err(SinkError::bolt(context)),
        Err(_) => Err(SinkError::Timeout { context, after: REQUEST_TIMEOUT }),
    }
}

fn new_query(text: &str, parameters: Parameters) -> Query {
    let parameters = parameters.into_iter().map(|(name, value)| (name, bolt_value(value)));
    Query::new(text.to_owned()).params(parameters)
}

/// JSON as a value of Bolt. Numbers are integers where they can be.
fn bolt_value(value: Value) -> BoltType {
    match value {
        Value::Null => BoltType::Null(BoltNull),
        Value::Bool(value) => value.into(),
        Value::Number(number) => match number.as_i64() {
            Some(number) => number.into(),
            None => number.as_f64().unwrap_or_default().into(),
        },
        Value::String(text) => text.into(),
        Value::Array(list) => BoltType::List(BoltList::from(list.into_iter().map(bolt_value).collect::<Vec<_>>())),
        Value::Object(map) => {
            let entries = map.into_iter().map(|(key, value)| (key.into(), bolt_value(value)));
            BoltType::Map(entries.collect::<BoltMap>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("bolt://graph.db.svc:7688", Ok(("bolt://graph.db.svc:7688", false, "graph.db.svc", 7688)))]
    #[case("bolt+s://graph.example", Ok(("bolt+s://graph.example", true, "graph.example", 7687)))]
    #[case("bolt://[::1]:7687", Ok(("bolt://[::1]:7687", false, "::1", 7687)))]
    #[case::upper_case("BOLT://10.0.0.1", Ok(("bolt://10.0.0.1", false, "10.0.0.1", 7687)))]
    #[case::upper_case_with_tls("Bolt+S://10.0.0.1", Ok(("bolt+s://10.0.0.1", true, "10.0.0.1", 7687)))]
    #[case::spaces(" bolt://10.0.0.1 ", Ok(("bolt://10.0.0.1", false, "10.0.0.1", 7687)))]
    #[case::line_breaks("bo\nlt://10.0.0.1\t", Ok(("bolt://10.0.0.1", false, "10.0.0.1", 7687)))]
    #[case("neo4j://graph.example", Err("scheme"))]
    #[case("bolt+ssc://graph.example", Err("scheme"))]
    #[case("https://graph.example", Err("scheme"))]
    #[case("bolt://a:b@graph.example", Err("Secret"))]
    #[case("bolt://graph.example/db", Err("port"))]
    #[case("graph.example:7687", Err("scheme"))]
    #[case("bolt://", Err("host"))]
    #[case("", Err("relative"))]
    fn an_address_needs_a_bolt_scheme_and_a_host_and_nothing_after_the_port(
        #[case] address: &str,
        #[case] expected: Result<(&str, bool, &str, u16), &str>,
    ) {
        match (parse_address(address), expected) {
            (Ok(actual), Ok((url, has_tls, host, port))) => {
                let expected = BoltAddress { url: url.to_owned(), has_tls, host: host.to_owned(), port };
                assert_eq!(actual, expected);
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (actual, _) => panic!("{address}: {actual:?}"),
        }
    }

    #[test]
    fn debug_output_omits_the_password() {
        let target = BoltTarget {
            address: "bolt://graph.example".to_owned(),
            username: "neo4j".to_owned(),
            password: "hunter2".to_owned(),
            database: String::new(),
            ca_certificates: None,
        };
        assert!(!format!("{target:?}").contains("hunter2"));
    }
}
