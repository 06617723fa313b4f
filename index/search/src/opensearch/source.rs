//! The store as the source of a writer's changes.

use super::bulk::DocumentChange;
use super::document::EngineDocument;
use super::writer::{BatchBounds, ChangeBatch, ChangeSource, IndexPosition, SourceError};
use crate::document::Document;
use async_trait::async_trait;
use bytes::Bytes;
use crowsnest_store::Seq;
use crowsnest_store::tail::Tail;
use crowsnest_store::{ReplayedChange, Store};
use std::sync::Arc;

/// Changes read from the store at once.
const REPLAY_BATCH: usize = 200;

/// Reads changes from the store; the tail announces them.
pub(super) struct StoreSource {
    pub store: Arc<dyn Store>,
    pub tail: Arc<Tail>,
    /// Identity of the store.
    pub identity: String,
}

impl std::fmt::Debug for StoreSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StoreSource")
    }
}

#[async_trait]
impl ChangeSource for StoreSource {
    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn latest(&self) -> u64 {
        self.tail.latest().0
    }

    async fn changes(&self, since: IndexPosition, bounds: BatchBounds) -> Result<ChangeBatch, SourceError> {
        // Read before the store: the store has at least the changes that the tail has announced.
        let announced = self.tail.latest().0;
        let mut batch = ChangeBatch { changes: Vec::new(), position: since.position };
        let mut bytes = 0;
        while batch.changes.len() < bounds.changes && bytes < bounds.bytes {
            let limit = REPLAY_BATCH.min(bounds.changes - batch.changes.len());
            let replayed = self.store.replay(Seq(batch.position), limit).await.map_err(source_error)?;
            // Read after the replay, so that a pruning during the replay is detected.
            let pruned = self.store.pruned_until().await.map_err(source_error)?;
            if pruned.0 > batch.position.max(since.empty_at) {
                return Err(SourceError::Pruned);
            }
            if replayed.is_empty() {
                batch.position = batch.position.max(announced);
                break;
            }
            let documents = tokio::task::spawn_blocking(move || replayed.iter().map(document_change).collect());
            let documents: Result<Vec<DocumentChange>, SourceError> = documents.await.map_err(source_error)?;
            for change in documents? {
                if bytes >= bounds.bytes {
                    break;
                }
                bytes += change.document.as_ref().map_or(0, Bytes::len);
                batch.position = change.seq;
                batch.changes.push(change);
            }
        }
        Ok(batch)
    }

    async fn wait_for_changes(&self, after: u64) {
        self.tail.follow(Seq(after)).wait().await;
    }
}

fn document_change(change: &ReplayedChange) -> Result<DocumentChange, SourceError> {
    let (seq, id, document) = match change {
        ReplayedChange::Deleted { id, seq } => (seq.0, *id, None),
        ReplayedChange::Put(object) => {
            let document = EngineDocument::from_document(&Document::from_object(object).map_err(source_error)?);
            let json = serde_json::to_vec(&document).map_err(source_error)?;
            (object.record.seq.0, object.record.id, Some(Bytes::from(json)))
        }
    };
    Ok(DocumentChange { seq, id: id.to_string(), document })
}

fn source_error(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> SourceError {
    SourceError::Failed(error.into())
}
