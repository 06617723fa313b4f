//! The writing half: what a batch changes, row by row, inside one transaction.

use super::{SqliteStore, decode_row};
use crate::Error;
use crate::ingest::Draft;
use crate::record::{Change, CollectionKey, Happened, Object, Record, RecordKey, Seq};
use crate::store::rows;
use crate::store::{Batch, Progress, Step};
use bytes::Bytes;
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Row as _};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

/// Sizes of multi-row inserts; few, so that their statements stay prepared.
const INSERT_SIZES: [usize; 3] = [128, 16, 1];
static INSERTS: LazyLock<[(usize, Arc<str>); 3]> = LazyLock::new(|| {
    INSERT_SIZES.map(|size| {
        let row = "(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)";
        let sql = format!(
            "INSERT OR REPLACE INTO records (id, collection, namespace, name, seq, uid, resource_version, generation, \
             created, deleting, changed_at, labels, header, dictionary, body) VALUES {}",
            vec![row; size].join(",")
        );
        (size, sql.into())
    })
});

impl SqliteStore {
    pub(super) async fn ensure_collection(
        &self,
        connection: &mut SqliteConnection,
        batch: &Batch,
    ) -> Result<i64, Error> {
        if let Some(id) = self.id_of(&batch.collection) {
            return Ok(id);
        }
        let CollectionKey { cluster, resource } = &batch.collection;
        let sql = "INSERT INTO collections (cluster, \"group\", version, resource) VALUES (?, ?, ?, ?)";
        let done = sqlx::query(sql)
            .bind(cluster.as_str())
            .bind(&*resource.group)
            .bind(&*resource.version)
            .bind(&*resource.resource)
            .execute(connection)
            .await
            .map_err(|e| Error::store("cannot add a collection", e))?;
        Ok(done.last_insert_rowid())
    }

    /// What the keys hold now. With `bodies`, unpacked ones.
    async fn present(
        &self,
        connection: &mut SqliteConnection,
        collection: &(i64, CollectionKey, Arc<str>),
        keys: &[(&str, &str)],
    ) -> Result<HashMap<(String, String), Record>, Error> {
        let fail = |e| Error::store("cannot compare with what is there", e);
        let wanted =
            serde_json::to_string(keys).map_err(|source| Error::Decode { what: "list of keys".to_owned(), source })?;
        let sql = "SELECT r.id, r.seq, r.uid, r.resource_version, r.generation, r.created, r.deleting, r.changed_at, \
            r.labels, r.header, r.namespace, r.name FROM json_each(?) AS k CROSS JOIN records AS r \
            ON r.collection = ? AND r.namespace = k.value ->> 0 AND r.name = k.value ->> 1";
        let rows = sqlx::query(sql).bind(wanted).bind(collection.0).fetch_all(connection).await.map_err(fail)?;
        let mut present = HashMap::with_capacity(rows.len());
        for row in rows {
            let (namespace, name): (String, String) = (row.try_get(10).map_err(fail)?, row.try_get(11).map_err(fail)?);
            let key = RecordKey {
                collection: collection.1.clone(),
                namespace: namespace.as_str().into(),
                name: name.as_str().into(),
            };
            let record = decode_row(&row).map_err(fail)?.decode(key, Arc::clone(&collection.2))?;
            present.insert((namespace, name), record);
        }
        Ok(present)
    }

    /// Applies steps whose keys are all different.
    pub(super) async fn apply_run(
        &self,
        connection: &mut SqliteConnection,
        collection: &(i64, CollectionKey, Arc<str>),
        steps: &[&Step],
        clock: &mut Clock,
        changes: &mut Vec<Change>,
    ) -> Result<(), Error> {
        let keys: Vec<_> = steps.iter().map(|step| step.key()).collect();
        let mut present = self.present(connection, collection, &keys).await?;
        let mut inserts: Vec<Insert<'_>> = Vec::new();
        for step in steps {
            let (namespace, name) = step.key();
            let previous = present.remove(&(namespace.to_owned(), name.to_owned()));
            match step {
                Step::Put(draft, packed) => {
                    let same = |old: &Record| old.uid == draft.uid && old.resource_version == draft.resource_version;
                    if previous.as_ref().is_some_and(same) {
                        continue;
                    }
                    // Another uid is another object under the same name: the old one is gone first.
                    let previous = match previous {
                        Some(old) if old.uid != draft.uid => {
                            changes.push(self.delete(connection, collection.0, old, None, clock).await?);
                            None
                        }
                        other => other,
                    };
                    let seq = clock.next();
                    let id = previous.as_ref().map_or(seq.0, |old| old.id);
                    let key =
                        RecordKey { collection: collection.1.clone(), namespace: namespace.into(), name: name.into() };
                    let record = rows::record(draft, key, Arc::clone(&collection.2), id, seq, clock.now_ms);
                    changes.push(Change {
                        seq,
                        happened: if previous.is_some() { Happened::Modified } else { Happened::Added },
                        object: Object { record: Arc::new(record), body: draft.body.clone() },
                        previous: previous.map(Arc::new),
                    });
                    inserts.push(Insert { id, seq, draft, dictionary: packed.dictionary, body: &packed.bytes });
                }
                Step::Delete { resource_version, .. } => {
                    if let Some(old) = previous {
                        let version = Some(resource_version.as_str()).filter(|version| !version.is_empty());
                        changes.push(self.delete(connection, collection.0, old, version, clock).await?);
                    }
                }
            }
        }
        insert(connection, collection.0, &inserts, clock.now_ms).await
    }

    pub(super) async fn delete(
        &self,
        connection: &mut SqliteConnection,
        collection: i64,
        old: Record,
        resource_version: Option<&str>,
        clock: &mut Clock,
    ) -> Result<Change, Error> {
        let fail = |e| Error::store("cannot delete a record", e);
        let seq = clock.next();
        let bury = "INSERT INTO tombstones (seq, id, collection, namespace, name, uid, resource_version, generation, \
            created, deleting, changed_at, labels, header, dictionary, body) SELECT ?, id, collection, namespace, name, \
            uid, coalesce(?, resource_version), generation, created, deleting, ?, labels, header, dictionary, body \
            FROM records WHERE id = ? AND collection = ?";
        sqlx::query(bury)
            .bind(seq.0 as i64)
            .bind(resource_version)
            .bind(clock.now_ms)
            .bind(old.id as i64)
            .bind(collection)
            .execute(&mut *connection)
            .await
            .map_err(fail)?;
        let row = sqlx::query("DELETE FROM records WHERE id = ? RETURNING dictionary, body")
            .bind(old.id as i64)
            .fetch_one(&mut *connection)
            .await
            .map_err(fail)?;
        let body: &[u8] = row.try_get(1).map_err(fail)?;
        let body: Bytes = self.codec.unpack(body, row.try_get(0).map_err(fail)?)?;
        let previous = Arc::new(old);
        let mut record = (*previous).clone();
        record.seq = seq;
        record.changed_at = clock.now_ms;
        if let Some(version) = resource_version {
            record.resource_version = version.to_owned();
        }
        let object = Object { record: Arc::new(record), body };
        Ok(Change { seq, happened: Happened::Deleted, object, previous: Some(previous) })
    }
}

/// Gives seqs; the time is the transaction's.
pub(super) struct Clock {
    pub seq: u64,
    pub now_ms: i64,
}

impl Clock {
    pub(super) fn next(&mut self) -> Seq {
        self.seq += 1;
        Seq(self.seq)
    }
}

struct Insert<'a> {
    id: u64,
    seq: Seq,
    draft: &'a Draft,
    dictionary: u32,
    body: &'a [u8],
}

async fn insert(
    connection: &mut SqliteConnection,
    collection: i64,
    mut inserts: &[Insert<'_>],
    now_ms: i64,
) -> Result<(), Error> {
    for (size, sql) in &*INSERTS {
        while inserts.len() >= *size {
            let (chunk, rest) = inserts.split_at(*size);
            inserts = rest;
            let mut query = sqlx::query(AssertSqlSafe(Arc::clone(sql)));
            for Insert { id, seq, draft, dictionary, body } in chunk {
                let (labels, header) = rows::encode(draft)?;
                query = query
                    .bind(*id as i64)
                    .bind(collection)
                    .bind(draft.namespace.clone())
                    .bind(draft.name.clone())
                    .bind(seq.0 as i64)
                    .bind(draft.uid.clone())
                    .bind(draft.resource_version.clone())
                    .bind(draft.generation)
                    .bind(draft.created)
                    .bind(draft.deleting)
                    .bind(now_ms)
                    .bind(labels)
                    .bind(header)
                    .bind(*dictionary)
                    .bind(body.to_vec());
            }
            query.execute(&mut *connection).await.map_err(|e| Error::store("cannot write records", e))?;
        }
    }
    Ok(())
}

/// Runs of steps whose keys are all different, in order.
pub(super) fn runs(steps: &[Step]) -> Vec<Vec<&Step>> {
    let mut runs: Vec<Vec<&Step>> = Vec::new();
    let mut seen = HashSet::new();
    for step in steps {
        if runs.is_empty() || !seen.insert(step.key()) {
            runs.push(Vec::new());
            seen.clear();
            seen.insert(step.key());
        }
        if let Some(run) = runs.last_mut() {
            run.push(step);
        }
    }
    runs
}

pub(super) async fn save_progress(
    connection: &mut SqliteConnection,
    id: i64,
    progress: &Progress,
    now_ms: i64,
) -> Result<(), Error> {
    let sql = "UPDATE collections SET resource_version = coalesce(?, resource_version), complete = max(complete, ?), \
        kind = coalesce(?, kind), namespaced = coalesce(?, namespaced), scope = coalesce(?, scope), heard_at = ? \
        WHERE id = ?";
    sqlx::query(sql)
        .bind(progress.resource_version.as_deref())
        .bind(progress.complete)
        .bind(progress.kind.as_ref().map(|(kind, _)| kind.as_str()))
        .bind(progress.kind.as_ref().map(|(_, namespaced)| *namespaced))
        .bind(progress.scope.as_deref())
        .bind(now_ms)
        .bind(id)
        .execute(connection)
        .await
        .map(drop)
        .map_err(|e| Error::store("cannot save a position", e))
}

pub(super) async fn save_latest(connection: &mut SqliteConnection, latest: u64) -> Result<(), Error> {
    sqlx::query("INSERT OR REPLACE INTO facts (name, value) VALUES ('seq', ?)")
        .bind(latest.to_string())
        .execute(connection)
        .await
        .map(drop)
        .map_err(|e| Error::store("cannot save its seq", e))
}
