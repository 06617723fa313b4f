//! The index that searches read. Requests name the index, not the alias, because the alias may point at an index that was
//! filled from another cache, where the same record ids identify other objects.

use super::Failure;
use crate::opensearch::source::StoreSource;
use crate::opensearch::writer::{SearchIndex, Writer, WriterError};
use arc_swap::ArcSwapOption;
use std::sync::Arc;

/// Cache of the index behind the alias.
#[derive(Debug)]
pub(super) struct SearchIndexCache {
    writer: Arc<Writer<StoreSource>>,
    cached: ArcSwapOption<SearchIndex>,
}

impl SearchIndexCache {
    pub fn new(writer: Arc<Writer<StoreSource>>) -> Self {
        Self { writer, cached: ArcSwapOption::empty() }
    }

    /// The index behind the alias: from the cache, or resolved.
    pub async fn index(&self) -> Result<Arc<SearchIndex>, Failure> {
        if let Some(cached) = self.cached.load_full() {
            return Ok(cached);
        }
        let found = self.writer.find_search_index().await.map_err(|error| match error {
            WriterError::Client(error) => Failure::Client(error),
            error => Failure::Index(error),
        })?;
        let found = Arc::new(found);
        self.cached.store(Some(Arc::clone(&found)));
        Ok(found)
    }

    /// Removes an index that was replaced or lost from the cache, so that the next search resolves the alias again.
    pub fn forget(&self, lost: &Arc<SearchIndex>) {
        self.cached.compare_and_swap(lost, None);
    }
}
