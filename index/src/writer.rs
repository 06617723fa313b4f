//! The one task that writes to the store, and then tells the tail.
//!
//! Collectors hand in batches through a bounded queue; whatever waits is taken into one transaction. If a transaction
//! fails the writer stops and the cache is unready (invariant I6): going on would leave a hole.

use crate::metrics::Metrics;
use crate::record::CollectionKey;
use crate::store::codec::TrainingSet;
use crate::store::{Batch, Progress, Store};
use crate::tail::Tail;
use crate::{CollectionState, Error};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Steps taken into one transaction at most (a single larger batch is still one).
const TRANSACTION_STEPS: usize = 2000;
/// Batches that may wait.
const QUEUE: usize = 64;
const DROP_CHUNK: usize = 1000;
const PRUNE_EVERY: Duration = Duration::from_secs(60);

/// What every part of the cache knows of its collections.
#[derive(Debug, Default)]
pub struct States {
    states: RwLock<BTreeMap<CollectionKey, CollectionState>>,
    version: watch::Sender<u64>,
}

impl States {
    pub fn get(&self, key: &CollectionKey) -> Option<CollectionState> {
        self.states.read().get(key).cloned()
    }

    pub fn all(&self) -> Vec<(CollectionKey, CollectionState)> {
        self.states.read().iter().map(|(key, state)| (key.clone(), state.clone())).collect()
    }

    /// Counts changes of completeness and trouble.
    pub fn version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    pub(crate) fn update(&self, key: &CollectionKey, change: impl FnOnce(&mut CollectionState)) {
        let notable = {
            let mut states = self.states.write();
            let state = states.entry(key.clone()).or_default();
            let before = (state.complete, state.trouble.clone());
            change(state);
            before != (state.complete, state.trouble.clone())
        };
        if notable {
            self.version.send_modify(|version| *version += 1);
        }
    }

    pub(crate) fn remove(&self, key: &CollectionKey) {
        self.states.write().remove(key);
        self.version.send_modify(|version| *version += 1);
    }

    fn progress(&self, key: &CollectionKey, progress: &Progress, now_ms: i64) {
        self.update(key, |state| {
            if let Some(version) = &progress.resource_version {
                state.resource_version.clone_from(version);
            }
            if let Some((kind, namespaced)) = &progress.kind {
                state.kind = kind.as_str().into();
                state.namespaced = *namespaced;
            }
            state.complete |= progress.complete;
            state.heard_at = now_ms;
        });
    }
}

enum Order {
    Apply(Batch, Option<oneshot::Sender<()>>),
    Drop(CollectionKey, oneshot::Sender<()>),
    Train(TrainingSet),
}

/// The queue to the writer. Cheap to clone.
#[derive(Debug, Clone)]
pub struct WriterHandle {
    orders: mpsc::Sender<Order>,
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Order")
    }
}

impl WriterHandle {
    /// Queues a batch, waiting while the queue is full.
    pub async fn apply(&self, batch: Batch) -> Result<(), Error> {
        self.orders.send(Order::Apply(batch, None)).await.map_err(|_| Error::Stopped)
    }

    /// Queues a batch and waits until it is stored and told.
    pub async fn apply_and_wait(&self, batch: Batch) -> Result<(), Error> {
        let (done, wait) = oneshot::channel();
        self.orders.send(Order::Apply(batch, Some(done))).await.map_err(|_| Error::Stopped)?;
        wait.await.map_err(|_| Error::Stopped)
    }

    /// Deletes a whole collection, as changes.
    pub async fn drop_collection(&self, key: CollectionKey) -> Result<(), Error> {
        let (done, wait) = oneshot::channel();
        self.orders.send(Order::Drop(key, done)).await.map_err(|_| Error::Stopped)?;
        wait.await.map_err(|_| Error::Stopped)
    }

    /// Hands over samples for a dictionary. Dropped when the queue is full: another body will complete another set.
    pub fn train(&self, set: TrainingSet) {
        if self.orders.try_send(Order::Train(set)).is_err() {
            tracing::debug!("the writer is busy, a dictionary waits for the next start");
        }
    }
}

pub(crate) struct Writer {
    pub store: Arc<dyn Store>,
    pub tail: Arc<Tail>,
    pub states: Arc<States>,
    pub metrics: Arc<Metrics>,
    pub tombstones_for: Duration,
    pub tombstones_max: u64,
    pub now_ms: fn() -> i64,
}

impl Writer {
    /// The queue, and the task's future.
    pub fn prepare(self, stop: CancellationToken) -> (WriterHandle, impl Future<Output = Result<(), Error>> + Send) {
        let (orders, queue) = mpsc::channel(QUEUE);
        (WriterHandle { orders }, self.run(queue, stop))
    }

    async fn run(self, mut queue: mpsc::Receiver<Order>, stop: CancellationToken) -> Result<(), Error> {
        let mut prune = tokio::time::interval(PRUNE_EVERY);
        prune.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let order = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                order = queue.recv() => order,
                _ = prune.tick() => {
                    self.store.prune(self.tombstones_for, self.tombstones_max, (self.now_ms)()).await?;
                    continue;
                }
            };
            match order {
                None => return Ok(()),
                Some(Order::Apply(batch, done)) => self.apply(batch, done, &mut queue).await?,
                Some(other) => self.obey(other).await?,
            }
        }
    }

    async fn apply(
        &self,
        first: Batch,
        done: Option<oneshot::Sender<()>>,
        queue: &mut mpsc::Receiver<Order>,
    ) -> Result<(), Error> {
        let mut steps = first.steps.len();
        let mut batches = vec![first];
        let mut waiting: Vec<_> = done.into_iter().collect();
        let mut then = None;
        while steps < TRANSACTION_STEPS {
            match queue.try_recv() {
                Ok(Order::Apply(batch, done)) => {
                    steps += batch.steps.len();
                    waiting.extend(done);
                    batches.push(batch);
                }
                Ok(other) => {
                    then = Some(other);
                    break;
                }
                Err(_) => break,
            }
        }
        let started = Instant::now();
        let now_ms = (self.now_ms)();
        let changes = self.store.apply(&batches, now_ms).await?;
        self.metrics.transactions.add(1);
        self.metrics.transaction_microseconds.add(started.elapsed().as_micros() as u64);
        self.metrics.changes.add(changes.len() as u64);
        self.tail.publish(changes);
        for batch in &batches {
            self.states.progress(&batch.collection, &batch.progress, now_ms);
        }
        for done in waiting {
            // Nobody waiting any more is fine.
            let _ = done.send(());
        }
        match then {
            Some(order) => self.obey(order).await,
            None => Ok(()),
        }
    }

    async fn obey(&self, order: Order) -> Result<(), Error> {
        match order {
            Order::Apply(batch, done) => {
                let changes = self.store.apply(std::slice::from_ref(&batch), (self.now_ms)()).await?;
                self.tail.publish(changes);
                self.states.progress(&batch.collection, &batch.progress, (self.now_ms)());
                if let Some(done) = done {
                    let _ = done.send(());
                }
            }
            Order::Drop(key, done) => {
                loop {
                    let changes = self.store.drop_collection(&key, DROP_CHUNK, (self.now_ms)()).await?;
                    if changes.is_empty() {
                        break;
                    }
                    self.tail.publish(changes);
                }
                self.states.remove(&key);
                let _ = done.send(());
            }
            Order::Train(set) => {
                let trained = tokio::task::spawn_blocking(move || (set.train(), set.kind)).await;
                match trained {
                    Ok((Some(dictionary), kind)) => {
                        self.store.save_dictionary(&kind, &dictionary, (self.now_ms)()).await?;
                    }
                    Ok((None, kind)) => tracing::debug!(kind, "objects too different for a dictionary"),
                    Err(error) => tracing::warn!(%error, "training a dictionary failed"),
                }
            }
        }
        Ok(())
    }
}
