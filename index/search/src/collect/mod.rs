//! Results of a search: the top hits, the total and the facet counts.

pub(crate) mod did_you_mean;
pub(crate) mod facets;
pub(crate) mod similar_values;
pub(crate) mod suggest;
pub(crate) mod sums;
pub(crate) mod terms;

use crate::collect::sums::SumsRequest;
use crate::document::columns::Facet;
use crate::plan::PlanningContext;
use crate::plan::sort::{RankedHit, Sort, SortPosition, compare};
use std::collections::{BTreeSet, HashMap};
use std::mem::take;
use std::sync::Arc;

/// Order, page and facets of the hits that a search returns.
#[derive(Debug, Clone)]
pub struct TopHitsRequest {
    /// Sort columns, at most [`crate::plan::sort::MAX_COLUMNS`].
    pub sort: Vec<Sort>,
    /// The last hit of the previous page.
    pub after: Option<SortPosition>,
    /// Maximum number of hits to return.
    pub max_hits: usize,
    /// Columns whose values are counted.
    pub facets: Vec<Facet>,
    /// Numbers that are summed for each value of one of the facets.
    pub sums: Option<SumsRequest>,
    /// Used to sort by properties of clusters.
    pub planning_context: Arc<PlanningContext>,
}

/// Values of a column, each with an amount.
pub type ValueAmounts<T> = Vec<(Arc<str>, T)>;

/// Hits and counts among all documents, or among a part of them that is merged with others.
#[derive(Debug, Default, PartialEq)]
pub struct TopHits {
    /// Best first.
    pub hits: Vec<RankedHit>,
    pub total: u64,
    /// Number of hits after the position `after`: greater than the length of `hits` if there is another page. An engine that cannot count
    /// them cheaply returns that length plus one if there is another page.
    pub remaining: u64,
    /// Values and counts for each facet of the request, in no order.
    pub facets: Vec<ValueAmounts<u64>>,
    /// For each number of [`TopHitsRequest::sums`], the sums for the values that are counted for its facet, in no order.
    pub sums: Vec<ValueAmounts<i64>>,
    /// The deadline passed, or a part of the engine did not respond: the total and the counts are lower bounds.
    pub incomplete: bool,
    /// Notices for the caller, a sentence each.
    pub notices: BTreeSet<String>,
}

impl TopHitsRequest {
    /// A request for the total without hits and facets.
    pub fn total_only() -> Self {
        let (sort, facets, planning_context) = (vec![Sort::RELEVANCE], Vec::new(), Arc::default());
        Self { sort, after: None, max_hits: 0, facets, sums: None, planning_context }
    }

    /// Merges results among parts of the documents.
    pub fn merge(&self, parts: impl IntoIterator<Item = TopHits>) -> TopHits {
        let mut all = TopHits::default();
        parts.into_iter().for_each(|part| all.add_part(part));
        all.hits.sort_by(|a, b| compare(&a.position, &b.position, &self.sort));
        all.hits.truncate(self.max_hits);
        all
    }
}

impl TopHits {
    /// Adds the results of another part. The hits are not sorted.
    pub fn add_part(&mut self, part: TopHits) {
        self.total += part.total;
        self.remaining += part.remaining;
        self.incomplete |= part.incomplete;
        self.notices.extend(part.notices);
        self.hits.extend(part.hits);
        merge_columns(&mut self.facets, part.facets, u64::saturating_add);
        merge_columns(&mut self.sums, part.sums, i64::saturating_add);
    }

    /// Removes the facet counts and the sums, and returns them.
    pub fn take_counts(&mut self) -> TopHits {
        TopHits { facets: take(&mut self.facets), sums: take(&mut self.sums), ..TopHits::default() }
    }
}

/// Adds the amounts of each column.
fn merge_columns<T: Copy + Default>(
    into: &mut Vec<ValueAmounts<T>>,
    from: Vec<ValueAmounts<T>>,
    add_amounts: fn(T, T) -> T,
) {
    if into.is_empty() {
        *into = from;
        return;
    }
    for (into, from) in into.iter_mut().zip(from) {
        add(into, from, add_amounts);
    }
}

/// Adds amounts; equal values are merged.
fn add<T: Copy + Default>(into: &mut ValueAmounts<T>, from: ValueAmounts<T>, add_amounts: fn(T, T) -> T) {
    if into.is_empty() || from.is_empty() {
        into.extend(from);
        return;
    }
    let mut amounts: HashMap<Arc<str>, T> = into.drain(..).collect();
    for (value, amount) in from {
        let sum = amounts.entry(value).or_default();
        *sum = add_amounts(*sum, amount);
    }
    into.extend(amounts);
}
