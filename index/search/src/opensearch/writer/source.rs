//! The source that a writer follows.

use crate::opensearch::bulk::DocumentChange;
use async_trait::async_trait;

/// An ordered log of changes that can be read from any position. It contains at least the last state of each record.
#[async_trait]
pub trait ChangeSource: Send + Sync {
    /// Name of this log. A log whose sequence numbers restart has another name; its index is then rebuilt, because
    /// the engine has higher versions than those of the new log.
    fn identity(&self) -> String;

    /// Sequence number of the newest change.
    fn latest(&self) -> u64;

    /// Last states of the records that changed after `since`, in the order of their sequence numbers. A single change may exceed
    /// the bounds. [`SourceError::Pruned`] if deletions after `since` are no longer recorded.
    async fn changes(&self, since: IndexPosition, bounds: BatchBounds) -> Result<ChangeBatch, SourceError>;

    /// Waits until there may be changes after the position.
    async fn wait_for_changes(&self, after: u64);
}

/// The changes that an index contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexPosition {
    /// The index contains every change up to this sequence number.
    pub position: u64,
    /// The index was empty when this was the newest change: it needs no deletions up to here.
    pub empty_at: u64,
}

/// Bounds of one batch, which limit the memory that the writer uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchBounds {
    pub changes: usize,
    /// Sum of document sizes.
    pub bytes: usize,
}

/// Consecutive changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeBatch {
    pub changes: Vec<DocumentChange>,
    /// Every change up to this position is included or precedes the batch. If it equals the requested position, there are no more changes.
    pub position: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Deletions after the position are no longer recorded, so the index has to be rebuilt.
    #[error("the source no longer records deletions after the index's position")]
    Pruned,
    #[error("cannot read changes")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}
