//! Follows the store into the text index: one writer, batched commits, the reached seq as payload.

mod catch_up;
mod commit_policy;
mod pending;
mod waiter;

use super::{MergeMode, OpenIndex, Payload, TextIndex, WarmUp, merge_policy};
use crate::document::Document;
use crate::tantivy::throttle::{WorkTimer, lower_priority};
use catch_up::close;
use commit_policy::CommitPolicy;
use crowsnest_component_base::retry::Backoff;
use crowsnest_store::Store;
use crowsnest_store::metrics::Metrics;
use crowsnest_store::record::{Change, ChangeKind, Object, Seq};
use crowsnest_store::tail::Tail;
use crowsnest_store::{CacheOptions, Error};
use pending::PendingChanges;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tantivy::{IndexWriter, Term};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use waiter::Waiter;

/// Number of changes read from the store at once while catching up.
const REPLAY_BATCH: usize = 500;
/// Number of pending changes above which the writer counts as behind.
const FAR_BEHIND_CHANGES: usize = REPLAY_BATCH * 2;
/// Maximum bytes of changed objects that are buffered until the next commit.
const MAX_BUFFERED_BYTES: usize = 8 << 20;
/// Idle time before merged segments are published, doubled each time up to the maximum: long merges are not urgent.
const MERGE_PUBLISH_BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(600));
/// Niceness of the writer's threads: about a quarter of a contended core, or a tenth while the cache is filled
/// after a start, when objects are more urgent than their index.
const NICENESS: i32 = 5;
const START_NICENESS: i32 = 10;
/// The start phase ends when the text index has not been far behind for this time.
const START_PHASE_IDLE: Duration = Duration::from_secs(5);

/// Follows the store into the text index.
pub(crate) struct TextFollower {
    pub text: Arc<TextIndex>,
    pub store: Arc<dyn Store>,
    pub tail: Arc<Tail>,
    pub metrics: Arc<Metrics>,
    pub payload: Payload,
    /// Seq up to which searches find changes.
    pub searchable: watch::Sender<Seq>,
    /// Seq of the last commit of the index that is being written: later deletions must not be pruned.
    pub committed: Arc<AtomicU64>,
    /// Decides when to commit and how to merge.
    commit_policy: CommitPolicy,
    pub heap_bytes: usize,
    /// Seq of the store when the index that is being written was empty: earlier deletions are irrelevant.
    pub empty_at: Seq,
    /// The index that is being filled while searches use the old one.
    rebuild: Option<OpenIndex>,
    pub tolerates_outages: bool,
    warm_up: Box<WarmUp>,
    /// Measures work that is followed by a pause; `None` after the start phase.
    work_timer: Option<WorkTimer>,
}

impl TextFollower {
    pub fn new(
        (text, payload): (Arc<TextIndex>, Payload),
        store: Arc<dyn Store>,
        tail: Arc<Tail>,
        metrics: Arc<Metrics>,
        committed: Arc<AtomicU64>,
        options: &CacheOptions,
        warm_up: Box<WarmUp>,
    ) -> (Self, watch::Receiver<Seq>) {
        committed.store(payload.seq, Ordering::Relaxed);
        let (searchable, receiver) = watch::channel(Seq(payload.seq));
        let follower = Self {
            text,
            store,
            tail,
            metrics,
            payload,
            searchable,
            committed,
            commit_policy: CommitPolicy::new(options.text_commit_interval, options.text_commit_changes.max(1)),
            heap_bytes: options.text_heap_bytes,
            empty_at: Seq(0),
            rebuild: None,
            tolerates_outages: options.store.tolerates_outages(),
            warm_up,
            work_timer: None,
        };
        (follower, receiver)
    }

    /// Runs until stopped: first on threads with very low priority and then, because a thread cannot raise its
    /// priority again, on other threads.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        match self.run_on_thread(START_NICENESS, Some(START_PHASE_IDLE), &stop).await? {
            Some(started) => started.run_on_thread(NICENESS, None, &stop).await.map(drop),
            None => Ok(()),
        }
    }

    /// Builds and commits documents on a separate thread, until stopped. With `start_phase_idle`, also until the index
    /// has been up to date for that time; then the follower is returned.
    async fn run_on_thread(
        mut self,
        nice: i32,
        start_phase_idle: Option<Duration>,
        stop: &CancellationToken,
    ) -> Result<Option<Self>, Error> {
        let (waiter, _guard) = Waiter::new(Handle::current(), stop);
        let (ended, end) = oneshot::channel();
        let work = move || {
            lower_priority(nice);
            // For timers created in this thread.
            let _entered = waiter.runtime().enter();
            self.work_timer = start_phase_idle.map(|_| WorkTimer::start(self.tail.latest()));
            // The receiver is dropped only at shutdown.
            let _ = ended.send(self.follow(&waiter, start_phase_idle));
        };
        let thread = std::thread::Builder::new().name("text-index".to_owned()).spawn(work);
        thread.map_err(|source| Error::Io { path: "the text index's thread".to_owned(), source })?;
        end.await.unwrap_or_else(|_| Err(Error::StoreFormat("the text index's writer panicked".to_owned())))
    }

    fn follow(mut self, waiter: &Waiter, start_phase_idle: Option<Duration>) -> Result<Option<Self>, Error> {
        let mut behind_at = Instant::now();
        let mut writer = self.text.writer(self.heap_bytes)?;
        let mut tail = self.tail.follow(Seq(self.payload.seq));
        let mut pending = PendingChanges::default();
        let mut mode = MergeMode::Following;
        let mut idle_rounds = 1;
        loop {
            let lag = self.tail.latest().0.saturating_sub(tail.since().0);
            let (now, uncommitted) = (Instant::now(), pending.uncommitted_changes(lag));
            let next_mode = self.commit_policy.mode(&uncommitted, now);
            if next_mode == MergeMode::Filling {
                behind_at = now;
            } else if pending.seq.is_none() && start_phase_idle.is_some_and(|idle| behind_at.elapsed() > idle) {
                close(writer)?;
                return Ok(Some(self));
            }
            let before = std::mem::replace(&mut mode, next_mode);
            if before != next_mode {
                writer.set_merge_policy(merge_policy(next_mode));
            }
            if (before, next_mode, pending.seq) == (MergeMode::Burst, MergeMode::Following, None) {
                // Only a commit begins the merges that the burst deferred.
                pending.seq = Some(Seq(self.payload.seq));
                self.commit(&mut writer, &mut pending)?;
            }
            let deadline = self.commit_policy.deadline(&uncommitted, mode);
            let next = waiter.wait(async {
                let until = async {
                    match deadline {
                        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    () = until => NextStep::Commit,
                    () = tokio::time::sleep(MERGE_PUBLISH_BACKOFF.delay(idle_rounds)), if deadline.is_none() => NextStep::PublishMerged,
                    changes = tail.next() => match changes {
                        None => NextStep::Stop,
                        Some(changes) => NextStep::Changes(changes),
                    },
                }
            });
            self.begin_work();
            match next.unwrap_or(NextStep::Stop) {
                NextStep::Stop => {
                    self.commit(&mut writer, &mut pending)?;
                    close(writer)?;
                    return Ok(None);
                }
                NextStep::Commit => {
                    self.commit(&mut writer, &mut pending)?;
                    idle_rounds = 1;
                }
                NextStep::PublishMerged => {
                    self.publish_merged()?;
                    idle_rounds += 1;
                }
                NextStep::Changes(Ok(changes)) => {
                    for change in changes {
                        self.commit_policy.observe_change(Instant::now());
                        pending.add(change.seq);
                        pending.buffer(change);
                    }
                    if pending.buffered_bytes > MAX_BUFFERED_BYTES {
                        self.flush(&writer, &mut pending)?;
                    }
                }
                NextStep::Changes(Err(_)) => {
                    self.flush(&writer, &mut pending)?;
                    let since = pending.seq.unwrap_or(Seq(self.payload.seq)).max(tail.since());
                    let reached;
                    (writer, reached) = self.catch_up(waiter, writer, &mut pending, since)?;
                    // The writer may be another one.
                    writer.set_merge_policy(merge_policy(mode));
                    tail.skip_to(reached);
                    behind_at = Instant::now();
                }
            }
            if self.commit_policy.has_enough_changes(pending.changes) {
                self.commit(&mut writer, &mut pending)?;
            }
            self.throttle(waiter);
            let latest = self.tail.latest().0;
            self.metrics.text_lag.set(latest.saturating_sub(pending.seq.map_or(self.payload.seq, |seq| seq.0)));
        }
    }

    /// Starts measuring work.
    fn begin_work(&mut self) {
        if let Some(timer) = &mut self.work_timer {
            *timer = WorkTimer::start(self.tail.latest());
        }
    }

    /// Pauses after work during the start phase.
    fn throttle(&self, waiter: &Waiter) {
        let latest = self.tail.latest();
        let pause = self.work_timer.as_ref().map_or(Duration::ZERO, |timer| timer.pause_duration(latest));
        if !pause.is_zero() {
            waiter.wait(tokio::time::sleep(pause));
        }
    }

    fn delete(&self, writer: &IndexWriter, id: u64) {
        writer.delete_term(Term::from_field_u64(self.text.columns.id, id));
    }

    /// Writes buffered changes: only the last one of each object.
    fn flush(&self, writer: &IndexWriter, pending: &mut PendingChanges) -> Result<(), Error> {
        let indexed_until = pending.indexed_until.map_or(self.payload.seq, |seq| seq.0);
        for (id, change) in std::mem::take(&mut pending.buffered) {
            match change.kind {
                ChangeKind::Deleted if id <= indexed_until => self.delete(writer, id),
                ChangeKind::Deleted => {}
                ChangeKind::Added | ChangeKind::Modified => self.index_object(writer, indexed_until, &change.object)?,
            }
        }
        (pending.buffered_bytes, pending.indexed_until) = (0, pending.seq);
        Ok(())
    }

    fn index_object(&self, writer: &IndexWriter, indexed_until: u64, object: &Object) -> Result<(), Error> {
        // The id is the seq of the first change. A later one cannot be in the index, so the search for a document
        // to delete is skipped.
        if object.record.id <= indexed_until {
            self.delete(writer, object.record.id);
        }
        let document = Document::from_object(object)?.to_tantivy(&self.text.columns);
        writer.add_document(document).map_err(|e| Error::text("cannot add a document", e))?;
        self.metrics.text_documents.add(1);
        Ok(())
    }

    /// Publishes merged segments to searches. A commit does so as well, but there is none without changes.
    fn publish_merged(&self) -> Result<(), Error> {
        if self.rebuild.is_none() && self.text.has_merged_segments()? {
            self.text.reload(Seq(self.payload.seq), &*self.warm_up)?;
        }
        self.metrics.text_segments.set(self.text.snapshot().segments.len() as u64);
        Ok(())
    }

    /// Writes and commits the pending changes, and publishes them to searches unless the index is being rebuilt.
    fn commit(&mut self, writer: &mut IndexWriter, pending: &mut PendingChanges) -> Result<(), Error> {
        let Some(seq) = pending.seq else { return Ok(()) };
        let started_at = Instant::now();
        self.flush(writer, pending)?;
        self.payload.seq = seq.0;
        let payload = serde_json::to_string(&self.payload)
            .map_err(|source| Error::Decode { object: "commit payload".to_owned(), source })?;
        let fail = |e| Error::text("cannot commit", e);
        let mut prepared = writer.prepare_commit().map_err(fail)?;
        prepared.set_payload(&payload);
        prepared.commit().map_err(fail)?;
        self.committed.store(seq.0, Ordering::Relaxed);
        if self.rebuild.is_none() {
            self.text.reload(seq, &*self.warm_up)?;
            self.searchable.send_replace(seq);
        }
        self.metrics.text_segments.set(self.text.snapshot().segments.len() as u64);
        self.metrics.text_commits.add(1);
        let took = started_at.elapsed();
        self.commit_policy.observe_commit(took);
        self.metrics.text_commit_microseconds.add(took.as_micros() as u64);
        *pending = PendingChanges::default();
        Ok(())
    }
}

/// Next step of the writer's loop.
enum NextStep {
    Stop,
    Commit,
    /// No changes for a while.
    PublishMerged,
    Changes(Result<Vec<Arc<Change>>, crowsnest_store::Gone>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_store::HistoryRetention;
    use crowsnest_store::codec::Codec;
    use crowsnest_store::fixtures::{cluster, draft, resource_of};
    use crowsnest_store::sqlite::SqliteStore;
    use crowsnest_store::{Batch, Progress, RecordWrite};
    use crowsnest_store::{CollectionKey, Epoch};
    use serde_json::{Value, json};

    fn pod(name: &str, version: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "a", "name": name, "uid": name,
            "resourceVersion": version}})
    }

    fn put(codec: &Codec, name: &str, version: &str) -> RecordWrite {
        let draft = draft(&pod(name, version));
        let (packed, _) = codec.pack("/Pod", &draft.body).unwrap();
        RecordWrite::Put(Box::new(draft), packed)
    }

    fn delete(name: &str) -> RecordWrite {
        RecordWrite::Delete { namespace: "a".to_owned(), name: name.to_owned(), resource_version: "9".to_owned() }
    }

    async fn apply(store: &SqliteStore, codec: &Codec, writes: impl IntoIterator<Item = (&str, bool)>) -> Vec<Change> {
        let write = |(name, deleted): (&str, bool)| if deleted { delete(name) } else { put(codec, name, "1") };
        store_all(store, writes.into_iter().map(write)).await
    }

    async fn store_all(store: &SqliteStore, writes: impl IntoIterator<Item = RecordWrite>) -> Vec<Change> {
        let collection = CollectionKey::new(cluster("member1"), resource_of(&pod("", "")));
        let writes = writes.into_iter().collect();
        store
            .apply(&[Batch { collection, epoch: Epoch::UNSHARED, writes, progress: Progress::default() }], 0)
            .await
            .unwrap()
    }

    const NO_HISTORY: HistoryRetention =
        HistoryRetention { max_age: Duration::ZERO, max_versions: 1, max_bytes: 0, max_store_bytes: None };

    /// Follows until the index has caught up with the store; returns the number of documents.
    async fn caught_up(options: &CacheOptions, store: &Arc<SqliteStore>, bulk_changes: u64) -> u64 {
        let (identity, latest) = (store.identity().await.unwrap(), store.latest().await.unwrap());
        // Opened before the pruning.
        let opened = TextIndex::open(options, &identity).unwrap();
        let text = Arc::clone(&opened.0);
        let tail = Arc::new(Tail::new(latest, 10, 1 << 20));
        let shared: Arc<dyn Store> = Arc::clone(store) as _;
        let (mut follower, mut searchable) =
            TextFollower::new(opened, shared, tail, Arc::default(), Arc::default(), options, Box::new(|_, _, _| {}));
        follower.commit_policy.bulk_changes = bulk_changes;
        let stop = CancellationToken::new();
        let running = tokio::spawn(follower.run(stop.clone()));
        let reached = tokio::time::timeout(Duration::from_secs(60), searchable.wait_for(|seq| *seq >= latest)).await;
        reached.unwrap().unwrap();
        stop.cancel();
        running.await.unwrap().unwrap();
        text.searcher().num_docs()
    }

    #[rstest::rstest]
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn pruned_deletions_are_not_counted(#[values(0, 1, 50_000)] bulk_changes: u64) {
        let directory = tempfile::tempdir().unwrap();
        let options = CacheOptions { text_commit_interval: Duration::ZERO, ..CacheOptions::new(directory.path()) };
        let codec = Arc::new(Codec::default());
        let store = Arc::new(SqliteStore::open(&options, Arc::clone(&codec)).await.unwrap());
        apply(&store, &codec, [("one", false), ("two", false)]).await;
        assert_eq!(caught_up(&options, &store, bulk_changes).await, 2);
        // The deletion is pruned before the index reads it.
        apply(&store, &codec, [("two", true), ("three", false), ("one", true)]).await;
        assert!(store.prune(&NO_HISTORY, i64::MAX, Seq(u64::MAX)).await.unwrap() > 0);
        assert_eq!(caught_up(&options, &store, bulk_changes).await, 1);
        apply(&store, &codec, [("three", true)]).await;
        store.prune(&NO_HISTORY, i64::MAX, Seq(u64::MAX)).await.unwrap();
        // Until the rebuild is complete, the old index serves searches.
        let (old, payload) = TextIndex::open(&options, &store.identity().await.unwrap()).unwrap();
        assert_eq!((old.searcher().num_docs(), payload.seq < store.pruned_until().await.unwrap().0), (1, true));
        drop(old);
        assert_eq!(caught_up(&options, &store, bulk_changes).await, 0);
        assert_eq!(TextIndex::open(&options, &store.identity().await.unwrap()).unwrap().0.searcher().num_docs(), 0);
        // An empty index is filled in place.
        apply(&store, &codec, [("four", false)]).await;
        let folders = crate::tantivy::FOLDERS.map(|folder| directory.path().join(folder));
        folders.iter().filter(|folder| folder.exists()).for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
        assert_eq!(caught_up(&options, &store, bulk_changes).await, 1);
        assert_eq!(folders.map(|folder| folder.exists()), [true, false]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn repeated_changes_are_indexed_in_their_last_state() {
        let directory = tempfile::tempdir().unwrap();
        let options =
            CacheOptions { text_commit_interval: Duration::from_millis(100), ..CacheOptions::new(directory.path()) };
        let codec = Arc::new(Codec::default());
        let store = Arc::new(SqliteStore::open(&options, Arc::clone(&codec)).await.unwrap());
        let opened = TextIndex::open(&options, &store.identity().await.unwrap()).unwrap();
        let text = Arc::clone(&opened.0);
        let tail = Arc::new(Tail::new(store.latest().await.unwrap(), 100, 1 << 20));
        let shared: Arc<dyn Store> = Arc::clone(&store) as _;
        let (follower, mut searchable) = TextFollower::new(
            opened,
            shared,
            Arc::clone(&tail),
            Arc::default(),
            Arc::default(),
            &options,
            Box::new(|_, _, _| {}),
        );
        let stop = CancellationToken::new();
        let running = tokio::spawn(follower.run(stop.clone()));
        // Each row is committed at once, with the number of documents expected afterwards.
        let rows = [
            (vec![put(&codec, "one", "1"), put(&codec, "two", "1")], vec![put(&codec, "one", "2"), delete("two")], 1),
            (vec![put(&codec, "one", "3")], vec![put(&codec, "one", "4"), put(&codec, "two", "2")], 2),
            (vec![delete("one")], vec![put(&codec, "one", "5"), delete("two")], 1),
            (vec![put(&codec, "one", "6")], vec![delete("one")], 0),
        ];
        for (number, (first, then, found)) in rows.into_iter().enumerate() {
            for writes in [first, then] {
                assert!(tail.publish(store_all(&store, writes).await));
            }
            let latest = tail.latest();
            let reached = searchable.wait_for(|seq| *seq >= latest);
            tokio::time::timeout(Duration::from_secs(60), reached).await.unwrap().unwrap();
            assert_eq!(text.searcher().num_docs(), found, "row {number}");
        }
        stop.cancel();
        running.await.unwrap().unwrap();
    }
}
