//! How busy the control plane is with writes that others wait for, so that writes nobody waits for give way.
//!
//! Counted are the writes of this process that carry a template on its way to members: claims, bindings, their clusters,
//! Works. Many of them under way at once means that the API server is what everybody waits for. Then events of successes
//! are dropped, and good news in a status comes later, by a bounded time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// So many writes under way are more than changes at rest ever need.
const BUSY: usize = 8;

/// Waits of a status that gives way, one after the other; then it is written whatever goes on.
const WAITS: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(3), Duration::from_secs(4)];

#[derive(Debug, Default)]
pub struct Traffic {
    under_way: AtomicUsize,
}

/// A write under way, until it is dropped.
#[derive(Debug)]
pub struct UnderWay<'t>(&'t Traffic);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Traffic {
    pub fn begin(&self) -> UnderWay<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(self)
    }

    /// Whether writes that others wait for wait themselves.
    pub fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) >= BUSY
    }
}

/// Keys whose news give way, and how often they did.
#[derive(Debug)]
pub struct GivingWay<K> {
    waiting: Mutex<HashMap<K, usize>>,
}

impl<K> Default for GivingWay<K> {
    fn default() -> Self {
        GivingWay { waiting: Mutex::default() }
    }
}

/// How often a key's news have given way so far.
#[derive(Debug, Clone, Copy)]
pub struct Waited(usize);

impl<K: Hash + Eq> GivingWay<K> {
    /// A look at the key begins: it waits no more, unless the look ends with [`GivingWay::wait`].
    pub fn begin(&self, key: &K) -> Waited {
        Waited(self.waiting.lock().remove(key).unwrap_or_default())
    }

    /// How long the key's news should wait now; `None` when they should not.
    pub fn wait(&self, traffic: &Traffic, key: K, waited: Waited) -> Option<Duration> {
        let wait = WAITS.get(waited.0).copied().filter(|_| traffic.is_busy())?;
        self.waiting.lock().insert(key, waited.0 + 1);
        Some(wait)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_wait_while_others_do_and_not_for_ever() {
        let (traffic, giving_way) = (Traffic::default(), GivingWay::default());
        let look = || giving_way.wait(&traffic, 1, giving_way.begin(&1));
        assert_eq!(look(), None);
        let writes: Vec<UnderWay<'_>> = (0..BUSY).map(|_| traffic.begin()).collect();
        assert_eq!([look(), look(), look(), look()], WAITS.map(Some));
        assert!(!giving_way.is_empty());
        assert_eq!(look(), None);
        assert_eq!(look(), Some(WAITS[0]), "the next news wait again");
        drop(writes);
        assert_eq!(look(), None);
        assert!(giving_way.is_empty() && !traffic.is_busy());
    }
}
