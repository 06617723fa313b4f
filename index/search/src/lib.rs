//! Search over all objects in the cache, in a query language, limited to the objects that the caller may list. Counts are
//! exact, and responses name the clusters whose data is missing or outdated.
//!
//! Hits are found in the text index and read from the store. Responses are streams of [`SearchEvent`]s, so that
//! clients can show the first hits while the rest is read.

pub mod authorization;
pub(crate) mod collect;
pub mod document;
pub mod engine;
pub(crate) mod execute;
mod hydrate;
pub mod matching;
pub mod opensearch;
pub mod paths;
pub mod plan;
mod searcher;
pub(crate) mod tantivy;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod verify;

pub use collect::did_you_mean::RelaxedQuery;
pub use collect::facets::FacetField;
pub use collect::suggest::{SuggestRequest, Suggestion, Suggestions};
pub use collect::sums::amount_names;
pub use execute::evaluate::Reason;
pub use hydrate::live::{LiveCounts, LiveEvent};
pub use hydrate::object::{Diff, Edge, Graph, ObjectRevisions};
pub use hydrate::skipped_clusters::SkippedCluster;
pub use plan::explain::{HitCount, PlanStep, QueryExplanation};
pub use plan::paths::ManifestPath;
pub use plan::saved_search;
pub use plan::sort::{ClusterProperty, Cursor, InvalidCursor, Rank, Sort, SortBy, SortPosition};
pub use searcher::{CacheParts, Discovery, Searcher, SearcherParts};

use crate::authorization::CallerPermissions;
use crate::document::columns::{Facet, Number};
use collect::facets::FacetRequest;
use collect::sums::parse_amount;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_query::{Expr, Limits, Query, parse};
use crowsnest_store::{Error, Object, Seq};
use engine::SearchContext;
use execute::Sources;
use futures::Stream;
use futures::stream::try_unfold;
use hydrate::{CountOrder, Stage};
use plan::predicate::Match;
use plan::retention::HistoryRange;
use plan::sort::MAX_COLUMNS;
use plan::{Plan, PlanningContext, TimeScope, plan};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of hits per page.
pub const MAX_HITS: usize = 10_000;
const DEFAULT_LIMIT: usize = 50;
const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);
/// Number of hits that are read from the store and sent at once: the first page of the web UI.
const HITS_IN_FIRST_CHUNK: usize = 60;
/// Number of further hits that are read and sent at once, so that they do not delay other searches.
const HITS_PER_CHUNK: usize = 50;

/// The page of hits that a search returns.
#[derive(Debug, Clone, Default)]
pub struct RequestedPage {
    /// Maximum number of hits; `limit:` in the query takes precedence.
    pub limit: Option<usize>,
    /// Position of the last hit on the previous page.
    pub after: Option<SortPosition>,
}

/// Values that a search counts over all matched objects.
#[derive(Debug, Clone)]
pub struct RequestedCounts {
    pub facets: Vec<FacetField>,
    /// Amounts to sum for each group of `group:` in the query.
    pub sums: Vec<Number>,
}

/// A query with its caller, page and limits.
#[derive(Debug, Clone)]
pub struct SearchRequest {
    pub query: String,
    pub caller: UserInfo,
    pub page: RequestedPage,
    pub counts: RequestedCounts,
    /// Include the manifests of hits.
    pub include_manifests: bool,
    /// Saved searches that `scope:` may name: queries by lower-case name.
    pub scopes: BTreeMap<String, String>,
    /// Time limit; a `timeout:` in the query can only reduce it.
    pub deadline: Duration,
}

impl SearchRequest {
    /// A request with the default facets and limits, and without manifests.
    pub fn new(query: impl Into<String>, caller: UserInfo) -> Self {
        let columns = [Facet::Kind, Facet::Status, Facet::Cluster, Facet::Namespace, Facet::Image, Facet::Reason];
        let columns = columns.into_iter().map(FacetField::Column);
        let facets = columns.chain([FacetField::Region, FacetField::Provider]).collect();
        Self {
            query: query.into(),
            caller,
            page: RequestedPage::default(),
            counts: RequestedCounts { facets, sums: Vec::new() },
            include_manifests: false,
            scopes: BTreeMap::new(),
            deadline: DEFAULT_DEADLINE,
        }
    }

    /// The request for at most this number of hits.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.page.limit = Some(limit);
        self
    }

    /// Reason why the query cannot be executed at all: it is too large, or its `scope:` does not exist or is invalid. Its
    /// response contains the reason as a notice, and no hits.
    pub fn query_error(&self) -> Option<String> {
        match parse(&self.query, &Limits::default()) {
            Ok(mut query) => restrict_to_scope(&mut query, &self.scopes).err(),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Sets the facets. Fails if a field cannot be counted; the error lists the countable fields.
    pub fn set_facets<'f>(&mut self, fields: impl Iterator<Item = &'f str>) -> Result<(), String> {
        let mut facets = Vec::new();
        for field in fields {
            let Some(facet) = FacetField::parse(field) else {
                return Err(format!("{field:?} cannot be counted; countable fields are {}", FacetField::names()));
            };
            if !facets.contains(&facet) {
                facets.push(facet);
            }
        }
        self.counts.facets = facets;
        Ok(())
    }

    /// Sets the amounts to sum. Fails if a field is not an amount; the error lists the fields that can be summed.
    pub fn set_sums<'f>(&mut self, fields: impl Iterator<Item = &'f str>) -> Result<(), String> {
        let mut sums = Vec::new();
        for field in fields {
            let Some(number) = parse_amount(field) else {
                return Err(format!("{field:?} cannot be summed; fields that can be summed are {}", amount_names()));
            };
            if !sums.contains(&number) {
                sums.push(number);
            }
        }
        self.counts.sums = sums;
        Ok(())
    }
}

/// An object that matches a search.
#[derive(Debug, Clone)]
pub struct Hit {
    /// The current object or an earlier version of it.
    pub object: Object,
    /// End of the version; None for a current object.
    pub version_end: Option<VersionEnd>,
    pub score: f32,
    /// Matched fields with their values.
    pub reasons: Vec<Reason>,
}

/// End of an earlier version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionEnd {
    /// Unix milliseconds.
    pub until: i64,
    /// True if the version ended by the deletion of the object.
    pub deleted: bool,
}

/// Counts of a field's values over all hits that the caller may see; exact unless [`Summary::incomplete`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FacetCounts {
    pub field: String,
    /// Most frequent first.
    pub values: Vec<(String, u64)>,
    /// Number of values that are not listed.
    pub more: u64,
    /// Requested sums per group; empty for facets.
    pub sums: Vec<GroupSums>,
}

/// Sums of a numeric field over the hits of each group: CPU in millicores, memory in bytes. Objects without the number
/// count as 0; sums are limited to `i64`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupSums {
    pub field: String,
    /// In the order of [`FacetCounts::values`].
    pub values: Vec<i64>,
}

/// Summary at the end of a response.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Number of all hits that the caller may see.
    pub total: u64,
    /// Start of the next page; None at the end.
    #[serde(skip)]
    pub next: Option<Cursor>,
    /// True if the deadline or a limit was reached: totals and counts are lower bounds.
    pub incomplete: bool,
    /// The newest change that the response is guaranteed to include.
    pub seq: Seq,
    /// Number of changes in the cache that are newer than `seq`.
    pub behind: u64,
    /// Duration of the search in milliseconds.
    pub took_ms: f64,
    /// Corrected queries and similar names, if nothing was found.
    pub did_you_mean: Vec<String>,
    /// Queries that leave out one of the terms and have hits, if nothing was found.
    #[serde(rename = "wider")]
    pub relaxed_queries: Vec<RelaxedQuery>,
}

/// A notice about the query for its author: a part that was ignored or interpreted differently, or a limit that was
/// reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Notice {
    /// Byte range in the query text.
    pub start: usize,
    pub end: usize,
    pub message: String,
}

impl Notice {
    /// A notice about the query as a whole.
    fn without_position(message: String) -> Self {
        Self { start: 0, end: 0, message }
    }
}

/// An event of a response.
///
/// The order is Notices, Skipped, any number of Hits, Facets, Done. If the hits are grouped, or if no facets are requested, Facets
/// and Groups precede the hits. Notices of the counts precede Facets.
#[derive(Debug, Clone)]
pub enum SearchEvent {
    Notices(Vec<Notice>),
    Skipped(Vec<SkippedCluster>),
    Facets(Vec<FacetCounts>),
    Groups(FacetCounts),
    Hits(Vec<Hit>),
    /// Sent after the last hits if the counts, or the suggestions for a query without hits, are still to be computed.
    Summary(Summary),
    /// The summary, including suggestions.
    Done(Summary),
}

/// A complete response, for callers without streaming.
#[derive(Debug, Clone, Default)]
pub struct SearchResponse {
    pub hits: Vec<Hit>,
    pub facets: Vec<FacetCounts>,
    /// Number of hits per group, if the query groups its hits.
    pub groups: Option<FacetCounts>,
    pub skipped: Vec<SkippedCluster>,
    pub notices: Vec<Notice>,
    pub summary: Option<Summary>,
}

/// A search request with its parsed query and the plan to execute.
struct PlannedSearch {
    /// The query, restricted to its `scope:`.
    query: Query,
    plan: Plan,
    notices: Vec<Notice>,
    /// Maximum number of hits on the page.
    max_hits: usize,
    sort: Vec<Sort>,
    facet_request: FacetRequest,
    planning_context: Arc<PlanningContext>,
}

impl Searcher {
    /// The response as a stream. Queries never fail: invalid parts are ignored with a notice, and the response to a query
    /// with a [`SearchRequest::query_error`] has that notice and no hits. Errors are those of the store and the text index.
    pub fn search(&self, request: SearchRequest) -> impl Stream<Item = Result<SearchEvent, Error>> + Send + 'static {
        let state = Stage::Requested(Box::new((self.clone(), request, CountOrder::AfterHits)));
        try_unfold(state, |stage| stage.next())
    }

    /// The complete response, for callers without streaming.
    pub async fn search_all(&self, request: SearchRequest) -> Result<SearchResponse, Error> {
        let mut stage = Stage::Requested(Box::new((self.clone(), request, CountOrder::BeforeHits)));
        let mut response = SearchResponse::default();
        while let Some((event, next)) = stage.next().await? {
            match event {
                SearchEvent::Notices(notices) => response.notices.extend(notices),
                SearchEvent::Skipped(skipped) => response.skipped = skipped,
                SearchEvent::Facets(facets) => response.facets = facets,
                SearchEvent::Groups(groups) => response.groups = Some(groups),
                SearchEvent::Hits(hits) => response.hits.extend(hits),
                SearchEvent::Summary(_) => {}
                SearchEvent::Done(summary) => response.summary = Some(summary),
            }
            stage = next;
        }
        Ok(response)
    }

    /// Plans a query with its caller's permissions; returns the plan and its data sources.
    async fn plan_search(&self, request: &SearchRequest) -> (PlannedSearch, Sources) {
        let (mut query, query_error) = match parse(&request.query, &Limits::default()) {
            Ok(query) => (query, None),
            Err(error) => (Query::default(), Some(error.to_string())),
        };
        let query_error = query_error.or_else(|| restrict_to_scope(&mut query, &request.scopes).err());
        let requested_timeout =
            query.output.timeout.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
        let timeout = requested_timeout.map_or(request.deadline, |timeout| timeout.min(request.deadline));
        let sources = self.sources(&request.caller, timeout).await;
        let planning_context = self.planning_context(&sources.context.permissions.lock());
        (self.assemble_plan(request, query, query_error, Arc::new(planning_context)), sources)
    }

    fn assemble_plan(
        &self,
        request: &SearchRequest,
        query: Query,
        query_error: Option<String>,
        planning_context: Arc<PlanningContext>,
    ) -> PlannedSearch {
        let mut plan = plan(&query, &planning_context);
        let from_query = |notice: &crowsnest_query::Notice| Notice {
            start: notice.span.start,
            end: notice.span.end,
            message: notice.message.clone(),
        };
        let mut notices: Vec<Notice> = query.notices.iter().chain(&plan.notices).map(from_query).collect();
        let mut add_notice = |end: usize, message: String| notices.push(Notice { start: 0, end, message });
        if let Some(message) = query_error {
            add_notice(request.query.len(), message);
            plan = Plan { matches: Match::None, scope: TimeScope::Now, notices: Vec::new() };
        }
        if let Some(message) = self.history_range().describe_gap(plan.scope) {
            add_notice(0, message);
        }
        let sort = resolve_sort(&query, &mut add_notice);
        let group = resolve_group(&query, &mut add_notice);
        let sums = resolve_sums(&request.counts.sums, group.as_ref(), &mut add_notice);
        let facet_request = FacetRequest::new(request.counts.facets.clone(), group, sums);
        let max_hits = query.output.limit.or(request.page.limit).unwrap_or(DEFAULT_LIMIT).min(MAX_HITS);
        PlannedSearch { query, plan, notices, max_hits, sort, facet_request, planning_context }
    }

    fn history_range(&self) -> HistoryRange {
        let (now, since) = ((self.inner.now_ms)() / 1000, self.inner.filled_since_ms / 1000);
        HistoryRange { now, since, retention: self.inner.history_retention }
    }

    /// Data sources for a caller's searches.
    async fn sources(&self, caller: &UserInfo, timeout: Duration) -> Sources {
        let requested_at = Instant::now();
        let permissions = self.permissions_of(caller, requested_at + timeout).await;
        let context = SearchContext::new(permissions, requested_at, timeout);
        let (engine, permits) = (Arc::clone(&self.inner.engine), Arc::clone(&self.inner.permits));
        let (dependency_permits, store) =
            (Arc::clone(&self.inner.dependency_permits), Arc::clone(&self.inner.cache.store));
        let references = Arc::clone(&self.inner.references);
        Sources { engine, permits, dependency_permits, store, references, context }
    }

    /// Context of the plans of a caller.
    fn planning_context(&self, permissions: &CallerPermissions) -> PlanningContext {
        PlanningContext {
            clusters: hydrate::skipped_clusters::cluster_properties(self, permissions),
            kinds: self.inner.cache.discovery.kinds(),
            now: (self.inner.now_ms)() / 1000,
        }
    }
}

/// Restricts a query to the saved search that it names.
fn restrict_to_scope(query: &mut Query, scopes: &BTreeMap<String, String>) -> Result<(), String> {
    let Some(name) = &query.output.scope else { return Ok(()) };
    let Some(saved) = scopes.get(&name.to_lowercase()) else {
        return Err(format!("there is no saved search {name:?}, or you may not see it"));
    };
    let saved =
        parse(saved, &Limits::default()).map_err(|error| format!("the query of scope:{name} is invalid: {error}"))?;
    query.filter = Expr::and(vec![saved.filter, std::mem::take(&mut query.filter)]);
    Ok(())
}

/// The field by which hits are grouped.
fn resolve_group(query: &Query, add_notice: &mut impl FnMut(usize, String)) -> Option<FacetField> {
    let field = query.output.group.as_deref()?;
    let group = FacetField::parse(field);
    if group.is_none() {
        add_notice(0, format!("cannot group by {field}, ignored; supported fields are {}", FacetField::names()));
    }
    group
}

/// The numbers to sum per group.
fn resolve_sums(
    requested: &[Number],
    group: Option<&FacetField>,
    add_notice: &mut impl FnMut(usize, String),
) -> Vec<Number> {
    match group {
        _ if requested.is_empty() => Vec::new(),
        Some(_) => requested.to_vec(),
        None => {
            add_notice(0, "sums are computed per group; add group: to the query".to_owned());
            Vec::new()
        }
    }
}

/// The requested order, by relevance if there is none. Ties are sorted by name and id.
fn resolve_sort(query: &Query, add_notice: &mut impl FnMut(usize, String)) -> Vec<Sort> {
    let mut sort = Vec::new();
    for key in &query.output.sort {
        match Sort::by_field(&key.field, key.descending) {
            Some(column) if sort.len() < MAX_COLUMNS => sort.push(column),
            Some(_) => {
                add_notice(0, format!("hits are sorted by at most {MAX_COLUMNS} columns; {} is ignored", key.field))
            }
            None => add_notice(0, format!("cannot sort by {}, ignored", key.field)),
        }
    }
    // Hits of a group must be adjacent.
    if let Some(group) = query.output.group.as_deref().and_then(|field| Sort::by_field(field, false)) {
        sort.insert(0, group);
        sort.truncate(MAX_COLUMNS);
    }
    if sort.is_empty() { vec![Sort::RELEVANCE] } else { sort }
}
