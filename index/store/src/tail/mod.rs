//! The last changes in memory, for watches, controllers and live search.
//!
//! Written by the store's writer, after its commit, and with a shared store by the follower of its log: each seq is taken
//! once, in order, whoever brings it first. Read by any number of readers, each with its own place. Bounded in
//! changes and bytes: a reader that falls out of the window is told [`Gone`] and lists again, instead of costing memory.
//! Whoever follows a [`Topic`] wakes for its changes only.

mod topics;

pub use topics::Topic;

use crate::Gone;
use crate::record::{Change, Seq};
use parking_lot::RwLock;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::watch;
use topics::Topics;

/// Changes handed out at once.
const BATCH: usize = 512;

/// Bounded window over the newest changes.
#[derive(Debug)]
pub struct Tail {
    window: RwLock<Window>,
    latest: watch::Sender<Seq>,
    max_changes: usize,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct Window {
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
    /// Everything after this is in `changes`.
    since: Seq,
    topics: Topics,
}

/// What was read.
struct Read {
    changes: Vec<Arc<Change>>,
    /// The reader knows everything of its own up to here.
    until: Seq,
}

impl Tail {
    /// Starts after the last change the store already has.
    pub fn new(latest: Seq, max_changes: usize, max_bytes: usize) -> Self {
        let window = RwLock::new(Window { since: latest, ..Window::default() });
        Self { window, latest: watch::Sender::new(latest), max_changes: max_changes.max(1), max_bytes }
    }

    /// Appends changes the store has committed, in order. Those that were told already are left out. False, and nothing
    /// is appended, when others come before them: those have to be read from the store first.
    pub fn publish(&self, mut changes: Vec<Change>) -> bool {
        let mut window = self.window.write();
        let told = window.changes.back().map_or(window.since, |change| change.seq);
        changes.retain(|change| change.seq > told);
        let (Some(first), Some(last)) = (changes.first(), changes.last()) else { return true };
        if first.seq.0 != told.0 + 1 {
            return false;
        }
        let last = last.seq;
        for change in changes {
            let change = Arc::new(change);
            window.bytes += change.object.body.len();
            window.topics.push(&change);
            window.changes.push_back(change);
        }
        while window.changes.len() > self.max_changes || window.bytes > self.max_bytes && window.changes.len() > 1 {
            let Some(oldest) = window.changes.pop_front() else { break };
            window.bytes -= oldest.object.body.len();
            window.since = oldest.seq;
            window.topics.pop(&oldest);
        }
        // Under the lock: two who publish must not tell their ends in the other order.
        self.latest.send_replace(last);
        true
    }

    /// Goes on after `latest`: what came before is not known here, and whoever follows lists again.
    pub fn restart(&self, latest: Seq) {
        let mut window = self.window.write();
        window.topics.clear(latest);
        let topics = std::mem::take(&mut window.topics);
        *window = Window { since: latest, topics, ..Window::default() };
        self.latest.send_replace(latest);
    }

    /// The newest change. List first, then watch from the seq read before the list: nothing is missed.
    pub fn latest(&self) -> Seq {
        *self.latest.borrow()
    }

    /// Follows everything after `since`.
    pub fn follow(self: &Arc<Self>, since: Seq) -> Follower {
        Follower { tail: Arc::clone(self), topic: None, since, latest: self.latest.subscribe() }
    }

    /// Follows what of a topic comes after `since`.
    pub fn follow_topic(self: &Arc<Self>, since: Seq, topic: Topic) -> Follower {
        let mut window = self.window.write();
        let Window { changes, topics, since: whole_after, .. } = &mut *window;
        let mut latest = topics.join(&topic, *whole_after, changes.iter());
        // What is in the window already is still to be read.
        latest.mark_changed();
        Follower { tail: Arc::clone(self), topic: Some(topic), since, latest }
    }

    fn read(&self, since: Seq, topic: Option<&Topic>) -> Result<Read, Gone> {
        let window = self.window.read();
        let changes = match topic {
            Some(topic) => window.topics.after(topic, since, BATCH)?,
            None if since < window.since => return Err(Gone { oldest: window.since }),
            None => {
                let start = window.changes.partition_point(|change| change.seq <= since);
                window.changes.iter().skip(start).take(BATCH).cloned().collect()
            }
        };
        let last = changes.last().filter(|_| changes.len() == BATCH);
        let newest = window.changes.back().map_or(window.since, |change| change.seq);
        // One who waits for what is still to come is ahead of all that is there.
        Ok(Read { until: last.map_or(newest, |change| change.seq).max(since), changes })
    }

    /// Changes and bytes held now.
    pub fn size(&self) -> (usize, usize) {
        let window = self.window.read();
        (window.changes.len(), window.bytes)
    }
}

/// One reader's place in the tail.
#[derive(Debug)]
pub struct Follower {
    tail: Arc<Tail>,
    /// None: everything.
    topic: Option<Topic>,
    since: Seq,
    latest: watch::Receiver<Seq>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some(topic) = &self.topic {
            self.tail.window.write().topics.leave(topic);
        }
    }
}

impl Follower {
    /// The next changes, waiting until there are some. Cancel-safe. None when the cache stopped.
    pub async fn next(&mut self) -> Option<Result<Vec<Arc<Change>>, Gone>> {
        loop {
            self.latest.borrow_and_update();
            match self.ready_now() {
                Ok(changes) if changes.is_empty() => {}
                told => return Some(told),
            }
            self.latest.changed().await.ok()?;
        }
    }

    /// What is there now, without waiting; empty when the reader is up to date.
    pub fn ready_now(&mut self) -> Result<Vec<Arc<Change>>, Gone> {
        let Read { changes, until } = self.tail.read(self.since, self.topic.as_ref())?;
        self.since = until;
        Ok(changes)
    }

    /// Waits until there is something to read. Cancel-safe. False when the cache stopped.
    pub async fn wait(&mut self) -> bool {
        loop {
            if *self.latest.borrow_and_update() > self.since {
                return true;
            }
            if self.latest.changed().await.is_err() {
                return false;
            }
        }
    }

    pub fn since(&self) -> Seq {
        self.since
    }

    /// Goes on from somewhere else, after the store was read up to there.
    pub fn skip_to(&mut self, seq: Seq) {
        self.since = seq;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Happened;
    use crate::fixtures::stored;
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;

    fn changes(seqs: std::ops::RangeInclusive<u64>) -> Vec<Change> {
        let pod = json!({"kind": "Pod", "metadata": {"name": "a", "namespace": "x", "uid": "u"}});
        let change = |seq: u64| {
            let object = stored("member1", seq, &pod);
            Change { seq: Seq(seq), happened: Happened::Added, object, previous: None }
        };
        seqs.map(change).collect()
    }

    #[tokio::test]
    async fn each_change_is_told_once_and_in_order_whoever_brings_it() {
        let tail = Arc::new(Tail::new(Seq(2), 100, 1 << 20));
        let mut follower = tail.follow(Seq(2));
        let mut told = async || -> Result<Vec<u64>, Gone> {
            Ok(follower.ready_now()?.iter().map(|change| change.seq.0).collect())
        };
        assert!(tail.publish(changes(3..=4)));
        // Others' changes come first: these wait until those were read.
        assert!(!tail.publish(changes(7..=8)));
        assert_eq!(tail.latest(), Seq(4));
        assert!(tail.publish(changes(3..=6)));
        assert!(tail.publish(changes(5..=8)));
        assert!(tail.publish(changes(1..=8)));
        assert_eq!(told().await, Ok(vec![3, 4, 5, 6, 7, 8]));
        // A hole that cannot be filled: whoever followed has to list again.
        tail.restart(Seq(20));
        assert_eq!(told().await, Err(Gone { oldest: Seq(20) }));
        assert!(tail.publish(changes(20..=21)));
        assert_eq!(tail.latest(), Seq(21));
    }

    fn pod(seq: u64, namespace: &str, name: &str) -> Change {
        let pod = json!({"kind": "Pod", "metadata": {"name": name, "namespace": namespace, "uid": "u"}});
        Change { seq: Seq(seq), happened: Happened::Added, object: stored("member1", seq, &pod), previous: None }
    }

    fn topic(namespace: Option<&str>, name: Option<&str>) -> Topic {
        let resource = crowsnest_apimachinery::names::Gvr::new("", "v1", "pods");
        Topic { resource, namespace: namespace.map(Arc::from), name: name.map(Arc::from) }
    }

    #[rstest]
    #[case::all(None, None, &[1, 2, 3, 4])]
    #[case::of_a_namespace(Some("x"), None, &[1, 2, 4])]
    #[case::of_a_name(None, Some("a"), &[1, 3])]
    #[case::one_object(Some("x"), Some("b"), &[2, 4])]
    #[case::nothing(Some("z"), None, &[])]
    fn a_topic_is_followed_from_the_window_on(
        #[case] namespace: Option<&str>,
        #[case] name: Option<&str>,
        #[case] expected: &[u64],
    ) {
        let tail = Arc::new(Tail::new(Seq(0), 100, 1 << 20));
        assert!(tail.publish(vec![pod(1, "x", "a"), pod(2, "x", "b")]));
        let mut follower = tail.follow_topic(Seq(0), topic(namespace, name));
        assert!(tail.publish(vec![pod(3, "y", "a"), pod(4, "x", "b")]));
        let told = |follower: &mut Follower| -> Vec<u64> {
            follower.ready_now().unwrap().iter().map(|change| change.seq.0).collect()
        };
        assert_eq!(told(&mut follower), expected);
        // It knows everything of its own up to here, whatever it is of.
        assert_eq!(follower.since(), Seq(4));
        let from = expected.first().copied().unwrap_or(4);
        let mut later = tail.follow_topic(Seq(from), topic(namespace, name));
        assert_eq!(told(&mut later), expected.get(1..).unwrap_or_default());
    }

    #[tokio::test]
    async fn who_follows_a_quiet_topic_misses_nothing_when_others_fill_the_window() {
        let tail = Arc::new(Tail::new(Seq(0), 2, 1 << 20));
        let (mut quiet, mut busy) =
            (tail.follow_topic(Seq(0), topic(Some("x"), None)), tail.follow_topic(Seq(0), topic(Some("y"), None)));
        let mut all = tail.follow(Seq(0));
        for seq in 1..=8 {
            assert!(tail.publish(vec![pod(seq, "y", "a")]));
        }
        assert!(tail.publish(vec![pod(9, "x", "a")]));
        let told = quiet.next().await.unwrap().unwrap();
        assert_eq!(told.iter().map(|change| change.seq.0).collect::<Vec<_>>(), [9]);
        assert_eq!(busy.ready_now().unwrap_err(), Gone { oldest: Seq(7) });
        assert_eq!(all.ready_now().unwrap_err(), Gone { oldest: Seq(7) });
        drop((quiet, busy));
        assert!(format!("{:?}", tail.window.read().topics).ends_with("{} }"), "a topic nobody follows is kept");
    }

    proptest! {
        /// Whatever is published and read when: a topic tells what following everything tells of it, or that it is gone
        /// where following everything says so too.
        #[test]
        fn a_topic_tells_what_the_tail_tells_of_it(
            steps in prop::collection::vec((0_u8..3, 0_u8..3, prop::bool::weighted(0.3)), 1..60),
            namespace in prop::option::of(0_u8..3),
            name in prop::option::of(0_u8..3),
        ) {
            let named = |number: u8| format!("n{number}");
            let (namespace, name) = (namespace.map(named), name.map(named));
            let topic = topic(namespace.as_deref(), name.as_deref());
            let tail = Arc::new(Tail::new(Seq(0), 5, 1 << 20));
            let (mut of_topic, mut of_all) = (tail.follow_topic(Seq(0), topic.clone()), tail.follow(Seq(0)));
            for (seq, (namespace, name, read)) in (1..).zip(steps) {
                prop_assert!(tail.publish(vec![pod(seq, &named(namespace), &named(name))]));
                if !read {
                    continue;
                }
                let told = of_topic.ready_now();
                let Ok(all) = of_all.ready_now() else {
                    // Nothing more is told to that one; the topic may have missed nothing.
                    of_all.skip_to(tail.latest());
                    if told.is_err() {
                        of_topic.skip_to(tail.latest());
                    }
                    continue;
                };
                let expected: Vec<Seq> = all.iter().filter(|c| topic.holds(c)).map(|c| c.seq).collect();
                let told: Vec<Seq> = told.unwrap().iter().map(|c| c.seq).collect();
                prop_assert_eq!(told, expected);
                prop_assert_eq!(of_topic.since(), of_all.since());
            }
        }
    }
}
