//! Row format of a record, shared by all SQL backends.
//!
//! Numbers are 64-bit, times Unix seconds (`changed_at`: milliseconds), labels and header JSON text, bodies
//! compressed by [`super::codec`]. `id` is the seq of the object's first change and is never reused.

use super::decide::Target;
use crate::ingest::Draft;
use crate::record::{Details, Header, Record, RecordKey, Seq};
use crate::{CompressedBody, Error};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Columns read by [`decode_record`] and [`super::catalog::Catalog::decode_record`], in this order.
pub(super) const COLUMNS: &str =
    "id, seq, uid, resource_version, generation, created, deleting, changed_at, labels, header, namespace, name";
/// Columns read by [`super::catalog::Catalog::decode_object`], and by [`decode_body`].
pub(super) const OBJECT_COLUMNS: &str = "id, seq, uid, resource_version, generation, created, deleting, changed_at, \
    labels, header, namespace, name, collection, dictionary, body";

/// [`OBJECT_COLUMNS`] with an empty body; `empty` is the backend's SQL for it.
pub(super) fn columns_without_body(empty: &str) -> String {
    OBJECT_COLUMNS.replace("dictionary, body", &format!("CAST(0 AS BIGINT), {empty}"))
}

/// Column access for rows of any backend.
pub(super) trait Columns {
    fn number(&self, column: usize) -> Result<i64, sqlx::Error>;
    fn optional_number(&self, column: usize) -> Result<Option<i64>, sqlx::Error>;
    fn text(&self, column: usize) -> Result<&str, sqlx::Error>;
    fn optional_text(&self, column: usize) -> Result<Option<&str>, sqlx::Error>;
    fn flag(&self, column: usize) -> Result<bool, sqlx::Error>;
    fn bytes(&self, column: usize) -> Result<&[u8], sqlx::Error>;
}

macro_rules! impl_columns {
    ($row:ty) => {
        impl Columns for $row {
            fn number(&self, column: usize) -> Result<i64, sqlx::Error> {
                sqlx::Row::try_get(self, column)
            }
            fn optional_number(&self, column: usize) -> Result<Option<i64>, sqlx::Error> {
                sqlx::Row::try_get(self, column)
            }
            fn text(&self, column: usize) -> Result<&str, sqlx::Error> {
                sqlx::Row::try_get(self, column)
            }
            fn optional_text(&self, column: usize) -> Result<Option<&str>, sqlx::Error> {
                sqlx::Row::try_get(self, column)
            }
            fn flag(&self, column: usize) -> Result<bool, sqlx::Error> {
                sqlx::Row::try_get(self, column)
            }
            fn bytes(&self, column: usize) -> Result<&[u8], sqlx::Error> {
                sqlx::Row::try_get(self, column)
            }
        }
    };
}
impl_columns!(sqlx::sqlite::SqliteRow);
impl_columns!(sqlx::postgres::PgRow);

/// JSON in column `header`: the [`Details`] and the flag `redacted`.
#[derive(Serialize)]
struct HeaderColumn<'a> {
    #[serde(flatten)]
    details: &'a Details,
    /// Must be the last field, see [`REDACTED`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    redacted: bool,
}

/// End of the header of a redacted object, by which it is recognized without decoding the header. Other headers end
/// with two braces, those of `printed` and of the header itself.
const REDACTED: &str = r#""redacted":true}"#;

/// The record in a row that begins with [`COLUMNS`].
pub(super) fn decode_record(row: &impl Columns, target: &Target) -> Result<Record, Error> {
    let fail = |e| Error::store("has an invalid row", e);
    let text = |column: usize| row.text(column).map_err(fail);
    let number = |column: usize| row.number(column).map_err(fail);
    let optional_number = |column: usize| row.optional_number(column).map_err(fail);
    let (header, namespace, name) = (text(9)?, text(10)?, text(11)?);
    let invalid_labels =
        |source| Error::Decode { object: format!("labels of {} {namespace}/{name}", target.key), source };
    let labels: BTreeMap<String, String> = serde_json::from_str(text(8)?).map_err(invalid_labels)?;
    Ok(Record {
        id: number(0)? as u64,
        key: RecordKey { collection: target.key.clone(), namespace: namespace.into(), name: name.into() },
        kind: Arc::clone(&target.kind),
        uid: text(2)?.to_owned(),
        resource_version: text(3)?.to_owned(),
        generation: number(4)?,
        created: optional_number(5)?,
        deleting: optional_number(6)?,
        labels,
        header: Header::from_encoded(header),
        redacted: header.ends_with(REDACTED),
        seq: Seq(number(1)? as u64),
        changed_at: number(7)?,
    })
}

/// The body in a row that begins with [`OBJECT_COLUMNS`].
pub(super) fn decode_body(row: &impl Columns) -> Result<CompressedBody, Error> {
    let fail = |e| Error::store("has an invalid row", e);
    let dictionary = row.number(13).map_err(fail)? as u32;
    Ok(CompressedBody { dictionary, bytes: row.bytes(14).map_err(fail)?.to_vec() })
}

/// Encodes the columns (labels, header) of a draft.
pub(super) fn encode(draft: &Draft) -> Result<(String, String), Error> {
    let fail = |source| Error::Decode { object: format!("{} {}/{}", draft.kind, draft.namespace, draft.name), source };
    let header = HeaderColumn { details: &draft.details, redacted: draft.redacted };
    let labels = serde_json::to_string(&draft.labels).map_err(fail)?;
    Ok((labels, serde_json::to_string(&header).map_err(fail)?))
}

/// The record of a draft.
pub(super) fn record_from_draft(
    draft: &Draft,
    key: RecordKey,
    kind: Arc<str>,
    id: u64,
    seq: Seq,
    now_ms: i64,
) -> Record {
    Record {
        id,
        key,
        kind,
        uid: draft.uid.clone(),
        resource_version: draft.resource_version.clone(),
        generation: draft.generation,
        created: draft.created,
        deleting: draft.deleting,
        labels: draft.labels.clone(),
        header: Arc::clone(&draft.details).into(),
        redacted: draft.redacted,
        seq,
        changed_at: now_ms,
    }
}
