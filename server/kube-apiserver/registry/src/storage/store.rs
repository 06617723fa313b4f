//! The store: reads the index under a lock; one task commits writes in groups.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::storage::index::{Change, ChangeKind, HistoryLimits, Index, ListRange, Listing, MAX_WAKE_INTERVAL, Record};
use crate::storage::journal::{Entry, Journal};
use crate::storage::{Body, ObjectKey, ResourceKey, Revision};

/// Capacity of the writer's queue; further callers wait.
const QUEUE_CAPACITY: usize = 1024;
/// Maximum number of writes per transaction.
const MAX_WRITES_PER_TRANSACTION: usize = 512;
/// Maximum number of changes returned to a watcher at once.
const MAX_CHANGES_PER_BATCH: usize = 256;

/// Precondition of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precondition {
    Absent,
    /// The object is at this revision.
    Revision(Revision),
}

/// A write; `body` is `None` for a delete.
#[derive(Debug)]
pub struct Write {
    pub table: ResourceKey,
    pub key: ObjectKey,
    pub precondition: Precondition,
    pub body: Option<Body>,
}

struct QueuedWrite {
    write: Write,
    reply: oneshot::Sender<Result<Revision>>,
}

struct Shared {
    index: RwLock<Index>,
    progress: watch::Sender<Revision>,
    queue: Mutex<Option<mpsc::Sender<QueuedWrite>>>,
    writer: Mutex<Option<JoinHandle<Result<()>>>>,
    /// Error of a failed commit, after which the store refuses writes.
    failure: Mutex<Option<String>>,
}

/// Handle to the objects of one server. Clones share the store.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("revision", &self.revision()).finish()
    }
}

impl Store {
    /// Loads the journal's contents and starts the writer task.
    pub async fn open(mut journal: Box<dyn Journal>, limits: HistoryLimits) -> Result<Self> {
        let snapshot = journal.load().await?;
        let mut index = Index::new(snapshot.revision, limits);
        for (table, key, revision, body) in snapshot.objects {
            index.load(table, key, revision, body);
        }
        let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
        let shared = Arc::new(Shared {
            progress: watch::Sender::new(index.revision()),
            index: RwLock::new(index),
            queue: Mutex::new(Some(sender)),
            writer: Mutex::new(None),
            failure: Mutex::new(None),
        });
        let writer = tokio::spawn(run_writer(shared.clone(), receiver, journal, limits.expiry_interval));
        *shared.writer.lock() = Some(writer);
        Ok(Self { shared })
    }

    pub fn revision(&self) -> Revision {
        self.shared.index.read().revision()
    }

    pub fn last_change(&self, table: &ResourceKey) -> Revision {
        self.shared.index.read().last_change(table)
    }

    pub fn get(&self, table: &ResourceKey, key: &ObjectKey) -> Option<Record> {
        self.shared.index.read().get(table, key).cloned()
    }

    /// Objects of one namespace (of all namespaces if empty) after a key, at the current or an older revision.
    pub fn list(&self, table: &ResourceKey, namespace: &str, range: ListRange<'_>) -> Result<Listing> {
        self.shared.index.read().list(table, namespace, range)
    }

    /// The first object of a table in each version in which objects are stored, except `api_version`.
    pub fn first_of_other_versions(&self, table: &ResourceKey, api_version: &str) -> Vec<Record> {
        self.shared.index.read().first_of_other_versions(table, api_version)
    }

    /// All records of one namespace (of all namespaces if empty).
    pub fn records(&self, table: &ResourceKey, namespace: &str) -> Vec<Record> {
        self.list(table, namespace, ListRange::ALL).map(|listing| listing.records).unwrap_or_default()
    }

    /// All readable objects of one namespace (of all namespaces if empty), in their storage version.
    pub fn objects(&self, table: &ResourceKey, namespace: &str) -> Vec<Value> {
        self.records(table, namespace).iter().filter_map(|record| decode_or_log(table, record)).collect()
    }

    /// An object in its storage version; `None` if it is absent or unreadable.
    pub fn object(&self, table: &ResourceKey, key: &ObjectKey) -> Option<Value> {
        decode_or_log(table, &self.get(table, key)?)
    }

    pub fn count(&self, table: &ResourceKey) -> usize {
        self.shared.index.read().count(table)
    }

    /// All tables with their number of objects, for metrics.
    pub fn tables(&self) -> Vec<(ResourceKey, usize)> {
        self.shared.index.read().tables().map(|(key, count)| (key.clone(), count)).collect()
    }

    /// Commits one write; on return it is durable and visible.
    pub async fn write(&self, write: Write) -> Result<Revision> {
        self.enqueue(write).await?.await.map_err(|_| Error::Closed)?
    }

    /// Commits writes in order, in few groups, with one result each. Not a transaction: each write may be refused.
    pub async fn write_all(&self, writes: Vec<Write>) -> Result<Vec<Result<Revision>>> {
        let mut waiting = Vec::with_capacity(writes.len());
        for write in writes {
            waiting.push(self.enqueue(write).await?);
        }
        let mut outcomes = Vec::with_capacity(waiting.len());
        for result in waiting {
            outcomes.push(result.await.map_err(|_| Error::Closed)?);
        }
        Ok(outcomes)
    }

    async fn enqueue(&self, write: Write) -> Result<oneshot::Receiver<Result<Revision>>> {
        let queue = self.shared.queue.lock().clone().ok_or(Error::Closed)?;
        let (reply, result) = oneshot::channel();
        queue.send(QueuedWrite { write, reply }).await.map_err(|_| Error::Closed)?;
        Ok(result)
    }

    /// Changes of a table after `since`.
    pub fn watch(&self, table: &ResourceKey, since: Revision) -> Result<Watcher> {
        let mut index = self.shared.index.write();
        index.changes(table, since, 0)?;
        let progress = index.subscribe(table);
        Ok(Watcher { shared: self.shared.clone(), table: table.clone(), position: since, progress })
    }

    /// Waits until the server has reached a revision.
    pub async fn wait_for_revision(&self, revision: Revision) {
        let mut progress = self.shared.progress.subscribe();
        // The sender lives as long as the store.
        drop(progress.wait_for(|current| *current >= revision).await);
    }

    /// Drops history up to and including `revision`.
    pub fn compact(&self, revision: Revision) {
        self.shared.index.write().compact(revision);
    }

    /// All stored objects, then all changes of all tables, for components that follow the entire store.
    pub fn feed(&self) -> Feed {
        Feed { shared: self.shared.clone(), position: None, progress: self.shared.progress.subscribe() }
    }

    /// The error that makes the store refuse writes, if any.
    pub fn failure(&self) -> Option<String> {
        self.shared.failure.lock().clone()
    }

    /// Commits the queued writes and closes the journal. Later writes fail with [`Error::Closed`].
    pub async fn close(&self) -> Result<()> {
        self.shared.queue.lock().take();
        let writer = self.shared.writer.lock().take();
        match writer {
            Some(writer) => writer.await?,
            None => Ok(()),
        }
    }
}

/// Cursor over the changes of one table.
pub struct Watcher {
    shared: Arc<Shared>,
    table: ResourceKey,
    position: Revision,
    progress: watch::Receiver<Revision>,
}

impl Watcher {
    /// Waits for changes and returns a batch, oldest first. [`Error::Expired`] if the watcher fell behind the
    /// retained history.
    pub async fn next(&mut self) -> Result<Vec<Arc<Change>>> {
        loop {
            // Zero before the first change since the start of the server; otherwise the revision of the last change.
            let latest = *self.progress.borrow_and_update();
            if latest == 0 || latest > self.position {
                let changes = self.shared.index.read().changes(&self.table, self.position, MAX_CHANGES_PER_BATCH)?;
                if let Some(last) = changes.last() {
                    self.position = last.revision;
                    return Ok(changes);
                }
            }
            self.progress.changed().await.map_err(|_| Error::Closed)?;
        }
    }

    /// All changes up to this revision have been returned; advances while the table is idle. Used for
    /// bookmarks.
    pub fn position(&mut self) -> Revision {
        let index = self.shared.index.read();
        if index.last_change(&self.table) <= self.position {
            self.position = self.position.max(index.revision());
        }
        self.position
    }
}

/// Cursor over all tables; see [`Store::feed`].
pub struct Feed {
    shared: Arc<Shared>,
    /// `None` until the stored objects have been returned.
    position: Option<Revision>,
    progress: watch::Receiver<Revision>,
}

/// A change in a feed. Objects that exist when the feed starts are returned as `Added`.
#[derive(Debug)]
pub struct FeedChange {
    pub kind: ChangeKind,
    pub key: ObjectKey,
    pub revision: Revision,
    pub body: Body,
}

impl Feed {
    /// The next changes in the order of their revisions; [`Error::Expired`] if the feed fell behind the retained
    /// history.
    pub async fn next(&mut self) -> Result<Vec<(ResourceKey, FeedChange)>> {
        loop {
            self.progress.borrow_and_update();
            let mut changes = self.pending()?;
            if !changes.is_empty() {
                changes.sort_by_key(|(_, change)| change.revision);
                return Ok(changes);
            }
            if self.shared.queue.lock().is_none() {
                return Err(Error::Closed);
            }
            self.progress.changed().await.map_err(|_| Error::Closed)?;
        }
    }

    fn pending(&mut self) -> Result<Vec<(ResourceKey, FeedChange)>> {
        let index = self.shared.index.read();
        let mut changes = Vec::new();
        match self.position {
            None => {
                for (table, _) in index.tables() {
                    for record in index.list(table, "", ListRange::ALL)?.records {
                        let Record { key, revision, body } = record;
                        changes.push((table.clone(), FeedChange { kind: ChangeKind::Added, key, revision, body }));
                    }
                }
            }
            Some(position) => {
                for table in index.changed_tables(position) {
                    for change in index.changes(&table, position, usize::MAX)? {
                        let (key, body) = (change.key.clone(), change.body.clone());
                        let change = FeedChange { kind: change.kind, key, revision: change.revision, body };
                        changes.push((table.clone(), change));
                    }
                }
            }
        }
        self.position = Some(index.revision());
        Ok(changes)
    }
}

async fn run_writer(
    shared: Arc<Shared>,
    mut queue: mpsc::Receiver<QueuedWrite>,
    mut journal: Box<dyn Journal>,
    expiry_interval: Duration,
) -> Result<()> {
    let mut group = Vec::with_capacity(MAX_WRITES_PER_TRANSACTION);
    let mut wake_times = WakeTimes::new();
    let mut expiry = tokio::time::Instant::now() + expiry_interval;
    loop {
        // Checked before each group: a queue that is never empty, also of refused writes, must not defer it.
        if tokio::time::Instant::now() >= expiry {
            expire_history(&shared, &mut *journal, &mut wake_times).await;
            expiry = tokio::time::Instant::now() + expiry_interval;
        }
        let received = queue.recv_many(&mut group, MAX_WRITES_PER_TRANSACTION);
        let received = tokio::time::timeout_at(expiry, received);
        match run_while_waking(&shared, &mut wake_times, received).await {
            Ok(0) => break,
            Ok(_) => commit_group(&shared, &mut *journal, &mut wake_times, &mut group).await,
            Err(_) => {}
        }
    }
    for (table, time) in wake_times {
        // The watchers are due then: their wake-up interval is at most `MAX_WAKE_INTERVAL`, whatever their number.
        shared.index.write().wake(&table, time + MAX_WAKE_INTERVAL);
    }
    // Wakes feeds that wait for progress, so that they end.
    shared.progress.send_modify(|_| {});
    journal.close().await
}

/// Commits a group of writes, publishes them and sends the results.
async fn commit_group(
    shared: &Shared,
    journal: &mut dyn Journal,
    wake_times: &mut WakeTimes,
    group: &mut Vec<QueuedWrite>,
) {
    if let Some(reason) = shared.failure.lock().clone() {
        for queued in group.drain(..) {
            send_result(queued.reply, Err(Error::WritesDisabled(reason.clone())));
        }
        return;
    }
    let (entries, replies) = check_preconditions(&shared.index.read(), group.drain(..));
    let Some(last) = entries.last().map(|e| e.revision) else { return };
    if let Err(error) = run_while_waking(shared, wake_times, journal.commit(&entries, last)).await {
        let reason = disable_writes(shared, &error);
        for (reply, _) in replies {
            send_result(reply, Err(Error::WritesDisabled(reason.clone())));
        }
        return;
    }
    publish(shared, entries, wake_times);
    for (reply, revision) in replies {
        send_result(reply, Ok(revision));
    }
}

/// Refuses all later writes, because a commit failed. Returns the reason.
fn disable_writes(shared: &Shared, error: &Error) -> String {
    tracing::error!(%error, "cannot commit; the store accepts no more writes");
    let reason = error.to_string();
    *shared.failure.lock() = Some(reason.clone());
    reason
}

/// Expires history, after advancing the revision if the expiry of continue tokens depends on that.
async fn expire_history(shared: &Shared, journal: &mut dyn Journal, wake_times: &mut WakeTimes) {
    let next = shared.index.read().next_idle_revision().filter(|_| shared.failure.lock().is_none());
    if let Some(revision) = next {
        // Durable, so that a restarted server does not use the revision for another state. If the commit fails, no
        // client has seen the revision: a later write may use it, or the next attempt.
        match run_while_waking(shared, wake_times, journal.commit(&[], revision)).await {
            Ok(()) => {
                shared.index.write().advance(revision);
                shared.progress.send_replace(revision);
            }
            Err(error) => tracing::warn!(%error, revision, "cannot advance the revision of an idle store"),
        }
    }
    shared.index.write().expire_history(Instant::now());
}

/// Tables whose watchers have not been woken for all changes, with the time of the next attempt.
type WakeTimes = HashMap<ResourceKey, Instant>;

/// Waits until `time`; never returns if it is None.
async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// Runs an operation to completion. Wakes the watchers of due tables in the meantime, because a commit can take a long time.
async fn run_while_waking<T>(shared: &Shared, wake_times: &mut WakeTimes, operation: impl Future<Output = T>) -> T {
    let mut operation = pin!(operation);
    loop {
        tokio::select! {
            output = &mut operation => return output,
            () = wait_until(wake_times.values().min().copied()) => {
                wake_due(&mut shared.index.write(), wake_times, Instant::now());
            }
        }
    }
}

/// Wakes the watchers of the tables that are due.
fn wake_due(index: &mut Index, wake_times: &mut WakeTimes, now: Instant) {
    wake_times.retain(|table, time| {
        if *time <= now {
            let later = index.wake(table, now);
            *time = later.unwrap_or(now);
            return later.is_some();
        }
        true
    });
}

/// Sends a result; the caller may have stopped waiting.
fn send_result(reply: oneshot::Sender<Result<Revision>>, result: Result<Revision>) {
    drop(reply.send(result));
}

type PendingReplies = Vec<(oneshot::Sender<Result<Revision>>, Revision)>;

/// Checks the preconditions of a group against the index and the preceding writes; the results of refused writes
/// are sent at once.
fn check_preconditions(index: &Index, group: impl Iterator<Item = QueuedWrite>) -> (Vec<Entry>, PendingReplies) {
    let mut revision = index.revision();
    let mut pending: HashMap<(ResourceKey, ObjectKey), Option<Revision>> = HashMap::new();
    let (mut entries, mut replies) = (Vec::new(), Vec::new());
    for QueuedWrite { write, reply } in group {
        let object = (write.table, write.key);
        let current = match pending.get(&object) {
            Some(state) => *state,
            None => index.get(&object.0, &object.1).map(|r| r.revision),
        };
        let rejection = match (write.precondition, current) {
            (Precondition::Absent, None) => None,
            (Precondition::Absent, Some(_)) => Some(Error::AlreadyExists),
            (Precondition::Revision(_), None) => Some(Error::NotFound),
            (Precondition::Revision(expected), Some(current)) if expected == current => None,
            (Precondition::Revision(_), Some(current)) => Some(Error::Conflict { current }),
        };
        if let Some(error) = rejection {
            send_result(reply, Err(error));
            continue;
        }
        revision += 1;
        pending.insert(object.clone(), write.body.as_ref().map(|_| revision));
        entries.push(Entry { table: object.0, key: object.1, revision, body: write.body });
        replies.push((reply, revision));
    }
    (entries, replies)
}

fn publish(shared: &Shared, entries: Vec<Entry>, wake_times: &mut WakeTimes) {
    let now = Instant::now();
    let mut index = shared.index.write();
    for entry in entries {
        index.apply(&entry.table, &entry.key, entry.revision, entry.body, now);
        wake_times.insert(entry.table, now);
    }
    wake_due(&mut index, wake_times, now);
    shared.progress.send_replace(index.revision());
}

/// Decodes a record; logs errors.
fn decode_or_log(table: &ResourceKey, record: &Record) -> Option<Value> {
    let read = record.body.decode(record.revision);
    read.inspect_err(|error| tracing::error!(?table, key = ?record.key, %error, "cannot read a stored object")).ok()
}
