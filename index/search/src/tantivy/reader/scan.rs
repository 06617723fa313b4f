//! Reads all hits of a snapshot in order, for exports.
//!
//! The index is searched once. The hits are kept as document numbers in separately sorted runs, which are merged
//! while reading; names and values are loaded only for the next hits of each run. A million hits take some
//! megabytes. Later changes do not affect the result, because the segments are kept open until the end.

use crate::collect::TopHitsRequest;
use crate::engine::SearchContext;
use crate::plan::predicate::Match;
use crate::plan::sort::{RankedHit, Sort, compare};
use crate::tantivy::TextIndex;
use crate::tantivy::reader::doc_sets::{PreparedQuery, SegmentMatches};
use crate::tantivy::reader::top_hits::{TopHitsCollector, with_scores};
use crate::tantivy::segments::{Segment, Snapshot};
use crate::tantivy::terms::EvaluationError;
use crowsnest_store::{Error, Seq};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tantivy::{DocId, Score};

/// Number of documents per sorted run.
const RUN_LENGTH: usize = 1 << 16;
/// Number of hits of a run whose names and values are loaded at once.
const READ_AHEAD: usize = 256;

/// The remaining hits.
pub struct SnapshotScan {
    snapshot: Arc<Snapshot>,
    request: TopHitsRequest,
    sort: Arc<[Sort]>,
    runs: Vec<Run>,
    /// The next hit of each run.
    next: BinaryHeap<NextHit>,
    /// Remaining limit.
    remaining: usize,
}

/// Sorted hits of a segment.
struct Run {
    segment: usize,
    docs: VecDeque<(DocId, Score)>,
    ready: VecDeque<RankedHit>,
}

struct NextHit {
    hit: RankedHit,
    run: usize,
    sort: Arc<[Sort]>,
}

impl Ord for NextHit {
    /// Reversed, so that the heap's maximum is the next hit.
    fn cmp(&self, other: &Self) -> Ordering {
        compare(&other.hit.position, &self.hit.position, &self.sort).then_with(|| other.run.cmp(&self.run))
    }
}

impl PartialOrd for NextHit {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for NextHit {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for NextHit {}

impl SnapshotScan {
    /// Sorts all hits of the request.
    pub fn begin(
        text: &TextIndex,
        context: &SearchContext,
        matches: &Match,
        request: TopHitsRequest,
    ) -> Result<Self, Error> {
        let (snapshot, query) = (text.snapshot(), PreparedQuery::new(matches, text, context.deadline));
        let parts = text.map_segments(&snapshot, |segment| {
            match query.evaluate(segment, &snapshot.values, &context.permissions) {
                Ok(matching) => sort_into_runs(segment, &snapshot, &request, context.deadline, &matching),
                Err(EvaluationError::DeadlineExceeded) => Ok(None),
                Err(EvaluationError::Failed(error)) => Err(error),
            }
        });
        let parts: Vec<_> = parts.map_err(fail)?;
        let mut runs = Vec::new();
        for (segment, sorted) in parts.into_iter().enumerate() {
            let sorted = sorted.ok_or(Error::Incomplete)?;
            runs.extend(sorted.into_iter().map(|docs| Run { segment, docs: docs.into(), ready: VecDeque::new() }));
        }
        let (next, remaining) = (BinaryHeap::with_capacity(runs.len()), request.max_hits);
        let mut scan = Self { snapshot, sort: request.sort.as_slice().into(), request, runs, next, remaining };
        for run in 0..scan.runs.len() {
            scan.push_next_hit(run)?;
        }
        Ok(scan)
    }

    /// Seq of the snapshot.
    pub fn seq(&self) -> Seq {
        self.snapshot.seq
    }

    /// The next `limit` hits; fewer at the end.
    pub fn next(&mut self, limit: usize) -> Result<Vec<RankedHit>, Error> {
        let mut hits = Vec::with_capacity(limit.min(self.remaining));
        while hits.len() < limit.min(self.remaining) {
            let Some(NextHit { hit, run, .. }) = self.next.pop() else { break };
            hits.push(hit);
            self.push_next_hit(run)?;
        }
        self.remaining -= hits.len();
        Ok(hits)
    }

    /// Adds the next hit of a run to the heap.
    fn push_next_hit(&mut self, index: usize) -> Result<(), Error> {
        let Some(run) = self.runs.get_mut(index) else { return Ok(()) };
        if run.ready.is_empty()
            && !run.docs.is_empty()
            && let Some(segment) = self.snapshot.segments.get(run.segment)
        {
            let docs: Vec<(DocId, Score)> = run.docs.drain(..run.docs.len().min(READ_AHEAD)).collect();
            let best = TopHitsCollector::new(&segment.data, &self.snapshot.values, &self.request).map_err(fail)?;
            run.ready = best.hits_in_order(&docs).map_err(fail)?.into();
        }
        if let Some(hit) = run.ready.pop_front() {
            self.next.push(NextHit { hit, run: index, sort: Arc::clone(&self.sort) });
        }
        Ok(())
    }
}

fn fail(error: tantivy::TantivyError) -> Error {
    Error::text("cannot be searched", error)
}

type SortedRuns = Vec<Vec<(DocId, Score)>>;

/// The matching documents of a segment in runs; None after the deadline.
fn sort_into_runs(
    segment: &Segment,
    snapshot: &Snapshot,
    request: &TopHitsRequest,
    deadline: Instant,
    matching: &SegmentMatches,
) -> tantivy::Result<Option<SortedRuns>> {
    let SegmentMatches { docs, scored, .. } = matching;
    if docs.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let best = TopHitsCollector::new(&segment.data, &snapshot.values, request)?;
    let all = with_scores(docs, scored, segment.data.max_doc());
    let mut runs = Vec::with_capacity(all.len().div_ceil(RUN_LENGTH));
    for run in all.chunks(RUN_LENGTH) {
        if Instant::now() > deadline {
            return Ok(None);
        }
        runs.push(best.sort(run));
    }
    Ok(Some(runs))
}
