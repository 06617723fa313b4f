//! The task that writes to the store and then publishes the changes to the tail.
//!
//! Collectors send batches through a bounded queue; all waiting batches are combined into one transaction. If a
//! transaction fails, the writer stops and the cache becomes unready, because continuing would leave
//! a gap. A replica instead gives up its claims and the queued batches; after it claims clusters again, their
//! collectors resume from the stored positions.
//!
//! Bookmarks only change a position. An idle fleet sends nothing else, so their positions are stored together at
//! intervals and at the end: after a restart, some events may be received again, but none is missed.

use crate::collect::Share;
use crate::replicas::Claims;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_store::Epoch;
use crowsnest_store::codec::TrainingSet;
use crowsnest_store::metrics::Metrics;
use crowsnest_store::record::{Change, CollectionKey, Seq};
use crowsnest_store::tail::Tail;
use crowsnest_store::{Batch, Position, Progress, Store};
use crowsnest_store::{CollectionState, CollectionStates, Error, HistoryRetention};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Maximum number of writes per transaction; a single larger batch is not split.
const MAX_TRANSACTION_WRITES: usize = 2000;
/// Maximum number of queued batches.
const MAX_QUEUED_BATCHES: usize = 64;
/// Minimum interval between transactions. Batches that arrive in between are combined, because a transaction costs
/// as much as writing many records. After an idle period, a batch is stored immediately.
const MIN_TRANSACTION_INTERVAL: Duration = Duration::from_millis(5);
/// Number of records deleted per transaction when a collection is dropped.
const DROP_CHUNK: usize = 1000;
/// Interval of pruning and of storing the positions of bookmarks. Servers can resend the events of the last minutes.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60);
/// Time limit for storing the positions at the end.
const FINAL_POSITIONS_TIMEOUT: Duration = Duration::from_secs(3);

enum Command {
    Apply(Batch, Completion),
    Control(Control),
}

/// The next command that is queued or arrives before a deadline.
async fn receive_until(queue: &mut mpsc::Receiver<Command>, until: Option<tokio::time::Instant>) -> Option<Command> {
    match (queue.try_recv(), until) {
        (Ok(command), _) => Some(command),
        (Err(_), Some(until)) => tokio::time::timeout_at(until, queue.recv()).await.ok().flatten(),
        (Err(_), None) => None,
    }
}

/// The share to release and the caller to notify once a batch is stored or rejected.
struct Completion {
    _share: Option<Share>,
    done: Option<oneshot::Sender<()>>,
}

enum Control {
    Drop(CollectionKey, Epoch, oneshot::Sender<()>),
    Train(TrainingSet),
}

/// Sender of the writer's queue. Cheap to clone.
#[derive(Debug, Clone)]
pub struct WriterHandle {
    commands: mpsc::Sender<Command>,
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Command")
    }
}

impl WriterHandle {
    /// Queues a batch; waits while the queue is full.
    pub async fn apply(&self, batch: Batch) -> Result<(), Error> {
        self.queue(batch, Completion { _share: None, done: None }).await
    }

    /// Queues a batch that occupies bytes in flight until it is stored.
    pub(crate) async fn apply_with_share(&self, batch: Batch, share: Share) -> Result<(), Error> {
        self.queue(batch, Completion { _share: Some(share), done: None }).await
    }

    async fn queue(&self, batch: Batch, waiting: Completion) -> Result<(), Error> {
        self.commands.send(Command::Apply(batch, waiting)).await.map_err(|_| Error::Stopped)
    }

    /// Queues a batch and waits until it is stored and published.
    pub async fn apply_and_wait(&self, batch: Batch) -> Result<(), Error> {
        let (done, wait) = oneshot::channel();
        self.queue(batch, Completion { _share: None, done: Some(done) }).await?;
        wait.await.map_err(|_| Error::Stopped)
    }

    /// Deletes a collection with all of its records. The deletions are published as changes.
    pub async fn drop_collection(&self, key: CollectionKey, epoch: Epoch) -> Result<(), Error> {
        let (done, wait) = oneshot::channel();
        self.commands.send(Command::Control(Control::Drop(key, epoch, done))).await.map_err(|_| Error::Stopped)?;
        wait.await.map_err(|_| Error::Stopped)
    }

    /// Number of queued commands.
    pub fn queue_length(&self) -> usize {
        self.commands.max_capacity().saturating_sub(self.commands.capacity())
    }

    /// True if the writer has ended.
    pub fn is_stopped(&self) -> bool {
        self.commands.is_closed()
    }

    /// Sends samples for a dictionary. Dropped if the queue is full; samples are collected again after a restart.
    pub fn train(&self, set: TrainingSet) {
        if self.commands.try_send(Command::Control(Control::Train(set))).is_err() {
            tracing::debug!("the writer is busy; a dictionary is trained after the next start");
        }
    }
}

/// Positions of collections that are not stored yet: the epoch of the claim, the resourceVersion, and the time when it
/// was received in Unix milliseconds. All changes of the collection up to its position are stored.
type Positions = BTreeMap<CollectionKey, (Epoch, String, i64)>;

/// Commands that are executed together.
#[derive(Default)]
struct CommandGroup {
    batches: Vec<Batch>,
    /// Number of writes of the batches.
    writes: usize,
    /// Batches that only contain a position and follow all other batches of their collection.
    positions: Vec<Batch>,
    /// Callers to notify, with the claim of their batch.
    waiting: Vec<(ClusterName, Epoch, Completion)>,
}

impl CommandGroup {
    fn add_batch(&mut self, batch: Batch) {
        self.positions.retain(|position| position.collection != batch.collection);
        self.writes += batch.writes.len();
        self.batches.push(batch);
    }

    /// Drops batches whose claims have been lost. Returns true if there were any.
    fn drop_fenced(&mut self, claims: &Claims) -> bool {
        let before = self.batches.len();
        self.batches.retain(|batch| claims.has(&batch.collection.cluster, batch.epoch));
        self.waiting.retain(|(cluster, epoch, _)| claims.has(cluster, *epoch));
        self.batches.len() < before
    }
}

pub(crate) struct Writer {
    pub store: Arc<dyn Store>,
    pub tail: Arc<Tail>,
    pub states: Arc<CollectionStates>,
    pub claims: Arc<Claims>,
    pub metrics: Arc<Metrics>,
    pub history: HistoryRetention,
    /// Seq up to which the text index has processed changes.
    pub indexed_seq: Arc<AtomicU64>,
    pub now_ms: fn() -> i64,
}

impl Writer {
    /// Creates the queue and the task's future.
    pub fn prepare(self, stop: CancellationToken) -> (WriterHandle, impl Future<Output = Result<(), Error>> + Send) {
        let (commands, queue) = mpsc::channel(MAX_QUEUED_BATCHES);
        (WriterHandle { commands }, self.run(queue, stop))
    }

    async fn run(self, mut queue: mpsc::Receiver<Command>, stop: CancellationToken) -> Result<(), Error> {
        let mut positions = Positions::new();
        // The first tick of the timer may be later than the first commands, so this does not wait for it.
        self.maintain(&mut positions).await.or_else(|error| self.claims.give_up(error))?;
        let first = tokio::time::Instant::now() + MAINTENANCE_INTERVAL;
        let mut maintenance = tokio::time::interval_at(first, MAINTENANCE_INTERVAL);
        maintenance.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut stored_at = None;
        loop {
            let command = tokio::select! {
                biased;
                () = stop.cancelled() => {
                    self.store_final_positions(positions).await;
                    return Ok(());
                }
                // Checked before the queue, so that a constant flow of commands does not delay the positions of idle
                // collections.
                _ = maintenance.tick() => {
                    self.maintain(&mut positions).await.or_else(|error| self.claims.give_up(error))?;
                    continue;
                }
                command = queue.recv() => command,
            };
            let Some(command) = command else {
                self.store_final_positions(positions).await;
                return Ok(());
            };
            let result = self.execute(command, &mut queue, &mut positions, &mut stored_at).await;
            result.or_else(|error| self.claims.give_up(error))?;
        }
    }

    /// Stores pending positions and prunes old versions.
    async fn maintain(&self, positions: &mut Positions) -> Result<(), Error> {
        self.store_positions(std::mem::take(positions)).await?;
        if let Err(error) = self.prune().await {
            // Pruning can be repeated without loss, so the claims are kept.
            tracing::warn!(error = error.chain(), "cannot prune old versions; retrying later");
        }
        Ok(())
    }

    /// Stores the positions of the clusters that are still claimed.
    async fn store_positions(&self, positions: Positions) -> Result<(), Error> {
        let local_position =
            |(collection, (epoch, version, last_contact_ms)): (CollectionKey, (Epoch, String, i64))| {
                let is_claimed = self.claims.has(&collection.cluster, epoch);
                is_claimed.then_some(Position { collection, epoch, version, last_contact_ms })
            };
        let positions: Vec<Position> = positions.into_iter().filter_map(local_position).collect();
        if positions.is_empty() {
            return Ok(());
        }
        match self.store.advance(&positions).await {
            // A claim was just lost. Its next holder receives some events again.
            Err(Error::Fenced) => Ok(()),
            done => done,
        }
    }

    /// Stores the last positions before the writer ends. If this fails, some events are received again after a restart.
    async fn store_final_positions(&self, positions: Positions) {
        match tokio::time::timeout(FINAL_POSITIONS_TIMEOUT, self.store_positions(positions)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(error = error.chain(), "cannot store the last positions"),
            Err(_) => tracing::debug!("storing the last positions timed out"),
        }
    }

    /// Deletes old versions beyond the retention limits.
    async fn prune(&self) -> Result<(), Error> {
        let mut history = self.history;
        if history.max_store_bytes.is_some() {
            match self.store.size().await {
                Ok(size) => {
                    let excess_bytes;
                    (history, excess_bytes) = history.fit_to_store(&size);
                    if excess_bytes > 0 && size.versions == 0 {
                        tracing::warn!(
                            excess_bytes,
                            "the store exceeds its size limit; raise the limit or exclude resources"
                        );
                    }
                }
                // The size is checked again at the next interval.
                Err(error) => tracing::warn!(error = error.chain(), "cannot read the size of the store"),
            }
        }
        let indexed_seq = Seq(self.indexed_seq.load(Ordering::Relaxed));
        self.store.prune(&history, (self.now_ms)(), indexed_seq).await.map(drop)
    }

    fn publish(&self, changes: Vec<Change>) {
        if !self.tail.publish(changes) {
            self.claims.missing_changes.notify_one();
        }
    }

    /// Executes a command together with queued batches.
    async fn execute(
        &self,
        command: Command,
        queue: &mut mpsc::Receiver<Command>,
        positions: &mut Positions,
        stored_at: &mut Option<tokio::time::Instant>,
    ) -> Result<(), Error> {
        let mut next = Some(command);
        while let Some(command) = next.take() {
            match command {
                Command::Apply(batch, then) => {
                    let mut group = CommandGroup::default();
                    self.admit(batch, then, &mut group);
                    let until = stored_at.map(|stored| stored + MIN_TRANSACTION_INTERVAL);
                    while group.writes < MAX_TRANSACTION_WRITES {
                        match receive_until(queue, until).await {
                            Some(Command::Apply(batch, then)) => self.admit(batch, then, &mut group),
                            Some(other) => {
                                next = Some(other);
                                break;
                            }
                            None => break,
                        }
                    }
                    self.apply_claimed(&mut group).await?;
                    *stored_at = Some(tokio::time::Instant::now());
                    group.batches.iter().for_each(|batch| drop(positions.remove(&batch.collection)));
                    self.record_positions(group.positions, positions);
                    drop(group.batches);
                    for done in group.waiting.into_iter().filter_map(|(_, _, waiting)| waiting.done) {
                        // The caller may no longer be waiting.
                        let _ = done.send(());
                    }
                }
                Command::Control(control) => self.execute_control(control, positions).await?,
            }
        }
        Ok(())
    }

    /// Adds a batch to the group. Drops it, which notifies its sender, if its claim has been lost.
    fn admit(&self, batch: Batch, then: Completion, group: &mut CommandGroup) {
        if !self.claims.has(&batch.collection.cluster, batch.epoch) {
            return;
        }
        group.waiting.push((batch.collection.cluster.clone(), batch.epoch, then));
        match self.is_position_only(&batch) {
            true => group.positions.push(batch),
            false => group.add_batch(batch),
        }
    }

    /// True if the batch only contains a position, or nothing.
    fn is_position_only(&self, batch: &Batch) -> bool {
        let Progress { resource_version, complete, kind, scope } = &batch.progress;
        if !batch.writes.is_empty() || *complete || scope.is_some() {
            return false;
        }
        let is_known = |state: CollectionState| {
            let is_same_kind =
                |(kind, namespaced): &(String, bool)| *state.kind == **kind && state.namespaced == *namespaced;
            state.complete && kind.as_ref().is_none_or(is_same_kind)
        };
        resource_version.is_none() && kind.is_none() || self.states.get(&batch.collection).is_some_and(is_known)
    }

    /// Advances the states of collections to the positions of batches that need no transaction.
    fn record_positions(&self, batches: Vec<Batch>, positions: &mut Positions) {
        let now_ms = (self.now_ms)();
        for Batch { collection, epoch, progress, .. } in batches {
            self.states.apply_progress(&collection, &progress, now_ms);
            if let Some(version) = progress.resource_version {
                positions.insert(collection, (epoch, version, now_ms));
            }
        }
    }

    /// Applies the batches of claimed clusters. If a claim is lost during the transaction, the other batches are
    /// applied again.
    async fn apply_claimed(&self, group: &mut CommandGroup) -> Result<(), Error> {
        loop {
            match self.apply(&group.batches).await {
                Err(Error::Fenced) if group.drop_fenced(&self.claims) => {}
                done => return done,
            }
        }
    }

    async fn apply(&self, batches: &[Batch]) -> Result<(), Error> {
        if batches.is_empty() {
            return Ok(());
        }
        let started_at = Instant::now();
        let now_ms = (self.now_ms)();
        let changes = self.store.apply(batches, now_ms).await?;
        self.metrics.transactions.add(1);
        self.metrics.transaction_microseconds.add(started_at.elapsed().as_micros() as u64);
        self.metrics.changes.add(changes.len() as u64);
        self.publish(changes);
        for batch in batches {
            self.states.apply_progress(&batch.collection, &batch.progress, now_ms);
        }
        Ok(())
    }

    async fn execute_control(&self, control: Control, positions: &mut Positions) -> Result<(), Error> {
        match control {
            Control::Drop(key, epoch, done) => {
                positions.remove(&key);
                while self.claims.has(&key.cluster, epoch) {
                    let dropped = self.store.drop_collection(&key, epoch, DROP_CHUNK, (self.now_ms)()).await;
                    if matches!(dropped, Err(Error::Fenced)) && !self.claims.has(&key.cluster, epoch) {
                        break;
                    }
                    let changes = dropped?;
                    if changes.is_empty() {
                        self.states.remove(&key);
                        break;
                    }
                    self.publish(changes);
                }
                let _ = done.send(());
            }
            Control::Train(set) => {
                let trained = tokio::task::spawn_blocking(move || (set.train(), set.kind)).await;
                match trained {
                    Ok((Some(dictionary), kind)) => {
                        self.store.save_dictionary(&kind, &dictionary, (self.now_ms)()).await?;
                    }
                    Ok((None, kind)) => tracing::debug!(kind, "objects are too different for a dictionary"),
                    Err(error) => tracing::warn!(%error, "cannot train a dictionary"),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_store::CacheOptions;
    use crowsnest_store::RecordWrite;
    use crowsnest_store::codec::Codec;
    use crowsnest_store::fixtures::{cluster, draft, resource_of};
    use crowsnest_store::sqlite::SqliteStore;
    use serde_json::json;

    const NOW: i64 = 5000;

    fn pods() -> CollectionKey {
        CollectionKey::new(cluster("member1"), resource_of(&json!({})))
    }

    fn batch(writes: Vec<RecordWrite>, version: Option<&str>, complete: bool) -> Batch {
        let resource_version = version.map(str::to_owned);
        let kind = Some(("Pod".to_owned(), true));
        let progress = Progress { resource_version, complete, kind, ..Progress::default() };
        Batch { collection: pods(), epoch: Epoch::UNSHARED, writes, progress }
    }

    async fn stored_position(store: &SqliteStore) -> String {
        store.collections().await.unwrap().remove(0).state.resource_version
    }

    #[tokio::test]
    async fn positions_of_bookmarks_are_stored_at_the_end_and_never_before_their_batches() {
        let directory = tempfile::tempdir().unwrap();
        let options = CacheOptions::new(directory.path());
        let codec = Arc::new(Codec::default());
        let store = Arc::new(SqliteStore::open(&options, Arc::clone(&codec)).await.unwrap());
        let (states, metrics) = (Arc::<CollectionStates>::default(), Arc::<Metrics>::default());
        let writer = Writer {
            store: Arc::clone(&store) as Arc<dyn Store>,
            tail: Arc::new(Tail::new(Seq(0), 100, 1 << 20)),
            states: Arc::clone(&states),
            claims: Arc::new(Claims::everything()),
            metrics: Arc::clone(&metrics),
            history: HistoryRetention::default(),
            indexed_seq: Arc::default(),
            now_ms: || NOW,
        };
        let stop = CancellationToken::new();
        let (handle, writing) = writer.prepare(stop.clone());
        let writing = tokio::spawn(writing);
        handle.apply_and_wait(batch(Vec::new(), Some("5"), true)).await.unwrap();
        let transactions = metrics.transactions.get();
        for version in ["6", "7"] {
            handle.apply_and_wait(batch(Vec::new(), Some(version), false)).await.unwrap();
        }
        // Collectors of this process resume from there.
        let state = states.get(&pods()).unwrap();
        assert_eq!((state.resource_version.as_str(), state.last_contact_ms), ("7", NOW));
        assert_eq!((stored_position(&store).await.as_str(), metrics.transactions.get()), ("5", transactions));
        // A stored batch contains its own position.
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"namespace": "x", "name": "a", "uid": "u",
            "resourceVersion": "8"}});
        let object = draft(&pod);
        let packed = codec.pack("/Pod", &object.body).unwrap().0;
        let write = RecordWrite::Put(Box::new(object), packed);
        handle.apply_and_wait(batch(vec![write], Some("8"), false)).await.unwrap();
        assert_eq!(stored_position(&store).await, "8");
        handle.apply_and_wait(batch(Vec::new(), Some("9"), false)).await.unwrap();
        stop.cancel();
        writing.await.unwrap().unwrap();
        assert_eq!(stored_position(&store).await, "9");
    }
}
