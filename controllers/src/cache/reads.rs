//! Reads from the index, merged with this process' own newer writes.

use crowsnest_apimachinery::names::{ClusterName, Gvr, NamespacedName};
use crowsnest_apimachinery::unstructured;
use crowsnest_index::{CollectionKey, ListQuery, Record, RecordKey, Seq};
use futures::Stream;
use futures::stream::{TryStreamExt, try_unfold};
use serde_json::Value;

use super::cached_object::{CachedObject, Header};
use super::decoded::Lookup;
use super::pending_writes::{PendingObjects, Version};
use super::{Cache, PAGE_SIZE, namespaced_name, version_of};
use crate::Error;

impl Cache {
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
        // Own writes first: they are dropped only after the cache has the same or a newer version.
        let named = NamespacedName::new(namespace, name);
        let ours = self.inner.pending_writes.lock().newer(&key.collection, &named, Version::default());
        let stored = match self.inner.decoded.lookup(&key) {
            Lookup::Cached(object) => object,
            Lookup::Miss(store_read) => {
                let stored = self.inner.index.get(&key).await?;
                let seq = stored.as_ref().map_or(Seq(0), |stored| stored.record.seq);
                let object = stored.as_ref().map(CachedObject::from_stored).transpose()?;
                store_read.complete(seq, object.as_ref());
                object
            }
        };
        Ok(newest(ours, stored))
    }

    /// Own writes that the collector may not have delivered yet.
    fn pending_objects(&self, key: &CollectionKey, namespace: Option<&str>) -> PendingObjects {
        let mut ours = self.inner.pending_writes.lock().in_collection(key);
        ours.retain(|key, _| namespace.is_none_or(|namespace| key.namespace == namespace));
        ours
    }

    /// All objects of a resource, or of one namespace, unordered. Only a few are in memory at a time.
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
        let ours = self.pending_objects(&query.collection, namespace);
        let cache = self.clone();
        let start = (is_requested.then_some(query), ours, Vec::new().into_iter());
        try_unfold(start, move |(mut query, mut ours, mut ready)| {
            let cache = cache.clone();
            async move {
                loop {
                    if let Some(object) = ready.next() {
                        return Ok(Some((object, (query, ours, ready))));
                    }
                    let Some(mut current) = query.take() else {
                        // Own writes that the collector has not delivered yet.
                        let Some((_, (_, object))) = ours.pop_first() else { return Ok(None) };
                        cache.count_reads(1);
                        return Ok(Some((object, (None, ours, ready))));
                    };
                    let (records, next) = cache.inner.index.records_page(&current, PAGE_SIZE).await?;
                    cache.count_reads(records.len());
                    ready = cache.with_bodies(records, &mut ours).await?.into_iter();
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

    /// Keys of all objects in a collection.
    pub async fn keys(&self, cluster: &ClusterName, gvr: &Gvr) -> Result<Vec<NamespacedName>, Error> {
        let key = CollectionKey::new(cluster.clone(), gvr.clone());
        if !self.is_requested(&key) {
            return Ok(Vec::new());
        }
        let ours = self.inner.pending_writes.lock().in_collection(&key);
        let mut keys = self.inner.index.keys(&key).await?;
        keys.extend(ours.into_keys().map(|key| NamespacedName::clone(&key)));
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
        let ours = self.pending_objects(&query.collection, namespace);
        let records = self.inner.index.records(&query).await?;
        self.count_reads(records.len());
        Ok(headers(&records, ours, |_| true))
    }

    /// Objects with a label, which must be one of [`super::indexed_labels`].
    pub async fn list_labelled(
        &self,
        cluster: &ClusterName,
        gvr: &Gvr,
        label: &str,
        value: Option<&str>,
    ) -> Result<Vec<CachedObject>, Error> {
        let (records, mut ours) = self.records_labelled(cluster, gvr, label, value).await?;
        let mut found = self.with_bodies(records, &mut ours).await?;
        found.extend(ours.into_values().map(|(_, object)| object));
        found.retain(|object| has_label(unstructured::label(object.view(), label), value));
        Ok(found)
    }

    /// Headers of the objects with a label, which must be one of [`super::indexed_labels`].
    pub async fn headers_labelled(
        &self,
        cluster: &ClusterName,
        gvr: &Gvr,
        label: &str,
        value: Option<&str>,
    ) -> Result<Vec<Header>, Error> {
        let (records, ours) = self.records_labelled(cluster, gvr, label, value).await?;
        Ok(headers(&records, ours, |object| has_label(unstructured::label(object, label), value)))
    }

    /// Records with a label, and the collection's own writes that the index does not have yet.
    async fn records_labelled(
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
        // Read before the index; a write that arrives in between is in both.
        let ours = self.inner.pending_writes.lock().in_collection(&key);
        let records = self.inner.index.records_with_label(&key, label, value).await?;
        self.count_reads(records.len());
        Ok((records, ours))
    }

    /// The records' objects or the newer own writes, which are removed from `ours`.
    async fn with_bodies(&self, records: Vec<Record>, ours: &mut PendingObjects) -> Result<Vec<CachedObject>, Error> {
        let mut found = Vec::with_capacity(records.len());
        let mut unread = Vec::new();
        for record in records {
            let mine = ours.remove(&namespaced_name(&record.key));
            match mine.filter(|(version, _)| *version > Version::parse(&record.resource_version)) {
                Some((_, object)) => found.push(object),
                None => match self.inner.decoded.get_at(&record.key, record.seq) {
                    Some(object) => found.push(object),
                    None => unread.push(record),
                },
            }
        }
        if !unread.is_empty() {
            for object in self.inner.index.bodies(unread).await? {
                found.push(CachedObject::from_stored(&object)?);
            }
        }
        Ok(found)
    }
}

fn newest(ours: Option<CachedObject>, stored: Option<CachedObject>) -> Option<CachedObject> {
    match (ours, stored) {
        (Some(ours), Some(stored)) if version_of(&stored) >= version_of(&ours) => Some(stored),
        (Some(ours), _) => Some(ours),
        (None, stored) => stored,
    }
}

fn has_label(label: Option<&str>, value: Option<&str>) -> bool {
    label.is_some_and(|label| value.is_none_or(|value| label == value))
}

/// Headers of the records, or of newer own writes that satisfy `keep`.
fn headers(records: &[Record], mut ours: PendingObjects, keep: impl Fn(&Value) -> bool) -> Vec<Header> {
    let matching_header = |object: &CachedObject| keep(object.view()).then(|| object.header());
    let mut found: Vec<Header> = records
        .iter()
        .filter_map(|record| {
            let mine = ours.remove(&namespaced_name(&record.key));
            match mine.filter(|(version, _)| *version > Version::parse(&record.resource_version)) {
                Some((_, object)) => matching_header(&object),
                None => Some(Header::from(record)),
            }
        })
        .collect();
    found.extend(ours.values().filter_map(|(_, object)| matching_header(object)));
    found
}
