//! Write priority: defers writes of low priority while the control plane is under write load.
//!
//! The load is the number of concurrent writes of this process that carry a template to members: claims, bindings, their clusters
//! and Works. Under load, events of successes are dropped, and success status is written later, by a bounded time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Number of concurrent writes from which on the control plane is under write load.
const BUSY: usize = 8;

/// Delays of a deferred status, one after the other; then it is written under any load.
const WAITS: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(3), Duration::from_secs(4)];

#[derive(Debug, Default)]
pub struct WriteLoad {
    under_way: AtomicUsize,
}

/// A write in progress, until it is dropped.
#[derive(Debug)]
pub struct WriteInProgress<'t>(&'t WriteLoad);

impl Drop for WriteInProgress<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WriteLoad {
    pub fn begin(&self) -> WriteInProgress<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        WriteInProgress(self)
    }

    /// Whether the control plane is under write load.
    pub fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) >= BUSY
    }
}

/// Keys whose writes are deferred, and how often they were.
#[derive(Debug)]
pub struct DeferredWrites<K> {
    waiting: Mutex<HashMap<K, usize>>,
}

impl<K> Default for DeferredWrites<K> {
    fn default() -> Self {
        DeferredWrites { waiting: Mutex::default() }
    }
}

/// Number of deferrals of a key so far.
#[derive(Debug, Clone, Copy)]
pub struct Deferrals(usize);

impl<K: Hash + Eq> DeferredWrites<K> {
    /// Begins a reconcile of the key: its write is not deferred any longer, unless the reconcile ends with [`DeferredWrites::wait`].
    pub fn begin(&self, key: &K) -> Deferrals {
        Deferrals(self.waiting.lock().remove(key).unwrap_or_default())
    }

    /// Delay of the key's write; `None` to write now.
    pub fn wait(&self, write_load: &WriteLoad, key: K, waited: Deferrals) -> Option<Duration> {
        let wait = WAITS.get(waited.0).copied().filter(|_| write_load.is_busy())?;
        self.waiting.lock().insert(key, waited.0 + 1);
        Some(wait)
    }

    /// Whether no write is deferred.
    pub fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_wait_while_others_do_and_not_for_ever() {
        let (write_load, deferred) = (WriteLoad::default(), DeferredWrites::default());
        let look = || deferred.wait(&write_load, 1, deferred.begin(&1));
        assert_eq!(look(), None);
        let writes: Vec<WriteInProgress<'_>> = (0..BUSY).map(|_| write_load.begin()).collect();
        assert_eq!([look(), look(), look(), look()], WAITS.map(Some));
        assert!(!deferred.is_empty());
        assert_eq!(look(), None);
        assert_eq!(look(), Some(WAITS[0]), "the next news wait again");
        drop(writes);
        assert_eq!(look(), None);
        assert!(deferred.is_empty() && !write_load.is_busy());
    }
}
