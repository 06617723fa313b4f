//! Facet counts within the documents of a segment.
//!
//! If the matching documents are more than half of the permitted ones, the complement is counted and subtracted
//! from the cached counts of all permitted documents; so at most half of the documents are visited.

use crate::document::columns::Facet;
use crate::engine::SearchContext;
use crate::tantivy::doc_set::{DocSet, difference};
use crate::tantivy::reader::permitted::PermittedDocs;
use crate::tantivy::reader::permitted_cache::PermittedCache;
use crate::tantivy::segments::Segment;
use crate::tantivy::values::{ColumnValues, FacetValues, NONE, Ordinals};
use std::sync::Arc;
use tantivy::DocId;

/// Ordinals of values in ascending order, with the number of documents of each.
pub type OrdinalCounts = Arc<[(u32, u32)]>;

/// Counts the values of facets in one segment.
pub(crate) struct FacetCounter<'s> {
    pub segment: &'s Segment,
    pub values: &'s FacetValues,
    pub facets: &'s [Facet],
    pub context: &'s SearchContext,
    pub cache: &'s PermittedCache,
}

impl FacetCounter<'_> {
    /// Counts of each facet; `docs` are existing documents and a subset of `permitted`. None if the request is over.
    pub fn count(&self, docs: &DocSet, permitted: &Arc<PermittedDocs>) -> Option<Vec<OrdinalCounts>> {
        let max_doc = self.segment.data.max_doc();
        if 2 * docs.len(max_doc) <= permitted.docs.len(max_doc) {
            return self.count_facets(self.facets, docs);
        }
        let all = self.count_permitted(permitted)?;
        let complement = difference(permitted.docs.clone(), docs, max_doc);
        if complement.is_empty() {
            return Some(all);
        }
        let complement_counts = self.count_facets(self.facets, &complement)?;
        Some(all.iter().zip(complement_counts).map(|(all, complement)| subtract(all, &complement)).collect())
    }

    /// Counts of all permitted documents, including deleted ones. None if the request is over.
    pub fn count_permitted(&self, permitted: &Arc<PermittedDocs>) -> Option<Vec<OrdinalCounts>> {
        let cached = permitted.cached_counts(self.facets);
        let unknown = self.facets.iter().zip(&cached).filter(|(_, counts)| counts.is_none()).map(|(facet, _)| *facet);
        let unknown: Vec<Facet> = unknown.collect();
        if unknown.is_empty() {
            return cached.into_iter().collect();
        }
        let new_counts = self.count_facets(&unknown, &permitted.docs)?;
        permitted.cache_counts(unknown.into_iter().zip(new_counts));
        // Updates the cached entry, because it takes more memory now.
        self.cache.insert(&self.context.permissions.lock(), self.segment.data.id(), permitted);
        permitted.cached_counts(self.facets).into_iter().collect()
    }

    fn count_facets(&self, facets: &[Facet], docs: &DocSet) -> Option<Vec<OrdinalCounts>> {
        let max_doc = self.segment.data.max_doc();
        let many = docs.len(max_doc);
        let counts = facets.iter().map(|facet| {
            ColumnCounter::new(self.segment.data.column(*facet), self.values.column(*facet).count(), many)
        });
        let mut counts: Vec<ColumnCounter<'_>> = counts.collect();
        let mut is_over = false;
        docs.for_each_block(max_doc, |block| {
            counts.iter_mut().for_each(|facet| facet.count(block));
            is_over = self.context.is_over();
            !is_over
        });
        (!is_over).then(|| counts.into_iter().map(ColumnCounter::into_counts).collect())
    }
}

/// Subtracts the counts of a subset of the documents.
fn subtract(all: &OrdinalCounts, subset: &OrdinalCounts) -> OrdinalCounts {
    let mut subset = subset.iter().peekable();
    let remaining = all.iter().map(|(value, count)| {
        let subtrahend = subset.next_if(|(other, _)| other == value).map_or(0, |(_, count)| *count);
        (*value, count.saturating_sub(subtrahend))
    });
    remaining.filter(|(_, count)| *count > 0).collect()
}

/// Sums the counts of segments by the texts of their values.
pub(crate) fn sum_by_text<'c>(
    segments: impl Iterator<Item = &'c OrdinalCounts>,
    texts: &ColumnValues,
) -> Vec<(Arc<str>, u64)> {
    let mut counts = vec![0; texts.count()];
    for (value, count) in segments.flat_map(|counts| counts.iter()) {
        if let Some(all) = counts.get_mut(*value as usize) {
            *all += u64::from(*count);
        }
    }
    let nonzero = (0..).zip(counts).filter(|(_, count)| *count > 0);
    nonzero.filter_map(|(value, count)| Some((Arc::clone(texts.text(value)?), count))).collect()
}

/// Counts the values of one column.
struct ColumnCounter<'s> {
    column: &'s Ordinals,
    state: CountState,
}

enum CountState {
    /// The values of all documents as a list, if there are far fewer documents than distinct values.
    Few(Vec<u32>),
    /// Counts by value.
    Many(Vec<u32>),
}

impl<'s> ColumnCounter<'s> {
    fn new(column: &'s Ordinals, values: usize, docs: u64) -> Self {
        let few = docs < values as u64 / 8;
        Self { column, state: if few { CountState::Few(Vec::new()) } else { CountState::Many(vec![0; values]) } }
    }

    fn count(&mut self, docs: &[DocId]) {
        match (&mut self.state, self.column) {
            (_, Ordinals::Empty) => {}
            (CountState::Few(list), column) => docs.iter().for_each(|doc| list.extend_from_slice(column.of_doc(*doc))),
            (CountState::Many(counts), Ordinals::One(values)) => {
                for doc in docs {
                    let value = values.get(*doc as usize).and_then(|value| counts.get_mut(*value as usize));
                    if let Some(count) = value {
                        *count += 1;
                    }
                }
            }
            (CountState::Many(counts), column) => {
                for value in docs.iter().flat_map(|doc| column.of_doc(*doc)) {
                    if let Some(count) = counts.get_mut(*value as usize) {
                        *count += 1;
                    }
                }
            }
        }
    }

    fn into_counts(self) -> OrdinalCounts {
        match self.state {
            CountState::Few(mut list) => {
                list.retain(|value| *value != NONE);
                list.sort_unstable();
                let runs = list.chunk_by(|a, b| a == b);
                runs.filter_map(|run| Some((*run.first()?, u32::try_from(run.len()).unwrap_or(u32::MAX)))).collect()
            }
            CountState::Many(counts) => (0..).zip(counts).filter(|(_, count)| *count > 0).collect(),
        }
    }
}
