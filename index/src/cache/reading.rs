//! Reads objects, records, keys and old versions from the store.

use super::GlobalCache;
use crate::list::{ListQuery, Page};
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_store::error::join_result;
use crowsnest_store::{CollectionKey, Error, KeyRangeEnd, LabelQuery, Object, Record, RecordKey, Seq, Version};
use crowsnest_store::{Scan, ScanPage, StoredBody, StoredObject, SupersededScan, VersionExclusions, VersionFilter};
use futures::Stream;
use futures::stream::try_unfold;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// Number of objects read from the store at once while streaming a list.
const LIST_CHUNK: usize = 250;
/// Maximum number of superseded versions that are read for one page of a list as of an earlier change.
const MAX_SUPERSEDED: usize = 500;
/// Number of bodies decompressed per task.
const BODIES_PER_TASK: usize = 64;

/// Sort key of lists: namespace and name.
fn key_of(record: &Record) -> (String, String) {
    (record.key.namespace.to_string(), record.key.name.to_string())
}

impl GlobalCache {
    /// The current state of an object; None if it is not stored.
    pub async fn get(&self, key: &RecordKey) -> Result<Option<Object>, Error> {
        self.inner.shared.store.get(key).await
    }

    /// All notes, texts that components of this process store about objects. They are deleted with the cache's files,
    /// so the components must be able to recreate them.
    pub async fn notes(&self) -> Result<Vec<(RecordKey, String)>, Error> {
        self.inner.shared.store.notes().await
    }

    /// Replaces the note about an object; `None` removes it.
    pub async fn put_note(&self, key: &RecordKey, note: Option<&str>) -> Result<(), Error> {
        self.inner.shared.store.put_note(key, note).await
    }

    /// Removes the notes about a cluster's objects.
    pub async fn delete_notes(&self, cluster: &ClusterName) -> Result<(), Error> {
        self.inner.shared.store.delete_notes(cluster).await
    }

    /// Old versions of the objects with this key, newest first, including deleted ones.
    pub async fn versions(&self, key: &RecordKey, limit: usize) -> Result<Vec<Version>, Error> {
        self.inner.shared.store.versions(key, limit).await
    }

    /// Last state of an object before a change; None if the history does not contain it.
    pub async fn state_before(&self, change: Seq) -> Result<Option<Object>, Error> {
        let mut versions = self.inner.shared.store.versions_ended_by(&[change]).await?;
        Ok(versions.pop().map(|version| version.object))
    }

    /// Deleted objects before a change, newest deletion first.
    pub async fn deletions(&self, before: Seq, limit: usize) -> Result<Vec<Version>, Error> {
        self.inner
            .shared
            .store
            .versions_in(&VersionFilter { before, ..VersionFilter::DELETED }, &VersionExclusions::NONE, limit)
            .await
    }

    /// Waits until all currently stored changes are published, at most `timeout`. Changes of other replicas are
    /// published with a delay.
    pub async fn wait_until_published(&self, timeout: Duration) -> Result<(), Error> {
        let latest = self.inner.shared.store.latest().await?;
        let mut follower = self.follow(Seq(latest.0.saturating_sub(1)));
        if self.seq() < latest && tokio::time::timeout(timeout, follower.wait()).await.is_err() {
            tracing::warn!(stored = %latest, published = %self.seq(), "stored changes are published late");
        }
        Ok(())
    }

    /// One page of a list: up to `limit` objects in key order.
    pub async fn page(&self, query: &ListQuery, limit: usize) -> Result<Page, Error> {
        let Page { objects, next } = self.stored_page(query, limit).await?;
        Ok(Page { objects: self.unpack(objects).await?, next })
    }

    /// One page of a list with bodies as stored, see [`Self::read_body`].
    async fn stored_page(&self, query: &ListQuery, limit: usize) -> Result<Page<StoredObject>, Error> {
        let (store, scan) = (&self.inner.shared.store, query.scan());
        let keep = |record: &Record| query.matches(record);
        if query.fields.is_none() && scan.is_prefiltered() {
            let mut collector = ScanCollector::new(scan, limit);
            while !collector.is_complete {
                let found = store.objects(&collector.scan, &keep, collector.remaining()).await?;
                collector.add(found);
            }
            return Ok(collector.into_page());
        }
        // Most records may be rejected, so only the bodies of the others are read.
        let mut collector = ScanCollector::new(scan, limit);
        while !collector.is_complete {
            let found = store.records(&collector.scan, &keep, collector.remaining()).await?;
            collector.add(found);
        }
        let Page { objects: records, next } = collector.into_page();
        let seqs: HashSet<Seq> = records.iter().map(|record| record.seq).collect();
        let objects = omit_mismatches(query, &seqs, self.bodies(records).await?)?;
        Ok(Page { objects: objects.into_iter().map(StoredObject::from).collect(), next })
    }

    /// The JSON of a stored body. A compressed body is decompressed into `buffer`, whose contents it replaces.
    pub fn read_body<'b>(&self, body: &'b StoredBody, buffer: &'b mut Vec<u8>) -> Result<&'b [u8], Error> {
        body.read(&self.inner.shared.codec, buffer)
    }

    /// One page of a list as of a change, for readers that follow changes from there: objects added since are omitted,
    /// and objects changed or deleted since are returned in their state at that time. If the previous state of a changed
    /// object is no longer kept, its current state is returned.
    pub async fn page_as_of(&self, query: &ListQuery, limit: usize, seq: Seq) -> Result<Page<StoredObject>, Error> {
        let mut page = self.stored_page(query, limit).await?;
        let first_namespace = query.namespaces.as_ref().and_then(BTreeSet::first);
        let after = query.after.clone().or_else(|| first_namespace.map(|namespace| (namespace.clone(), String::new())));
        // Read after the current objects, so that each object is found in one of the two whenever it changes.
        let max_superseded = limit.clamp(1, MAX_SUPERSEDED);
        let scan = SupersededScan {
            seq,
            collection: &query.collection,
            after: after.as_ref(),
            until: end_of_page(query, page.next.as_ref()),
            limit: max_superseded,
        };
        let superseded = self.inner.shared.store.superseded_since(&scan).await?;
        let superseded_ids: HashSet<u64> = superseded.iter().map(|version| version.object.record.id).collect();
        // An object's id is the seq of its first change.
        page.objects.retain(|StoredObject { record, .. }| record.id <= seq.0 && !superseded_ids.contains(&record.id));
        if superseded.is_empty() {
            return Ok(page);
        }
        if let Some(last) = superseded.get(max_superseded - 1).map(|version| key_of(&version.object.record)) {
            // There may be more of them after this one.
            page.objects.retain(|object| key_of(&object.record) <= last);
            page.next = Some(last);
        }
        for Version { object, .. } in superseded {
            if query.matches(&object.record)? {
                page.objects.push(object.into());
            }
        }
        page.objects.sort_by_cached_key(|object| key_of(&object.record));
        if page.objects.len() > limit {
            page.objects.truncate(limit);
            page.next = page.objects.last().map(|object| key_of(&object.record));
        }
        Ok(page)
    }

    /// True if no deletion after this change has been pruned.
    pub async fn retains_deletions_since(&self, seq: Seq) -> Result<bool, Error> {
        Ok(self.inner.shared.store.pruned_until().await? <= seq)
    }

    /// A complete list in key order, streamed in constant memory. A slow reader blocks nothing.
    pub fn list(&self, query: ListQuery) -> impl Stream<Item = Result<Object, Error>> + Send + 'static {
        let cache = self.clone();
        let start = (Some(query), Vec::new().into_iter());
        try_unfold(start, move |(query, mut ready): (Option<ListQuery>, std::vec::IntoIter<Object>)| {
            let cache = cache.clone();
            async move {
                let mut query = query;
                loop {
                    if let Some(object) = ready.next() {
                        return Ok(Some((object, (query, ready))));
                    }
                    let Some(mut current) = query.take() else { return Ok(None) };
                    let page = cache.page(&current, LIST_CHUNK).await?;
                    ready = page.objects.into_iter();
                    query = page.next.map(|next| {
                        current.after = Some(next);
                        current
                    });
                }
            }
        })
    }

    /// Records of a collection that match a query, without bodies.
    pub async fn records(&self, query: &ListQuery) -> Result<Vec<Record>, Error> {
        let mut scan = query.scan();
        let mut found = Vec::new();
        loop {
            let keep = |record: &Record| query.matches(record);
            let (records, next) = self.inner.shared.store.records(&scan, &keep, LIST_CHUNK * 4).await?;
            found.extend(records);
            match next {
                None => return Ok(found),
                next => scan.after = next,
            }
        }
    }

    /// Records of a collection with an indexed label, in key order.
    pub async fn records_with_label(&self, query: &LabelQuery<'_>) -> Result<Vec<Record>, Error> {
        self.inner.shared.store.records_with_label(query).await
    }

    /// One page of records without bodies: up to `limit`, and where the next page starts.
    pub async fn records_page(&self, query: &ListQuery, limit: usize) -> Result<ScanPage<Record>, Error> {
        self.inner.shared.store.records(&query.scan(), &|record| query.matches(record), limit).await
    }

    /// The objects of records. Objects deleted in the meantime are omitted, changed ones are returned in their
    /// current state.
    pub async fn bodies(&self, records: Vec<Record>) -> Result<Vec<Object>, Error> {
        let read = |part| {
            let store = Arc::clone(&self.inner.shared.store);
            async move { store.bodies(part).await }
        };
        concat_parts(split_into_chunks(records, BODIES_PER_TASK).into_iter().map(read)).await
    }

    /// Decompresses the bodies of objects.
    pub async fn unpack(&self, stored: Vec<StoredObject>) -> Result<Vec<Object>, Error> {
        let unpack = |part: Vec<StoredObject>| {
            let codec = Arc::clone(&self.inner.shared.codec);
            async move { part.into_iter().map(|object| object.unpack(&codec)).collect::<Result<Vec<Object>, Error>>() }
        };
        concat_parts(split_into_chunks(stored, BODIES_PER_TASK).into_iter().map(unpack)).await
    }

    /// Keys of all objects of a collection, in order.
    pub async fn keys(&self, key: &CollectionKey) -> Result<Vec<NamespacedName>, Error> {
        self.inner.shared.store.keys(key).await
    }
}

/// Collects a page from the results of a scan, which may be few per call of the store.
struct ScanCollector<T> {
    /// The rest of the scan.
    scan: Scan,
    limit: usize,
    objects: Vec<T>,
    is_complete: bool,
}

impl<T> ScanCollector<T> {
    fn new(scan: Scan, limit: usize) -> Self {
        Self { scan, limit, objects: Vec::new(), is_complete: false }
    }

    /// Number of results up to the limit.
    fn remaining(&self) -> usize {
        self.limit.saturating_sub(self.objects.len())
    }

    fn add(&mut self, (found, next): ScanPage<T>) {
        self.objects.extend(found);
        self.is_complete = next.is_none() || self.objects.len() >= self.limit;
        self.scan.after = next;
    }

    fn into_page(self) -> Page<T> {
        Page { objects: self.objects, next: self.scan.after }
    }
}

/// The end of the keys that a page may contain: its last key, or on the last page the last namespace of the list. None
/// if the list contains all namespaces.
fn end_of_page<'a>(query: &'a ListQuery, next: Option<&'a (String, String)>) -> Option<KeyRangeEnd<'a>> {
    if let Some((namespace, name)) = next {
        return Some(KeyRangeEnd::Key(namespace, name));
    }
    let last_namespace = query.namespaces.as_ref()?.last()?;
    Some(KeyRangeEnd::Namespace(last_namespace))
}

/// Omits the objects that no longer match. `seqs` are those of matching records: an object with another one has changed
/// since its record was matched.
fn omit_mismatches(query: &ListQuery, seqs: &HashSet<Seq>, objects: Vec<Object>) -> Result<Vec<Object>, Error> {
    let mut matching = Vec::with_capacity(objects.len());
    for object in objects {
        if seqs.contains(&object.record.seq) || query.matches(&object.record)? {
            matching.push(object);
        }
    }
    Ok(matching)
}

/// Objects of all parts, in order. Decompression is CPU work, so each part is a task, which distributes them over the
/// cores.
async fn concat_parts<F>(parts: impl Iterator<Item = F>) -> Result<Vec<Object>, Error>
where
    F: Future<Output = Result<Vec<Object>, Error>> + Send + 'static,
{
    let tasks: Vec<_> = parts.map(|part| AbortOnDropHandle::new(tokio::spawn(part))).collect();
    let mut objects = Vec::new();
    for task in tasks {
        objects.extend(join_result(task.await)?);
    }
    Ok(objects)
}

/// Chunks of at most `max_length` items, in order.
fn split_into_chunks<T>(mut remaining: Vec<T>, max_length: usize) -> Vec<Vec<T>> {
    let mut parts = Vec::with_capacity(remaining.len().div_ceil(max_length));
    while remaining.len() > max_length {
        let rest = remaining.split_off(max_length);
        parts.push(std::mem::replace(&mut remaining, rest));
    }
    parts.push(remaining);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::selector::FieldSelector;
    use crowsnest_store::fixtures::{cluster, stored};
    use k8s_openapi::api::core::v1::Pod;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::page(&["a", "b"], Some("x"), Some(KeyRangeEnd::Key("a", "x")))]
    #[case::last_page(&["a"], None, Some(KeyRangeEnd::Namespace("a")))]
    #[case::last_page_of_namespaces(&["b", "a"], None, Some(KeyRangeEnd::Namespace("b")))]
    #[case::page_of_all_namespaces(&[], Some("x"), Some(KeyRangeEnd::Key("a", "x")))]
    #[case::last_page_of_all_namespaces(&[], None, None)]
    fn pages_end_at_their_last_key_or_namespace(
        #[case] namespaces: &[&str],
        #[case] next: Option<&str>,
        #[case] expected: Option<KeyRangeEnd<'_>>,
    ) {
        let names: BTreeSet<String> = namespaces.iter().map(|name| (*name).to_owned()).collect();
        let namespaces = (!names.is_empty()).then_some(names);
        let query = ListQuery { namespaces, ..ListQuery::for_kind::<Pod>(cluster("member1")) };
        let next = next.map(|name| ("a".to_owned(), name.to_owned()));
        assert_eq!(end_of_page(&query, next.as_ref()), expected);
    }

    #[test]
    fn objects_that_changed_after_their_records_were_read_are_matched_again() {
        let fields = Some(FieldSelector::parse("status.phase=Running").unwrap());
        let query = ListQuery { fields, ..ListQuery::for_kind::<Pod>(cluster("member1")) };
        let pod = |seq: u64, phase: &str| {
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "status": {"phase": phase},
                "metadata": {"name": format!("pod-{seq}"), "namespace": "a"}});
            stored("member1", seq, &pod)
        };
        let objects = vec![pod(1, "Running"), pod(12, "Running"), pod(13, "Failed"), pod(4, "Running")];
        let seqs: HashSet<Seq> = [1, 2, 3, 4].map(Seq).into();
        let found = omit_mismatches(&query, &seqs, objects).unwrap();
        let names: Vec<&str> = found.iter().map(|object| &*object.record.key.name).collect();
        assert_eq!(names, ["pod-1", "pod-12", "pod-4"]);
    }
}
