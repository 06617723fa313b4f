//! Watches of registered resources: changes of the cache, filtered and encoded for the caller.
//!
//! Clusters that join, leave or recover only add events: objects that enter the view are sent as ADDED, objects
//! that leave it as DELETED. A watch ends at its timeout, when no ResourceRegistry selects the resource or no cluster
//! serves it any longer, or with 410 Gone if the reader falls behind the changes kept by the cache or its permissions
//! change.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apimachinery::request::Query;
use crowsnest_index::{
    Change, ChangeKind, CollectionKey, Follower, Gone, Index, ListQuery, Object, Record, RecordKey, Seq,
};
use futures::future::{BoxFuture, join_all};
use http::{HeaderMap, HeaderValue, Response, header};
use tokio::time::{Instant, Interval};
use tokio_util::sync::CancellationToken;

use super::leaving::RemovedCollections;
use super::list::version_of;
use super::{View, warning};
use crate::composite::{CachePosition, CompositeVersion};
use crate::merged::events::{Events, INITIAL_EVENTS, append_error, bookmarks, tick, timeout};
use crate::native::NativePath;
use crate::object::{Form, mark};
use crate::options::ListOptions;
use crate::table::{Content, Shape, row};
use crate::{Body, BoxError, Error, Pieces, Proxy};

/// Number of objects read from the cache at once for the initial events.
const CHUNK: usize = 200;
/// Maximum delay of the end of the initial events for clusters that are not collected yet. Unreachable clusters
/// are never collected.
const COLLECTED_WITHIN: Duration = Duration::from_secs(5);
/// Maximum wait for a resourceVersion that this replica of the cache has not reached yet.
pub(super) const LAG: Duration = Duration::from_secs(1);

/// Start of a watch.
struct Beginning {
    position: CompositeVersion,
    /// Changes after this sequence number are sent.
    start: Seq,
    /// Collections whose current objects are sent first.
    initial: VecDeque<Coming>,
}

/// A collection whose current objects are sent as ADDED, except those that were already visible in the view
/// `before`.
struct Coming {
    query: ListQuery,
    before: Option<Arc<View>>,
}

impl From<ListQuery> for Coming {
    fn from(query: ListQuery) -> Self {
        Self { query, before: None }
    }
}

struct Watch {
    index: Index,
    view: View,
    events: Events,
    position: CompositeVersion,
    /// Collections whose current objects are still to be sent as ADDED.
    initial: VecDeque<Coming>,
    /// Objects sent in a state newer than the follower's position, with the sequence number of that state. Changes
    /// up to it are skipped, including the deletion of an earlier object of the same name.
    ahead: HashMap<RecordKey, Seq>,
    /// Collections that left the view and whose objects are still to be sent as DELETED.
    leaving: VecDeque<ListQuery>,
    /// Collections that left the view, with the objects already sent as DELETED.
    left: RemovedCollections,
    /// The view changed, and the portions recorded in `position` are out of date.
    turned: bool,
    /// The bookmark that ends the initial events has not been sent.
    owes_bookmark: bool,
    /// Completes when the clusters that are still being collected are ready, or after a timeout.
    collecting: Option<BoxFuture<'static, ()>>,
    follower: Follower,
    interests: tokio::sync::watch::Receiver<u64>,
    /// Signals that a cluster serves other resources.
    served: tokio::sync::watch::Receiver<u64>,
    /// A cluster has served the resource since the watch began.
    was_served: bool,
    /// Signals that permissions changed.
    rules: tokio::sync::watch::Receiver<u64>,
    bookmarks: Option<Interval>,
    deadline: Instant,
    stopping: CancellationToken,
    ended: bool,
}

impl Proxy {
    pub(super) async fn watch_cached(
        &self,
        native: &NativePath,
        view: View,
        query: &Query,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, Error> {
        let view = view.select(ListOptions::parse(query, true, true)?)?.named(&native.name)?;
        let index = &self.inner.index;
        let Beginning { position, start, initial } = Beginning::of(index, &view, query).await?;
        let mut interests = index.interests().version();
        // Detects registry changes made since the view was created.
        interests.mark_changed();
        let bookmarks = bookmarks(query);
        let served = index.served_version();
        let shape = Shape::of(headers, query, Content::Watch)?;
        let withheld = view.withholds(index).filter(|_| shape == Shape::Objects(Form::Whole));
        let owes_bookmark = query.flag(INITIAL_EVENTS) && bookmarks.is_some();
        let watch = Watch {
            events: Events::new(shape, view.heading(index, "")),
            was_served: view.is_served(index),
            served,
            index: index.clone(),
            follower: index.follow_topic(start, view.topic()),
            rules: index.searcher().rule_changes(),
            position,
            initial,
            ahead: HashMap::new(),
            leaving: VecDeque::new(),
            left: RemovedCollections::default(),
            turned: false,
            collecting: if owes_bookmark { collected(index, &view) } else { None },
            owes_bookmark,
            view,
            interests,
            bookmarks,
            deadline: Instant::now() + timeout(query),
            stopping: self.inner.stopping.clone(),
            ended: false,
        };
        let mut response = Response::new(watch.into_body());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(text) = withheld {
            response.headers_mut().append(header::WARNING, warning(text));
        }
        Ok(response)
    }
}

impl Beginning {
    async fn of(index: &Index, view: &View, query: &Query) -> Result<Self, Error> {
        let requested = query.get("resourceVersion").unwrap_or_default();
        let since = CompositeVersion::decode(requested);
        let wants_initial = query.flag(INITIAL_EVENTS);
        match since.seq(index.id()) {
            Some(start) if !wants_initial => {
                reached(index, start).await?;
                let initial = view.missing_in(&since, index)?.into_iter().map(Coming::from).collect();
                Ok(Self { position: since, start, initial })
            }
            // The position of a foreign version is unknown, so the watch cannot continue from it.
            None if !CompositeVersion::knows_nothing(requested) && !wants_initial => Err(Error::Expired),
            _ => {
                let (position, start) = (view.position(index), index.seq());
                let unwanted = query.has(INITIAL_EVENTS) && !wants_initial;
                let clusters = if unwanted { Vec::new() } else { view.clusters(index) };
                let initial = clusters.iter().filter_map(|cluster| view.query(cluster)).map(Coming::from).collect();
                Ok(Self { position, start, initial })
            }
        }
    }
}

impl Pieces for Watch {
    /// The next events; `None` when the watch is over.
    async fn next(&mut self) -> Result<Option<Bytes>, BoxError> {
        let mut out = Vec::new();
        while out.is_empty() && !self.ended {
            if let Some(coming) = self.initial.pop_front() {
                self.tell_initial(coming, &mut out).await?;
                continue;
            }
            if let Some(query) = self.leaving.pop_front() {
                self.tell_leaving(query, &mut out).await?;
                continue;
            }
            // Portions stay out of date until the deletion of all objects that left was sent.
            if self.turned && self.left.is_empty() {
                self.turned = false;
                for cluster in self.view.clusters(&self.index) {
                    self.position.set_portion(&self.view.label(&self.index, &cluster), self.view.portion(&cluster));
                }
            }
            if self.owes_bookmark && self.collecting.is_none() {
                self.owes_bookmark = false;
                self.bookmark(true, &mut out)?;
                continue;
            }
            tokio::select! {
                changes = self.follower.next() => match changes {
                    Some(changes) => self.take(changes, &mut out).await?,
                    None => self.ended = true,
                },
                Ok(()) = self.rules.changed() => self.take(Ok(Vec::new()), &mut out).await?,
                Ok(()) = self.interests.changed() => self.refresh_view(),
                Ok(()) = self.served.changed() => self.end_if_unserved(),
                () = wait(&mut self.collecting) => {
                    self.collecting = None;
                    let changes = self.follower.ready_now();
                    self.take(changes, &mut out).await?;
                }
                () = tick(&mut self.bookmarks) => {
                    // Without matching changes, the position still advances to the follower's.
                    let changes = self.follower.ready_now();
                    self.take(changes, &mut out).await?;
                    if !self.ended {
                        self.bookmark(false, &mut out)?;
                    }
                }
                () = sleep_until(self.left.due()) => {
                    let changes = self.follower.ready_now();
                    self.take(changes, &mut out).await?;
                }
                () = tokio::time::sleep_until(self.deadline) => self.ended = true,
                () = self.stopping.cancelled() => self.ended = true,
            }
        }
        Ok((!out.is_empty()).then(|| out.into()))
    }
}

impl Watch {
    /// Sends changes while the reader's permissions are unchanged. If they change, earlier events may be wrong, and
    /// the watch expires.
    async fn take(&mut self, changes: Result<Vec<Arc<Change>>, Gone>, out: &mut Vec<u8>) -> Result<(), Error> {
        let allowed = self.view.is_allowed_still(&self.index).await;
        let (Ok(changes), true) = (changes, allowed) else {
            self.expire(out);
            return Ok(());
        };
        for change in &changes {
            self.tell(change, out).await?;
        }
        let since = self.follower.since();
        self.left.forget(LAG, self.index.seq(), since);
        if let Some(reached) = self.cache_position(since) {
            self.position.forget_left(|cluster| !self.left.includes(cluster), &reached);
        }
        self.ahead.retain(|_, seq| *seq > since);
        Ok(())
    }

    fn cache_position(&self, seq: Seq) -> Option<CachePosition> {
        Some(CachePosition { seq, cache: self.index.id().clone() })
    }

    /// Ends the watch with 410 Gone, so that the client lists again.
    fn expire(&mut self, out: &mut Vec<u8>) {
        append_error(&Error::Expired, out);
        self.ended = true;
    }

    /// Ends the watch when no cluster serves the resource any longer, as when a version is removed from a CRD.
    fn end_if_unserved(&mut self) {
        self.was_served |= self.view.is_served(&self.index);
        self.ended |= self.was_served && self.view.is_unserved(&self.index);
    }

    /// Applies a change of the ResourceRegistries to the view.
    fn refresh_view(&mut self) {
        let Some(view) = self.view.again(&self.index) else {
            self.ended = true;
            return;
        };
        let before = Arc::new(std::mem::replace(&mut self.view, view));
        let mut clusters: BTreeSet<ClusterName> = self.view.clusters(&self.index).into_iter().collect();
        clusters.extend(before.clusters(&self.index));
        // Includes clusters that left the fleet.
        clusters.extend(before.named_clusters().cloned());
        // Until the additions and removals are sent, a client that resumes has to list again.
        self.turned = true;
        let (come, leave) = self.view.turn(&before, &clusters);
        self.initial.extend(come.into_iter().map(|query| Coming { query, before: Some(Arc::clone(&before)) }));
        for query in leave {
            self.left.leave(query.clone(), self.follower.since());
            self.leaving.push_back(query);
        }
    }

    async fn tell_initial(&mut self, coming: Coming, out: &mut Vec<u8>) -> Result<(), BoxError> {
        let Coming { mut query, before } = coming;
        let page = self.index.page(&query, CHUNK).await?;
        for object in &page.objects {
            let record = &object.record;
            let known = before.as_ref().map(|before| before.shows(record)).transpose()?.unwrap_or_default();
            if known || !self.view.allows(record) {
                continue;
            }
            if record.seq > self.follower.since() {
                self.ahead.insert(record.key.clone(), record.seq);
            }
            // A client of a streaming list resumes only after the closing bookmark, so each object has its version in a list. Any other
            // client may resume from any event, so each event has the version of the watch.
            let version = match self.owes_bookmark {
                true => version_of(&self.index, record, self.view.portion(record.key.cluster())),
                false => self.position.encode(),
            };
            self.object("ADDED", object, &version, out)?;
            self.left.restore(record);
        }
        let cluster = &query.collection.cluster;
        if let Some(next) = page.next {
            query.after = Some(next);
            self.initial.push_front(Coming { query, before });
        } else if !self.position.includes(cluster.as_str()) || self.position.is_marked_leaving(cluster.as_str()) {
            // A client that resumes from an earlier event receives the whole cluster again. Later changes are sent
            // from the common position.
            let version = self.view.version(&self.index, cluster);
            let cache_position = self.cache_position(self.follower.since());
            self.position.set(cluster.as_str(), &version, cache_position);
            self.position.set_portion(cluster.as_str(), self.view.portion(cluster));
        }
        Ok(())
    }

    async fn tell_leaving(&mut self, mut query: ListQuery, out: &mut Vec<u8>) -> Result<(), BoxError> {
        let page = self.index.page(&query, CHUNK).await?;
        let mut deleted = Vec::new();
        let goes = self.view.query(&query.collection.cluster).is_none();
        if goes && self.position.includes(query.collection.cluster.as_str()) {
            // Marks the cluster as leaving until the deletion of all its objects was sent: a client that resumes from one
            // of these events would miss the other deletions, and the cluster's objects when it is back.
            self.position.mark_leaving(query.collection.cluster.as_str());
        }
        for object in &page.objects {
            if self.view.allows(&object.record) && !self.view.shows(&object.record)? {
                let version = self.position.encode();
                self.object("DELETED", object, &version, out)?;
                deleted.push(object.record.id);
            }
        }
        self.left.record_deletions(&query, deleted, page.next.is_none(), LAG);
        if let Some(next) = page.next {
            query.after = Some(next);
            self.leaving.push_front(query);
        }
        Ok(())
    }

    /// Sends a change as this view sees it.
    async fn tell(&mut self, change: &Change, out: &mut Vec<u8>) -> Result<(), Error> {
        if self.ahead.get(&change.object.record.key).is_some_and(|sent| change.seq <= *sent) {
            return Ok(());
        }
        let is = self.view.shows(&change.object.record)?;
        let was = match &change.previous {
            Some(previous) if self.left.has_reported(previous) => false,
            Some(previous) => {
                self.view.shows(previous)? || !is && self.view.allows(previous) && self.left.take_deletion(previous)?
            }
            None => false,
        };
        let kind = match (change.kind, was, is) {
            (ChangeKind::Deleted, was, is) if was || is => "DELETED",
            (ChangeKind::Added | ChangeKind::Modified, true, true) => "MODIFIED",
            (ChangeKind::Added | ChangeKind::Modified, false, true) => "ADDED",
            (ChangeKind::Added | ChangeKind::Modified, true, false) => "DELETED",
            _ => return Ok(()),
        };
        // As in kube-apiserver, DELETED for an object that no longer matches has its last matching state and the version of the change.
        let selected = match change.kind {
            ChangeKind::Added | ChangeKind::Modified if !is => self.index.state_before(change.seq).await?,
            _ => None,
        };
        if is && change.kind != ChangeKind::Deleted {
            self.left.restore(&change.object.record);
        }
        self.move_to(&change.object.record, change.seq);
        let version = self.position.encode();
        self.object(kind, selected.as_ref().unwrap_or(&change.object), &version, out)
    }

    /// Sets the position of the object's cluster to this change, unless the cluster has left the view.
    fn move_to(&mut self, record: &Record, seq: Seq) {
        if self.view.query(record.key.cluster()).is_some() {
            let cache_position = self.cache_position(seq);
            self.position.set(record.key.cluster().as_str(), &record.resource_version, cache_position);
        }
    }

    fn object(&mut self, kind: &str, object: &Object, version: &str, out: &mut Vec<u8>) -> Result<(), Error> {
        let cluster = object.record.key.cluster().as_str();
        let body = match self.events.shape {
            Shape::Objects(form) => mark(&object.body, cluster, Some(version), form)?,
            Shape::Table(table) => row(object, version, table, jiff::Timestamp::now().as_second())?,
        };
        self.events.append(kind, &body, version, out);
        Ok(())
    }

    /// Sends the watch's position. A client that resumes from it misses nothing, even if no event was sent for a
    /// long time.
    fn bookmark(&mut self, ends_initial: bool, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        if let Some(cache_position) = self.cache_position(self.follower.since()) {
            self.position.advance_to(&cache_position);
        }
        self.events.append_bookmark(&self.position.encode(), ends_initial, out)
    }
}

/// Never completes without a time.
async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Waits up to [`LAG`] until this replica of the cache reaches a sequence number.
pub(super) async fn reached(index: &Index, seq: Seq) -> Result<(), Error> {
    if seq.0 == 0 {
        return Ok(());
    }
    let mut follower = index.follow(Seq(seq.0.saturating_sub(1)));
    match tokio::time::timeout(LAG, follower.wait()).await {
        Ok(true) => Ok(()),
        Ok(false) | Err(_) => Err(Error::Expired),
    }
}

/// Completes when all clusters in view are collected, or after [`COLLECTED_WITHIN`]. None if all are.
fn collected(index: &Index, view: &View) -> Option<BoxFuture<'static, ()>> {
    let key = |cluster| CollectionKey::new(cluster, view.resource.clone());
    let mut missing: Vec<CollectionKey> = view.clusters(index).into_iter().map(key).collect();
    missing.retain(|key| view.incomplete_in(index, key.cluster.clone()).is_some_and(|part| part.heard_at.is_none()));
    if missing.is_empty() {
        return None;
    }
    let index = index.clone();
    Some(Box::pin(async move {
        let all = join_all(missing.iter().map(|key| index.wait_until_complete(key)));
        if tokio::time::timeout(COLLECTED_WITHIN, all).await.is_err() {
            tracing::debug!("the watch starts without clusters that are not collected yet");
        }
    }))
}

async fn wait(future: &mut Option<BoxFuture<'static, ()>>) {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
