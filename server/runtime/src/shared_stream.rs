//! Streams that are shared by all subscribers of a key: one task per key computes the values, and ends when the last
//! subscriber is dropped.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// The latest value of a computation. Dropping the last handle ends the computation.
struct Computation<V> {
    latest: watch::Receiver<Option<V>>,
    _stop_on_drop: DropGuard,
}

/// Running computations by key.
pub struct SharedStreams<K, V> {
    running: Mutex<HashMap<K, Weak<Computation<V>>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl<K, V> Default for SharedStreams<K, V> {
    fn default() -> Self {
        Self { running: Mutex::default(), tasks: TaskTracker::new(), stop: CancellationToken::new() }
    }
}

impl<K: Hash + Eq, V: Clone + Send + Sync + 'static> SharedStreams<K, V> {
    /// Streams the current and all following values of the computation of `key`; `compute` starts one if none is
    /// running.
    pub fn subscribe<F>(&self, key: K, compute: impl FnOnce(watch::Sender<Option<V>>) -> F) -> BoxStream<'static, V>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut running = self.running.lock();
        let computation = running.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            running.retain(|_, computation| computation.strong_count() > 0);
            let (sender, latest) = watch::channel(None);
            let stop_token = self.stop.child_token();
            let (task, task_stop) = (compute(sender), stop_token.clone());
            self.tasks.spawn(async move { task_stop.run_until_cancelled(task).await });
            let computation = Arc::new(Computation { latest, _stop_on_drop: stop_token.drop_guard() });
            running.insert(key, Arc::downgrade(&computation));
            computation
        });
        drop(running);
        let mut latest = computation.latest.clone();
        latest.mark_changed();
        stream::unfold((latest, computation), |(mut latest, computation)| async move {
            loop {
                latest.changed().await.ok()?;
                let value = latest.borrow_and_update().clone();
                if let Some(value) = value {
                    return Some((value, (latest, computation)));
                }
            }
        })
        .boxed()
    }

    /// Ends all computations and the streams of their subscribers.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn computations_are_shared_until_the_last_subscriber_is_dropped() {
        let shared: SharedStreams<&str, usize> = SharedStreams::default();
        let started = Arc::new(AtomicUsize::new(0));
        let subscribe = |key| {
            let started = Arc::clone(&started);
            shared.subscribe(key, move |sender| async move {
                sender.send_replace(Some(started.fetch_add(1, Ordering::SeqCst)));
                std::future::pending().await
            })
        };
        let (mut first, mut second, mut other) = (subscribe("a"), subscribe("a"), subscribe("b"));
        assert_eq!((first.next().await, second.next().await, other.next().await), (Some(0), Some(0), Some(1)));
        drop((first, second));
        // The first computation has ended, so the key starts another one.
        let mut again = subscribe("a");
        assert_eq!(again.next().await, Some(2));
        drop((again, other));
        shared.tasks.close();
        let ended = tokio::time::timeout(std::time::Duration::from_secs(30), shared.tasks.wait());
        ended.await.expect("computations end with their last subscriber");
    }

    #[tokio::test]
    async fn stop_ends_the_streams() {
        let shared: SharedStreams<&str, usize> = SharedStreams::default();
        let mut subscription = shared.subscribe("a", |sender| async move {
            sender.send_replace(Some(1));
            std::future::pending().await
        });
        assert_eq!(subscription.next().await, Some(1));
        shared.stop().await;
        assert_eq!(subscription.next().await, None);
    }
}
