//! Informer: follows the global cache and dispatches changes of the collections that controllers requested. It is the
//! only task that dispatches.
//!
//! A collection is dispatched completely once it is synced, then change by change. If the informer falls behind the
//! retained changes of the cache, it dispatches all collections again and requests a full resync, so that no change
//! is lost.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_index::{ChangeKind, Follower, ListQuery, Object, RecordKey, Seq};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Cache, Collection, OwnWrite, PAGE_SIZE, collection_progress, namespaced_name, version_of};
use crate::Error;
use crate::cache::cached_object::{CachedObject, Change, Header, PreviousObject};
use crate::cache::pending_writes::{DispatchDecision, DroppedWrite, Version};
use crate::runtime::dynamic_client::Resource;

/// Period of the check for own writes that will not be delivered by a collector.
const CLEANUP_INTERVAL: Duration = Duration::from_millis(200);
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Receiver of changes, which are dispatched in order by a single task.
#[async_trait]
pub trait EventHandler: Send + Sync {
    /// Handles a change. Must not block: it enqueues keys and updates in-memory state.
    async fn on_change(&self, change: &Change) -> Result<(), Error>;

    /// Handles the end of a relist: objects that are not in `keys` were deleted.
    fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>);

    /// Requests a full resync.
    fn request_resync(&self);
}

/// A collection that is being dispatched completely.
struct CollectionDispatch {
    collection: Arc<Collection>,
    query: ListQuery,
    /// Keys dispatched so far, if the collection is dispatched again. `None` for the first time.
    dispatched_keys: Option<HashSet<NamespacedName>>,
}

pub struct Informer {
    cache: Cache,
    own_writes: mpsc::Receiver<OwnWrite>,
    dispatching: VecDeque<CollectionDispatch>,
    cleaned_up_at: Instant,
    /// True if collections must be searched for those to dispatch: one was added, or the state of one changed.
    is_search_due: bool,
}

impl Informer {
    pub(super) fn new(cache: Cache, own_writes: mpsc::Receiver<OwnWrite>) -> Self {
        Informer { cache, own_writes, dispatching: VecDeque::new(), cleaned_up_at: Instant::now(), is_search_due: true }
    }

    /// Dispatches until stopped. Fails if the cache ends.
    pub async fn run(mut self, handler: Arc<dyn EventHandler>, stop: CancellationToken) -> Result<(), String> {
        let inner = Arc::clone(&self.cache.inner);
        let mut follower = inner.global_cache.follow(*inner.dispatched_seq.borrow());
        let mut states = inner.global_cache.states_version();
        let mut cleanup_interval = tokio::time::interval(CLEANUP_INTERVAL);
        while !stop.is_cancelled() {
            if let Err(error) = self.dispatch_pending(&mut follower, &*handler).await {
                tracing::error!(%error, "cannot read the cache; all collections are dispatched again");
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep(RETRY_DELAY) => self.restart_dispatch(&mut follower),
                }
            }
            if !self.dispatching.is_empty() {
                continue;
            }
            let has_pending_writes = !inner.pending_writes.lock().is_empty();
            tokio::select! {
                () = stop.cancelled() => break,
                Some(own_write) = self.own_writes.recv() => self.dispatch_own_write(own_write, &*handler).await,
                changes = follower.wait() => if !changes { return Err("the cache ended".to_owned()) },
                () = inner.collection_added.notified() => self.is_search_due = true,
                changed = states.changed() => {
                    if changed.is_err() {
                        return Err("the cache ended".to_owned());
                    }
                    self.is_search_due = true;
                }
                _ = cleanup_interval.tick(), if has_pending_writes => {}
            }
        }
        Ok(())
    }

    /// Dispatches all own writes and changes that are ready, and one page of a collection.
    async fn dispatch_pending(&mut self, follower: &mut Follower, handler: &dyn EventHandler) -> Result<(), Error> {
        while let Ok(own_write) = self.own_writes.try_recv() {
            self.dispatch_own_write(own_write, handler).await;
        }
        match follower.ready_now() {
            Ok(changes) => {
                for change in &changes {
                    self.dispatch_change(change, handler).await?;
                }
                self.cache.inner.dispatched_seq.send_replace(follower.since());
            }
            Err(error) => {
                tracing::warn!(%error, "the informer fell behind the cache; all collections are dispatched again");
                self.restart_dispatch(follower);
            }
        }
        self.dispatch_dropped(handler).await?;
        // Not for each change: a large fleet has thousands of collections.
        if std::mem::take(&mut self.is_search_due) {
            self.find_undispatched();
        }
        self.dispatch_page(handler).await
    }

    /// Starts dispatching all collections again.
    fn restart_dispatch(&mut self, follower: &mut Follower) {
        let inner = &self.cache.inner;
        let from = inner.global_cache.seq();
        follower.skip_to(from);
        // Changes were missed, so decoded objects can be outdated.
        inner.decoded.remove_matching(|_| true);
        inner.dispatched_seq.send_replace(from);
        self.dispatching.clear();
        for collection in inner.collections.read().values() {
            if collection.dispatching.load(Ordering::Acquire) {
                self.dispatching.push_back(start_dispatch(collection, from, Some(HashSet::new())));
            }
        }
    }

    /// Starts dispatching synced collections that were never dispatched.
    fn find_undispatched(&mut self) {
        let inner = &self.cache.inner;
        for collection in inner.collections.read().values() {
            let is_undispatched = !collection.dispatching.load(Ordering::Acquire);
            if is_undispatched && inner.global_cache.state(&collection.key).is_some_and(|state| state.is_fresh()) {
                self.dispatching.push_back(start_dispatch(collection, inner.global_cache.seq(), None));
            }
        }
    }

    /// Dispatches one page of the first collection that is being dispatched completely.
    async fn dispatch_page(&mut self, handler: &dyn EventHandler) -> Result<(), Error> {
        let Some(mut dispatching) = self.dispatching.pop_front() else { return Ok(()) };
        let collection = Arc::clone(&dispatching.collection);
        let is_requested =
            self.cache.collection(&collection.key).is_some_and(|current| Arc::ptr_eq(&current, &collection));
        if !is_requested {
            return Ok(());
        }
        let page = self.cache.inner.global_cache.page(&dispatching.query, PAGE_SIZE).await?;
        for object in &page.objects {
            let key = namespaced_name(&object.record.key);
            let Some(cached) = decode_object(object) else { continue };
            if self.cache.inner.pending_writes.lock().newer(&collection.key, &key, version_of(&cached)).is_none() {
                let change = Change {
                    cluster: collection.key.cluster.clone(),
                    resource: Arc::clone(&collection.resource),
                    old: None,
                    object: cached,
                    deleted: false,
                    initial: dispatching.dispatched_keys.is_none(),
                };
                handler.on_change(&change).await?;
            }
            if let Some(keys) = &mut dispatching.dispatched_keys {
                keys.insert(key);
            }
        }
        match page.next {
            Some(next) => {
                dispatching.query.after = Some(next);
                self.dispatching.push_front(dispatching);
            }
            None => {
                collection.dispatched.send_replace(true);
                self.cache.inner.dispatched_seq.send_modify(|_| {});
                if let Some(mut keys) = dispatching.dispatched_keys {
                    keys.extend(
                        self.cache
                            .inner
                            .pending_writes
                            .lock()
                            .in_collection(&collection.key)
                            .into_keys()
                            .map(|key| NamespacedName::clone(&key)),
                    );
                    handler.retain(&collection.key.cluster, &collection.resource, &keys);
                    if self.dispatching.is_empty() {
                        handler.request_resync();
                    }
                }
            }
        }
        Ok(())
    }

    /// Dispatches a change of the cache.
    async fn dispatch_change(&self, change: &crowsnest_index::Change, handler: &dyn EventHandler) -> Result<(), Error> {
        let inner = &self.cache.inner;
        let record = &change.object.record;
        let Some(collection) = self.cache.collection(&record.key.collection) else { return Ok(()) };
        let deleted = change.kind == ChangeKind::Deleted;
        let Some(object) = decode_object(&change.object) else { return Ok(()) };
        let keep = collection.key.cluster.is_control_plane();
        let before = inner.decoded.update(&record.key, change.seq, (!deleted).then_some(&object), keep);
        let key = namespaced_name(&record.key);
        let decision = inner.pending_writes.lock().decide_dispatch(
            &collection.key,
            &key,
            Version::parse(&record.resource_version),
            deleted,
        );
        let is_covered = Seq(collection.covered_seq.load(Ordering::Acquire)) >= change.seq;
        if is_covered || !collection.dispatching.load(Ordering::Acquire) {
            return Ok(());
        }
        let old = match decision {
            DispatchDecision::AlreadyDispatched | DispatchDecision::Outdated => return Ok(()),
            DispatchDecision::Dispatch(Some(write)) => {
                Some(PreviousObject { header: write.header(), object: Some(write) })
            }
            DispatchDecision::Dispatch(None) => change.previous.as_deref().map(|previous| {
                let is_same = |before: &CachedObject| version_of(before) == Version::parse(&previous.resource_version);
                PreviousObject { header: Header::from(previous), object: before.filter(is_same) }
            }),
        };
        let change = Change {
            cluster: collection.key.cluster.clone(),
            resource: Arc::clone(&collection.resource),
            old,
            object,
            deleted,
            initial: false,
        };
        handler.on_change(&change).await
    }

    /// Dispatches a write of this process before its collector delivers it.
    async fn dispatch_own_write(&self, own_write: OwnWrite, handler: &dyn EventHandler) {
        self.dispatch_pending_write(own_write, handler).await;
        self.cache.inner.undispatched.send_modify(|undispatched| *undispatched -= 1);
    }

    async fn dispatch_pending_write(&self, own_write: OwnWrite, handler: &dyn EventHandler) {
        let Some(collection) = self.cache.collection(&own_write.collection) else { return };
        if !collection.dispatching.load(Ordering::Acquire) {
            return;
        }
        let Some((object, before)) =
            self.cache.inner.pending_writes.lock().dispatch(&own_write.collection, &own_write.key, own_write.version)
        else {
            return;
        };
        let change = Change {
            cluster: collection.key.cluster.clone(),
            resource: Arc::clone(&collection.resource),
            old: before.map(|before| PreviousObject { header: before.header(), object: Some(before) }),
            object,
            deleted: false,
            initial: false,
        };
        if let Err(error) = handler.on_change(&change).await {
            tracing::error!(%error, "cannot dispatch a write of this process");
            handler.request_resync();
        }
    }

    /// Dispatches the current state of objects whose own writes were dropped without a change in the cache.
    async fn dispatch_dropped(&mut self, handler: &dyn EventHandler) -> Result<(), Error> {
        let (inner, now) = (&self.cache.inner, Instant::now());
        if now - self.cleaned_up_at < CLEANUP_INTERVAL {
            return Ok(());
        }
        self.cleaned_up_at = now;
        let dropped = inner.pending_writes.lock().drop_completed(
            |collection| collection_progress(&inner.global_cache, &inner.dispatched_seq, collection),
            now,
        );
        for DroppedWrite { collection: key, key: name, version, last_dispatched, is_own_write } in dropped {
            let Some(collection) = self.cache.collection(&key) else { continue };
            let record = RecordKey { collection: key, namespace: name.namespace.into(), name: name.name.into() };
            let stored = inner.global_cache.get(&record).await?;
            let is_same = |stored: &Object| Version::parse(&stored.record.resource_version) == version;
            let object = match (&stored, &last_dispatched) {
                (Some(stored), _) if is_own_write && is_same(stored) => continue,
                (Some(stored), _) => match decode_object(stored) {
                    Some(object) => object,
                    None => continue,
                },
                (None, Some(last)) => last.clone(),
                (None, None) => continue,
            };
            let change = Change {
                cluster: collection.key.cluster.clone(),
                resource: Arc::clone(&collection.resource),
                old: last_dispatched.map(|last| PreviousObject { header: last.header(), object: Some(last) }),
                object,
                deleted: stored.is_none(),
                initial: false,
            };
            handler.on_change(&change).await?;
        }
        Ok(())
    }
}

/// Starts dispatching a collection: objects up to `from`, later changes one by one.
fn start_dispatch(
    collection: &Arc<Collection>,
    from: Seq,
    dispatched_keys: Option<HashSet<NamespacedName>>,
) -> CollectionDispatch {
    collection.covered_seq.store(from.0, Ordering::Release);
    collection.dispatching.store(true, Ordering::Release);
    let query = ListQuery::new(collection.key.cluster.clone(), collection.key.resource.clone());
    CollectionDispatch { collection: Arc::clone(collection), query, dispatched_keys }
}

/// Decodes an object. An object that cannot be decoded is logged and skipped.
fn decode_object(object: &Object) -> Option<CachedObject> {
    let decoded = CachedObject::from_stored(object);
    if let Err(error) = &decoded {
        tracing::warn!(%error, "cannot decode an object");
    }
    decoded.ok()
}
