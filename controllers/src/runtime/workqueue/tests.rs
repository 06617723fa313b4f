//! Tests of the order and delays of a queue, with a clock that the test advances.

use super::state::MAX_PARKED_TIME;
use super::*;
use proptest::prelude::*;
use rstest::rstest;
use std::sync::atomic::{AtomicUsize, Ordering};

#[tokio::test]
async fn a_key_added_while_running_is_reconciled_again_and_failures_are_retried() {
    let queue: Queue<u8> = Queue::new("test");
    let stop = CancellationToken::new();
    let runs = Arc::new(AtomicUsize::new(0));
    queue.add(1);
    let (again, counter, end) = (queue.clone(), Arc::clone(&runs), stop.clone());
    let reconcile = move |key: u8| {
        let (again, counter, end) = (again.clone(), Arc::clone(&counter), end.clone());
        async move {
            match counter.fetch_add(1, Ordering::SeqCst) {
                0 => {
                    again.add(key);
                    again.add(key);
                    Ok(Outcome::Done)
                }
                1 => Err(Error::Waiting("not yet".to_owned())),
                _ => {
                    end.cancel();
                    Ok(Outcome::Done)
                }
            }
        }
    };
    queue.run(4, stop, reconcile).await.expect("no worker fails");
    assert_eq!(runs.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_panic_is_treated_as_a_failure_of_its_key() {
    let queue: Queue<u8> = Queue::new("test");
    let stop = CancellationToken::new();
    let runs = Arc::new(AtomicUsize::new(0));
    queue.add(1);
    queue.add(2);
    let (counter, end) = (Arc::clone(&runs), stop.clone());
    let reconcile = move |key: u8| {
        let (counter, end) = (Arc::clone(&counter), end.clone());
        async move {
            match (key, counter.fetch_add(1, Ordering::SeqCst)) {
                (1, 0) => panic!("on purpose"),
                (1, _) => end.cancel(),
                _ => {}
            }
            Ok(Outcome::Done)
        }
    };
    queue.run(1, stop, reconcile).await.expect("the queue continues");
    assert_eq!(runs.load(Ordering::SeqCst), 3, "the other key, and a retry of the first one");
}

const SECOND: Duration = Duration::from_secs(1);

/// Ready keys in order. Each is finished immediately.
fn drain(state: &mut State<char>, now: Instant) -> String {
    let mut order = String::new();
    while let Ok(key) = state.next(now) {
        order.push(key);
        state.finish(key, Ok(Outcome::Done), now);
    }
    order
}

#[rstest]
#[case::first_in_first_out(&[('a', None), ('b', None), ('a', None)], "ab")]
#[case::higher_first(&[('a', Some(1)), ('b', Some(5)), ('c', Some(1)), ('d', Some(-1))], "bacd")]
#[case::raised_priority(&[('a', Some(3)), ('b', Some(1)), ('b', Some(7))], "ba")]
#[case::lowered_priority(&[('a', Some(3)), ('b', Some(2)), ('a', Some(1))], "ba")]
#[case::changed_priority_keeps_arrival_order(&[('a', Some(1)), ('b', Some(5)), ('a', Some(5))], "ab")]
#[case::without_priority_keeps_it(&[('a', Some(0)), ('b', Some(5)), ('b', None)], "ba")]
fn order(#[case] added: &[(char, Option<Priority>)], #[case] expected: &str) {
    let mut state = State::new();
    for (key, priority) in added {
        state.add(*key, *priority, Instant::now());
    }
    assert_eq!(drain(&mut state, Instant::now()), expected);
}

#[rstest]
#[case::failure(Err(()), &[20, 40, 80, 160])]
#[case::without_effect(Ok(Outcome::Requeue), &[1000, 2000, 4000, 8000, 10_000, 10_000])]
#[case::parked(Ok(Outcome::Parked), &[300_000, 300_000])]
fn delays_grow(#[case] outcome: Result<Outcome, ()>, #[case] expected: &[u64]) {
    let (mut state, mut now) = (State::new(), Instant::now());
    state.add('a', None, now);
    for millis in expected {
        assert_eq!(state.next(now), Ok('a'));
        state.finish('a', outcome, now);
        let next = state.next(now).expect_err("not yet");
        assert_eq!(next, Some(now + Duration::from_millis(*millis)));
        now += Duration::from_millis(*millis);
    }
    state.next(now).expect("the delay has passed");
    state.finish('a', Ok(Outcome::Done), now);
    state.add('a', None, now);
    state.next(now).expect("a ready key");
    state.finish('a', Ok(Outcome::Requeue), now);
    assert_eq!(state.next(now), Err(Some(now + SECOND)), "success resets the backoff");
}

#[test]
fn unparked_keys_are_ordered_by_priority_and_respect_the_backoff() {
    let (mut state, start) = (State::new(), Instant::now());
    for (key, priority) in [('a', 1), ('b', 2)] {
        state.add(key, Some(priority), start);
        assert_eq!(state.next(start), Ok(key));
        state.finish(key, Ok(Outcome::Parked), start);
    }
    state.unpark();
    assert_eq!(state.next(start), Err(Some(start + SECOND)), "backoff");
    assert_eq!(drain(&mut state, start + SECOND), "ba");
    // Unparked after the backoff, it is ready immediately.
    state.add('a', Some(1), start);
    state.next(start).expect("a ready key");
    state.finish('a', Ok(Outcome::Parked), start);
    let later = start + 60 * SECOND;
    assert_eq!(state.next(later), Err(Some(start + MAX_PARKED_TIME)));
    state.unpark();
    assert_eq!(drain(&mut state, later), "a");
}

#[test]
fn an_unpark_during_the_reconcile_is_not_missed() {
    let (mut state, now) = (State::new(), Instant::now());
    state.add('a', None, now);
    state.next(now).expect("a ready key");
    state.unpark();
    state.finish('a', Ok(Outcome::Parked), now);
    assert_eq!(state.next(now), Err(Some(now + SECOND)));
}

#[test]
fn adding_a_parked_key_makes_it_ready_immediately() {
    let (mut state, now) = (State::new(), Instant::now());
    state.add('a', Some(4), now);
    state.next(now).expect("a ready key");
    state.finish('a', Ok(Outcome::Parked), now);
    state.add('a', None, now);
    assert_eq!(drain(&mut state, now), "a");
    assert_eq!(state.next(now + MAX_PARKED_TIME), Err(None), "it is queued once");
}

proptest! {
    /// Every added key is reconciled, by one worker at a time, and once per request.
    #[test]
    fn no_key_is_lost_or_queued_twice(steps in proptest::collection::vec((0..4_u8, 0..6_u8, -1..3_i32), 1..200)) {
        let (mut state, mut now) = (State::new(), Instant::now());
        // Keys that were added and not started since.
        let mut pending: std::collections::BTreeSet<u8> = std::collections::BTreeSet::new();
        let mut running: Vec<u8> = Vec::new();
        for (step, key, priority) in steps {
            match step {
                0 => {
                    state.add(key, (priority >= 0).then_some(priority), now);
                    pending.insert(key);
                }
                1 => if let Ok(key) = state.next(now) {
                    prop_assert!(!running.contains(&key));
                    pending.remove(&key);
                    running.push(key);
                },
                2 => if let Some(key) = running.pop() {
                    let outcomes =
                        [Ok(Outcome::Done), Ok(Outcome::Requeue), Ok(Outcome::Parked), Err(())];
                    let outcome = outcomes[usize::try_from(priority + 1).unwrap()];
                    state.finish(key, outcome, now);
                    if outcome != Ok(Outcome::Done) {
                        pending.insert(key);
                    }
                },
                _ => {
                    state.unpark();
                    now += SECOND;
                }
            }
        }
        while let Some(key) = running.pop() {
            state.finish(key, Ok(Outcome::Done), now);
        }
        now += MAX_PARKED_TIME;
        let rest = drain_all(&mut state, now);
        let distinct: std::collections::BTreeSet<u8> = rest.iter().copied().collect();
        prop_assert_eq!(rest.len(), distinct.len(), "duplicates: {:?}", rest);
        prop_assert!(pending.is_subset(&distinct), "{:?} of {:?}", rest, pending);
    }
}

fn drain_all(state: &mut State<u8>, now: Instant) -> Vec<u8> {
    let mut order = Vec::new();
    while let Ok(key) = state.next(now) {
        order.push(key);
        state.finish(key, Ok(Outcome::Done), now);
    }
    order
}

#[test]
fn a_closed_queue_discards_keys() {
    let queue: Queue<u8> = Queue::new("test");
    queue.add(1);
    queue.close();
    queue.add(2);
    queue.add_after(3, Duration::ZERO);
    assert!(queue.is_closed() && queue.is_idle());
    assert_eq!(queue.state.lock().next(Instant::now()), Err(None));
}

#[rstest]
#[case::done(Ok(Outcome::Done), 1, true)]
#[case::periodic(Ok(Outcome::RequeueAfter(SECOND)), 1, true)]
#[case::without_effect(Ok(Outcome::Requeue), 1, true)]
#[case::parked(Ok(Outcome::Parked), 1, true)]
#[case::failed(Err(()), 1, false)]
#[case::failed_repeatedly(Err(()), 6, true)]
fn a_queue_is_idle_unless_a_key_is_due_soon(
    #[case] outcome: Result<Outcome, ()>,
    #[case] times: u32,
    #[case] expected: bool,
) {
    let (mut state, mut now) = (State::new(), Instant::now());
    for _ in 0..times {
        now += MAX_PARKED_TIME;
        state.add('a', None, now);
        state.next(now).expect("ready");
        assert!(!state.is_idle(), "it is being reconciled");
        state.finish('a', outcome, now);
    }
    assert_eq!(state.is_idle(), expected);
    state.delay('a', now + MAX_PARKED_TIME, None, true);
    assert!(!state.is_idle(), "a change requested it");
}
