//! Reads from the global cache, merged with the newer pending writes of this process.

use crowsnest_apimachinery::names::{ClusterName, Gvr, NamespacedName};
use crowsnest_apimachinery::unstructured;
use crowsnest_index::{CollectionKey, LabelQuery, ListQuery, Record, RecordKey, Seq};
use futures::Stream;
use futures::stream::{TryStreamExt, try_unfold};
use serde_json::Value;

use super::cached_object::{CachedObject, Header};
use super::decoded::Lookup;
use super::pending_writes::{PendingObjects, Version};
use super::{Cache, PAGE_SIZE, namespaced_name, version_of};
use crate::Error;

impl Cache {
    /// Reads an object: the newer of the stored object and the pending write. `None` if it does not exist or its
    /// collection is not cached.
    pub async fn get(
        &self,
        cluster: &ClusterName,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
    ) -> Result<Option<CachedObject>, Error> {
        let key = RecordKey::new(cluster.clone(), gvr.clone(), namespace, name);
        if !self.is_requested(&key.collection) {
            return Ok(None);
        }
        self.count_reads(1);
        // Read before the global cache: pending writes are dropped only after it has the same or a newer version.
        let name_key = NamespacedName::new(namespace, name);
        let pending = self.inner.pending_writes.lock().newer(&key.collection, &name_key, Version::default());
        let stored = match self.inner.decoded.lookup(&key) {
            Lookup::Cached(object) => object,
            Lookup::Miss(store_read) => {
                let stored = self.inner.global_cache.get(&key).await?;
                let seq = stored.as_ref().map_or(Seq(0), |stored| stored.record.seq);
                let object = stored.as_ref().map(CachedObject::from_stored).transpose()?;
                store_read.complete(seq, object.as_ref());
                object
            }
        };
        Ok(newer_object(pending, stored))
    }

    /// Pending writes in a collection, or in one of its namespaces.
    fn pending_objects(&self, key: &CollectionKey, namespace: Option<&str>) -> PendingObjects {
        let mut pending = self.inner.pending_writes.lock().in_collection(key);
        pending.retain(|key, _| namespace.is_none_or(|namespace| key.namespace == namespace));
        pending
    }

    /// Streams all objects of a resource, or of one namespace, unordered. Reads one page of them at a time.
    pub fn stream(
        &self,
        cluster: &ClusterName,
        gvr: &Gvr,
        namespace: Option<&str>,
    ) -> impl Stream<Item = Result<CachedObject, Error>> + Send + 'static {
        let mut query = ListQuery::new(cluster.clone(), gvr.clone());
        if let Some(namespace) = namespace {
            query = query.in_namespace(namespace);
        }
        let is_requested = self.is_requested(&query.collection);
        let pending = self.pending_objects(&query.collection, namespace);
        let cache = self.clone();
        let start = (is_requested.then_some(query), pending, Vec::new().into_iter());
        try_unfold(start, move |(mut query, mut pending, mut ready)| {
            let cache = cache.clone();
            async move {
                loop {
                    if let Some(object) = ready.next() {
                        return Ok(Some((object, (query, pending, ready))));
                    }
                    let Some(mut current) = query.take() else {
                        // After all records: pending writes of objects that the global cache does not contain.
                        let Some((_, (_, object))) = pending.pop_first() else { return Ok(None) };
                        cache.count_reads(1);
                        return Ok(Some((object, (None, pending, ready))));
                    };
                    let (records, next) = cache.inner.global_cache.records_page(&current, PAGE_SIZE).await?;
                    cache.count_reads(records.len());
                    ready = cache.read_objects(records, &mut pending).await?.into_iter();
                    query = next.map(|next| {
                        current.after = Some(next);
                        current
                    });
                }
            }
        })
    }

    /// All objects of a resource, or of one namespace, by namespace and name. Only for small collections.
    pub async fn list(
        &self,
        cluster: &ClusterName,
        gvr: &Gvr,
        namespace: Option<&str>,
    ) -> Result<Vec<CachedObject>, Error> {
        let mut found: Vec<CachedObject> = self.stream(cluster, gvr, namespace).try_collect().await?;
        found.sort_by_key(|object| unstructured::key(object.view()));
        Ok(found)
    }

    /// Keys of all objects in a collection, each once.
    pub async fn keys(&self, cluster: &ClusterName, gvr: &Gvr) -> Result<Vec<NamespacedName>, Error> {
        let key = CollectionKey::new(cluster.clone(), gvr.clone());
        if !self.is_requested(&key) {
            return Ok(Vec::new());
        }
        // Read before the global cache: a write that the collector delivers meanwhile is then in both, not in neither.
        let pending = self.inner.pending_writes.lock().in_collection(&key);
        let keys = with_pending_keys(self.inner.global_cache.keys(&key).await?, pending);
        self.count_reads(keys.len());
        Ok(keys)
    }

    /// Headers of a resource's objects in one namespace, or in all.
    pub async fn headers(
        &self,
        cluster: &ClusterName,
        gvr: &Gvr,
        namespace: Option<&str>,
    ) -> Result<Vec<Header>, Error> {
        let mut query = ListQuery::new(cluster.clone(), gvr.clone());
        if let Some(namespace) = namespace {
            query = query.in_namespace(namespace);
        }
        if !self.is_requested(&query.collection) {
            return Ok(Vec::new());
        }
        let pending = self.pending_objects(&query.collection, namespace);
        let records = self.inner.global_cache.records(&query).await?;
        self.count_reads(records.len());
        Ok(headers(&records, pending, |_| true))
    }

    /// Objects with a label, which must be one of [`super::indexed_labels`].
    pub async fn list_by_label(
        &self,
        cluster: &ClusterName,
        gvr: &Gvr,
        label: &str,
        value: Option<&str>,
    ) -> Result<Vec<CachedObject>, Error> {
        let (records, mut pending) = self.records_by_label(cluster, gvr, label, value).await?;
        let mut found = self.read_objects(records, &mut pending).await?;
        found.extend(pending.into_values().map(|(_, object)| object));
        found.retain(|object| has_label(unstructured::label(object.view(), label), value));
        Ok(found)
    }

    /// Headers of the objects with a label, which must be one of [`super::indexed_labels`].
    pub async fn headers_by_label(
        &self,
        cluster: &ClusterName,
        gvr: &Gvr,
        label: &str,
        value: Option<&str>,
    ) -> Result<Vec<Header>, Error> {
        let (records, pending) = self.records_by_label(cluster, gvr, label, value).await?;
        Ok(headers(&records, pending, |object| has_label(unstructured::label(object, label), value)))
    }

    /// Records with a label, and all pending writes of the collection.
    async fn records_by_label(
        &self,
        cluster: &ClusterName,
        gvr: &Gvr,
        label: &str,
        value: Option<&str>,
    ) -> Result<(Vec<Record>, PendingObjects), Error> {
        let key = CollectionKey::new(cluster.clone(), gvr.clone());
        if !self.is_requested(&key) {
            return Ok((Vec::new(), PendingObjects::default()));
        }
        // Read before the global cache: a write that the collector delivers meanwhile is then in both, not in neither.
        let pending = self.inner.pending_writes.lock().in_collection(&key);
        let query = LabelQuery { collection: &key, label, value };
        let records = self.inner.global_cache.records_with_label(&query).await?;
        self.count_reads(records.len());
        Ok((records, pending))
    }

    /// Reads the objects of records, or takes their newer pending writes. Removes the pending writes of these records.
    async fn read_objects(
        &self,
        records: Vec<Record>,
        pending: &mut PendingObjects,
    ) -> Result<Vec<CachedObject>, Error> {
        let mut objects = Vec::with_capacity(records.len());
        let mut undecoded = Vec::new();
        for record in records {
            let pending_write = pending.remove(&namespaced_name(&record.key));
            match pending_write.filter(|(version, _)| *version > Version::parse(&record.resource_version)) {
                Some((_, object)) => objects.push(object),
                None => match self.inner.decoded.get_at(&record.key, record.seq) {
                    Some(object) => objects.push(object),
                    None => undecoded.push(record),
                },
            }
        }
        if !undecoded.is_empty() {
            for object in self.inner.global_cache.bodies(undecoded).await? {
                objects.push(CachedObject::from_stored(&object)?);
            }
        }
        Ok(objects)
    }
}

fn newer_object(pending: Option<CachedObject>, stored: Option<CachedObject>) -> Option<CachedObject> {
    match (pending, stored) {
        (Some(pending), Some(stored)) if version_of(&stored) >= version_of(&pending) => Some(stored),
        (Some(pending), _) => Some(pending),
        (None, stored) => stored,
    }
}

/// Keys of stored objects, and those of pending writes of objects that are not stored yet.
fn with_pending_keys(mut stored: Vec<NamespacedName>, mut pending: PendingObjects) -> Vec<NamespacedName> {
    for key in &stored {
        pending.remove(key);
    }
    stored.extend(pending.into_keys().map(|key| NamespacedName::clone(&key)));
    stored
}

fn has_label(label: Option<&str>, value: Option<&str>) -> bool {
    label.is_some_and(|label| value.is_none_or(|value| label == value))
}

/// Headers of the records, and of the pending writes that satisfy `keep`, which replace older records.
fn headers(records: &[Record], mut pending: PendingObjects, keep: impl Fn(&Value) -> bool) -> Vec<Header> {
    let matching_header = |object: &CachedObject| keep(object.view()).then(|| object.header());
    let mut headers: Vec<Header> = records
        .iter()
        .filter_map(|record| {
            let pending_write = pending.remove(&namespaced_name(&record.key));
            match pending_write.filter(|(version, _)| *version > Version::parse(&record.resource_version)) {
                Some((_, object)) => matching_header(&object),
                None => Some(Header::from(record)),
            }
        })
        .collect();
    headers.extend(pending.values().filter_map(|(_, object)| matching_header(object)));
    headers
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::nothing(&[], &[], &[])]
    #[case::stored(&["a", "b"], &[], &["a", "b"])]
    #[case::not_stored_yet(&[], &["a"], &["a"])]
    #[case::stored_with_a_pending_write(&["a", "b"], &["b"], &["a", "b"])]
    #[case::both(&["a", "c"], &["b", "c"], &["a", "c", "b"])]
    fn keys_with_a_pending_write_are_returned_once(
        #[case] stored: &[&str],
        #[case] pending: &[&str],
        #[case] expected: &[&str],
    ) {
        let key = |name: &&str| NamespacedName::new("default", *name);
        let keys = |names: &[&str]| names.iter().map(key).collect::<Vec<_>>();
        let write = || (Version::default(), CachedObject::from_response(json!({"metadata": {"name": "x"}})));
        let pending = pending.iter().map(|name| (Arc::new(key(name)), write())).collect();
        assert_eq!(with_pending_keys(keys(stored), pending), keys(expected));
    }
}
