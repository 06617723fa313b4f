//! Keys of collections and the codec, with which the backends decode rows.
//!
//! The backends add collections and dictionaries when they read or create them; every query reads them.

use super::codec::Codec;
use super::decide::Target;
use super::rows::{Columns, decode_record};
use super::{Batch, NamespaceFilter, VersionExclusions};
use crate::Error;
use crate::record::{CollectionKey, Object, Record};
use bytes::Bytes;
use parking_lot::RwLock;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Maximum number of namespaces in a query's exclusions.
const MAX_NAMESPACES: usize = 1_000;

/// Collections by key and id, and the codec.
pub(super) struct Catalog {
    pub codec: Arc<Codec>,
    collections: RwLock<Collections>,
}

#[derive(Default)]
struct Collections {
    ids: HashMap<CollectionKey, i64>,
    /// Key and kind of each collection.
    by_id: HashMap<i64, (CollectionKey, Arc<str>)>,
}

impl Catalog {
    pub fn new(codec: Arc<Codec>) -> Self {
        Self { codec, collections: RwLock::default() }
    }

    pub fn id_of(&self, key: &CollectionKey) -> Option<i64> {
        self.collections.read().ids.get(key).copied()
    }

    /// Key and kind of a collection.
    pub fn collection_by_id(&self, id: i64) -> Option<(CollectionKey, Arc<str>)> {
        self.collections.read().by_id.get(&id).cloned()
    }

    pub fn insert(&self, id: i64, key: &CollectionKey, kind: Arc<str>) {
        let mut collections = self.collections.write();
        collections.ids.insert(key.clone(), id);
        collections.by_id.insert(id, (key.clone(), kind));
    }

    /// See [`super::Store::exclusions`].
    pub fn exclusions(&self, namespaces_of: &mut NamespaceFilter<'_>) -> VersionExclusions {
        let all: Vec<(i64, CollectionKey)> =
            self.collections.read().by_id.iter().map(|(id, (key, _))| (*id, key.clone())).collect();
        let (mut exclusions, mut namespaces) = (VersionExclusions::NONE, BTreeSet::new());
        for (id, key) in all {
            match namespaces_of(&key) {
                None => {}
                Some(needed) if needed.is_empty() => exclusions.excluded.push(id),
                Some(needed) => {
                    exclusions.limited.push(id);
                    namespaces.extend(needed);
                }
            }
        }
        if namespaces.len() > MAX_NAMESPACES {
            return VersionExclusions { excluded: exclusions.excluded, ..VersionExclusions::NONE };
        }
        exclusions.namespaces = namespaces.into_iter().collect();
        exclusions
    }

    /// The target of a batch. Its kind is that of the batch, otherwise that of an earlier batch in the transaction,
    /// otherwise that of the catalog.
    pub fn target(&self, id: i64, batch: &Batch, before: &[Target]) -> Target {
        let batch_kind = batch.progress.kind.as_ref().map(|(kind, _)| Arc::from(kind.as_str()));
        let earlier_kind = || before.iter().rev().find(|target| target.id == id).map(|target| Arc::clone(&target.kind));
        let catalog_kind = || self.collection_by_id(id).map(|(_, kind)| kind);
        let kind = batch_kind.or_else(earlier_kind).or_else(catalog_kind).unwrap_or_default();
        Target { id, key: batch.collection.clone(), kind }
    }

    /// The collection with this id, for decoding several of its rows.
    pub fn target_by_id(&self, id: i64) -> Result<Target, Error> {
        let (key, kind) = self.collection_by_id(id).ok_or(Error::Stopped)?;
        Ok(Target { id, key, kind })
    }

    /// Decodes a row that begins with [`super::rows::COLUMNS`].
    pub fn decode_record(&self, from: &impl Columns, collection: i64) -> Result<Record, Error> {
        decode_record(from, &self.target_by_id(collection)?)
    }

    /// Decodes a row that begins with [`super::rows::OBJECT_COLUMNS`] or [`super::rows::columns_without_body`].
    pub fn decode_object(&self, from: &impl Columns) -> Result<Object, Error> {
        let fail = |e| Error::store("has an invalid row", e);
        let record = self.decode_record(from, from.number(12).map_err(fail)?)?;
        let packed = from.bytes(14).map_err(fail)?;
        let body = match packed.is_empty() {
            true => Bytes::new(),
            false => self.codec.unpack(packed, from.number(13).map_err(fail)? as u32)?,
        };
        Ok(Object { record: Arc::new(record), body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::{ClusterName, Gvr};
    use rstest::rstest;

    #[rstest]
    #[case::some(2, 1, 2)]
    #[case::at_the_limit(MAX_NAMESPACES, 1, MAX_NAMESPACES)]
    #[case::too_many(MAX_NAMESPACES + 1, 0, 0)]
    fn the_number_of_namespaces_is_limited(#[case] namespaces: usize, #[case] limited: usize, #[case] expected: usize) {
        let catalog = Catalog::new(Arc::default());
        for (id, resource) in [(1, "pods"), (2, "secrets"), (3, "nodes")] {
            let key = CollectionKey::new(ClusterName::parse("member1").unwrap(), Gvr::new("", "v1", resource));
            catalog.insert(id, &key, "Kind".into());
        }
        let exclusions = catalog.exclusions(&mut |key| match &*key.resource.resource {
            "pods" => Some((0..namespaces).map(|nth| format!("team-{nth}")).collect()),
            "secrets" => Some(BTreeSet::new()),
            _ => None,
        });
        assert_eq!((exclusions.excluded.as_slice(), exclusions.limited.len()), ([2].as_slice(), limited));
        assert_eq!(exclusions.namespaces.len(), expected);
    }
}
