//! Changes between two commits.

use super::commit_policy::UncommittedChanges;
use crowsnest_store::record::{Change, Seq};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Changes from the tail that are not committed yet.
#[derive(Default)]
pub(super) struct PendingChanges {
    /// Number of changes.
    pub changes: usize,
    /// The seq of the last change.
    pub seq: Option<Seq>,
    /// Seq up to which all changes were passed to the index writer.
    pub indexed_until: Option<Seq>,
    /// Time of the first change.
    pub first_at: Option<Instant>,
    /// Time of the last change.
    pub last_at: Option<Instant>,
    /// Changes that were not passed to the index writer yet, by object id, so that an object that changes repeatedly is
    /// written once.
    pub buffered: HashMap<u64, Arc<Change>>,
    /// Total size of the bodies in `buffered`.
    pub buffered_bytes: usize,
}

impl PendingChanges {
    pub fn add(&mut self, seq: Seq) {
        self.changes += 1;
        self.seq = Some(seq);
        let now = Instant::now();
        self.first_at.get_or_insert(now);
        self.last_at = Some(now);
    }

    /// State for the commit policy; `lag` is the number of changes that were not received yet.
    pub fn uncommitted_changes(&self, lag: u64) -> UncommittedChanges {
        UncommittedChanges { changes: self.changes, lag, first_at: self.first_at, last_at: self.last_at }
    }

    /// Buffers a change in place of an earlier one of the same object.
    pub fn buffer(&mut self, change: Arc<Change>) {
        let size = |change: &Change| change.object.body.len();
        self.buffered_bytes += size(&change);
        if let Some(before) = self.buffered.insert(change.object.record.id, change) {
            self.buffered_bytes -= size(&before);
        }
    }
}
