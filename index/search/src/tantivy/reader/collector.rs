//! Collects top hits, total, facet counts and sums from all segments.
//!
//! Permissions are applied first: a document that the caller may not read is not counted.

use super::doc_sets::{PreparedQuery, SegmentMatches};
use super::facet_counts::{FacetCounter, OrdinalCounts, sum_by_text};
use super::sums::{OrdinalSums, add_by_text, sum_segment};
use super::top_hits::TopHitsCollector;
use crate::collect::{TopHits, TopHitsRequest};
use crate::document::columns::Facet;
use crate::engine::SearchContext;
use crate::plan::predicate::Match;
use crate::tantivy::TextIndex;
use crate::tantivy::segments::Segment;
use crate::tantivy::terms::EvaluationError;
use crate::tantivy::values::FacetValues;
use crowsnest_store::Error;

/// Collects from all segments.
pub fn top_hits(
    text: &TextIndex,
    context: &SearchContext,
    matches: &Match,
    request: &TopHitsRequest,
) -> Result<TopHits, Error> {
    let (snapshot, query) = (text.snapshot(), PreparedQuery::new(matches, text, context.deadline));
    let collect = |segment: &Segment| collect_segment(text, (segment, &snapshot.values), &query, context, request);
    let parts = text.map_segments(&snapshot, collect);
    let parts = parts.map_err(|error| Error::text("cannot be searched", error))?;
    let of_facet = |(nth, facet): (usize, &Facet)| {
        sum_by_text(parts.iter().filter_map(|part| part.facets.get(nth)), &snapshot.values.column(*facet))
    };
    let facets = request.facets.iter().enumerate().map(of_facet).collect();
    let sums: Option<Vec<_>> = request.sums.as_ref().map(|sums| {
        let texts = snapshot.values.column(sums.facet);
        let of_number = |nth: usize| add_by_text(parts.iter().filter_map(|part| part.sums.get(nth)), &texts);
        (0..sums.numbers.len()).map(of_number).collect()
    });
    let sums = sums.unwrap_or_default();
    let merged = request.merge(parts.into_iter().map(|part| part.hits));
    Ok(TopHits { facets, sums, notices: query.notices(), ..merged })
}

/// Results of a segment. Counts and sums are empty if the deadline passed before they were complete.
#[derive(Default)]
struct SegmentResult {
    hits: TopHits,
    facets: Vec<OrdinalCounts>,
    sums: Vec<OrdinalSums>,
}

fn collect_segment(
    text: &TextIndex,
    (segment, values): (&Segment, &FacetValues),
    query: &PreparedQuery<'_>,
    context: &SearchContext,
    request: &TopHitsRequest,
) -> tantivy::Result<SegmentResult> {
    let late =
        || Ok(SegmentResult { hits: TopHits { incomplete: true, ..TopHits::default() }, ..SegmentResult::default() });
    let SegmentMatches { docs, permitted, scored } = match query.evaluate(segment, values, &context.rights) {
        Ok(matching) => matching,
        Err(EvaluationError::DeadlineExceeded) => return late(),
        Err(EvaluationError::Failed(error)) => return Err(error),
    };
    if docs.is_empty() {
        return Ok(SegmentResult::default());
    }
    let total = docs.len(segment.data.max_doc());
    let counter = FacetCounter {
        segment,
        values,
        facets: &request.facets,
        rights: &context.rights,
        cache: &text.permitted,
        deadline: context.deadline,
    };
    let facets = counter.count(&docs, &permitted);
    let sums = match &request.sums {
        Some(sums) => sum_segment(segment, values, sums, &docs, context.deadline)?,
        None => Some(Vec::new()),
    };
    let incomplete = facets.is_none() || sums.is_none();
    let mut found = TopHits { total, remaining: total, incomplete, ..TopHits::default() };
    if request.keep > 0 || request.after.is_some() {
        let mut best = TopHitsCollector::new(&segment.data, values, request)?;
        found.incomplete |= !best.offer_all(&docs, &scored, context.deadline);
        // Without `after`, documents that were not candidates remain as well.
        if request.after.is_some() {
            found.remaining = best.remaining();
        }
        found.hits = best.into_hits()?;
    }
    Ok(SegmentResult { hits: found, facets: facets.unwrap_or_default(), sums: sums.unwrap_or_default() })
}
