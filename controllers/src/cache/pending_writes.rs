//! Writes of this process that the collectors have not delivered yet.
//!
//! A reader must see what this process wrote. The response to a write is kept here and wins over an older record until all
//! changes up to its version have been dispatched. Versions within a collection are compared as numbers; others are never kept.
//!
//! Bounded in bytes and age. An entry that is dropped early costs a conflict, never a wrong write, because every write names the
//! version that it was made for.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crowsnest_apimachinery::names::NamespacedName;
use crowsnest_index::{CollectionKey, Seq};
use tokio::time::Instant;

use crate::cache::cached_object::Cached;

/// A collector that has not heard of a write after so long is cut off, or the member's versions were set back.
const LONGEST: Duration = Duration::from_secs(30);

/// Of one collection, for a reader.
pub type Ours = BTreeMap<Arc<NamespacedName>, (Version, Cached)>;

/// A resourceVersion, as far as our own are compared. 0 is older than any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    pub fn of(resource_version: &str) -> Self {
        Version(resource_version.parse().unwrap_or_default())
    }
}

struct Entry {
    object: Cached,
    version: Version,
    bytes: usize,
    since: Instant,
    /// What readers had before, for the handlers.
    previous: Option<Cached>,
    dispatched: bool,
    /// Once known: when this has been dispatched, so has everything up to the version.
    until: Option<Seq>,
}

/// How far a collection has come, as seen by whoever put an object in.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The collector's position, read first.
    pub position: Version,
    /// The newest change of the cache, read second: everything up to `position` is at or before it.
    pub latest: Seq,
    /// The newest change that has been dispatched.
    pub dispatched: Seq,
}

/// What a change heard by the cache is, compared with our own.
#[derive(Debug)]
pub enum Heard {
    /// Nothing of ours is there, or it is older. What it was is the old one.
    News(Option<Cached>),
    /// The handlers know it already.
    Dispatched,
    /// We have written something newer since.
    Outdated,
}

/// A write that was dropped before the cache dispatched the object.
#[derive(Debug)]
pub struct Settled {
    pub collection: CollectionKey,
    pub key: NamespacedName,
    pub version: Version,
    /// The version the handlers know.
    pub shown: Option<Cached>,
    /// Whether that is our own.
    pub dispatched: bool,
}

/// All kept writes.
pub struct Own {
    collections: HashMap<CollectionKey, BTreeMap<Arc<NamespacedName>, Entry>>,
    order: VecDeque<(CollectionKey, NamespacedName, Version)>,
    bytes: usize,
    max_bytes: usize,
}

impl Own {
    pub fn new(max_bytes: usize) -> Self {
        Own { collections: HashMap::new(), order: VecDeque::new(), bytes: 0, max_bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.collections.is_empty()
    }

    /// Keeps the answer to a write; false when the cache is as far already. `before` is what readers had so far.
    pub fn put(
        &mut self,
        collection: &CollectionKey,
        key: NamespacedName,
        (object, version, bytes): (Cached, Version, usize),
        place: Place,
        before: impl FnOnce() -> Option<Cached>,
        now: Instant,
    ) -> bool {
        let until = (place.position >= version).then_some(place.latest);
        let known = self.collections.get(collection).and_then(|entries| entries.get(&key));
        if version == Version::default()
            || until.is_some_and(|until| until <= place.dispatched)
            || known.is_some_and(|known| known.version >= version)
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
        let entry = Entry { object, version, bytes, since: now, previous, dispatched: false, until };
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

    /// Our own version of an object, if it is newer than the record's.
    pub fn newer(&self, collection: &CollectionKey, key: &NamespacedName, record: Version) -> Option<Cached> {
        let entry = self.collections.get(collection)?.get(key)?;
        (entry.version > record).then(|| entry.object.clone())
    }

    /// Everything kept of a collection.
    pub fn of(&self, collection: &CollectionKey) -> Ours {
        let entries = self.collections.get(collection).into_iter().flatten();
        entries.map(|(key, entry)| (Arc::clone(key), (entry.version, entry.object.clone()))).collect()
    }

    /// Marks a write as dispatched, once: the object with what was before. `None` when the change of the collector arrived first.
    pub fn dispatch(
        &mut self,
        collection: &CollectionKey,
        key: &NamespacedName,
        version: Version,
    ) -> Option<(Cached, Option<Cached>)> {
        let entry = self.collections.get_mut(collection)?.get_mut(key)?;
        if entry.version != version || entry.dispatched {
            return None;
        }
        entry.dispatched = true;
        Some((entry.object.clone(), entry.previous.take()))
    }

    /// The cache's own change of an object is about to be dispatched: what it is to us. Drops what it reaches. A deletion that a
    /// list found out carries the version the object had last, so it is news even where that version was dispatched.
    pub fn hear(&mut self, collection: &CollectionKey, key: &NamespacedName, version: Version, deleted: bool) -> Heard {
        let Some(entry) = self.collections.get(collection).and_then(|entries| entries.get(key)) else {
            return Heard::News(None);
        };
        if entry.version > version {
            return Heard::Outdated;
        }
        let same = entry.version == version && !deleted;
        match self.remove(collection, key) {
            Some(entry) if entry.dispatched && same => Heard::Dispatched,
            Some(entry) if entry.dispatched => Heard::News(Some(entry.object)),
            _ => Heard::News(None),
        }
    }

    /// Drops and answers what has been reached without a change of its own, and what is too old: readers see what the
    /// cache has from now on, so somebody has to look. `place_of` reads a collection's place; it is called once for each.
    pub fn settle(&mut self, place_of: impl Fn(&CollectionKey) -> Place, now: Instant) -> Vec<Settled> {
        let mut reached = Vec::new();
        for (collection, entries) in &mut self.collections {
            let place = place_of(collection);
            for (key, entry) in entries.iter_mut() {
                if entry.until.is_none() && place.position >= entry.version {
                    entry.until = Some(place.latest);
                }
                if entry.until.is_some_and(|until| until <= place.dispatched) || now - entry.since > LONGEST {
                    reached.push((collection.clone(), NamespacedName::clone(key)));
                }
            }
        }
        let mut settled = Vec::with_capacity(reached.len());
        for (collection, key) in reached {
            let entry = self.remove(&collection, &key);
            settled.extend(entry.map(|entry| Settled {
                collection,
                key,
                version: entry.version,
                shown: if entry.dispatched { Some(entry.object) } else { entry.previous },
                dispatched: entry.dispatched,
            }));
        }
        let collections = &self.collections;
        let kept = |(collection, key, version): &(CollectionKey, NamespacedName, Version)| {
            collections.get(collection).and_then(|entries| entries.get(key)).is_some_and(|e| e.version == *version)
        };
        while self.order.front().is_some_and(|first| !kept(first)) {
            self.order.pop_front();
        }
        settled
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

    fn object(version: u64) -> Cached {
        Cached::live(json!({"metadata": {"name": "a", "resourceVersion": version.to_string()}}))
    }

    /// What may happen, in any order: the API server's object is written by us or by others, or deleted; the answer to
    /// our oldest write arrives; the collector takes one event in; the teller tells one change; the cache is asked
    /// whether something settled; the watch is lost and a list takes its place.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        WriteOurs,
        WriteTheirs,
        Delete,
        Answer,
        Collect,
        Tell,
        Settle,
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
        answers: VecDeque<u64>,
        watched: VecDeque<Event>,
        stored: Option<u64>,
        position: u64,
        /// Changes by their seq.
        tail: Vec<Event>,
        dispatched: usize,
        shown: Option<u64>,
        /// The newest version we know the answer to, and whether a reader may rely on it.
        answered: u64,
        deleted_at: u64,
        own: Own,
        now: Instant,
    }

    impl Model {
        fn place(&self) -> Place {
            let (latest, dispatched) = (Seq(self.tail.len() as u64), Seq(self.dispatched as u64));
            Place { position: Version(self.position), latest, dispatched }
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
                Step::WriteOurs => {
                    let version = self.write();
                    self.answers.push_back(version);
                }
                Step::WriteTheirs => drop(self.write()),
                Step::Delete if self.server.is_some() => {
                    self.version += 1;
                    self.server = None;
                    self.deleted_at = self.version;
                    self.watched.push_back(Event { version: self.version, exists: false });
                }
                Step::Answer => {
                    let Some(version) = self.answers.pop_front() else { return };
                    self.answered = self.answered.max(version);
                    let place = self.place();
                    let before = self.shown.map(object);
                    let written = (object(version), Version(version), 1);
                    if self.own.put(&things(), key(), written, place, || before, self.now)
                        && let Some((now, _)) = self.own.dispatch(&things(), &key(), Version(version))
                    {
                        self.shown = Some(crate::cache::version_of(&now).0);
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
                        // A list does not say when what it lacks went.
                        None => self.store(Event { version: self.stored.unwrap_or_default(), exists: false }),
                    }
                    self.position = self.version;
                }
                Step::Tell => {
                    let Some(event) = self.tail.get(self.dispatched).copied() else { return };
                    match self.own.hear(&things(), &key(), Version(event.version), !event.exists) {
                        Heard::News(_) => self.shown = event.exists.then_some(event.version),
                        Heard::Dispatched => assert_eq!(self.shown, Some(event.version)),
                        Heard::Outdated => {}
                    }
                    self.dispatched += 1;
                }
                Step::Settle => {
                    let place = self.place();
                    for settled in self.own.settle(|_| place, self.now) {
                        assert_eq!(settled.shown.as_ref().map(|shown| crate::cache::version_of(shown).0), self.shown);
                        self.shown = self.stored;
                    }
                }
                Step::Delete => {}
            }
        }

        /// As a reader of the store sees it.
        fn read(&self) -> Option<u64> {
            let ours = self.own.newer(&things(), &key(), Version(self.stored.unwrap_or_default()));
            ours.map(|ours| crate::cache::version_of(&ours).0).or(self.stored)
        }
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let one = prop_oneof![
            3 => Just(Step::WriteOurs), 1 => Just(Step::WriteTheirs), 1 => Just(Step::Delete), 3 => Just(Step::Answer),
            4 => Just(Step::Collect), 4 => Just(Step::Tell), 1 => Just(Step::Settle), 1 => Just(Step::Relist),
        ];
        proptest::collection::vec(one, 1..60)
    }

    /// A reader never sees less than what this process wrote, unless it was deleted since; and whatever came in which
    /// order, readers and handlers end up with what the API server has, and nothing is kept.
    fn check(steps: &[Step]) -> Result<(), TestCaseError> {
        let mut model = Model {
            version: 0,
            server: None,
            answers: VecDeque::new(),
            watched: VecDeque::new(),
            stored: None,
            position: 0,
            tail: Vec::new(),
            dispatched: 0,
            shown: None,
            answered: 0,
            deleted_at: 0,
            own: Own::new(1 << 20),
            now: Instant::now(),
        };
        for step in steps {
            model.step(*step);
            let seen = model.read().unwrap_or_default();
            prop_assert!(seen >= model.answered || model.deleted_at > model.answered, "{step:?}: {seen}");
        }
        for step in [Step::Answer, Step::Collect, Step::Tell, Step::Settle] {
            (0..100).for_each(|_| model.step(step));
        }
        prop_assert_eq!((model.read(), model.shown), (model.server, model.server));
        prop_assert!(model.own.is_empty());
        Ok(())
    }

    /// Our write is dispatched, and only then the deletion that a list found out.
    #[test]
    fn a_deletion_found_by_a_list_is_told() {
        use Step::{Answer, Collect, Delete, Relist, Tell, WriteOurs};
        check(&[WriteOurs, Collect, Delete, Relist, Tell, Answer]).unwrap();
        check(&[WriteOurs, WriteOurs, Collect, Collect, Delete, Relist, Tell, Tell]).unwrap();
    }

    proptest! {
        #[test]
        fn readers_see_our_writes_and_end_with_the_truth(steps in steps()) {
            check(&steps)?;
        }
    }

    #[test]
    fn it_is_bounded_in_bytes_and_age() {
        let (mut own, now) = (Own::new(10), Instant::now());
        let place = Place { position: Version(0), latest: Seq(0), dispatched: Seq(0) };
        for n in 1..=20 {
            own.put(
                &things(),
                NamespacedName::cluster_scoped(n.to_string()),
                (object(n), Version(n), 1),
                place,
                || None,
                now,
            );
        }
        assert_eq!((own.bytes, own.of(&things()).len()), (10, 10));
        assert!(own.newer(&things(), &NamespacedName::cluster_scoped("20"), Version(0)).is_some());
        assert_eq!(own.settle(|_| place, now + LONGEST + Duration::from_secs(1)).len(), 10);
        assert!(own.is_empty() && own.bytes == 0 && own.order.is_empty());
        let opaque = (object(1), Version::of("not a number"), 1);
        assert!(
            !own.put(&things(), key(), opaque, place, || None, now),
            "versions that are no numbers are not compared"
        );
    }
}
