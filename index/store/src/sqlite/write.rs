//! Write operations: applies the changes of a batch within one transaction.

use super::{SqliteStore, json_ids, labels};
use crate::Error;
use crate::decide::{BatchDecision, Put, Sequence, Target};
use crate::label_bits;
use crate::record::{Change, CollectionKey, Record};
use crate::rows;
use crate::{Batch, Progress, RecordWrite};
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Row as _};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

/// Numbers of rows of the multi-row inserts, largest first. There are only a few, so that their statements stay
/// prepared.
const INSERT_SIZES: [usize; 3] = [128, 16, 1];
static INSERTS: LazyLock<[(usize, Arc<str>); 3]> = LazyLock::new(|| {
    INSERT_SIZES.map(|size| {
        let row = "(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)";
        let sql = format!(
            "INSERT OR REPLACE INTO records (id, collection, namespace, name, seq, uid, resource_version, generation, \
             created, deleting, changed_at, labels, header, dictionary, body, label_bits) VALUES {}",
            vec![row; size].join(",")
        );
        (size, sql.into())
    })
});

/// Copies records to the versions and returns the bodies of deleted ones. $1 is a JSON list of (record id, seq of the
/// end, resourceVersion of the deletion, deleted), $2 the time.
const COPY_TO_VERSIONS: &str = "INSERT INTO versions (ended, ended_at, deleted, ended_version, id, collection, namespace, name, seq, uid, \
    resource_version, generation, created, deleting, changed_at, bytes, labels, header, dictionary, body) \
    SELECT e.value ->> 1, $2, e.value ->> 3, e.value ->> 2, r.id, r.collection, r.namespace, r.name, r.seq, r.uid, \
    r.resource_version, r.generation, r.created, r.deleting, r.changed_at, \
    length(r.labels) + length(r.header) + length(r.body), r.labels, r.header, r.dictionary, r.body \
    FROM json_each($1) AS e CROSS JOIN records AS r ON r.id = e.value ->> 0 \
    RETURNING ended, CASE WHEN deleted THEN dictionary END, CASE WHEN deleted THEN body END";

impl SqliteStore {
    pub(super) async fn ensure_collection(
        &self,
        connection: &mut SqliteConnection,
        batch: &Batch,
    ) -> Result<i64, Error> {
        if let Some(id) = self.catalog.id_of(&batch.collection) {
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

    /// The current records of the keys.
    async fn read_current(
        &self,
        connection: &mut SqliteConnection,
        target: &Target,
        keys: &[(&str, &str)],
    ) -> Result<HashMap<(String, String), Record>, Error> {
        let fail = |e| Error::store("cannot read existing records", e);
        let parameters = json(&keys, "list of keys")?;
        let sql = "SELECT r.id, r.seq, r.uid, r.resource_version, r.generation, r.created, r.deleting, r.changed_at, \
            r.labels, r.header, r.namespace, r.name FROM json_each(?) AS k CROSS JOIN records AS r \
            ON r.collection = ? AND r.namespace = k.value ->> 0 AND r.name = k.value ->> 1";
        let rows = sqlx::query(sql).bind(parameters).bind(target.id).fetch_all(connection).await.map_err(fail)?;
        let mut current = HashMap::with_capacity(rows.len());
        for row in rows {
            let record = rows::decode_record(&row, target)?;
            current.insert((record.key.namespace.to_string(), record.key.name.to_string()), record);
        }
        Ok(current)
    }

    /// Applies writes with distinct keys.
    pub(super) async fn apply_distinct_writes(
        &self,
        connection: &mut SqliteConnection,
        target: &Target,
        writes: &[&RecordWrite],
        sequence: &mut Sequence,
    ) -> Result<Vec<Change>, Error> {
        let keys: Vec<_> = writes.iter().map(|write| write.key()).collect();
        let mut current = self.read_current(connection, target, &keys).await?;
        let mut decision = BatchDecision::default();
        for write in writes {
            let (namespace, name) = write.key();
            // Avoids the allocation while a collection is filled, when there are no current records.
            let previous = match current.is_empty() {
                true => None,
                false => current.remove(&(namespace.to_owned(), name.to_owned())),
            };
            decision.add_write(target, write, previous, sequence);
        }
        self.execute_decision(connection, decision, sequence.now_ms).await
    }

    /// Executes a decision and returns its changes.
    pub(super) async fn execute_decision(
        &self,
        connection: &mut SqliteConnection,
        mut decision: BatchDecision<'_>,
        now_ms: i64,
    ) -> Result<Vec<Change>, Error> {
        self.save_versions(connection, &mut decision, now_ms).await?;
        insert(connection, &decision.puts, now_ms).await?;
        labels::write(connection, self.indexed_labels.label_changes(&decision)).await?;
        Ok(decision.into_changes())
    }

    /// Copies the current states of the records to the versions, and deletes the records to delete.
    async fn save_versions(
        &self,
        connection: &mut SqliteConnection,
        decision: &mut BatchDecision<'_>,
        now_ms: i64,
    ) -> Result<(), Error> {
        let fail = |e| Error::store("cannot save old versions", e);
        let endings: Vec<_> = decision.version_ends().map(|e| (e.id, e.ended, e.version, e.deleted)).collect();
        if endings.is_empty() {
            return Ok(());
        }
        let endings = json(&endings, "list of old versions")?;
        let rows =
            sqlx::query(COPY_TO_VERSIONS).bind(endings).bind(now_ms).fetch_all(&mut *connection).await.map_err(fail)?;
        let mut bodies = HashMap::new();
        for row in &rows {
            if let Some(dictionary) = row.try_get::<Option<u32>, _>(1).map_err(fail)? {
                let body = self.catalog.codec.unpack(row.try_get(2).map_err(fail)?, dictionary)?;
                bodies.insert(row.try_get::<i64, _>(0).map_err(fail)?, body);
            }
        }
        if !decision.add_bodies(bodies) {
            return Err(fail(sqlx::Error::RowNotFound));
        }
        if !decision.deletions.is_empty() {
            let ids = json_ids(decision.deletions.iter().map(|deletion| deletion.old.id));
            let sql = "DELETE FROM records WHERE id IN (SELECT value FROM json_each(?))";
            let done = sqlx::query(sql).bind(ids).execute(&mut *connection).await;
            done.map_err(|e| Error::store("cannot delete records", e))?;
        }
        Ok(())
    }
}

pub(super) fn json(list: &impl serde::Serialize, object: &str) -> Result<String, Error> {
    serde_json::to_string(list).map_err(|source| Error::Decode { object: object.to_owned(), source })
}

async fn insert(connection: &mut SqliteConnection, mut puts: &[Put<'_>], now_ms: i64) -> Result<(), Error> {
    for (size, sql) in &*INSERTS {
        while puts.len() >= *size {
            let (chunk, rest) = puts.split_at(*size);
            puts = rest;
            let mut query = sqlx::query(AssertSqlSafe(Arc::clone(sql)));
            for Put { collection, id, seq, draft, packed, .. } in chunk {
                let (labels, header) = rows::encode(draft)?;
                query = query
                    .bind(*id as i64)
                    .bind(*collection)
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
                    .bind(packed.dictionary)
                    .bind(packed.bytes.clone())
                    .bind(label_bits::of_labels(&draft.labels));
            }
            query.execute(&mut *connection).await.map_err(|e| Error::store("cannot write records", e))?;
        }
    }
    Ok(())
}

pub(super) async fn save_progress(
    connection: &mut SqliteConnection,
    id: i64,
    progress: &Progress,
    now_ms: i64,
) -> Result<(), Error> {
    let sql = "UPDATE collections SET resource_version = coalesce(?, resource_version), complete = max(complete, ?), \
        kind = coalesce(?, kind), namespaced = coalesce(?, namespaced), scope = coalesce(?, scope), heard_at = ?, \
        gone = 0 WHERE id = ?";
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

/// Saves positions, given as (collection id, resourceVersion, time of the last contact in Unix milliseconds).
pub(super) async fn save_positions(
    connection: &mut SqliteConnection,
    positions: &[(i64, &str, i64)],
) -> Result<(), Error> {
    let sql = "UPDATE collections SET resource_version = p.value ->> 1, heard_at = p.value ->> 2 \
        FROM json_each(?) AS p WHERE collections.id = p.value ->> 0 AND NOT gone";
    let positions = json(&positions, "list of positions")?;
    let done = sqlx::query(sql).bind(positions).execute(connection).await;
    done.map(drop).map_err(|e| Error::store("cannot save positions", e))
}

pub(super) async fn save_latest(connection: &mut SqliteConnection, latest: u64) -> Result<(), Error> {
    sqlx::query("INSERT OR REPLACE INTO facts (name, value) VALUES ('seq', ?)")
        .bind(latest.to_string())
        .execute(connection)
        .await
        .map(drop)
        .map_err(|e| Error::store("cannot save its sequence number", e))
}
