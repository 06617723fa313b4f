//! Where committed writes go before they become visible.

use async_trait::async_trait;

use crate::error::Result;
use crate::storage::{Body, ObjectKey, ResourceKey, Revision};

/// One accepted write: `body` is `None` for a delete.
#[derive(Debug, Clone)]
pub struct Entry {
    pub table: ResourceKey,
    pub key: ObjectKey,
    pub revision: Revision,
    pub body: Option<Body>,
}

/// What a journal held when it was opened.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub revision: Revision,
    pub objects: Vec<(ResourceKey, ObjectKey, Revision, Body)>,
}

/// Durable home of the objects. Used by the store's writer task only.
#[async_trait]
pub trait Journal: Send {
    /// Everything stored, once, before the first commit.
    async fn load(&mut self) -> Result<Snapshot>;

    /// Stores all entries or none; when it returns they survive the death of the process.
    async fn commit(&mut self, entries: &[Entry], revision: Revision) -> Result<()>;

    /// Flushes and lets go of files.
    async fn close(self: Box<Self>) -> Result<()>;
}

/// Keeps nothing: for tests and throw-away servers.
#[derive(Debug, Default)]
pub struct MemoryJournal;

#[async_trait]
impl Journal for MemoryJournal {
    async fn load(&mut self) -> Result<Snapshot> {
        Ok(Snapshot { revision: 1, objects: Vec::new() })
    }

    async fn commit(&mut self, _entries: &[Entry], _revision: Revision) -> Result<()> {
        Ok(())
    }

    async fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
