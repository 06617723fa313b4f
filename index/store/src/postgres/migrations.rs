//! Migrates a database to a format, step by step, up or down. Replicas are serialized by an advisory lock; all but
//! the first find nothing left to do.

use super::SCHEMA;
use crate::Error;
use crate::migration::{FormatCompatibility, Migration, compatibility, migration, next_step};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Row};

const MIGRATIONS: [Migration; 6] = [
    migration!("postgres", "0001_objects"),
    migration!("postgres", "0002_chosen_labels"),
    migration!("postgres", "0003_interests"),
    migration!("postgres", "0004_kept_versions"),
    migration!("postgres", "0005_notes"),
    migration!("postgres", "0006_shared_with"),
];

/// The newest format that this version knows, which it writes.
pub(super) const NEWEST: usize = MIGRATIONS.len();

/// Advisory lock key, equal in every replica.
const LOCK: i64 = 0x6372_6f77_736e_6573;

/// Migrates the schema to format `target`, up or down, in one transaction. A compatible newer format is left
/// unchanged; any other newer format and foreign tables are rejected.
pub(super) async fn migrate(connection: &mut PgConnection, database: &str, target: usize) -> Result<(), Error> {
    let fail = |e| Error::store(format!("{database} cannot be migrated"), e);
    let mut transaction = connection.begin().await.map_err(fail)?;
    // Another replica may execute a long step, so the usual statement limits do not apply.
    sqlx::raw_sql("SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0")
        .execute(&mut *transaction)
        .await
        .map_err(fail)?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(LOCK).execute(&mut *transaction).await.map_err(fail)?;
    let tables = "SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace($1) AND relkind = 'r'";
    let tables = sqlx::query(tables).bind(SCHEMA).fetch_all(&mut *transaction).await.map_err(fail)?;
    let tables: Vec<String> = tables.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>().map_err(fail)?;
    let mut version = if tables.iter().any(|table| table == "format") {
        let row = sqlx::query("SELECT version FROM format").fetch_one(&mut *transaction).await.map_err(fail)?;
        row.try_get::<i32, _>(0).map_err(fail)? as usize
    } else if tables.is_empty() {
        let first = AssertSqlSafe(format!(
            "CREATE SCHEMA IF NOT EXISTS {SCHEMA}; CREATE TABLE format (version INTEGER NOT NULL); \
             INSERT INTO format VALUES (0)"
        ));
        sqlx::raw_sql(first).execute(&mut *transaction).await.map_err(fail)?;
        0
    } else {
        return Err(Error::StoreFormat(format!(
            "schema {SCHEMA} of {database} contains tables that do not belong to the cache ({}); use another database",
            tables.join(", ")
        )));
    };
    match compatibility(version, shared_with(&mut transaction).await.map_err(fail)?, NEWEST) {
        FormatCompatibility::Known => {}
        FormatCompatibility::NewerCompatible => {
            tracing::info!(
                version,
                known = NEWEST,
                "the cache's database has a newer, compatible format and is used unchanged"
            );
            // Rolls back immediately to release the lock, instead of with the connection's next use.
            return transaction.rollback().await.map_err(fail);
        }
        FormatCompatibility::NewerIncompatible => {
            return Err(Error::StoreFormat(format!(
                "{database} was written by a newer version (format {version}, this one knows {NEWEST}): run `crowsnest cache \
                 migrate --to {NEWEST}` of the newer version, or `crowsnest cache rebuild --db …` of this one, which reads \
                 all objects from the members again"
            )));
        }
    }
    while let Some((step, reached)) = next_step(&MIGRATIONS, version, target) {
        version = reached;
        sqlx::raw_sql(step).execute(&mut *transaction).await.map_err(fail)?;
        let mark = sqlx::query("UPDATE format SET version = $1").bind(version as i32);
        mark.execute(&mut *transaction).await.map_err(fail)?;
    }
    transaction.commit().await.map_err(fail)
}

/// The oldest compatible format; None if not recorded.
async fn shared_with(connection: &mut PgConnection) -> Result<Option<usize>, sqlx::Error> {
    let statement = "SELECT 1 FROM information_schema.columns WHERE table_schema = $1 AND table_name = 'format' \
        AND column_name = 'shared_with'";
    if sqlx::query(statement).bind(SCHEMA).fetch_optional(&mut *connection).await?.is_none() {
        return Ok(None);
    }
    let row = sqlx::query("SELECT shared_with FROM format").fetch_one(connection).await?;
    Ok(Some(row.try_get::<i32, _>(0)? as usize))
}
