//! Executes queries on the read connections.

use super::write::json;
use super::{RowKey, SqliteStore};
use crate::reading::ScanRange;
use crate::record::{Object, Version};
use crate::rows::OBJECT_COLUMNS;
use crate::{Error, Scan};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _, Sqlite};

/// SQL condition for labels. The bits are in the index of keys, so that rows without them are not read.
const HAS_LABELS: &str = "AND (label_bits & $6) = $6 AND labels LIKE $5 ESCAPE '!'";

impl SqliteStore {
    /// The rows of a scan with these columns, and the range that they are from; None at the end of the scan.
    pub(super) async fn fetch_scan<'s>(
        &self,
        scan: &'s Scan,
        limit: usize,
        columns: &str,
    ) -> Result<Option<(ScanRange<'s>, Vec<SqliteRow>)>, Error> {
        let range = self.catalog.id_of(&scan.collection).and_then(|id| ScanRange::new(scan, id, limit));
        let Some(range) = range else { return Ok(None) };
        let query = sqlx::query(AssertSqlSafe(range.sql(columns, HAS_LABELS))).bind(range.collection);
        let query = query.bind(&range.namespace).bind(&range.name).bind(range.rows);
        let query = match &range.labels {
            Some(labels) => query.bind(&labels.pattern).bind(labels.bits),
            None => query,
        };
        let rows = query.fetch_all(&self.readers).await.map_err(|e| Error::store("cannot list records", e))?;
        Ok(Some((range, rows)))
    }

    pub(super) async fn fetch_versions(
        &self,
        query: Query<'_, Sqlite, SqliteArguments>,
    ) -> Result<Vec<Version>, Error> {
        let rows = query.fetch_all(&self.readers).await.map_err(|e| Error::store("cannot read old versions", e))?;
        rows.iter().map(|row| self.catalog.decode_version(row)).collect()
    }

    /// The rows of these keys, in their order; None for a key without a row.
    pub(super) async fn fetch_rows_by_keys(&self, keys: Vec<RowKey>) -> Result<Vec<Option<SqliteRow>>, Error> {
        let fail = |e| Error::store("cannot read objects", e);
        let parameters: Vec<_> =
            keys.iter().map(|(collection, namespace, name)| (collection, &**namespace, &**name)).collect();
        let parameters = json(&parameters, "list of names")?;
        let sql = AssertSqlSafe(format!(
            "SELECT {OBJECT_COLUMNS}, position FROM (SELECT key AS position, value ->> 0 AS c, value ->> 1 AS s, value ->> 2 AS n \
                FROM json_each(?)) CROSS JOIN records ON collection = c AND namespace = s AND name = n"
        ));
        let mut found: Vec<Option<SqliteRow>> = keys.iter().map(|_| None).collect();
        for row in sqlx::query(sql).bind(parameters).fetch_all(&self.readers).await.map_err(fail)? {
            let position: i64 = row.try_get("position").map_err(fail)?;
            if let Some(slot) = usize::try_from(position).ok().and_then(|position| found.get_mut(position)) {
                *slot = Some(row);
            }
        }
        Ok(found)
    }

    pub(super) async fn fetch_objects(
        &self,
        sql: AssertSqlSafe<String>,
        parameter: String,
    ) -> Result<Vec<Object>, Error> {
        let fail = |e| Error::store("cannot read objects", e);
        let rows = sqlx::query(sql).bind(parameter).fetch_all(&self.readers).await.map_err(fail)?;
        rows.iter().map(|row| self.catalog.decode_object(row)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Seq;
    use crate::sqlite::tests::{open_with_pod, pods};
    use crate::{CacheOptions, Store, label_bits};
    use crowsnest_apimachinery::selector::Selector;
    use futures::FutureExt;
    use rstest::rstest;
    use sqlx::{Connection, SqliteConnection};
    use std::collections::BTreeSet;
    use std::sync::Arc;

    /// A scan of all pods with the label `app=web`.
    fn scan_for_label() -> Scan {
        let labels = Some(Selector::parse("app=web").unwrap());
        Scan { collection: pods(), namespaces: None, after: None, labels }
    }

    #[tokio::test]
    async fn rows_that_were_stored_without_label_bits_are_found() {
        let (_directory, store) = open_with_pod().await;
        let scan = scan_for_label();
        for bits in [label_bits::of_label("app", "web"), -1] {
            let stored: (i64,) =
                sqlx::query_as("SELECT label_bits FROM records").fetch_one(&store.readers).await.unwrap();
            assert_eq!(stored, (bits,));
            assert_eq!(store.objects(&scan, &|_| Ok(true), 10).await.unwrap().0.len(), 1);
            // An earlier version of Crowsnest, which does not have the column, would store this value.
            let mut writer = store.writer.lock().await;
            sqlx::query("UPDATE records SET label_bits = -1").execute(&mut writer.connection).await.unwrap();
        }
    }

    /// The flags are in `.cargo/config.toml`.
    #[tokio::test]
    async fn sqlite_is_built_without_locks_that_connections_share() {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let sql = "SELECT compile_options FROM pragma_compile_options \
            WHERE compile_options LIKE '%MEMSTATUS%' OR compile_options LIKE '%MEMORY_MANAGEMENT%'";
        let options: Vec<(String,)> = sqlx::query_as(sql).fetch_all(&mut connection).await.unwrap();
        assert_eq!(options, [("DEFAULT_MEMSTATUS=0".to_owned(),)]);
    }

    #[tokio::test]
    async fn the_newest_seq_is_read_during_a_transaction() {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&CacheOptions::new(directory.path()), Arc::default()).await.unwrap();
        let _transaction = store.writer.lock().await;
        assert_eq!(store.latest().now_or_never().unwrap().unwrap(), Seq(0));
    }

    #[rstest]
    #[tokio::test]
    async fn scans_for_labels_read_the_index_of_keys_in_order(#[values(None, Some("x"))] namespace: Option<&str>) {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&CacheOptions::new(directory.path()), Arc::default()).await.unwrap();
        let namespaces = namespace.map(|namespace| BTreeSet::from([namespace.to_owned()]));
        let scan = Scan { namespaces, ..scan_for_label() };
        let range = ScanRange::new(&scan, 1, 10).unwrap();
        let sql = format!("EXPLAIN QUERY PLAN {}", range.sql(OBJECT_COLUMNS, HAS_LABELS));
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&store.readers).await.unwrap();
        let plan: Vec<String> = rows.iter().map(|row| row.get("detail")).collect();
        assert!(plan.len() == 1 && plan[0].contains("USING INDEX records_by_key (collection=?"), "{plan:?}");
    }
}
