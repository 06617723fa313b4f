//! Object cache of a member's controllers: one indexed store per kind, shared by all of them.
//!
//! Updated by [`super::informer`] (watch events) and by controllers with the responses to their own writes, so that
//! a controller always sees its writes. Read by all modules in `member/`. Handlers run within the update, after the
//! store has changed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

/// Number of UIDs of deleted objects kept as tombstones, so that a late response to a write cannot restore an
/// object.
const TOMBSTONES: usize = 8192;

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

/// An index for lookups.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Index {
    /// UID of the controller owner.
    Owner(Arc<str>),
    Namespace(Arc<str>),
    Node(Arc<str>),
    /// Objects in a namespace without a controller owner.
    Orphan(Arc<str>),
}

/// An object that can be stored in a [`Store`].
pub trait Stored: Send + Sync + 'static {
    fn key(&self) -> Key;
    fn uid(&self) -> &str;
    /// The resourceVersion as a number.
    fn version(&self) -> u64;
    fn indexes(&self) -> Vec<Index>;
}

type Handler<T> = Box<dyn Fn(Option<&Arc<T>>, Option<&Arc<T>>) + Send + Sync>;

struct Inner<T> {
    objects: HashMap<Key, Arc<T>>,
    index: HashMap<Index, HashSet<Key>>,
    deleted: HashSet<Arc<str>>,
    deleted_order: VecDeque<Arc<str>>,
    /// Keys whose initial state a bulk writer applies itself.
    expected: HashSet<Key>,
}

/// All objects of a kind.
pub struct Store<T> {
    inner: RwLock<Inner<T>>,
    handlers: RwLock<Vec<Handler<T>>>,
    /// Held during a change and its handlers, so that handlers see changes in order.
    order: Mutex<()>,
    synced: watch::Sender<bool>,
}

impl<T: Stored> Default for Store<T> {
    fn default() -> Self {
        Self {
            inner: RwLock::new(Inner {
                objects: HashMap::new(),
                index: HashMap::new(),
                deleted: HashSet::new(),
                deleted_order: VecDeque::new(),
                expected: HashSet::new(),
            }),
            handlers: RwLock::new(Vec::new()),
            order: Mutex::new(()),
            synced: watch::Sender::new(false),
        }
    }
}

impl<T: Stored> Store<T> {
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
    pub fn by(&self, index: &Index) -> Vec<Arc<T>> {
        let inner = self.inner.read();
        let mut keys: Vec<&Key> = inner.index.get(index).into_iter().flatten().collect();
        keys.sort();
        keys.into_iter().filter_map(|key| inner.objects.get(key).cloned()).collect()
    }

    pub fn count(&self, index: &Index) -> usize {
        self.inner.read().index.get(index).map_or(0, HashSet::len)
    }

    /// Objects whose controller owner has this UID.
    pub fn owned(&self, uid: &str) -> Vec<Arc<T>> {
        self.by(&Index::Owner(uid.into()))
    }

    pub fn namespace(&self, namespace: &str) -> Vec<Arc<T>> {
        self.by(&Index::Namespace(namespace.into()))
    }

    /// Updates an object; older states and states of deleted objects are ignored.
    pub fn apply(&self, object: T) -> Arc<T> {
        let object = Arc::new(object);
        let key = object.key();
        let _order = self.order.lock();
        let old = {
            let mut inner = self.inner.write();
            if inner.deleted.contains(object.uid()) {
                return object;
            }
            if let Some(known) = inner.objects.get(&key)
                && known.version() >= object.version()
            {
                return known.clone();
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
        self.tell(old.as_ref(), Some(&object));
        object
    }

    /// True if the store has this or a newer version of an object.
    pub fn has(&self, key: &Key, version: u64) -> bool {
        self.inner.read().objects.get(key).is_some_and(|known| known.version() >= version)
    }

    /// Announces objects that the caller will create and apply, so that the informer need not decode them.
    pub fn expect(&self, keys: impl IntoIterator<Item = Key>) {
        self.inner.write().expected.extend(keys);
    }

    pub fn expects(&self, key: &Key) -> bool {
        let inner = self.inner.read();
        !inner.expected.is_empty() && inner.expected.contains(key)
    }

    /// Ends [`Store::expect`] after the objects have been applied.
    pub fn settle<'a>(&self, keys: impl IntoIterator<Item = &'a Key>) {
        let mut inner = self.inner.write();
        for key in keys {
            inner.expected.remove(key);
        }
    }

    /// Removes the object with this UID; a newer object of the same name is kept.
    pub fn remove(&self, key: &Key, uid: &str) {
        let _order = self.order.lock();
        let old = {
            let mut inner = self.inner.write();
            inner.bury(uid);
            if inner.objects.get(key).is_none_or(|known| known.uid() != uid) {
                return;
            }
            let old = inner.objects.remove(key);
            let indexes = old.as_ref().map(|old| old.indexes()).unwrap_or_default();
            inner.unindex(key, indexes.iter());
            old
        };
        self.tell(old.as_ref(), None);
    }

    /// The current versions, for [`Store::retain_seen`] after a list.
    pub fn snapshot(&self) -> HashMap<Key, u64> {
        self.inner.read().objects.iter().map(|(key, object)| (key.clone(), object.version())).collect()
    }

    /// Removes the objects that existed before a list, have not changed since, and were not in the list.
    pub fn retain_seen(&self, before: &HashMap<Key, u64>, seen: &HashSet<Key>) {
        for (key, version) in before {
            if seen.contains(key) {
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

    /// Waits for the first complete list.
    pub async fn synced(&self) {
        let mut synced = self.synced.subscribe();
        // The sender lives in self, so the wait can only end with the value.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    /// Drops all handlers and the references they hold.
    pub fn close(&self) {
        self.handlers.write().clear();
    }

    fn tell(&self, old: Option<&Arc<T>>, new: Option<&Arc<T>>) {
        for handler in self.handlers.read().iter() {
            handler(old, new);
        }
    }
}

impl<T> Inner<T> {
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

    fn bury(&mut self, uid: &str) {
        let uid: Arc<str> = uid.into();
        if self.deleted.insert(uid.clone()) {
            self.deleted_order.push_back(uid);
            if self.deleted_order.len() > TOMBSTONES
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
    struct Thing(&'static str, &'static str, u64);

    impl Stored for Thing {
        fn key(&self) -> Key {
            Key::new("ns", self.0)
        }
        fn uid(&self) -> &str {
            self.1
        }
        fn version(&self) -> u64 {
            self.2
        }
        fn indexes(&self) -> Vec<Index> {
            vec![Index::Owner(format!("owner-{}", self.2).into())]
        }
    }

    #[test]
    fn late_responses_do_not_restore_old_states() {
        let store = Store::default();
        store.apply(Thing("a", "u1", 5));
        store.apply(Thing("a", "u1", 4));
        assert_eq!(store.get(&Key::new("ns", "a")).unwrap().version(), 5);
        store.remove(&Key::new("ns", "a"), "u1");
        store.apply(Thing("a", "u1", 6));
        assert!(store.get(&Key::new("ns", "a")).is_none());
        store.apply(Thing("a", "u2", 7));
        store.remove(&Key::new("ns", "a"), "u1");
        assert_eq!(store.owned("owner-7").len(), 1);
        assert!(store.owned("owner-5").is_empty());
    }

    #[test]
    fn lists_remove_only_older_objects() {
        let store = Store::default();
        store.apply(Thing("gone", "u1", 1));
        store.apply(Thing("kept", "u2", 2));
        let before = store.snapshot();
        store.apply(Thing("new", "u3", 9));
        store.retain_seen(&before, &HashSet::from([Key::new("ns", "kept")]));
        let mut names: Vec<_> = store.all().iter().map(|thing| thing.0).collect();
        names.sort_unstable();
        assert_eq!(names, ["kept", "new"]);
    }
}
