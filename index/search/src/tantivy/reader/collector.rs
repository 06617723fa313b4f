//! Collects top hits, total, facet counts and sums from all segments. Counts can be computed after the hits, from the same
//! snapshot.
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
use crate::tantivy::doc_set::DocSet;
use crate::tantivy::reader::permitted::PermittedDocs;
use crate::tantivy::segments::{Segment, Snapshot};
use crate::tantivy::terms::EvaluationError;
use crate::tantivy::values::FacetValues;
use crowsnest_store::Error;
use std::sync::Arc;

/// Collects hits and counts from all segments.
pub fn top_hits(
    text: &TextIndex,
    context: &SearchContext,
    matches: &Match,
    request: &TopHitsRequest,
) -> Result<TopHits, Error> {
    let (mut top, found) = find_hits(text, context, matches, request)?;
    top.add_part(count(text, context, &found, request)?);
    Ok(top)
}

/// The documents that a search found in a snapshot, from which facets and sums are computed.
pub struct FoundDocs {
    snapshot: Arc<Snapshot>,
    /// In the order of the segments; None for a segment without such documents, or not searched before the deadline.
    segments: Vec<Option<SegmentDocs>>,
}

struct SegmentDocs {
    docs: DocSet,
    permitted: Arc<PermittedDocs>,
}

/// Collects the hits and their number from all segments, without facets and sums.
pub fn find_hits(
    text: &TextIndex,
    context: &SearchContext,
    matches: &Match,
    request: &TopHitsRequest,
) -> Result<(TopHits, FoundDocs), Error> {
    let (snapshot, query) = (text.snapshot(), PreparedQuery::new(matches, text, context.deadline));
    let find = |segment: &Segment| find_in_segment((segment, &snapshot.values), &query, context, request);
    let parts = text.map_segments(&snapshot, find).map_err(fail)?;
    let (hits, segments): (Vec<TopHits>, Vec<Option<SegmentDocs>>) = parts.into_iter().unzip();
    let merged = request.merge(hits);
    Ok((TopHits { notices: query.notices(), ..merged }, FoundDocs { snapshot, segments }))
}

/// Computes the facets and sums of a search from the documents that it found.
pub fn count(
    text: &TextIndex,
    context: &SearchContext,
    found: &FoundDocs,
    request: &TopHitsRequest,
) -> Result<TopHits, Error> {
    if request.facets.is_empty() && request.sums.is_none() {
        return Ok(TopHits::default());
    }
    let FoundDocs { snapshot, segments } = found;
    let parts = snapshot.segments.iter().zip(segments).filter_map(|(segment, docs)| Some((segment, docs.as_ref()?)));
    let count = |(segment, docs): (&Segment, &SegmentDocs)| {
        count_segment(text, (segment, &snapshot.values), docs, context, request)
    };
    let parts = text.map_parts_of(snapshot, parts, count).map_err(fail)?;
    let of_facet = |(nth, facet): (usize, &Facet)| {
        sum_by_text(parts.iter().filter_map(|part| part.facets.get(nth)), &snapshot.values.column(*facet))
    };
    let facets = request.facets.iter().enumerate().map(of_facet).collect();
    let sums: Option<Vec<_>> = request.sums.as_ref().map(|sums| {
        let texts = snapshot.values.column(sums.facet);
        let of_number = |nth: usize| add_by_text(parts.iter().filter_map(|part| part.sums.get(nth)), &texts);
        (0..sums.numbers.len()).map(of_number).collect()
    });
    let incomplete = parts.iter().any(|part| part.incomplete);
    Ok(TopHits { facets, sums: sums.unwrap_or_default(), incomplete, ..TopHits::default() })
}

fn fail(error: tantivy::TantivyError) -> Error {
    Error::text("cannot be searched", error)
}

/// Hits of a segment, and the documents to count; None if there are no such documents, or if the deadline passed.
fn find_in_segment(
    (segment, values): (&Segment, &FacetValues),
    query: &PreparedQuery<'_>,
    context: &SearchContext,
    request: &TopHitsRequest,
) -> tantivy::Result<(TopHits, Option<SegmentDocs>)> {
    let SegmentMatches { docs, permitted, scored } = match query.evaluate(segment, values, &context.permissions) {
        Ok(matching) => matching,
        Err(EvaluationError::DeadlineExceeded) => {
            return Ok((TopHits { incomplete: true, ..TopHits::default() }, None));
        }
        Err(EvaluationError::Failed(error)) => return Err(error),
    };
    if docs.is_empty() {
        return Ok((TopHits::default(), None));
    }
    let total = docs.len(segment.data.max_doc());
    let mut found = TopHits { total, remaining: total, ..TopHits::default() };
    if request.max_hits > 0 || request.after.is_some() {
        let mut best = TopHitsCollector::new(&segment.data, values, request)?;
        found.incomplete = !best.offer_all(&docs, &scored, context.deadline);
        // Without `after`, documents that were not candidates remain as well.
        if request.after.is_some() {
            found.remaining = best.remaining();
        }
        found.hits = best.into_hits()?;
    }
    Ok((found, Some(SegmentDocs { docs, permitted })))
}

/// Counts and sums of a segment; empty if the request was over before they were complete.
struct SegmentCounts {
    facets: Vec<OrdinalCounts>,
    sums: Vec<OrdinalSums>,
    incomplete: bool,
}

fn count_segment(
    text: &TextIndex,
    (segment, values): (&Segment, &FacetValues),
    SegmentDocs { docs, permitted }: &SegmentDocs,
    context: &SearchContext,
    request: &TopHitsRequest,
) -> tantivy::Result<SegmentCounts> {
    let counter = FacetCounter { segment, values, facets: &request.facets, context, cache: &text.permitted };
    let facets = counter.count(docs, permitted);
    let sums = match &request.sums {
        Some(sums) => sum_segment(segment, values, sums, docs, context)?,
        None => Some(Vec::new()),
    };
    let incomplete = facets.is_none() || sums.is_none();
    Ok(SegmentCounts { facets: facets.unwrap_or_default(), sums: sums.unwrap_or_default(), incomplete })
}
