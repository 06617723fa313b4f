//! The source that a writer follows.

use crate::opensearch::bulk::DocumentChange;
use async_trait::async_trait;

/// An ordered log of changes that can be read from any position, each record's last state at least.
#[async_trait]
pub trait ChangeSource: Send + Sync {
    /// Names this log. A log whose sequence numbers begin again has another name: the index is then built again, because
    /// the engine holds higher versions than the new log gives.
    fn identity(&self) -> String;

    /// Sequence number of the newest change.
    fn latest(&self) -> u64;

    /// Last states of the records that changed after `since`, in the order of their sequence numbers and within the bounds as
    /// far as one change allows. [`SourceError::Pruned`] if deletions are among them that are forgotten.
    async fn changes(&self, since: Since, bounds: BatchBounds) -> Result<ChangeBatch, SourceError>;

    /// Returns when there may be changes after the position.
    async fn changed(&self, after: u64);
}

/// State of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Since {
    /// Every change up to here.
    pub position: u64,
    /// The index was empty when this was the newest change: it needs no deletions up to here.
    pub empty_at: u64,
}

/// Bounds of what is read at once, and so of the memory that the writer uses.
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
    /// All changes up to here are in `changes` or precede them. Equal to the requested position: there is nothing more.
    pub position: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Deletions after the position are forgotten, so the index has to be built again.
    #[error("the source has forgotten deletions after the index's position")]
    Pruned,
    #[error("cannot read changes")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}
