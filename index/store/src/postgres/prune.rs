//! Deletes old versions that neither readers nor followers of the log need.

use super::{PostgresStore, WRITE_TIMEOUT, timeout_error};
use crate::history::{CUTOFF, DELETE_EXCESS, DELETE_UNTIL, LAST_DELETION};
use crate::rows::Columns;
use crate::{Error, HistoryRetention, Seq};
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;

/// Range of seqs whose versions one statement deletes, so that it finishes within its timeout.
const SEQS_PER_DELETE: i64 = 50_000;
/// Seq directly before the end of the oldest version.
const OLDEST: &str = "SELECT coalesce(min(ended), 1) - 1 FROM versions";

impl PostgresStore {
    pub(super) async fn prune_versions(
        &self,
        history: &HistoryRetention,
        now_ms: i64,
        indexed_seq: Seq,
    ) -> Result<u64, Error> {
        let (problem, floor) = ("cannot prune old versions", self.log_floor(now_ms).await?);
        let floor = floor.min(i64::try_from(indexed_seq.0).unwrap_or(i64::MAX));
        let query =
            sqlx::query(CUTOFF).bind(history.oldest_end_ms(now_ms)).bind(history.max_bytes_number()).bind(floor);
        let cutoff = self.fetch_number(problem, query).await?;
        // Stored before deleting, so that no reader finds a gap that is not recorded here.
        self.raise_fact("pruned", self.fetch_number(problem, sqlx::query(LAST_DELETION).bind(cutoff)).await?).await?;
        let mut expired = 0;
        let mut until = self.fetch_number(problem, sqlx::query(OLDEST)).await?;
        while until < cutoff {
            until = cutoff.min(until.saturating_add(SEQS_PER_DELETE));
            expired += self.execute(problem, sqlx::query(DELETE_UNTIL).bind(until)).await?;
        }
        let trimmed = self.read_number_fact("trimmed").await?;
        let max_versions = i64::from(history.max_versions);
        let excess =
            self.execute(problem, sqlx::query(DELETE_EXCESS).bind(trimmed).bind(floor).bind(max_versions)).await?;
        self.raise_fact("trimmed", floor).await?;
        Ok(expired + excess)
    }

    pub(super) async fn fetch_number(
        &self,
        problem: &str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<i64, Error> {
        let row = self.fetch_first(problem, query).await?.ok_or(Error::Stopped)?;
        row.number(0).map_err(|e| Error::store(problem, e))
    }

    /// Executes a statement and returns the number of rows that it changed.
    async fn execute(&self, problem: &str, query: Query<'_, Postgres, PgArguments>) -> Result<u64, Error> {
        let fail = |e| Error::store(problem, e);
        let mut connection = self.readers.acquire().await.map_err(fail)?;
        match tokio::time::timeout(WRITE_TIMEOUT, query.execute(&mut *connection)).await {
            Ok(done) => done.map(|done| done.rows_affected()).map_err(fail),
            Err(_) => {
                drop(connection.detach());
                Err(fail(timeout_error()))
            }
        }
    }

    /// Stores a number as a fact, unless a greater number is stored.
    async fn raise_fact(&self, name: &str, number: i64) -> Result<(), Error> {
        let sql = "INSERT INTO facts (name, value) VALUES ($1, $2::bigint::text) ON CONFLICT (name) DO UPDATE \
            SET value = greatest(facts.value::bigint, excluded.value::bigint)";
        self.execute("cannot save its pruning position", sqlx::query(sql).bind(name).bind(number)).await.map(drop)
    }

    pub(super) async fn read_number_fact(&self, name: &str) -> Result<i64, Error> {
        Ok(self.read_fact(name).await?.and_then(|value| value.parse().ok()).unwrap_or_default())
    }
}
