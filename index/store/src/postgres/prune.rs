//! Deletes old versions that neither readers nor followers of the log need.

use super::{PostgresStore, WRITE_TIMEOUT, timeout_error};
use crate::history::{CUT, DROP, LAST_DELETION, TRIM};
use crate::rows::Columns;
use crate::{Error, History, Seq};
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

/// Seqs of versions deleted per statement, so that each statement ends within its timeout.
const SEQS_PER_DELETE: i64 = 50_000;
/// Lower bound of the oldest version's end.
const OLDEST: &str = "SELECT coalesce(min(ended), 1) - 1 FROM versions";

impl PostgresStore {
    pub(super) async fn prune_versions(&self, history: &History, now_ms: i64, seen: Seq) -> Result<u64, Error> {
        let (what, floor) = ("cannot prune old versions", self.log_floor(now_ms).await?);
        let floor = floor.min(i64::try_from(seen.0).unwrap_or(i64::MAX));
        let query = sqlx::query(CUT).bind(history.oldest_end_ms(now_ms)).bind(history.max_bytes_number()).bind(floor);
        let cut = self.number(what, query).await?;
        // Stored before deleting, so that no reader finds a gap that is not recorded here.
        self.raise_fact("pruned", self.number(what, sqlx::query(LAST_DELETION).bind(cut)).await?).await?;
        let mut dropped = 0;
        let mut until = self.number(what, sqlx::query(OLDEST)).await?;
        while until < cut {
            until = cut.min(until.saturating_add(SEQS_PER_DELETE));
            dropped += self.count(what, sqlx::query(DROP).bind(until)).await?;
        }
        let trimmed = self.number_fact("trimmed").await?;
        let max_versions = i64::from(history.max_versions);
        let aged = self.count(what, sqlx::query(TRIM).bind(trimmed).bind(floor).bind(max_versions)).await?;
        self.raise_fact("trimmed", floor).await?;
        Ok(dropped + aged)
    }

    pub(super) async fn number(&self, what: &str, query: Query<'_, Postgres, PgArguments>) -> Result<i64, Error> {
        let row = self.one(what, query).await?.ok_or(Error::Stopped)?;
        row.number(0).map_err(|e| Error::store(what, e))
    }

    /// Rows a statement changed.
    async fn count(&self, what: &str, query: Query<'_, Postgres, PgArguments>) -> Result<u64, Error> {
        let fail = |e| Error::store(what, e);
        let mut connection = self.readers.acquire().await.map_err(fail)?;
        match tokio::time::timeout(WRITE_TIMEOUT, query.execute(&mut *connection)).await {
            Ok(done) => done.map(|done| done.rows_affected()).map_err(fail),
            Err(_) => {
                drop(connection.detach());
                Err(fail(timeout_error()))
            }
        }
    }

    /// Stores a number that only increases.
    async fn raise_fact(&self, name: &str, number: i64) -> Result<(), Error> {
        let sql = "INSERT INTO facts (name, value) VALUES ($1, $2::bigint::text) ON CONFLICT (name) DO UPDATE \
            SET value = greatest(facts.value::bigint, excluded.value::bigint)";
        self.count("cannot save its pruning position", sqlx::query(sql).bind(name).bind(number)).await.map(drop)
    }

    pub(super) async fn number_fact(&self, name: &str) -> Result<i64, Error> {
        Ok(self.fact(name).await?.and_then(|value| value.parse().ok()).unwrap_or_default())
    }
}
