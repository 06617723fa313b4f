//! Previous versions of objects: retention and queries.
//!
//! Versions are written when records change. They are read for the history of an object and for deleted objects. The
//! SQL is valid in both dialects: placeholders are `$n`.

use super::catalog::Catalog;
use super::rows::{Columns, OBJECT_COLUMNS};
use super::{KeyRangeEnd, StoreSize, VersionFilter};
use crate::Error;
use crate::options::HistoryRetention;
use crate::record::{Seq, Version};

/// Seq of the end of the newest version to delete, because it ended before $1 (Unix ms) or because newer versions fill
/// the size limit $2 (bytes); at most $3.
pub(super) const CUTOFF: &str = "SELECT coalesce(max(ended), 0) FROM (SELECT ended, ended_at, \
    sum(bytes) OVER (ORDER BY ended DESC) AS total FROM versions) AS v \
    WHERE (ended_at < $1 OR total > $2) AND ended <= $3";

/// The newest deletion up to $1. A reader whose position is before it can no longer read it.
pub(super) const LAST_DELETION: &str = "SELECT coalesce(max(ended), 0) FROM versions WHERE deleted AND ended <= $1";

/// Deletes the versions that ended up to $1.
pub(super) const DELETE_UNTIL: &str = "DELETE FROM versions WHERE ended <= $1";

/// Deletes versions beyond the newest $3 of each object that has a version ended after $1 and until $2. The last
/// version of each of the newest $3 generations is kept as well, so that changes of the status do not displace
/// those of the spec. Deletions are kept, because they prove that the object existed.
pub(super) const DELETE_EXCESS: &str = "DELETE FROM versions WHERE ended IN (SELECT ended FROM (SELECT v.ended, v.deleted, \
    v.generation, row_number() OVER (PARTITION BY v.collection, v.namespace, v.name ORDER BY v.ended DESC) AS age, \
    row_number() OVER (PARTITION BY v.collection, v.namespace, v.name, v.generation ORDER BY v.ended DESC) AS later, \
    dense_rank() OVER (PARTITION BY v.collection, v.namespace, v.name ORDER BY v.generation DESC) AS generations \
    FROM (SELECT DISTINCT collection, namespace, name FROM versions WHERE ended > $1 AND ended <= $2) AS touched \
    JOIN versions AS v ON v.collection = touched.collection AND v.namespace = touched.namespace \
    AND v.name = touched.name) AS ranked WHERE age > $3 AND NOT deleted AND ended <= $2 \
    AND NOT (generation > 0 AND later = 1 AND generations <= $3))";

/// Columns for [`Catalog::decode_version`].
fn version_columns() -> String {
    format!("{OBJECT_COLUMNS}, ended, ended_at, CAST(CASE WHEN deleted THEN 1 ELSE 0 END AS BIGINT)")
}

/// Versions of one key ($1, $2, $3), newest first, at most $4.
pub(super) fn versions_of_key() -> String {
    let columns = version_columns();
    format!(
        "SELECT {columns} FROM versions WHERE collection = $1 AND namespace = $2 AND name = $3 ORDER BY ended DESC LIMIT $4"
    )
}

/// Versions of a period ($1: ended before, $2 and $3: Unix ms), latest end first, at most $4, with an additional
/// condition.
pub(super) fn filtered_versions(filter: &VersionFilter, condition: &str) -> String {
    let (columns, deleted) = (version_columns(), if filter.only_deleted { "deleted AND" } else { "" });
    format!(
        "SELECT {columns} FROM versions WHERE {deleted} ended < $1 AND ended_at >= $2 AND changed_at < $3 {condition} \
         ORDER BY ended DESC LIMIT $4"
    )
}

/// Versions by the seq that ended them, as the condition `ended IN …`.
pub(super) fn versions_by_end(condition: &str) -> String {
    format!("SELECT {} FROM versions WHERE ended {condition}", version_columns())
}

/// Versions that were current after a change ($1) and have ended since, of objects given by the condition `id IN …`.
/// The `+` keeps SQLite from using the index on `seq`: the few versions that ended since $1 are faster to scan.
pub(super) fn as_of(condition: &str) -> String {
    format!("SELECT {} FROM versions WHERE ended > $1 AND +seq <= $1 AND id {condition}", version_columns())
}

/// Versions in a collection ($2) with keys greater than ($3, $4), and up to an end ($6, $7 or $6), that existed after a
/// change ($1) and ended later; at most $5, in key order. SQLite finds a range up to a key, which is a page of a list, by its
/// keys. Other ranges may contain the history of many more objects than have changed since $1, so the `+` keeps SQLite from
/// using the index on the keys.
pub(super) fn superseded_since(until: Option<KeyRangeEnd<'_>>) -> String {
    let (collection, end) = match until {
        Some(KeyRangeEnd::Key(..)) => ("collection", "AND (namespace, name) <= ($6, $7)"),
        Some(KeyRangeEnd::Namespace(_)) => ("+collection", "AND namespace <= $6"),
        None => ("+collection", ""),
    };
    format!(
        "SELECT {} FROM versions WHERE ended > $1 AND +seq <= $1 AND {collection} = $2 AND (namespace, name) > ($3, $4) \
         {end} ORDER BY namespace, name LIMIT $5",
        version_columns()
    )
}

impl HistoryRetention {
    /// The retention with `max_bytes` reduced so that a store of this size fits its limit, and the bytes by which the
    /// store would exceed the limit even without history.
    pub fn fit_to_store(self, size: &StoreSize) -> (Self, u64) {
        let used = size.bytes.saturating_sub(size.free_bytes);
        let excess = self.max_store_bytes.map_or(0, |max_bytes| used.saturating_sub(max_bytes));
        if excess == 0 {
            return (self, 0);
        }
        let max_bytes = self.max_bytes.min(size.version_bytes.saturating_sub(excess));
        (Self { max_bytes, ..self }, excess.saturating_sub(size.version_bytes))
    }

    /// Time before which ended versions are deleted, Unix milliseconds.
    pub(super) fn oldest_end_ms(&self, now_ms: i64) -> i64 {
        now_ms.saturating_sub(i64::try_from(self.max_age.as_millis()).unwrap_or(i64::MAX))
    }

    pub(super) fn max_bytes_number(&self) -> i64 {
        i64::try_from(self.max_bytes).unwrap_or(i64::MAX)
    }
}

impl Catalog {
    pub(super) fn decode_version(&self, row: &impl Columns) -> Result<Version, Error> {
        let fail = |e| Error::store("has an invalid row", e);
        Ok(Version {
            object: self.decode_object(row)?,
            ended: Seq(row.number(15).map_err(fail)? as u64),
            ended_at: row.number(16).map_err(fail)?,
            deleted: row.number(17).map_err(fail)? != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::no_limit(None, 900, 0, 100, (500, 0))]
    #[case::fits(Some(1000), 900, 0, 100, (500, 0))]
    #[case::partly_deleted(Some(1000), 1060, 0, 100, (40, 0))]
    #[case::free_bytes_do_not_count(Some(1000), 1060, 60, 100, (500, 0))]
    #[case::deleted_completely(Some(1000), 1160, 0, 100, (0, 60))]
    fn the_store_limit_reduces_the_history(
        #[case] max_store_bytes: Option<u64>,
        #[case] bytes: u64,
        #[case] free_bytes: u64,
        #[case] version_bytes: u64,
        #[case] expected: (u64, u64),
    ) {
        let history = HistoryRetention { max_bytes: 500, max_store_bytes, ..HistoryRetention::default() };
        let (history, excess) =
            history.fit_to_store(&StoreSize { bytes, free_bytes, version_bytes, ..StoreSize::default() });
        assert_eq!((history.max_bytes, excess), expected);
    }
}
