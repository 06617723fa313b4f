//! Search over everything in the cache: one query language, the caller's rights, counts that are exact, and the clusters
//! an answer misses named with reason and age.
//!
//! Reads the text index for what matches and the store for what is shown. The answer comes as a stream of
//! [`SearchEvent`]s, so that a front end can show hits while the rest is read.

mod block;
mod clusters;
pub mod compile;
pub mod evaluate;
pub mod gather;
mod patterns;
pub mod plan;
#[cfg(test)]
mod tests;

pub use clusters::Skipped;
pub use evaluate::Reason;

use crate::index::joined;
use crate::query::{Limits, Notice, Query, parse};
use crate::text::TextIndex;
use crate::text::columns::{Facet, Number};
use crate::text::document::Document;
use crate::{Error, Index, Object, Seq};
use crowsnest_api::user::UserInfo;
use evaluate::Evaluated;
use futures::Stream;
use futures::stream::try_unfold;
use gather::{Gather, Gathered};
use parking_lot::Mutex;
use plan::{Match, World};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most hits one answer may skip and show: further pages sort by something and narrow by it.
pub const MAX_WINDOW: usize = 10_000;
const DEFAULT_LIMIT: usize = 50;
const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);
/// Hits read from the store at once.
const CHUNK: usize = 50;
/// Values shown of one facet.
const FACET_VALUES: usize = 30;

/// A question.
#[derive(Debug, Clone)]
pub struct SearchRequest {
    pub query: String,
    pub caller: UserInfo,
    /// Hits wanted; the query's own `limit:` wins.
    pub limit: Option<usize>,
    /// Hits to skip.
    pub offset: usize,
    pub facets: Vec<Facet>,
    pub deadline: Duration,
}

impl SearchRequest {
    pub fn new(query: impl Into<String>, caller: UserInfo) -> Self {
        Self {
            query: query.into(),
            caller,
            limit: None,
            offset: 0,
            facets: vec![Facet::Kind, Facet::Status, Facet::Cluster, Facet::Namespace, Facet::Image, Facet::Reason],
            deadline: DEFAULT_DEADLINE,
        }
    }
}

/// What hits are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortBy {
    Relevance,
    Number(Number),
    Text(Facet),
}

/// One hit.
#[derive(Debug, Clone)]
pub struct Hit {
    pub object: Object,
    pub score: f32,
    /// Which fields matched, with their values.
    pub reasons: Vec<Reason>,
}

/// Counts of a field's values over all hits the caller may see; exact unless [`Summary::incomplete`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FacetCounts {
    pub field: String,
    /// Most frequent first.
    pub values: Vec<(String, u64)>,
    /// Values that are not shown.
    pub more: u64,
}

/// The end of an answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// All hits the caller may see.
    pub total: u64,
    /// The deadline came first: totals and counts are lower bounds.
    pub incomplete: bool,
    /// The newest change the answer knows.
    pub seq: Seq,
    /// Changes the cache has and the text index has not, yet.
    pub behind: u64,
    pub took_ms: f64,
    /// Names close to what was asked for, when nothing was found.
    pub did_you_mean: Vec<String>,
}

/// A remark on the query: what was left out or read otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// Bytes of the query text.
    pub start: usize,
    pub end: usize,
    pub message: String,
}

/// A piece of an answer, in this order: Remarks, Skipped, Facets, any number of Hits, Done.
#[derive(Debug, Clone)]
pub enum SearchEvent {
    Remarks(Vec<Remark>),
    Skipped(Vec<Skipped>),
    Facets(Vec<FacetCounts>),
    Hits(Vec<Hit>),
    Done(Summary),
}

/// A whole answer, for callers that don't stream.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub hits: Vec<Hit>,
    pub facets: Vec<FacetCounts>,
    pub skipped: Vec<Skipped>,
    pub remarks: Vec<Remark>,
    pub summary: Option<Summary>,
}

/// A planned question.
struct Planned {
    query: Query,
    matches: Match,
    remarks: Vec<Remark>,
    keep: usize,
    offset: usize,
    sort: SortBy,
    descending: bool,
}

impl Index {
    /// Answers as a stream. A query that is too large to read is the only error of the caller's making; everything else
    /// is answered as far as it goes, with remarks.
    pub fn search(&self, request: SearchRequest) -> impl Stream<Item = Result<SearchEvent, Error>> + Send + 'static {
        let state = Stage::Asked(Box::new((self.clone(), request)));
        try_unfold(state, |stage| stage.next())
    }

    /// The whole answer at once.
    pub async fn search_all(&self, request: SearchRequest) -> Result<Answer, Error> {
        let mut stage = Stage::Asked(Box::new((self.clone(), request)));
        let mut answer = Answer::default();
        while let Some((event, next)) = stage.next().await? {
            match event {
                SearchEvent::Remarks(remarks) => answer.remarks = remarks,
                SearchEvent::Skipped(skipped) => answer.skipped = skipped,
                SearchEvent::Facets(facets) => answer.facets = facets,
                SearchEvent::Hits(hits) => answer.hits.extend(hits),
                SearchEvent::Done(summary) => answer.summary = Some(summary),
            }
            stage = next;
        }
        Ok(answer)
    }

    /// The newest change a search can find.
    pub fn searchable(&self) -> tokio::sync::watch::Receiver<Seq> {
        self.inner.searchable.clone()
    }

    fn planned(&self, request: &SearchRequest) -> Planned {
        let (query, too_much) = match parse(&request.query, &Limits::default()) {
            Ok(query) => (query, None),
            Err(error) => (Query::default(), Some(error.to_string())),
        };
        let world = self.world();
        let plan = plan::plan(&query.filter, &world);
        let remark = |notice: &Notice| Remark {
            start: notice.span.start,
            end: notice.span.end,
            message: notice.message.clone(),
        };
        let mut remarks: Vec<Remark> = query.notices.iter().chain(&plan.notices).map(remark).collect();
        let mut matches = plan.matches;
        if let Some(message) = too_much {
            remarks.push(Remark { start: 0, end: request.query.len(), message });
            matches = Match::None;
        }
        for (what, used) in [
            ("at:", query.output.at.is_some()),
            ("during:", query.output.during.is_some()),
            ("select:", query.output.select.is_some()),
            ("scope:", query.output.scope.is_some()),
        ] {
            if used {
                remarks.push(Remark {
                    start: 0,
                    end: 0,
                    message: format!("{what} is not served yet; it was left out"),
                });
            }
        }
        let limit = query.output.limit.or(request.limit).unwrap_or(DEFAULT_LIMIT).min(MAX_WINDOW);
        let offset = request.offset.min(MAX_WINDOW);
        let (sort, descending) = match query.output.sort.first() {
            None => (SortBy::Relevance, true),
            Some(key) => match sort_by(&key.field) {
                // The oldest has the smallest creation time.
                Some(sort) if key.field == "age" => (sort, !key.descending),
                Some(sort) => (sort, key.descending),
                None => {
                    let message = format!("cannot sort by {}; sorted by relevance", key.field);
                    remarks.push(Remark { start: 0, end: 0, message });
                    (SortBy::Relevance, true)
                }
            },
        };
        Planned { query, matches, remarks, keep: (offset + limit).min(MAX_WINDOW), offset, sort, descending }
    }

    /// What plans ask about the fleet.
    pub(crate) fn world(&self) -> World {
        let shared = &self.inner.shared;
        let kinds = Arc::clone(&shared.kinds.read());
        World { clusters: clusters::facts(self), kinds, now: (shared.now_ms)() / 1000 }
    }
}

fn sort_by(field: &str) -> Option<SortBy> {
    let text = [Facet::Name, Facet::Namespace, Facet::Cluster, Facet::Kind, Facet::Status, Facet::Node, Facet::Type];
    if field == "relevance" {
        return Some(SortBy::Relevance);
    }
    let text = text.into_iter().find(|facet| facet.field() == field).map(SortBy::Text);
    text.or_else(|| gather::number_named(field).map(SortBy::Number))
}

/// Where a streamed answer stands.
enum Stage {
    Asked(Box<(Index, SearchRequest)>),
    Answering(Box<Answering>),
    Done,
}

struct Answering {
    index: Index,
    matches: Match,
    events: VecDeque<SearchEvent>,
    /// (id, score) of hits still to be read.
    hits: VecDeque<(u64, f32)>,
    summary: Summary,
    started: Instant,
}

impl Stage {
    async fn next(self) -> Result<Option<(SearchEvent, Stage)>, Error> {
        let mut answering = match self {
            Self::Done => return Ok(None),
            Self::Answering(answering) => answering,
            Self::Asked(asked) => Box::new(begin(asked.0, asked.1).await?),
        };
        if let Some(event) = answering.events.pop_front() {
            return Ok(Some((event, Self::Answering(answering))));
        }
        if !answering.hits.is_empty() {
            let chunk: Vec<_> = answering.hits.drain(..answering.hits.len().min(CHUNK)).collect();
            let hits = read_hits(&answering.index, &answering.matches, &chunk).await?;
            return Ok(Some((SearchEvent::Hits(hits), Self::Answering(answering))));
        }
        let took = answering.started.elapsed();
        let metrics = answering.index.metrics();
        metrics.searches.add(1);
        metrics.search_microseconds.add(took.as_micros() as u64);
        let summary = Summary { took_ms: took.as_secs_f64() * 1000.0, ..answering.summary };
        Ok(Some((SearchEvent::Done(summary), Self::Done)))
    }
}

async fn begin(index: Index, request: SearchRequest) -> Result<Answering, Error> {
    let started = Instant::now();
    let mut planned = index.planned(&request);
    let seq = *index.inner.searchable.borrow();
    let skipped = clusters::skipped(&index, &request.caller);
    let text = Arc::clone(&index.inner.text);
    let timeout = planned.query.output.timeout.map(Duration::from_secs_f64);
    let gather = Gather {
        rights: Arc::new(Mutex::new(index.inner.rights.of(&request.caller))),
        sort: planned.sort,
        descending: planned.descending,
        keep: planned.keep,
        facets: request.facets.clone(),
        deadline: started + timeout.map_or(request.deadline, |timeout| timeout.min(request.deadline)),
    };
    let suggest = request.clone();
    let matches = planned.matches.clone();
    let rights = Arc::clone(&gather.rights);
    let (gathered, refused, did_you_mean) = blocking(move || {
        let (gathered, refused) = run(&text, &matches, &gather)?;
        let close = if gathered.total == 0 && !gathered.incomplete {
            near_names(&text, &suggest, &rights)?
        } else {
            Vec::new()
        };
        Ok((gathered, refused, close))
    })
    .await?;
    let refused =
        refused.into_iter().map(|pattern| Remark { start: 0, end: 0, message: format!("cannot match {pattern}") });
    planned.remarks.extend(refused);
    let facets = facet_counts(&request.facets, &gathered);
    let events = [SearchEvent::Remarks(planned.remarks), SearchEvent::Skipped(skipped), SearchEvent::Facets(facets)];
    let hits = gathered.hits.iter().skip(planned.offset).map(|hit| (hit.id, hit.score)).collect();
    let summary = Summary {
        total: gathered.total,
        incomplete: gathered.incomplete,
        seq,
        behind: index.seq().0.saturating_sub(seq.0),
        took_ms: 0.0,
        did_you_mean,
    };
    Ok(Answering { index, matches: planned.matches, events: events.into(), hits, summary, started })
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    joined(tokio::task::spawn_blocking(work).await)
}

fn run(text: &TextIndex, matches: &Match, gather: &Gather) -> Result<(Gathered, Vec<String>), Error> {
    let compiled = compile::compile(matches, text);
    let searcher = text.searcher();
    let gathered = searcher.search(&compiled.query, gather).map_err(|e| Error::text("cannot be searched", e))?;
    Ok((gathered, compiled.refused))
}

/// Names near the bare words of a query that found nothing.
fn near_names(
    text: &TextIndex,
    request: &SearchRequest,
    rights: &Arc<Mutex<crate::rights::CallerRights>>,
) -> Result<Vec<String>, Error> {
    let Ok(query) = parse(&request.query, &Limits::default()) else { return Ok(Vec::new()) };
    let mut words = Vec::new();
    query.filter.terms(&mut |term| {
        use crate::query::{Field, Pattern, TermKind, Value};
        match &term.kind {
            TermKind::Text(Pattern::Word(word)) => words.push(word.to_lowercase()),
            TermKind::Field { field: Field::Known(field), values, .. } if field.name == "name" => {
                let named = values.any.iter().filter_map(|value| match value {
                    Value::Pattern(Pattern::Word(word)) => Some(word.to_lowercase()),
                    _ => None,
                });
                words.extend(named);
            }
            _ => {}
        }
    });
    let mut near = Vec::new();
    for word in words.into_iter().filter(|word| word.chars().count() > 2).take(3) {
        let gather = Gather {
            rights: Arc::clone(rights),
            sort: SortBy::Relevance,
            descending: true,
            keep: 3,
            facets: Vec::new(),
            deadline: Instant::now() + Duration::from_millis(200),
        };
        let distance = if word.chars().count() > 5 { 2 } else { 1 };
        let (found, _) = run(text, &Match::Fuzzy(word, distance), &gather)?;
        near.extend(found.hits.into_iter().map(|hit| hit.name));
    }
    near.dedup();
    near.truncate(5);
    Ok(near)
}

fn facet_counts(wanted: &[Facet], gathered: &Gathered) -> Vec<FacetCounts> {
    let count = |(facet, counts): (&Facet, &std::collections::HashMap<String, u64>)| {
        let mut values: Vec<(String, u64)> = counts.iter().map(|(value, count)| (value.clone(), *count)).collect();
        values.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let more = values.len().saturating_sub(FACET_VALUES) as u64;
        values.truncate(FACET_VALUES);
        FacetCounts { field: facet.field().to_owned(), values, more }
    };
    wanted.iter().zip(&gathered.facets).map(count).collect()
}

/// Reads hits from the store, in their order; those deleted meanwhile are left out.
async fn read_hits(index: &Index, matches: &Match, hits: &[(u64, f32)]) -> Result<Vec<Hit>, Error> {
    let ids: Vec<u64> = hits.iter().map(|(id, _)| *id).collect();
    let objects = index.inner.shared.store.by_ids(&ids).await?;
    let mut by_id: BTreeMap<u64, Object> = objects.into_iter().map(|object| (object.record.id, object)).collect();
    let hit = |(id, score): &(u64, f32)| {
        let object = by_id.remove(id)?;
        let reasons = Document::of(&object).map(|document| Evaluated::new(&document).reasons(matches));
        Some(reasons.map(|reasons| Hit { object, score: *score, reasons }))
    };
    hits.iter().filter_map(hit).collect()
}
