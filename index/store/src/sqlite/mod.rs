//! SQLite backend: one file with a write-ahead log, one write connection, several read connections.

mod check;
mod fetch;
mod labels;
mod load;
pub(crate) mod migrations;
mod prune;
#[cfg(test)]
mod tests;
mod write;

use super::catalog::Catalog;
use super::codec::Codec;
use super::decide::{BatchDecision, Sequence, Target, runs};
use super::history;
use super::labels::IndexedLabels;
use super::notes;
use super::query_batcher::QueryBatcher;
use super::reading::{Bodies, COUNTS, decode_size};
use super::rows::{COLUMNS, OBJECT_COLUMNS, columns_without_body};
use super::{
    Batch, BodyMode, KeyRangeEnd, LabelQuery, NamespaceFilter, Position, RecordFilter, ReplayedChange, Scan, ScanPage,
    Store, StoreSize, StoredCollection, StoredObject, SupersededScan, VersionExclusions, VersionFilter,
};
use crate::Epoch;
use crate::record::{Change, CollectionKey, Object, Record, RecordKey, Seq, Version};
use crate::{CacheOptions, Error, HistoryRetention};
use async_trait::async_trait;
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use sqlx::sqlite::{
    SqliteAutoVacuum, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteRow,
    SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, Connection, Row as _, SqlitePool, SqliteTransaction};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use write::{save_latest, save_positions, save_progress};

/// Begins a write transaction. Upgrading a read transaction would fail after a concurrent write.
const BEGIN_WRITE: &str = "BEGIN IMMEDIATE";
/// Name of the database file in the data directory.
pub const FILE: &str = "cache.sqlite";

/// Deletes the database file, its write-ahead log and its shared memory file. Returns false if there was none.
pub fn discard(data_dir: &Path) -> Result<bool, Error> {
    let mut found = false;
    for suffix in ["", "-wal", "-shm"] {
        let path = data_dir.join(format!("{FILE}{suffix}"));
        match std::fs::remove_file(&path) {
            Ok(()) => found = true,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::Io { path: path.display().to_string(), source }),
        }
    }
    Ok(found)
}

/// SQL condition for [`VersionExclusions`]: excluded collections $5, limited collections $6, namespaces $7.
const NOT_EXCLUDED: &str = "AND collection NOT IN (SELECT value FROM json_each($5)) AND \
    (collection NOT IN (SELECT value FROM json_each($6)) OR namespace IN (SELECT value FROM json_each($7)))";
/// Maximum size in bytes of the write-ahead log after a large transaction.
const JOURNAL_BYTES: &str = "67108864";

/// Maximum number of rows between a connection's thread and the reader. With few, the two threads would have to wait
/// for each other several times per page.
const ROW_BUFFER: usize = 512;

/// Maximum number of concurrent batches of [`Store::get`]. Reads of single objects are batched, because the round trip
/// to SQLite's thread costs more than the read itself.
const GET_BATCHES: usize = 2;
/// Maximum number of objects in such a batch.
const GETS_PER_BATCH: usize = 64;

/// Key of an object: collection id, namespace, name.
type RowKey = (i64, Arc<str>, Arc<str>);
type GetBatcher = QueryBatcher<RowKey, Option<SqliteRow>>;

fn new_get_batcher() -> GetBatcher {
    QueryBatcher::new(GET_BATCHES, GETS_PER_BATCH)
}

/// The SQLite backend.
pub struct SqliteStore {
    writer: Mutex<Writer>,
    /// See [`Store::latest`]. Set before a transaction commits, so that it is never less than the seq of a change that
    /// readers see, and read without waiting for the writer.
    assigned: AtomicU64,
    readers: SqlitePool,
    gets: GetBatcher,
    catalog: Catalog,
    indexed_labels: IndexedLabels,
}

struct Writer {
    connection: SqliteConnection,
    /// The newest seq assigned in a committed transaction.
    latest: u64,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SqliteStore")
    }
}

impl SqliteStore {
    /// Opens or creates `cache.sqlite` in the data directory and migrates it to the newest format.
    pub async fn open(options: &CacheOptions, codec: Arc<Codec>) -> Result<Self, Error> {
        let path = options.data_dir.join(FILE);
        std::fs::create_dir_all(&options.data_dir)
            .map_err(|source| Error::Io { path: options.data_dir.display().to_string(), source })?;
        let common = SqliteConnectOptions::new()
            .filename(&path)
            .page_size(8192)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(10))
            .statement_cache_capacity(64)
            .row_buffer_size(ROW_BUFFER)
            .pragma("temp_store", "MEMORY")
            .pragma("journal_size_limit", JOURNAL_BYTES)
            .pragma("cache_size", format!("-{}", options.sqlite_cache_kib));
        let unusable = |e| Error::store(format!("{} cannot be opened", path.display()), e);
        // These options write to the file, so only the write connection sets them.
        let writing = common.clone().create_if_missing(true).auto_vacuum(SqliteAutoVacuum::Incremental);
        let mut connection = SqliteConnection::connect_with(&writing).await.map_err(unusable)?;
        migrations::migrate(&mut connection, &path, migrations::NEWEST).await?;
        let indexed_labels = IndexedLabels(options.indexed_labels.clone());
        labels::rebuild_if_changed(&mut connection, &indexed_labels).await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(options.sqlite_readers.max(1))
            .min_connections(1)
            // A test before each query would be another round trip to the connection's thread. A connection whose
            // thread ended is closed when it is returned.
            .test_before_acquire(false)
            .connect_with(common.pragma("query_only", "ON"))
            .await
            .map_err(unusable)?;
        let writer = Mutex::new(Writer { connection, latest: 0 });
        let (assigned, gets, catalog) = (AtomicU64::default(), new_get_batcher(), Catalog::new(codec));
        let store = Self { writer, assigned, readers, gets, catalog, indexed_labels };
        store.load().await?;
        Ok(store)
    }

    /// Commits a transaction that assigned the seqs after `latest`, up to `assigned`. If it fails, no change has them, so
    /// [`Store::latest`] must not report them: readers would wait for them.
    async fn commit(&self, transaction: SqliteTransaction<'_>, latest: u64, assigned: u64) -> Result<(), sqlx::Error> {
        self.assigned.store(assigned, Ordering::Release);
        transaction.commit().await.inspect_err(|_| self.assigned.store(latest, Ordering::Release))
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn apply(&self, batches: &[Batch], now_ms: i64) -> Result<Vec<Change>, Error> {
        let fail = |e| Error::store("cannot write", e);
        let mut writer = self.writer.lock().await;
        let latest = writer.latest;
        let mut sequence = Sequence { seq: latest, now_ms };
        let mut transaction = writer.connection.begin_with(BEGIN_WRITE).await.map_err(fail)?;
        let mut changes = Vec::new();
        let mut targets: Vec<Target> = Vec::new();
        for batch in batches {
            let id = match targets.iter().find(|target| target.key == batch.collection) {
                Some(target) => target.id,
                None => self.ensure_collection(&mut transaction, batch).await?,
            };
            let target = self.catalog.target(id, batch, &targets);
            for run in runs(&batch.writes, |write| write.key()) {
                changes.extend(self.apply_distinct_writes(&mut transaction, &target, &run, &mut sequence).await?);
            }
            save_progress(&mut transaction, id, &batch.progress, now_ms).await?;
            targets.push(target);
        }
        if sequence.seq != latest {
            save_latest(&mut transaction, sequence.seq).await?;
        }
        self.commit(transaction, latest, sequence.seq).await.map_err(fail)?;
        writer.latest = sequence.seq;
        targets.into_iter().for_each(|target| self.catalog.insert(target.id, &target.key, target.kind));
        Ok(changes)
    }

    async fn advance(&self, positions: &[Position]) -> Result<(), Error> {
        let mut stored = Vec::new();
        for Position { collection, version, last_contact_ms, .. } in positions {
            stored.extend(self.catalog.id_of(collection).map(|id| (id, version.as_str(), *last_contact_ms)));
        }
        let mut writer = self.writer.lock().await;
        save_positions(&mut writer.connection, &stored).await
    }

    async fn drop_collection(
        &self,
        key: &CollectionKey,
        _epoch: Epoch,
        limit: usize,
        now_ms: i64,
    ) -> Result<Vec<Change>, Error> {
        let fail = |e| Error::store("cannot drop a collection", e);
        let Some(id) = self.catalog.id_of(key) else { return Ok(Vec::new()) };
        let mut writer = self.writer.lock().await;
        let latest = writer.latest;
        let mut sequence = Sequence { seq: latest, now_ms };
        let mut transaction = writer.connection.begin_with(BEGIN_WRITE).await.map_err(fail)?;
        let sql = AssertSqlSafe(format!("SELECT {COLUMNS} FROM records WHERE collection = ? LIMIT ?"));
        let rows = sqlx::query(sql).bind(id).bind(limit as i64).fetch_all(&mut *transaction).await.map_err(fail)?;
        let mut decision = BatchDecision::default();
        for row in rows {
            decision.delete(id, self.catalog.decode_record(&row, id)?, None, &mut sequence);
        }
        let changes = self.execute_decision(&mut transaction, decision, now_ms).await?;
        // Marked incomplete with the first deletions, so that a partly dropped collection is not mistaken for a
        // complete one after a crash.
        let sql = "UPDATE collections SET complete = 0, resource_version = '', gone = $2, \
            scope = CASE WHEN $2 THEN '' ELSE scope END WHERE id = $1";
        sqlx::query(sql).bind(id).bind(changes.is_empty()).execute(&mut *transaction).await.map_err(fail)?;
        save_latest(&mut transaction, sequence.seq).await?;
        self.commit(transaction, latest, sequence.seq).await.map_err(fail)?;
        writer.latest = sequence.seq;
        Ok(changes)
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Object>, Error> {
        let Some(id) = self.catalog.id_of(&key.collection) else { return Ok(None) };
        let row_key = (id, Arc::clone(&key.namespace), Arc::clone(&key.name));
        let row = self.gets.query(row_key, |keys| self.fetch_rows_by_keys(keys)).await?;
        row.map(|row| self.catalog.decode_object(&row)).transpose()
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
        self.catalog.collect_objects(&range, &rows, keep)
    }

    async fn records_with_label(&self, query: &LabelQuery<'_>) -> Result<Vec<Record>, Error> {
        self.records_by_label(query).await
    }

    async fn bodies(&self, records: Vec<Record>) -> Result<Vec<Object>, Error> {
        let fail = |e| Error::store("cannot read bodies", e);
        let ids = json_ids(records.iter().map(|record| record.id));
        let sql = "SELECT id, seq, dictionary, body FROM records WHERE id IN (SELECT value FROM json_each(?))";
        let rows = sqlx::query(sql).bind(ids).fetch_all(&self.readers).await.map_err(fail)?;
        let bodies = Bodies::decode(&self.catalog, &records, &rows)?;
        let fresh =
            if bodies.changed.is_empty() { Vec::new() } else { self.by_ids(&bodies.changed, BodyMode::Read).await? };
        Ok(bodies.join(records, fresh))
    }

    async fn by_ids(&self, ids: &[u64], body_mode: BodyMode) -> Result<Vec<Object>, Error> {
        let columns = match body_mode {
            BodyMode::Read => OBJECT_COLUMNS.to_owned(),
            BodyMode::Skip => columns_without_body("x''"),
        };
        let sql = AssertSqlSafe(format!("SELECT {columns} FROM records WHERE id IN (SELECT value FROM json_each(?))"));
        self.fetch_objects(sql, json_ids(ids.iter().copied())).await
    }

    async fn replay(&self, since: Seq, limit: usize) -> Result<Vec<ReplayedChange>, Error> {
        let fail = |e| Error::store("cannot replay changes", e);
        // One transaction, so that records and deletions are read from the same snapshot.
        let mut reading = self.readers.begin().await.map_err(fail)?;
        let sql = AssertSqlSafe(format!("SELECT {OBJECT_COLUMNS} FROM records WHERE seq > ? ORDER BY seq LIMIT ?"));
        let (since, rows) = (since.0 as i64, limit as i64);
        let records = sqlx::query(sql).bind(since).bind(rows).fetch_all(&mut *reading).await.map_err(fail)?;
        let deleted = "SELECT id, ended FROM versions WHERE deleted AND ended > ? ORDER BY ended LIMIT ?";
        let deleted = sqlx::query(deleted).bind(since).bind(rows).fetch_all(&mut *reading).await.map_err(fail)?;
        reading.commit().await.map_err(fail)?;
        self.catalog.merge_replay(&records, &deleted, limit)
    }

    async fn keys(&self, key: &CollectionKey) -> Result<Vec<NamespacedName>, Error> {
        let fail = |e| Error::store("cannot list keys", e);
        let Some(id) = self.catalog.id_of(key) else { return Ok(Vec::new()) };
        let sql = "SELECT namespace, name FROM records WHERE collection = ? ORDER BY namespace, name";
        let rows = sqlx::query(sql).bind(id).fetch_all(&self.readers).await.map_err(fail)?;
        let key = |row: &SqliteRow| Ok(NamespacedName { namespace: row.try_get(0)?, name: row.try_get(1)? });
        rows.iter().map(key).collect::<Result<_, sqlx::Error>>().map_err(fail)
    }

    async fn collections(&self) -> Result<Vec<StoredCollection>, Error> {
        self.read_collections().await
    }

    async fn latest(&self) -> Result<Seq, Error> {
        Ok(Seq(self.assigned.load(Ordering::Acquire)))
    }

    async fn identity(&self) -> Result<String, Error> {
        let fail = |e| Error::store("cannot read its identity", e);
        let mut writer = self.writer.lock().await;
        let fresh = format!("{:032x}", rand::random::<u128>());
        sqlx::query("INSERT OR IGNORE INTO facts (name, value) VALUES ('identity', ?)")
            .bind(fresh)
            .execute(&mut writer.connection)
            .await
            .map_err(fail)?;
        let row =
            sqlx::query("SELECT value FROM facts WHERE name = 'identity'").fetch_one(&mut writer.connection).await;
        row.and_then(|row| row.try_get(0)).map_err(fail)
    }

    async fn created_at(&self, now_ms: i64) -> Result<i64, Error> {
        let fail = |e| Error::store("cannot read its creation time", e);
        let mut writer = self.writer.lock().await;
        sqlx::query(
            "INSERT INTO facts (name, value) SELECT 'began', COALESCE((SELECT MIN(changed_at) FROM records), ?) \
             WHERE NOT EXISTS (SELECT 1 FROM facts WHERE name = 'began')",
        )
        .bind(now_ms)
        .execute(&mut writer.connection)
        .await
        .map_err(fail)?;
        let sql = "SELECT CAST(value AS INTEGER) FROM facts WHERE name = 'began'";
        let row = sqlx::query(sql).fetch_one(&mut writer.connection).await;
        row.and_then(|row| row.try_get(0)).map_err(fail)
    }

    async fn save_dictionary(&self, kind: &str, dictionary: &[u8], now_ms: i64) -> Result<(), Error> {
        let sql = "INSERT INTO dictionaries (kind, created_at, dictionary) VALUES (?, ?, ?)";
        let mut writer = self.writer.lock().await;
        let done = sqlx::query(sql)
            .bind(kind)
            .bind(now_ms)
            .bind(dictionary)
            .execute(&mut writer.connection)
            .await
            .map_err(|e| Error::store("cannot save a dictionary", e))?;
        self.catalog.codec.install(done.last_insert_rowid() as u32, kind, dictionary);
        Ok(())
    }

    async fn prune(&self, history: &HistoryRetention, now_ms: i64, indexed_seq: Seq) -> Result<u64, Error> {
        let mut writer = self.writer.lock().await;
        let until = writer.latest.min(indexed_seq.0) as i64;
        prune::delete_versions(&mut writer.connection, history, now_ms, until).await
    }

    async fn versions(&self, key: &RecordKey, limit: usize) -> Result<Vec<Version>, Error> {
        let Some(id) = self.catalog.id_of(&key.collection) else { return Ok(Vec::new()) };
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
        let json = |numbers: &[i64]| json_ids(numbers.iter().map(|number| *number as u64));
        let namespaces = serde_json::Value::from(exclusions.namespaces.clone()).to_string();
        let query = query.bind(json(&exclusions.excluded)).bind(json(&exclusions.limited)).bind(namespaces);
        self.fetch_versions(query).await
    }

    async fn versions_ended_by(&self, changes: &[Seq]) -> Result<Vec<Version>, Error> {
        let sql = AssertSqlSafe(history::versions_by_end("IN (SELECT value FROM json_each(?))"));
        self.fetch_versions(sqlx::query(sql).bind(json_ids(changes.iter().map(|seq| seq.0)))).await
    }

    async fn as_of(&self, seq: Seq, ids: &[u64]) -> Result<Vec<Version>, Error> {
        let sql = AssertSqlSafe(history::as_of("IN (SELECT value FROM json_each($2))"));
        self.fetch_versions(sqlx::query(sql).bind(seq.0 as i64).bind(json_ids(ids.iter().copied()))).await
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
        Ok(Seq(prune::read_number_fact(&self.readers, "pruned").await? as u64))
    }

    async fn notes(&self) -> Result<Vec<(RecordKey, String)>, Error> {
        let fail = |e| Error::store("cannot read its notes", e);
        type Columns = (String, String, String, String, String, String, String);
        let rows: Vec<Columns> = sqlx::query_as(notes::LIST).fetch_all(&self.readers).await.map_err(fail)?;
        Ok(rows.into_iter().filter_map(|(a, b, c, d, e, f, g)| notes::decode_note([a, b, c, d, e, f, g])).collect())
    }

    async fn put_note(&self, key: &RecordKey, note: Option<&str>) -> Result<(), Error> {
        let sql = if note.is_some() { notes::PUT } else { notes::DELETE };
        let query =
            notes::key_columns(key).into_iter().chain(note).fold(sqlx::query(sql), |query, text| query.bind(text));
        let mut writer = self.writer.lock().await;
        let done = query.execute(&mut writer.connection).await;
        done.map(drop).map_err(|e| Error::store("cannot save a note", e))
    }

    async fn facts(&self, prefix: &str) -> Result<Vec<(String, String)>, Error> {
        let found = sqlx::query_as(notes::LIST_FACTS).bind(prefix).fetch_all(&self.readers).await;
        found.map_err(|e| Error::store("cannot read facts", e))
    }

    async fn put_fact(&self, name: &str, value: Option<&str>) -> Result<(), Error> {
        let sql = if value.is_some() { notes::PUT_FACT } else { notes::DELETE_FACT };
        let query = value.into_iter().fold(sqlx::query(sql).bind(name), |query, value| query.bind(value));
        let mut writer = self.writer.lock().await;
        let done = query.execute(&mut writer.connection).await;
        done.map(drop).map_err(|e| Error::store("cannot save a fact", e))
    }

    async fn delete_notes(&self, cluster: &ClusterName) -> Result<(), Error> {
        let mut writer = self.writer.lock().await;
        let done = sqlx::query(notes::DELETE_CLUSTER).bind(cluster.as_str()).execute(&mut writer.connection).await;
        done.map(drop).map_err(|e| Error::store("cannot delete notes", e))
    }

    async fn counts(&self) -> Result<Vec<(CollectionKey, u64)>, Error> {
        let rows = sqlx::query(COUNTS).fetch_all(&self.readers).await;
        self.catalog.counts(&rows.map_err(|e| Error::store("cannot count its records", e))?)
    }

    async fn close(&self) -> Result<(), Error> {
        self.readers.close().await;
        let mut writer = self.writer.lock().await;
        let checkpoint = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut writer.connection).await;
        checkpoint.map(drop).map_err(|e| Error::store("cannot checkpoint its log", e))
    }

    async fn size(&self) -> Result<StoreSize, Error> {
        let fail = |e| Error::store("cannot determine its size", e);
        let sql = "SELECT (SELECT count(*) FROM records), (SELECT count(*) FROM versions), \
            (SELECT count(*) FROM versions WHERE deleted), (SELECT coalesce(sum(bytes), 0) FROM versions), \
            (SELECT page_count * page_size FROM pragma_page_count, pragma_page_size), \
            (SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size)";
        let row = sqlx::query(sql).fetch_one(&self.readers).await.map_err(fail)?;
        decode_size(&row)
    }
}

/// A JSON list of numbers, for `json_each`.
fn json_ids(ids: impl Iterator<Item = u64>) -> String {
    let mut text = String::from("[");
    for (nth, id) in ids.enumerate() {
        if nth > 0 {
            text.push(',');
        }
        text.push_str(&id.to_string());
    }
    text.push(']');
    text
}
