//! Builds the newline-delimited body of a bulk request.

use bytes::Bytes;
use serde::Serialize;

/// Maximum length of a document id in bytes; an engine refuses the entire request for a longer one.
const MAX_ID_BYTES: usize = 512;
/// Id that a guard names. No document has it.
const GUARD_ID: &str = "crowsnest-guard";
/// Sequence number of an engine's own operations that no document reaches.
const UNREACHED_SEQ_NO: u64 = 1 << 62;
/// Largest external version.
const MAX_VERSION: u64 = i64::MAX as u64;

/// A document to write, or to delete if `document` is None.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentChange {
    /// Sequence number of the change in the source; the document's external version.
    pub seq: u64,
    pub id: String,
    /// JSON on one line.
    pub document: Option<Bytes>,
}

/// Bounds of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BulkLimits {
    /// Maximum size before compression. A larger document is sent alone.
    pub bytes: usize,
    /// Maximum number of changes.
    pub items: usize,
}

/// The action that each request begins with; see the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Marker {
    /// An empty document of this id, written once in the life of an index.
    Document(String),
    /// A write that every index refuses (409): it requires a state that no document has. For indices that must not contain
    /// other documents; a replaced index is not detected.
    Guard,
}

impl Marker {
    /// Id that identifies the marker in the response.
    pub fn id(&self) -> &str {
        match self {
            Self::Document(id) => id,
            Self::Guard => GUARD_ID,
        }
    }
}

/// A request body with the number of changes in it, taken from the front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BulkRequest {
    pub body: Vec<u8>,
    pub items: usize,
}

/// Reason why a change cannot be sent: an engine would refuse the entire request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidChange {
    #[error("the id is empty or longer than 512 bytes")]
    Id,
    #[error("the sequence number is 0 or above 2^63-1")]
    Version,
    #[error("the document contains a line break")]
    LineBreak,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Action<'a> {
    Index(Target<'a>),
    Delete(Target<'a>),
    #[serde(rename = "index")]
    Guard(GuardTarget<'a>),
}

#[derive(Serialize)]
struct Target<'a> {
    #[serde(rename = "_id")]
    id: &'a str,
    version: u64,
    version_type: &'static str,
}

#[derive(Serialize)]
struct GuardTarget<'a> {
    #[serde(rename = "_id")]
    id: &'a str,
    if_seq_no: u64,
    if_primary_term: u64,
}

/// Path of a bulk request through an alias. The response is limited to the fields that [`super::parse_response`] reads.
pub fn path(alias: &str) -> String {
    format!("/{alias}/_bulk?require_alias=true&filter_path=items.*._id,items.*.status,items.*.error")
}

/// Rejects changes for which an engine would refuse the entire request.
pub fn check(change: &DocumentChange) -> Result<(), InvalidChange> {
    if change.id.is_empty() || change.id.len() > MAX_ID_BYTES {
        return Err(InvalidChange::Id);
    }
    if change.seq == 0 || change.seq > MAX_VERSION {
        return Err(InvalidChange::Version);
    }
    match &change.document {
        Some(document) if memchr::memchr2(b'\n', b'\r', document).is_some() => Err(InvalidChange::LineBreak),
        _ => Ok(()),
    }
}

/// Builds a request of the first changes that fit the limits: at least one, if there is any.
pub fn build(marker: &Marker, changes: &[DocumentChange], limits: BulkLimits) -> BulkRequest {
    let mut body = Vec::new();
    let first = match marker {
        Marker::Document(id) => Action::Index(target(id, 1)),
        Marker::Guard => Action::Guard(GuardTarget { id: GUARD_ID, if_seq_no: UNREACHED_SEQ_NO, if_primary_term: 1 }),
    };
    write_action(&mut body, &first);
    body.extend_from_slice(b"{}\n");
    let mut items = 0;
    for change in changes.iter().take(limits.items.max(1)) {
        let before = body.len();
        let target = target(&change.id, change.seq);
        match &change.document {
            Some(document) => {
                write_action(&mut body, &Action::Index(target));
                body.extend_from_slice(document);
                body.push(b'\n');
            }
            None => write_action(&mut body, &Action::Delete(target)),
        }
        if items > 0 && body.len() > limits.bytes {
            body.truncate(before);
            break;
        }
        items += 1;
    }
    BulkRequest { body, items }
}

fn target(id: &str, version: u64) -> Target<'_> {
    Target { id, version, version_type: "external" }
}

fn write_action(body: &mut Vec<u8>, action: &Action<'_>) {
    // Strings and numbers always serialize, and a vector takes all bytes.
    if serde_json::to_writer(&mut *body, action).is_ok() {
        body.push(b'\n');
    }
}
