//! Loads: all objects of the store are written in a new generation.

use super::GraphSink;
use crate::batch::{is_full_batch, take_batch};
use crate::continuation::{Load, LoadStart};
use crate::error::SinkError;
use crate::session::{ProcessState, Session};
use crate::writer::Position;
use crowsnest_index::export::ObjectChange;
use crowsnest_store::Object;
use std::sync::Arc;

/// Maximum number of objects that a load reads at once. Objects can be as large as 1 MiB.
const OBJECTS_PER_READ: usize = 100;

impl GraphSink {
    /// Begins a generation, and a load that writes everything in it.
    pub(super) async fn begin_load(
        &self,
        session: &mut Session,
        selection: &str,
        process: &mut ProcessState,
    ) -> Result<Load, SinkError> {
        let (generation, started_at_ms) = (session.generation, (self.source.now_ms)());
        self.claim(session).begin_generation(generation, &self.source.store_name, selection, started_at_ms).await?;
        // The graph records from now on that it is not complete.
        process.needs_reload = false;
        process.load = None;
        process.undecided_clusters.clear();
        self.visibility.reset();
        process.has_compared_rules = true;
        process.loaded_at = Some(session.loaded_at);
        // Read first, because the load may read a Pod before the objects that select it.
        session.selectors = self.load_pod_selectors().await?;
        // Read before the first object: later changes are followed after the load.
        let seq = self.source.changes.latest();
        let rule_digests = self.visibility.rule_digests(seq).await?;
        let start = LoadStart { generation, started_at_ms, seq, rule_digests };
        process.load = Some(start.clone());
        Ok(Load { start, position: 0 })
    }

    /// Writes all objects that were last changed before the load began, from the position of the load.
    pub(super) async fn load(&self, session: &mut Session, load: Load) -> Result<(), SinkError> {
        let Load { start, position: mut after } = load;
        let mut pending = Vec::new();
        loop {
            let limit = session.batch_size.get().min(OBJECTS_PER_READ);
            let (objects, next) = self.source.changes.objects_after(after, limit).await?;
            let objects = objects.into_iter().take_while(|object| object.record.seq.0 <= start.seq);
            pending.extend(objects.map(put_change));
            let next = start.next_position(next);
            // The last batch is not full if more objects follow.
            while !pending.is_empty() && (next.is_none() || is_full_batch(&pending, session.batch_size.get())) {
                let changes = take_batch(&mut pending, session.batch_size.get());
                let seq = changes.last().map_or(after, |change| change.seq);
                self.write(session, changes, Position { seq, is_complete: false }).await?;
            }
            match next {
                Some(next) => after = next,
                None => break,
            }
        }
        self.complete_load(session, start).await
    }

    async fn complete_load(&self, session: &mut Session, start: LoadStart) -> Result<(), SinkError> {
        let digests_at_end = self.visibility.rule_digests(self.source.changes.latest()).await?;
        if start.rule_digests == digests_at_end && !self.visibility.has_changed().await {
            session.rule_digests = Some(start.rule_digests);
        }
        session.position = start.seq;
        let writer = self.writer(session);
        let mut transaction = writer.claim.begin().await?;
        writer.set_position(&mut transaction, Position { seq: start.seq, is_complete: true }).await?;
        transaction.commit().await?;
        self.update_progress(|progress| progress.counters.loads += 1);
        Ok(())
    }
}

/// An object that a load writes, as a change.
fn put_change(object: Object) -> ObjectChange {
    ObjectChange {
        seq: object.record.seq.0,
        key: object.record.key.clone(),
        kind: Arc::clone(&object.record.kind),
        uid: object.record.uid.clone(),
        object: Some(object),
    }
}
