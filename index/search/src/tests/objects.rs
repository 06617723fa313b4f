//! Objects of tests in which relations are resolved.

use crate::document::Document;
use crate::document::columns::Key;
use crate::engine::SearchContext;
use crate::execute::evaluate::DocumentEvaluator;
use crate::plan::predicate::Match;
use crate::plan::relations::{DependencyDirection, RelatedObjectLookup};
use crate::tantivy::TextIndex;
use crate::tantivy::reader::lookup::SegmentLookup;
use async_trait::async_trait;
use crowsnest_store::Error;
use std::collections::BTreeSet;

/// The text index without permits.
pub(super) struct TextIndexObjects<'t> {
    pub(super) text: &'t TextIndex,
    pub(super) context: SearchContext,
}

#[async_trait]
impl RelatedObjectLookup for TextIndexObjects<'_> {
    async fn keys(&mut self, matches: &Match, columns: &[Key]) -> Result<BTreeSet<u64>, Error> {
        SegmentLookup::new(self.text, &self.context).keys(matches, columns).map(|lookup| lookup.values)
    }

    async fn closure_ids(&mut self, _: &Match, _: DependencyDirection, _: u8) -> Result<BTreeSet<u64>, Error> {
        unreachable!("dependencies are read from a store: see paths/tests")
    }
}

/// A plain list of documents.
pub(crate) struct ReadableDocuments<'d>(pub(crate) Vec<&'d Document>);

#[async_trait]
impl RelatedObjectLookup for ReadableDocuments<'_> {
    async fn keys(&mut self, matches: &Match, columns: &[Key]) -> Result<BTreeSet<u64>, Error> {
        let matching = self.0.iter().filter(|document| DocumentEvaluator::new(document).is_match(matches));
        let keys = matching.flat_map(|document| &document.keys).filter(|(column, _)| columns.contains(column));
        Ok(keys.map(|(_, key)| *key).collect())
    }

    async fn closure_ids(&mut self, _: &Match, _: DependencyDirection, _: u8) -> Result<BTreeSet<u64>, Error> {
        unreachable!("dependencies are read from a store: see paths/tests")
    }
}
