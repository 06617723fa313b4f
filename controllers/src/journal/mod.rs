//! Journal: writes entries as Events of the control plane, each its own. Unlike [`crate::runtime::event_recorder`], it counts
//! nothing up and drops nothing: a caller waits while the queue is full (except at shutdown), writers retry an entry until the
//! API server has it, and shutdown writes the entries that are left. Writers slow down while the control plane is under write
//! load.
//!
//! The owner of the future of [`Journal::new`] runs it: the supervisor of the controllers, and the server of the webhooks.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::keys::BindingKey;
use crowsnest_apimachinery::unstructured;
use futures::StreamExt;
use futures::stream::unfold;
use lru::LruCache;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::runtime::dynamic_client::{Objects, Resource};
use crate::runtime::write_priority::WriteLoad;
use crowsnest_plan::journal::Entry;

/// Entries that may wait. Then whoever notes one waits, too.
const WAITING: usize = 65_536;
/// Events written at once.
const WRITERS: usize = 16;
/// Entries that are known to have been noted.
const NOTED: usize = 16_384;
/// Bindings the scheduler is about to look at because of an entry.
const ASKED: usize = 4096;
/// Before each write while others wait for the API server.
const PATIENCE: Duration = Duration::from_millis(100);
/// Between two tries, the first and the longest.
const BREATH: Duration = Duration::from_millis(100);
const LONGEST_BREATH: Duration = Duration::from_secs(5);
/// How long the end waits for what is not written yet.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// Notes entries. Cheap to clone.
#[derive(Clone)]
pub struct Journal {
    entries: mpsc::Sender<Entry>,
    /// Entries noted and not written yet.
    waiting: Arc<watch::Sender<usize>>,
    /// What was noted lately: whoever looks again at what has not changed writes nothing.
    noted: Arc<Mutex<LruCache<u64, ()>>>,
    asked: Arc<Mutex<LruCache<BindingKey, String>>>,
    /// Whoever notes is to end: nobody waits for a place any more.
    ending: CancellationToken,
}

impl Journal {
    /// The journal, and the task that writes for it until it is closed and nothing waits. Those who note are to end with
    /// `ending`, before it is closed.
    pub fn new(
        objects: Objects,
        component: &'static str,
        write_load: Arc<WriteLoad>,
        ending: CancellationToken,
        closing: CancellationToken,
    ) -> (Self, impl Future<Output = ()>) {
        let (journal, entries) = Self::queue(WAITING, ending);
        let waiting = Arc::clone(&journal.waiting);
        let writer = Writer { objects, component, write_load, breath: BREATH };
        (journal, write_all(entries, waiting, writer, closing))
    }

    fn queue(length: usize, ending: CancellationToken) -> (Self, mpsc::Receiver<Entry>) {
        let (entries, receiver) = mpsc::channel(length);
        let waiting = Arc::new(watch::Sender::new(0));
        (Journal { entries, waiting, noted: lately(NOTED), asked: lately(ASKED), ending }, receiver)
    }

    /// Notes an entry, unless it is one that was noted. Waits while the queue is full.
    pub async fn note(&self, entry: Entry) {
        let mut hasher = DefaultHasher::new();
        entry.id.hash(&mut hasher);
        let key = hasher.finish();
        if self.noted.lock().contains(&key) {
            return;
        }
        // Nothing is counted, nor known, of an entry whose noter waits no longer.
        let place = tokio::select! {
            biased;
            place = self.entries.reserve() => place.ok(),
            () = self.ending.cancelled() => None,
        };
        let Some(place) = place else {
            tracing::warn!(entry = entry.id, entry.message, "the journal ends; an entry is in this log alone");
            return;
        };
        if self.noted.lock().put(key, ()).is_none() {
            // Counted before a writer can have written it.
            self.waiting.send_modify(|waiting| *waiting += 1);
            place.send(entry);
        }
    }

    pub async fn note_all(&self, entries: impl IntoIterator<Item = Entry>) {
        for entry in entries {
            self.note(entry).await;
        }
    }

    /// The scheduler is going to look at a binding because of an entry.
    pub fn asks(&self, key: BindingKey, id: String) {
        self.asked.lock().put(key, id);
    }

    /// Because of which entry the scheduler looks at a binding, where it is one; nobody is told twice.
    pub fn asked_by(&self, key: &BindingKey) -> Option<String> {
        self.asked.lock().pop(key)
    }

    /// Waits until everything noted so far is written.
    pub async fn flushed(&self) {
        nothing_waits(&self.waiting).await;
    }

    pub fn is_flushed(&self) -> bool {
        *self.waiting.borrow() == 0
    }
}

/// What is remembered of the latest; of those before nothing.
fn lately<K: Hash + Eq, V>(most: usize) -> Arc<Mutex<LruCache<K, V>>> {
    Arc::new(Mutex::new(LruCache::new(NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN))))
}

async fn nothing_waits(waiting: &watch::Sender<usize>) {
    let mut waiting = waiting.subscribe();
    // The sender lives as long as this does.
    drop(waiting.wait_for(|waiting| *waiting == 0).await);
}

async fn write_all(
    entries: mpsc::Receiver<Entry>,
    waiting: Arc<watch::Sender<usize>>,
    writer: Writer,
    closing: CancellationToken,
) {
    let entries = unfold(entries, |mut entries| async move { entries.recv().await.map(|entry| (entry, entries)) });
    let (writer, counted) = (&writer, &waiting);
    let writing = entries.for_each_concurrent(WRITERS, |entry| async move {
        writer.write(&entry).await;
        counted.send_modify(|waiting| *waiting -= 1);
    });
    let closed = async {
        closing.cancelled().await;
        if tokio::time::timeout(LAST_WRITES, nothing_waits(&waiting)).await.is_err() {
            tracing::error!(
                left = *waiting.borrow(),
                "entries of the journal are lost: the API server did not take them"
            );
        }
    };
    tokio::select! {
        () = writing => {}
        () = closed => {}
    }
}

struct Writer {
    objects: Objects,
    component: &'static str,
    write_load: Arc<WriteLoad>,
    /// Between the first two tries; then twice as long each time.
    breath: Duration,
}

impl Writer {
    /// Until the API server has it, or says that it never will.
    async fn write(&self, entry: &Entry) {
        let resource = Resource::builtin("", "v1", "events", "Event", true);
        let event: Value = entry.event(self.component);
        let mut breath = self.breath;
        if self.write_load.is_busy() {
            tokio::time::sleep(PATIENCE).await;
        }
        while let Err(error) = self.objects.create(&resource, unstructured::namespace(&event), &event).await {
            match fate(&error) {
                Fate::There => return,
                Fate::Refused => {
                    let (id, message) = (&entry.id, &entry.message);
                    tracing::warn!(%error, entry = id, message, "an entry of the journal was refused");
                    return;
                }
                Fate::Later => {
                    tracing::debug!(%error, entry = entry.id, "an entry of the journal waits");
                    tokio::time::sleep(breath).await;
                    breath = (breath * 2).min(LONGEST_BREATH);
                }
            }
        }
    }
}

/// What becomes of an entry that was not taken.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// It was written before.
    There,
    /// Its namespace is gone or going, or it may not be written.
    Refused,
    Later,
}

fn fate(error: &Error) -> Fate {
    match error.code() {
        Some(409) => Fate::There,
        Some(408 | 429) => Fate::Later,
        Some(400..=499) => Fate::Refused,
        // The server fails, or cannot be reached.
        _ => Fate::Later,
    }
}

#[cfg(test)]
mod tests;
