//! Writes of this process that collectors have not delivered yet.
//!
//! Reads must reflect the writes of this process. The response to a write is kept here and takes precedence over an
//! older record until all changes up to its version have been dispatched. Versions within a collection are compared
//! as numbers; other versions are not kept.
//!
//! Limited in bytes and age. Dropping an entry early can cause a conflict, but no wrong write, because every write
//! names the version that it is based on.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_index::{CollectionKey, Seq};
use tokio::time::Instant;

use crate::cache::cached_object::CachedObject;

/// Maximum age. If a collector has not delivered a write for so long, it is disconnected, or the member's versions
/// were reset.
const MAX_AGE: Duration = Duration::from_secs(30);

/// Pending writes of one collection, for a reader.
pub type PendingObjects = BTreeMap<Arc<NamespacedName>, (Version, CachedObject)>;

/// A resourceVersion as a number. 0 is older than all others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    pub fn parse(resource_version: &str) -> Self {
        Version(resource_version.parse().unwrap_or_default())
    }
}

struct Entry {
    object: CachedObject,
    version: Version,
    bytes: usize,
    since: Instant,
    /// The previous object, for event handlers.
    previous: Option<CachedObject>,
    dispatched: bool,
    /// Change after whose dispatch the entry is obsolete, because everything up to `version` has then been dispatched.
    /// `None` until the collector has reached `version`.
    obsolete_after: Option<Seq>,
}

/// Progress of a collection when an object is added.
#[derive(Debug, Clone, Copy)]
pub struct CollectionProgress {
    /// Version that the collector has reached. Must be read before `latest`.
    pub position: Version,
    /// The newest change in the cache. All changes up to `position` are at or before it.
    pub latest: Seq,
    /// The newest dispatched change.
    pub dispatched: Seq,
}

/// Decision whether a change from the cache is dispatched.
#[derive(Debug)]
pub enum DispatchDecision {
    /// The change is dispatched: there is no pending write, or it is older. Contains the dispatched write, if any, which
    /// is then the previous object.
    Dispatch(Option<CachedObject>),
    /// The change was already dispatched as a write.
    AlreadyDispatched,
    /// A newer write is pending.
    Outdated,
}

/// A write that was dropped before the cache dispatched the object.
#[derive(Debug)]
pub struct DroppedWrite {
    pub collection: CollectionKey,
    pub key: NamespacedName,
    pub version: Version,
    /// The version that event handlers received last.
    pub last_dispatched: Option<CachedObject>,
    /// True if `last_dispatched` is a write of this process.
    pub is_own_write: bool,
}

/// All pending writes.
pub struct PendingWrites {
    collections: HashMap<CollectionKey, BTreeMap<Arc<NamespacedName>, Entry>>,
    order: VecDeque<(CollectionKey, NamespacedName, Version)>,
    bytes: usize,
    max_bytes: usize,
}

impl PendingWrites {
    pub fn new(max_bytes: usize) -> Self {
        PendingWrites { collections: HashMap::new(), order: VecDeque::new(), bytes: 0, max_bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.collections.is_empty()
    }

    /// Adds the response to a write. Returns false if the entry is not needed, because everything up to its version has
    /// been dispatched or a newer write is pending. `before` is the object that readers saw so far.
    pub fn add(
        &mut self,
        collection: &CollectionKey,
        key: NamespacedName,
        (object, version, bytes): (CachedObject, Version, usize),
        progress: CollectionProgress,
        before: impl FnOnce() -> Option<CachedObject>,
        now: Instant,
    ) -> bool {
        let obsolete_after = (progress.position >= version).then_some(progress.latest);
        let pending = self.collections.get(collection).and_then(|entries| entries.get(&key));
        if version == Version::default()
            || obsolete_after.is_some_and(|seq| seq <= progress.dispatched)
            || pending.is_some_and(|pending| pending.version >= version)
        {
            return false;
        }
        let previous = match self.remove(collection, &key) {
            Some(replaced) if replaced.dispatched => Some(replaced.object),
            Some(replaced) => replaced.previous,
            None => before(),
        };
        self.bytes += bytes;
        self.order.push_back((collection.clone(), key.clone(), version));
        let entry = Entry { object, version, bytes, since: now, previous, dispatched: false, obsolete_after };
        self.collections.entry(collection.clone()).or_default().insert(Arc::new(key), entry);
        while self.bytes > self.max_bytes && self.drop_oldest() {}
        true
    }

    fn remove(&mut self, collection: &CollectionKey, key: &NamespacedName) -> Option<Entry> {
        let entries = self.collections.get_mut(collection)?;
        let entry = entries.remove(key)?;
        if entries.is_empty() {
            self.collections.remove(collection);
        }
        self.bytes -= entry.bytes;
        Some(entry)
    }

    fn drop_oldest(&mut self) -> bool {
        let Some((collection, key, version)) = self.order.pop_front() else { return false };
        if self.collections.get(&collection).and_then(|entries| entries.get(&key)).is_some_and(|e| e.version == version)
        {
            drop(self.remove(&collection, &key));
        }
        true
    }

    /// The pending write of an object, if it is newer than the record.
    pub fn newer(&self, collection: &CollectionKey, key: &NamespacedName, record: Version) -> Option<CachedObject> {
        let entry = self.collections.get(collection)?.get(key)?;
        (entry.version > record).then(|| entry.object.clone())
    }

    /// All pending writes of a collection.
    pub fn in_collection(&self, collection: &CollectionKey) -> PendingObjects {
        let entries = self.collections.get(collection).into_iter().flatten();
        entries.map(|(key, entry)| (Arc::clone(key), (entry.version, entry.object.clone()))).collect()
    }

    /// Marks a write as dispatched, once. Returns it with the previous object. `None` if the collector's change
    /// arrived first.
    pub fn dispatch(
        &mut self,
        collection: &CollectionKey,
        key: &NamespacedName,
        version: Version,
    ) -> Option<(CachedObject, Option<CachedObject>)> {
        let entry = self.collections.get_mut(collection)?.get_mut(key)?;
        if entry.version != version || entry.dispatched {
            return None;
        }
        entry.dispatched = true;
        Some((entry.object.clone(), entry.previous.take()))
    }

    /// Decides whether a change from the cache is dispatched, and drops the pending write of its version or an older
    /// one. A deletion detected by a list has the object's last version, so it is a new change even if that
    /// version was dispatched.
    pub fn decide_dispatch(
        &mut self,
        collection: &CollectionKey,
        key: &NamespacedName,
        version: Version,
        deleted: bool,
    ) -> DispatchDecision {
        let Some(entry) = self.collections.get(collection).and_then(|entries| entries.get(key)) else {
            return DispatchDecision::Dispatch(None);
        };
        if entry.version > version {
            return DispatchDecision::Outdated;
        }
        let is_same = entry.version == version && !deleted;
        match self.remove(collection, key) {
            Some(entry) if entry.dispatched && is_same => DispatchDecision::AlreadyDispatched,
            Some(entry) if entry.dispatched => DispatchDecision::Dispatch(Some(entry.object)),
            _ => DispatchDecision::Dispatch(None),
        }
    }

    /// Drops and returns writes that are too old, or that are obsolete although the collector delivered no change of the
    /// object. Readers now see the object of the cache, so the caller must dispatch it. `progress_of` reads the progress
    /// of a collection; it is called once for each.
    pub fn drop_completed(
        &mut self,
        progress_of: impl Fn(&CollectionKey) -> CollectionProgress,
        now: Instant,
    ) -> Vec<DroppedWrite> {
        let mut completed = Vec::new();
        for (collection, entries) in &mut self.collections {
            let progress = progress_of(collection);
            for (key, entry) in entries.iter_mut() {
                if entry.obsolete_after.is_none() && progress.position >= entry.version {
                    entry.obsolete_after = Some(progress.latest);
                }
                if entry.obsolete_after.is_some_and(|seq| seq <= progress.dispatched) || now - entry.since > MAX_AGE {
                    completed.push((collection.clone(), NamespacedName::clone(key)));
                }
            }
        }
        let mut dropped = Vec::with_capacity(completed.len());
        for (collection, key) in completed {
            let entry = self.remove(&collection, &key);
            dropped.extend(entry.map(|entry| DroppedWrite {
                collection,
                key,
                version: entry.version,
                last_dispatched: if entry.dispatched { Some(entry.object) } else { entry.previous },
                is_own_write: entry.dispatched,
            }));
        }
        let collections = &self.collections;
        let is_current = |(collection, key, version): &(CollectionKey, NamespacedName, Version)| {
            collections.get(collection).and_then(|entries| entries.get(key)).is_some_and(|e| e.version == *version)
        };
        while self.order.front().is_some_and(|first| !is_current(first)) {
            self.order.pop_front();
        }
        dropped
    }

    pub fn forget(&mut self, collection: &CollectionKey) {
        for entry in self.collections.remove(collection).into_iter().flat_map(BTreeMap::into_values) {
            self.bytes -= entry.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::{ClusterName, Gvr};
    use proptest::prelude::*;
    use serde_json::json;

    fn things() -> CollectionKey {
        CollectionKey::new(ClusterName::control_plane(), Gvr::new("", "v1", "things"))
    }

    fn key() -> NamespacedName {
        NamespacedName::cluster_scoped("a")
    }

    fn object(version: u64) -> CachedObject {
        CachedObject::from_response(json!({"metadata": {"name": "a", "resourceVersion": version.to_string()}}))
    }

    /// Events that can happen in any order: this process or others write the object at the API server, or delete it;
    /// the response to the oldest own write arrives; the collector processes an event; the informer dispatches a
    /// change; completed writes are dropped; the watch is replaced by a list.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        OwnWrite,
        ForeignWrite,
        Delete,
        Respond,
        Collect,
        Dispatch,
        DropCompleted,
        Relist,
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Event {
        version: u64,
        exists: bool,
    }

    /// One object, from the API server to the readers.
    struct Model {
        version: u64,
        server: Option<u64>,
        responses: VecDeque<u64>,
        watched: VecDeque<Event>,
        stored: Option<u64>,
        position: u64,
        /// Changes by sequence number.
        tail: Vec<Event>,
        dispatched: usize,
        last_dispatched: Option<u64>,
        /// The newest version with a known response, and the version of the last deletion.
        newest_response: u64,
        deleted_at: u64,
        writes: PendingWrites,
        now: Instant,
    }

    impl Model {
        fn progress(&self) -> CollectionProgress {
            let (latest, dispatched) = (Seq(self.tail.len() as u64), Seq(self.dispatched as u64));
            CollectionProgress { position: Version(self.position), latest, dispatched }
        }

        fn write(&mut self) -> u64 {
            self.version += 1;
            self.server = Some(self.version);
            self.watched.push_back(Event { version: self.version, exists: true });
            self.version
        }

        fn store(&mut self, event: Event) {
            let new = event.exists.then_some(event.version);
            if self.stored != new {
                self.stored = new;
                self.tail.push(event);
            }
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::OwnWrite => {
                    let version = self.write();
                    self.responses.push_back(version);
                }
                Step::ForeignWrite => drop(self.write()),
                Step::Delete if self.server.is_some() => {
                    self.version += 1;
                    self.server = None;
                    self.deleted_at = self.version;
                    self.watched.push_back(Event { version: self.version, exists: false });
                }
                Step::Respond => {
                    let Some(version) = self.responses.pop_front() else { return };
                    self.newest_response = self.newest_response.max(version);
                    let progress = self.progress();
                    let before = self.last_dispatched.map(object);
                    let written = (object(version), Version(version), 1);
                    if self.writes.add(&things(), key(), written, progress, || before, self.now)
                        && let Some((now, _)) = self.writes.dispatch(&things(), &key(), Version(version))
                    {
                        self.last_dispatched = Some(crate::cache::version_of(&now).0);
                    }
                }
                Step::Collect => {
                    let Some(event) = self.watched.pop_front() else { return };
                    self.store(event);
                    self.position = event.version;
                }
                Step::Relist => {
                    self.watched.clear();
                    match self.server {
                        Some(version) => self.store(Event { version, exists: true }),
                        // A list does not show when a missing object was deleted.
                        None => self.store(Event { version: self.stored.unwrap_or_default(), exists: false }),
                    }
                    self.position = self.version;
                }
                Step::Dispatch => {
                    let Some(event) = self.tail.get(self.dispatched).copied() else { return };
                    match self.writes.decide_dispatch(&things(), &key(), Version(event.version), !event.exists) {
                        DispatchDecision::Dispatch(_) => self.last_dispatched = event.exists.then_some(event.version),
                        DispatchDecision::AlreadyDispatched => assert_eq!(self.last_dispatched, Some(event.version)),
                        DispatchDecision::Outdated => {}
                    }
                    self.dispatched += 1;
                }
                Step::DropCompleted => {
                    let progress = self.progress();
                    for dropped in self.writes.drop_completed(|_| progress, self.now) {
                        let version = dropped.last_dispatched.as_ref().map(|object| crate::cache::version_of(object).0);
                        assert_eq!(version, self.last_dispatched);
                        self.last_dispatched = self.stored;
                    }
                }
                Step::Delete => {}
            }
        }

        /// The object as a reader sees it.
        fn read(&self) -> Option<u64> {
            let write = self.writes.newer(&things(), &key(), Version(self.stored.unwrap_or_default()));
            write.map(|write| crate::cache::version_of(&write).0).or(self.stored)
        }
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => Just(Step::OwnWrite), 1 => Just(Step::ForeignWrite), 1 => Just(Step::Delete), 3 => Just(Step::Respond),
            4 => Just(Step::Collect), 4 => Just(Step::Dispatch), 1 => Just(Step::DropCompleted), 1 => Just(Step::Relist),
        ];
        proptest::collection::vec(step, 1..60)
    }

    /// Readers never see an older state than this process wrote, unless the object was deleted since. For every order
    /// of events, readers and handlers finally see the API server's state, and no write stays pending.
    fn check(steps: &[Step]) -> Result<(), TestCaseError> {
        let mut model = Model {
            version: 0,
            server: None,
            responses: VecDeque::new(),
            watched: VecDeque::new(),
            stored: None,
            position: 0,
            tail: Vec::new(),
            dispatched: 0,
            last_dispatched: None,
            newest_response: 0,
            deleted_at: 0,
            writes: PendingWrites::new(1 << 20),
            now: Instant::now(),
        };
        for step in steps {
            model.step(*step);
            let seen = model.read().unwrap_or_default();
            prop_assert!(seen >= model.newest_response || model.deleted_at > model.newest_response, "{step:?}: {seen}");
        }
        for step in [Step::Respond, Step::Collect, Step::Dispatch, Step::DropCompleted] {
            (0..100).for_each(|_| model.step(step));
        }
        prop_assert_eq!((model.read(), model.last_dispatched), (model.server, model.server));
        prop_assert!(model.writes.is_empty());
        Ok(())
    }

    /// The own write is dispatched, and then the deletion that was detected by a list.
    #[test]
    fn deletion_detected_by_a_list_is_dispatched() {
        use Step::{Collect, Delete, Dispatch, OwnWrite, Relist, Respond};
        check(&[OwnWrite, Collect, Delete, Relist, Dispatch, Respond]).unwrap();
        check(&[OwnWrite, OwnWrite, Collect, Collect, Delete, Relist, Dispatch, Dispatch]).unwrap();
    }

    proptest! {
        #[test]
        fn readers_see_own_writes_and_converge(steps in steps()) {
            check(&steps)?;
        }
    }

    #[test]
    fn size_and_age_are_limited() {
        let (mut writes, now) = (PendingWrites::new(10), Instant::now());
        let progress = CollectionProgress { position: Version(0), latest: Seq(0), dispatched: Seq(0) };
        for n in 1..=20 {
            writes.add(
                &things(),
                NamespacedName::cluster_scoped(n.to_string()),
                (object(n), Version(n), 1),
                progress,
                || None,
                now,
            );
        }
        assert_eq!((writes.bytes, writes.in_collection(&things()).len()), (10, 10));
        assert!(writes.newer(&things(), &NamespacedName::cluster_scoped("20"), Version(0)).is_some());
        assert_eq!(writes.drop_completed(|_| progress, now + MAX_AGE + Duration::from_secs(1)).len(), 10);
        assert!(writes.is_empty() && writes.bytes == 0 && writes.order.is_empty());
        let opaque = (object(1), Version::parse("not a number"), 1);
        assert!(
            !writes.add(&things(), key(), opaque, progress, || None, now),
            "versions that are not numbers are not kept"
        );
    }
}
