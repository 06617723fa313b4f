//! Connections to the database: options, timeouts, security, and the name of the database in messages.

use super::SCHEMA;
use crate::{Error, PostgresOptions};
use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use std::str::FromStr;
use std::time::Duration;

/// Timeout for opening a connection.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connection options from the URL, with the application name `application`.
pub(super) fn connect_options(options: &PostgresOptions, application: &str) -> Result<PgConnectOptions, Error> {
    let url = options.url.reveal();
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        let text = "the URL of the cache's database must begin with postgres://";
        return Err(Error::StoreFormat(text.to_owned()));
    }
    Ok(PgConnectOptions::from_str(url)
        .map_err(|e| Error::store("has an invalid URL (expected postgres://user@host/database)", e))?
        .application_name(application)
        .statement_cache_capacity(64)
        .options([
            ("search_path", SCHEMA),
            // All queries can use an index. Directly after a large list, the statistics are outdated and report empty
            // tables, so the planner would choose sequential scans.
            ("enable_seqscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            // The cost penalty of disabled plans would trigger JIT compilation, which takes a second each time.
            ("jit", "off"),
            ("lock_timeout", "10s"),
            ("statement_timeout", "30s"),
            // A suspended replica must not keep its locks.
            ("idle_in_transaction_session_timeout", "3s"),
            ("tcp_keepalives_idle", "5"),
            ("tcp_keepalives_interval", "2"),
            ("tcp_keepalives_count", "3"),
            ("tcp_user_timeout", "10000"),
            ("client_min_messages", "warning"),
        ]))
}

/// Describes how an attacker on the network path can read or take over a connection; `None` if this is not possible.
/// `require` encrypts but accepts any certificate, as in libpq. `prefer`, the default, continues without TLS if the
/// server's response requests that. `allow` never attempts TLS.
pub(super) fn describe_insecurity(connect: &PgConnectOptions) -> Option<&'static str> {
    let host = connect.get_host();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_local = connect.get_socket().is_some()
        || host == "localhost"
        || host.starts_with('/')
        || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    match connect.get_ssl_mode() {
        _ if is_local => None,
        PgSslMode::VerifyFull => None,
        PgSslMode::VerifyCa => Some("the host name in the database's certificate is not verified: sslmode=verify-ca"),
        PgSslMode::Require => Some("the database's certificate is not verified: sslmode=require"),
        PgSslMode::Prefer => Some("an attacker on the network can disable TLS: sslmode=prefer"),
        PgSslMode::Allow | PgSslMode::Disable => Some("the connection has no TLS: sslmode=disable or allow"),
    }
}

/// Error for a response that exceeded the time limit.
pub(super) fn timeout_error() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "the database did not respond"))
}

pub(super) async fn open_connection(connect: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let opening = tokio::time::timeout(CONNECT_TIMEOUT, PgConnection::connect_with(connect));
    opening.await.unwrap_or_else(|_| Err(timeout_error()))
}

/// Application name of a replica's connections.
pub(super) fn application_name(replica: &str) -> String {
    format!("crowsnest {replica}")
}

/// Name of the database for messages; never contains the password.
pub(super) fn database_name(connect: &PgConnectOptions) -> String {
    let database = connect.get_database().unwrap_or_else(|| connect.get_username());
    match connect.get_socket() {
        Some(socket) => format!("{database} at {}", socket.display()),
        None => format!("{database} at {}:{}", connect.get_host(), connect.get_port()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    #[rstest]
    #[case::verified("postgres://me:pw@db.example/crowsnest?sslmode=verify-full", None)]
    #[case::verified_by_a_file("postgres://me:pw@db/crowsnest?sslmode=verify-full&sslrootcert=/etc/ca.crt", None)]
    #[case::any_host("postgres://me:pw@db/crowsnest?sslmode=verify-ca", Some("host name"))]
    #[case::any_certificate("postgres://me:pw@db/crowsnest?sslmode=require", Some("is not verified"))]
    #[case::downgrade_possible("postgres://me:pw@db/crowsnest?sslmode=prefer", Some("can disable TLS"))]
    #[case::allowed("postgres://me:pw@db/crowsnest?sslmode=allow", Some("has no TLS"))]
    #[case::disabled("postgres://me:pw@10.0.0.7/crowsnest?sslmode=disable", Some("has no TLS"))]
    #[case::this_machine("postgres://me:pw@127.0.0.1:5432/crowsnest?sslmode=disable", None)]
    #[case::this_machine_by_name("postgres://me:pw@localhost/crowsnest?sslmode=disable", None)]
    #[case::this_machine_by_ipv6("postgres://me:pw@[::1]/crowsnest?sslmode=disable", None)]
    fn insecure_connections_are_described(#[case] url: &str, #[case] expected: Option<&str>) {
        let connect = connect_options(&PostgresOptions::new(url), "test").unwrap();
        let found = describe_insecurity(&connect);
        assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
        assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()), "{found:?}");
        assert!(!database_name(&connect).contains("pw"));
    }

    #[rstest]
    #[case("postgres://me:open-sesame@db/crowsnest?sslmode=nonsense")]
    #[case("postgres://me:open-sesame@db:port/crowsnest")]
    #[case("postgres://me:open-sesame@[db/crowsnest")]
    fn invalid_urls_are_not_repeated_in_errors(#[case] url: &str) {
        let error = connect_options(&PostgresOptions::new(url), "test").unwrap_err();
        let message = format!("{error} {error:?}");
        assert!(!message.contains("sesame"), "{message}");
    }

    /// Simulated attacker that responds that the database has no TLS, and records the next message.
    async fn start_downgrading_server() -> (u16, tokio::task::JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let recorded = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut first = [0; 8];
            stream.read_exact(&mut first).await.unwrap();
            // The message must be an SSLRequest; a startup message would reveal the user.
            if first != [0, 0, 0, 8, 4, 210, 22, 47] {
                return first.to_vec();
            }
            stream.write_all(b"N").await.unwrap();
            let mut next = vec![0; 512];
            let count = stream.read(&mut next).await.unwrap_or_default();
            next.truncate(count);
            next
        });
        (port, recorded)
    }

    #[rstest]
    #[case::verified("verify-full", false)]
    #[case::any_host("verify-ca", false)]
    #[case::encrypted("require", false)]
    #[case::preferred("prefer", true)]
    #[tokio::test]
    async fn tls_cannot_be_disabled_by_an_attacker(#[case] mode: &str, #[case] should_continue: bool) {
        let (port, recorded) = start_downgrading_server().await;
        let url = format!("postgres://me:open-sesame@127.0.0.1:{port}/crowsnest?sslmode={mode}");
        let connect = connect_options(&PostgresOptions::new(url), "test").unwrap();
        let error = open_connection(&connect).await.unwrap_err().to_string();
        let next_message = recorded.await.unwrap();
        assert_eq!(!next_message.is_empty(), should_continue, "{error}: {next_message:?}");
        assert!(should_continue || error.contains("server does not support TLS"), "{error}");
        assert!(!error.contains("sesame"), "{error}");
    }
}
