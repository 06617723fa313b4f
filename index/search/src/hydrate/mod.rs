//! Streams a response: notices and skipped clusters, then the hits with their objects in chunks, and finally the slow parts:
//! counts, and corrections of a query without hits.

pub(crate) mod counting;
pub(crate) mod expiring;
pub(crate) mod export;
pub(crate) mod live;
pub(crate) mod object;
pub(crate) mod skipped_clusters;

use super::collect::{did_you_mean, similar_values};
use super::plan::score;
use super::{
    HITS_IN_FIRST_CHUNK, HITS_PER_CHUNK, Hit, Notice, PlannedSearch, RelaxedQuery, SearchEvent, SearchRequest,
    Searcher, Summary, VersionEnd,
};
use crate::authorization::CallerPermissions;
use crate::authorization::decision::allows_read;
use crate::collect::TopHitsRequest;
use crate::collect::facets::{Counts, FacetRequest};
use crate::document::columns::scope_of;
use crate::document::{Document, RedactedObject};
use crate::execute::evaluate::DocumentEvaluator;
use crate::execute::{HydratedObjects, Sources, find_before_counts, find_with_terms};
use crate::plan::PlanningContext;
use crate::plan::predicate::Match;
use crate::plan::sort::{Cursor, RankedHit};
use bytes::Bytes;
use counting::Counting;
use crowsnest_apimachinery::rbac::ReadKind;
use crowsnest_query::Query;
use crowsnest_store::BodyMode;
use crowsnest_store::{Error, Seq};
use expiring::Expiring;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::mem::take;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::DropGuard;

/// A client that reads nothing for this time is treated as disconnected, because an incomplete response keeps files of the
/// text index open.
const STALLED_CLIENT_TIMEOUT: Duration = Duration::from_secs(300);

/// Order of the hits and the counts of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CountOrder {
    BeforeHits,
    /// The facets are counted after the hits were sent.
    AfterHits,
}

/// State of a streamed response.
pub(crate) enum Stage {
    Requested(Box<(Searcher, SearchRequest, CountOrder)>),
    Streaming(Box<ResponseStream>),
    Done,
}

/// An executed search, with the parts of the response that are not sent yet.
pub(crate) struct ResponseStream {
    reader: HitReader,
    events: VecDeque<SearchEvent>,
    /// Hits whose objects are not read yet.
    hits: VecDeque<RankedHit>,
    counting: Option<Expiring<Counting>>,
    correction: Option<Correction>,
    summary: Summary,
    is_summary_sent: bool,
    started: Instant,
    /// Arrival time of the request, until the first hits are read.
    requested_at: Option<Instant>,
    /// Cancels blocking work for the response when it ends or its client disconnects.
    _cancel_on_drop: DropGuard,
}

/// A query without hits, for which corrections are not computed yet.
struct Correction {
    sources: Sources,
    query: Query,
    planning_context: Arc<PlanningContext>,
}

impl Correction {
    /// Computes suggestions and relaxed queries.
    async fn compute(&self) -> Result<(Vec<String>, Vec<RelaxedQuery>), Error> {
        let Self { sources, query, planning_context } = self;
        let mut suggestions = similar_values::correct_values(sources, query, planning_context).await?;
        suggestions.extend(did_you_mean::similar_names(sources, query).await?);
        Ok((suggestions, did_you_mean::relax_query(sources, query, planning_context).await?))
    }
}

impl Stage {
    /// The next event and the stage after it; None at the end of the response.
    pub async fn next(self) -> Result<Option<(SearchEvent, Stage)>, Error> {
        let mut stream = match self {
            Self::Done => return Ok(None),
            Self::Streaming(stream) => stream,
            Self::Requested(request) => Box::new(run_search(request.0, request.1, request.2).await?),
        };
        match stream.next_event().await? {
            Some(event) => Ok(Some((event, Self::Streaming(stream)))),
            None => Ok(Some((SearchEvent::Done(stream.finish()), Self::Done))),
        }
    }
}

impl ResponseStream {
    /// The next event; None if only [`SearchEvent::Done`] is left.
    async fn next_event(&mut self) -> Result<Option<SearchEvent>, Error> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if !self.hits.is_empty() {
                return self.read_next_hits().await.map(Some);
            }
            let has_more = self.counting.is_some() || self.correction.is_some();
            if has_more && !self.is_summary_sent {
                self.is_summary_sent = true;
                return Ok(Some(SearchEvent::Summary(self.timed_summary())));
            }
            if let Some(counting) = self.counting.take() {
                let counts = match counting.take() {
                    Some(counting) => counting.count().await?,
                    None => Counts::for_stalled_client(STALLED_CLIENT_TIMEOUT),
                };
                self.add_counts(counts);
                continue;
            }
            if let Some(correction) = self.correction.take() {
                (self.summary.did_you_mean, self.summary.relaxed_queries) = correction.compute().await?;
            }
            return Ok(None);
        }
    }

    async fn read_next_hits(&mut self) -> Result<SearchEvent, Error> {
        let chunk_size = if self.requested_at.is_some() { HITS_IN_FIRST_CHUNK } else { HITS_PER_CHUNK };
        let chunk: Vec<_> = self.hits.drain(..self.hits.len().min(chunk_size)).collect();
        // The first chunk keeps the priority of the request; later chunks queue behind newer requests.
        let requested_at = self.requested_at.take().unwrap_or_else(Instant::now);
        if let Some(counting) = &self.counting {
            counting.renew();
        }
        Ok(SearchEvent::Hits(self.reader.read(chunk, requested_at).await?))
    }

    /// Adds the events of the counts.
    fn add_counts(&mut self, counts: Counts) {
        let Counts { facets, groups, incomplete, notices } = counts;
        self.summary.incomplete |= incomplete;
        if !notices.is_empty() {
            self.events.push_back(SearchEvent::Notices(notices.into_iter().map(Notice::without_position).collect()));
        }
        self.events.push_back(SearchEvent::Facets(facets));
        self.events.extend(groups.map(SearchEvent::Groups));
    }

    /// The summary with the time that the response has taken so far.
    fn timed_summary(&self) -> Summary {
        Summary { took_ms: self.started.elapsed().as_secs_f64() * 1000.0, ..self.summary.clone() }
    }

    /// Records the end of the response, and returns its summary.
    fn finish(self) -> Summary {
        let metrics = &self.reader.searcher.inner.cache.metrics;
        metrics.searches.add(1);
        metrics.search_microseconds.add(self.started.elapsed().as_micros() as u64);
        self.timed_summary()
    }
}

/// Plans and executes a search, without reading the objects of hits.
async fn run_search(
    searcher: Searcher,
    request: SearchRequest,
    requested_order: CountOrder,
) -> Result<ResponseStream, Error> {
    let (started, include_manifests) = (Instant::now(), request.include_manifests);
    let seq = *searcher.inner.engine.searchable().borrow();
    let (planned, sources) = searcher.plan_search(&request).await;
    let cancel_on_drop = sources.context.cancellation.clone().drop_guard();
    let PlannedSearch { query, plan, mut notices, max_hits, sort, facet_request, planning_context } = planned;
    let skipped = skipped_clusters::list_skipped(&searcher, &sources.context.permissions.lock());
    let top_hits = TopHitsRequest {
        sort,
        after: request.page.after,
        max_hits,
        facets: facet_request.columns(),
        sums: facet_request.sums_request(),
        planning_context: Arc::clone(&planning_context),
    };
    let order = count_order(&facet_request, requested_order);
    let terms = facet_request.terms_requests();
    let (mut found, pending) = match order {
        CountOrder::BeforeHits => (find_with_terms(&sources, plan, top_hits, &terms).await?, None),
        CountOrder::AfterHits => {
            let (found, pending) = find_before_counts(&sources, plan, top_hits, &terms).await?;
            (found, Some(pending))
        }
    };
    notices.extend(found.notices.drain(..).map(Notice::without_position));
    let hits = VecDeque::from(take(&mut found.top.hits));
    let has_more = found.top.remaining > hits.len() as u64;
    let summary = Summary {
        total: found.top.total,
        next: hits.back().filter(|_| has_more).map(|hit| Cursor(hit.position.clone())),
        incomplete: found.top.incomplete,
        seq,
        behind: searcher.latest().0.saturating_sub(seq.0),
        took_ms: 0.0,
        did_you_mean: Vec::new(),
        relaxed_queries: Vec::new(),
    };
    let correction = (summary.total == 0 && !summary.incomplete).then(|| Correction {
        sources: sources.clone(),
        query,
        planning_context: Arc::clone(&planning_context),
    });
    let (permissions, matches) = (Arc::clone(&sources.context.permissions), Arc::new(found.matches.clone()));
    let counting = Counting { sources, facet_request, planning_context, found, pending };
    let mut stream = ResponseStream {
        reader: HitReader { searcher, permissions, matches, include_manifests },
        events: VecDeque::from([SearchEvent::Notices(notices), SearchEvent::Skipped(skipped)]),
        hits,
        counting: None,
        correction,
        summary,
        is_summary_sent: false,
        started,
        requested_at: Some(started),
        _cancel_on_drop: cancel_on_drop,
    };
    match order {
        CountOrder::BeforeHits => stream.add_counts(counting.count().await?),
        CountOrder::AfterHits => stream.counting = Some(Expiring::new(counting, STALLED_CLIENT_TIMEOUT)),
    }
    Ok(stream)
}

/// The order to use. Counts come first if the response has groups, because clients show hits within their group, and if there
/// are no facets, because counting then takes no time.
fn count_order(facet_request: &FacetRequest, requested: CountOrder) -> CountOrder {
    match facet_request.has_groups() || facet_request.has_no_facets() {
        true => CountOrder::BeforeHits,
        false => requested,
    }
}

/// Reads the objects of hits.
struct HitReader {
    searcher: Searcher,
    permissions: Arc<Mutex<CallerPermissions>>,
    matches: Arc<Match>,
    include_manifests: bool,
}

impl HitReader {
    /// Reads hits from the store, in their order, without values of Secrets. Omits objects that were deleted or pruned since the
    /// search, and objects that the caller may not list. Reads manifests only if the response needs them.
    async fn read(&self, hits: Vec<RankedHit>, requested_at: Instant) -> Result<Vec<Hit>, Error> {
        let Self { searcher, permissions, matches, include_manifests } = self;
        let (include_manifests, permissions) = (*include_manifests, Arc::clone(permissions));
        let store = &searcher.inner.cache.store;
        let ids: Vec<u64> = hits.iter().filter(|hit| hit.ended_by.is_none()).map(|hit| hit.position.id).collect();
        let version_ends: Vec<Seq> = hits.iter().filter_map(|hit| hit.ended_by).collect();
        // The reasons of a hit that matches only columns need no manifest.
        let matches_columns_only = |hit: &RankedHit| matches.is_one_word() && score::matches_columns_only(hit.score);
        let manifests = match include_manifests || matches.reads_manifests() && !hits.iter().all(matches_columns_only) {
            true => BodyMode::Read,
            false => BodyMode::Skip,
        };
        // Reading records takes CPU time and therefore needs a permit as well.
        let permit = searcher.inner.permits.acquire(requested_at).await;
        let objects = store.by_ids(&ids, manifests).await?;
        let versions =
            if version_ends.is_empty() { Vec::new() } else { store.versions_ended_by(&version_ends).await? };
        let matches = Arc::clone(matches);
        permit
            .run(move || {
                let mut hydrated = HydratedObjects::new();
                for object in objects {
                    // The document and the hit share one redacted object.
                    let object = RedactedObject::new(&object)?;
                    let document = Document::from_redacted(&object)?;
                    hydrated.insert((object.record.id, None), (object.into_object(), None, document));
                }
                for version in versions {
                    let object = RedactedObject::new(&version.object)?;
                    let document = Document::from_redacted(&object)?.with_deletion_of(&version);
                    let version_end = VersionEnd { until: version.ended_at, deleted: version.deleted };
                    hydrated.insert(
                        (object.record.id, Some(version.ended)),
                        (object.into_object(), Some(version_end), document),
                    );
                }
                let hit = |hit: &RankedHit| {
                    let (mut object, version_end, document) = hydrated.remove(&(hit.position.id, hit.ended_by))?;
                    let key = &object.record.key;
                    if !allows_read(&mut permissions.lock(), ReadKind::Listing, &scope_of(key), &key.name) {
                        return None;
                    }
                    let reasons = DocumentEvaluator::new(&document).reasons(&matches);
                    if !include_manifests {
                        object.body = Bytes::new();
                    }
                    Some(Hit { object, version_end, score: hit.score, reasons })
                };
                Ok(hits.iter().filter_map(hit).collect())
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::facets::FacetField;
    use crate::document::columns::Facet;
    use rstest::rstest;

    #[rstest]
    #[case::facets(vec![FacetField::Column(Facet::Kind)], None, CountOrder::AfterHits)]
    #[case::groups(vec![FacetField::Column(Facet::Kind)], Some(FacetField::Region), CountOrder::BeforeHits)]
    #[case::nothing_to_count(Vec::new(), None, CountOrder::BeforeHits)]
    fn facets_follow_the_hits(
        #[case] facets: Vec<FacetField>,
        #[case] group: Option<FacetField>,
        #[case] expected: CountOrder,
    ) {
        let request = FacetRequest::new(facets, group, Vec::new());
        assert_eq!(count_order(&request, CountOrder::AfterHits), expected);
        assert_eq!(count_order(&request, CountOrder::BeforeHits), CountOrder::BeforeHits);
    }
}
