//! Questions asked together: while some are at the database, those that come gather, and go there at once. Alone, a
//! question goes at once; many at a time cost one way to the database instead of one each.
//!
//! Nobody owns a task for that: whoever finds a free place asks for all that wait, and then hands the place on. A place
//! is handed on, too, when its holder is dropped.

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

/// The right to ask, one of a few.
struct Place<Q, A>(Option<Arc<Mutex<Queue<Q, A>>>>);

impl<Q, A> Drop for Place<Q, A> {
    fn drop(&mut self) {
        let Some(queue) = self.0.take() else { return };
        loop {
            let Some((_, waiting)) = queue.lock().waiting.pop_front() else { break };
            match waiting.send(Turn::Ask(Place(Some(Arc::clone(&queue))))) {
                Ok(()) => return,
                // Nobody is there any more: the next.
                Err(Turn::Ask(mut place)) => place.0 = None,
                Err(Turn::Answered(_)) => {}
            }
        }
        queue.lock().places += 1;
    }
}

impl<Q: Clone, A> Together<Q, A> {
    /// At most `places` ways to the database at once, each with at most `most` questions.
    pub fn new(places: usize, most: usize) -> Self {
        Self { queue: Arc::new(Mutex::new(Queue { waiting: VecDeque::new(), places })), most }
    }

    /// Asks `all` for this question and those that wait, unless somebody else asks for this one. Answers come in the
    /// order of the questions. A question sees everything that was there when it was asked.
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
                    // Whoever asked has failed or is gone.
                    Err(_) => continue,
                },
            };
            let (questions, others) = self.gather(&question);
            let mut answers = all(questions).await?.into_iter();
            let own = answers.next();
            drop(place);
            for (waiting, answer) in others.into_iter().zip(answers) {
                // Who is not there any more needs no answer.
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

    /// This question and those that wait, and who waits for the answers to these.
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
    async fn what_waits_goes_together_and_everybody_gets_their_own_answer() {
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
        assert_eq!(asked.load(Ordering::Relaxed), 3, "one alone, then twice sixteen");
        assert_eq!(together.queue.lock().places, 1);
    }

    #[tokio::test]
    async fn one_that_fails_or_is_dropped_holds_nobody_up() {
        let together: Together<u32, u32> = Together::new(1, 16);
        let answer = |questions: Vec<u32>| std::future::ready(Ok(questions));
        let mut stuck = Box::pin(together.ask(1, |_| std::future::pending()));
        assert!(stuck.as_mut().now_or_never().is_none());
        let (mut second, mut third) = (Box::pin(together.ask(2, answer)), Box::pin(together.ask(3, answer)));
        assert!(second.as_mut().now_or_never().is_none() && third.as_mut().now_or_never().is_none());
        drop(stuck);
        // The place is with the second now, who never comes to use it.
        drop(second);
        assert_eq!(third.await.unwrap(), 3);

        let failing = |_| std::future::ready(Err(Error::Unpack("broken".to_owned())));
        let mut failed = Box::pin(together.ask(4, failing));
        assert!(failed.as_mut().now_or_never().is_some_and(|answer| answer.is_err()));
        assert_eq!(together.ask(5, answer).await.unwrap(), 5);
        assert_eq!(together.queue.lock().places, 1);
    }
}
