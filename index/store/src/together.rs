//! Batches concurrent queries: while some queries are at the database, new ones are queued and then sent together.
//! A single query is sent immediately; many concurrent ones cost one round trip instead of one each.
//!
//! There is no task: the caller that gets a free slot executes the queries of all waiting callers and then passes
//! the slot on. A slot is also passed on when its holder is dropped.

use crate::Error;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

enum Turn<Q, A> {
    Answered(A),
    Ask(Place<Q, A>),
}

type Waiting<Q, A> = oneshot::Sender<Turn<Q, A>>;

struct Queue<Q, A> {
    waiting: VecDeque<(Q, Waiting<Q, A>)>,
    places: usize,
}

pub(super) struct Together<Q, A> {
    queue: Arc<Mutex<Queue<Q, A>>>,
    most: usize,
}

/// Permit to execute a batch; their number is limited.
struct Place<Q, A>(Option<Arc<Mutex<Queue<Q, A>>>>);

impl<Q, A> Drop for Place<Q, A> {
    fn drop(&mut self) {
        let Some(queue) = self.0.take() else { return };
        loop {
            let Some((_, waiting)) = queue.lock().waiting.pop_front() else { break };
            match waiting.send(Turn::Ask(Place(Some(Arc::clone(&queue))))) {
                Ok(()) => return,
                // The waiter was dropped; try the next one.
                Err(Turn::Ask(mut place)) => place.0 = None,
                Err(Turn::Answered(_)) => {}
            }
        }
        queue.lock().places += 1;
    }
}

impl<Q: Clone, A> Together<Q, A> {
    /// At most `places` concurrent batches with at most `most` queries each.
    pub fn new(places: usize, most: usize) -> Self {
        Self { queue: Arc::new(Mutex::new(Queue { waiting: VecDeque::new(), places })), most }
    }

    /// Executes `all` for this query and the waiting ones, unless another caller includes this query in its batch.
    /// Results are in the order of the queries. A query sees all data committed before the call.
    pub async fn ask<F>(&self, question: Q, all: impl Fn(Vec<Q>) -> F) -> Result<A, Error>
    where
        F: Future<Output = Result<Vec<A>, Error>>,
    {
        loop {
            let place = match self.turn(&question) {
                Ok(place) => place,
                Err(waiting) => match waiting.await {
                    Ok(Turn::Answered(answer)) => return Ok(answer),
                    Ok(Turn::Ask(place)) => place,
                    // The caller that held the query failed or was dropped.
                    Err(_) => continue,
                },
            };
            let (questions, others) = self.gather(&question);
            let mut answers = all(questions).await?.into_iter();
            let own = answers.next();
            drop(place);
            for (waiting, answer) in others.into_iter().zip(answers) {
                // Dropped waiters need no result.
                waiting.send(Turn::Answered(answer)).ok();
            }
            if let Some(own) = own {
                return Ok(own);
            }
        }
    }

    fn turn(&self, question: &Q) -> Result<Place<Q, A>, oneshot::Receiver<Turn<Q, A>>> {
        let mut queue = self.queue.lock();
        if let Some(left) = queue.places.checked_sub(1) {
            queue.places = left;
            return Ok(Place(Some(Arc::clone(&self.queue))));
        }
        let (answered, waiting) = oneshot::channel();
        queue.waiting.push_back((question.clone(), answered));
        Err(waiting)
    }

    /// This query and the waiting ones, with the channels of the latter.
    fn gather(&self, question: &Q) -> (Vec<Q>, Vec<Waiting<Q, A>>) {
        let mut queue = self.queue.lock();
        let count = queue.waiting.len().min(self.most - 1);
        let others = queue.waiting.drain(..count).filter(|(_, waiting)| !waiting.is_closed());
        let (mut questions, mut waiting) = (vec![question.clone()], Vec::with_capacity(count));
        for (question, answered) in others {
            questions.push(question);
            waiting.push(answered);
        }
        (questions, waiting)
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
        let together = Arc::new(Together::new(1, 16));
        let (gate, asked) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut asking = JoinSet::new();
        for question in 0..33_u32 {
            let (together, gate, asked) = (Arc::clone(&together), Arc::clone(&gate), Arc::clone(&asked));
            asking.spawn(async move {
                let all = async |questions: Vec<u32>| {
                    asked.fetch_add(1, Ordering::Relaxed);
                    gate.acquire().await.unwrap().forget();
                    Ok(questions.iter().map(|question| question * 2).collect())
                };
                assert_eq!(together.ask(question, all).await.unwrap(), question * 2);
            });
            tokio::task::yield_now().await;
        }
        gate.add_permits(33);
        asking.join_all().await;
        assert_eq!(asked.load(Ordering::Relaxed), 3, "a single query, then two batches of sixteen");
        assert_eq!(together.queue.lock().places, 1);
    }

    #[tokio::test]
    async fn a_failed_or_dropped_caller_does_not_block_the_others() {
        let together: Together<u32, u32> = Together::new(1, 16);
        let answer = |questions: Vec<u32>| std::future::ready(Ok(questions));
        let mut stuck = Box::pin(together.ask(1, |_| std::future::pending()));
        assert!(stuck.as_mut().now_or_never().is_none());
        let (mut second, mut third) = (Box::pin(together.ask(2, answer)), Box::pin(together.ask(3, answer)));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        drop(stuck);
        // The second caller holds the slot and is dropped before using it.
        drop(second);
        assert_eq!(third.await.unwrap(), 3);

        let failing = |_| std::future::ready(Err(Error::Unpack("broken".to_owned())));
        let mut failed = Box::pin(together.ask(4, failing));
        assert!(failed.as_mut().now_or_never().is_some_and(|answer| answer.is_err()));
        assert_eq!(together.ask(5, answer).await.unwrap(), 5);
        assert_eq!(together.queue.lock().places, 1);
    }
}
