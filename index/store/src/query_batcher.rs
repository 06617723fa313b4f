//! Batches concurrent queries: while some queries are at the database, new ones are queued and then sent together.
//! A single query is sent immediately; many concurrent ones cost one round trip instead of one each.
//!
//! No background task is needed: the caller that gets a free slot executes its own and all waiting queries, and then
//! passes the slot to a caller that has queued since. A slot is also passed on if its holder is dropped.

use crate::Error;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Message to a waiting caller.
enum Wakeup<Q, A> {
    /// Another caller executed the waiter's query.
    Executed(A),
    /// The waiter got the slot and executes its own query.
    Execute(Slot<Q, A>),
}

type Waiting<Q, A> = oneshot::Sender<Wakeup<Q, A>>;

struct Queue<Q, A> {
    waiting: VecDeque<(Q, Waiting<Q, A>)>,
    /// Number of free slots.
    slots: usize,
}

/// Batches concurrent queries, see the module documentation. `Q` is a query and `A` its result.
pub(super) struct QueryBatcher<Q, A> {
    queue: Arc<Mutex<Queue<Q, A>>>,
    max_batch: usize,
}

/// Permit to execute a batch. The number of slots limits concurrent batches. Dropping it passes it to the next waiting
/// caller.
struct Slot<Q, A>(Option<Arc<Mutex<Queue<Q, A>>>>);

impl<Q, A> Drop for Slot<Q, A> {
    fn drop(&mut self) {
        let Some(queue) = self.0.take() else { return };
        loop {
            let Some((_, waiting)) = queue.lock().waiting.pop_front() else { break };
            match waiting.send(Wakeup::Execute(Slot(Some(Arc::clone(&queue))))) {
                Ok(()) => return,
                // The waiter was dropped; try the next one.
                Err(Wakeup::Execute(mut slot)) => slot.0 = None,
                Err(Wakeup::Executed(_)) => {}
            }
        }
        queue.lock().slots += 1;
    }
}

impl<Q: Clone, A> QueryBatcher<Q, A> {
    /// At most `slots` concurrent batches with at most `max_batch` queries each.
    pub fn new(slots: usize, max_batch: usize) -> Self {
        Self { queue: Arc::new(Mutex::new(Queue { waiting: VecDeque::new(), slots })), max_batch }
    }

    /// Calls `execute` with this query and the waiting ones, unless another caller includes this query in its batch.
    /// Results are in the order of the queries. A query sees all data committed before the call.
    pub async fn query<F>(&self, query: Q, execute: impl Fn(Vec<Q>) -> F) -> Result<A, Error>
    where
        F: Future<Output = Result<Vec<A>, Error>>,
    {
        loop {
            let slot = match self.try_slot(&query) {
                Ok(slot) => slot,
                Err(waiting) => match waiting.await {
                    Ok(Wakeup::Executed(result)) => return Ok(result),
                    Ok(Wakeup::Execute(slot)) => slot,
                    // The caller that executes the query failed or was dropped.
                    Err(_) => continue,
                },
            };
            let (queries, others) = self.take_batch(&query);
            let mut results = execute(queries).await?.into_iter();
            let first_result = results.next();
            drop(slot);
            for (waiting, result) in others.into_iter().zip(results) {
                // Dropped waiters need no result.
                waiting.send(Wakeup::Executed(result)).ok();
            }
            if let Some(first_result) = first_result {
                return Ok(first_result);
            }
        }
    }

    fn try_slot(&self, query: &Q) -> Result<Slot<Q, A>, oneshot::Receiver<Wakeup<Q, A>>> {
        let mut queue = self.queue.lock();
        if let Some(remaining) = queue.slots.checked_sub(1) {
            queue.slots = remaining;
            return Ok(Slot(Some(Arc::clone(&self.queue))));
        }
        let (sender, waiting) = oneshot::channel();
        queue.waiting.push_back((query.clone(), sender));
        Err(waiting)
    }

    /// This query and the waiting ones, with the channels of the latter.
    fn take_batch(&self, query: &Q) -> (Vec<Q>, Vec<Waiting<Q, A>>) {
        let mut queue = self.queue.lock();
        let count = queue.waiting.len().min(self.max_batch - 1);
        let others = queue.waiting.drain(..count).filter(|(_, waiting)| !waiting.is_closed());
        let (mut queries, mut waiting) = (vec![query.clone()], Vec::with_capacity(count));
        for (query, sender) in others {
            queries.push(query);
            waiting.push(sender);
        }
        (queries, waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Semaphore;
    use tokio::task::JoinSet;

    #[tokio::test]
    async fn waiting_queries_are_batched_and_each_caller_gets_its_result() {
        let batcher = Arc::new(QueryBatcher::new(1, 16));
        let (gate, queries_run) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for query in 0..33_u32 {
            let (batcher, gate, queries_run) = (Arc::clone(&batcher), Arc::clone(&gate), Arc::clone(&queries_run));
            tasks.spawn(async move {
                let all = async |queries: Vec<u32>| {
                    queries_run.fetch_add(1, Ordering::Relaxed);
                    gate.acquire().await.unwrap().forget();
                    Ok(queries.iter().map(|query| query * 2).collect())
                };
                assert_eq!(batcher.query(query, all).await.unwrap(), query * 2);
            });
            tokio::task::yield_now().await;
        }
        gate.add_permits(33);
        tasks.join_all().await;
        assert_eq!(queries_run.load(Ordering::Relaxed), 3, "a single query, then two batches of sixteen");
        assert_eq!(batcher.queue.lock().slots, 1);
    }

    #[tokio::test]
    async fn a_failed_or_dropped_caller_does_not_block_the_others() {
        let batcher: QueryBatcher<u32, u32> = QueryBatcher::new(1, 16);
        let result = |queries: Vec<u32>| std::future::ready(Ok(queries));
        let mut blocked = Box::pin(batcher.query(1, |_| std::future::pending()));
        assert!(blocked.as_mut().now_or_never().is_none());
        let (mut second, mut third) = (Box::pin(batcher.query(2, result)), Box::pin(batcher.query(3, result)));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        drop(blocked);
        // The second caller holds the slot and is dropped before using it.
        drop(second);
        assert_eq!(third.await.unwrap(), 3);

        let failing = |_| std::future::ready(Err(Error::Decompress("broken".to_owned())));
        let mut failed = Box::pin(batcher.query(4, failing));
        assert!(failed.as_mut().now_or_never().is_some_and(|result| result.is_err()));
        assert_eq!(batcher.query(5, result).await.unwrap(), 5);
        assert_eq!(batcher.queue.lock().slots, 1);
    }
}
