//! Loads collections and dictionaries, including those that other replicas create.

use super::PostgresStore;
use crate::Error;
use crate::StoredCollection;
use crate::reading::COLLECTION_COLUMNS;
use crate::record::CollectionKey;
use crate::rows::Columns;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgRow;
use std::collections::BTreeSet;

impl PostgresStore {
    /// Reads all collections into the catalog and returns those that were not dropped.
    pub(super) async fn read_collections(&self) -> Result<Vec<StoredCollection>, Error> {
        let problem = "cannot list its collections";
        let sql = AssertSqlSafe(format!("SELECT {COLLECTION_COLUMNS}, trouble FROM collections"));
        let rows = self.fetch_rows(problem, sqlx::query(sql)).await?;
        let all = self.catalog.add_collections(&rows).map_err(|e| Error::store(problem, e))?;
        Ok(all.into_iter().filter(|(is_dropped, _)| !is_dropped).map(|(_, stored)| stored).collect())
    }

    /// Loads dictionaries with ids greater than `after`, including those that other replicas have trained.
    pub(super) async fn load_dictionaries(&self, after: i64) -> Result<(), Error> {
        let problem = "cannot read its dictionaries";
        let fail = |e| Error::store(problem, e);
        let sql = "SELECT id, kind, dictionary FROM dictionaries WHERE id > $1 ORDER BY id";
        for row in self.fetch_rows(problem, sqlx::query(sql).bind(after)).await? {
            let dictionary = row.bytes(2).map_err(fail)?;
            self.catalog.codec.install(row.number(0).map_err(fail)? as u32, row.text(1).map_err(fail)?, dictionary);
        }
        Ok(())
    }

    /// Loads the collections and dictionaries that rows refer to and that this replica does not know, because another one
    /// created them. The rows begin with [`OBJECT_COLUMNS`].
    pub(super) async fn load_row_dependencies(&self, rows: &[PgRow]) -> Result<(), Error> {
        let fail = |e| Error::store("has an invalid row", e);
        let mut collections = BTreeSet::new();
        let mut dictionaries = BTreeSet::new();
        for row in rows {
            collections.insert(row.number(12).map_err(fail)?);
            dictionaries.insert(row.number(13).map_err(fail)? as u32);
        }
        let is_unknown = |id: &i64| self.catalog.collection_by_id(*id).is_none_or(|(_, kind)| kind.is_empty());
        if collections.iter().any(is_unknown) {
            self.read_collections().await?;
        }
        if dictionaries.iter().any(|id| !self.catalog.codec.has_dictionary(*id)) {
            self.load_dictionaries(i64::from(self.catalog.codec.newest_dictionary())).await?;
        }
        Ok(())
    }

    /// The collection's id; `None` if it was never stored. An id that the catalog does not contain is read from the
    /// database, because another replica may have created the collection.
    pub(super) async fn id_of(&self, key: &CollectionKey) -> Result<Option<i64>, Error> {
        if let Some(id) = self.catalog.id_of(key) {
            return Ok(Some(id));
        }
        let problem = "cannot look up a collection";
        let sql =
            "SELECT id, kind FROM collections WHERE cluster = $1 AND \"group\" = $2 AND version = $3 AND resource = $4";
        let CollectionKey { cluster, resource } = key;
        let query = sqlx::query(sql).bind(cluster.as_str()).bind(&*resource.group);
        let query = query.bind(&*resource.version).bind(&*resource.resource);
        let Some(row) = self.fetch_first(problem, query).await? else { return Ok(None) };
        let fail = |e| Error::store(problem, e);
        let id = row.number(0).map_err(fail)?;
        self.catalog.insert(id, key, row.text(1).map_err(fail)?.into());
        Ok(Some(id))
    }
}
