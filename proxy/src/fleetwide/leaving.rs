//! What left the view of a watch: each object that its reader knows is told as deleted, and once.
//!
//! Most are read from the cache when they leave. The watch may be behind the cache: what went or changed there before it was
//! read is told by its change. An object last changed after the watch was there is not known to the reader.

use std::collections::HashSet;
use std::time::Duration;

use crowsnest_index::{ListQuery, Record, Seq};
use tokio::time::Instant;

use crate::Error;

/// Collections whose objects left the view.
#[derive(Default)]
pub struct Leaving {
    left: Vec<Left>,
}

struct Left {
    query: ListQuery,
    /// How far the reader had been told when they left.
    known: Seq,
    /// Ids of the records told as deleted.
    told: HashSet<u64>,
    /// When the last of them was read from the cache.
    read: Option<Instant>,
    /// Nothing that is owed comes after this.
    until: Option<Seq>,
}

impl Leaving {
    pub fn leave(&mut self, query: ListQuery, known: Seq) {
        self.left.push(Left { query, known, told: HashSet::new(), read: None, until: None });
    }

    /// Records of a collection that were read and told; `over` when they were the last.
    pub fn told(&mut self, query: &ListQuery, ids: Vec<u64>, over: bool) {
        let left = self.left.iter_mut().rev().find(|left| left.query.collection == query.collection);
        if let Some(left) = left {
            left.told.extend(ids);
            left.read = over.then(Instant::now);
        }
    }

    /// Whether the reader knows an object as this, and was not told yet that it left. It counts as told after this.
    pub fn owes(&mut self, record: &Record) -> Result<bool, Error> {
        // What came back and left again is in the last of them.
        for left in self.left.iter_mut().rev() {
            let query = &left.query;
            if record.seq <= left.known && record.key.collection == query.collection && query.matches(record)? {
                return Ok(left.told.insert(record.id));
            }
        }
        Ok(false)
    }

    /// Forgets what can owe nothing any more: the watch is past everything that could be seen when it was read. Of that,
    /// changes may come up to `lag` later.
    pub fn forget(&mut self, lag: Duration, latest: Seq, since: Seq) {
        let now = Instant::now();
        for left in &mut self.left {
            if left.until.is_none() && left.read.is_some_and(|read| read + lag <= now) {
                left.until = Some(latest);
            }
        }
        self.left.retain(|left| left.until.is_none_or(|until| since < until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::{ClusterName, Gvr};

    #[test]
    fn what_is_told_is_forgotten_once_the_watch_is_past_it() {
        let query = ListQuery::new(ClusterName::parse("m1").unwrap(), Gvr::new("", "v1", "configmaps"));
        let (soon, late) = (Duration::ZERO, Duration::from_secs(3600));
        let mut leaving = Leaving::default();
        leaving.leave(query.clone(), Seq(3));
        leaving.told(&query, vec![1], false);
        leaving.forget(soon, Seq(5), Seq(5));
        assert_eq!(leaving.left.len(), 1, "not all was read");
        leaving.told(&query, vec![2], true);
        leaving.forget(late, Seq(5), Seq(5));
        assert_eq!(leaving.left.len(), 1, "changes may still be on their way");
        leaving.forget(soon, Seq(7), Seq(6));
        assert_eq!(leaving.left.len(), 1, "the watch is behind");
        leaving.forget(soon, Seq(9), Seq(7));
        assert_eq!(leaving.left.len(), 0);
    }
}
