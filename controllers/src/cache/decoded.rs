//! Cache of decoded objects, so that frequent reads neither decompress nor parse. Limited in bytes.
//!
//! An entry is never older than the last dispatched change: the informer updates it before it dispatches a change,
//! and a concurrent reader of the store discards its result. Missing objects are cached as well.

use std::collections::HashMap;

use crowsnest_index::{RecordKey, Seq};
use lru::LruCache;
use parking_lot::Mutex;
use serde_json::Value;

use crate::cache::cached_object::Cached;

/// Overhead of an entry in bytes.
const ENTRY: usize = 256;

struct Entry {
    seq: Seq,
    object: Option<Cached>,
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

struct Known {
    entries: LruCache<RecordKey, Entry>,
    bytes: usize,
    reads: HashMap<RecordKey, OngoingRead>,
}

pub struct Decoded {
    known: Mutex<Known>,
    max_bytes: usize,
}

/// Result of a lookup.
pub enum Lookup<'d> {
    /// The object, or `None` if it does not exist.
    Known(Option<Cached>),
    /// The caller must read the store, and report the result.
    Miss(StoreRead<'d>),
}

/// A read of the store by the caller, whose result [`StoreRead::found`] caches.
pub struct StoreRead<'d> {
    decoded: &'d Decoded,
    key: RecordKey,
}

impl StoreRead<'_> {
    /// Caches the object that the store returned, unless a newer change was dispatched in the meantime.
    pub fn found(self, seq: Seq, object: Option<&Cached>) {
        let entry = Entry::new(seq, object);
        let mut dropped = Vec::new();
        let mut known = self.decoded.known.lock();
        if known.reads.get(&self.key).is_some_and(|read| !read.changed) {
            known.put(self.key.clone(), entry, self.decoded.max_bytes, &mut dropped);
        }
    }
}

impl Drop for StoreRead<'_> {
    fn drop(&mut self) {
        let mut known = self.decoded.known.lock();
        if let Some(read) = known.reads.get_mut(&self.key) {
            read.readers -= 1;
            if read.readers == 0 {
                known.reads.remove(&self.key);
            }
        }
    }
}

impl Entry {
    fn new(seq: Seq, object: Option<&Cached>) -> Self {
        let bytes = ENTRY + object.map_or(0, |object| weigh(object.view()));
        Entry { seq, object: object.cloned(), bytes }
    }
}

impl Known {
    /// Evicted entries are returned in `dropped` and freed after the lock is released, because objects are large
    /// trees.
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

impl Decoded {
    pub fn new(max_bytes: usize) -> Self {
        let known = Known { entries: LruCache::unbounded(), bytes: 0, reads: HashMap::new() };
        Decoded { known: Mutex::new(known), max_bytes }
    }

    pub fn look(&self, key: &RecordKey) -> Lookup<'_> {
        let mut known = self.known.lock();
        if let Some(entry) = known.entries.get(key) {
            return Lookup::Known(entry.object.clone());
        }
        known.reads.entry(key.clone()).or_default().readers += 1;
        Lookup::Miss(StoreRead { decoded: self, key: key.clone() })
    }

    /// The cached object, without marking it as used.
    pub fn peek(&self, key: &RecordKey) -> Option<Cached> {
        self.known.lock().entries.peek(key).and_then(|entry| entry.object.clone())
    }

    /// The cached object of exactly this change.
    pub fn at(&self, key: &RecordKey, seq: Seq) -> Option<Cached> {
        let mut known = self.known.lock();
        known.entries.get(key).filter(|entry| entry.seq == seq).and_then(|entry| entry.object.clone())
    }

    /// Updates the entry with a change that is about to be dispatched, and returns the previous object. A key without
    /// entry is cached only with `keep`.
    pub fn tell(&self, key: &RecordKey, seq: Seq, object: Option<&Cached>, keep: bool) -> Option<Cached> {
        let mut dropped = Vec::new();
        let mut known = self.known.lock();
        if let Some(read) = known.reads.get_mut(key) {
            read.changed = true;
        }
        let before = known.entries.peek(key).map(|entry| (entry.seq, entry.object.clone()));
        match before {
            // A reader has cached a newer version.
            Some((kept, _)) if kept >= seq => None,
            Some((_, old)) => {
                known.put(key.clone(), Entry::new(seq, object), self.max_bytes, &mut dropped);
                old
            }
            None => {
                if keep {
                    known.put(key.clone(), Entry::new(seq, object), self.max_bytes, &mut dropped);
                }
                None
            }
        }
    }

    /// Removes all entries that satisfy the predicate, because changes were missed or will no longer be dispatched.
    pub fn forget(&self, which: impl Fn(&RecordKey) -> bool) {
        let mut known = self.known.lock();
        known.reads.iter_mut().filter(|(key, _)| which(key)).for_each(|(_, read)| read.changed = true);
        let keys: Vec<RecordKey> = known.entries.iter().map(|(key, _)| key).filter(|key| which(key)).cloned().collect();
        for key in keys {
            if let Some(entry) = known.entries.pop(&key) {
                known.bytes -= entry.bytes;
            }
        }
    }
}

/// Approximate size of a tree in bytes.
pub fn weigh(value: &Value) -> usize {
    const NODE: usize = size_of::<Value>();
    NODE + match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weigh).sum(),
        // The key, its length, and its share of the map's node.
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + 2 * NODE + weigh(value)).sum(),
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

    fn object(version: u64) -> Cached {
        Cached::live(json!({"metadata": {"resourceVersion": version.to_string()}}))
    }

    fn known(decoded: &Decoded, name: &str) -> Option<Option<Value>> {
        match decoded.look(&key(name)) {
            Lookup::Known(object) => Some(object.map(|object| object.view()["metadata"]["resourceVersion"].clone())),
            Lookup::Miss(_) => None,
        }
    }

    #[test]
    fn concurrent_change_discards_the_result_of_a_reader() {
        let decoded = Decoded::new(1 << 20);
        let Lookup::Miss(store_read) = decoded.look(&key("a")) else { panic!("empty at first") };
        assert!(decoded.tell(&key("a"), Seq(6), None, false).is_none());
        store_read.found(Seq(5), Some(&object(5)));
        assert_eq!(known(&decoded, "a"), None, "a deleted object does not reappear");

        let Lookup::Miss(store_read) = decoded.look(&key("a")) else { panic!("still empty") };
        store_read.found(Seq(7), Some(&object(7)));
        assert_eq!(known(&decoded, "a"), Some(Some(json!("7"))));
        decoded.tell(&key("a"), Seq(6), Some(&object(6)), true);
        assert_eq!(known(&decoded, "a"), Some(Some(json!("7"))), "a newer version of a reader is kept");
        let old = decoded.tell(&key("a"), Seq(8), None, false);
        assert_eq!(old.map(|old| old.view()["metadata"]["resourceVersion"].clone()), Some(json!("7")));
        assert_eq!(known(&decoded, "a"), Some(None), "absence is cached");
        assert!(decoded.known.lock().reads.is_empty());
    }

    #[test]
    fn size_is_limited() {
        let decoded = Decoded::new(10 * (ENTRY + weigh(object(1).view())));
        for n in 0..100 {
            decoded.tell(&key(&n.to_string()), Seq(n), Some(&object(1)), true);
        }
        assert!(known(&decoded, "99").is_some() && known(&decoded, "0").is_none());
        assert_eq!(decoded.known.lock().entries.len(), 10);
        decoded.forget(|_| true);
        assert_eq!(decoded.known.lock().bytes, 0);
    }
}
