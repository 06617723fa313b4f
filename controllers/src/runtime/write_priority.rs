//! Write priority: defers low-priority writes while the control plane is under write load.
//!
//! The load is the number of concurrent writes of this process that propagate templates to members: claims, bindings,
//! scheduling results and Works. Under load, events of successes are dropped, and success status is deferred for a
//! limited time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Number of concurrent writes at which the control plane counts as under write load.
const BUSY: usize = 8;

/// Delays of consecutive deferrals. After the last one, the status is written under any load.
const DELAYS: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(3), Duration::from_secs(4)];

#[derive(Debug, Default)]
pub struct WriteLoad {
    under_way: AtomicUsize,
}

/// A write in progress. Ends when dropped.
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

    /// Returns true if the control plane is under write load.
    pub fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) >= BUSY
    }
}

/// Keys whose writes are deferred, with the number of deferrals.
#[derive(Debug)]
pub struct DeferredWrites<K> {
    waiting: Mutex<HashMap<K, usize>>,
}

impl<K> Default for DeferredWrites<K> {
    fn default() -> Self {
        DeferredWrites { waiting: Mutex::default() }
    }
}

/// Number of consecutive deferrals of a key.
#[derive(Debug, Clone, Copy)]
pub struct Deferrals(usize);

impl<K: Hash + Eq> DeferredWrites<K> {
    /// Begins a reconcile of the key, whose write is no longer deferred unless the reconcile ends with
    /// [`DeferredWrites::wait`].
    pub fn begin(&self, key: &K) -> Deferrals {
        Deferrals(self.waiting.lock().remove(key).unwrap_or_default())
    }

    /// Delay of the key's write. `None` if it must be written now.
    pub fn wait(&self, write_load: &WriteLoad, key: K, waited: Deferrals) -> Option<Duration> {
        let wait = DELAYS.get(waited.0).copied().filter(|_| write_load.is_busy())?;
        self.waiting.lock().insert(key, waited.0 + 1);
        Some(wait)
    }

    /// True if no write is deferred.
    pub fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_deferred_under_load_for_a_limited_time() {
        let (write_load, deferred) = (WriteLoad::default(), DeferredWrites::default());
        let look = || deferred.wait(&write_load, 1, deferred.begin(&1));
        assert_eq!(look(), None);
        let writes: Vec<WriteInProgress<'_>> = (0..BUSY).map(|_| write_load.begin()).collect();
        assert_eq!([look(), look(), look(), look()], DELAYS.map(Some));
        assert!(!deferred.is_empty());
        assert_eq!(look(), None);
        assert_eq!(look(), Some(DELAYS[0]), "the next write is deferred again");
        drop(writes);
        assert_eq!(look(), None);
        assert!(deferred.is_empty() && !write_load.is_busy());
    }
}
