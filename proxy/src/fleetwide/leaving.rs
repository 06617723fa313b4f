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
    /// Time at which the entry may be removed; None: not all pages were read from the cache.
    due: Option<Instant>,
    /// Changes after this sequence number need no DELETED event.
    until: Option<Seq>,
}

impl RemovedCollections {
    pub fn leave(&mut self, query: ListQuery, known: Seq) {
        self.left.push(Left { query, known, reported: HashSet::new(), due: None, until: None });
    }

    /// Marks records as sent as DELETED; `over` is true for the last ones of the collection. Changes that were visible
    /// when they were read may arrive up to `lag` later.
    pub fn record_deletions(&mut self, query: &ListQuery, ids: Vec<u64>, over: bool, lag: Duration) {
        let left = self.left.iter_mut().rev().find(|left| left.query.collection == query.collection);
        if let Some(left) = left {
            left.reported.extend(ids);
            left.due = over.then(|| Instant::now() + lag);
        }
    }

    /// True if the reader was sent the deletion of this object. An object that has returned since is known again.
    pub fn has_reported(&self, record: &Record) -> bool {
        self.left.iter().any(|left| left.reported.contains(&record.id))
    }

    /// Marks a record as known to the reader again.
    pub fn restore(&mut self, record: &Record) {
        for left in &mut self.left {
            left.reported.remove(&record.id);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// True if changes of a cluster's removed objects may still have to be sent as DELETED.
    pub fn includes(&self, cluster: &str) -> bool {
        self.left.iter().any(|left| left.query.collection.cluster.as_str() == cluster)
    }

    /// Time at which [`RemovedCollections::forget`] is to be called next.
    pub fn due(&self) -> Option<Instant> {
        self.left.iter().filter_map(|left| left.due).min()
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

    /// Removes entries that can no longer cause an event: the watch, which is at `since`, has passed all changes that
    /// were visible when the collection was read. `latest` is the last published change.
    pub fn forget(&mut self, lag: Duration, latest: Seq, since: Seq) {
        let now = Instant::now();
        self.left.retain_mut(|left| {
            if left.due.is_none_or(|due| now < due) {
                return true;
            }
            left.due = Some(now + lag);
            since < *left.until.get_or_insert(latest)
        });
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
        leaving.record_deletions(&query, vec![1], false, soon);
        leaving.forget(soon, Seq(5), Seq(5));
        assert_eq!((leaving.left.len(), leaving.due()), (1, None), "not all was read");
        leaving.record_deletions(&query, vec![2], true, late);
        leaving.forget(soon, Seq(5), Seq(5));
        assert_eq!(leaving.left.len(), 1, "changes may still be on their way");
        leaving.record_deletions(&query, vec![], true, soon);
        leaving.forget(soon, Seq(7), Seq(6));
        assert_eq!(leaving.left.len(), 1, "the watch is behind");
        assert!(leaving.includes("m1") && leaving.due().is_some());
        leaving.forget(soon, Seq(9), Seq(7));
        assert!(!leaving.includes("m1"));
    }
}
