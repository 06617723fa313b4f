//! How a record lies in a row, the same for every SQL backend.
//!
//! Numbers are 64-bit, times Unix seconds (`changed_at`: milliseconds), labels and header JSON text, bodies packed by
//! [`super::codec`]. `id` is the seq of the object's first change and never used again.

use super::decide::Target;
use crate::Error;
use crate::ingest::Draft;
use crate::record::{Owner, Record, RecordKey, Seq};
use crowsnest_api::print::Printed;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What [`record_in`] and [`super::catalog::Catalog::record_of`] read, in this order.
pub(super) const COLUMNS: &str =
    "id, seq, uid, resource_version, generation, created, deleting, changed_at, labels, header, namespace, name";
/// What [`super::catalog::Catalog::object_of`] reads.
pub(super) const OBJECT_COLUMNS: &str = "id, seq, uid, resource_version, generation, created, deleting, changed_at, \
    labels, header, namespace, name, collection, dictionary, body";

/// A row of any backend.
pub(super) trait Columns {
    fn number(&self, at: usize) -> Result<i64, sqlx::Error>;
    fn maybe(&self, at: usize) -> Result<Option<i64>, sqlx::Error>;
    fn text(&self, at: usize) -> Result<&str, sqlx::Error>;
    fn bytes(&self, at: usize) -> Result<&[u8], sqlx::Error>;
}

macro_rules! columns_of {
    ($row:ty) => {
        impl Columns for $row {
            fn number(&self, at: usize) -> Result<i64, sqlx::Error> {
                sqlx::Row::try_get(self, at)
            }
            fn maybe(&self, at: usize) -> Result<Option<i64>, sqlx::Error> {
                sqlx::Row::try_get(self, at)
            }
            fn text(&self, at: usize) -> Result<&str, sqlx::Error> {
                sqlx::Row::try_get(self, at)
            }
            fn bytes(&self, at: usize) -> Result<&[u8], sqlx::Error> {
                sqlx::Row::try_get(self, at)
            }
        }
    };
}
columns_of!(sqlx::sqlite::SqliteRow);
columns_of!(sqlx::postgres::PgRow);

/// The JSON in column `header`.
#[derive(Serialize, Deserialize)]
pub(super) struct Header<'a> {
    #[serde(default, skip_serializing_if = "<[Owner]>::is_empty")]
    owners: Cow<'a, [Owner]>,
    printed: Cow<'a, Printed>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    redacted: bool,
}

/// The columns of a record but its body and key.
pub(super) struct Row {
    pub id: u64,
    pub seq: u64,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub created: Option<i64>,
    pub deleting: Option<i64>,
    pub changed_at: i64,
    pub labels: String,
    pub header: String,
}

/// The columns of a record, of a row that begins with [`COLUMNS`].
fn row(from: &impl Columns) -> Result<Row, sqlx::Error> {
    let text = |at: usize| from.text(at).map(str::to_owned);
    Ok(Row {
        id: from.number(0)? as u64,
        seq: from.number(1)? as u64,
        uid: text(2)?,
        resource_version: text(3)?,
        generation: from.number(4)?,
        created: from.maybe(5)?,
        deleting: from.maybe(6)?,
        changed_at: from.number(7)?,
        labels: text(8)?,
        header: text(9)?,
    })
}

/// The record of a row that begins with [`COLUMNS`].
pub(super) fn record_in(from: &impl Columns, target: &Target) -> Result<Record, Error> {
    let fail = |e| Error::store("has a row of another shape", e);
    let (namespace, name) = (from.text(10).map_err(fail)?, from.text(11).map_err(fail)?);
    let key = RecordKey { collection: target.key.clone(), namespace: namespace.into(), name: name.into() };
    row(from).map_err(fail)?.decode(key, Arc::clone(&target.kind))
}

impl Row {
    pub fn decode(self, key: RecordKey, kind: Arc<str>) -> Result<Record, Error> {
        let what = |part: &str| format!("{part} of {} {}/{}", key.collection, key.namespace, key.name);
        let labels: BTreeMap<String, String> =
            serde_json::from_str(&self.labels).map_err(|source| Error::Decode { what: what("labels"), source })?;
        let header: Header<'_> =
            serde_json::from_str(&self.header).map_err(|source| Error::Decode { what: what("header"), source })?;
        Ok(Record {
            id: self.id,
            kind,
            uid: self.uid,
            resource_version: self.resource_version,
            generation: self.generation,
            created: self.created,
            deleting: self.deleting,
            labels,
            owners: header.owners.into_owned(),
            printed: header.printed.into_owned(),
            redacted: header.redacted,
            seq: Seq(self.seq),
            changed_at: self.changed_at,
            key,
        })
    }
}

/// (labels, header) of a draft.
pub(super) fn encode(draft: &Draft) -> Result<(String, String), Error> {
    let fail = |source| Error::Decode { what: format!("{} {}/{}", draft.kind, draft.namespace, draft.name), source };
    let header = Header {
        owners: Cow::Borrowed(&draft.owners),
        printed: Cow::Borrowed(&draft.printed),
        redacted: draft.redacted,
    };
    let labels = serde_json::to_string(&draft.labels).map_err(fail)?;
    Ok((labels, serde_json::to_string(&header).map_err(fail)?))
}

/// The record a draft becomes.
pub(super) fn record(draft: &Draft, key: RecordKey, kind: Arc<str>, id: u64, seq: Seq, now_ms: i64) -> Record {
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
        owners: draft.owners.clone(),
        printed: draft.printed.clone(),
        redacted: draft.redacted,
        seq,
        changed_at: now_ms,
    }
}
