//! Streams a response: notices, skipped clusters and counts, then the hits with their objects in chunks.

pub(crate) mod export;
pub(crate) mod live;
pub(crate) mod object;
pub(crate) mod skipped_clusters;

use super::collect::{did_you_mean, similar_values};
use super::plan::score;
use super::{HITS_PER_CHUNK, Hit, Notice, SearchEvent, SearchRequest, Searcher, Summary, VersionEnd};
use crate::authorization::CallerRights;
use crate::authorization::decision::allows_read;
use crate::collect::TopHitsRequest;
use crate::document::columns::scope_of;
use crate::document::{Document, RedactedObject};
use crate::execute::evaluate::DocumentEvaluator;
use crate::execute::{HydratedObjects, SearchResults, Sources, find_with_terms};
use crate::plan::FleetFacts;
use crate::plan::predicate::Match;
use crate::plan::sort::{Cursor, RankedHit};
use bytes::Bytes;
use crowsnest_apimachinery::rbac::ReadKind;
use crowsnest_query::Query;
use crowsnest_store::BodyMode;
use crowsnest_store::{Error, Seq};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// State of a streamed answer.
pub(crate) enum Stage {
    Requested(Box<(Searcher, SearchRequest)>),
    Streaming(Box<ResponseStream>),
    Done,
}

/// A searched request, with the events and hits that are not sent yet.
pub(crate) struct ResponseStream {
    searcher: Searcher,
    rights: Arc<Mutex<CallerRights>>,
    matches: Arc<Match>,
    include_manifests: bool,
    events: VecDeque<SearchEvent>,
    /// Hits whose objects are not read yet.
    hits: VecDeque<RankedHit>,
    summary: Summary,
    started: Instant,
    /// Arrival time of the request, until the first hits are read.
    requested_at: Option<Instant>,
}

impl Stage {
    /// The next event and the stage after it; None at the end of the answer.
    pub async fn next(self) -> Result<Option<(SearchEvent, Stage)>, Error> {
        let mut stream = match self {
            Self::Done => return Ok(None),
            Self::Streaming(stream) => stream,
            Self::Requested(request) => Box::new(run_search(request.0, request.1).await?),
        };
        if let Some(event) = stream.events.pop_front() {
            return Ok(Some((event, Self::Streaming(stream))));
        }
        if !stream.hits.is_empty() {
            let chunk: Vec<_> = stream.hits.drain(..stream.hits.len().min(HITS_PER_CHUNK)).collect();
            // The first chunk keeps the priority of the request; later chunks queue behind newer requests.
            let requested_at = stream.requested_at.take().unwrap_or_else(Instant::now);
            let hits = read_hits(&stream, chunk, requested_at).await?;
            return Ok(Some((SearchEvent::Hits(hits), Self::Streaming(stream))));
        }
        let took = stream.started.elapsed();
        let metrics = &stream.searcher.inner.cache.metrics;
        metrics.searches.add(1);
        metrics.search_microseconds.add(took.as_micros() as u64);
        let summary = Summary { took_ms: took.as_secs_f64() * 1000.0, ..stream.summary };
        Ok(Some((SearchEvent::Done(summary), Self::Done)))
    }
}

/// Suggestions for a query without hits: the query with a misspelled value corrected, and similar names of objects.
async fn suggest_corrections(sources: &Sources, query: &Query, facts: &FleetFacts) -> Result<Vec<String>, Error> {
    let mut found = similar_values::correct_values(sources, query, facts).await?;
    found.extend(did_you_mean::similar_names(sources, query).await?);
    Ok(found)
}

/// Plans and executes a search, without reading the objects of hits.
async fn run_search(searcher: Searcher, request: SearchRequest) -> Result<ResponseStream, Error> {
    let (started, include_manifests) = (Instant::now(), request.include_manifests);
    let seq = *searcher.inner.engine.searchable().borrow();
    let (mut planned, sources) = searcher.plan_search(&request).await;
    let skipped = skipped_clusters::list_skipped(&searcher, &sources.context.rights.lock());
    let request = TopHitsRequest {
        sort: planned.sort,
        after: request.page.after.clone(),
        keep: planned.keep,
        facets: planned.facet_request.columns(),
        sums: planned.facet_request.sums_request(),
        facts: Arc::clone(&planned.facts),
    };
    let found = find_with_terms(&sources, planned.plan, request, &planned.facet_request.terms_requests()).await?;
    let counts = planned.facet_request.count(&sources, &planned.facts, &found).await?;
    let SearchResults { top, matches, notices, .. } = found;
    let has_no_hits = top.total == 0 && !top.incomplete;
    let (did_you_mean, relaxed_queries) = match has_no_hits {
        true => (
            suggest_corrections(&sources, &planned.query, &planned.facts).await?,
            did_you_mean::relax_query(&sources, &planned.query, &planned.facts).await?,
        ),
        false => (Vec::new(), Vec::new()),
    };
    planned.notices.extend(notices.into_iter().chain(counts.notice).map(|message| Notice {
        start: 0,
        end: 0,
        message,
    }));
    let facets = SearchEvent::Facets(counts.facets);
    let mut events = VecDeque::from([SearchEvent::Notices(planned.notices), SearchEvent::Skipped(skipped), facets]);
    events.extend(counts.groups.map(SearchEvent::Groups));
    let more = top.remaining > top.hits.len() as u64;
    let summary = Summary {
        total: top.total,
        next: top.hits.last().filter(|_| more).map(|hit| Cursor(hit.position.clone())),
        incomplete: top.incomplete,
        seq,
        behind: searcher.latest().0.saturating_sub(seq.0),
        took_ms: 0.0,
        did_you_mean,
        relaxed_queries,
    };
    let matches = Arc::new(matches);
    let rights = sources.context.rights;
    Ok(ResponseStream {
        searcher,
        rights,
        matches,
        include_manifests,
        events,
        hits: top.hits.into(),
        summary,
        started,
        requested_at: Some(started),
    })
}

/// Reads hits from the store, in their order, without values of Secrets. Omits objects that were deleted or pruned since the
/// search, and objects that the caller may not list. Reads manifests only if the answer needs them.
async fn read_hits(stream: &ResponseStream, hits: Vec<RankedHit>, requested_at: Instant) -> Result<Vec<Hit>, Error> {
    let ResponseStream { searcher, matches, include_manifests, .. } = stream;
    let (include_manifests, rights) = (*include_manifests, Arc::clone(&stream.rights));
    let store = &searcher.inner.cache.store;
    let ids: Vec<u64> = hits.iter().filter(|hit| hit.ended_by.is_none()).map(|hit| hit.position.id).collect();
    let ended: Vec<Seq> = hits.iter().filter_map(|hit| hit.ended_by).collect();
    // The reasons of such a hit need no manifest.
    let matches_columns_only = |hit: &RankedHit| matches.is_one_word() && score::matches_columns_only(hit.score);
    let manifests = match include_manifests || matches.reads_manifests() && !hits.iter().all(matches_columns_only) {
        true => BodyMode::Read,
        false => BodyMode::Skip,
    };
    // Reading records takes CPU time and therefore needs a permit as well.
    let permit = searcher.inner.permits.acquire(requested_at).await;
    let objects = store.by_ids(&ids, manifests).await?;
    let versions = if ended.is_empty() { Vec::new() } else { store.versions_ended_by(&ended).await? };
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
                if !allows_read(&mut rights.lock(), ReadKind::Listing, &scope_of(key), &key.name) {
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
