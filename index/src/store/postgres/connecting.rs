//! How the database is reached, with which bounds, and what it is called in messages.

use super::SCHEMA;
use crate::{Error, PostgresOptions};
use sqlx::Connection;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use std::str::FromStr;
use std::time::Duration;

/// Longest wait for a connection.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// Connections under the name `application`.
pub(super) fn reached_by(options: &PostgresOptions, application: &str) -> Result<PgConnectOptions, Error> {
    let url = options.url.reveal();
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        let text = "the address of the cache's database has to begin with postgres://";
        return Err(Error::StoreFormat(text.to_owned()));
    }
    Ok(PgConnectOptions::from_str(url)
        .map_err(|e| Error::store("has an address that cannot be read (postgres://user@host/database)", e))?
        .application_name(application)
        .statement_cache_capacity(64)
        .options([
            ("search_path", SCHEMA),
            // Every query here is by key. Right after a large list the statistics still say the tables are empty, and
            // plans made from them read whole tables.
            ("enable_seqscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            // The price put on those plans would have the few that are left compiled, for a second each time.
            ("jit", "off"),
            ("lock_timeout", "10s"),
            ("statement_timeout", "30s"),
            // A stopped replica must not keep its locks.
            ("idle_in_transaction_session_timeout", "3s"),
            ("tcp_keepalives_idle", "5"),
            ("tcp_keepalives_interval", "2"),
            ("tcp_keepalives_count", "3"),
            ("tcp_user_timeout", "10000"),
            ("client_min_messages", "warning"),
        ]))
}

/// An answer that did not come in time.
pub(super) fn late() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "the database does not answer"))
}

pub(super) async fn connection(connect: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let opening = tokio::time::timeout(TIMEOUT, PgConnection::connect_with(connect));
    opening.await.unwrap_or_else(|_| Err(late()))
}

/// How a replica's connections are named in the database.
pub(super) fn application(replica: &str) -> String {
    format!("crowsnest {replica}")
}

/// For messages: never the password.
pub(super) fn database_name(connect: &PgConnectOptions) -> String {
    let database = connect.get_database().unwrap_or_else(|| connect.get_username());
    match connect.get_socket() {
        Some(socket) => format!("{database} at {}", socket.display()),
        None => format!("{database} at {}:{}", connect.get_host(), connect.get_port()),
    }
}
