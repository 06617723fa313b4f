//! OpenSearch or Elasticsearch as an [`Engine`].
//!
//! An outage, a deadline and a partial response of the nodes become an incomplete result with a notice. Permissions are a filter of
//! every request ([`scope::filter`]), so nothing else is counted.

mod failure;
mod follow;
mod index_cache;
mod lag;
mod lookup;
mod open;
mod report;
mod scan;

use super::aggregations::{
    BucketSums, CountedField, MAX_VALUES, count_terms, find_broad_phrase_ends, phrase_end_searches,
};
use super::client::{Client, Request};
use super::dsl::query::{self, Query};
use super::dsl::{TranslationInputs, evaluates_paths, phrase_ends, translate};
use super::fields;
use super::order::Order;
use super::request::Search;
use super::response::{PartialReason, ResponseError, SearchResponse, parse_buckets};
use super::scope;
use super::source::StoreSource;
use super::writer::{Writer, WriterError};
use crate::authorization::ScopeTerms;
use crate::collect::terms::{TermCounts, TermSums, TermsRequest};
use crate::collect::{TopHits, TopHitsRequest};
use crate::document::columns::{Facet, Key, Keyword, Number};
use crate::engine::{Backend, Engine, Lookup, Scan, SearchContext, WriterStatus};
use crate::execute::TRUNCATED;
use crate::execute::examine::{Examination, Examiner};
use crate::plan::predicate::Match;
use async_trait::async_trait;
use bytes::Bytes;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_store::CollectionStates;
use crowsnest_store::metrics::Metrics;
use crowsnest_store::{Error, Seq};
use failure::Failure;
use http::Method;
use index_cache::SearchIndexCache;
use lru::LruCache;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::num::NonZero;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// The backend of this engine.
pub(crate) const BACKEND: Backend =
    Backend { name: "opensearch", open: |context| Box::pin(open::open(context)), local: None };

/// Maximum number of terms counted in a request for all terms: an engine refuses more than 65,535 buckets.
const MAX_COUNTED_TERMS: usize = 10_000;
/// Maximum number of scopes of one cluster.
const MAX_SCOPES: usize = 50_000;
/// Timeout of requests without a deadline.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Searches through the alias of an index that a writer keeps equal to the store.
#[derive(Debug)]
struct OpenSearchEngine {
    client: Arc<Client>,
    index_cache: SearchIndexCache,
    states: Arc<CollectionStates>,
    searchable: watch::Receiver<Seq>,
    write_failure: watch::Receiver<Option<String>>,
    /// Receives the ids of points in time to close.
    close_sender: mpsc::Sender<String>,
    writer: Arc<Writer<StoreSource>>,
    /// Size of the index in bytes, measured periodically.
    size: watch::Receiver<Option<u64>>,
    metrics: Arc<Metrics>,
    /// Reads manifests where path terms are incomplete.
    examiner: Examiner,
    /// Results of [`OpenSearchEngine::examine`], by the time of the request and a digest of the condition and its candidates.
    examination_cache: Mutex<LruCache<(Instant, u128), Arc<Examination>>>,
}

/// A condition within the permissions of a caller.
struct Condition {
    permissions: Query,
    matches: Query,
    /// A limit was reached, or the index lacks something: hits may be missing.
    incomplete: bool,
    notices: BTreeSet<String>,
}

/// Notice about responses of an index that was filled by another version.
const OUTDATED: &str = "the index of the search engine is being rebuilt for this version: some hits may be missing";
/// Maximum number of cached examinations, reused by further requests of the same searches.
const EXAMINATION_CACHE_SIZE: NonZero<usize> = NonZero::new(32).expect("not zero");

impl Condition {
    /// The condition for requests that need no scores.
    fn filter(&self) -> Value {
        query::all(vec![self.permissions.clone(), self.matches.clone()]).filter()
    }
}

impl OpenSearchEngine {
    /// Sends a search of the index and returns the body of the response. `path` follows the name of the index.
    async fn search(&self, path: &str, body: &Value, deadline: Instant) -> Result<Bytes, Failure> {
        let search_index = self.index_cache.index().await?;
        match self.exchange(&format!("/{}{path}", search_index.index), body, deadline).await {
            Err(failure) if failure.is_missing_index() => {
                self.index_cache.forget(&search_index);
                let search_index = self.index_cache.index().await?;
                self.exchange(&format!("/{}{path}", search_index.index), body, deadline).await
            }
            other => other,
        }
    }

    async fn exchange(&self, path: &str, body: &Value, deadline: Instant) -> Result<Bytes, Failure> {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(Failure::Deadline);
        }
        let request = Request::new(Method::POST, path);
        // Elasticsearch refuses a body where it expects none.
        let request = if body.is_null() { request } else { request.json(body.to_string()) };
        let request = Request { timeout: Some(remaining), ..request };
        let started_at = Instant::now();
        let response = tokio::time::timeout(remaining, self.client.send(&request)).await;
        self.metrics.text_queries.add(1);
        self.metrics.text_query_microseconds.add(u64::try_from(started_at.elapsed().as_micros()).unwrap_or(u64::MAX));
        match response {
            Ok(response) => Ok(response?.body),
            Err(_) => Err(Failure::Deadline),
        }
    }

    /// Path of searches. Pages of one response read the same copies of shards, because copies refresh at different times.
    fn path(condition: &Value) -> String {
        format!("/_search?preference={:016x}", xxh3_64(condition.to_string().as_bytes()))
    }

    fn scope_terms(&self, context: &SearchContext) -> ScopeTerms {
        let mut permissions = context.permissions.lock();
        let mut collections = BTreeSet::new();
        if !permissions.is_unlimited() {
            self.states.for_each(|key, _| collections.extend([key.clone()]));
        }
        permissions.scope_terms(&collections)
    }

    /// Translates a condition, reads manifests where the engine needs them, and adds the caller's permissions.
    async fn condition(&self, context: &SearchContext, matches: &Match) -> Result<Condition, Failure> {
        let permissions = scope::filter(self.scope_terms(context))?;
        let mut inputs = TranslationInputs::default();
        for (ends, body) in phrase_end_searches(&phrase_ends(matches)) {
            let response = self.search("/_search", &body, context.deadline).await?;
            let found = find_broad_phrase_ends(&ends, &serde_json::from_slice(&response)?);
            inputs.broad_phrase_ends.extend(found);
        }
        let mut condition =
            Condition { permissions, matches: Query::None, incomplete: false, notices: BTreeSet::new() };
        let mut translated = translate(matches, &inputs)?;
        if let Some(undecided) = translated.candidates.take() {
            let examined = self.examine(context, matches, undecided, &condition.permissions).await?;
            condition.incomplete = examined.is_truncated;
            condition.notices.extend(examined.is_truncated.then(|| TRUNCATED.to_owned()));
            inputs.examined = Some(Arc::clone(&examined.ids));
            translated = translate(matches, &inputs)?;
        }
        condition.matches = translated.query;
        condition.notices.extend(translated.notices);
        if self.index_cache.index().await?.is_outdated {
            condition.incomplete = true;
            condition.notices.insert(OUTDATED.to_owned());
        }
        Ok(condition)
    }

    /// Reads the manifests of candidates that path terms cannot decide. The result is cached for the other requests of
    /// the same search.
    async fn examine(
        &self,
        context: &SearchContext,
        matches: &Match,
        undecided: Query,
        permissions: &Query,
    ) -> Result<Arc<Examination>, Failure> {
        let undecided = Condition {
            permissions: permissions.clone(),
            matches: undecided,
            incomplete: false,
            notices: BTreeSet::new(),
        };
        let key = (context.requested_at, xxh3_128(format!("{matches:?}{}", undecided.filter()).as_bytes()));
        if let Some(examined) = self.examination_cache.lock().get(&key) {
            return Ok(Arc::clone(examined));
        }
        let mut candidates = Lookup::default();
        self.read_all(context, undecided, None, &mut candidates).await?;
        let examined = self.examiner.examine(candidates.values, matches, context.deadline).await;
        let mut examined = examined.map_err(Failure::Store)?;
        examined.is_truncated |= candidates.incomplete;
        let examined = Arc::new(examined);
        self.examination_cache.lock().put(key, Arc::clone(&examined));
        Ok(examined)
    }

    async fn find(
        &self,
        context: &SearchContext,
        matches: &Match,
        request: &TopHitsRequest,
    ) -> Result<TopHits, Failure> {
        let Condition { permissions, matches, incomplete, notices } = self.condition(context, matches).await?;
        let order = Order::new(&request.sort, &request.planning_context)?;
        let counts = counted_fields(request);
        let search = Search {
            matches: &matches,
            permissions: Some(&permissions),
            order: &order,
            after: request.after.as_ref(),
            max_hits: request.max_hits,
            counts: &counts,
            timeout: timeout(context.deadline),
        };
        let body = search.body()?;
        let response = self.search(&Self::path(&body["query"]), &body, context.deadline).await?;
        let mut top = top_hits(request, SearchResponse::parse(&search, &response)?, notices);
        top.incomplete |= incomplete;
        Ok(top)
    }

    async fn count(
        &self,
        context: &SearchContext,
        condition: &Condition,
        aggregation: Value,
        numbers: usize,
    ) -> Result<TermAggregation, Failure> {
        let filter = condition.filter();
        let body = json!({"size": 0, "track_total_hits": false, "query": filter, "aggs": aggregation,
            "timeout": format!("{}ms", timeout(context.deadline).as_millis().max(1))});
        let response = self.search(&Self::path(&filter), &body, context.deadline).await?;
        let (buckets, partial) = parse_buckets(&response)?;
        let sums = buckets.sums(numbers).ok_or(ResponseError::Missing("a sum"))?;
        let (terms, incomplete) = buckets.terms();
        Ok(TermAggregation { terms, sums, incomplete: incomplete || condition.incomplete || !partial.is_empty() })
    }

    async fn count_terms(
        &self,
        context: &SearchContext,
        matches: &Match,
        request: &TermsRequest,
    ) -> Result<TermCounts, Failure> {
        // Of the case-sensitive values, only those of labels can be counted.
        let exact = format!("{}=", Keyword::Label.name());
        let (field, term_prefix) = match request.keyword {
            Keyword::Exact => (fields::labels(), exact.as_str()),
            keyword => (fields::keyword(keyword), ""),
        };
        let Some(prefix) = request.prefix.strip_prefix(term_prefix) else {
            return Ok(TermCounts { incomplete: true, ..TermCounts::default() });
        };
        let condition = self.condition(context, matches).await?;
        let (size, numbers) = (request.limit.unwrap_or(MAX_COUNTED_TERMS), request.sums.as_slice());
        let aggregation = count_terms(&field, prefix, &request.substring, size, numbers);
        let TermAggregation { terms, sums, incomplete } =
            self.count(context, &condition, aggregation, numbers.len()).await?;
        let terms = terms.into_iter().map(|(term, count)| (format!("{term_prefix}{term}"), count));
        let counts = terms.filter(|(term, _)| term.starts_with(&request.prefix) && term.contains(&request.substring));
        Ok(TermCounts {
            counts: counts.collect(),
            notices: rounding_notices(&sums.rounded, numbers).collect(),
            sums: sums_by_term(&sums, term_prefix),
            // Only the most frequent terms were requested.
            incomplete: incomplete && request.limit.is_none(),
        })
    }

    async fn scopes_of(&self, cluster: &ClusterName) -> Result<BTreeSet<String>, Failure> {
        let deadline = Instant::now() + DEFAULT_TIMEOUT;
        let filter = query::terms(fields::SCOPE, vec![cluster.as_str().into()]).filter();
        let aggregation = count_terms(&fields::facet(Facet::Scope), "", "", MAX_SCOPES, &[]);
        let body = json!({"size": 0, "track_total_hits": false, "query": filter, "aggs": aggregation});
        let response = self.search(&Self::path(&filter), &body, deadline).await?;
        let (buckets, partial) = parse_buckets(&response)?;
        match partial.into_iter().next() {
            Some(partial) => Err(Failure::Partial(partial)),
            None => Ok(buckets.terms().0.into_iter().map(|(scope, _)| scope).collect()),
        }
    }
}

/// Terms of an aggregation.
struct TermAggregation {
    terms: Vec<(String, u64)>,
    sums: BucketSums,
    incomplete: bool,
}

/// The sums of each term, whose text begins with `term_prefix`.
fn sums_by_term(sums: &BucketSums, term_prefix: &str) -> TermSums {
    let mut by_term = TermSums::new();
    // Each number has a sum for every term, in the same order.
    for (term, sum) in sums.by_number.iter().flatten() {
        by_term.entry(format!("{term_prefix}{term}")).or_default().push(*sum);
    }
    by_term
}

/// Notices about sums that the engine may have rounded. `rounded` are positions in `numbers`.
fn rounding_notices(rounded: &BTreeSet<usize>, numbers: &[Number]) -> impl Iterator<Item = String> {
    let rounded_numbers = rounded.iter().filter_map(move |nth| numbers.get(*nth));
    rounded_numbers.map(|number| format!("sums of {} are rounded", number.name()))
}

/// The facets to count. The facet of [`TopHitsRequest::sums`] is counted with its sums.
fn counted_fields(request: &TopHitsRequest) -> Vec<CountedField> {
    let counted_field = |facet: &Facet| match &request.sums {
        Some(sums) if sums.facet == *facet => CountedField::FacetWithSums(sums.clone()),
        _ => CountedField::Facet(*facet),
    };
    request.facets.iter().map(counted_field).collect()
}

/// Timeout passed to an engine, so that its partial response arrives before the deadline.
fn timeout(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).mul_f64(0.9)
}

fn partial_notices(partial: &[PartialReason]) -> impl Iterator<Item = String> + '_ {
    partial.iter().map(|partial| format!("{partial}: some hits may be missing"))
}

fn top_hits(request: &TopHitsRequest, response: SearchResponse, mut notices: BTreeSet<String>) -> TopHits {
    let SearchResponse { hits, total, has_more, counts, partial } = response;
    notices.extend(partial_notices(&partial));
    let mut incomplete = !partial.is_empty();
    for (facet, counts) in request.facets.iter().zip(&counts) {
        let field = facet.field();
        if counts.error_bound > 0 {
            incomplete = true;
            notices.insert(format!("counts of {field} may be too low by up to {}", counts.error_bound));
        }
        if counts.other_count > 0 {
            notices.insert(format!("only the {MAX_VALUES} most frequent values of {field} were counted"));
        }
    }
    let remaining = hits.len() as u64 + u64::from(has_more);
    let (mut facets, mut sums) = (Vec::with_capacity(counts.len()), Vec::new());
    for counts in counts {
        facets.push(counts.values);
        let numbers = request.sums.as_ref().map(|sums| sums.numbers.as_slice()).unwrap_or_default();
        notices.extend(rounding_notices(&counts.rounded_sums, numbers));
        sums.extend(counts.sums);
    }
    TopHits { hits, total, remaining, facets, sums, incomplete, notices }
}

#[async_trait]
impl Engine for OpenSearchEngine {
    async fn top_hits(
        &self,
        context: &SearchContext,
        matches: &Match,
        request: &TopHitsRequest,
    ) -> Result<TopHits, Error> {
        self.find(context, matches, request).await.or_else(|failure| {
            let facets = vec![Vec::new(); request.facets.len()];
            Ok(TopHits { facets, incomplete: true, notices: [failure.into_notice()?].into(), ..TopHits::default() })
        })
    }

    async fn ids(&self, context: &SearchContext, matches: &Match) -> Result<Lookup, Error> {
        self.lookup(context, matches, None).await
    }

    async fn keys(&self, context: &SearchContext, matches: &Match, columns: &[Key]) -> Result<Lookup, Error> {
        self.lookup(context, matches, Some(columns)).await
    }

    async fn terms(
        &self,
        context: &SearchContext,
        matches: &Match,
        request: &TermsRequest,
    ) -> Result<TermCounts, Error> {
        self.count_terms(context, matches, request).await.or_else(|failure| {
            failure.into_notice()?;
            Ok(TermCounts { incomplete: true, ..TermCounts::default() })
        })
    }

    async fn scan(
        &self,
        context: &SearchContext,
        matches: &Match,
        request: &TopHitsRequest,
    ) -> Result<Box<dyn Scan>, Error> {
        self.begin_scan(context, matches, request).await.map_err(Failure::into_error)
    }

    async fn scopes(&self, cluster: &ClusterName) -> Result<BTreeSet<String>, Error> {
        self.scopes_of(cluster).await.map_err(Failure::into_error)
    }

    fn evaluates_paths(&self, matches: &Match) -> bool {
        evaluates_paths(matches)
    }

    fn searchable(&self) -> watch::Receiver<Seq> {
        self.searchable.clone()
    }

    fn write_failure(&self) -> Option<String> {
        self.write_failure.borrow().clone()
    }

    fn writer(&self) -> Option<WriterStatus> {
        Some(self.writer.report())
    }

    fn size(&self) -> Option<u64> {
        *self.size.borrow()
    }

    async fn rebuild(&self) -> Result<(), Error> {
        self.writer.rebuild().await.map_err(|error| match error {
            WriterError::Client(error) => error.into(),
            error => Error::text("cannot be rebuilt", error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::sums::SumsRequest;
    use crate::opensearch::aggregations::ValueCounts;
    use rstest::rstest;

    fn response() -> SearchResponse {
        let counts = vec![ValueCounts { values: vec![("Pod".into(), 3)], ..ValueCounts::default() }];
        SearchResponse { hits: Vec::new(), total: 3, has_more: true, counts, partial: Vec::new() }
    }

    #[rstest]
    #[case::complete(response(), false, None)]
    #[case::shards(
        SearchResponse { partial: vec![PartialReason::Shards { responded: 1, total: 2, reasons: Vec::new() }], ..response() },
        true,
        Some("1 of 2 shards of the search engine responded: some hits may be missing")
    )]
    #[case::counted_too_low(
        SearchResponse { counts: vec![ValueCounts { error_bound: 7, ..ValueCounts::default() }], ..response() },
        true,
        Some("counts of kind may be too low by up to 7")
    )]
    #[case::many_values(
        SearchResponse { counts: vec![ValueCounts { other_count: 7, ..ValueCounts::default() }], ..response() },
        false,
        Some("only the 1000 most frequent values of kind were counted")
    )]
    #[case::rounded_sum(
        SearchResponse { counts: vec![ValueCounts { rounded_sums: [1].into(), ..ValueCounts::default() }], ..response() },
        false,
        Some("sums of mem.req are rounded")
    )]
    fn incomplete_responses_have_notices(
        #[case] response: SearchResponse,
        #[case] incomplete: bool,
        #[case] notice: Option<&str>,
    ) {
        let sums = Some(SumsRequest { facet: Facet::Kind, numbers: vec![Number::CpuRequest, Number::MemoryRequest] });
        let request = TopHitsRequest { facets: vec![Facet::Kind], sums, ..TopHitsRequest::total_only() };
        let found = top_hits(&request, response, BTreeSet::new());
        assert_eq!((found.total, found.remaining, found.incomplete), (3, 1, incomplete));
        assert_eq!(found.notices.into_iter().collect::<Vec<_>>(), notice.into_iter().collect::<Vec<_>>());
    }
}
