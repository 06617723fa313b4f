//! Data that all watches of a change share: its encoded event lines, and the labels and fields for selectors.
//!
//! Kept for the newest changes within the limits of [`Recent`]; otherwise computed again. Written and read by
//! `registry/watch`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::storage::Change;

/// Limit of retained lines in bytes.
const KEPT_BYTES: usize = 8 << 20;
/// Limit of retained lines.
const KEPT_LINES: usize = 4096;

/// Key of an event line of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineKey {
    /// `ADDED`, `MODIFIED` or `DELETED`: with selectors, a change can be a different event for each watch.
    pub event: &'static str,
    /// Representation of the object: version, kind of document, included fields.
    pub form: Arc<str>,
    /// True for the first line of a watch, which may contain more, such as the columns of a table.
    pub first: bool,
}

/// Labels and fields of one state of an object, for selectors.
#[derive(Debug, Default)]
pub struct Selectable {
    pub labels: Option<Value>,
    pub fields: Vec<(String, String)>,
}

/// Labels and fields of an object before and after a change.
#[derive(Debug)]
pub struct Sides {
    pub now: Selectable,
    pub before: Option<Selectable>,
}

#[derive(Debug)]
struct Line {
    key: LineKey,
    at: Instant,
    text: Arc<OnceCell<Bytes>>,
}

#[derive(Debug, Default)]
struct Made {
    lines: Vec<Line>,
    /// By requested version; empty for labels alone, which need no conversion.
    sides: Vec<(Arc<str>, Arc<OnceCell<Sides>>)>,
}

/// Cached data of a [`Change`].
#[derive(Debug, Default)]
pub struct Shared(Mutex<Made>);

impl Shared {
    /// Slot of a line. Lines that contain a time are replaced when they are older than `fresh`.
    pub fn line(&self, key: LineKey, fresh: Option<Duration>) -> Arc<OnceCell<Bytes>> {
        let mut made = self.0.lock();
        if let Some(fresh) = fresh {
            let now = Instant::now();
            made.lines.retain(|line| line.key != key || now.duration_since(line.at) <= fresh);
        }
        if let Some(line) = made.lines.iter().find(|line| line.key == key) {
            return line.text.clone();
        }
        let text = Arc::new(OnceCell::new());
        made.lines.push(Line { key, at: Instant::now(), text: text.clone() });
        text
    }

    /// Slot of the data for selectors.
    pub fn sides(&self, version: &Arc<str>) -> Arc<OnceCell<Sides>> {
        let mut made = self.0.lock();
        if let Some((_, sides)) = made.sides.iter().find(|(known, _)| known == version) {
            return sides.clone();
        }
        let sides = Arc::new(OnceCell::new());
        made.sides.push((version.clone(), sides.clone()));
        sides
    }

    fn forget(&self) {
        *self.0.lock() = Made::default();
    }
}

/// The changes whose lines are retained, oldest first.
#[derive(Debug, Default)]
pub struct Recent {
    kept: Mutex<(VecDeque<(Weak<Change>, usize)>, usize)>,
    encoded: AtomicU64,
}

impl Recent {
    /// Counts an encoded line and retains it.
    pub fn encoded(&self, change: &Arc<Change>, bytes: usize) {
        self.encoded.fetch_add(1, Ordering::Relaxed);
        self.keep(change, bytes);
    }

    /// Retains data of a change; drops that of the oldest changes above the limits.
    pub fn keep(&self, change: &Arc<Change>, bytes: usize) {
        let mut kept = self.kept.lock();
        let (changes, total) = &mut *kept;
        changes.push_back((Arc::downgrade(change), bytes));
        *total += bytes;
        while (*total > KEPT_BYTES || changes.len() > KEPT_LINES)
            && let Some((oldest, size)) = changes.pop_front()
        {
            *total -= size;
            if let Some(change) = oldest.upgrade() {
                change.shared.forget();
            }
        }
    }

    /// Number of encoded lines.
    pub fn lines_made(&self) -> u64 {
        self.encoded.load(Ordering::Relaxed)
    }
}
