//! Migration and deletion of the shared database. No replica must run meanwhile: if one does, nothing is changed, and
//! the error names it.

use super::connect::{application_name, connect_options, database_name, open_connection};
use super::{SCHEMA, migrations};
use crate::LEASE_DURATION;
use crate::migration::check_migratable;
use crate::{Error, PostgresOptions};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};
use std::time::Duration;
use tokio::time::Instant;

/// The newest format that this version knows, which it writes.
pub(crate) const NEWEST: usize = migrations::NEWEST;

/// Additional wait for a killed replica after its lease has expired.
const AFTER_LEASE: Duration = Duration::from_secs(1);
/// Interval between checks for live replicas.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// An open database and its name for messages.
struct OpenDatabase {
    connection: PgConnection,
    name: String,
}

impl OpenDatabase {
    async fn open(options: &PostgresOptions) -> Result<Self, Error> {
        let connect = connect_options(options, "crowsnest-cache")?;
        let name = database_name(&connect);
        let opened = open_connection(&connect).await;
        let connection = opened.map_err(|e| Error::store(format!("{name} cannot be opened"), e))?;
        Ok(Self { connection, name })
    }

    fn fail(&self, problem: &str) -> impl Fn(sqlx::Error) -> Error + use<> {
        let problem = format!("{} {problem}", self.name);
        move |e| Error::store(problem.clone(), e)
    }

    /// The format of the cache; None if the database contains none.
    async fn format(&mut self) -> Result<Option<usize>, Error> {
        let fail = self.fail("cannot be read");
        let table = "SELECT 1 FROM pg_class WHERE relnamespace = to_regnamespace($1) AND relname = 'format'";
        if sqlx::query(table).bind(SCHEMA).fetch_optional(&mut self.connection).await.map_err(&fail)?.is_none() {
            return Ok(None);
        }
        let row = sqlx::query("SELECT version FROM format").fetch_one(&mut self.connection).await.map_err(&fail)?;
        Ok(Some(row.try_get::<i32, _>(0).map_err(&fail)? as usize))
    }

    /// Waits until no replica uses the database; fails with [`Error::InUse`] if one is still live after the lease
    /// duration.
    async fn wait_until_unused(&mut self, format: usize) -> Result<(), Error> {
        if format == 0 {
            return Ok(());
        }
        // The lease of a killed replica expires within this time.
        let until = Instant::now() + LEASE_DURATION + AFTER_LEASE;
        loop {
            let live = self.live_replicas().await?;
            if live.is_empty() {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(Error::InUse { database: self.name.clone(), replicas: live.join(", ") });
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Replicas with a valid lease, and replicas that are connected without one.
    async fn live_replicas(&mut self) -> Result<Vec<String>, Error> {
        let fail = self.fail("cannot be read");
        let sql = "SELECT id FROM replicas WHERE heartbeat > clock_timestamp() - make_interval(secs => $1) \
            UNION SELECT substr(application_name, length($2) + 1) FROM pg_stat_activity \
            WHERE datname = current_database() AND starts_with(application_name, $2) ORDER BY 1";
        let query = sqlx::query(sql).bind(LEASE_DURATION.as_secs_f64()).bind(application_name(""));
        let live = query.fetch_all(&mut self.connection).await.map_err(&fail)?;
        live.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(&fail)
    }
}

/// Migrates the cache to format `to`. Returns the previous format; None if there is no cache.
pub(crate) async fn migrate(options: &PostgresOptions, to: usize) -> Result<Option<usize>, Error> {
    let mut database = OpenDatabase::open(options).await?;
    let Some(from) = database.format().await? else { return Ok(None) };
    database.wait_until_unused(from).await?;
    check_migratable(&database.name, from, NEWEST)?;
    let name = database.name.clone();
    migrations::migrate(&mut database.connection, &name, to).await?;
    Ok(Some(from))
}

/// Deletes the cache. Returns false if there was none.
pub(crate) async fn discard(options: &PostgresOptions) -> Result<bool, Error> {
    let mut database = OpenDatabase::open(options).await?;
    let Some(format) = database.format().await? else { return Ok(false) };
    database.wait_until_unused(format).await?;
    let fail = database.fail("cannot be deleted");
    let drop = AssertSqlSafe(format!("DROP SCHEMA {SCHEMA} CASCADE"));
    sqlx::raw_sql(drop).execute(&mut database.connection).await.map_err(fail)?;
    Ok(true)
}
