//! Named locks: one holder per name.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

type NameLock = tokio::sync::Mutex<()>;

/// Locks that are held or awaited, by name.
#[derive(Default)]
pub struct KeyedMutex(Mutex<HashMap<String, Weak<NameLock>>>);

impl KeyedMutex {
    /// Acquires the lock of a name, until the guard is dropped.
    pub async fn lock(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock();
            locks.retain(|_, lock| lock.strong_count() > 0);
            let lock = locks.get(name).and_then(Weak::upgrade).unwrap_or_default();
            locks.insert(name.to_owned(), Arc::downgrade(&lock));
            lock
        };
        lock.lock_owned().await
    }
}
