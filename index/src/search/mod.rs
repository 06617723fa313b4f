//! Search over everything in the cache: one query language, the caller's rights, counts that are exact, and the clusters
//! an answer misses named with reason and age.
//!
//! Reads the text index for what matches and the store for what is shown. The answer comes as a stream of
//! [`SearchEvent`]s, so that a front end can show hits while the rest is read.

mod answer;
mod block;
mod clusters;
mod compile;
mod evaluate;
mod gather;
mod labels;
mod look;
mod matches;
mod numbers;
mod order;
mod past;
mod paths;
mod patterns;
mod permitted;
pub mod plan;
mod rank;
mod relations;
#[cfg(test)]
mod tests;

pub use clusters::Skipped;
pub use evaluate::Reason;
pub use order::{Cursor, NoCursor, Place, Rank, Sort, SortBy};

use crate::query::{Limits, Notice, Query, parse};
use crate::text::columns::Facet;
use crate::text::document::Document;
use crate::{Error, Index, Object, Seq};
use answer::{Found, Shown, Sources, blocking, find, run};
use crowsnest_api::user::UserInfo;
use evaluate::Evaluated;
use futures::Stream;
use futures::stream::try_unfold;
use gather::{Gather, Gathered};
use matches::Match;
use order::{MOST_COLUMNS, Ranked};
use parking_lot::Mutex;
use plan::{Asked, Plan, World, plan};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Hits of one answer, at most: more come page by page.
pub const MOST_HITS: usize = 10_000;
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
    /// Where the page before ended.
    pub after: Option<Place>,
    pub facets: Vec<Facet>,
    pub deadline: Duration,
}

impl SearchRequest {
    pub fn new(query: impl Into<String>, caller: UserInfo) -> Self {
        Self {
            query: query.into(),
            caller,
            limit: None,
            after: None,
            facets: vec![Facet::Kind, Facet::Status, Facet::Cluster, Facet::Namespace, Facet::Image, Facet::Reason],
            deadline: DEFAULT_DEADLINE,
        }
    }
}

/// One hit.
#[derive(Debug, Clone)]
pub struct Hit {
    /// As it is, or as it was.
    pub object: Object,
    /// Of what it was: until when.
    pub was: Option<Was>,
    pub score: f32,
    /// Which fields matched, with their values.
    pub reasons: Vec<Reason>,
}

/// The end of what an object was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Was {
    /// Unix milliseconds.
    pub until: i64,
    /// It was deleted then.
    pub deleted: bool,
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
    /// Where the next page begins; None when nothing is left.
    #[serde(skip)]
    pub next: Option<Cursor>,
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
    plan: Plan,
    remarks: Vec<Remark>,
    timeout: Option<Duration>,
    keep: usize,
    sort: Vec<Sort>,
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
        let mut plan = plan(&query, &self.world());
        let remark = |notice: &Notice| Remark {
            start: notice.span.start,
            end: notice.span.end,
            message: notice.message.clone(),
        };
        let mut remarks: Vec<Remark> = query.notices.iter().chain(&plan.notices).map(remark).collect();
        let mut say = |end: usize, message: String| remarks.push(Remark { start: 0, end, message });
        if let Some(message) = too_much {
            say(request.query.len(), message);
            plan = Plan { matches: Match::None, asked: Asked::Now, notices: Vec::new() };
        }
        if query.output.scope.is_some() {
            say(0, "scope: is not served yet; it was left out".to_owned());
        }
        if let Some(message) = self.too_long_ago(&plan) {
            say(0, message);
        }
        let sort = sorted(&query, &mut say);
        let keep = query.output.limit.or(request.limit).unwrap_or(DEFAULT_LIMIT).min(MOST_HITS);
        let timeout = query.output.timeout.map(Duration::from_secs_f64);
        Planned { plan, remarks, timeout, keep, sort }
    }

    /// What is asked of a time of which not everything is kept.
    fn too_long_ago(&self, plan: &Plan) -> Option<String> {
        let asked = match plan.asked {
            Asked::At(at) | Asked::During(at, _) => at,
            Asked::Now | Asked::Deleted => return None,
        };
        let kept_for = self.options().history.kept_for;
        let kept_since = (self.options().clock)() / 1000 - i64::try_from(kept_for.as_secs()).unwrap_or(i64::MAX);
        let hours = kept_for.as_secs() / 3600;
        (asked < kept_since)
            .then(|| format!("what changed more than {hours} h ago is not kept: the answer may miss it"))
    }

    /// What plans ask about the fleet.
    pub(crate) fn world(&self) -> World {
        let shared = &self.inner.shared;
        let kinds = Arc::clone(&shared.kinds.read());
        World { clusters: clusters::facts(self), kinds, now: (shared.now_ms)() / 1000 }
    }
}

/// The order that is asked for, and by name and id what it leaves open.
fn sorted(query: &Query, say: &mut impl FnMut(usize, String)) -> Vec<Sort> {
    let mut sort = Vec::new();
    for key in &query.output.sort {
        match Sort::named(&key.field, key.descending) {
            Some(column) if sort.len() < MOST_COLUMNS => sort.push(column),
            Some(_) => say(0, format!("hits are sorted by {MOST_COLUMNS} columns at most; {} was left out", key.field)),
            None => say(0, format!("cannot sort by {}; it was left out", key.field)),
        }
    }
    // Groups stay together.
    if let Some(group) = query.output.group.as_deref().and_then(|field| Sort::named(field, false)) {
        sort.insert(0, group);
        sort.truncate(MOST_COLUMNS);
    }
    if sort.is_empty() { vec![Sort::RELEVANCE] } else { sort }
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
    /// Hits still to be read.
    hits: VecDeque<Ranked>,
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
    let rights = Arc::new(Mutex::new(index.inner.rights.of(&request.caller)));
    let deadline = started + planned.timeout.map_or(request.deadline, |timeout| timeout.min(request.deadline));
    let (text, store) = (Arc::clone(&index.inner.text), Arc::clone(&index.inner.shared.store));
    let sources = Sources { text, store, rights: Arc::clone(&rights), deadline };
    let gather = Gather {
        rights,
        sort: planned.sort,
        after: request.after.clone(),
        keep: planned.keep,
        facets: request.facets.clone(),
        deadline,
    };
    let Found { gathered, matches, notices } = find(&sources, planned.plan, gather).await?;
    let did_you_mean = match gathered.total == 0 && !gathered.incomplete {
        true => near_names(&sources, &request.query).await?,
        false => Vec::new(),
    };
    planned.remarks.extend(notices.into_iter().map(|message| Remark { start: 0, end: 0, message }));
    let facets = facet_counts(&request.facets, &gathered);
    let events = [SearchEvent::Remarks(planned.remarks), SearchEvent::Skipped(skipped), SearchEvent::Facets(facets)];
    let more = gathered.left > gathered.hits.len() as u64;
    let summary = Summary {
        total: gathered.total,
        next: gathered.hits.last().filter(|_| more).map(|hit| Cursor(hit.place.clone())),
        incomplete: gathered.incomplete,
        seq,
        behind: index.seq().0.saturating_sub(seq.0),
        took_ms: 0.0,
        did_you_mean,
    };
    Ok(Answering { index, matches, events: events.into(), hits: gathered.hits.into(), summary, started })
}

/// Names near the bare words of a query that found nothing.
async fn near_names(sources: &Sources, query: &str) -> Result<Vec<String>, Error> {
    let Ok(query) = parse(query, &Limits::default()) else { return Ok(Vec::new()) };
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
    let gather = Gather {
        rights: Arc::clone(&sources.rights),
        sort: vec![Sort::RELEVANCE],
        after: None,
        keep: 3,
        facets: Vec::new(),
        deadline: Instant::now() + Duration::from_millis(200),
    };
    let text = Arc::clone(&sources.text);
    blocking(move || {
        let mut near = Vec::new();
        for word in words.into_iter().filter(|word| word.chars().count() > 2).take(3) {
            let distance = if word.chars().count() > 5 { 2 } else { 1 };
            let (found, _) = run(&text, &Match::Fuzzy(word, distance), &gather)?;
            near.extend(found.hits.into_iter().map(|hit| hit.place.name));
        }
        near.dedup();
        near.truncate(5);
        Ok(near)
    })
    .await
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

/// Reads hits from the store, in their order; those deleted or forgotten meanwhile are left out.
async fn read_hits(index: &Index, matches: &Match, hits: &[Ranked]) -> Result<Vec<Hit>, Error> {
    let store = &index.inner.shared.store;
    let ids: Vec<u64> = hits.iter().filter(|hit| hit.past.is_none()).map(|hit| hit.place.id).collect();
    let ended: Vec<Seq> = hits.iter().filter_map(|hit| hit.past).collect();
    let mut shown = Shown::new();
    for object in store.by_ids(&ids).await? {
        let document = Document::of(&object)?;
        shown.insert((object.record.id, None), (object, None, document));
    }
    if !ended.is_empty() {
        for version in store.ended(&ended).await? {
            let document = Document::of_version(&version)?;
            let was = Was { until: version.ended_at, deleted: version.deleted };
            shown.insert((version.object.record.id, Some(version.ended)), (version.object, Some(was), document));
        }
    }
    let hit = |hit: &Ranked| {
        let (object, was, document) = shown.remove(&(hit.place.id, hit.past))?;
        let reasons = Evaluated::new(&document).reasons(matches);
        Some(Hit { object, was, score: hit.score, reasons })
    };
    Ok(hits.iter().filter_map(hit).collect())
}
