//! Leases of replicas, their claims on clusters, and the state of collections that depends on claims.

use super::connect::CONNECT_TIMEOUT;
use super::write::lock;
use super::{CHANNEL, PostgresStore, application_name};
use crate::ReplicaView;
use crate::labels::IndexedLabels;
use crate::reading::COLLECTION_COLUMNS;
use crate::rows::Columns;
use crate::{Batch, StoredCollection};
use crate::{CollectionKey, Error};
use crate::{Epoch, LEASE_DURATION};
use crowsnest_apimachinery::names::ClusterName;
use sqlx::postgres::{PgConnection, PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Row};
use std::collections::{BTreeMap, BTreeSet};

/// Overlap of consecutive reads by timestamp. A transaction can commit after a read with an earlier timestamp, so the
/// next read includes the time before the previous one.
const OVERLAP: &str = "15 s";
/// Records of replicas that ended without releasing their lease are deleted after this time.
const DEAD_REPLICA_RETENTION: &str = "1 h";

impl PostgresStore {
    pub fn replica(&self) -> &str {
        &self.replica
    }

    /// Renews this replica's lease if `is_alive`, and returns the live replicas and the claims.
    pub async fn renew_lease(&self, is_alive: bool) -> Result<ReplicaView, Error> {
        let fail = |e| Error::store("cannot renew the lease", e);
        let mut slot = self.heartbeat.lock().await;
        let mut connection = self.reuse_or_connect(slot.take()).await?;
        let sql = "INSERT INTO replicas (id, heartbeat) VALUES ($1, clock_timestamp()) \
            ON CONFLICT (id) DO UPDATE SET heartbeat = clock_timestamp()";
        if is_alive {
            sqlx::query(sql).bind(&self.replica).execute(&mut connection).await.map_err(fail)?;
        }
        let sql = "SELECT 1::bigint, id, NULL, 0::bigint FROM replicas \
            WHERE heartbeat > clock_timestamp() - make_interval(secs => $1) \
            UNION ALL SELECT 2, cluster, replica, epoch FROM claims \
            UNION ALL SELECT DISTINCT 3, cluster, NULL, 0::bigint FROM collections WHERE NOT gone";
        let rows =
            sqlx::query(sql).bind(LEASE_DURATION.as_secs_f64()).fetch_all(&mut connection).await.map_err(fail)?;
        *slot = Some(connection);
        let mut view = ReplicaView::default();
        for row in rows {
            let name = row.text(1).map_err(fail)?;
            let cluster = || ClusterName::parse(name).ok();
            match row.number(0).map_err(fail)? {
                1 => drop(view.live.insert(name.to_owned())),
                2 => {
                    let epoch = Epoch(row.number(3).map_err(fail)? as u64);
                    let holder: Option<String> = row.try_get(2).map_err(fail)?;
                    view.claims.extend(cluster().map(|cluster| (cluster, (holder, epoch))));
                }
                _ => view.stored.extend(cluster()),
            }
        }
        Ok(view)
    }

    /// Claims the clusters that are not held by another live replica, and returns them with their new epochs. First
    /// terminates the database sessions of the `dead` replicas, which could hold the write lock.
    pub async fn claim_clusters(
        &self,
        clusters: &BTreeSet<ClusterName>,
        dead: &BTreeSet<String>,
    ) -> Result<BTreeMap<ClusterName, Epoch>, Error> {
        let fail = |e| Error::store("cannot claim clusters", e);
        let mut slot = self.claims.lock().await;
        let mut connection = self.reuse_or_connect(slot.take()).await?;
        if !dead.is_empty() {
            // Replicas of another cache, in another database of the same server, may have the same names.
            let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                       WHERE datname = current_database() AND application_name = ANY($1)";
            let names: Vec<String> = dead.iter().map(|replica| application_name(replica)).collect();
            if let Err(error) = sqlx::query(sql).bind(names).execute(&mut connection).await {
                tracing::debug!(%error, "cannot end the connections of a dead replica");
            }
        }
        let mut transaction = connection.begin().await.map_err(fail)?;
        lock(&mut transaction).await?;
        let sql = "INSERT INTO claims AS c (cluster, replica, epoch) SELECT cluster, $2, 1 FROM unnest($1::text[]) \
            AS requested (cluster) ON CONFLICT (cluster) DO UPDATE SET replica = $2, epoch = c.epoch + 1 \
            WHERE c.replica IS NULL OR c.replica = $2 OR NOT EXISTS (SELECT FROM replicas AS r WHERE r.id = c.replica \
            AND r.heartbeat > clock_timestamp() - make_interval(secs => $3)) RETURNING cluster, epoch";
        let names: Vec<&str> = clusters.iter().map(ClusterName::as_str).collect();
        let query = sqlx::query(sql).bind(names).bind(&self.replica).bind(LEASE_DURATION.as_secs_f64());
        let rows = query.fetch_all(&mut *transaction).await.map_err(fail)?;
        let delete_dead = "WITH gone AS (DELETE FROM replicas WHERE heartbeat < clock_timestamp() - $1::text::interval \
            RETURNING id) DELETE FROM interests WHERE replica IN (SELECT id FROM gone)";
        sqlx::query(delete_dead).bind(DEAD_REPLICA_RETENTION).execute(&mut *transaction).await.map_err(fail)?;
        transaction.commit().await.map_err(fail)?;
        *slot = Some(connection);
        let mut claimed = BTreeMap::new();
        for row in rows {
            let epoch = Epoch(row.number(1).map_err(fail)? as u64);
            claimed.extend(ClusterName::parse(row.text(0).map_err(fail)?).ok().map(|cluster| (cluster, epoch)));
        }
        Ok(claimed)
    }

    /// Releases claims, except those that another claim has replaced since.
    pub async fn release_claims(&self, claims: &BTreeMap<ClusterName, Epoch>) -> Result<(), Error> {
        let fail = |e| Error::store("cannot release clusters", e);
        let mut slot = self.claims.lock().await;
        let mut connection = self.reuse_or_connect(slot.take()).await?;
        let mut transaction = connection.begin().await.map_err(fail)?;
        lock(&mut transaction).await?;
        let sql = "UPDATE claims AS c SET replica = NULL FROM unnest($1::text[], $2::bigint[]) AS held (cluster, epoch) \
            WHERE c.cluster = held.cluster AND c.epoch = held.epoch AND c.replica = $3";
        let names: Vec<&str> = claims.keys().map(ClusterName::as_str).collect();
        let epochs: Vec<i64> = claims.values().map(|epoch| epoch.0 as i64).collect();
        let query = sqlx::query(sql).bind(names).bind(epochs).bind(&self.replica);
        query.execute(&mut *transaction).await.map_err(fail)?;
        transaction.commit().await.map_err(fail)?;
        *slot = Some(connection);
        Ok(())
    }

    /// Ends the lease and releases all claims, so that other replicas do not wait for its expiry.
    pub async fn end_lease(&self) -> Result<(), Error> {
        let fail = |e| Error::store("cannot end the lease", e);
        let mut slot = self.claims.lock().await;
        let mut connection = self.reuse_or_connect(slot.take()).await?;
        let mut transaction = connection.begin().await.map_err(fail)?;
        lock(&mut transaction).await?;
        let claims = "UPDATE claims SET replica = NULL WHERE replica = $1";
        sqlx::query(claims).bind(&self.replica).execute(&mut *transaction).await.map_err(fail)?;
        // Expired, but recently: the interests of this replica stay valid for a while.
        let lease = "UPDATE replicas SET heartbeat = clock_timestamp() - make_interval(secs => $2) WHERE id = $1";
        let query = sqlx::query(lease).bind(&self.replica).bind(LEASE_DURATION.as_secs_f64());
        query.execute(&mut *transaction).await.map_err(fail)?;
        transaction.commit().await.map_err(fail)?;
        *slot = Some(connection);
        Ok(())
    }

    /// Checks that these claims still belong to this replica; fails with [`Error::Fenced`] if not. Must be called in a
    /// write transaction that holds the write lock. Returns the labels that any replica indexes, which the same query
    /// reads.
    pub(super) async fn check_claims(
        &self,
        connection: &mut PgConnection,
        claims: impl Iterator<Item = (&ClusterName, Epoch)>,
    ) -> Result<IndexedLabels, Error> {
        let claims: BTreeSet<(&str, Epoch)> = claims
            .filter(|(_, epoch)| *epoch != Epoch::UNSHARED)
            .map(|(cluster, epoch)| (cluster.as_str(), epoch))
            .collect();
        let fail = |e| Error::store("cannot check this replica's claims", e);
        let sql = "SELECT count(*), (SELECT value FROM facts WHERE name = 'chosen_labels') FROM unnest($1::text[], $2::bigint[]) AS held (cluster, epoch) \
            JOIN claims AS c ON c.cluster = held.cluster AND c.epoch = held.epoch AND c.replica = $3";
        let (names, epochs): (Vec<&str>, Vec<i64>) =
            claims.iter().map(|(cluster, epoch)| (*cluster, epoch.0 as i64)).unzip();
        let row =
            sqlx::query(sql).bind(names).bind(epochs).bind(&self.replica).fetch_one(connection).await.map_err(fail)?;
        if row.number(0).map_err(fail)? as usize != claims.len() {
            return Err(Error::Fenced);
        }
        let indexed: Option<String> = row.try_get(1).map_err(fail)?;
        Ok(indexed.map(|text| IndexedLabels::parse(&text)).unwrap_or_default())
    }

    /// Stores the stale reasons of collections; `None` means not stale. Collections without a valid claim are skipped.
    pub async fn write_stale_reasons(&self, reasons: &[(CollectionKey, Epoch, Option<String>)]) -> Result<(), Error> {
        let sql = "INSERT INTO collections (cluster, \"group\", version, resource, trouble) \
            SELECT n.cluster, n.\"group\", n.version, n.resource, n.trouble \
            FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[]) \
            AS n (cluster, \"group\", version, resource, trouble, epoch) \
            JOIN claims AS c ON c.cluster = n.cluster AND c.epoch = n.epoch AND c.replica = $7 \
            ON CONFLICT (cluster, \"group\", version, resource) \
            DO UPDATE SET trouble = excluded.trouble, touched_at = clock_timestamp()";
        let column = |part: fn(&CollectionKey) -> &str| reasons.iter().map(|(key, ..)| part(key)).collect::<Vec<_>>();
        let query = sqlx::query(sql)
            .bind(column(|key| key.cluster.as_str()))
            .bind(column(|key| &key.resource.group))
            .bind(column(|key| &key.resource.version))
            .bind(column(|key| &key.resource.resource))
            .bind(reasons.iter().map(|(.., reason)| reason.as_deref()).collect::<Vec<_>>())
            .bind(reasons.iter().map(|(_, epoch, _)| epoch.0 as i64).collect::<Vec<_>>())
            .bind(&self.replica);
        self.fetch_rows("cannot save the states of collections", query).await.map(drop)
    }

    /// The collections that changed since a time, as (is_deleted, collection), and the time to pass to the next call.
    /// `since` is the result of the previous call; `None` returns all collections.
    pub async fn collections_since(
        &self,
        since: Option<&str>,
    ) -> Result<(Vec<(bool, StoredCollection)>, String), Error> {
        let problem = "cannot read the state of collections";
        let fail = |e| Error::store(problem, e);
        let next_since = self
            .fetch_first(problem, sqlx::query("SELECT (clock_timestamp() - $1::text::interval)::text").bind(OVERLAP))
            .await?;
        let next_since = next_since.ok_or(Error::Stopped)?.text(0).map_err(fail)?.to_owned();
        let sql = AssertSqlSafe(format!(
            "SELECT {COLLECTION_COLUMNS}, trouble FROM collections \
             WHERE touched_at >= coalesce($1::text::timestamptz, '-infinity')"
        ));
        let rows = self.fetch_rows(problem, sqlx::query(sql).bind(since)).await?;
        Ok((self.catalog.add_collections(&rows).map_err(fail)?, next_since))
    }

    /// Subscribes to the notifications that each write transaction of any replica sends.
    pub async fn listen(&self) -> Result<PgListener, Error> {
        let fail = |e| Error::store("cannot receive notifications", e);
        // A separate pool, so that the listener does not occupy a connection of the readers.
        let pool = PgPoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
        let pool = pool.acquire_timeout(CONNECT_TIMEOUT).connect_lazy_with(self.connect.clone());
        let mut listener = PgListener::connect_with(&pool).await.map_err(fail)?;
        listener.eager_reconnect(false);
        listener.listen(CHANNEL).await.map_err(fail)?;
        Ok(listener)
    }
}

/// The claim under which a batch is written.
pub(super) fn claim_of(batch: &Batch) -> (&ClusterName, Epoch) {
    (&batch.collection.cluster, batch.epoch)
}
