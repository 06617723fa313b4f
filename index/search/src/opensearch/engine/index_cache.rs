//! The index that searches read. Requests name the index, not the alias, because the alias may point at an index that was
//! filled from another cache, where the same record ids identify other objects.

use super::Failure;
use crate::opensearch::source::StoreSource;
use crate::opensearch::writer::{SearchedIndex, Writer, WriterError};
use arc_swap::ArcSwapOption;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct SearchIndexCache {
    writer: Arc<Writer<StoreSource>>,
    known: ArcSwapOption<SearchedIndex>,
}

impl SearchIndexCache {
    pub fn new(writer: Arc<Writer<StoreSource>>) -> Self {
        Self { writer, known: ArcSwapOption::empty() }
    }

    pub async fn index(&self) -> Result<Arc<SearchedIndex>, Failure> {
        if let Some(known) = self.known.load_full() {
            return Ok(known);
        }
        let found = self.writer.searched_index().await.map_err(|error| match error {
            WriterError::Client(error) => Failure::Client(error),
            error => Failure::Index(error),
        })?;
        let found = Arc::new(found);
        self.known.store(Some(Arc::clone(&found)));
        Ok(found)
    }

    /// Drops the known index, so that the next search resolves it again: it was replaced or lost.
    pub fn forget(&self, gone: &Arc<SearchedIndex>) {
        self.known.compare_and_swap(gone, None);
    }
}
