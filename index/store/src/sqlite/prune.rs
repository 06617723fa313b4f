//! Deletes old versions and frees disk space.

use super::BEGIN_WRITE;
use crate::history::{CUTOFF, DELETE_EXCESS, DELETE_UNTIL, LAST_DELETION};
use crate::{Error, HistoryRetention};
use sqlx::sqlite::{SqliteConnection, SqliteExecutor};
use sqlx::{Connection, Row as _};

/// Frees a limited number of pages, because the writer is blocked meanwhile.
const VACUUM_PAGES: &str = "PRAGMA incremental_vacuum(4096)";

/// Deletes the versions that `history` does not retain and that ended up to change `until`. Returns their number.
pub(super) async fn delete_versions(
    connection: &mut SqliteConnection,
    history: &HistoryRetention,
    now_ms: i64,
    until: i64,
) -> Result<u64, Error> {
    let fail = |e| Error::store("cannot prune old versions", e);
    let mut transaction = connection.begin_with(BEGIN_WRITE).await.map_err(fail)?;
    let row = sqlx::query(CUTOFF).bind(history.oldest_end_ms(now_ms)).bind(history.max_bytes_number()).bind(until);
    let row = row.fetch_one(&mut *transaction).await.map_err(fail)?;
    let cutoff: i64 = row.try_get(0).map_err(fail)?;
    let row = sqlx::query(LAST_DELETION).bind(cutoff).fetch_one(&mut *transaction).await.map_err(fail)?;
    raise_fact(&mut transaction, "pruned", row.try_get(0).map_err(fail)?).await?;
    let expired = sqlx::query(DELETE_UNTIL).bind(cutoff).execute(&mut *transaction).await.map_err(fail)?;
    let trimmed = read_number_fact(&mut *transaction, "trimmed").await?;
    let query = sqlx::query(DELETE_EXCESS).bind(trimmed).bind(until).bind(i64::from(history.max_versions));
    let excess = query.execute(&mut *transaction).await.map_err(fail)?;
    raise_fact(&mut transaction, "trimmed", until).await?;
    transaction.commit().await.map_err(fail)?;
    sqlx::query(VACUUM_PAGES).execute(connection).await.map_err(fail)?;
    Ok(expired.rows_affected() + excess.rows_affected())
}

/// Stores a number as a fact, unless a greater number is stored.
async fn raise_fact(connection: &mut SqliteConnection, name: &str, number: i64) -> Result<(), Error> {
    let sql = "INSERT INTO facts (name, value) VALUES ($1, CAST($2 AS TEXT)) ON CONFLICT (name) DO UPDATE \
        SET value = CAST(max(CAST(facts.value AS INTEGER), $2) AS TEXT)";
    let done = sqlx::query(sql).bind(name).bind(number).execute(connection).await;
    done.map(drop).map_err(|e| Error::store("cannot save its pruning position", e))
}

/// Reads a number that is stored as a fact; 0 if there is none.
pub(super) async fn read_number_fact(connection: impl SqliteExecutor<'_>, name: &str) -> Result<i64, Error> {
    let fail = |e| Error::store("cannot read its pruning position", e);
    let sql = "SELECT CAST(value AS INTEGER) FROM facts WHERE name = ?";
    let row = sqlx::query(sql).bind(name).fetch_optional(connection).await.map_err(fail)?;
    row.map_or(Ok(0), |row| row.try_get(0)).map_err(fail)
}
