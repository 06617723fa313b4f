//! What objects were before: how much of it is kept, and reading it back.
//!
//! Written as records change and pruned by the one writer; read by whoever asks for an object's versions or for deleted
//! objects. The SQL here is understood by both dialects: placeholders are `$n`.

use super::catalog::Catalog;
use super::rows::{Columns, OBJECT_COLUMNS};
use super::{Span, StoreSize};
use crate::Error;
use crate::options::History;
use crate::record::{Seq, Version};

/// The last version that is too old ($1: Unix ms) or beyond the bytes ($2) that may be kept of all, none after $3.
pub(super) const CUT: &str = "SELECT coalesce(max(ended), 0) FROM (SELECT ended, ended_at, \
    sum(bytes) OVER (ORDER BY ended DESC) AS total FROM versions) AS v \
    WHERE (ended_at < $1 OR total > $2) AND ended <= $3";

/// The last deletion up to $1: whoever stopped before it was never told.
pub(super) const LAST_DELETION: &str = "SELECT coalesce(max(ended), 0) FROM versions WHERE deleted AND ended <= $1";

pub(super) const DROP: &str = "DELETE FROM versions WHERE ended <= $1";

/// Of objects with a version that ended after $1: those beyond the newest $3, none after $2. Deletions stay, they say
/// that something was there.
pub(super) const TRIM: &str = "DELETE FROM versions WHERE ended IN (SELECT ended FROM (SELECT v.ended, v.deleted, \
    row_number() OVER (PARTITION BY v.collection, v.namespace, v.name ORDER BY v.ended DESC) AS age \
    FROM (SELECT DISTINCT collection, namespace, name FROM versions WHERE ended > $1 AND ended <= $2) AS touched \
    JOIN versions AS v ON v.collection = touched.collection AND v.namespace = touched.namespace \
    AND v.name = touched.name) AS aged WHERE age > $3 AND NOT deleted AND ended <= $2)";

/// What [`Catalog::version_of`] reads.
fn columns() -> String {
    format!("{OBJECT_COLUMNS}, ended, ended_at, CAST(CASE WHEN deleted THEN 1 ELSE 0 END AS BIGINT)")
}

/// Of one key ($1, $2, $3), newest first, at most $4.
pub(super) fn of_key() -> String {
    let columns = columns();
    format!(
        "SELECT {columns} FROM versions WHERE collection = $1 AND namespace = $2 AND name = $3 ORDER BY ended DESC LIMIT $4"
    )
}

/// Those of a span ($1: ended before, $2 and $3: Unix ms), newest end first, at most $4; with one more condition.
pub(super) fn of_span(span: &Span, narrowed: &str) -> String {
    let (columns, deleted) = (columns(), if span.deleted { "deleted AND" } else { "" });
    format!(
        "SELECT {columns} FROM versions WHERE {deleted} ended < $1 AND ended_at >= $2 AND changed_at < $3 {narrowed} \
         ORDER BY ended DESC LIMIT $4"
    )
}

/// By what ended them, given as the condition `ended IN …`.
pub(super) fn ended(which: &str) -> String {
    format!("SELECT {} FROM versions WHERE ended {which}", columns())
}

/// Those that were there after a change ($1), of objects given as the condition `id IN …`. They are looked for among those that
/// ended since, which are few: no index over what began before is of use.
pub(super) fn as_of(which: &str) -> String {
    format!("SELECT {} FROM versions WHERE ended > $1 AND +seq <= $1 AND id {which}", columns())
}

/// Versions in a collection ($2) with keys greater than ($3, $4) that existed after a change ($1) and ended later; at most $5, in key order.
pub(super) fn lost_since() -> String {
    format!(
        "SELECT {} FROM versions WHERE ended > $1 AND +seq <= $1 AND collection = $2 AND (namespace, name) > ($3, $4) \
         ORDER BY namespace, name LIMIT $5",
        columns()
    )
}

impl History {
    /// What may be kept in a store of this size, and by how many bytes the store is too large without any of it.
    pub fn within(self, size: &StoreSize) -> (Self, u64) {
        let used = size.bytes.saturating_sub(size.free_bytes);
        let over = self.max_store_bytes.map_or(0, |most| used.saturating_sub(most));
        if over == 0 {
            return (self, 0);
        }
        let max_bytes = self.max_bytes.min(size.version_bytes.saturating_sub(over));
        (Self { max_bytes, ..self }, over.saturating_sub(size.version_bytes))
    }

    /// Versions that ended before this go, Unix milliseconds.
    pub(super) fn oldest(&self, now_ms: i64) -> i64 {
        now_ms.saturating_sub(i64::try_from(self.kept_for.as_millis()).unwrap_or(i64::MAX))
    }

    pub(super) fn most_bytes(&self) -> i64 {
        i64::try_from(self.max_bytes).unwrap_or(i64::MAX)
    }
}

impl Catalog {
    pub(super) fn version_of(&self, row: &impl Columns) -> Result<Version, Error> {
        let fail = |e| Error::store("has a row of another shape", e);
        Ok(Version {
            object: self.object_of(row)?,
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
    #[case::a_part_goes(Some(1000), 1060, 0, 100, (40, 0))]
    #[case::what_is_free_is_not_used(Some(1000), 1060, 60, 100, (500, 0))]
    #[case::all_goes(Some(1000), 1160, 0, 100, (0, 60))]
    fn a_limit_of_the_store_is_one_of_its_history(
        #[case] max_store_bytes: Option<u64>,
        #[case] bytes: u64,
        #[case] free_bytes: u64,
        #[case] version_bytes: u64,
        #[case] expected: (u64, u64),
    ) {
        let history = History { max_bytes: 500, max_store_bytes, ..History::default() };
        let (history, over) = history.within(&StoreSize { bytes, free_bytes, version_bytes, ..StoreSize::default() });
        assert_eq!((history.max_bytes, over), expected);
    }
}
