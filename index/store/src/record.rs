//! What the cache knows of one object, and of one change.

use crate::Error;
use bytes::Bytes;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::printers::Printed;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The store's own increasing number of a change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One resource of one cluster: what one collector collects.
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

/// One object of one cluster, by the resource it was collected as. Ordered as lists are: cluster, resource,
/// namespace, name.
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

/// An owner reference, without what nobody looks up.
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

/// Everything of an object but its body. Times are Unix seconds unless said otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Stable for the life of the object in the store; never used again.
    pub id: u64,
    pub key: RecordKey,
    pub kind: Arc<str>,
    pub uid: String,
    /// The member's own.
    pub resource_version: String,
    pub generation: i64,
    pub created: Option<i64>,
    /// Deletion was asked for; finalizers hold the object.
    pub deleting: Option<i64>,
    pub labels: BTreeMap<String, String>,
    pub header: Header,
    /// Secret values were left out of the body: whoever needs them asks the member.
    pub redacted: bool,
    /// Of the last change.
    pub seq: Seq,
    /// When the last change came in, Unix milliseconds.
    pub changed_at: i64,
}

impl Record {
    pub fn owners(&self) -> Result<&[Owner], Error> {
        Ok(&self.details()?.owners)
    }

    pub fn printed(&self) -> Result<&Printed, Error> {
        Ok(&self.details()?.printed)
    }

    fn details(&self) -> Result<&Details, Error> {
        let RecordKey { collection, namespace, name } = &self.key;
        let decode = |source| Error::Decode { what: format!("header of {collection} {namespace}/{name}"), source };
        self.header.read().map_err(decode)
    }
}

/// Which cache counts a [`Seq`]: another one starts over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheId(Arc<str>);

impl CacheId {
    /// Characters that are told of it.
    const TOLD: usize = 8;

    /// Of a store.
    pub fn of(identity: &str) -> Self {
        Self(identity.chars().take(Self::TOLD).collect::<String>().into())
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

/// What is worth knowing of an object beside its metadata.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Details {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<Owner>,
    /// Columns and table cells, printed when the object came in.
    pub printed: Printed,
}

/// The details as they lie in the store, read when they are first asked for: most lists need none of them.
#[derive(Clone)]
pub struct Header {
    text: Box<str>,
    details: OnceLock<Details>,
}

impl Header {
    /// Of text that [`Details`] were written as.
    pub fn stored(text: &str) -> Self {
        Self { text: text.into(), details: OnceLock::new() }
    }

    fn read(&self) -> Result<&Details, serde_json::Error> {
        if let Some(details) = self.details.get() {
            return Ok(details);
        }
        let details = serde_json::from_str(&self.text)?;
        Ok(self.details.get_or_init(|| details))
    }
}

impl From<Details> for Header {
    fn from(details: Details) -> Self {
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
    /// Its JSON.
    pub fn text(&self) -> &str {
        // Bodies are made of text: see `ingest`.
        std::str::from_utf8(&self.body).unwrap_or_default()
    }

    /// Its `metadata`, as JSON.
    pub fn metadata(&self) -> Option<&str> {
        let text = self.text();
        metadata_in(text).map(|at| &text[at])
    }

    pub fn parse<K: DeserializeOwned>(&self) -> Result<K, Error> {
        serde_json::from_slice(&self.body).map_err(|source| Error::Decode {
            what: format!("{} {}/{}", self.record.kind, self.record.key.namespace, self.record.key.name),
            source,
        })
    }
}

/// Where the value of `metadata` lies in an object's JSON. Quick where only short fields come before it, as in bodies that
/// ingest made.
pub fn metadata_in(body: &str) -> Option<Range<usize>> {
    let next = |at: usize| {
        let mut values = serde_json::Deserializer::from_str(&body[at..]).into_iter::<&RawValue>();
        let value = values.next()?.ok()?.get();
        let end = at + values.byte_offset();
        Some((value, end))
    };
    let separated = |at: usize, by: u8| (body.as_bytes().get(at) == Some(&by)).then_some(at + 1);
    let mut at = separated(0, b'{')?;
    loop {
        let (field, end) = next(at)?;
        let begin = separated(end, b':')?;
        let (value, end) = next(begin)?;
        if field == "\"metadata\"" {
            return Some(end - value.len()..end);
        }
        at = separated(end, b',')?;
    }
}

/// An object as it was until a change ended that.
#[derive(Debug, Clone)]
pub struct Version {
    /// Its record's seq and time are those of the change that began it.
    pub object: Object,
    pub ended: Seq,
    /// Unix milliseconds.
    pub ended_at: i64,
    /// It ended by being deleted.
    pub deleted: bool,
}

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    Added,
    Modified,
    Deleted,
}

/// One change, in the order of `seq`.
#[derive(Debug, Clone)]
pub struct Change {
    pub seq: Seq,
    pub happened: Happened,
    /// As it is now; of a deletion, as it was last.
    pub object: Object,
    /// As it was before, so that a watch with a selector can tell when an object leaves its view.
    pub previous: Option<Arc<Record>>,
}

/// How far a collection follows its member.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CollectionState {
    /// resourceVersion reached; empty before the first complete list.
    pub resource_version: String,
    /// A complete list has been taken at least once, so an empty answer means there is nothing.
    pub complete: bool,
    /// Kind of the objects, once one was seen or discovery told.
    pub kind: Arc<str>,
    pub namespaced: bool,
    /// When the member was last heard of for this resource (event, bookmark or list), Unix milliseconds.
    pub heard_at: i64,
    /// Why it isn't being followed now; None while it is.
    pub trouble: Option<String>,
}

impl CollectionState {
    /// Complete and being followed.
    pub fn is_fresh(&self) -> bool {
        self.complete && self.trouble.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::as_ingest_writes(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a,}"},"spec":{}}"#,
        Some(r#"{"name":"a,}"}"#)
    )]
    #[case::last(r#"{"kind":"A\"b","n":[1,{"metadata":2}],"metadata":{}}"#, Some("{}"))]
    #[case::none(r#"{"kind":"A"}"#, None)]
    #[case::empty("{}", None)]
    #[case::nothing("", None)]
    fn metadata_is_found(#[case] body: &str, #[case] expected: Option<&str>) {
        assert_eq!(metadata_in(body).map(|at| &body[at]), expected);
    }
}
