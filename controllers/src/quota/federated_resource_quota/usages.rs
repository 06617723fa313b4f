//! Usage of the bindings of a namespace, counted once for all of its quotas.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crowsnest_plan::quota::Usage;
use parking_lot::Mutex;

use crate::Error;

/// Counted usage of namespaces.
#[derive(Default)]
pub(super) struct Usages {
    namespaces: Mutex<HashMap<String, Arc<NamespaceCount>>>,
}

/// Usage of a namespace. The lock is held while the usage is counted, so that concurrent callers share the result.
#[derive(Default)]
struct NamespaceCount {
    /// Number of changes of bindings that this process has observed.
    changes: AtomicU64,
    cached: tokio::sync::Mutex<Option<CachedUsage>>,
}

struct CachedUsage {
    /// Value of [`NamespaceCount::changes`] before the bindings were counted.
    changes: u64,
    /// Time of the count, on the monotonic clock.
    counted_at: Duration,
    usage: Usage,
}

impl Usages {
    /// Marks the usage of a namespace as outdated.
    pub fn mark_changed(&self, namespace: &str) {
        if let Some(count) = self.namespaces.lock().get(namespace) {
            count.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Removes a namespace without quotas.
    pub fn remove(&self, namespace: &str) {
        self.namespaces.lock().remove(namespace);
    }

    /// Discards all counts.
    pub fn clear(&self) {
        self.namespaces.lock().clear();
    }

    /// Returns the usage of a namespace. Counts it if bindings have changed since the last count, or if that is older than
    /// `max_age`.
    pub async fn get_or_count(
        &self,
        namespace: &str,
        now: Duration,
        max_age: Duration,
        count: impl Future<Output = Result<Usage, Error>>,
    ) -> Result<Usage, Error> {
        let count_state = Arc::clone(self.namespaces.lock().entry(namespace.to_owned()).or_default());
        let mut cached = count_state.cached.lock().await;
        let changes = count_state.changes.load(Ordering::Acquire);
        if let Some(cached) = &*cached
            && cached.changes == changes
            && now.saturating_sub(cached.counted_at) < max_age
        {
            return Ok(cached.usage.clone());
        }
        let usage = count.await?;
        *cached = Some(CachedUsage { changes, counted_at: now, usage: usage.clone() });
        Ok(usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bindings_are_counted_once_until_they_change() {
        let usages = Usages::default();
        let number_of_counts = AtomicU64::new(0);
        let usage = async |namespace: &str, seconds: u64| {
            let count = async {
                number_of_counts.fetch_add(1, Ordering::AcqRel);
                Ok(Usage::new())
            };
            let (now, max_age) = (Duration::from_secs(seconds), Duration::from_secs(10));
            usages.get_or_count(namespace, now, max_age, count).await.unwrap();
            number_of_counts.load(Ordering::Acquire)
        };
        assert_eq!([usage("a", 0).await, usage("a", 9).await], [1, 1]);
        assert_eq!(usage("b", 9).await, 2, "another namespace");
        assert_eq!(usage("a", 10).await, 3, "the count is old");
        usages.mark_changed("b");
        assert_eq!([usage("a", 11).await, usage("b", 11).await], [3, 4]);
        usages.clear();
        assert_eq!(usage("a", 11).await, 5);
    }
}
