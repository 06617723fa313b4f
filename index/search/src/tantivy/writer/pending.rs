//! Changes between two commits.

use super::commit_policy::Uncommitted;
use crowsnest_store::record::{Change, Seq};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Changes from the tail that are not committed yet.
#[derive(Default)]
pub(super) struct Pending {
    pub changes: usize,
    /// The seq of the last change.
    pub seq: Option<Seq>,
    /// Seq up to which all changes were passed to the index writer.
    pub indexed_until: Option<Seq>,
    pub since: Option<Instant>,
    pub last: Option<Instant>,
    /// Changes that were not passed to the writer yet, by object id: an object that changes repeatedly is written
    /// once.
    pub held: HashMap<u64, Arc<Change>>,
    pub held_bytes: usize,
}

impl Pending {
    pub fn add(&mut self, seq: Seq) {
        self.changes += 1;
        self.seq = Some(seq);
        let now = Instant::now();
        self.since.get_or_insert(now);
        self.last = Some(now);
    }

    /// State for the commit policy; `lag` is the number of changes that were not received yet.
    pub fn uncommitted(&self, lag: u64) -> Uncommitted {
        Uncommitted { changes: self.changes, lag, since: self.since, last: self.last }
    }

    pub fn hold(&mut self, change: Arc<Change>) {
        let size = |change: &Change| change.object.body.len();
        self.held_bytes += size(&change);
        if let Some(before) = self.held.insert(change.object.record.id, change) {
            self.held_bytes -= size(&before);
        }
    }
}
