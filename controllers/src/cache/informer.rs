//! Follows the cache and tells the loops what happens to what they collect. The one task that does.
//!
//! A collection is told whole once the cache follows it; from then on its changes are. A teller that fell behind the
//! cache's window tells everything again and has everything looked at, so that nothing is missed.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_index::{Follower, Happened, ListQuery, Object, RecordKey, Seq};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{CHUNK, Collection, World, Wrote, place, version_of};
use crate::Error;
use crate::cache::cached_object::{Cached, Change, Header, Old};
use crate::cache::pending_writes::{Heard, Key, Settled, Version};
use crate::runtime::dynamic_client::Resource;

/// How often writes of our own are looked for that the cache will never tell of.
const SETTLE: Duration = Duration::from_millis(200);
const RETRY: Duration = Duration::from_secs(1);

/// Who is told. Everything is told in order, by one task.
#[async_trait]
pub trait Listener: Send + Sync {
    /// Quick: it only puts keys into queues. Whoever keeps something of the objects takes it from here.
    async fn changed(&self, change: &Change) -> Result<(), Error>;

    /// A collection has been told again, because changes were missed: what is not in it went unnoticed.
    fn told_again(&self, cluster: &ClusterName, resource: &Resource, keys: &HashSet<Key>);

    /// Everything should be looked at, once more.
    fn look_at_everything(&self);
}

/// A collection that is being told whole.
struct Telling {
    collection: Arc<Collection>,
    query: ListQuery,
    /// Not the first time: the keys seen so far.
    again: Option<HashSet<Key>>,
}

pub struct Teller {
    world: World,
    wrote: mpsc::Receiver<Wrote>,
    telling: VecDeque<Telling>,
    settled: Instant,
}

impl Teller {
    pub(super) fn new(world: World, wrote: mpsc::Receiver<Wrote>) -> Self {
        Teller { world, wrote, telling: VecDeque::new(), settled: Instant::now() }
    }

    /// Tells until stopped; an error is the end of the cache.
    pub async fn run(mut self, listener: Arc<dyn Listener>, stop: CancellationToken) -> Result<(), String> {
        let inner = Arc::clone(&self.world.inner);
        let mut follower = inner.index.follow(Seq(inner.told.load(Ordering::Acquire)));
        let mut states = inner.index.states_version();
        let mut settle = tokio::time::interval(SETTLE);
        while !stop.is_cancelled() {
            if let Err(error) = self.turn(&mut follower, &*listener).await {
                tracing::error!(%error, "the cache cannot be read, everything will be told again");
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
                Some(wrote) = self.wrote.recv() => self.tell_own(wrote, &*listener).await,
                changes = follower.wait() => if !changes { return Err("the cache ended".to_owned()) },
                () = inner.added.notified() => {}
                changed = states.changed() => if changed.is_err() { return Err("the cache ended".to_owned()) },
                _ = settle.tick(), if waiting => {}
            }
        }
        Ok(())
    }

    /// Everything there is to do now, but of a collection told whole only a part.
    async fn turn(&mut self, follower: &mut Follower, listener: &dyn Listener) -> Result<(), Error> {
        while let Ok(wrote) = self.wrote.try_recv() {
            self.tell_own(wrote, listener).await;
        }
        match follower.ready_now() {
            Ok(changes) => {
                for change in &changes {
                    self.tell_change(change, listener).await?;
                }
                self.world.inner.told.store(follower.since().0, Ordering::Release);
            }
            Err(gone) => {
                tracing::warn!(%gone, "the controllers fell behind the cache, everything is told again");
                self.tell_again(follower);
            }
        }
        self.settle(listener).await?;
        self.find_untold();
        self.tell_some(listener).await
    }

    /// Starts over from here with everything that was told.
    fn tell_again(&mut self, follower: &mut Follower) {
        let inner = &self.world.inner;
        let from = inner.index.seq();
        follower.skip_to(from);
        // Changes were missed, so nothing decoded can be trusted.
        inner.decoded.forget(|_| true);
        inner.told.store(from.0, Ordering::Release);
        self.telling.clear();
        for collection in inner.collections.read().values() {
            if collection.telling.load(Ordering::Acquire) {
                self.telling.push_back(telling(collection, from, Some(HashSet::new())));
            }
        }
    }

    /// Collections the cache follows by now and that were never told.
    fn find_untold(&mut self) {
        let inner = &self.world.inner;
        for collection in inner.collections.read().values() {
            let untold = !collection.telling.load(Ordering::Acquire);
            if untold && inner.index.state(&collection.key).is_some_and(|state| state.is_fresh()) {
                self.telling.push_back(telling(collection, inner.index.seq(), None));
            }
        }
    }

    /// One page of the first collection that is being told whole.
    async fn tell_some(&mut self, listener: &dyn Listener) -> Result<(), Error> {
        let Some(mut telling) = self.telling.pop_front() else { return Ok(()) };
        let collection = Arc::clone(&telling.collection);
        let wanted = self.world.collection(&collection.key).is_some_and(|wanted| Arc::ptr_eq(&wanted, &collection));
        if !wanted {
            return Ok(());
        }
        let page = self.world.inner.index.page(&telling.query, CHUNK).await?;
        for object in &page.objects {
            let key = key_of(&object.record.key);
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
                listener.changed(&change).await?;
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
                if let Some(mut keys) = telling.again {
                    keys.extend(
                        self.world.inner.own.lock().of(&collection.key).into_keys().map(|key| Key::clone(&key)),
                    );
                    listener.told_again(&collection.key.cluster, &collection.resource, &keys);
                    if self.telling.is_empty() {
                        listener.look_at_everything();
                    }
                }
            }
        }
        Ok(())
    }

    /// A change of the cache.
    async fn tell_change(&self, change: &crowsnest_index::Change, listener: &dyn Listener) -> Result<(), Error> {
        let inner = &self.world.inner;
        let record = &change.object.record;
        let Some(collection) = self.world.collection(&record.key.collection) else { return Ok(()) };
        let deleted = change.happened == Happened::Deleted;
        let Some(object) = read(&change.object) else { return Ok(()) };
        let keep = collection.key.cluster.is_control_plane();
        let before = inner.decoded.tell(&record.key, change.seq, (!deleted).then_some(&object), keep);
        let key = key_of(&record.key);
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
        listener.changed(&change).await
    }

    /// A write of our own, before the cache hears of it.
    async fn tell_own(&self, wrote: Wrote, listener: &dyn Listener) {
        self.tell_wrote(wrote, listener).await;
        self.world.inner.untold.send_modify(|untold| *untold -= 1);
    }

    async fn tell_wrote(&self, wrote: Wrote, listener: &dyn Listener) {
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
        if let Err(error) = listener.changed(&change).await {
            tracing::error!(%error, "a write could not be told");
            listener.look_at_everything();
        }
    }

    /// Writes of our own that were dropped without a change of the cache: what it has now is told.
    async fn settle(&mut self, listener: &dyn Listener) -> Result<(), Error> {
        let (inner, now) = (&self.world.inner, Instant::now());
        if now - self.settled < SETTLE {
            return Ok(());
        }
        self.settled = now;
        let settled = inner.own.lock().settle(|collection| place(&inner.index, &inner.told, collection), now);
        for Settled { collection: key, key: named, version, shown, told } in settled {
            let Some(collection) = self.world.collection(&key) else { continue };
            let record = RecordKey { collection: key, namespace: named.0.into(), name: named.1.into() };
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
            listener.changed(&change).await?;
        }
        Ok(())
    }
}

/// From now on its changes are told, and up to here its objects.
fn telling(collection: &Arc<Collection>, from: Seq, again: Option<HashSet<Key>>) -> Telling {
    collection.from.store(from.0, Ordering::Release);
    collection.telling.store(true, Ordering::Release);
    let query = ListQuery::new(collection.key.cluster.clone(), collection.key.resource.clone());
    Telling { collection: Arc::clone(collection), query, again }
}

/// One object that cannot be read doesn't keep the others from being told.
fn read(object: &Object) -> Option<Cached> {
    let read = Cached::read(object);
    if let Err(error) = &read {
        tracing::warn!(%error, "left out");
    }
    read.ok()
}

fn key_of(key: &RecordKey) -> Key {
    (key.namespace.to_string(), key.name.to_string())
}
