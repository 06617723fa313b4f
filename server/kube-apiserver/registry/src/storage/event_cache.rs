//! Cached data of changes, shared by all watches: the encoded event lines of a change, the lines of a batch of changes
//! that ends with it, and the labels and fields that selectors match.
//!
//! [`EventCache`] limits the cache to the newest changes; the data of older ones is computed again. Written and read by
//! `watch`.

use std::collections::{BTreeMap, VecDeque};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::storage::{Change, Revision};

/// Maximum size of all retained data in bytes.
const MAX_RETAINED_BYTES: usize = 8 << 20;
/// Maximum number of changes with retained data.
const MAX_RETAINED_CHANGES: usize = 4096;

/// Key of an event line of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineKey {
    /// `ADDED`, `MODIFIED` or `DELETED`: with selectors, a change can be a different event for each watch.
    pub event: &'static str,
    /// Representation of the object: version, kind of document, included fields.
    pub representation: Arc<str>,
    /// True for the first line of a watch, which may contain more, such as the columns of a table.
    pub first: bool,
}

/// Key of the lines that a group of equal watches sends for a batch of consecutive changes. The lines are cached with the
/// last of these changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchKey {
    /// Revision of the first change.
    pub first: Revision,
    /// Number of the group.
    pub group: u64,
}

/// Labels and fields of one state of an object, for selectors.
#[derive(Debug, Default)]
pub struct SelectorFields {
    pub labels: Option<Value>,
    pub fields: Vec<(String, String)>,
}

/// Labels and fields of an object before and after a change.
#[derive(Debug)]
pub struct SelectorStates {
    pub current: SelectorFields,
    pub previous: Option<SelectorFields>,
}

#[derive(Debug)]
struct Line {
    key: LineKey,
    created_at: Instant,
    text: Arc<OnceCell<Bytes>>,
}

#[derive(Debug, Default)]
struct CachedData {
    lines: Vec<Line>,
    batches: BTreeMap<BatchKey, Arc<OnceCell<Bytes>>>,
    /// By requested version; empty for labels alone, which need no conversion.
    states: BTreeMap<Arc<str>, Arc<OnceCell<SelectorStates>>>,
}

/// Cached data of a [`Change`].
#[derive(Debug, Default)]
pub struct ChangeCache(Mutex<CachedData>);

impl ChangeCache {
    /// Slot of a line. Lines that contain a time are replaced when they are older than `max_age`.
    pub fn line(&self, key: LineKey, max_age: Option<Duration>) -> Arc<OnceCell<Bytes>> {
        let mut cached = self.0.lock();
        if let Some(max_age) = max_age {
            let now = Instant::now();
            cached.lines.retain(|line| line.key != key || now.duration_since(line.created_at) <= max_age);
        }
        if let Some(line) = cached.lines.iter().find(|line| line.key == key) {
            return line.text.clone();
        }
        let text = Arc::new(OnceCell::new());
        cached.lines.push(Line { key, created_at: Instant::now(), text: text.clone() });
        text
    }

    /// Slot of the lines of a batch that ends with this change.
    pub fn batch(&self, key: BatchKey) -> Arc<OnceCell<Bytes>> {
        self.0.lock().batches.entry(key).or_default().clone()
    }

    /// Slot of the data for selectors.
    pub fn states(&self, version: &Arc<str>) -> Arc<OnceCell<SelectorStates>> {
        self.0.lock().states.entry(version.clone()).or_default().clone()
    }

    fn clear(&self) {
        *self.0.lock() = CachedData::default();
    }
}

/// The changes whose data is retained, oldest first.
#[derive(Debug, Default)]
pub struct EventCache {
    /// The changes with the sizes of their data in bytes, and the sum of the sizes.
    retained: Mutex<(VecDeque<(Weak<Change>, usize)>, usize)>,
    encoded_lines: AtomicU64,
}

impl EventCache {
    /// Counts an encoded line and retains it.
    pub fn record_encoded(&self, change: &Arc<Change>, bytes: usize) {
        self.encoded_lines.fetch_add(1, Ordering::Relaxed);
        self.retain(change, bytes);
    }

    /// Retains data of a change; drops that of the oldest changes above the limits.
    pub fn retain(&self, change: &Arc<Change>, bytes: usize) {
        let mut retained = self.retained.lock();
        let (changes, total) = &mut *retained;
        match changes.back_mut() {
            Some((newest, size)) if ptr::eq(newest.as_ptr(), Arc::as_ptr(change)) => *size += bytes,
            _ => changes.push_back((Arc::downgrade(change), bytes)),
        }
        *total += bytes;
        while (*total > MAX_RETAINED_BYTES || changes.len() > MAX_RETAINED_CHANGES)
            && let Some((oldest, size)) = changes.pop_front()
        {
            *total -= size;
            if let Some(change) = oldest.upgrade() {
                change.cache.clear();
            }
        }
    }

    /// Number of encoded lines.
    pub fn encoded_line_count(&self) -> u64 {
        self.encoded_lines.load(Ordering::Relaxed)
    }
}
