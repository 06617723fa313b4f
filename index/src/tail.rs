//! The last changes in memory, for watches, controllers and live search.
//!
//! Written by the store's writer, after its commit, and with a shared store by the follower of its log: each seq is taken
//! once, in order, whoever brings it first. Read by any number of readers, each with its own place. Bounded in
//! changes and bytes: a reader that falls out of the window is told [`Gone`] and lists again, instead of costing memory.

use crate::Gone;
use crate::record::{Change, Seq};
use parking_lot::RwLock;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::watch;

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
            window.bytes += change.object.body.len();
            window.changes.push_back(Arc::new(change));
        }
        while window.changes.len() > self.max_changes || window.bytes > self.max_bytes && window.changes.len() > 1 {
            let Some(oldest) = window.changes.pop_front() else { break };
            window.bytes -= oldest.object.body.len();
            window.since = oldest.seq;
        }
        // Under the lock: two who publish must not tell their ends in the other order.
        self.latest.send_replace(last);
        true
    }

    /// Goes on after `latest`: what came before is not known here, and whoever follows lists again.
    pub fn restart(&self, latest: Seq) {
        let mut window = self.window.write();
        *window = Window { since: latest, ..Window::default() };
        self.latest.send_replace(latest);
    }

    /// The newest change. List first, then watch from the seq read before the list: nothing is missed.
    pub fn latest(&self) -> Seq {
        *self.latest.borrow()
    }

    /// Follows everything after `since`.
    pub fn follow(self: &Arc<Self>, since: Seq) -> Follower {
        Follower { tail: Arc::clone(self), since, latest: self.latest.subscribe() }
    }

    fn read(&self, since: Seq) -> Result<Vec<Arc<Change>>, Gone> {
        let window = self.window.read();
        if since < window.since {
            return Err(Gone { oldest: window.since });
        }
        let start = window.changes.partition_point(|change| change.seq <= since);
        Ok(window.changes.iter().skip(start).take(BATCH).cloned().collect())
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
    since: Seq,
    latest: watch::Receiver<Seq>,
}

impl Follower {
    /// The next changes, waiting until there are some. Cancel-safe. None when the cache stopped.
    pub async fn next(&mut self) -> Option<Result<Vec<Arc<Change>>, Gone>> {
        loop {
            self.latest.borrow_and_update();
            match self.tail.read(self.since) {
                Err(gone) => return Some(Err(gone)),
                Ok(changes) => {
                    if let Some(last) = changes.last() {
                        self.since = last.seq;
                        return Some(Ok(changes));
                    }
                }
            }
            self.latest.changed().await.ok()?;
        }
    }

    /// What is there now, without waiting; empty when the reader is up to date.
    pub fn ready_now(&mut self) -> Result<Vec<Arc<Change>>, Gone> {
        let changes = self.tail.read(self.since)?;
        if let Some(last) = changes.last() {
            self.since = last.seq;
        }
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
}
