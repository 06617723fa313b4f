//! The change log for followers. It returns each change once, in order, with the previous state of its object.

use super::PostgresStore;
use crate::Error;
use crate::Store;
use crate::decide::deletion_change;
use crate::record::{Change, ChangeKind, Object, Record, Seq};
use crate::rows::{Columns, OBJECT_COLUMNS};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};
use std::collections::HashMap;
use std::sync::Arc;

/// Minimum retention of old versions for replicas that catch up, in time and in changes; the shorter applies. A replica
/// that was disconnected for longer restarts its tail, and its readers list again.
const MIN_RETENTION_MS: i64 = 15 * 60 * 1000;
const MIN_RETAINED_CHANGES: i64 = 100_000;

/// Result of reading a part of the log.
#[derive(Debug)]
pub enum LogPage {
    /// The next changes; empty if the follower is up to date.
    Changes(Vec<Change>),
    /// The requested changes are no longer kept. The log continues after this seq.
    Pruned(Seq),
}

/// A version that a change ended.
struct EndedVersion {
    /// Time of the change, Unix milliseconds.
    ended_at: i64,
    /// resourceVersion of the deletion, if the member sent one.
    deletion_version: Option<String>,
    deleted: bool,
    old: Object,
}

impl PostgresStore {
    /// Up to `limit` changes after `since`.
    pub async fn changes(&self, since: Seq, limit: u64) -> Result<LogPage, Error> {
        let problem = "cannot follow its changes";
        let latest = self.latest().await?;
        if latest <= since {
            return Ok(LogPage::Changes(Vec::new()));
        }
        // One statement, so that everything is read from one snapshot: records and versions that began in the
        // window, and earlier versions that ended in it (with bodies only for deletions).
        let columns = OBJECT_COLUMNS;
        let columns_without_body = columns.strip_suffix(", body").unwrap_or(columns);
        let sql = AssertSqlSafe(format!(
            "SELECT {columns}, NULL::bigint, NULL::bigint, NULL::text, false FROM records WHERE seq > $1 AND seq <= $2 \
             UNION ALL SELECT {columns}, ended, ended_at, ended_version, deleted FROM versions WHERE seq > $1 AND seq <= $2 \
             UNION ALL SELECT {columns_without_body}, CASE WHEN deleted THEN body END, ended, ended_at, ended_version, deleted \
             FROM versions WHERE ended > $1 AND ended <= $2 AND seq <= $1"
        ));
        let until = since.0.saturating_add(limit);
        let query = sqlx::query(sql).bind(since.0 as i64).bind(until as i64);
        let rows = self.fetch_rows(problem, query).await?;
        self.load_row_dependencies(&rows).await?;
        let mut new_versions: HashMap<u64, Object> = HashMap::new();
        let mut ended_versions: HashMap<u64, EndedVersion> = HashMap::new();
        for row in &rows {
            let (object, ended) = self.decode_version(row)?;
            if object.record.seq > since {
                new_versions.insert(object.record.seq.0, object.clone());
            }
            if let Some((seq, ended_at)) = ended {
                let fail = |e| Error::store(problem, e);
                let (deletion_version, deleted) = (row.try_get(17).map_err(fail)?, row.try_get(18).map_err(fail)?);
                ended_versions.insert(seq as u64, EndedVersion { ended_at, deletion_version, deleted, old: object });
            }
        }
        let mut changes = Vec::new();
        for seq in since.0 + 1..=until {
            match build_change(Seq(seq), new_versions.remove(&seq), ended_versions.remove(&seq)) {
                Some(change) => changes.push(change),
                None => break,
            }
        }
        Ok(if changes.is_empty() { LogPage::Pruned(latest) } else { LogPage::Changes(changes) })
    }

    /// Decodes the version in a row, and the (seq, time) of its end if it has ended.
    fn decode_version(&self, row: &PgRow) -> Result<(Object, Option<(i64, i64)>), Error> {
        let fail = |e| Error::store("has an invalid row", e);
        let ended = row.optional_number(15).map_err(fail)?.zip(row.optional_number(16).map_err(fail)?);
        if row.try_get::<Option<&[u8]>, _>(14).map_err(fail)?.is_some() {
            return Ok((self.catalog.decode_object(row)?, ended));
        }
        let record = self.catalog.decode_record(row, row.number(12).map_err(fail)?)?;
        Ok((Object { record: Arc::new(record), body: bytes::Bytes::new() }, ended))
    }

    /// Seq up to which ended versions may be pruned. Followers of the log still need versions that ended later.
    pub(super) async fn log_floor(&self, now_ms: i64) -> Result<i64, Error> {
        let problem = "cannot determine the retention of its log";
        let sql = "SELECT greatest((SELECT seq FROM counter) - $1, \
            coalesce((SELECT max(ended) FROM versions WHERE ended_at < $2), 0))";
        let query = sqlx::query(sql).bind(MIN_RETAINED_CHANGES).bind(now_ms.saturating_sub(MIN_RETENTION_MS));
        self.fetch_number(problem, query).await
    }
}

/// The change with this seq, from the version that it began and the version that it ended. None if a part is missing.
fn build_change(seq: Seq, new: Option<Object>, ended: Option<EndedVersion>) -> Option<Change> {
    let Some(object) = new else {
        let EndedVersion { ended_at, deletion_version, old, .. } = ended.filter(|ended| ended.deleted)?;
        return Some(deletion_change(old.record, seq, deletion_version.as_deref(), ended_at, old.body));
    };
    let previous: Option<Arc<Record>> = ended.map(|ended| ended.old.record);
    let kind = match object.record.id == seq.0 {
        true => ChangeKind::Added,
        false => ChangeKind::Modified,
    };
    (kind == ChangeKind::Added || previous.is_some()).then_some(Change { seq, kind, object, previous })
}
