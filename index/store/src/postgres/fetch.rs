//! Execution of queries: rows, and the objects and versions that they contain.

use super::connect::timeout_error;
use super::{HAS_LABELS, PostgresStore, READ_TIMEOUT};
use crate::reading::ScanRange;
use crate::record::{Object, Version};
use crate::{Error, Scan};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres};

impl PostgresStore {
    /// Executes a query and returns its rows. After a timeout, the connection is closed, because the late response
    /// would be taken for that of the next query.
    pub(super) async fn fetch_rows(
        &self,
        problem: &str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, Error> {
        let fail = |e| Error::store(problem, e);
        let mut connection = self.readers.acquire().await.map_err(fail)?;
        match tokio::time::timeout(READ_TIMEOUT, query.fetch_all(&mut *connection)).await {
            Ok(rows) => rows.map_err(fail),
            Err(_) => {
                drop(connection.detach());
                Err(fail(timeout_error()))
            }
        }
    }

    /// Executes a query for rows of a collection. Also loads the collection's kind if it is unknown, because another
    /// replica may have stored it since the collections were read.
    pub(super) async fn fetch_collection_rows(
        &self,
        problem: &str,
        id: i64,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, Error> {
        let rows = self.fetch_rows(problem, query).await?;
        if self.catalog.collection_by_id(id).is_some_and(|(_, kind)| kind.is_empty()) && !rows.is_empty() {
            self.read_collections().await?;
        }
        Ok(rows)
    }

    /// The rows of a scan with these columns, and the range that they are from; None at the end of the scan.
    pub(super) async fn fetch_scan<'s>(
        &self,
        scan: &'s Scan,
        limit: usize,
        columns: &str,
    ) -> Result<Option<(ScanRange<'s>, Vec<PgRow>)>, Error> {
        let Some(id) = self.id_of(&scan.collection).await? else { return Ok(None) };
        let Some(range) = ScanRange::new(scan, id, limit) else { return Ok(None) };
        let query = sqlx::query(AssertSqlSafe(range.sql(columns, HAS_LABELS))).bind(id);
        let query = query.bind(&range.namespace).bind(&range.name).bind(range.rows);
        let query = if let Some(labels) = &range.labels { query.bind(&labels.pattern) } else { query };
        let rows = self.fetch_collection_rows("cannot list records", id, query).await?;
        Ok(Some((range, rows)))
    }

    pub(super) async fn fetch_first(
        &self,
        problem: &str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Option<PgRow>, Error> {
        Ok(self.fetch_rows(problem, query).await?.into_iter().next())
    }

    pub(super) async fn fetch_objects(
        &self,
        problem: &str,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<Object>, Error> {
        let rows = self.fetch_rows(problem, query).await?;
        self.load_row_dependencies(&rows).await?;
        rows.iter().map(|row| self.catalog.decode_object(row)).collect()
    }

    pub(super) async fn fetch_versions(&self, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<Version>, Error> {
        let rows = self.fetch_rows("cannot read old versions", query).await?;
        self.load_row_dependencies(&rows).await?;
        rows.iter().map(|row| self.catalog.decode_version(row)).collect()
    }
}
