//! Results of a search: the top hits, the total and the facet counts.

pub(crate) mod did_you_mean;
pub(crate) mod facets;
pub(crate) mod similar_values;
pub(crate) mod suggest;
pub(crate) mod terms;

use crate::document::columns::Facet;
use crate::plan::FleetFacts;
use crate::plan::sort::{RankedHit, Sort, SortPosition, compare};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Order, page and facets of the hits that a search returns.
#[derive(Debug, Clone)]
pub struct TopHitsRequest {
    /// Sort columns, at most [`crate::plan::sort::MAX_COLUMNS`].
    pub sort: Vec<Sort>,
    /// The last hit of the previous page.
    pub after: Option<SortPosition>,
    /// Maximum number of hits to return.
    pub keep: usize,
    /// Columns whose values are counted.
    pub facets: Vec<Facet>,
    /// Used to sort by properties of clusters.
    pub facts: Arc<FleetFacts>,
}

/// Hits and counts among all documents, or among a part of them that is merged with others.
#[derive(Debug, Default, PartialEq)]
pub struct TopHits {
    /// Best first.
    pub hits: Vec<RankedHit>,
    pub total: u64,
    /// Number of hits behind `after`: greater than the length of `hits` if there is another page. An engine that cannot count
    /// them cheaply returns that length plus one if there is another page.
    pub remaining: u64,
    /// Values and counts for each facet of the request, in no order.
    pub facets: Vec<Vec<(Arc<str>, u64)>>,
    /// The deadline passed, or a part of the engine did not answer: the total and the counts are lower bounds.
    pub incomplete: bool,
    /// Notices for the caller, a sentence each.
    pub notices: BTreeSet<String>,
}

impl TopHitsRequest {
    /// A request for the total without hits and facets.
    pub fn total_only() -> Self {
        Self { sort: vec![Sort::RELEVANCE], after: None, keep: 0, facets: Vec::new(), facts: Arc::default() }
    }

    /// Merges results among parts of the documents.
    pub fn merge(&self, parts: impl IntoIterator<Item = TopHits>) -> TopHits {
        let mut all = TopHits::default();
        for part in parts {
            all.total += part.total;
            all.remaining += part.remaining;
            all.incomplete |= part.incomplete;
            all.notices.extend(part.notices);
            all.hits.extend(part.hits);
            if all.facets.is_empty() {
                all.facets = part.facets;
                continue;
            }
            for (into, from) in all.facets.iter_mut().zip(part.facets) {
                add(into, from);
            }
        }
        all.hits.sort_by(|a, b| compare(&a.position, &b.position, &self.sort));
        all.hits.truncate(self.keep);
        all
    }
}

/// Adds counts; equal values are merged.
fn add(into: &mut Vec<(Arc<str>, u64)>, from: Vec<(Arc<str>, u64)>) {
    if into.is_empty() || from.is_empty() {
        into.extend(from);
        return;
    }
    let mut counts: HashMap<Arc<str>, u64> = into.drain(..).collect();
    from.into_iter().for_each(|(value, count)| *counts.entry(value).or_default() += count);
    into.extend(counts);
}
