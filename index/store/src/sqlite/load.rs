//! Loads dictionaries, the newest seq and the collections when a store is opened.

use super::SqliteStore;
use crate::Error;
use crate::StoredCollection;
use crate::record::{CollectionKey, CollectionState, Seq};
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use sqlx::Row as _;
use sqlx::sqlite::SqliteExecutor;
use std::sync::Arc;
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
        let sql = "SELECT id, cluster, \"group\", version, resource, kind, namespaced, scope, resource_version, complete, \
            heard_at, gone FROM collections";
        let rows = sqlx::query(sql).fetch_all(&self.readers).await.map_err(fail)?;
        let mut found = Vec::with_capacity(rows.len());
        for row in rows {
            let text = |column: usize| row.try_get::<String, _>(column).map_err(fail);
            let Ok(cluster) = ClusterName::parse(&text(1)?) else { continue };
            let state = CollectionState {
                resource_version: text(8)?,
                complete: row.try_get(9).map_err(fail)?,
                kind: text(5)?.into(),
                namespaced: row.try_get(6).map_err(fail)?,
                last_contact_ms: row.try_get(10).map_err(fail)?,
                stale_reason: None,
            };
            let key = CollectionKey::new(cluster, Gvr::new(&text(2)?, &text(3)?, &text(4)?));
            self.catalog.insert(row.try_get(0).map_err(fail)?, &key, Arc::clone(&state.kind));
            if !row.try_get::<bool, _>(11).map_err(fail)? {
                found.push(StoredCollection { key, state, scope: text(7)? });
            }
        }
        Ok(found)
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
