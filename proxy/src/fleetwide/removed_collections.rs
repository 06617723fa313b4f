//! Collections that were removed from the view of a watch. Each of their objects that the client knows is sent as DELETED
//! exactly once.
//!
//! Most objects are read from the cache when the collection is removed. The watch may be behind the cache, so an object that
//! was deleted or changed before it was read is sent as DELETED when the watch reaches that change. The client does not know
//! objects that were last changed after the position of the watch.

use std::collections::HashSet;
use std::time::Duration;

use crowsnest_index::{ListQuery, Record, Seq};
use tokio::time::Instant;

use crate::Error;

/// The collections that were removed from the view of a watch.
#[derive(Default)]
pub struct RemovedCollections {
    collections: Vec<RemovedCollection>,
}

struct RemovedCollection {
    query: ListQuery,
    /// Position of the watch when the collection was removed.
    position: Seq,
    /// Ids of the records sent as DELETED.
    deleted: HashSet<u64>,
    /// Earliest time at which the entry may be dropped; `None` until all pages were read from the cache.
    droppable_at: Option<Instant>,
    /// Changes after this sequence number need no DELETED event. None until `droppable_at`.
    last_change: Option<Seq>,
}

impl RemovedCollections {
    /// Adds a collection that was removed from the view while the watch was at `position`.
    pub fn add(&mut self, query: ListQuery, position: Seq) {
        let (deleted, droppable_at, last_change) = (HashSet::new(), None, None);
        self.collections.push(RemovedCollection { query, position, deleted, droppable_at, last_change });
    }

    /// Marks records as sent as DELETED; `is_last` is true for the last ones of the collection. Changes that were visible
    /// when they were read may arrive up to `lag` later.
    pub fn record_deletions(&mut self, query: &ListQuery, ids: Vec<u64>, is_last: bool, lag: Duration) {
        let removed = self.collections.iter_mut().rev().find(|removed| removed.query.collection == query.collection);
        if let Some(removed) = removed {
            removed.deleted.extend(ids);
            removed.droppable_at = is_last.then(|| Instant::now() + lag);
        }
    }

    /// True if the client was sent the deletion of this object, and not the object again since.
    pub fn is_deleted(&self, record: &Record) -> bool {
        self.collections.iter().any(|removed| removed.deleted.contains(&record.id))
    }

    /// Marks a record as known to the client again.
    pub fn restore(&mut self, record: &Record) {
        for removed in &mut self.collections {
            removed.deleted.remove(&record.id);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.collections.is_empty()
    }

    /// True if changes of a cluster's removed objects may still have to be sent as DELETED.
    pub fn has_cluster(&self, cluster: &str) -> bool {
        self.collections.iter().any(|removed| removed.query.collection.cluster.as_str() == cluster)
    }

    /// Time at which [`RemovedCollections::drop_finished`] has to be called next.
    pub fn next_drop(&self) -> Option<Instant> {
        self.collections.iter().filter_map(|removed| removed.droppable_at).min()
    }

    /// True if the client knows this object and was not sent its deletion yet. Marks the deletion as sent.
    pub fn take_deletion(&mut self, record: &Record) -> Result<bool, Error> {
        // A collection that was added to the view and removed again is in the last entry.
        for removed in self.collections.iter_mut().rev() {
            let query = &removed.query;
            if record.seq <= removed.position && record.key.collection == query.collection && query.matches(record)? {
                return Ok(removed.deleted.insert(record.id));
            }
        }
        Ok(false)
    }

    /// Drops entries that can no longer cause an event: the watch, which is at `since`, has passed all changes that
    /// were visible when the collection was read. `latest` is the last published change.
    pub fn drop_finished(&mut self, lag: Duration, latest: Seq, since: Seq) {
        let now = Instant::now();
        self.collections.retain_mut(|removed| {
            if removed.droppable_at.is_none_or(|droppable_at| now < droppable_at) {
                return true;
            }
            removed.droppable_at = Some(now + lag);
            since < *removed.last_change.get_or_insert(latest)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::{ClusterName, Gvr};
    use crowsnest_store::fixtures::stored;
    use serde_json::json;

    #[test]
    fn each_object_that_the_client_knows_is_deleted_once() {
        let object = |seq: u64| {
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "x"}});
            stored("m1", seq, &object).record
        };
        let query = ListQuery::new(ClusterName::parse("m1").unwrap(), Gvr::new("", "v1", "configmaps"));
        let (known, added_later) = (object(3), object(5));
        let mut removed = RemovedCollections::default();
        assert!(!removed.take_deletion(&known).unwrap(), "nothing was removed");
        removed.add(query.clone(), Seq(4));
        assert!(!removed.is_deleted(&known));
        assert!(removed.take_deletion(&known).unwrap() && removed.is_deleted(&known));
        assert!(!removed.take_deletion(&known).unwrap(), "its deletion was sent");
        assert!(!removed.take_deletion(&added_later).unwrap(), "the client does not know it");
        removed.restore(&known);
        assert!(!removed.is_deleted(&known));
        removed.record_deletions(&query, vec![known.id], true, Duration::ZERO);
        assert!(removed.is_deleted(&known) && !removed.take_deletion(&known).unwrap());
    }

    #[test]
    fn entries_are_dropped_once_the_watch_has_passed_their_changes() {
        let query = ListQuery::new(ClusterName::parse("m1").unwrap(), Gvr::new("", "v1", "configmaps"));
        let (soon, late) = (Duration::ZERO, Duration::from_secs(3600));
        let mut removed = RemovedCollections::default();
        removed.add(query.clone(), Seq(3));
        removed.record_deletions(&query, vec![1], false, soon);
        removed.drop_finished(soon, Seq(5), Seq(5));
        assert_eq!((removed.collections.len(), removed.next_drop()), (1, None), "not all pages were read");
        removed.record_deletions(&query, vec![2], true, late);
        removed.drop_finished(soon, Seq(5), Seq(5));
        assert_eq!(removed.collections.len(), 1, "changes may still be on their way");
        removed.record_deletions(&query, vec![], true, soon);
        removed.drop_finished(soon, Seq(7), Seq(6));
        assert_eq!(removed.collections.len(), 1, "the watch is behind");
        assert!(removed.has_cluster("m1") && removed.next_drop().is_some());
        removed.drop_finished(soon, Seq(9), Seq(7));
        assert!(!removed.has_cluster("m1"));
    }
}
