//! Journal: writes each entry as a separate Event of the control plane. Unlike [`crate::runtime::event_recorder`], it
//! aggregates and drops nothing: callers wait while the queue is full (except during shutdown), writers retry until
//! the API server accepts an entry, and shutdown writes the remaining entries. Writers slow down while the control
//! plane is under write load.
//!
//! The supervisor of the controllers runs the future returned by [`Journal::new`].

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::keys::BindingKey;
use crowsnest_apimachinery::unstructured;
use crowsnest_component_base::retry::Backoff;
use futures::StreamExt;
use futures::stream::unfold;
use lru::LruCache;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::runtime::dynamic_client::{DynamicClient, Resource};
use crate::runtime::write_priority::WriteLoad;
use crowsnest_plan::journal::Entry;

/// Queue length. Callers wait while the queue is full.
const QUEUE_CAPACITY: usize = 65_536;
/// Number of concurrent writes.
const WRITERS: usize = 16;
/// Maximum number of remembered entries, for deduplication.
const MAX_RECENT_ENTRIES: usize = 16_384;
/// Maximum number of remembered causes of rescheduling.
const MAX_CAUSES: usize = 4096;
/// Delay before each write while the control plane is under write load.
const LOAD_DELAY: Duration = Duration::from_millis(100);
/// Delays between attempts to write an entry.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Time limit for writing the remaining entries at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Adds entries to the journal. Cheap to clone.
#[derive(Clone)]
pub struct Journal {
    entries: mpsc::Sender<Entry>,
    /// Number of entries that are not written yet.
    waiting: Arc<watch::Sender<usize>>,
    /// Hashes of recent entries, so that repeated checks without a change write nothing.
    recent_entries: Arc<Mutex<LruCache<u64, ()>>>,
    /// Ids of the entries that cause the scheduler to process a binding.
    causes: Arc<Mutex<LruCache<BindingKey, String>>>,
    /// Cancelled at shutdown: callers then no longer wait while the queue is full.
    stopping: CancellationToken,
}

impl Journal {
    /// Creates the journal and the task that writes its entries until it is closed and the queue is empty. Callers
    /// must stop with `stopping`, before the journal is closed.
    pub fn new(
        objects: DynamicClient,
        component: &'static str,
        write_load: Arc<WriteLoad>,
        stopping: CancellationToken,
        closing: CancellationToken,
    ) -> (Self, impl Future<Output = ()>) {
        let (journal, entries) = Self::queue(QUEUE_CAPACITY, stopping);
        let waiting = Arc::clone(&journal.waiting);
        let writer = Writer { objects, component, write_load, retry_backoff: RETRY_BACKOFF };
        (journal, write_all(entries, waiting, writer, closing))
    }

    fn queue(length: usize, stopping: CancellationToken) -> (Self, mpsc::Receiver<Entry>) {
        let (entries, receiver) = mpsc::channel(length);
        let waiting = Arc::new(watch::Sender::new(0));
        (
            Journal {
                entries,
                waiting,
                recent_entries: recent_cache(MAX_RECENT_ENTRIES),
                causes: recent_cache(MAX_CAUSES),
                stopping,
            },
            receiver,
        )
    }

    /// Adds an entry, unless it is a recent one. Waits while the queue is full.
    pub async fn add(&self, entry: Entry) {
        let mut hasher = DefaultHasher::new();
        entry.id.hash(&mut hasher);
        let key = hasher.finish();
        if self.recent_entries.lock().contains(&key) {
            return;
        }
        // An entry whose caller stops waiting is neither counted nor remembered.
        let permit = tokio::select! {
            biased;
            permit = self.entries.reserve() => permit.ok(),
            () = self.stopping.cancelled() => None,
        };
        let Some(permit) = permit else {
            tracing::warn!(entry = entry.id, entry.message, "the journal is shutting down; this entry is only logged");
            return;
        };
        if self.recent_entries.lock().put(key, ()).is_none() {
            // Counted before a writer can finish it.
            self.waiting.send_modify(|waiting| *waiting += 1);
            permit.send(entry);
        }
    }

    pub async fn add_all(&self, entries: impl IntoIterator<Item = Entry>) {
        for entry in entries {
            self.add(entry).await;
        }
    }

    /// Records the entry that causes the scheduler to process a binding.
    pub fn set_cause(&self, key: BindingKey, id: String) {
        self.causes.lock().put(key, id);
    }

    /// Removes and returns the entry that caused the scheduler to process a binding, if any.
    pub fn take_cause(&self, key: &BindingKey) -> Option<String> {
        self.causes.lock().pop(key)
    }

    /// Waits until all entries so far are written.
    pub async fn wait_flushed(&self) {
        wait_until_flushed(&self.waiting).await;
    }

    pub fn is_flushed(&self) -> bool {
        *self.waiting.borrow() == 0
    }
}

/// A cache of the most recent items.
fn recent_cache<K: Hash + Eq, V>(capacity: usize) -> Arc<Mutex<LruCache<K, V>>> {
    Arc::new(Mutex::new(LruCache::new(NonZeroUsize::new(capacity).unwrap_or(NonZeroUsize::MIN))))
}

async fn wait_until_flushed(waiting: &watch::Sender<usize>) {
    let mut waiting = waiting.subscribe();
    // The sender is never dropped before this function returns.
    drop(waiting.wait_for(|waiting| *waiting == 0).await);
}

async fn write_all(
    entries: mpsc::Receiver<Entry>,
    waiting: Arc<watch::Sender<usize>>,
    writer: Writer,
    closing: CancellationToken,
) {
    let entries = unfold(entries, |mut entries| async move { entries.recv().await.map(|entry| (entry, entries)) });
    let (writer, counter) = (&writer, &waiting);
    let writing = entries.for_each_concurrent(WRITERS, |entry| async move {
        writer.write(&entry).await;
        counter.send_modify(|waiting| *waiting -= 1);
    });
    let shutdown = async {
        closing.cancelled().await;
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, wait_until_flushed(&waiting)).await.is_err() {
            tracing::error!(
                remaining = *waiting.borrow(),
                "journal entries are lost: the API server did not accept them in time"
            );
        }
    };
    tokio::select! {
        () = writing => {}
        () = shutdown => {}
    }
}

struct Writer {
    objects: DynamicClient,
    component: &'static str,
    write_load: Arc<WriteLoad>,
    retry_backoff: Backoff,
}

impl Writer {
    /// Writes an entry until the API server accepts it or rejects it permanently.
    async fn write(&self, entry: &Entry) {
        let resource = Resource::builtin("", "v1", "events", "Event", true);
        let event: Value = entry.event(self.component);
        let mut retry_delays = self.retry_backoff.delays();
        if self.write_load.is_busy() {
            tokio::time::sleep(LOAD_DELAY).await;
        }
        while let Err(error) = self.objects.create(&resource, unstructured::namespace(&event), &event).await {
            match classify_error(&error) {
                WriteOutcome::AlreadyExists => return,
                WriteOutcome::Rejected => {
                    let (id, message) = (&entry.id, &entry.message);
                    tracing::warn!(%error, entry = id, message, "the API server rejected a journal entry");
                    return;
                }
                WriteOutcome::Retry => {
                    tracing::debug!(%error, entry = entry.id, "cannot write a journal entry; it is retried");
                    tokio::time::sleep(retry_delays.next_delay()).await;
                }
            }
        }
    }
}

/// Outcome of a failed write.
#[derive(Debug, PartialEq, Eq)]
enum WriteOutcome {
    /// The entry was written before.
    AlreadyExists,
    /// It cannot be written: its namespace does not exist or is terminating, or permission is missing.
    Rejected,
    Retry,
}

fn classify_error(error: &Error) -> WriteOutcome {
    match error.code() {
        Some(409) => WriteOutcome::AlreadyExists,
        Some(408 | 429) => WriteOutcome::Retry,
        Some(400..=499) => WriteOutcome::Rejected,
        // Server errors and connection failures.
        _ => WriteOutcome::Retry,
    }
}

#[cfg(test)]
mod tests;
