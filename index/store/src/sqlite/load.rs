//! Loads dictionaries, the newest seq and the collections when a store is opened.

use super::SqliteStore;
use crate::Error;
use crate::StoredCollection;
use crate::reading::COLLECTION_COLUMNS;
use crate::record::Seq;
use sqlx::sqlite::SqliteExecutor;
use sqlx::{AssertSqlSafe, Row as _};
use std::sync::atomic::Ordering;

impl SqliteStore {
    pub(super) async fn load(&self) -> Result<(), Error> {
        let fail = |e| Error::store("cannot be read", e);
        let mut writer = self.writer.lock().await;
        for row in sqlx::query("SELECT id, kind, dictionary FROM dictionaries ORDER BY id")
            .fetch_all(&mut writer.connection)
            .await
            .map_err(fail)?
        {
            let id: u32 = row.try_get(0).map_err(fail)?;
            let (kind, dictionary): (String, Vec<u8>) = (row.try_get(1).map_err(fail)?, row.try_get(2).map_err(fail)?);
            self.catalog.codec.install(id, &kind, &dictionary);
        }
        writer.latest = newest_seq(&mut writer.connection).await?.0;
        self.assigned.store(writer.latest, Ordering::Release);
        drop(writer);
        self.read_collections().await.map(drop)
    }

    /// Reads all collections into the catalog and returns those that were not dropped.
    pub(super) async fn read_collections(&self) -> Result<Vec<StoredCollection>, Error> {
        let fail = |e| Error::store("cannot list its collections", e);
        let sql = AssertSqlSafe(format!("SELECT {COLLECTION_COLUMNS}, NULL FROM collections"));
        let rows = sqlx::query(sql).fetch_all(&self.readers).await.map_err(fail)?;
        let all = self.catalog.add_collections(&rows).map_err(fail)?;
        Ok(all.into_iter().filter(|(is_dropped, _)| !is_dropped).map(|(_, stored)| stored).collect())
    }
}

/// The newest seq assigned, as stored in the file.
pub(super) async fn newest_seq(connection: impl SqliteExecutor<'_>) -> Result<Seq, Error> {
    let fail = |e| Error::store("cannot read its newest change", e);
    let sql = "SELECT max(coalesce((SELECT max(seq) FROM records), 0), \
        coalesce((SELECT max(ended) FROM versions), 0), \
        coalesce((SELECT CAST(value AS INTEGER) FROM facts WHERE name = 'seq'), 0))";
    let row = sqlx::query(sql).fetch_one(connection).await.map_err(fail)?;
    Ok(Seq(row.try_get::<i64, _>(0).map_err(fail)? as u64))
}
