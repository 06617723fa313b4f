//! What all watches of one change share: its event lines, made once for each form, and what selectors look at.
//!
//! Kept for the newest changes alone, as far as [`Recent`] has room; who comes later makes them again. Written and read by
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

/// Bytes of lines that are kept for watches still to come.
const KEPT_BYTES: usize = 8 << 20;
/// Lines kept, however short they are.
const KEPT_LINES: usize = 4096;

/// Which line of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineKey {
    /// `ADDED`, `MODIFIED`, `DELETED`: selectors make one change mean different things to different watches.
    pub event: &'static str,
    /// Representation of the object: version, kind of document, what it includes.
    pub form: Arc<str>,
    /// The first line of a watch may tell more.
    pub first: bool,
}

/// What selectors look at in one state of an object.
#[derive(Debug, Default)]
pub struct Selectable {
    pub labels: Option<Value>,
    pub fields: Vec<(String, String)>,
}

/// Both sides of a change.
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
    /// By requested version; empty for the labels alone, which need no conversion.
    sides: Vec<(Arc<str>, Arc<OnceCell<Sides>>)>,
}

/// See the module. Part of a [`Change`].
#[derive(Debug, Default)]
pub struct Shared(Mutex<Made>);

impl Shared {
    /// The place of a line. One that tells the time is made anew when it is older than `fresh`.
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

    /// The place of what selectors look at.
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

/// The changes that keep what was made of them, oldest first.
#[derive(Debug, Default)]
pub struct Recent {
    kept: Mutex<(VecDeque<(Weak<Change>, usize)>, usize)>,
    encoded: AtomicU64,
}

impl Recent {
    /// Counts a line that was made of a change.
    pub fn encoded(&self, change: &Arc<Change>, bytes: usize) {
        self.encoded.fetch_add(1, Ordering::Relaxed);
        self.keep(change, bytes);
    }

    /// Lets a change keep something more, and the oldest forget.
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

    /// Lines made so far.
    pub fn lines_made(&self) -> u64 {
        self.encoded.load(Ordering::Relaxed)
    }
}
