//! Collections that left the view of a watch. Each of their objects that the reader knows is sent as DELETED
//! exactly once.
//!
//! Most objects are read from the cache when the collection leaves. The watch may be behind the cache: an object
//! that was deleted or changed before it was read is reported by its change. The reader does not know objects that
//! were last changed after the position of the watch.

use std::collections::HashSet;
use std::time::Duration;

use crowsnest_index::{ListQuery, Record, Seq};
use tokio::time::Instant;

use crate::Error;

/// Collections that left the view.
#[derive(Default)]
pub struct RemovedCollections {
    left: Vec<Left>,
}

struct Left {
    query: ListQuery,
    /// Position of the watch when the collection left.
    known: Seq,
    /// Ids of the records sent as DELETED.
    reported: HashSet<u64>,
    /// Time at which the last page was read from the cache.
    read: Option<Instant>,
    /// Changes after this sequence number need no DELETED event.
    until: Option<Seq>,
}

impl RemovedCollections {
    pub fn leave(&mut self, query: ListQuery, known: Seq) {
        self.left.push(Left { query, known, reported: HashSet::new(), read: None, until: None });
    }

    /// Marks records as sent as DELETED; `over` is true for the last ones of the collection.
    pub fn record_deletions(&mut self, query: &ListQuery, ids: Vec<u64>, over: bool) {
        let left = self.left.iter_mut().rev().find(|left| left.query.collection == query.collection);
        if let Some(left) = left {
            left.reported.extend(ids);
            left.read = over.then(Instant::now);
        }
    }

    /// True if the reader knows this object and was not sent its deletion yet. Marks the deletion as sent.
    pub fn take_deletion(&mut self, record: &Record) -> Result<bool, Error> {
        // A collection that returned and left again is in the last entry.
        for left in self.left.iter_mut().rev() {
            let query = &left.query;
            if record.seq <= left.known && record.key.collection == query.collection && query.matches(record)? {
                return Ok(left.reported.insert(record.id));
            }
        }
        Ok(false)
    }

    /// Removes entries that can no longer cause an event: the watch has passed all changes that were visible when
    /// the collection was read. Such changes may arrive up to `lag` later.
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
    fn entries_are_removed_once_the_watch_has_passed_them() {
        let query = ListQuery::new(ClusterName::parse("m1").unwrap(), Gvr::new("", "v1", "configmaps"));
        let (soon, late) = (Duration::ZERO, Duration::from_secs(3600));
        let mut leaving = RemovedCollections::default();
        leaving.leave(query.clone(), Seq(3));
        leaving.record_deletions(&query, vec![1], false);
        leaving.forget(soon, Seq(5), Seq(5));
        assert_eq!(leaving.left.len(), 1, "not all was read");
        leaving.record_deletions(&query, vec![2], true);
        leaving.forget(late, Seq(5), Seq(5));
        assert_eq!(leaving.left.len(), 1, "changes may still be on their way");
        leaving.forget(soon, Seq(7), Seq(6));
        assert_eq!(leaving.left.len(), 1, "the watch is behind");
        leaving.forget(soon, Seq(9), Seq(7));
        assert_eq!(leaving.left.len(), 0);
    }
}
