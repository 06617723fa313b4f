//! Indexes the changes that the tail no longer has, from the store.

use super::{PendingChanges, REPLAY_BATCH, TextFollower, Waiter};
use crate::tantivy::{MergeMode, OpenIndex, merge_policy};
use crowsnest_store::{Error, OUTAGE_RETRY, ReplayedChange, Seq};
use std::sync::atomic::Ordering;
use std::time::Duration;
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
    /// seq reached, and the writer, which is another one after a rebuild or after very many changes.
    pub(super) fn catch_up(
        &mut self,
        waiter: &Waiter,
        mut writer: IndexWriter,
        pending: &mut PendingChanges,
        mut since: Seq,
    ) -> Result<(IndexWriter, Seq), Error> {
        let mut is_bulk = false;
        loop {
            // Read before the store: if the store has no more changes, the tail has all changes after this seq.
            let tail_latest = self.tail.latest();
            let Replay { changes, pruned, latest } = match waiter.wait(self.replay(since)) {
                None => return Ok((writer, since)),
                Some(Err(error)) if self.tolerates_outages && error.is_outage() => {
                    tracing::debug!(error = error.chain(), "the text index waits for the database");
                    self.commit(&mut writer, pending)?;
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
                    writer = self.start_rebuild(pending, latest)?;
                    (since, is_bulk) = (Seq(0), false);
                }
                continue;
            }
            if changes.is_empty() {
                let reached = since.max(tail_latest);
                if reached > pending.seq.unwrap_or(Seq(self.payload.seq)) {
                    pending.add(reached);
                }
                return Ok((self.finish(writer, pending, is_bulk)?, reached));
            }
            if !is_bulk && self.commit_policy.needs_bulk_writer(tail_latest.0.saturating_sub(since.0)) {
                self.commit(&mut writer, pending)?;
                close(writer)?;
                writer = self.rebuild.as_ref().map_or_else(|| self.text.bulk_writer(), OpenIndex::bulk_writer)?;
                is_bulk = true;
            }
            for change in &changes {
                let indexed_until = pending.indexed_until.map_or(self.payload.seq, |seq| seq.0);
                match change {
                    ReplayedChange::Put(object) => self.index_object(&writer, indexed_until, object)?,
                    ReplayedChange::Deleted { id, .. } => self.delete(&writer, *id),
                }
                since = change.seq();
                pending.add(since);
                pending.indexed_until = Some(since);
            }
            self.throttle(waiter);
            let age = pending.first_at.map_or(Duration::ZERO, |first| first.elapsed());
            if self.commit_policy.is_replay_commit_due(pending.changes, age, is_bulk) {
                self.commit(&mut writer, pending)?;
            }
            self.metrics.text_lag.set(self.tail.latest().0.saturating_sub(since.0));
        }
    }

    /// Commits if there was a rebuild, whose index replaces the old one, or a bulk writer. Returns the writer for later changes.
    fn finish(
        &mut self,
        mut writer: IndexWriter,
        pending: &mut PendingChanges,
        is_bulk: bool,
    ) -> Result<IndexWriter, Error> {
        if is_bulk || self.rebuild.is_some() {
            self.commit(&mut writer, pending)?;
        }
        if let Some(built) = self.rebuild.take() {
            self.text.replace(built, Seq(self.payload.seq))?;
            self.searchable.send_replace(Seq(self.payload.seq));
        }
        if !is_bulk {
            return Ok(writer);
        }
        close(writer)?;
        self.text.writer(self.heap_bytes)
    }

    async fn replay(&self, since: Seq) -> Result<Replay, Error> {
        let changes = self.store.replay(since, REPLAY_BATCH).await?;
        // Read after the changes, so that a concurrent deletion of old versions is detected.
        Ok(Replay { changes, pruned: self.store.pruned_until().await?, latest: self.store.latest().await? })
    }

    /// Starts a rebuild of the index, because deletions were pruned before they were indexed, for example after a clock
    /// change. Without it, the deleted objects would be found until the next rebuild.
    fn start_rebuild(&mut self, pending: &mut PendingChanges, latest: Seq) -> Result<IndexWriter, Error> {
        tracing::info!("deletions were pruned before the text index read them; rebuilding it");
        let built = self.text.create_in_other_folder()?;
        let writer = built.writer(self.heap_bytes)?;
        *pending = PendingChanges::default();
        self.payload.seq = 0;
        self.committed.store(0, Ordering::Relaxed);
        writer.set_merge_policy(merge_policy(MergeMode::Filling));
        (self.empty_at, self.rebuild) = (latest, Some(built));
        Ok(writer)
    }
}

/// Waits until the writer's merges have ended: an index has only one writer.
pub(super) fn close(writer: IndexWriter) -> Result<(), Error> {
    writer.wait_merging_threads().map_err(|e| Error::text("cannot finish its merges", e))
}
