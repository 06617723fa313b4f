//! Search over everything in the cache: one query language, the caller's rights, counts that are exact, and the clusters
//! an answer misses named with reason and age.
//!
//! Reads the text index for what matches and the store for what is shown. The answer comes as a stream of
//! [`SearchEvent`]s, so that a front end can show hits while the rest is read.

pub mod authorization;
pub(crate) mod collect;
pub mod document;
pub mod engine;
pub(crate) mod execute;
mod hydrate;
pub mod opensearch;
pub mod plan;
mod searcher;
pub(crate) mod tantivy;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod verify;

pub use collect::did_you_mean::Wider;
pub use collect::facets::Counted;
pub use collect::suggest::{SuggestRequest, Suggestion, Suggestions};
pub use execute::evaluate::Reason;
pub use hydrate::live::LiveEvent;
pub use hydrate::object::{Diff, Edge, Graph, Past};
pub use hydrate::skipped_clusters::Skipped;
pub use plan::explain::{Count, Explained, Step};
pub use plan::paths::ManifestPath;
pub use plan::saved_search;
pub use plan::sort::{Cursor, NoCursor, OfCluster, Place, Rank, Sort, SortBy};
pub use searcher::{Discovery, Searcher, SearcherParts};

use crate::authorization::CallerRights;
use crate::document::columns::Facet;
use collect::facets::Counting;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_query::{Expr, Limits, Notice, Query, parse};
use crowsnest_store::{Error, Object, Seq};
use engine::SearchContext;
use execute::Sources;
use futures::Stream;
use futures::stream::try_unfold;
use hydrate::Stage;
use parking_lot::Mutex;
use plan::predicate::Match;
use plan::retention::Known;
use plan::sort::MOST_COLUMNS;
use plan::{Asked, Plan, World, plan};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Hits of one answer, at most: more come page by page.
pub const MOST_HITS: usize = 10_000;
const DEFAULT_LIMIT: usize = 50;
const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);
/// Hits read from the store at once.
const CHUNK: usize = 50;

/// A question.
#[derive(Debug, Clone)]
pub struct SearchRequest {
    pub query: String,
    pub caller: UserInfo,
    /// Hits wanted; the query's own `limit:` wins.
    pub limit: Option<usize>,
    /// Where the page before ended.
    pub after: Option<Place>,
    pub facets: Vec<Counted>,
    /// Hits with their manifests; else without.
    pub bodies: bool,
    /// Queries `scope:` may name, by lower-case name.
    pub scopes: BTreeMap<String, String>,
    pub deadline: Duration,
}

impl SearchRequest {
    pub fn new(query: impl Into<String>, caller: UserInfo) -> Self {
        let columns = [Facet::Kind, Facet::Status, Facet::Cluster, Facet::Namespace, Facet::Image, Facet::Reason];
        let columns = columns.into_iter().map(Counted::Column);
        Self {
            query: query.into(),
            caller,
            limit: None,
            after: None,
            facets: columns.chain([Counted::Region, Counted::Provider]).collect(),
            bodies: false,
            scopes: BTreeMap::new(),
            deadline: DEFAULT_DEADLINE,
        }
    }

    /// Why it cannot be answered at all: a query that is too large, or a `scope:` that names nothing. An answer says so too,
    /// and holds nothing.
    pub fn unanswerable(&self) -> Option<String> {
        match parse(&self.query, &Limits::default()) {
            Ok(mut query) => scoped(&mut query, &self.scopes).err(),
            Err(too_much) => Some(too_much.to_string()),
        }
    }

    /// Counts these fields instead; the error names one that cannot be counted, and those that can.
    pub fn facet<'f>(&mut self, fields: impl Iterator<Item = &'f str>) -> Result<(), String> {
        let mut facets = Vec::new();
        for field in fields {
            let Some(counted) = Counted::named(field) else {
                return Err(format!("{field:?} cannot be counted; what can is {}", Counted::names()));
            };
            if !facets.contains(&counted) {
                facets.push(counted);
            }
        }
        self.facets = facets;
        Ok(())
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
    /// And the query without one of its terms.
    pub wider: Vec<Wider>,
}

/// A remark on the query: what was left out or read otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// Bytes of the query text.
    pub start: usize,
    pub end: usize,
    pub message: String,
}

/// A piece of an answer, in this order: Remarks, Skipped, Facets, Groups where hits are grouped, any number of Hits, Done.
#[derive(Debug, Clone)]
pub enum SearchEvent {
    Remarks(Vec<Remark>),
    Skipped(Vec<Skipped>),
    Facets(Vec<FacetCounts>),
    Groups(FacetCounts),
    Hits(Vec<Hit>),
    Done(Summary),
}

/// A whole answer, for callers that don't stream.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub hits: Vec<Hit>,
    pub facets: Vec<FacetCounts>,
    /// Where the query groups its hits: how many are in each group.
    pub groups: Option<FacetCounts>,
    pub skipped: Vec<Skipped>,
    pub remarks: Vec<Remark>,
    pub summary: Option<Summary>,
}

/// A planned question.
struct Planned {
    /// Narrowed to its scope.
    query: Query,
    plan: Plan,
    remarks: Vec<Remark>,
    keep: usize,
    sort: Vec<Sort>,
    counting: Counting,
    world: Arc<World>,
}

impl Searcher {
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
                SearchEvent::Groups(groups) => answer.groups = Some(groups),
                SearchEvent::Hits(hits) => answer.hits.extend(hits),
                SearchEvent::Done(summary) => answer.summary = Some(summary),
            }
            stage = next;
        }
        Ok(answer)
    }

    /// Plans a query with its caller's rights; returns the plan and its data sources.
    async fn planned(&self, request: &SearchRequest) -> (Planned, Sources) {
        let (mut query, too_much) = match parse(&request.query, &Limits::default()) {
            Ok(query) => (query, None),
            Err(error) => (Query::default(), Some(error.to_string())),
        };
        let too_much = too_much.or_else(|| scoped(&mut query, &request.scopes).err());
        let timeout = query.output.timeout.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
        let within = timeout.map_or(request.deadline, |timeout| timeout.min(request.deadline));
        let sources = self.sources(&request.caller, within).await;
        let world = self.world(&sources.context.rights.lock());
        (self.plan_of(request, query, too_much, Arc::new(world)), sources)
    }

    fn plan_of(&self, request: &SearchRequest, query: Query, too_much: Option<String>, world: Arc<World>) -> Planned {
        let mut plan = plan(&query, &world);
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
        if let Some(message) = self.known().lacks(plan.asked) {
            say(0, message);
        }
        let sort = sorted(&query, &mut say);
        let counting = Counting { facets: request.facets.clone(), group: grouped(&query, &mut say) };
        let keep = query.output.limit.or(request.limit).unwrap_or(DEFAULT_LIMIT).min(MOST_HITS);
        Planned { query, plan, remarks, keep, sort, counting, world }
    }

    fn known(&self) -> Known {
        let (now, began) = ((self.inner.now_ms)() / 1000, self.inner.began / 1000);
        Known { now, began, kept_for: self.inner.kept_for }
    }

    /// What a caller's searches read.
    async fn sources(&self, caller: &UserInfo, within: Duration) -> Sources {
        let requested_at = Instant::now();
        let deadline = requested_at + within;
        let rights = Arc::new(Mutex::new(self.rights_of(caller, deadline).await));
        let (engine, permits) = (Arc::clone(&self.inner.engine), Arc::clone(&self.inner.permits));
        let (context, store) = (SearchContext { rights, requested_at, deadline }, Arc::clone(&self.inner.store));
        Sources { engine, permits, store, context }
    }

    /// Facts about the fleet that a caller's plans use.
    fn world(&self, rights: &CallerRights) -> World {
        World {
            clusters: hydrate::skipped_clusters::facts(self, rights),
            kinds: self.inner.discovery.kinds(),
            now: (self.inner.now_ms)() / 1000,
        }
    }
}

/// Narrows a query to the saved one it names.
fn scoped(query: &mut Query, scopes: &BTreeMap<String, String>) -> Result<(), String> {
    let Some(name) = &query.output.scope else { return Ok(()) };
    let Some(saved) = scopes.get(&name.to_lowercase()) else {
        return Err(format!("there is no saved search {name:?} you may see"));
    };
    let saved = parse(saved, &Limits::default()).map_err(|error| format!("scope:{name} cannot be read: {error}"))?;
    query.filter = Expr::and(vec![saved.filter, std::mem::take(&mut query.filter)]);
    Ok(())
}

/// What hits are grouped by.
fn grouped(query: &Query, say: &mut impl FnMut(usize, String)) -> Option<Counted> {
    let field = query.output.group.as_deref()?;
    let group = Counted::named(field);
    if group.is_none() {
        say(0, format!("cannot group by {field}; it was left out: what can be is {}", Counted::names()));
    }
    group
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
