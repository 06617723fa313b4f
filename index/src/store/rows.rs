//! How a record lies in a row, the same for every SQL backend.

use crate::Error;
use crate::ingest::Draft;
use crate::record::{Owner, Record, RecordKey, Seq};
use crowsnest_api::print::Printed;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

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
