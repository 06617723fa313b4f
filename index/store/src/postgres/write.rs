//! Write operations: one transaction for many batches, with a fixed number of statements.

use super::claims::claim_of;
use super::{CHANNEL, PostgresStore, labels};
use crate::Epoch;
use crate::Error;
use crate::decide::{BatchDecision, Sequence, Target, runs};
use crate::labels::IndexedLabels;
use crate::record::{Change, CollectionKey, Record};
use crate::rows::{self, COLUMNS, Columns};
use crate::{Batch, Position, Progress, RecordWrite};
use bytes::Bytes;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection, Row};
use std::collections::{BTreeMap, HashMap};

/// Inserts records, or updates all columns except their keys.
const PUT: &str = "INSERT INTO records (id, collection, namespace, name, seq, uid, resource_version, generation, created, \
    deleting, changed_at, labels, header, dictionary, body) SELECT id, collection, namespace, name, seq, uid, \
    resource_version, generation, created, deleting, $15, labels, header, dictionary, body FROM unnest($1::bigint[], \
    $2::bigint[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::text[], $8::bigint[], $9::bigint[], \
    $10::bigint[], $11::text[], $12::text[], $13::bigint[], $14::bytea[]) AS put (id, collection, namespace, name, seq, \
    uid, resource_version, generation, created, deleting, labels, header, dictionary, body) \
    ON CONFLICT (id) DO UPDATE SET seq = excluded.seq, resource_version = excluded.resource_version, \
    generation = excluded.generation, created = excluded.created, deleting = excluded.deleting, \
    changed_at = excluded.changed_at, labels = excluded.labels, header = excluded.header, \
    dictionary = excluded.dictionary, body = excluded.body";

/// Copies records to the versions and returns the bodies of deleted ones. $1 to $4 are the record ids, seqs of the
/// ends, resourceVersions of the deletions and deleted flags, $5 is the time.
const COPY_TO_VERSIONS: &str = "INSERT INTO versions (ended, ended_at, deleted, ended_version, id, collection, namespace, name, seq, uid, \
    resource_version, generation, created, deleting, changed_at, bytes, labels, header, dictionary, body) \
    SELECT e.ended, $5, e.deleted, e.version, r.id, r.collection, r.namespace, r.name, r.seq, r.uid, r.resource_version, \
    r.generation, r.created, r.deleting, r.changed_at, length(r.labels) + length(r.header) + length(r.body), r.labels, \
    r.header, r.dictionary, r.body \
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bool[]) AS e (id, ended, version, deleted) \
    JOIN records AS r ON r.id = e.id \
    RETURNING ended, CASE WHEN deleted THEN dictionary END, CASE WHEN deleted THEN body END";

impl PostgresStore {
    pub(super) async fn apply_on(
        &self,
        connection: &mut PgConnection,
        batches: &[Batch],
        now_ms: i64,
    ) -> Result<Vec<Change>, Error> {
        let fail = |e| Error::store("cannot write", e);
        let mut transaction = connection.begin().await.map_err(fail)?;
        let mut sequence = Sequence { seq: lock(&mut transaction).await?, now_ms };
        let indexed_labels = self.check_claims(&mut transaction, batches.iter().map(claim_of)).await?;
        let mut targets: Vec<Target> = Vec::with_capacity(batches.len());
        for batch in batches {
            let id = match targets.iter().find(|target| target.key == batch.collection) {
                Some(target) => target.id,
                None => self.ensure_collection(&mut transaction, &batch.collection).await?,
            };
            targets.push(self.catalog.target(id, batch, &targets));
        }
        let writes = targets
            .iter()
            .zip(batches)
            .flat_map(|(target, batch)| batch.writes.iter().map(move |write| (target, write)));
        let mut changes = Vec::new();
        for run in runs(writes, |(target, write)| (target.id, write.key())) {
            let mut current = self.read_current(&mut transaction, &run).await?;
            let mut decision = BatchDecision::default();
            for (target, write) in run {
                let (namespace, name) = write.key();
                let previous = current.remove(&(target.id, namespace.to_owned(), name.to_owned()));
                decision.add_write(target, write, previous, &mut sequence);
            }
            changes.extend(self.execute_decision(&mut transaction, decision, &indexed_labels, now_ms).await?);
        }
        save_progress(&mut transaction, &merge_progress(&targets, batches), now_ms).await?;
        unlock(&mut transaction, sequence.seq).await?;
        transaction.commit().await.map_err(fail)?;
        for target in targets {
            self.catalog.insert(target.id, &target.key, target.kind);
        }
        Ok(changes)
    }

    pub(super) async fn advance_on(&self, connection: &mut PgConnection, positions: &[Position]) -> Result<(), Error> {
        let fail = |e| Error::store("cannot save positions", e);
        let mut transaction = connection.begin().await.map_err(fail)?;
        lock(&mut transaction).await?;
        self.check_claims(&mut transaction, positions.iter().map(|at| (&at.collection.cluster, at.epoch))).await?;
        let sql = "UPDATE collections AS c SET resource_version = p.version, heard_at = p.heard_at, \
            touched_at = clock_timestamp() FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], \
            $6::bigint[]) AS p (cluster, \"group\", api, resource, version, heard_at) WHERE c.cluster = p.cluster \
            AND c.\"group\" = p.\"group\" AND c.version = p.api AND c.resource = p.resource AND NOT c.gone";
        let parts = |part: fn(&Position) -> &str| positions.iter().map(part).collect::<Vec<_>>();
        sqlx::query(sql)
            .bind(parts(|at| at.collection.cluster.as_str()))
            .bind(parts(|at| &at.collection.resource.group))
            .bind(parts(|at| &at.collection.resource.version))
            .bind(parts(|at| &at.collection.resource.resource))
            .bind(parts(|at| &at.version))
            .bind(positions.iter().map(|at| at.last_contact_ms).collect::<Vec<_>>())
            .execute(&mut *transaction)
            .await
            .map_err(fail)?;
        transaction.commit().await.map_err(fail)
    }

    pub(super) async fn drop_on(
        &self,
        connection: &mut PgConnection,
        id: i64,
        (key, epoch): (&CollectionKey, Epoch),
        limit: usize,
        now_ms: i64,
    ) -> Result<Vec<Change>, Error> {
        let fail = |e| Error::store("cannot drop a collection", e);
        let mut transaction = connection.begin().await.map_err(fail)?;
        let mut sequence = Sequence { seq: lock(&mut transaction).await?, now_ms };
        let indexed_labels = self.check_claims(&mut transaction, std::iter::once((&key.cluster, epoch))).await?;
        let sql = AssertSqlSafe(format!("SELECT {COLUMNS} FROM records WHERE collection = $1 LIMIT $2"));
        let rows = sqlx::query(sql).bind(id).bind(limit as i64).fetch_all(&mut *transaction).await.map_err(fail)?;
        let mut decision = BatchDecision::default();
        for row in &rows {
            decision.delete(id, self.catalog.decode_record(row, id)?, None, &mut sequence);
        }
        let changes = self.execute_decision(&mut transaction, decision, &indexed_labels, now_ms).await?;
        // Marked incomplete with the first deletions, so that a partly dropped collection is not mistaken for a
        // complete one.
        let sql = "UPDATE collections SET complete = false, resource_version = '', gone = $2, \
            scope = CASE WHEN $2 THEN '' ELSE scope END, touched_at = clock_timestamp() WHERE id = $1";
        sqlx::query(sql).bind(id).bind(changes.is_empty()).execute(&mut *transaction).await.map_err(fail)?;
        unlock(&mut transaction, sequence.seq).await?;
        transaction.commit().await.map_err(fail)?;
        Ok(changes)
    }

    async fn ensure_collection(&self, connection: &mut PgConnection, key: &CollectionKey) -> Result<i64, Error> {
        if let Some(id) = self.catalog.id_of(key) {
            return Ok(id);
        }
        let fail = |e| Error::store("cannot add a collection", e);
        let sql = "INSERT INTO collections (cluster, \"group\", version, resource) VALUES ($1, $2, $3, $4) \
            ON CONFLICT (cluster, \"group\", version, resource) DO UPDATE SET gone = false RETURNING id, kind";
        let CollectionKey { cluster, resource } = key;
        let query = sqlx::query(sql).bind(cluster.as_str()).bind(&*resource.group);
        let query = query.bind(&*resource.version).bind(&*resource.resource);
        query.fetch_one(connection).await.and_then(|row| row.number(0)).map_err(fail)
    }

    /// The current records of the keys.
    async fn read_current(
        &self,
        connection: &mut PgConnection,
        run: &[(&Target, &RecordWrite)],
    ) -> Result<HashMap<(i64, String, String), Record>, Error> {
        let fail = |e| Error::store("cannot read existing records", e);
        let sql = "SELECT r.id, r.seq, r.uid, r.resource_version, r.generation, r.created, r.deleting, r.changed_at, \
            r.labels, r.header, r.namespace, r.name, r.collection FROM unnest($1::bigint[], $2::text[], $3::text[]) \
            AS k (collection, namespace, name) JOIN records AS r ON r.collection = k.collection \
            AND r.namespace = k.namespace AND r.name = k.name";
        let collections: Vec<i64> = run.iter().map(|(target, _)| target.id).collect();
        let namespaces: Vec<&str> = run.iter().map(|(_, write)| write.key().0).collect();
        let names: Vec<&str> = run.iter().map(|(_, write)| write.key().1).collect();
        let query = sqlx::query(sql).bind(collections).bind(namespaces).bind(names);
        let targets: HashMap<i64, &Target> = run.iter().map(|(target, _)| (target.id, *target)).collect();
        let mut current = HashMap::new();
        for row in query.fetch_all(connection).await.map_err(fail)? {
            let collection = row.number(12).map_err(fail)?;
            let Some(target) = targets.get(&collection) else { continue };
            let record = rows::decode_record(&row, target)?;
            current.insert((collection, record.key.namespace.to_string(), record.key.name.to_string()), record);
        }
        Ok(current)
    }

    /// Executes a decision and returns its changes.
    async fn execute_decision(
        &self,
        connection: &mut PgConnection,
        mut decision: BatchDecision<'_>,
        indexed_labels: &IndexedLabels,
        now_ms: i64,
    ) -> Result<Vec<Change>, Error> {
        self.save_versions(connection, &mut decision, now_ms).await?;
        if !decision.deletions.is_empty() {
            let ids: Vec<i64> = decision.deletions.iter().map(|deletion| deletion.old.id as i64).collect();
            let sql = "DELETE FROM records WHERE id = ANY($1)";
            let done = sqlx::query(sql).bind(ids).execute(&mut *connection).await;
            done.map_err(|e| Error::store("cannot delete records", e))?;
        }
        put(connection, &decision, now_ms).await?;
        labels::write(connection, &indexed_labels.label_changes(&decision)).await?;
        Ok(decision.into_changes())
    }

    async fn save_versions(
        &self,
        connection: &mut PgConnection,
        decision: &mut BatchDecision<'_>,
        now_ms: i64,
    ) -> Result<(), Error> {
        let fail = |e| Error::store("cannot save old versions", e);
        let (mut ids, mut ended, mut versions, mut deleted) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for ending in decision.version_ends() {
            ids.push(ending.id);
            ended.push(ending.ended);
            versions.push(ending.version);
            deleted.push(ending.deleted);
        }
        if ids.is_empty() {
            return Ok(());
        }
        let query = sqlx::query(COPY_TO_VERSIONS).bind(ids).bind(ended).bind(versions).bind(deleted).bind(now_ms);
        let rows = query.fetch_all(connection).await.map_err(fail)?;
        let body = |row: &PgRow| -> Result<Option<(i64, Bytes)>, Error> {
            let Some(dictionary) = row.try_get::<Option<i64>, _>(1).map_err(fail)? else { return Ok(None) };
            let body = self.catalog.codec.unpack(row.bytes(2).map_err(fail)?, dictionary as u32)?;
            Ok(Some((row.number(0).map_err(fail)?, body)))
        };
        let has_unknown_dictionary = |row: &PgRow| {
            row.optional_number(1).ok().flatten().is_some_and(|id| !self.catalog.codec.has_dictionary(id as u32))
        };
        if rows.iter().any(has_unknown_dictionary) {
            self.load_dictionaries(i64::from(self.catalog.codec.newest_dictionary())).await?;
        }
        let mut bodies: HashMap<i64, Bytes> = HashMap::new();
        for row in &rows {
            bodies.extend(body(row)?);
        }
        if decision.add_bodies(bodies) { Ok(()) } else { Err(fail(sqlx::Error::RowNotFound)) }
    }
}

/// Waits for the write lock and returns the newest seq.
pub(super) async fn lock(connection: &mut PgConnection) -> Result<u64, Error> {
    let row = sqlx::query("SELECT seq FROM counter FOR UPDATE").fetch_one(connection).await;
    row.and_then(|row| row.number(0)).map(|seq| seq as u64).map_err(|e| Error::store("cannot lock its counter", e))
}

/// Stores and announces the newest seq; the lock is released by the commit.
async fn unlock(connection: &mut PgConnection, seq: u64) -> Result<(), Error> {
    let sql = "WITH updated AS (UPDATE counter SET seq = $1 RETURNING seq) \
        SELECT pg_notify($2, seq::text)::text FROM updated";
    let done = sqlx::query(sql).bind(seq as i64).bind(CHANNEL).execute(connection).await;
    done.map(drop).map_err(|e| Error::store("cannot save its sequence number", e))
}

async fn put(connection: &mut PgConnection, decision: &BatchDecision<'_>, now_ms: i64) -> Result<(), Error> {
    let puts = &decision.puts;
    if puts.is_empty() {
        return Ok(());
    }
    let encoded = puts.iter().map(|put| rows::encode(put.draft)).collect::<Result<Vec<_>, _>>()?;
    let (labels, headers): (Vec<String>, Vec<String>) = encoded.into_iter().unzip();
    sqlx::query(PUT)
        .bind(puts.iter().map(|put| put.id as i64).collect::<Vec<_>>())
        .bind(puts.iter().map(|put| put.collection).collect::<Vec<_>>())
        .bind(puts.iter().map(|put| put.draft.namespace.as_str()).collect::<Vec<_>>())
        .bind(puts.iter().map(|put| put.draft.name.as_str()).collect::<Vec<_>>())
        .bind(puts.iter().map(|put| put.seq.0 as i64).collect::<Vec<_>>())
        .bind(puts.iter().map(|put| put.draft.uid.as_str()).collect::<Vec<_>>())
        .bind(puts.iter().map(|put| put.draft.resource_version.as_str()).collect::<Vec<_>>())
        .bind(puts.iter().map(|put| put.draft.generation).collect::<Vec<_>>())
        .bind(puts.iter().map(|put| put.draft.created).collect::<Vec<_>>())
        .bind(puts.iter().map(|put| put.draft.deleting).collect::<Vec<_>>())
        .bind(labels)
        .bind(headers)
        .bind(puts.iter().map(|put| i64::from(put.packed.dictionary)).collect::<Vec<_>>())
        .bind(puts.iter().map(|put| put.packed.bytes.as_slice()).collect::<Vec<_>>())
        .bind(now_ms)
        .execute(connection)
        .await
        .map(drop)
        .map_err(|e| Error::store("cannot write records", e))
}

/// Combines the progress of all batches of each collection; later batches take precedence.
fn merge_progress(targets: &[Target], batches: &[Batch]) -> BTreeMap<i64, Progress> {
    let mut all: BTreeMap<i64, Progress> = BTreeMap::new();
    for (target, batch) in targets.iter().zip(batches) {
        let (sum, next) = (all.entry(target.id).or_default(), batch.progress.clone());
        sum.resource_version = next.resource_version.or(sum.resource_version.take());
        sum.kind = next.kind.or(sum.kind.take());
        sum.scope = next.scope.or(sum.scope.take());
        sum.complete |= next.complete;
    }
    all
}

async fn save_progress(connection: &mut PgConnection, all: &BTreeMap<i64, Progress>, now_ms: i64) -> Result<(), Error> {
    let sql = "UPDATE collections AS c SET resource_version = coalesce(p.resource_version, c.resource_version), \
        complete = c.complete OR p.complete, kind = coalesce(p.kind, c.kind), \
        namespaced = coalesce(p.namespaced, c.namespaced), scope = coalesce(p.scope, c.scope), heard_at = $7, \
        gone = false, touched_at = clock_timestamp() \
        FROM unnest($1::bigint[], $2::text[], $3::bool[], $4::text[], $5::bool[], $6::text[]) \
        AS p (id, resource_version, complete, kind, namespaced, scope) WHERE c.id = p.id";
    let kinds = || all.values().map(|progress| progress.kind.as_ref());
    sqlx::query(sql)
        .bind(all.keys().copied().collect::<Vec<_>>())
        .bind(all.values().map(|progress| progress.resource_version.as_deref()).collect::<Vec<_>>())
        .bind(all.values().map(|progress| progress.complete).collect::<Vec<_>>())
        .bind(kinds().map(|kind| kind.map(|(kind, _)| kind.as_str())).collect::<Vec<_>>())
        .bind(kinds().map(|kind| kind.map(|(_, namespaced)| *namespaced)).collect::<Vec<_>>())
        .bind(all.values().map(|progress| progress.scope.as_deref()).collect::<Vec<_>>())
        .bind(now_ms)
        .execute(connection)
        .await
        .map(drop)
        .map_err(|e| Error::store("cannot save positions", e))
}
