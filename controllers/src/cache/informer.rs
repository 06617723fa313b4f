//! Informer: follows the global cache and dispatches changes of the collections that controllers requested. It is the only task
//! that does.
//!
//! A collection is dispatched in full once it is synced, then change by change. An informer that fell behind the window of the
//! cache dispatches all collections again and requests a full resync, so that no change is lost.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use crowsnest_apimachinery::names::{ClusterName, NamespacedName};
use crowsnest_index::{Follower, Happened, ListQuery, Object, RecordKey, Seq};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{CHUNK, Collection, World, Wrote, named, place, version_of};
use crate::Error;
use crate::cache::cached_object::{Cached, Change, Header, Old};
use crate::cache::pending_writes::{Heard, Settled, Version};
use crate::runtime::dynamic_client::Resource;

/// Period of the check for own writes that no collector will deliver.
const SETTLE: Duration = Duration::from_millis(200);
const RETRY: Duration = Duration::from_secs(1);

/// Receiver of changes, which one task dispatches in order.
#[async_trait]
pub trait EventHandler: Send + Sync {
    /// Handles a change. Must be quick: it enqueues keys and updates what handlers remember.
    async fn changed(&self, change: &Change) -> Result<(), Error>;

    /// Handles the end of a relist after missed changes: objects that are not in `keys` were deleted.
    fn retain(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<NamespacedName>);

    /// Requests a full resync.
    fn request_resync(&self);
}

/// A collection that is being dispatched in full.
struct Telling {
    collection: Arc<Collection>,
    query: ListQuery,
    /// Not the first time: the keys seen so far.
    again: Option<HashSet<NamespacedName>>,
}

pub struct Informer {
    world: World,
    wrote: mpsc::Receiver<Wrote>,
    telling: VecDeque<Telling>,
    settled: Instant,
}

impl Informer {
    pub(super) fn new(world: World, wrote: mpsc::Receiver<Wrote>) -> Self {
        Informer { world, wrote, telling: VecDeque::new(), settled: Instant::now() }
    }

    /// Dispatches until stopped. Fails when the cache ends.
    pub async fn run(mut self, handler: Arc<dyn EventHandler>, stop: CancellationToken) -> Result<(), String> {
        let inner = Arc::clone(&self.world.inner);
        let mut follower = inner.index.follow(*inner.told.borrow());
        let mut states = inner.index.states_version();
        let mut settle = tokio::time::interval(SETTLE);
        while !stop.is_cancelled() {
            if let Err(error) = self.turn(&mut follower, &*handler).await {
                tracing::error!(%error, "cannot read the cache; all collections are dispatched again");
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep(RETRY) => self.tell_again(&mut follower),
                }
            }
            if !self.telling.is_empty() {
                continue;
            }
            let waiting = !inner.own.lock().is_empty();
            tokio::select! {
                () = stop.cancelled() => break,
                Some(wrote) = self.wrote.recv() => self.tell_own(wrote, &*handler).await,
                changes = follower.wait() => if !changes { return Err("the cache ended".to_owned()) },
                () = inner.added.notified() => {}
                changed = states.changed() => if changed.is_err() { return Err("the cache ended".to_owned()) },
                _ = settle.tick(), if waiting => {}
            }
        }
        Ok(())
    }

    /// Dispatches all changes that are ready, and one page of a collection.
    async fn turn(&mut self, follower: &mut Follower, handler: &dyn EventHandler) -> Result<(), Error> {
        while let Ok(wrote) = self.wrote.try_recv() {
            self.tell_own(wrote, handler).await;
        }
        match follower.ready_now() {
            Ok(changes) => {
                for change in &changes {
                    self.tell_change(change, handler).await?;
                }
                self.world.inner.told.send_replace(follower.since());
            }
            Err(gone) => {
                tracing::warn!(%gone, "the informer fell behind the cache; all collections are dispatched again");
                self.tell_again(follower);
            }
        }
        self.settle(handler).await?;
        self.find_untold();
        self.tell_some(handler).await
    }

    /// Begins to dispatch all collections again.
    fn tell_again(&mut self, follower: &mut Follower) {
        let inner = &self.world.inner;
        let from = inner.index.seq();
        follower.skip_to(from);
        // Changes were missed, so nothing decoded can be trusted.
        inner.decoded.forget(|_| true);
        inner.told.send_replace(from);
        self.telling.clear();
        for collection in inner.collections.read().values() {
            if collection.telling.load(Ordering::Acquire) {
                self.telling.push_back(telling(collection, from, Some(HashSet::new())));
            }
        }
    }

    /// Finds collections that are synced and were never dispatched.
    fn find_untold(&mut self) {
        let inner = &self.world.inner;
        for collection in inner.collections.read().values() {
            let untold = !collection.telling.load(Ordering::Acquire);
            if untold && inner.index.state(&collection.key).is_some_and(|state| state.is_fresh()) {
                self.telling.push_back(telling(collection, inner.index.seq(), None));
            }
        }
    }

    /// Dispatches one page of the first collection that is being dispatched in full.
    async fn tell_some(&mut self, handler: &dyn EventHandler) -> Result<(), Error> {
        let Some(mut telling) = self.telling.pop_front() else { return Ok(()) };
        let collection = Arc::clone(&telling.collection);
        let wanted = self.world.collection(&collection.key).is_some_and(|wanted| Arc::ptr_eq(&wanted, &collection));
        if !wanted {
            return Ok(());
        }
        let page = self.world.inner.index.page(&telling.query, CHUNK).await?;
        for object in &page.objects {
            let key = named(&object.record.key);
            let Some(shown) = read(object) else { continue };
            if self.world.inner.own.lock().newer(&collection.key, &key, version_of(&shown)).is_none() {
                let change = Change {
                    cluster: collection.key.cluster.clone(),
                    resource: Arc::clone(&collection.resource),
                    old: None,
                    object: shown,
                    deleted: false,
                    initial: telling.again.is_none(),
                };
                handler.changed(&change).await?;
            }
            if let Some(keys) = &mut telling.again {
                keys.insert(key);
            }
        }
        match page.next {
            Some(next) => {
                telling.query.after = Some(next);
                self.telling.push_front(telling);
            }
            None => {
                collection.told.send_replace(true);
                self.world.inner.told.send_modify(|_| {});
                if let Some(mut keys) = telling.again {
                    keys.extend(
                        self.world
                            .inner
                            .own
                            .lock()
                            .of(&collection.key)
                            .into_keys()
                            .map(|key| NamespacedName::clone(&key)),
                    );
                    handler.retain(&collection.key.cluster, &collection.resource, &keys);
                    if self.telling.is_empty() {
                        handler.request_resync();
                    }
                }
            }
        }
        Ok(())
    }

    /// Dispatches a change of the cache.
    async fn tell_change(&self, change: &crowsnest_index::Change, handler: &dyn EventHandler) -> Result<(), Error> {
        let inner = &self.world.inner;
        let record = &change.object.record;
        let Some(collection) = self.world.collection(&record.key.collection) else { return Ok(()) };
        let deleted = change.happened == Happened::Deleted;
        let Some(object) = read(&change.object) else { return Ok(()) };
        let keep = collection.key.cluster.is_control_plane();
        let before = inner.decoded.tell(&record.key, change.seq, (!deleted).then_some(&object), keep);
        let key = named(&record.key);
        let heard = inner.own.lock().hear(&collection.key, &key, Version::of(&record.resource_version), deleted);
        let covered = Seq(collection.from.load(Ordering::Acquire)) >= change.seq;
        if covered || !collection.telling.load(Ordering::Acquire) {
            return Ok(());
        }
        let old = match heard {
            Heard::Told | Heard::Outdated => return Ok(()),
            Heard::News(Some(ours)) => Some(Old { header: ours.header(), object: Some(ours) }),
            Heard::News(None) => change.previous.as_deref().map(|previous| {
                let same = |before: &Cached| version_of(before) == Version::of(&previous.resource_version);
                Old { header: Header::from(previous), object: before.filter(same) }
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
        handler.changed(&change).await
    }

    /// Dispatches an own write before its collector delivers it.
    async fn tell_own(&self, wrote: Wrote, handler: &dyn EventHandler) {
        self.tell_wrote(wrote, handler).await;
        self.world.inner.untold.send_modify(|untold| *untold -= 1);
    }

    async fn tell_wrote(&self, wrote: Wrote, handler: &dyn EventHandler) {
        let Some(collection) = self.world.collection(&wrote.collection) else { return };
        if !collection.telling.load(Ordering::Acquire) {
            return;
        }
        let Some((object, before)) = self.world.inner.own.lock().tell(&wrote.collection, &wrote.key, wrote.version)
        else {
            return;
        };
        let change = Change {
            cluster: collection.key.cluster.clone(),
            resource: Arc::clone(&collection.resource),
            old: before.map(|before| Old { header: before.header(), object: Some(before) }),
            object,
            deleted: false,
            initial: false,
        };
        if let Err(error) = handler.changed(&change).await {
            tracing::error!(%error, "cannot dispatch an own write");
            handler.request_resync();
        }
    }

    /// Dispatches the current state of objects whose own writes were dropped without a change of the cache.
    async fn settle(&mut self, handler: &dyn EventHandler) -> Result<(), Error> {
        let (inner, now) = (&self.world.inner, Instant::now());
        if now - self.settled < SETTLE {
            return Ok(());
        }
        self.settled = now;
        let settled = inner.own.lock().settle(|collection| place(&inner.index, &inner.told, collection), now);
        for Settled { collection: key, key: named, version, shown, told } in settled {
            let Some(collection) = self.world.collection(&key) else { continue };
            let record = RecordKey { collection: key, namespace: named.namespace.into(), name: named.name.into() };
            let stored = inner.index.get(&record).await?;
            let same = |stored: &Object| Version::of(&stored.record.resource_version) == version;
            let object = match (&stored, &shown) {
                (Some(stored), _) if told && same(stored) => continue,
                (Some(stored), _) => match read(stored) {
                    Some(object) => object,
                    None => continue,
                },
                (None, Some(shown)) => shown.clone(),
                (None, None) => continue,
            };
            let change = Change {
                cluster: collection.key.cluster.clone(),
                resource: Arc::clone(&collection.resource),
                old: shown.map(|shown| Old { header: shown.header(), object: Some(shown) }),
                object,
                deleted: stored.is_none(),
                initial: false,
            };
            handler.changed(&change).await?;
        }
        Ok(())
    }
}

/// Begins to dispatch a collection: objects up to `from`, changes after it.
fn telling(collection: &Arc<Collection>, from: Seq, again: Option<HashSet<NamespacedName>>) -> Telling {
    collection.from.store(from.0, Ordering::Release);
    collection.telling.store(true, Ordering::Release);
    let query = ListQuery::new(collection.key.cluster.clone(), collection.key.resource.clone());
    Telling { collection: Arc::clone(collection), query, again }
}

/// Skips an object that cannot be decoded.
fn read(object: &Object) -> Option<Cached> {
    let read = Cached::read(object);
    if let Err(error) = &read {
        tracing::warn!(%error, "cannot decode an object");
    }
    read.ok()
}
