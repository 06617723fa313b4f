//! Cache of decoded objects, so that frequent reads neither decompress nor parse. Limited in bytes.
//!
//! An entry is never older than the last dispatched change: the informer updates it before it dispatches a change,
//! and a concurrent reader of the store discards its result. Missing objects are cached as well.

use std::collections::HashMap;

use crowsnest_index::{RecordKey, Seq};
use lru::LruCache;
use parking_lot::Mutex;
use serde_json::Value;

use crate::cache::cached_object::CachedObject;

/// Overhead of an entry in bytes.
const ENTRY_OVERHEAD_BYTES: usize = 256;

struct Entry {
    seq: Seq,
    object: Option<CachedObject>,
    bytes: usize,
}

/// A read of a key from the store in progress.
#[derive(Default)]
struct OngoingRead {
    /// Number of concurrent readers.
    readers: usize,
    /// True if the key has changed since the read began.
    changed: bool,
}

struct State {
    entries: LruCache<RecordKey, Entry>,
    bytes: usize,
    reads: HashMap<RecordKey, OngoingRead>,
}

/// Decoded objects by key.
pub struct DecodedObjects {
    state: Mutex<State>,
    max_bytes: usize,
}

/// Result of a lookup.
pub enum Lookup<'d> {
    /// The object, or `None` if it does not exist.
    Cached(Option<CachedObject>),
    /// The caller must read the store, and pass the result to [`StoreRead::complete`].
    Miss(StoreRead<'d>),
}

/// A read of the store by the caller, whose result [`StoreRead::complete`] caches.
pub struct StoreRead<'d> {
    decoded: &'d DecodedObjects,
    key: RecordKey,
}

impl StoreRead<'_> {
    /// Caches the object that the store returned, unless a newer change was dispatched in the meantime.
    pub fn complete(self, seq: Seq, object: Option<&CachedObject>) {
        let entry = Entry::new(seq, object);
        let mut dropped = Vec::new();
        let mut state = self.decoded.state.lock();
        if state.reads.get(&self.key).is_some_and(|read| !read.changed) {
            state.put(self.key.clone(), entry, self.decoded.max_bytes, &mut dropped);
        }
    }
}

impl Drop for StoreRead<'_> {
    fn drop(&mut self) {
        let mut state = self.decoded.state.lock();
        if let Some(read) = state.reads.get_mut(&self.key) {
            read.readers -= 1;
            if read.readers == 0 {
                state.reads.remove(&self.key);
            }
        }
    }
}

impl Entry {
    fn new(seq: Seq, object: Option<&CachedObject>) -> Self {
        let bytes = ENTRY_OVERHEAD_BYTES + object.map_or(0, |object| size_of_value(object.view()));
        Entry { seq, object: object.cloned(), bytes }
    }
}

impl State {
    /// Adds an entry and evicts others. Replaced and evicted entries are moved to `dropped`, so that the caller frees
    /// them after it has released the lock: objects are large trees.
    fn put(&mut self, key: RecordKey, entry: Entry, max_bytes: usize, dropped: &mut Vec<Entry>) {
        self.bytes += entry.bytes;
        dropped.extend(self.entries.put(key, entry).inspect(|replaced| self.bytes -= replaced.bytes));
        while self.bytes > max_bytes {
            let Some((_, oldest)) = self.entries.pop_lru() else { break };
            self.bytes -= oldest.bytes;
            dropped.push(oldest);
        }
    }
}

impl DecodedObjects {
    pub fn new(max_bytes: usize) -> Self {
        let state = State { entries: LruCache::unbounded(), bytes: 0, reads: HashMap::new() };
        DecodedObjects { state: Mutex::new(state), max_bytes }
    }

    /// Looks up an object. On a miss, the caller reads the store and completes the returned [`StoreRead`].
    pub fn lookup(&self, key: &RecordKey) -> Lookup<'_> {
        let mut state = self.state.lock();
        if let Some(entry) = state.entries.get(key) {
            return Lookup::Cached(entry.object.clone());
        }
        state.reads.entry(key.clone()).or_default().readers += 1;
        Lookup::Miss(StoreRead { decoded: self, key: key.clone() })
    }

    /// The cached object, without marking it as used.
    pub fn peek(&self, key: &RecordKey) -> Option<CachedObject> {
        self.state.lock().entries.peek(key).and_then(|entry| entry.object.clone())
    }

    /// The cached object, if it is the version of this change.
    pub fn get_at(&self, key: &RecordKey, seq: Seq) -> Option<CachedObject> {
        let mut state = self.state.lock();
        state.entries.get(key).filter(|entry| entry.seq == seq).and_then(|entry| entry.object.clone())
    }

    /// Updates the entry with a change that is about to be dispatched, and returns the previous object. If the key has
    /// no entry, one is added only if `keep` is true.
    pub fn update(&self, key: &RecordKey, seq: Seq, object: Option<&CachedObject>, keep: bool) -> Option<CachedObject> {
        let mut dropped = Vec::new();
        let mut state = self.state.lock();
        if let Some(read) = state.reads.get_mut(key) {
            read.changed = true;
        }
        let before = state.entries.peek(key).map(|entry| (entry.seq, entry.object.clone()));
        match before {
            // A reader has cached a newer version.
            Some((kept, _)) if kept >= seq => None,
            Some((_, old)) => {
                state.put(key.clone(), Entry::new(seq, object), self.max_bytes, &mut dropped);
                old
            }
            None => {
                if keep {
                    state.put(key.clone(), Entry::new(seq, object), self.max_bytes, &mut dropped);
                }
                None
            }
        }
    }

    /// Removes all entries that satisfy the predicate, because changes were missed or will no longer be dispatched.
    pub fn remove_matching(&self, predicate: impl Fn(&RecordKey) -> bool) {
        let mut state = self.state.lock();
        state.reads.iter_mut().filter(|(key, _)| predicate(key)).for_each(|(_, read)| read.changed = true);
        let keys: Vec<RecordKey> =
            state.entries.iter().map(|(key, _)| key).filter(|key| predicate(key)).cloned().collect();
        for key in keys {
            if let Some(entry) = state.entries.pop(&key) {
                state.bytes -= entry.bytes;
            }
        }
    }
}

/// Approximate size of a tree in bytes.
pub fn size_of_value(value: &Value) -> usize {
    const VALUE_BYTES: usize = size_of::<Value>();
    VALUE_BYTES
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(size_of_value).sum(),
            // The key, its length, and its share of the map's node.
            Value::Object(fields) => {
                fields.iter().map(|(key, value)| key.len() + 2 * VALUE_BYTES + size_of_value(value)).sum()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::{ClusterName, Gvr};
    use serde_json::json;

    fn key(name: &str) -> RecordKey {
        RecordKey::new(ClusterName::control_plane(), Gvr::new("", "v1", "things"), "", name)
    }

    fn object(version: u64) -> CachedObject {
        CachedObject::from_response(json!({"metadata": {"resourceVersion": version.to_string()}}))
    }

    fn cached_version(decoded: &DecodedObjects, name: &str) -> Option<Option<Value>> {
        match decoded.lookup(&key(name)) {
            Lookup::Cached(object) => Some(object.map(|object| object.view()["metadata"]["resourceVersion"].clone())),
            Lookup::Miss(_) => None,
        }
    }

    #[test]
    fn concurrent_change_discards_the_result_of_a_reader() {
        let decoded = DecodedObjects::new(1 << 20);
        let Lookup::Miss(store_read) = decoded.lookup(&key("a")) else { panic!("empty at first") };
        assert!(decoded.update(&key("a"), Seq(6), None, false).is_none());
        store_read.complete(Seq(5), Some(&object(5)));
        assert_eq!(cached_version(&decoded, "a"), None, "a deleted object does not reappear");

        let Lookup::Miss(store_read) = decoded.lookup(&key("a")) else { panic!("still empty") };
        store_read.complete(Seq(7), Some(&object(7)));
        assert_eq!(cached_version(&decoded, "a"), Some(Some(json!("7"))));
        decoded.update(&key("a"), Seq(6), Some(&object(6)), true);
        assert_eq!(cached_version(&decoded, "a"), Some(Some(json!("7"))), "a newer version of a reader is kept");
        let old = decoded.update(&key("a"), Seq(8), None, false);
        assert_eq!(old.map(|old| old.view()["metadata"]["resourceVersion"].clone()), Some(json!("7")));
        assert_eq!(cached_version(&decoded, "a"), Some(None), "absence is cached");
        assert!(decoded.state.lock().reads.is_empty());
    }

    #[test]
    fn size_is_limited() {
        let decoded = DecodedObjects::new(10 * (ENTRY_OVERHEAD_BYTES + size_of_value(object(1).view())));
        for n in 0..100 {
            decoded.update(&key(&n.to_string()), Seq(n), Some(&object(1)), true);
        }
        assert!(cached_version(&decoded, "99").is_some() && cached_version(&decoded, "0").is_none());
        assert_eq!(decoded.state.lock().entries.len(), 10);
        decoded.remove_matching(|_| true);
        assert_eq!(decoded.state.lock().bytes, 0);
    }
}
