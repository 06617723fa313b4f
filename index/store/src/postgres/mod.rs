//! Postgres backend: one database shared by replicas.
//!
//! **Order.** Readers follow `seq > n`, so seqs must become visible in the order in which they are assigned. Every
//! write transaction first locks the only row of `counter`, takes its seqs from it and holds the lock until the
//! commit; therefore seqs are in commit order and have no gaps. Writes are serialized, which costs little because a
//! batch has up to thousands of changes in a few statements. Claims on clusters are changed under the same lock, so
//! checking a claim in a write transaction is exact.
//!
//! **Changes.** `versions` contains the previous states of records; together with `records` it is the complete change
//! log (see the migration). [`PostgresStore::changes`] returns each change to followers with the previous state,
//! exactly as [`Store::apply`] returned it to the writer. Every transaction notifies followers of its newest seq.
//!
//! **Limits.** Every statement has a timeout in the client and in the server, so that neither a network failure nor
//! a suspended replica blocks the others: the server terminates idle transactions.

mod claims;
mod connect;
mod fetch;
pub(crate) mod format;
mod interests;
mod labels;
mod load;
mod log;
mod migrations;
mod prune;
mod resume;
#[cfg(test)]
mod tests;
mod write;

use super::catalog::Catalog;
use super::codec::Codec;
use super::history;
use super::labels::IndexedLabels;
use super::notes;
use super::reading::{Bodies, COUNTS, decode_size};
use super::rows::{COLUMNS, Columns, OBJECT_COLUMNS, columns_without_body};
use super::{
    Batch, BodyMode, KeyRangeEnd, LabelQuery, NamespaceFilter, Position, RecordFilter, ReplayedChange, Scan, ScanPage,
    Store, StoreSize, StoredCollection, StoredObject, SupersededScan, VersionExclusions, VersionFilter,
};
use crate::Epoch;
use crate::record::{Change, CollectionKey, Object, Record, RecordKey, Seq, Version};
use crate::{Error, HistoryRetention, PostgresOptions};
use async_trait::async_trait;
use connect::{application_name, connect_options, database_name, describe_insecurity, open_connection, timeout_error};
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
pub use log::LogPage;
pub use resume::{MAX_CHANGES_PER_READ, resume_tail};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions, PgRow};
use sqlx::{AssertSqlSafe, Row};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// Schema with all tables of the cache.
const SCHEMA: &str = "crowsnest_cache";
/// Channel on which each write transaction announces its newest seq.
const CHANNEL: &str = "crowsnest_cache";
/// SQL condition for [`VersionExclusions`]: excluded collections $5, limited collections $6, namespaces $7.
const NOT_EXCLUDED: &str = "AND collection <> ALL($5) AND (collection <> ALL($6) OR namespace = ANY($7))";
/// SQL condition for the labels of a scan.
const HAS_LABELS: &str = "AND labels LIKE $5 ESCAPE '!'";
/// Timeout of a read.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a write transaction.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The Postgres backend.
pub struct PostgresStore {
    /// The writer, claims and heartbeats have separate connections, so that they do not wait for each other. Each
    /// connection is taken out for its use and put back only after success, so it is closed after an error or
    /// cancellation.
    writer: Mutex<Option<PgConnection>>,
    claims: Mutex<Option<PgConnection>>,
    heartbeat: Mutex<Option<PgConnection>>,
    readers: PgPool,
    connect: PgConnectOptions,
    catalog: Catalog,
    replica: String,
    indexed_labels: IndexedLabels,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").field("replica", &self.replica).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects and migrates the schema. `replica` identifies this process among those that share the database.
    pub async fn open(options: &PostgresOptions, replica: &str, codec: Arc<Codec>) -> Result<Self, Error> {
        let connect = connect_options(options, &application_name(replica))?;
        let database = database_name(&connect);
        if let Some(reason) = describe_insecurity(&connect) {
            tracing::warn!(
                database,
                reason,
                "the connection to the cache's database is not secure; set sslmode=verify-full in --db"
            );
        }
        let unusable = |e| Error::store(format!("{database} cannot be opened"), e);
        let mut writer = open_connection(&connect).await.map_err(unusable)?;
        migrations::migrate(&mut writer, &database, migrations::NEWEST).await?;
        let readers = PgPoolOptions::new()
            .max_connections(options.connections.max(1))
            .acquire_timeout(connect::CONNECT_TIMEOUT)
            .connect_lazy_with(connect.clone());
        let (catalog, replica) = (Catalog::new(codec), replica.to_owned());
        let (writer, claims, heartbeat) = (Mutex::new(Some(writer)), Mutex::default(), Mutex::default());
        let indexed_labels = IndexedLabels::default();
        let store = Self { writer, claims, heartbeat, readers, connect, catalog, replica, indexed_labels };
        store.load_dictionaries(0).await?;
        store.read_collections().await?;
        Ok(store)
    }

    /// The kept connection, or a new one.
    async fn reuse_or_connect(&self, reusable: Option<PgConnection>) -> Result<PgConnection, Error> {
        match reusable {
            Some(connection) => Ok(connection),
            None => open_connection(&self.connect).await.map_err(|e| Error::store("cannot be reached", e)),
        }
    }

    /// Checks that the database caches the members of this control plane, whose id it stores if it has none. Two fleets
    /// in one database would delete each other's objects, so another control plane is rejected.
    pub async fn check_control_plane(&self, control_plane: &str) -> Result<(), Error> {
        if control_plane.is_empty() {
            return Ok(());
        }
        let sql = "INSERT INTO facts (name, value) VALUES ('control plane', $1) ON CONFLICT (name) DO NOTHING";
        self.fetch_rows("cannot save its control plane", sqlx::query(sql).bind(control_plane)).await?;
        match self.read_fact("control plane").await? {
            Some(known) if known != control_plane => Err(Error::StoreFormat(format!(
                "{} caches the fleet of another control plane ({known}, this one is {control_plane}): use another \
                 database, or drop its schema {SCHEMA}",
                database_name(&self.connect)
            ))),
            _ => Ok(()),
        }
    }

    async fn read_fact(&self, name: &str) -> Result<Option<String>, Error> {
        let problem = "cannot read its facts";
        let row = self.fetch_first(problem, sqlx::query("SELECT value FROM facts WHERE name = $1").bind(name)).await?;
        row.map(|row| row.try_get(0)).transpose().map_err(|e| Error::store(problem, e))
    }
}

/// Ids or seqs as Postgres' `bigint[]`.
fn to_bigints(ids: &[u64]) -> Vec<i64> {
    ids.iter().map(|id| *id as i64).collect()
}

#[async_trait]
impl Store for PostgresStore {
    async fn apply(&self, batches: &[Batch], now_ms: i64) -> Result<Vec<Change>, Error> {
        let mut writer = self.writer.lock().await;
        let mut connection = self.reuse_or_connect(writer.take()).await?;
        let work = tokio::time::timeout(WRITE_TIMEOUT, self.apply_on(&mut connection, batches, now_ms));
        let changes = work.await.unwrap_or_else(|_| Err(Error::store("cannot write", timeout_error())))?;
        *writer = Some(connection);
        Ok(changes)
    }

    async fn advance(&self, positions: &[Position]) -> Result<(), Error> {
        let mut writer = self.writer.lock().await;
        let mut connection = self.reuse_or_connect(writer.take()).await?;
        let work = tokio::time::timeout(WRITE_TIMEOUT, self.advance_on(&mut connection, positions));
        work.await.unwrap_or_else(|_| Err(Error::store("cannot save positions", timeout_error())))?;
        *writer = Some(connection);
        Ok(())
    }

    async fn drop_collection(
        &self,
        key: &CollectionKey,
        epoch: Epoch,
        limit: usize,
        now_ms: i64,
    ) -> Result<Vec<Change>, Error> {
        let Some(id) = self.id_of(key).await? else { return Ok(Vec::new()) };
        let mut writer = self.writer.lock().await;
        let mut connection = self.reuse_or_connect(writer.take()).await?;
        let work = tokio::time::timeout(WRITE_TIMEOUT, self.drop_on(&mut connection, id, (key, epoch), limit, now_ms));
        let changes = work.await.unwrap_or_else(|_| Err(Error::store("cannot drop a collection", timeout_error())))?;
        *writer = Some(connection);
        Ok(changes)
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Object>, Error> {
        let Some(id) = self.id_of(&key.collection).await? else { return Ok(None) };
        let sql =
            format!("SELECT {OBJECT_COLUMNS} FROM records WHERE collection = $1 AND namespace = $2 AND name = $3");
        let query = sqlx::query(AssertSqlSafe(sql)).bind(id).bind(&*key.namespace).bind(&*key.name);
        Ok(self.fetch_objects("cannot read an object", query).await?.pop())
    }

    async fn records(&self, scan: &Scan, keep: &RecordFilter<'_>, limit: usize) -> Result<ScanPage<Record>, Error> {
        let Some((range, rows)) = self.fetch_scan(scan, limit, COLUMNS).await? else { return Ok((Vec::new(), None)) };
        self.catalog.collect_records(&range, &rows, keep)
    }

    async fn objects(
        &self,
        scan: &Scan,
        keep: &RecordFilter<'_>,
        limit: usize,
    ) -> Result<ScanPage<StoredObject>, Error> {
        let Some((range, rows)) = self.fetch_scan(scan, limit, OBJECT_COLUMNS).await? else {
            return Ok((Vec::new(), None));
        };
        self.load_row_dependencies(&rows).await?;
        self.catalog.collect_objects(&range, &rows, keep)
    }

    async fn records_with_label(&self, query: &LabelQuery<'_>) -> Result<Vec<Record>, Error> {
        self.records_by_label(query).await
    }

    async fn bodies(&self, records: Vec<Record>) -> Result<Vec<Object>, Error> {
        let ids: Vec<i64> = records.iter().map(|record| record.id as i64).collect();
        let problem = "cannot read bodies";
        let sql = "SELECT id, seq, dictionary, body FROM records WHERE id = ANY($1)";
        let rows = self.fetch_rows(problem, sqlx::query(sql).bind(ids)).await?;
        let dictionaries: Vec<i64> =
            rows.iter().map(|row| row.number(2)).collect::<Result<_, _>>().map_err(|e| Error::store(problem, e))?;
        if dictionaries.iter().any(|id| !self.catalog.codec.has_dictionary(*id as u32)) {
            self.load_dictionaries(i64::from(self.catalog.codec.newest_dictionary())).await?;
        }
        let bodies = Bodies::decode(&self.catalog, &records, &rows)?;
        let fresh =
            if bodies.changed.is_empty() { Vec::new() } else { self.by_ids(&bodies.changed, BodyMode::Read).await? };
        Ok(bodies.join(records, fresh))
    }

    async fn by_ids(&self, ids: &[u64], body_mode: BodyMode) -> Result<Vec<Object>, Error> {
        let columns = match body_mode {
            BodyMode::Read => OBJECT_COLUMNS.to_owned(),
            BodyMode::Skip => columns_without_body("''::bytea"),
        };
        let sql = AssertSqlSafe(format!("SELECT {columns} FROM records WHERE id = ANY($1)"));
        self.fetch_objects("cannot read objects", sqlx::query(sql).bind(to_bigints(ids))).await
    }

    async fn replay(&self, since: Seq, limit: usize) -> Result<Vec<ReplayedChange>, Error> {
        // One statement, so that both halves are read from the same snapshot.
        let half = limit as i64;
        let sql = AssertSqlSafe(format!(
            "(SELECT {OBJECT_COLUMNS}, false FROM records WHERE seq > $1 ORDER BY seq LIMIT $2) UNION ALL \
             (SELECT id, ended, '', '', 0, NULL, NULL, 0, '', '', '', '', 0, 0, ''::bytea, true FROM versions \
             WHERE deleted AND ended > $1 ORDER BY ended LIMIT $2)"
        ));
        let problem = "cannot replay changes";
        let rows = self.fetch_rows(problem, sqlx::query(sql).bind(since.0 as i64).bind(half)).await?;
        let deleted = |row: &PgRow| row.try_get::<bool, _>(15);
        let (mut records, mut deletions) = (Vec::new(), Vec::new());
        for row in rows {
            let half = if deleted(&row).map_err(|e| Error::store(problem, e))? { &mut deletions } else { &mut records };
            half.push(row);
        }
        self.load_row_dependencies(&records).await?;
        self.catalog.merge_replay(&records, &deletions, limit)
    }

    async fn keys(&self, key: &CollectionKey) -> Result<Vec<NamespacedName>, Error> {
        let problem = "cannot list keys";
        let Some(id) = self.id_of(key).await? else { return Ok(Vec::new()) };
        let sql = "SELECT namespace, name FROM records WHERE collection = $1 ORDER BY namespace, name";
        let rows = self.fetch_rows(problem, sqlx::query(sql).bind(id)).await?;
        let key = |row: &PgRow| Ok(NamespacedName { namespace: row.try_get(0)?, name: row.try_get(1)? });
        rows.iter().map(key).collect::<Result<_, sqlx::Error>>().map_err(|e| Error::store(problem, e))
    }

    async fn collections(&self) -> Result<Vec<StoredCollection>, Error> {
        self.read_collections().await
    }

    async fn latest(&self) -> Result<Seq, Error> {
        let problem = "cannot read its sequence number";
        let row = self.fetch_first(problem, sqlx::query("SELECT seq FROM counter")).await?;
        let seq = row.map(|row| row.number(0)).transpose().map_err(|e| Error::store(problem, e))?;
        Ok(Seq(seq.unwrap_or_default() as u64))
    }

    async fn identity(&self) -> Result<String, Error> {
        let fresh = format!("{:032x}", rand::random::<u128>());
        let sql = "INSERT INTO facts (name, value) VALUES ('identity', $1) ON CONFLICT (name) DO NOTHING";
        self.fetch_rows("cannot save its identity", sqlx::query(sql).bind(fresh)).await?;
        self.read_fact("identity").await?.ok_or(Error::Stopped)
    }

    async fn created_at(&self, now_ms: i64) -> Result<i64, Error> {
        let problem = "cannot read its creation time";
        let sql = "INSERT INTO facts (name, value) \
            SELECT 'began', COALESCE((SELECT MIN(changed_at) FROM records), $1)::text \
            WHERE NOT EXISTS (SELECT 1 FROM facts WHERE name = 'began') ON CONFLICT (name) DO NOTHING";
        self.fetch_rows(problem, sqlx::query(sql).bind(now_ms)).await?;
        let row =
            self.fetch_first(problem, sqlx::query("SELECT value::bigint FROM facts WHERE name = 'began'")).await?;
        let created_at = row.map(|row| row.number(0)).transpose().map_err(|e| Error::store(problem, e))?;
        created_at.ok_or(Error::Stopped)
    }

    async fn save_dictionary(&self, kind: &str, dictionary: &[u8], now_ms: i64) -> Result<(), Error> {
        let problem = "cannot save a dictionary";
        let sql = "INSERT INTO dictionaries (kind, created_at, dictionary) VALUES ($1, $2, $3) RETURNING id";
        let row = self.fetch_first(problem, sqlx::query(sql).bind(kind).bind(now_ms).bind(dictionary)).await?;
        let id = row.ok_or(Error::Stopped)?.number(0).map_err(|e| Error::store(problem, e))?;
        // Dictionaries in between may belong to other replicas.
        self.load_dictionaries(i64::from(self.catalog.codec.newest_dictionary())).await?;
        self.catalog.codec.install(id as u32, kind, dictionary);
        Ok(())
    }

    async fn prune(&self, history: &HistoryRetention, now_ms: i64, indexed_seq: Seq) -> Result<u64, Error> {
        self.prune_versions(history, now_ms, indexed_seq).await
    }

    async fn versions(&self, key: &RecordKey, limit: usize) -> Result<Vec<Version>, Error> {
        let Some(id) = self.id_of(&key.collection).await? else { return Ok(Vec::new()) };
        let query =
            sqlx::query(AssertSqlSafe(history::versions_of_key())).bind(id).bind(&*key.namespace).bind(&*key.name);
        self.fetch_versions(query.bind(limit as i64)).await
    }

    fn exclusions(&self, namespaces_of: &mut NamespaceFilter<'_>) -> VersionExclusions {
        self.catalog.exclusions(namespaces_of)
    }

    async fn versions_in(
        &self,
        filter: &VersionFilter,
        exclusions: &VersionExclusions,
        limit: usize,
    ) -> Result<Vec<Version>, Error> {
        let before = i64::try_from(filter.before.0).unwrap_or(i64::MAX);
        let sql = history::filtered_versions(filter, if exclusions.is_none() { "" } else { NOT_EXCLUDED });
        let query =
            sqlx::query(AssertSqlSafe(sql)).bind(before).bind(filter.from).bind(filter.until).bind(limit as i64);
        if exclusions.is_none() {
            return self.fetch_versions(query).await;
        }
        self.fetch_versions(query.bind(&exclusions.excluded).bind(&exclusions.limited).bind(&exclusions.namespaces))
            .await
    }

    async fn versions_ended_by(&self, changes: &[Seq]) -> Result<Vec<Version>, Error> {
        let seqs: Vec<u64> = changes.iter().map(|seq| seq.0).collect();
        self.fetch_versions(sqlx::query(AssertSqlSafe(history::versions_by_end("= ANY($1)"))).bind(to_bigints(&seqs)))
            .await
    }

    async fn as_of(&self, seq: Seq, ids: &[u64]) -> Result<Vec<Version>, Error> {
        let sql = AssertSqlSafe(history::as_of("= ANY($2)"));
        self.fetch_versions(sqlx::query(sql).bind(seq.0 as i64).bind(to_bigints(ids))).await
    }

    async fn superseded_since(&self, scan: &SupersededScan<'_>) -> Result<Vec<Version>, Error> {
        let SupersededScan { seq, collection, after, until, limit } = *scan;
        let Some(id) = self.catalog.id_of(collection) else { return Ok(Vec::new()) };
        let (namespace, name) = after.map_or(("", ""), |(namespace, name)| (namespace, name));
        let sql = AssertSqlSafe(history::superseded_since(until));
        let query = sqlx::query(sql).bind(seq.0 as i64).bind(id).bind(namespace.to_owned()).bind(name.to_owned());
        let query = query.bind(limit as i64);
        self.fetch_versions(match until {
            Some(KeyRangeEnd::Key(namespace, name)) => query.bind(namespace.to_owned()).bind(name.to_owned()),
            Some(KeyRangeEnd::Namespace(namespace)) => query.bind(namespace.to_owned()),
            None => query,
        })
        .await
    }

    async fn pruned_until(&self) -> Result<Seq, Error> {
        Ok(Seq(self.read_number_fact("pruned").await? as u64))
    }

    async fn notes(&self) -> Result<Vec<(RecordKey, String)>, Error> {
        let problem = "cannot read its notes";
        let text = |row: &PgRow, column: usize| row.try_get::<String, _>(column);
        let mut found = Vec::new();
        for row in self.fetch_rows(problem, sqlx::query(notes::LIST)).await? {
            let columns: Result<Vec<String>, sqlx::Error> = (0..7).map(|column| text(&row, column)).collect();
            let columns = columns.map_err(|e| Error::store(problem, e))?;
            found.extend(<[String; 7]>::try_from(columns).ok().and_then(notes::decode_note));
        }
        Ok(found)
    }

    async fn put_note(&self, key: &RecordKey, note: Option<&str>) -> Result<(), Error> {
        let sql = if note.is_some() { notes::PUT } else { notes::DELETE };
        let query =
            notes::key_columns(key).into_iter().chain(note).fold(sqlx::query(sql), |query, text| query.bind(text));
        self.fetch_rows("cannot save a note", query).await.map(drop)
    }

    async fn facts(&self, prefix: &str) -> Result<Vec<(String, String)>, Error> {
        let problem = "cannot read facts";
        let rows = self.fetch_rows(problem, sqlx::query(notes::LIST_FACTS).bind(prefix)).await?;
        let fact = |row: &PgRow| Ok((row.try_get(0)?, row.try_get(1)?));
        rows.iter().map(fact).collect::<Result<_, sqlx::Error>>().map_err(|e| Error::store(problem, e))
    }

    async fn put_fact(&self, name: &str, value: Option<&str>) -> Result<(), Error> {
        let sql = if value.is_some() { notes::PUT_FACT } else { notes::DELETE_FACT };
        let query = value.into_iter().fold(sqlx::query(sql).bind(name), |query, value| query.bind(value));
        self.fetch_rows("cannot save a fact", query).await.map(drop)
    }

    async fn delete_notes(&self, cluster: &ClusterName) -> Result<(), Error> {
        let query = sqlx::query(notes::DELETE_CLUSTER).bind(cluster.as_str());
        self.fetch_rows("cannot delete notes", query).await.map(drop)
    }

    async fn counts(&self) -> Result<Vec<(CollectionKey, u64)>, Error> {
        // Other replicas may have created collections.
        self.read_collections().await?;
        self.catalog.counts(&self.fetch_rows("cannot count its records", sqlx::query(COUNTS)).await?)
    }

    async fn size(&self) -> Result<StoreSize, Error> {
        let problem = "cannot determine its size";
        let sql = "SELECT (SELECT count(*) FROM records), (SELECT count(*) FROM versions), \
            (SELECT count(*) FROM versions WHERE deleted), (SELECT coalesce(sum(bytes), 0)::bigint FROM versions), \
            (SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class \
            WHERE relnamespace = to_regnamespace($1) AND relkind = 'r'), 0::bigint";
        let row = self.fetch_first(problem, sqlx::query(sql).bind(SCHEMA)).await?.ok_or(Error::Stopped)?;
        decode_size(&row)
    }
}
