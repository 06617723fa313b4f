//! Interface of the durable storage to which writes are committed before they become visible.

use async_trait::async_trait;

use crate::error::Result;
use crate::storage::{Body, ObjectKey, ResourceKey, Revision};

/// An accepted write; `body` is `None` for a delete.
#[derive(Debug, Clone)]
pub struct Entry {
    pub table: ResourceKey,
    pub key: ObjectKey,
    pub revision: Revision,
    pub body: Option<Body>,
}

/// Contents of a journal when it is opened.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub revision: Revision,
    pub objects: Vec<(ResourceKey, ObjectKey, Revision, Body)>,
}

/// Durable storage of objects. Used by the store's writer task only.
#[async_trait]
pub trait Journal: Send {
    /// Loads all objects; called once, before the first commit.
    async fn load(&mut self) -> Result<Snapshot>;

    /// Commits all entries or none; on return they are durable.
    async fn commit(&mut self, entries: &[Entry], revision: Revision) -> Result<()>;

    /// Flushes and closes the files.
    async fn close(self: Box<Self>) -> Result<()>;
}

/// Journal without storage, for tests and temporary servers.
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
