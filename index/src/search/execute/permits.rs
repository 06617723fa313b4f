//! Whose turn it is to use a core for a search: the question that was asked first.
//!
//! An answer takes several turns (finding, reading hits, reasons). Were they given in the order in which they are wanted,
//! each of them would wait behind the first turns of all newer questions, and the time of an answer would be anybody's guess.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// As many turns as there are cores.
pub struct Turns {
    state: Mutex<State>,
}

struct State {
    free: usize,
    /// By when their questions were asked; the number keeps those of one moment apart.
    waiting: BTreeMap<(Instant, u64), oneshot::Sender<Turn>>,
    number: u64,
}

/// Given to the next one when it is dropped.
pub struct Turn {
    turns: Arc<Turns>,
}

impl Turns {
    pub fn new(turns: usize) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { free: turns.max(1), waiting: BTreeMap::new(), number: 0 }) })
    }

    /// A turn for a question that was asked then. Whoever goes away gives the place up.
    pub async fn take(self: &Arc<Self>, asked: Instant) -> Turn {
        loop {
            let receiver = {
                let mut state = self.state.lock();
                if state.free > 0 {
                    state.free -= 1;
                    return Turn { turns: Arc::clone(self) };
                }
                let (sender, receiver) = oneshot::channel();
                state.number += 1;
                let place = (asked, state.number);
                state.waiting.insert(place, sender);
                receiver
            };
            // Whoever waits is not forgotten: a sender goes with its turn only.
            if let Ok(turn) = receiver.await {
                return turn;
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let turns = &self.turns;
        loop {
            let next = {
                let mut state = turns.state.lock();
                let next = state.waiting.pop_first();
                if next.is_none() {
                    state.free += 1;
                }
                next
            };
            let Some((_, sender)) = next else { return };
            if sender.is_closed() {
                continue;
            }
            // A turn that is not taken any more is dropped in turn.
            drop(sender.send(Turn { turns: Arc::clone(turns) }));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use rstest::rstest;
    use std::time::Duration;

    /// Numbers are when they were asked; those that go away do so before a turn is free.
    #[rstest]
    #[case::the_first_one_first(&[3, 1, 2], &[], &[1, 2, 3])]
    #[case::of_one_moment_as_they_came(&[1, 1, 0], &[], &[0, 1, 1])]
    #[case::who_went_is_left_out(&[3, 1, 2], &[1], &[2, 3])]
    fn turns_go_to_the_question_that_was_asked_first(
        #[case] asked: &[u64],
        #[case] gone: &[u64],
        #[case] expected: &[u64],
    ) {
        let (turns, began) = (Turns::new(1), Instant::now());
        let mut held = turns.take(began).now_or_never();
        let mut waiting: Vec<_> = asked
            .iter()
            .map(|at| (*at, Box::pin(turns.take(began + Duration::from_secs(*at)))))
            .map(|(at, mut turn)| {
                assert!((&mut turn).now_or_never().is_none());
                (at, turn)
            })
            .collect();
        waiting.retain(|(at, _)| !gone.contains(at));
        let mut order = Vec::new();
        while held.take().is_some() && !waiting.is_empty() {
            let next = waiting.iter_mut().position(|(_, turn)| {
                held = turn.now_or_never();
                held.is_some()
            });
            order.push(waiting.remove(next.unwrap()).0);
        }
        assert_eq!(order, expected);
        assert!(turns.take(began).now_or_never().is_some(), "a turn was lost");
    }
}
