//! Indexes the changes that the tail no longer has, from the store.

use super::{PendingChanges, REPLAY_BATCH, TextFollower, Waiter};
use crate::tantivy::{MergeMode, merge_policy};
use crowsnest_store::{Error, OUTAGE_RETRY, ReplayedChange, Seq};
use std::sync::atomic::Ordering;
use tantivy::IndexWriter;

/// Changes read from the store.
struct Replay {
    changes: Vec<ReplayedChange>,
    /// Deletions up to this seq may be missing.
    pruned: Seq,
    latest: Seq,
}

impl TextFollower {
    /// Indexes the changes after `since` from the store, until the tail has all later ones or the follower stops. Returns the
    /// seq reached.
    pub(super) fn catch_up(
        &mut self,
        waiter: &Waiter,
        writer: &mut IndexWriter,
        pending: &mut PendingChanges,
        mut since: Seq,
    ) -> Result<Seq, Error> {
        loop {
            // Read before the store: if the store has no more changes, the tail has all changes after this seq.
            let tail_latest = self.tail.latest();
            let Replay { changes, pruned, latest } = match waiter.wait(self.replay(since)) {
                None => return Ok(since),
                Some(Err(error)) if self.outlives_outages && error.is_outage() => {
                    tracing::debug!(error = error.chain(), "the text index waits for the database");
                    self.commit(writer, pending)?;
                    waiter.wait(tokio::time::sleep(OUTAGE_RETRY));
                    continue;
                }
                Some(result) => result?,
            };
            self.begin_work();
            if pruned > since.max(self.empty_at) {
                if since == Seq(0) {
                    // The index is empty, so it is filled in place and is searchable meanwhile.
                    self.empty_at = latest;
                } else {
                    self.start_rebuild(writer, pending, latest)?;
                    since = Seq(0);
                }
                continue;
            }
            if changes.is_empty() {
                let reached = since.max(tail_latest);
                if reached > pending.seq.unwrap_or(Seq(self.payload.seq)) {
                    pending.add(reached);
                }
                if self.rebuild.is_some() {
                    self.commit(writer, pending)?;
                }
                if let Some(built) = self.rebuild.take() {
                    self.text.replace(built, Seq(self.payload.seq))?;
                    self.searchable.send_replace(Seq(self.payload.seq));
                }
                return Ok(reached);
            }
            for change in &changes {
                let indexed_until = pending.indexed_until.map_or(self.payload.seq, |seq| seq.0);
                match change {
                    ReplayedChange::Put(object) => self.index_object(writer, indexed_until, object)?,
                    ReplayedChange::Deleted { id, .. } => self.delete(writer, *id),
                }
                since = change.seq();
                pending.add(since);
                pending.indexed_until = Some(since);
            }
            self.throttle(waiter);
            let is_due = pending.first_at.is_some_and(|first| first.elapsed() >= self.commit_policy.max_delay());
            if pending.changes >= self.commit_changes || is_due {
                self.commit(writer, pending)?;
            }
            self.metrics.text_lag.set(self.tail.latest().0.saturating_sub(since.0));
        }
    }

    async fn replay(&self, since: Seq) -> Result<Replay, Error> {
        let changes = self.store.replay(since, REPLAY_BATCH).await?;
        // Read after the changes, so that a concurrent deletion of old versions is detected.
        Ok(Replay { changes, pruned: self.store.pruned_until().await?, latest: self.store.latest().await? })
    }

    /// Starts a rebuild of the index, because deletions were pruned before they were indexed, for example after a clock
    /// change. Without it, the deleted objects would be found until the next rebuild.
    fn start_rebuild(
        &mut self,
        writer: &mut IndexWriter,
        pending: &mut PendingChanges,
        latest: Seq,
    ) -> Result<(), Error> {
        tracing::info!("deletions were pruned before the text index read them; rebuilding it");
        let built = self.text.create_in_other_folder()?;
        *writer = built.writer(self.heap_bytes)?;
        *pending = PendingChanges::default();
        self.payload.seq = 0;
        self.committed.store(0, Ordering::Relaxed);
        writer.set_merge_policy(merge_policy(MergeMode::Filling));
        (self.empty_at, self.rebuild) = (latest, Some(built));
        Ok(())
    }
}
