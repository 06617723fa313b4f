//! Records of objects and changes in the cache.

use crate::Error;
use bytes::Bytes;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::printers::PrintedObject;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Sequence number of a change, assigned by the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A resource of a cluster, which one collector collects.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CollectionKey {
    pub cluster: ClusterName,
    pub resource: Gvr,
}

impl CollectionKey {
    pub fn new(cluster: ClusterName, resource: Gvr) -> Self {
        Self { cluster, resource }
    }
}

impl fmt::Display for CollectionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.resource.group_resource(), self.cluster)
    }
}

/// Identity of an object: cluster, resource in the collected version, namespace, name. Ordered by these fields.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    pub collection: CollectionKey,
    /// Empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl RecordKey {
    pub fn new(cluster: ClusterName, resource: Gvr, namespace: &str, name: &str) -> Self {
        let collection = CollectionKey::new(cluster, resource);
        Self { collection, namespace: namespace.into(), name: name.into() }
    }

    pub fn cluster(&self) -> &ClusterName {
        &self.collection.cluster
    }

    pub fn resource(&self) -> &Gvr {
        &self.collection.resource
    }
}

/// An owner reference, reduced to the fields that are used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    #[serde(default)]
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub controller: bool,
}

/// An object without its body: identity, metadata and extracted columns. Times are Unix seconds unless stated
/// otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Unique for the lifetime of the object in the store; never reused.
    pub id: u64,
    pub key: RecordKey,
    pub kind: Arc<str>,
    pub uid: String,
    /// The member's resourceVersion.
    pub resource_version: String,
    pub generation: i64,
    /// `metadata.creationTimestamp`.
    pub created: Option<i64>,
    /// `metadata.deletionTimestamp`: the object is deleted once its finalizers are removed.
    pub deleting: Option<i64>,
    pub labels: BTreeMap<String, String>,
    pub header: Header,
    /// True if values were removed from the body; readers that need them query the member.
    pub redacted: bool,
    /// Seq of the last change.
    pub seq: Seq,
    /// Time of the last change, Unix milliseconds.
    pub changed_at: i64,
}

impl Record {
    pub fn owners(&self) -> Result<&[Owner], Error> {
        Ok(&self.details()?.owners)
    }

    pub fn printed_object(&self) -> Result<&PrintedObject, Error> {
        Ok(&self.details()?.printed)
    }

    fn details(&self) -> Result<&Details, Error> {
        let RecordKey { collection, namespace, name } = &self.key;
        let decode = |source| Error::Decode { object: format!("header of {collection} {namespace}/{name}"), source };
        self.header.read().map_err(decode)
    }
}

/// Identifies the cache that assigned a [`Seq`]. Seqs of different caches are not comparable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheId(Arc<str>);

impl CacheId {
    /// Number of characters in responses.
    const LENGTH: usize = 8;

    /// The id of the cache with this store identity, see [`crate::Store::identity`].
    pub fn from_identity(identity: &str) -> Self {
        Self(identity.chars().take(Self::LENGTH).collect::<String>().into())
    }
}

impl From<&str> for CacheId {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for CacheId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Fields of an object outside its metadata that are stored with the record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Details {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<Owner>,
    /// Columns and table cells, computed at ingest.
    pub printed: PrintedObject,
}

/// Encoded [`Details`] that are decoded on first use, because most lists do not need them.
#[derive(Clone)]
pub struct Header {
    text: Box<str>,
    details: OnceLock<Arc<Details>>,
}

impl Header {
    /// Wraps encoded [`Details`].
    pub fn from_encoded(text: &str) -> Self {
        Self { text: text.into(), details: OnceLock::new() }
    }

    fn read(&self) -> Result<&Details, serde_json::Error> {
        if let Some(details) = self.details.get() {
            return Ok(details);
        }
        let details = serde_json::from_str(&self.text)?;
        Ok(self.details.get_or_init(|| Arc::new(details)))
    }
}

impl From<Arc<Details>> for Header {
    fn from(details: Arc<Details>) -> Self {
        Self { text: Box::default(), details: details.into() }
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}

impl PartialEq for Header {
    fn eq(&self, other: &Self) -> bool {
        matches!((self.read(), other.read()), (Ok(one), Ok(other)) if one == other)
    }
}

/// A record with its body: the object's JSON with `apiVersion` and `kind`; without `managedFields`, unless they are kept.
#[derive(Debug, Clone)]
pub struct Object {
    pub record: Arc<Record>,
    pub body: Bytes,
}

impl Object {
    /// The body as text.
    pub fn text(&self) -> &str {
        // Ingest produces valid UTF-8.
        std::str::from_utf8(&self.body).unwrap_or_default()
    }

    /// The JSON of `metadata`.
    pub fn metadata(&self) -> Option<&str> {
        std::str::from_utf8(&self.body[metadata_in(&self.body)?]).ok()
    }

    pub fn parse<K: DeserializeOwned>(&self) -> Result<K, Error> {
        serde_json::from_slice(&self.body).map_err(|source| Error::Decode {
            object: format!("{} {}/{}", self.record.kind, self.record.key.namespace, self.record.key.name),
            source,
        })
    }
}

/// Byte range of the value of `metadata` in an object's JSON. Fast if only short fields precede it, as in bodies from
/// ingest. The range is valid UTF-8; the bytes after it are not read.
pub fn metadata_in(body: &[u8]) -> Option<Range<usize>> {
    let parse_value = |at: usize| {
        let mut values = serde_json::Deserializer::from_slice(body.get(at..)?).into_iter::<&RawValue>();
        let value = values.next()?.ok()?.get();
        let end = at + values.byte_offset();
        Some((value, end))
    };
    let skip_byte = |at: usize, byte: u8| (body.get(at) == Some(&byte)).then_some(at + 1);
    let mut at = skip_byte(0, b'{')?;
    loop {
        let (field, end) = parse_value(at)?;
        let begin = skip_byte(end, b':')?;
        let (value, end) = parse_value(begin)?;
        if field == "\"metadata\"" {
            return Some(end - value.len()..end);
        }
        at = skip_byte(end, b',')?;
    }
}

/// A previous version of an object.
#[derive(Debug, Clone)]
pub struct Version {
    /// The seq and time of its record are those of the change that created it.
    pub object: Object,
    /// Seq of the change that ended it.
    pub ended: Seq,
    /// Time of that change, Unix milliseconds.
    pub ended_at: i64,
    /// True if the version ended by deletion.
    pub deleted: bool,
}

/// Type of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

/// One change of an object.
#[derive(Debug, Clone)]
pub struct Change {
    pub seq: Seq,
    pub kind: ChangeKind,
    /// The state after the change; for a deletion, the last state.
    pub object: Object,
    /// The record before the change; None for an added object.
    pub previous: Option<Arc<Record>>,
}

/// State of a collection: how current it is compared to its member.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CollectionState {
    /// The resourceVersion up to which the collection was read.
    pub resource_version: String,
    /// True if a complete list was stored at least once, so that an empty result means that there are no objects.
    pub complete: bool,
    /// Kind of the objects, once known from an object or from discovery.
    pub kind: Arc<str>,
    pub namespaced: bool,
    /// Time of the last event, bookmark or list of this resource from the member, Unix milliseconds.
    pub last_contact_ms: i64,
    /// Reason why changes of the member do not arrive at present; None while they do.
    pub stale_reason: Option<String>,
}

impl CollectionState {
    /// True if the collection is complete and changes of the member arrive.
    pub fn is_fresh(&self) -> bool {
        self.complete && self.stale_reason.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::as_written_by_ingest(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a,}"},"spec":{}}"#,
        Some(r#"{"name":"a,}"}"#)
    )]
    #[case::last(r#"{"kind":"A\"b","n":[1,{"metadata":2}],"metadata":{}}"#, Some("{}"))]
    #[case::none(r#"{"kind":"A"}"#, None)]
    #[case::empty("{}", None)]
    #[case::nothing("", None)]
    #[case::truncated(r#"{"kind":"A","metadata":{"name":"#, None)]
    fn metadata_is_found(#[case] body: &str, #[case] expected: Option<&str>) {
        assert_eq!(metadata_in(body.as_bytes()).map(|at| &body[at]), expected);
    }

    #[test]
    fn only_metadata_has_to_be_text() {
        let before = br#"{"kind":"A","metadata":{"name":"a"},"data":""#;
        assert_eq!(metadata_in(&[before.as_slice(), b"\xff\"}".as_slice()].concat()), Some(23..35));
        assert_eq!(metadata_in(b"{\"metadata\":{\"name\":\"\xff\"}}"), None);
    }
}
