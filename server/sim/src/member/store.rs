//! Object cache of a member's controllers: one indexed store per kind, shared by all of them.
//!
//! Stores are updated by [`super::informer`] (watch events), and by controllers with the responses to their own writes,
//! so that a controller always sees its writes. Handlers run within the update, after the store has changed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

/// Number of UIDs of deleted objects kept as tombstones, so that a late response to a write cannot restore an
/// object.
const MAX_TOMBSTONES: usize = 8192;

/// Namespace and name. The namespace is empty for cluster-scoped objects.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Key of an index over the objects of a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Index {
    /// UID of the controller owner.
    Owner(Arc<str>),
    /// Name of the namespace.
    Namespace(Arc<str>),
    /// Name of the pod's node.
    Node(Arc<str>),
    /// Namespace of an object without a controller owner.
    Orphan(Arc<str>),
}

impl Index {
    /// Indexes of an object in a namespace. `owner` is the UID of its controller owner.
    pub fn by_owner_and_namespace(owner: Option<Arc<str>>, namespace: Arc<str>) -> Vec<Self> {
        let by_owner = owner.map_or_else(|| Index::Orphan(Arc::clone(&namespace)), Index::Owner);
        vec![by_owner, Index::Namespace(namespace)]
    }
}

/// Identity and version of an object.
pub struct Identity<'a> {
    pub key: &'a Key,
    pub uid: &'a str,
    /// The resourceVersion as a number.
    pub version: u64,
}

/// An object in a [`Store`].
pub trait StoreObject: Send + Sync + 'static {
    fn identity(&self) -> Identity<'_>;
    fn indexes(&self) -> Vec<Index>;

    fn key(&self) -> Key {
        self.identity().key.clone()
    }

    fn uid(&self) -> &str {
        self.identity().uid
    }

    fn version(&self) -> u64 {
        self.identity().version
    }
}

type Handler<T> = Box<dyn Fn(Option<&Arc<T>>, Option<&Arc<T>>) + Send + Sync>;

struct StoreInner<T> {
    objects: HashMap<Key, Arc<T>>,
    index: HashMap<Index, HashSet<Key>>,
    /// UIDs of deleted objects (tombstones).
    deleted: HashSet<Arc<str>>,
    /// UIDs of the tombstones, oldest first.
    deleted_order: VecDeque<Arc<str>>,
    /// Keys of objects that a bulk writer creates and applies itself.
    expected: HashSet<Key>,
}

/// All objects of a kind.
pub struct Store<T> {
    inner: RwLock<StoreInner<T>>,
    handlers: RwLock<Vec<Handler<T>>>,
    /// Locked during a change and its handlers, so that handlers see changes in order.
    change_lock: Mutex<()>,
    synced: watch::Sender<bool>,
}

impl<T: StoreObject> Default for Store<T> {
    fn default() -> Self {
        Self {
            inner: RwLock::new(StoreInner {
                objects: HashMap::new(),
                index: HashMap::new(),
                deleted: HashSet::new(),
                deleted_order: VecDeque::new(),
                expected: HashSet::new(),
            }),
            handlers: RwLock::new(Vec::new()),
            change_lock: Mutex::new(()),
            synced: watch::Sender::new(false),
        }
    }
}

impl<T: StoreObject> Store<T> {
    /// Registers a handler for all further changes, called with old and new state.
    pub fn on_change(&self, handler: impl Fn(Option<&Arc<T>>, Option<&Arc<T>>) + Send + Sync + 'static) {
        self.handlers.write().push(Box::new(handler));
    }

    pub fn get(&self, key: &Key) -> Option<Arc<T>> {
        self.inner.read().objects.get(key).cloned()
    }

    pub fn all(&self) -> Vec<Arc<T>> {
        self.inner.read().objects.values().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.inner.read().objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Objects of an index, ordered by key.
    pub fn by_index(&self, index: &Index) -> Vec<Arc<T>> {
        let inner = self.inner.read();
        let mut keys: Vec<&Key> = inner.index.get(index).into_iter().flatten().collect();
        keys.sort();
        keys.into_iter().filter_map(|key| inner.objects.get(key).cloned()).collect()
    }

    pub fn count(&self, index: &Index) -> usize {
        self.inner.read().index.get(index).map_or(0, HashSet::len)
    }

    /// Objects whose controller owner has this UID.
    pub fn owned_by(&self, uid: &str) -> Vec<Arc<T>> {
        self.by_index(&Index::Owner(uid.into()))
    }

    /// Objects in a namespace, ordered by key.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<T>> {
        self.by_index(&Index::Namespace(namespace.into()))
    }

    /// Updates an object; older states and states of deleted objects are ignored.
    pub fn apply(&self, object: T) -> Arc<T> {
        let object = Arc::new(object);
        let key = object.key();
        let _guard = self.change_lock.lock();
        let old = {
            let mut inner = self.inner.write();
            if inner.deleted.contains(object.uid()) {
                return object;
            }
            if let Some(stored) = inner.objects.get(&key)
                && stored.version() >= object.version()
            {
                return stored.clone();
            }
            let old = inner.objects.insert(key.clone(), object.clone());
            let before = old.as_ref().map(|old| old.indexes()).unwrap_or_default();
            let after = object.indexes();
            inner.unindex(&key, before.iter().filter(|index| !after.contains(index)));
            for index in after {
                inner.index.entry(index).or_default().insert(key.clone());
            }
            old
        };
        self.notify_handlers(old.as_ref(), Some(&object));
        object
    }

    /// True if the store has this or a newer version of an object.
    pub fn has_version(&self, key: &Key, version: u64) -> bool {
        self.inner.read().objects.get(key).is_some_and(|stored| stored.version() >= version)
    }

    /// Announces objects that the caller will create and apply, so that the informer does not decode them.
    pub fn expect_keys(&self, keys: impl IntoIterator<Item = Key>) {
        self.inner.write().expected.extend(keys);
    }

    /// True if a bulk writer has announced an object ([`Store::expect_keys`]).
    pub fn is_expected(&self, key: &Key) -> bool {
        let inner = self.inner.read();
        !inner.expected.is_empty() && inner.expected.contains(key)
    }

    /// Ends [`Store::expect_keys`] after the objects have been applied.
    pub fn stop_expecting<'a>(&self, keys: impl IntoIterator<Item = &'a Key>) {
        let mut inner = self.inner.write();
        for key in keys {
            inner.expected.remove(key);
        }
    }

    /// Removes the object with this UID; a newer object of the same name is kept.
    pub fn remove(&self, key: &Key, uid: &str) {
        let _guard = self.change_lock.lock();
        let old = {
            let mut inner = self.inner.write();
            inner.add_tombstone(uid);
            if inner.objects.get(key).is_none_or(|stored| stored.uid() != uid) {
                return;
            }
            let old = inner.objects.remove(key);
            let indexes = old.as_ref().map(|old| old.indexes()).unwrap_or_default();
            inner.unindex(key, indexes.iter());
            old
        };
        self.notify_handlers(old.as_ref(), None);
    }

    /// The current versions, for [`Store::retain_listed`] after a list.
    pub fn snapshot(&self) -> HashMap<Key, u64> {
        self.inner.read().objects.iter().map(|(key, object)| (key.clone(), object.version())).collect()
    }

    /// Removes the objects that existed before a list, have not changed since, and were not in the list.
    pub fn retain_listed(&self, before: &HashMap<Key, u64>, listed: &HashSet<Key>) {
        for (key, version) in before {
            if listed.contains(key) {
                continue;
            }
            if let Some(object) = self.get(key)
                && object.version() == *version
            {
                self.remove(key, object.uid());
            }
        }
        self.synced.send_replace(true);
    }

    /// Waits until the first list is complete.
    pub async fn wait_until_synced(&self) {
        let mut synced = self.synced.subscribe();
        // An error is impossible: the sender is a field of self.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Drops all handlers, and with them their references to other components.
    pub fn close(&self) {
        self.handlers.write().clear();
    }

    fn notify_handlers(&self, old: Option<&Arc<T>>, new: Option<&Arc<T>>) {
        for handler in self.handlers.read().iter() {
            handler(old, new);
        }
    }
}

impl<T> StoreInner<T> {
    fn unindex<'a>(&mut self, key: &Key, indexes: impl Iterator<Item = &'a Index>) {
        for index in indexes {
            if let Some(keys) = self.index.get_mut(index) {
                keys.remove(key);
                if keys.is_empty() {
                    self.index.remove(index);
                }
            }
        }
    }

    fn add_tombstone(&mut self, uid: &str) {
        let uid: Arc<str> = uid.into();
        if self.deleted.insert(uid.clone()) {
            self.deleted_order.push_back(uid);
            if self.deleted_order.len() > MAX_TOMBSTONES
                && let Some(oldest) = self.deleted_order.pop_front()
            {
                self.deleted.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct TestObject {
        key: Key,
        uid: &'static str,
        version: u64,
    }

    impl StoreObject for TestObject {
        fn identity(&self) -> Identity<'_> {
            Identity { key: &self.key, uid: self.uid, version: self.version }
        }

        fn indexes(&self) -> Vec<Index> {
            vec![Index::Owner(format!("owner-{}", self.version).into())]
        }
    }

    fn object(name: &str, uid: &'static str, version: u64) -> TestObject {
        TestObject { key: Key::new("ns", name), uid, version }
    }

    #[test]
    fn late_responses_do_not_restore_old_states() {
        let store = Store::default();
        store.apply(object("a", "u1", 5));
        store.apply(object("a", "u1", 4));
        assert_eq!(store.get(&Key::new("ns", "a")).unwrap().version(), 5);
        store.remove(&Key::new("ns", "a"), "u1");
        store.apply(object("a", "u1", 6));
        assert!(store.get(&Key::new("ns", "a")).is_none());
        store.apply(object("a", "u2", 7));
        store.remove(&Key::new("ns", "a"), "u1");
        assert_eq!(store.owned_by("owner-7").len(), 1);
        assert!(store.owned_by("owner-5").is_empty());
    }

    #[test]
    fn a_list_removes_only_objects_that_existed_before_it() {
        let store = Store::default();
        store.apply(object("deleted", "u1", 1));
        store.apply(object("kept", "u2", 2));
        let before = store.snapshot();
        store.apply(object("new", "u3", 9));
        store.retain_listed(&before, &HashSet::from([Key::new("ns", "kept")]));
        let mut names: Vec<_> = store.all().iter().map(|object| object.key.name.to_string()).collect();
        names.sort_unstable();
        assert_eq!(names, ["kept", "new"]);
    }
}
