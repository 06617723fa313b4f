//! Tests of the order and delays of a queue, with a clock that the test advances.

use super::state::MAX_CHANGE_WAIT;
use super::*;
use proptest::prelude::*;
use rstest::rstest;
use std::collections::BTreeSet;
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
fn keys_start_by_priority_and_arrival(#[case] added: &[(char, Option<Priority>)], #[case] expected: &str) {
    let mut state = State::new();
    for (key, priority) in added {
        state.add(*key, *priority, Instant::now());
    }
    assert_eq!(drain(&mut state, Instant::now()), expected);
}

#[rstest]
#[case::failure(Err(()), &[20, 40, 80, 160])]
#[case::without_effect(Ok(Outcome::Requeue), &[1000, 2000, 4000, 8000, 10_000, 10_000])]
#[case::awaiting_change(Ok(Outcome::AwaitChange), &[300_000, 300_000])]
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
fn requeued_keys_are_ordered_by_priority_and_respect_the_backoff() {
    let (mut state, start) = (State::new(), Instant::now());
    for (key, priority) in [('a', 1), ('b', 2)] {
        state.add(key, Some(priority), start);
        assert_eq!(state.next(start), Ok(key));
        state.finish(key, Ok(Outcome::AwaitChange), start);
    }
    state.requeue_awaiting();
    assert_eq!(state.next(start), Err(Some(start + SECOND)), "backoff");
    assert_eq!(drain(&mut state, start + SECOND), "ba");
    // Requeued after the backoff, it is ready immediately.
    state.add('a', Some(1), start);
    state.next(start).expect("a ready key");
    state.finish('a', Ok(Outcome::AwaitChange), start);
    let later = start + 60 * SECOND;
    assert_eq!(state.next(later), Err(Some(start + MAX_CHANGE_WAIT)));
    state.requeue_awaiting();
    assert_eq!(drain(&mut state, later), "a");
}

#[test]
fn a_change_during_the_reconcile_is_not_missed() {
    let (mut state, now) = (State::new(), Instant::now());
    state.add('a', None, now);
    state.next(now).expect("a ready key");
    state.requeue_awaiting();
    state.finish('a', Ok(Outcome::AwaitChange), now);
    assert_eq!(state.next(now), Err(Some(now + SECOND)));
}

#[test]
fn adding_an_awaiting_key_makes_it_ready_immediately() {
    let (mut state, now) = (State::new(), Instant::now());
    state.add('a', Some(4), now);
    state.next(now).expect("a ready key");
    state.finish('a', Ok(Outcome::AwaitChange), now);
    state.add('a', None, now);
    assert_eq!(drain(&mut state, now), "a");
    assert_eq!(state.next(now + MAX_CHANGE_WAIT), Err(None), "it is queued once");
}

/// The group of a key is its first letter. Keys with a capital letter have no group.
fn group_of(key: &&'static str) -> Option<ClusterName> {
    let group = key.get(..1).filter(|letter| letter.chars().all(char::is_lowercase))?;
    Some(ClusterName::parse(group).expect("a name"))
}

fn grouped_state(workers: usize) -> State<&'static str> {
    let mut state = State::new();
    state.workers = workers;
    state.group_of = group_of;
    state
}

/// Starts keys until the workers or the ready keys that may start are used up.
fn start_all(state: &mut State<&'static str>) -> Vec<&'static str> {
    let (now, mut started) = (Instant::now(), Vec::new());
    while state.metrics(now).active < state.workers
        && let Ok(key) = state.next(now)
    {
        started.push(key);
    }
    started
}

const SLOW: [&str; 8] = ["a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8"];

#[rstest]
#[case::one_worker(1, &[], &SLOW, &["a1"])]
#[case::rounded_up(5, &[], &SLOW, &["a1", "a2", "a3"])]
#[case::half_of_the_workers(8, &[], &SLOW, &["a1", "a2", "a3", "a4"])]
#[case::a_third_for_each_of_two(6, &[], &["a1", "b1", "a2", "b2", "a3", "b3"], &["a1", "b1", "a2", "b2"])]
#[case::other_groups_pass(8, &[], &["a1", "a2", "a3", "a4", "a5", "b1", "c1"], &["a1", "a2", "a3", "a4", "b1", "c1"])]
#[case::no_group(4, &[], &["A1", "A2", "A3", "A4", "A5"], &["A1", "A2", "A3", "A4"])]
#[case::no_group_passes(4, &[], &["a1", "a2", "a3", "A1", "A2"], &["a1", "a2", "A1", "A2"])]
#[case::unresponsive_alone(8, &["a1"], &SLOW, &["a1", "a2", "a3", "a4"])]
#[case::unresponsive_together(
    8,
    &["a1", "b1", "c1", "d1", "e1", "f1"],
    &["a1", "b1", "c1", "d1", "e1", "f1", "g1", "g2"],
    &["a1", "b1", "c1", "d1", "g1", "g2"]
)]
fn a_group_starts_keys_while_it_occupies_fewer_workers_than_are_idle(
    #[case] workers: usize,
    #[case] unresponsive: &[&'static str],
    #[case] added: &[&'static str],
    #[case] expected: &[&str],
) {
    let mut state = grouped_state(workers);
    for key in unresponsive {
        state.record_response(key, false);
    }
    for key in added {
        state.add(*key, None, Instant::now());
    }
    assert_eq!(start_all(&mut state), expected);
    let waiting = added.len() - expected.len();
    assert_eq!((state.metrics(Instant::now()).depth, state.pending().active), (waiting, waiting));
    assert_eq!(state.ready_or_running().count(), added.len());
    assert!(!state.is_idle());
}

#[test]
fn a_response_ends_the_limit_of_unresponsive_groups() {
    let mut state = grouped_state(4);
    for key in ["a1", "b1"] {
        state.record_response(&key, false);
    }
    for key in ["a1", "a2", "b1", "b2"] {
        state.add(key, None, Instant::now());
    }
    assert_eq!(start_all(&mut state), ["a1", "a2"]);
    state.record_response(&"b1", true);
    assert_eq!(start_all(&mut state), ["b1"]);
}

/// Changes while keys wait for workers of their group keep the order by priority and arrival.
#[rstest]
#[case::arrival(&[], &["a3", "a4", "a5"])]
#[case::raised_priority(&[("a5", Some(1))], &["a5", "a3", "a4"])]
#[case::lowered_priority(&[("a3", Some(-1))], &["a4", "a5", "a3"])]
#[case::added_again(&[("a3", None)], &["a3", "a4", "a5"])]
#[case::raised_and_restored(&[("a5", Some(1)), ("a5", Some(0))], &["a3", "a4", "a5"])]
fn waiting_keys_of_a_group_keep_their_order(
    #[case] changes: &[(&'static str, Option<Priority>)],
    #[case] expected: &[&str],
) {
    let (mut state, now) = (grouped_state(4), Instant::now());
    for key in ["a1", "a2", "a3", "a4", "a5"] {
        state.add(key, Some(0), now);
    }
    assert_eq!(start_all(&mut state), ["a1", "a2"]);
    for (key, priority) in changes {
        state.add(*key, *priority, now);
    }
    let mut order = Vec::new();
    let mut running = vec!["a1", "a2"];
    while !running.is_empty() {
        state.finish(running.remove(0), Ok(Outcome::Done), now);
        let started = start_all(&mut state);
        order.extend(started.clone());
        running.extend(started);
    }
    assert_eq!(order, expected);
    assert!(state.is_idle());
}

#[tokio::test]
async fn members_without_a_response_do_not_block_others() {
    let queue: Queue<&'static str> = Queue::new("test").with_groups(group_of);
    let (stop, release) = (CancellationToken::new(), CancellationToken::new());
    SLOW.into_iter().for_each(|key| queue.add(key));
    let healthy = ["b1", "b2", "b3", "b4"];
    healthy.into_iter().for_each(|key| queue.add(key));
    let (finished, mut reconciled) = tokio::sync::mpsc::unbounded_channel();
    let released = release.clone();
    let reconcile = move |key: &'static str| {
        let (finished, released) = (finished.clone(), released.clone());
        async move {
            if key.starts_with('a') {
                released.cancelled().await;
            }
            finished.send(key).expect("a receiver");
            Ok(Outcome::Done)
        }
    };
    let run = tokio::spawn(queue.clone().run(4, stop.clone(), reconcile));
    for key in healthy {
        assert_eq!(reconciled.recv().await, Some(key));
    }
    release.cancel();
    for _ in SLOW {
        assert!(reconciled.recv().await.is_some_and(|key| SLOW.contains(&key)));
    }
    stop.cancel();
    run.await.expect("no panic").expect("no worker fails");
    assert!(queue.is_idle());
}

/// The first key of a group is finished with a result. Another group is unresponsive.
#[rstest]
#[case::timeout(true, Err(timeout_error()), &["a2", "a3"])]
#[case::discovery_timeout(true, Err(discovery_timeout_error()), &["a2", "a3"])]
#[case::another_failure(true, Err(Error::Waiting("not yet".to_owned())), &["a2", "a3", "b2"])]
#[case::another_failure_after_a_timeout(false, Err(Error::Waiting("not yet".to_owned())), &["a2", "a3"])]
#[case::success_after_a_timeout(false, Ok(Outcome::Done), &["a2", "a3", "b2"])]
fn a_timeout_limits_a_group_until_a_success(
    #[case] responded_before: bool,
    #[case] result: Result<Outcome, Error>,
    #[case] expected: &[&str],
) {
    let queue: Queue<&'static str> = Queue::new("test").with_groups(group_of);
    {
        let mut state = queue.state.lock();
        state.workers = 4;
        state.record_response(&"a1", responded_before);
        state.record_response(&"b1", false);
    }
    queue.add("a1");
    assert_eq!(queue.next(), Ok("a1"));
    queue.finish("a1", result);
    ["a2", "a3", "b2", "b3"].into_iter().for_each(|key| queue.add(key));
    assert_eq!(start_all(&mut queue.state.lock()), expected);
}

fn timeout_error() -> Error {
    Error::Timeout { operation: "GET /readyz".to_owned(), after: SECOND }
}

fn discovery_timeout_error() -> Error {
    Error::DiscoveryTimeout { cluster: ClusterName::parse("a").expect("a name"), seconds: 5 }
}

fn group_of_number(key: &u8) -> Option<ClusterName> {
    let name = ["a", "b"].get(usize::from(*key % 3))?;
    Some(ClusterName::parse(name).expect("a name"))
}

fn no_group(_key: &u8) -> Option<ClusterName> {
    None
}

proptest! {
    /// Every added key is reconciled, by one worker at a time, and once per request. A group never occupies more
    /// workers than it may, and only keys of groups that occupy as many wait.
    #[test]
    fn no_key_is_lost_or_queued_twice(
        is_grouped in any::<bool>(),
        steps in proptest::collection::vec((0..5_u8, 0..6_u8, -1..3_i32), 1..200),
    ) {
        const WORKERS: usize = 4;
        let (mut state, mut now) = (State::new(), Instant::now());
        let group_of: fn(&u8) -> Option<ClusterName> = match is_grouped {
            true => group_of_number,
            false => no_group,
        };
        state.workers = WORKERS;
        state.group_of = group_of;
        // Keys that were added and not started since.
        let mut pending: BTreeSet<u8> = BTreeSet::new();
        let mut running: Vec<u8> = Vec::new();
        let mut unresponsive: BTreeSet<ClusterName> = BTreeSet::new();
        for (step, key, priority) in steps {
            match step {
                0 => {
                    state.add(key, (priority >= 0).then_some(priority), now);
                    pending.insert(key);
                }
                1 => if running.len() < WORKERS {
                    let idle = WORKERS - running.len();
                    let may_start = |key: &u8| {
                        let Some(group) = group_of(key) else { return true };
                        let shares = |running_group: &ClusterName| {
                            *running_group == group || unresponsive.contains(running_group) && unresponsive.contains(&group)
                        };
                        let occupies = |running_group: &&u8| group_of(running_group).is_some_and(|running_group| shares(&running_group));
                        running.iter().filter(occupies).count() < idle
                    };
                    match state.next(now) {
                        Ok(key) => {
                            prop_assert!(!running.contains(&key));
                            prop_assert!(may_start(&key), "{} beside {:?}", key, running);
                            pending.remove(&key);
                            running.push(key);
                        }
                        Err(_) => {
                            let blocked = state.ready_or_running().find(|key| !running.contains(*key) && may_start(key));
                            prop_assert!(blocked.is_none(), "{:?} waits beside {:?}", blocked, running);
                        }
                    }
                },
                2 => if let Some(key) = running.pop() {
                    let outcomes =
                        [Ok(Outcome::Done), Ok(Outcome::Requeue), Ok(Outcome::AwaitChange), Err(())];
                    let outcome = outcomes[usize::try_from(priority + 1).unwrap()];
                    state.finish(key, outcome, now);
                    if outcome != Ok(Outcome::Done) {
                        pending.insert(key);
                    }
                },
                3 => {
                    let responded = priority > 0;
                    state.record_response(&key, responded);
                    if let Some(group) = group_of(&key) {
                        if responded { unresponsive.remove(&group) } else { unresponsive.insert(group) };
                    }
                }
                _ => {
                    state.requeue_awaiting();
                    now += SECOND;
                }
            }
        }
        while let Some(key) = running.pop() {
            state.finish(key, Ok(Outcome::Done), now);
        }
        now += MAX_CHANGE_WAIT;
        let rest = drain_all(&mut state, now);
        let distinct: BTreeSet<u8> = rest.iter().copied().collect();
        prop_assert_eq!(rest.len(), distinct.len(), "duplicates: {:?}", rest);
        prop_assert!(pending.is_subset(&distinct), "{:?} of {:?}", rest, pending);
        prop_assert!(state.is_idle());
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
#[case::awaiting_change(Ok(Outcome::AwaitChange), 1, true)]
#[case::failed(Err(()), 1, false)]
#[case::failed_repeatedly(Err(()), 6, true)]
fn a_queue_is_idle_unless_a_key_is_due_soon(
    #[case] outcome: Result<Outcome, ()>,
    #[case] times: u32,
    #[case] expected: bool,
) {
    let (mut state, mut now) = (State::new(), Instant::now());
    for _ in 0..times {
        now += MAX_CHANGE_WAIT;
        state.add('a', None, now);
        state.next(now).expect("ready");
        assert!(!state.is_idle(), "it is being reconciled");
        state.finish('a', outcome, now);
    }
    assert_eq!(state.is_idle(), expected);
    state.delay('a', now + MAX_CHANGE_WAIT, None, true);
    assert!(!state.is_idle(), "a change requested it");
}
