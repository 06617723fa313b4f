//! Watches of registered resources: changes of the cache, filtered and encoded for the caller.
//!
//! Clusters that join, leave or recover only add events: objects that enter the view are sent as ADDED, objects
//! that leave it as DELETED. A watch ends at its timeout, when no ResourceRegistry selects the resource or no cluster
//! serves it any longer, or with 410 Gone if the client falls behind the changes kept by the cache or the caller's
//! permissions change.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::Query;
use crowsnest_index::{
    Change, ChangeKind, CollectionKey, Follower, GlobalCache, Gone, ListQuery, Object, Record, RecordKey, Seq,
};
use futures::future::{BoxFuture, join_all};
use http::{HeaderMap, HeaderValue, Response, header};
use tokio::time::{Instant, Interval};
use tokio_util::sync::CancellationToken;

use super::list::object_version;
use super::removed_collections::RemovedCollections;
use super::view::{View, ViewDifference};
use super::warning;
use crate::composite::{CachePosition, CompositeVersion};
use crate::merged::events::{EventEncoder, INITIAL_EVENTS, append_error, bookmark_interval, next_tick, watch_timeout};
use crate::native::NativePath;
use crate::object::{Form, annotate};
use crate::options::ListOptions;
use crate::table::{Content, Shape, row};
use crate::{Body, BodySource, BoxError, Error, Proxy};

/// Number of objects read from the cache at once.
const PAGE_OBJECTS: usize = 200;
/// Maximum time for which the end of the initial events is delayed until all clusters are collected. Unreachable
/// clusters are never collected.
const COLLECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time by which this replica of the cache may be behind the others.
pub(super) const MAX_LAG: Duration = Duration::from_secs(1);

/// Position from which a watch starts.
struct StartPosition {
    position: CompositeVersion,
    /// Changes after this sequence number are sent.
    seq: Seq,
    /// Collections whose objects are sent first.
    initial: VecDeque<AddedCollection>,
}

/// A collection whose objects at the follower's position are sent as ADDED, except those that were already visible in the view
/// `before`.
struct AddedCollection {
    query: ListQuery,
    before: Option<Arc<View>>,
}

impl From<ListQuery> for AddedCollection {
    fn from(query: ListQuery) -> Self {
        Self { query, before: None }
    }
}

struct Watch {
    cache: GlobalCache,
    view: View,
    events: EventEncoder,
    position: CompositeVersion,
    /// Collections whose objects have to be sent as ADDED.
    added: VecDeque<AddedCollection>,
    /// Objects sent in a state newer than the follower's position, because their state at that position is no longer kept,
    /// with the sequence number of the newer state. Changes up to it are skipped.
    sent_ahead: HashMap<RecordKey, Seq>,
    /// Collections that were removed from the view and whose objects have to be read and sent as DELETED.
    removed: VecDeque<ListQuery>,
    /// All collections that were removed from the view, with the objects already sent as DELETED.
    removed_collections: RemovedCollections,
    /// True if the view changed and the portions recorded in `position` are outdated.
    has_outdated_portions: bool,
    /// True if the bookmark that ends the initial events has not been sent yet.
    is_initial_bookmark_pending: bool,
    /// Completes when the clusters that are still being collected are complete, or after a timeout.
    collection_wait: Option<BoxFuture<'static, ()>>,
    follower: Follower,
    /// Signals that the ResourceRegistries changed.
    interest_changes: tokio::sync::watch::Receiver<u64>,
    /// Signals that a cluster serves other resources.
    discovery_changes: tokio::sync::watch::Receiver<u64>,
    /// True if a cluster has served the resource since the watch began.
    was_served: bool,
    /// Signals that permissions changed.
    rule_changes: tokio::sync::watch::Receiver<u64>,
    bookmarks: Option<Interval>,
    deadline: Instant,
    stopping: CancellationToken,
    has_ended: bool,
}

impl Proxy {
    pub(super) async fn watch_cached(
        &self,
        native: &NativePath,
        view: View,
        query: &Query,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, Error> {
        let view = view.select(ListOptions::parse(query, true, true)?)?.with_name(&native.name)?;
        let cache = &self.inner.cache;
        let StartPosition { position, seq, initial } = StartPosition::resolve(cache, &view, query).await?;
        let mut interest_changes = cache.interests().version();
        // Detects registry changes made since the view was created.
        interest_changes.mark_changed();
        let bookmarks = bookmark_interval(query);
        let discovery_changes = cache.served_version();
        let shape = Shape::from_accept_header(headers, query, Content::Watch)?;
        let withheld = view.withheld_warning(cache).filter(|_| shape == Shape::Objects(Form::Full));
        let is_initial_bookmark_pending = query.flag(INITIAL_EVENTS) && bookmarks.is_some();
        let watch = Watch {
            events: EventEncoder::new(shape, view.heading(cache, "")),
            was_served: view.is_served(cache),
            discovery_changes,
            cache: cache.clone(),
            follower: cache.follow_topic(seq, view.topic()),
            rule_changes: cache.searcher().rule_changes(),
            position,
            added: initial,
            sent_ahead: HashMap::new(),
            removed: VecDeque::new(),
            removed_collections: RemovedCollections::default(),
            has_outdated_portions: false,
            collection_wait: if is_initial_bookmark_pending { wait_until_collected(cache, &view) } else { None },
            is_initial_bookmark_pending,
            view,
            interest_changes,
            bookmarks,
            deadline: Instant::now() + watch_timeout(query),
            stopping: self.inner.stopping.clone(),
            has_ended: false,
        };
        let mut response = Response::new(watch.into_body());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(text) = withheld {
            response.headers_mut().append(header::WARNING, warning(text));
        }
        Ok(response)
    }
}

impl StartPosition {
    async fn resolve(cache: &GlobalCache, view: &View, query: &Query) -> Result<Self, Error> {
        let requested = query.get("resourceVersion").unwrap_or_default();
        let since = CompositeVersion::decode(requested);
        let wants_initial = query.flag(INITIAL_EVENTS);
        match since.seq(cache.id()) {
            Some(seq) if !wants_initial => {
                wait_until_reached(cache, seq).await?;
                let initial = view.queries_added_since(&since, cache)?.into_iter().map(AddedCollection::from).collect();
                Ok(Self { position: since, seq, initial })
            }
            // The position of a foreign version is unknown, so the watch cannot continue from it.
            None if !CompositeVersion::has_no_data(requested) && !wants_initial => Err(Error::Expired),
            _ => {
                let (position, seq) = (view.position(cache), cache.seq());
                let skips_initial = query.has(INITIAL_EVENTS) && !wants_initial;
                let clusters = if skips_initial { Vec::new() } else { view.clusters(cache) };
                let initial =
                    clusters.iter().filter_map(|cluster| view.query(cluster)).map(AddedCollection::from).collect();
                Ok(Self { position, seq, initial })
            }
        }
    }
}

impl BodySource for Watch {
    /// The next events; `None` when the watch has ended.
    async fn next(&mut self) -> Result<Option<Bytes>, BoxError> {
        let mut out = Vec::new();
        while out.is_empty() && !self.has_ended {
            if let Some(collection) = self.added.pop_front() {
                self.send_added(collection, &mut out).await?;
                continue;
            }
            if let Some(query) = self.removed.pop_front() {
                self.send_removed(query, &mut out).await?;
                continue;
            }
            // Portions are updated after the deletion of all removed objects was sent.
            if self.has_outdated_portions && self.removed_collections.is_empty() {
                self.has_outdated_portions = false;
                for cluster in self.view.clusters(&self.cache) {
                    let key = self.view.version_key(&self.cache, &cluster);
                    self.position.set_portion(&key, self.view.portion(&cluster));
                }
            }
            if self.is_initial_bookmark_pending && self.collection_wait.is_none() {
                self.is_initial_bookmark_pending = false;
                self.send_bookmark(true, &mut out)?;
                continue;
            }
            tokio::select! {
                changes = self.follower.next() => match changes {
                    Some(changes) => self.send_changes(changes, &mut out).await?,
                    None => self.has_ended = true,
                },
                Ok(()) = self.rule_changes.changed() => self.send_changes(Ok(Vec::new()), &mut out).await?,
                Ok(()) = self.interest_changes.changed() => {
                    // Earlier changes are sent under the earlier view, so that the view changes at the current position.
                    let changes = self.follower.ready_now();
                    self.send_changes(changes, &mut out).await?;
                    if !self.has_ended {
                        self.refresh_view();
                    }
                }
                Ok(()) = self.discovery_changes.changed() => self.end_if_unserved(),
                () = wait_for(&mut self.collection_wait) => {
                    self.collection_wait = None;
                    let changes = self.follower.ready_now();
                    self.send_changes(changes, &mut out).await?;
                }
                () = next_tick(&mut self.bookmarks) => {
                    // Without matching changes, the position still advances to the follower's.
                    let changes = self.follower.ready_now();
                    self.send_changes(changes, &mut out).await?;
                    if !self.has_ended {
                        self.send_bookmark(false, &mut out)?;
                    }
                }
                () = sleep_until(self.removed_collections.next_drop()) => {
                    let changes = self.follower.ready_now();
                    self.send_changes(changes, &mut out).await?;
                }
                () = tokio::time::sleep_until(self.deadline) => self.has_ended = true,
                () = self.stopping.cancelled() => self.has_ended = true,
            }
        }
        Ok((!out.is_empty()).then(|| out.into()))
    }
}

impl Watch {
    /// Sends changes if the caller's permissions are unchanged. Otherwise earlier events may be wrong, and the watch
    /// expires.
    async fn send_changes(&mut self, changes: Result<Vec<Arc<Change>>, Gone>, out: &mut Vec<u8>) -> Result<(), Error> {
        let has_same_access = self.view.refresh_permissions(&self.cache).await;
        let (Ok(changes), true) = (changes, has_same_access) else {
            self.expire(out);
            return Ok(());
        };
        for change in &changes {
            self.send_change(change, out).await?;
        }
        let since = self.follower.since();
        self.removed_collections.drop_finished(MAX_LAG, self.cache.seq(), since);
        if let Some(reached) = self.cache_position(since) {
            self.position.remove_left_clusters(|cluster| !self.removed_collections.has_cluster(cluster), &reached);
        }
        self.sent_ahead.retain(|_, seq| *seq > since);
        Ok(())
    }

    fn cache_position(&self, seq: Seq) -> Option<CachePosition> {
        Some(CachePosition { seq, cache: self.cache.id().clone() })
    }

    /// Ends the watch with 410 Gone, so that the client lists again.
    fn expire(&mut self, out: &mut Vec<u8>) {
        append_error(&Error::Expired, out);
        self.has_ended = true;
    }

    /// Ends the watch when no cluster serves the resource any longer, as when a version is removed from a CRD.
    fn end_if_unserved(&mut self) {
        self.was_served |= self.view.is_served(&self.cache);
        self.has_ended |= self.was_served && self.view.is_unserved(&self.cache);
    }

    /// Applies a change of the ResourceRegistries to the view.
    fn refresh_view(&mut self) {
        let Some(view) = self.view.under_current_registries(&self.cache) else {
            self.has_ended = true;
            return;
        };
        let before = Arc::new(std::mem::replace(&mut self.view, view));
        let mut clusters: BTreeSet<ClusterName> = self.view.clusters(&self.cache).into_iter().collect();
        clusters.extend(before.clusters(&self.cache));
        // Includes clusters that left the fleet.
        clusters.extend(before.named_clusters().cloned());
        // Until the additions and removals are sent, a client that resumes has to list again.
        self.has_outdated_portions = true;
        let ViewDifference { added, removed } = self.view.difference_from(&before, &clusters);
        let added = added.into_iter().map(|query| AddedCollection { query, before: Some(Arc::clone(&before)) });
        self.added.extend(added);
        for query in removed {
            self.removed_collections.add(query.clone(), self.follower.since());
            self.removed.push_back(query);
        }
    }

    /// Sends a page of the objects at the follower's position as ADDED, and queues the rest of the collection. The changes that
    /// follow are those of exactly these objects: an object that has been deleted since must be sent before its deletion.
    async fn send_added(&mut self, collection: AddedCollection, out: &mut Vec<u8>) -> Result<(), BoxError> {
        let AddedCollection { mut query, before } = collection;
        let page = self.cache.page_as_of(&query, PAGE_OBJECTS, self.follower.since()).await?;
        let objects = self.cache.unpack(page.objects).await?;
        for object in &objects {
            let record = &object.record;
            let was_shown = before.as_ref().map(|before| before.shows(record)).transpose()?.unwrap_or_default();
            if was_shown || !self.view.allows(record) {
                continue;
            }
            if record.seq > self.follower.since() {
                self.sent_ahead.insert(record.key.clone(), record.seq);
            }
            // A client of a streaming list resumes only after the bookmark, so each object has its version in a list. Any other
            // client may resume from any event, so each event has the version of the watch.
            let version = match self.is_initial_bookmark_pending {
                true => object_version(&self.cache, record, self.view.portion(record.key.cluster())),
                false => self.position.encode(),
            };
            self.send_object("ADDED", object, &version, out)?;
            self.removed_collections.restore(record);
        }
        let cluster = &query.collection.cluster;
        if let Some(next) = page.next {
            query.after = Some(next);
            self.added.push_front(AddedCollection { query, before });
        } else if !self.position.includes(cluster.as_str()) || self.position.is_marked_leaving(cluster.as_str()) {
            // A client that resumes from an earlier event receives all objects of the cluster again. Later changes are sent
            // from the common position.
            let version = self.view.member_version(&self.cache, cluster);
            let cache_position = self.cache_position(self.follower.since());
            self.position.set(cluster.as_str(), &version, cache_position);
            self.position.set_portion(cluster.as_str(), self.view.portion(cluster));
        }
        Ok(())
    }

    /// Sends a page of objects that are no longer in view as DELETED, and queues the rest of the collection.
    async fn send_removed(&mut self, mut query: ListQuery, out: &mut Vec<u8>) -> Result<(), BoxError> {
        let page = self.cache.page(&query, PAGE_OBJECTS).await?;
        let mut deleted = Vec::new();
        let is_leaving = self.view.query(&query.collection.cluster).is_none();
        if is_leaving && self.position.includes(query.collection.cluster.as_str()) {
            // Marks the cluster as leaving until the deletion of all its objects was sent: a client that resumes from one
            // of these events would miss the other deletions, and the cluster's objects if it is added again.
            self.position.mark_leaving(query.collection.cluster.as_str());
        }
        for object in &page.objects {
            if self.view.allows(&object.record) && !self.view.shows(&object.record)? {
                let version = self.position.encode();
                self.send_object("DELETED", object, &version, out)?;
                deleted.push(object.record.id);
            }
        }
        self.removed_collections.record_deletions(&query, deleted, page.next.is_none(), MAX_LAG);
        if let Some(next) = page.next {
            query.after = Some(next);
            self.removed.push_front(query);
        }
        Ok(())
    }

    /// Sends a change if it concerns an object that is or was in view.
    async fn send_change(&mut self, change: &Change, out: &mut Vec<u8>) -> Result<(), Error> {
        if self.sent_ahead.get(&change.object.record.key).is_some_and(|sent| change.seq <= *sent) {
            return Ok(());
        }
        if change.kind == ChangeKind::Deleted && self.removed_collections.is_deleted(&change.object.record) {
            // The client was sent this deletion when the collection was removed, and not the object again since.
            return Ok(());
        }
        let is_in_view = self.view.shows(&change.object.record)?;
        let was_in_view = match &change.previous {
            Some(previous) if self.removed_collections.is_deleted(previous) => false,
            Some(previous) => {
                self.view.shows(previous)?
                    || !is_in_view && self.view.allows(previous) && self.removed_collections.take_deletion(previous)?
            }
            None => false,
        };
        let kind = match (change.kind, was_in_view, is_in_view) {
            (ChangeKind::Deleted, was, is) if was || is => "DELETED",
            (ChangeKind::Added | ChangeKind::Modified, true, true) => "MODIFIED",
            (ChangeKind::Added | ChangeKind::Modified, false, true) => "ADDED",
            (ChangeKind::Added | ChangeKind::Modified, true, false) => "DELETED",
            _ => return Ok(()),
        };
        // As in kube-apiserver, DELETED for an object that no longer matches has its last matching state and the version of the change.
        let last_matching_state = match change.kind {
            ChangeKind::Added | ChangeKind::Modified if !is_in_view => self.cache.state_before(change.seq).await?,
            _ => None,
        };
        if is_in_view && change.kind != ChangeKind::Deleted {
            self.removed_collections.restore(&change.object.record);
        }
        self.advance_to(&change.object.record, change.seq);
        let version = self.position.encode();
        self.send_object(kind, last_matching_state.as_ref().unwrap_or(&change.object), &version, out)
    }

    /// Advances the position of the object's cluster to this change, unless the cluster has left the view.
    fn advance_to(&mut self, record: &Record, seq: Seq) {
        if self.view.query(record.key.cluster()).is_some() {
            let cache_position = self.cache_position(seq);
            self.position.set(record.key.cluster().as_str(), &record.resource_version, cache_position);
        }
    }

    fn send_object(
        &mut self,
        event_type: &str,
        object: &Object,
        version: &str,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let cluster = object.record.key.cluster().as_str();
        let body = match self.events.shape {
            Shape::Objects(form) => annotate(&object.body, cluster, Some(version), form)?,
            Shape::Table(table) => {
                row(&object.record, &object.body, version, table, jiff::Timestamp::now().as_second())?
            }
        };
        self.events.append(event_type, &body, version, out);
        Ok(())
    }

    /// Sends the watch's position. A client that resumes from it misses nothing, even if no event was sent for a
    /// long time.
    fn send_bookmark(&mut self, ends_initial: bool, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        if let Some(cache_position) = self.cache_position(self.follower.since()) {
            self.position.advance_to(&cache_position);
        }
        self.events.append_bookmark(&self.position.encode(), ends_initial, out)
    }
}

/// Sleeps until `time`; never completes if it is None.
async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Waits up to [`MAX_LAG`] until this replica of the cache reaches a sequence number; then fails with 410 Gone.
pub(super) async fn wait_until_reached(cache: &GlobalCache, seq: Seq) -> Result<(), Error> {
    if seq.0 == 0 {
        return Ok(());
    }
    let mut follower = cache.follow(Seq(seq.0.saturating_sub(1)));
    match tokio::time::timeout(MAX_LAG, follower.wait()).await {
        Ok(true) => Ok(()),
        Ok(false) | Err(_) => Err(Error::Expired),
    }
}

/// Future that completes when all clusters in view are collected, or after [`COLLECTION_TIMEOUT`]. None if all are collected.
fn wait_until_collected(cache: &GlobalCache, view: &View) -> Option<BoxFuture<'static, ()>> {
    let key = |cluster| CollectionKey::new(cluster, view.resource.clone());
    let mut missing: Vec<CollectionKey> = view.clusters(cache).into_iter().map(key).collect();
    missing.retain(|key| {
        let incomplete = view.incomplete_cluster(cache, key.cluster.clone());
        incomplete.is_some_and(|incomplete| incomplete.last_contact_ms.is_none())
    });
    if missing.is_empty() {
        return None;
    }
    let cache = cache.clone();
    Some(Box::pin(async move {
        let all = join_all(missing.iter().map(|key| cache.wait_until_complete(key)));
        if tokio::time::timeout(COLLECTION_TIMEOUT, all).await.is_err() {
            tracing::debug!("the watch starts without clusters that are not collected yet");
        }
    }))
}

/// Waits for `future`; never completes if it is None.
async fn wait_for(future: &mut Option<BoxFuture<'static, ()>>) {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
