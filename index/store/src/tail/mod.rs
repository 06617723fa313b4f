//! In-memory window of the most recent changes, for watches, controllers and live search.
//!
//! The store's writer appends changes after its commit; with a shared store, the follower of the change log appends
//! those of other replicas. A change that arrives from both is appended once. Any number of readers follow with their
//! own positions. The window is limited in changes and bytes: a reader that falls behind it gets [`Gone`] and lists
//! again. Followers of a [`Topic`] wake only for its changes.

mod topics;

pub use topics::Topic;

use crate::Gone;
use crate::record::{Change, Seq};
use parking_lot::RwLock;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::watch;
use topics::Topics;

/// Maximum number of changes returned at once.
const MAX_CHANGES_PER_READ: usize = 512;

/// A limited window of the newest changes.
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
    /// All changes after this seq are in `changes`.
    since: Seq,
    topics: Topics,
}

/// Result of a read.
struct ReadResult {
    changes: Vec<Arc<Change>>,
    /// Seq up to which the reader has received all of its changes.
    until: Seq,
}

impl Tail {
    /// Creates an empty tail that continues after `latest`, the newest change in the store.
    pub fn new(latest: Seq, max_changes: usize, max_bytes: usize) -> Self {
        let window = RwLock::new(Window { since: latest, ..Window::default() });
        Self { window, latest: watch::Sender::new(latest), max_changes: max_changes.max(1), max_bytes }
    }

    /// Appends committed changes, in order; changes already in the window are skipped. Returns false and appends
    /// nothing if earlier changes are missing; they have to be read from the store first.
    pub fn publish(&self, mut changes: Vec<Change>) -> bool {
        let mut window = self.window.write();
        let newest = window.changes.back().map_or(window.since, |change| change.seq);
        changes.retain(|change| change.seq > newest);
        let (Some(first), Some(last)) = (changes.first(), changes.last()) else { return true };
        if first.seq.0 != newest.0 + 1 {
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
        // Updated under the lock, so that concurrent publishers cannot reorder the values.
        self.latest.send_replace(last);
        true
    }

    /// Empties the window and continues after `latest`. Followers get [`Gone`] and have to list again.
    pub fn restart(&self, latest: Seq) {
        let mut window = self.window.write();
        window.topics.clear(latest);
        let topics = std::mem::take(&mut window.topics);
        *window = Window { since: latest, topics, ..Window::default() };
        self.latest.send_replace(latest);
    }

    /// Seq of the newest change. A reader that gets it before its list and then follows from it misses no change.
    pub fn latest(&self) -> Seq {
        *self.latest.borrow()
    }

    /// Follows everything after `since`.
    pub fn follow(self: &Arc<Self>, since: Seq) -> Follower {
        Follower { tail: Arc::clone(self), topic: None, since, latest: self.latest.subscribe() }
    }

    /// Follows the changes of a topic after `since`.
    pub fn follow_topic(self: &Arc<Self>, since: Seq, topic: Topic) -> Follower {
        let mut window = self.window.write();
        let Window { changes, topics, since: complete_after, .. } = &mut *window;
        let mut latest = topics.follow(&topic, *complete_after, changes.iter());
        // The first wait must not block: the window may already contain changes for this follower.
        latest.mark_changed();
        Follower { tail: Arc::clone(self), topic: Some(topic), since, latest }
    }

    fn read(&self, since: Seq, topic: Option<&Topic>) -> Result<ReadResult, Gone> {
        let window = self.window.read();
        let changes = match topic {
            Some(topic) => window.topics.changes_after(topic, since, MAX_CHANGES_PER_READ)?,
            None if since < window.since => return Err(Gone { oldest: window.since }),
            None => {
                let start = window.changes.partition_point(|change| change.seq <= since);
                window.changes.iter().skip(start).take(MAX_CHANGES_PER_READ).cloned().collect()
            }
        };
        let last = changes.last().filter(|_| changes.len() == MAX_CHANGES_PER_READ);
        let newest = window.changes.back().map_or(window.since, |change| change.seq);
        // A reader that is ahead of the window keeps its position.
        Ok(ReadResult { until: last.map_or(newest, |change| change.seq).max(since), changes })
    }

    /// Number of the changes in the window, and the bytes of their bodies.
    pub fn size(&self) -> (usize, usize) {
        let window = self.window.read();
        (window.changes.len(), window.bytes)
    }
}

/// A reader's position in the tail.
#[derive(Debug)]
pub struct Follower {
    tail: Arc<Tail>,
    /// None: all changes.
    topic: Option<Topic>,
    since: Seq,
    latest: watch::Receiver<Seq>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some(topic) = &self.topic {
            self.tail.window.write().topics.unfollow(topic);
        }
    }
}

impl Follower {
    /// Waits for the next changes and returns them. Cancel-safe. None after the cache stopped.
    pub async fn next(&mut self) -> Option<Result<Vec<Arc<Change>>, Gone>> {
        loop {
            self.latest.borrow_and_update();
            match self.ready_now() {
                Ok(changes) if changes.is_empty() => {}
                result => return Some(result),
            }
            self.latest.changed().await.ok()?;
        }
    }

    /// Returns the available changes without waiting; empty if the reader is up to date.
    pub fn ready_now(&mut self) -> Result<Vec<Arc<Change>>, Gone> {
        let ReadResult { changes, until } = self.tail.read(self.since, self.topic.as_ref())?;
        self.since = until;
        Ok(changes)
    }

    /// Waits until there are changes to read. Cancel-safe. Returns false after the cache stopped.
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

    /// Continues from another position, after the store was read up to it.
    pub fn skip_to(&mut self, seq: Seq) {
        self.since = seq;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChangeKind;
    use crate::fixtures::stored;
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;

    fn changes(seqs: std::ops::RangeInclusive<u64>) -> Vec<Change> {
        let pod = json!({"kind": "Pod", "metadata": {"name": "a", "namespace": "x", "uid": "u"}});
        let change = |seq: u64| {
            let object = stored("member1", seq, &pod);
            Change { seq: Seq(seq), kind: ChangeKind::Added, object, previous: None }
        };
        seqs.map(change).collect()
    }

    #[tokio::test]
    async fn each_change_is_delivered_once_in_order_from_either_source() {
        let tail = Arc::new(Tail::new(Seq(2), 100, 1 << 20));
        let mut follower = tail.follow(Seq(2));
        let mut received = async || -> Result<Vec<u64>, Gone> {
            Ok(follower.ready_now()?.iter().map(|change| change.seq.0).collect())
        };
        assert!(tail.publish(changes(3..=4)));
        // Earlier changes are missing, so these are rejected.
        assert!(!tail.publish(changes(7..=8)));
        assert_eq!(tail.latest(), Seq(4));
        assert!(tail.publish(changes(3..=6)));
        assert!(tail.publish(changes(5..=8)));
        assert!(tail.publish(changes(1..=8)));
        assert_eq!(received().await, Ok(vec![3, 4, 5, 6, 7, 8]));
        // A gap that cannot be filled: followers have to list again.
        tail.restart(Seq(20));
        assert_eq!(received().await, Err(Gone { oldest: Seq(20) }));
        assert!(tail.publish(changes(20..=21)));
        assert_eq!(tail.latest(), Seq(21));
    }

    fn pod(seq: u64, namespace: &str, name: &str) -> Change {
        let pod = json!({"kind": "Pod", "metadata": {"name": name, "namespace": namespace, "uid": "u"}});
        Change { seq: Seq(seq), kind: ChangeKind::Added, object: stored("member1", seq, &pod), previous: None }
    }

    fn topic(namespace: Option<&str>, name: Option<&str>) -> Topic {
        let resource = crowsnest_apimachinery::names::Gvr::new("", "v1", "pods");
        Topic { resource, namespace: namespace.map(Arc::from), name: name.map(Arc::from) }
    }

    #[rstest]
    #[case::all(None, None, &[1, 2, 3, 4])]
    #[case::one_namespace(Some("x"), None, &[1, 2, 4])]
    #[case::one_name(None, Some("a"), &[1, 3])]
    #[case::one_object(Some("x"), Some("b"), &[2, 4])]
    #[case::nothing(Some("z"), None, &[])]
    fn a_topic_includes_the_changes_in_the_window(
        #[case] namespace: Option<&str>,
        #[case] name: Option<&str>,
        #[case] expected: &[u64],
    ) {
        let tail = Arc::new(Tail::new(Seq(0), 100, 1 << 20));
        assert!(tail.publish(vec![pod(1, "x", "a"), pod(2, "x", "b")]));
        let mut follower = tail.follow_topic(Seq(0), topic(namespace, name));
        assert!(tail.publish(vec![pod(3, "y", "a"), pod(4, "x", "b")]));
        let received = |follower: &mut Follower| -> Vec<u64> {
            follower.ready_now().unwrap().iter().map(|change| change.seq.0).collect()
        };
        assert_eq!(received(&mut follower), expected);
        // The position advances past changes of other topics.
        assert_eq!(follower.since(), Seq(4));
        let from = expected.first().copied().unwrap_or(4);
        let mut later = tail.follow_topic(Seq(from), topic(namespace, name));
        assert_eq!(received(&mut later), expected.get(1..).unwrap_or_default());
    }

    #[tokio::test]
    async fn a_follower_of_an_idle_topic_does_not_expire() {
        let tail = Arc::new(Tail::new(Seq(0), 2, 1 << 20));
        let (mut quiet, mut busy) =
            (tail.follow_topic(Seq(0), topic(Some("x"), None)), tail.follow_topic(Seq(0), topic(Some("y"), None)));
        let mut all = tail.follow(Seq(0));
        for seq in 1..=8 {
            assert!(tail.publish(vec![pod(seq, "y", "a")]));
        }
        assert!(tail.publish(vec![pod(9, "x", "a")]));
        let received = quiet.next().await.unwrap().unwrap();
        assert_eq!(received.iter().map(|change| change.seq.0).collect::<Vec<_>>(), [9]);
        assert_eq!(busy.ready_now().unwrap_err(), Gone { oldest: Seq(7) });
        assert_eq!(all.ready_now().unwrap_err(), Gone { oldest: Seq(7) });
        drop((quiet, busy));
        assert!(format!("{:?}", tail.window.read().topics).ends_with("{} }"), "a topic without followers is kept");
    }

    proptest! {
        /// For any sequence of writes and reads, a follower of a topic receives the matching changes of the complete tail.
        /// It gets [`Gone`] only if a follower of the complete tail does as well.
        #[test]
        fn a_topic_equals_the_filtered_tail(
            steps in prop::collection::vec((0_u8..3, 0_u8..3, prop::bool::weighted(0.3)), 1..60),
            namespace in prop::option::of(0_u8..3),
            name in prop::option::of(0_u8..3),
        ) {
            let name_of = |number: u8| format!("n{number}");
            let (namespace, name) = (namespace.map(name_of), name.map(name_of));
            let topic = topic(namespace.as_deref(), name.as_deref());
            let tail = Arc::new(Tail::new(Seq(0), 5, 1 << 20));
            let (mut topic_follower, mut follower) = (tail.follow_topic(Seq(0), topic.clone()), tail.follow(Seq(0)));
            for (seq, (namespace, name, read)) in (1..).zip(steps) {
                prop_assert!(tail.publish(vec![pod(seq, &name_of(namespace), &name_of(name))]));
                if !read {
                    continue;
                }
                let received = topic_follower.ready_now();
                let Ok(all) = follower.ready_now() else {
                    // This follower has expired; the topic may have missed nothing.
                    follower.skip_to(tail.latest());
                    if received.is_err() {
                        topic_follower.skip_to(tail.latest());
                    }
                    continue;
                };
                let expected: Vec<Seq> = all.iter().filter(|c| topic.matches(c)).map(|c| c.seq).collect();
                let received: Vec<Seq> = received.unwrap().iter().map(|c| c.seq).collect();
                prop_assert_eq!(received, expected);
                prop_assert_eq!(topic_follower.since(), follower.since());
            }
        }
    }
}
