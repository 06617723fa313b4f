//! MVCC object store with one increasing revision per server, watch history and compaction.
//!
//! [`Store`] is the only writer: one task commits queued writes in groups to a [`Journal`] (SQLite or memory) and
//! then publishes them in the in-memory [`index`], which serves all reads and watches. Read by the registry and
//! `authz/`.

mod body;
mod event_cache;
mod index;
mod journal;
mod sqlite;
mod store;

use std::fmt;
use std::sync::Arc;

pub use body::{Body, MAX_OBJECT_BYTES, OwnerReference, OwnershipMetadata};
pub use event_cache::{BatchKey, EventCache, LineKey, SelectorFields, SelectorStates};
pub use index::{Change, ChangeKind, HistoryLimits, ListRange, Listing, Record};
pub use journal::{Journal, MemoryJournal, Snapshot};
pub use sqlite::{Durability, SqliteJournal};
pub use store::{Feed, FeedChange, Precondition, Store, Watcher, Write};

/// Revision of the server: `metadata.resourceVersion` of objects and lists.
pub type Revision = u64;

/// Key of a resource's table: `group/plural`, without version.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceKey(Arc<str>);

impl ResourceKey {
    pub fn new(group: &str, resource: &str) -> Self {
        Self(format!("{group}/{resource}").into())
    }

    pub fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Key of an object in its table: `namespace/name`, or `name` if cluster-scoped. Ordered by bytes, as lists are.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey(Arc<str>);

impl ObjectKey {
    /// `namespace` is empty for cluster-scoped objects.
    pub fn new(namespace: &str, name: &str) -> Self {
        if namespace.is_empty() { Self(name.into()) } else { Self(format!("{namespace}/{name}").into()) }
    }

    pub fn from_stored(text: &str) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }
}

impl std::borrow::Borrow<str> for ObjectKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
