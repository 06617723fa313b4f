//! Interests of replicas, stored in the database.

use super::PostgresStore;
use crate::Error;
use crate::LEASE_DURATION;
use crate::ReplicaInterest;
use crate::rows::Columns;
use crate::{Clusters, Namespaces};
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use sqlx::postgres::PgRow;
use std::collections::BTreeSet;
use std::time::Duration;

/// Time for which the interests of a replica stay valid after its lease expired.
const VALID_AFTER_LEASE: Duration = Duration::from_secs(60);

impl PostgresStore {
    /// Replaces this replica's stored interests.
    pub async fn publish_interests(&self, interests: &BTreeSet<ReplicaInterest>) -> Result<(), Error> {
        let sql = "WITH published AS (SELECT DISTINCT $1::text AS replica, t.* FROM unnest($2::text[], $3::text[], $4::text[], \
            $5::text[], $6::text[]) AS t (clusters, \"group\", version, resource, namespaces)), \
            deleted AS (DELETE FROM interests AS i WHERE replica = $1 AND NOT EXISTS (SELECT FROM published AS t \
            WHERE (t.clusters, t.\"group\", t.version, t.resource, t.namespaces) \
            = (i.clusters, i.\"group\", i.version, i.resource, i.namespaces))) \
            INSERT INTO interests (replica, clusters, \"group\", version, resource, namespaces) SELECT * FROM published \
            ON CONFLICT DO NOTHING";
        let clusters = |clusters: &Clusters| match clusters {
            Clusters::All => String::new(),
            Clusters::Names(names) => names.iter().map(ClusterName::as_str).collect::<Vec<_>>().join(","),
        };
        let namespaces = |namespaces: &Namespaces| match namespaces {
            Namespaces::All => String::new(),
            Namespaces::Names(names) => names.iter().cloned().collect::<Vec<_>>().join(","),
        };
        let query = sqlx::query(sql)
            .bind(self.replica())
            .bind(interests.iter().map(|(names, ..)| clusters(names)).collect::<Vec<_>>())
            .bind(interests.iter().map(|(_, resource, _)| &*resource.group).collect::<Vec<_>>())
            .bind(interests.iter().map(|(_, resource, _)| &*resource.version).collect::<Vec<_>>())
            .bind(interests.iter().map(|(_, resource, _)| &*resource.resource).collect::<Vec<_>>())
            .bind(interests.iter().map(|(.., names)| namespaces(names)).collect::<Vec<_>>());
        self.fetch_rows("cannot save the interests of this replica", query).await.map(drop)
    }

    /// The valid interests of other replicas, with the names of the replicas.
    pub async fn read_interests(&self) -> Result<BTreeSet<(String, ReplicaInterest)>, Error> {
        let problem = "cannot read the interests of other replicas";
        let sql = "SELECT i.replica, i.clusters, i.\"group\", i.version, i.resource, i.namespaces FROM interests AS i \
            JOIN replicas AS r ON r.id = i.replica \
            WHERE i.replica <> $1 AND r.heartbeat > clock_timestamp() - make_interval(secs => $2)";
        let query = sqlx::query(sql).bind(self.replica()).bind((LEASE_DURATION + VALID_AFTER_LEASE).as_secs_f64());
        let rows = self.fetch_rows(problem, query).await?;
        rows.iter().map(decode_interest).collect::<Result<_, _>>().map_err(|e| Error::store(problem, e))
    }
}

fn decode_interest(row: &PgRow) -> Result<(String, ReplicaInterest), sqlx::Error> {
    let parts = |at: usize| row.text(at).map(|text| text.split(',').filter(|part| !part.is_empty()));
    let clusters = match row.text(1)? {
        "" => Clusters::All,
        _ => Clusters::Names(parts(1)?.filter_map(|name| ClusterName::parse(name).ok()).collect()),
    };
    let namespaces = match row.text(5)? {
        "" => Namespaces::All,
        _ => Namespaces::Names(parts(5)?.map(str::to_owned).collect()),
    };
    Ok((row.text(0)?.to_owned(), (clusters, Gvr::new(row.text(2)?, row.text(3)?, row.text(4)?), namespaces)))
}
