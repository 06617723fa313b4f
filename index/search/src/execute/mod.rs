//! Executes a plan: resolves relations, paths and changed fields, then searches current objects and earlier versions.

pub(crate) mod evaluate;
pub(crate) mod examine;
pub(crate) mod history;
pub(crate) mod permits;
pub(crate) mod scan;

use crate::VersionEnd;
use crate::collect::terms::{HistoryTerms, TermsRequest};
use crate::collect::{TopHits, TopHitsRequest};
use crate::document::Document;
use crate::document::columns::{Key, Keyword, Number};
use crate::engine::{Engine, Lookup, PendingCounts, SearchContext};
use crate::execute::examine::{Examination, Examiner};
use crate::execute::permits::SearchPermits;
use crate::execute::scan::FullScan;
use crate::paths::closure::closure;
use crate::paths::fleet::FleetGraph;
use crate::paths::traversal::PathLimits;
use crate::plan::predicate::{IdSet, Match, Test};
use crate::plan::relations::{DependencyDirection, RelatedObjectLookup, Relation, resolve};
use crate::plan::{Plan, TimeScope};
use async_trait::async_trait;
use crowsnest_apimachinery::references::CustomRule;
use crowsnest_store::Store;
use crowsnest_store::{Error, Object, Seq};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

/// Notice about a response that is incomplete because a limit was reached.
pub(crate) const TRUNCATED: &str = "not all objects were checked; narrow the query, for example with kind: or ns:";

/// Data sources of one request.
#[derive(Clone)]
pub(crate) struct Sources {
    pub engine: Arc<dyn Engine>,
    pub permits: Arc<SearchPermits>,
    /// Permits of conditions that follow dependencies, which keep many objects in memory.
    pub dependency_permits: Arc<SearchPermits>,
    pub store: Arc<dyn Store>,
    /// Reference rules of the configuration, in addition to those of well-known kinds.
    pub references: Arc<[CustomRule]>,
    pub context: SearchContext,
}

impl Sources {
    /// Sources with another deadline, for a part of the response.
    pub fn with_deadline(&self, deadline: Instant) -> Self {
        Self { context: SearchContext { deadline, ..self.context.clone() }, ..self.clone() }
    }

    fn examiner(&self) -> Examiner {
        Examiner { store: Arc::clone(&self.store), permits: Arc::clone(&self.permits) }
    }
}

/// Results of a plan.
pub(crate) struct SearchResults {
    pub top: TopHits,
    /// The plan's condition with relations resolved, to derive the reasons of hits.
    pub matches: Match,
    /// The condition that the engine evaluated on current objects.
    pub current_matches: Match,
    /// For each terms request, the terms of earlier versions; empty without earlier versions.
    pub terms: HistoryTerms,
    pub notices: Vec<String>,
}

impl SearchResults {
    /// Adds the result of [`PendingCounts`].
    pub fn add_counts(&mut self, counts: TopHits) {
        self.top.add_part(counts);
        self.notices.extend(std::mem::take(&mut self.top.notices));
    }
}

/// Executes a plan without counts of terms.
pub(crate) async fn find(sources: &Sources, plan: Plan, request: TopHitsRequest) -> Result<SearchResults, Error> {
    find_with_terms(sources, plan, request, &[]).await
}

/// Executes a plan and counts terms of earlier versions; those of current objects are counted by
/// [`crate::collect::terms::count_terms`].
pub(crate) async fn find_with_terms(
    sources: &Sources,
    plan: Plan,
    request: TopHitsRequest,
    terms: &[TermsRequest],
) -> Result<SearchResults, Error> {
    let resolved = resolve_plan(sources, plan, &request, terms).await?;
    let current = sources.engine.top_hits(&sources.context, &resolved.current_matches, &request).await?;
    Ok(resolved.into_results(&request, current))
}

/// As [`find_with_terms`], but facets and sums of current objects are computed afterwards; see
/// [`SearchResults::add_counts`].
pub(crate) async fn find_before_counts(
    sources: &Sources,
    plan: Plan,
    request: TopHitsRequest,
    terms: &[TermsRequest],
) -> Result<(SearchResults, PendingCounts), Error> {
    let resolved = resolve_plan(sources, plan, &request, terms).await?;
    let Sources { engine, context, .. } = sources;
    let (current, counts) = engine.hits_before_counts(context, &resolved.current_matches, &request).await?;
    Ok((resolved.into_results(&request, current), counts))
}

/// Starts to read all hits of a plan in order. Fails with [`Error::Incomplete`] if a limit is reached.
pub(crate) async fn begin_scan(sources: &Sources, plan: Plan, request: TopHitsRequest) -> Result<FullScan, Error> {
    let ResolvedPlan { notices, current_matches, history_results, .. } =
        resolve_plan(sources, plan, &request, &[]).await?;
    let scan = sources.engine.scan(&sources.context, &current_matches, &request).await?;
    if notices.contains(TRUNCATED) {
        return Err(Error::Incomplete);
    }
    Ok(FullScan::new(
        scan,
        history_results.map(|history_results| history_results.top.hits).unwrap_or_default(),
        request,
    ))
}

/// A resolved plan with its hits among earlier versions.
struct ResolvedPlan {
    /// Notices about limits that were reached.
    notices: BTreeSet<String>,
    /// The condition with relations resolved.
    matches: Match,
    /// The condition for current objects.
    current_matches: Match,
    history_results: Option<history::HistoryResults>,
}

impl ResolvedPlan {
    /// Merges the results among current objects with those among earlier versions.
    fn into_results(self, request: &TopHitsRequest, current: TopHits) -> SearchResults {
        let Self { mut notices, matches, current_matches, history_results } = self;
        let (mut parts, mut terms) = (Vec::new(), HistoryTerms::new());
        if let Some(history_results) = history_results {
            parts.push(history_results.top);
            terms = history_results.terms;
        }
        parts.push(current);
        let mut top = request.merge(parts);
        notices.append(&mut top.notices);
        top.incomplete |= notices.contains(TRUNCATED);
        SearchResults { top, matches, current_matches, terms, notices: notices.into_iter().collect() }
    }
}

async fn resolve_plan(
    sources: &Sources,
    plan: Plan,
    request: &TopHitsRequest,
    terms: &[TermsRequest],
) -> Result<ResolvedPlan, Error> {
    let mut resolver = ConditionResolver::new(sources);
    let matches = resolver.resolve(plan.matches).await?;
    let condition = match plan.scope {
        TimeScope::During(from, _) if from > i64::MIN => limit_events_since(matches.clone(), from),
        _ => matches.clone(),
    };
    let mut current_matches = resolver.resolve_paths(condition.clone()).await?;
    if let TimeScope::At(at) = plan.scope {
        current_matches = current_matches.and(Match::Number(Number::Changed, None, Some(at)));
    }
    if let TimeScope::During(_, until) = plan.scope {
        current_matches = current_matches.and(Match::Number(Number::Changed, None, Some(until)));
    }
    let mut history_results = None;
    if plan.scope != TimeScope::Now {
        let found = history::search_history(sources, plan.scope, &condition, &current_matches, request, terms).await?;
        resolver.note_truncation(found.is_truncated);
        // The text index may still contain deleted objects.
        current_matches = current_matches.and(Match::Ids(Arc::new(found.ids.clone())).negated());
        history_results = Some(found);
    }
    Ok(ResolvedPlan { notices: resolver.notices, matches, current_matches, history_results })
}

/// Excludes events that were last seen before `from` (Unix seconds), because an event describes the time at which it occurred,
/// not the period for which it is stored.
pub(crate) fn limit_events_since(matches: Match, from: i64) -> Match {
    let event = Match::Keyword(Keyword::Kind, Test::Equals("event".to_owned()));
    matches.and(Match::Or(vec![event.negated(), Match::Number(Number::LastSeen, Some(from), None)]))
}

/// Resolves relations and changed fields of a plan, so that it can be evaluated on one object.
pub(crate) async fn resolve_relations(sources: &Sources, matches: Match) -> Result<Match, Error> {
    ConditionResolver::new(sources).resolve(matches).await
}

/// Resolves a plan completely, so that an engine can evaluate it. Also returns notices about limits that were reached.
pub(crate) async fn resolve_with_notices(
    sources: &Sources,
    matches: Match,
) -> Result<(Match, BTreeSet<String>), Error> {
    let mut resolver = ConditionResolver::new(sources);
    let matches = resolver.resolve(matches).await?;
    let matches = resolver.resolve_paths(matches).await?;
    Ok((matches, resolver.notices))
}

/// Resolves the parts of conditions that engines cannot evaluate, and collects notices about limits that were reached.
struct ConditionResolver {
    sources: Sources,
    notices: BTreeSet<String>,
}

type ResolveFuture<'s> = Pin<Box<dyn Future<Output = Result<Match, Error>> + Send + 's>>;

impl ConditionResolver {
    fn new(sources: &Sources) -> Self {
        Self { sources: sources.clone(), notices: BTreeSet::new() }
    }

    fn note_truncation(&mut self, is_truncated: bool) {
        if is_truncated {
            self.notices.insert(TRUNCATED.to_owned());
        }
    }

    /// Resolves relations and changed fields, innermost first.
    fn resolve(&mut self, matches: Match) -> ResolveFuture<'_> {
        Box::pin(async move {
            Ok(match matches {
                Match::And(parts) => Match::And(self.resolve_all(parts).await?),
                Match::Or(parts) => Match::Or(self.resolve_all(parts).await?),
                Match::Not(inner) => self.resolve(*inner).await?.negated(),
                Match::Changed(path) => {
                    let (ids, is_truncated) = history::find_changed(&self.sources, &path).await?;
                    self.note_truncation(is_truncated);
                    Match::WithReason("changed.field".to_owned(), path, Box::new(Match::Ids(Arc::new(ids))))
                }
                Match::Relation(relation) => {
                    let mut inner = self.resolve(relation.inner().clone()).await?;
                    // Relations are evaluated on current objects. Conditions on paths become ids of current objects, because
                    // earlier versions may have other values at these paths.
                    if inner.needs_bodies() {
                        inner = Match::Ids(self.matching_ids(&inner).await?);
                    }
                    self.resolve_relation(relation.with_inner(inner)).await?
                }
                leaf => leaf,
            })
        })
    }

    /// Resolves a condition for the engine: paths that the engine does not support are evaluated on manifests.
    async fn resolve_paths(&mut self, matches: Match) -> Result<Match, Error> {
        Ok(match self.needs_manifests(&matches) {
            true => matches.without_paths().and(Match::Ids(self.examine(&matches).await?)),
            false => matches,
        })
    }

    /// Ids of the objects that the caller may list and that match a condition with paths.
    async fn matching_ids(&mut self, matches: &Match) -> Result<IdSet, Error> {
        if self.needs_manifests(matches) {
            return self.examine(matches).await;
        }
        let lookup = self.sources.engine.ids(&self.sources.context, matches).await?;
        Ok(Arc::new(self.take_values(lookup)))
    }

    fn needs_manifests(&self, matches: &Match) -> bool {
        matches.needs_bodies() && !self.sources.engine.evaluates_paths(matches)
    }

    async fn resolve_all(&mut self, parts: Vec<Match>) -> Result<Vec<Match>, Error> {
        let mut resolved = Vec::with_capacity(parts.len());
        for part in parts {
            resolved.push(self.resolve(part).await?);
        }
        Ok(resolved)
    }

    /// The ids or keys of a lookup. Adds its notices to those of the resolver.
    fn take_values(&mut self, lookup: Lookup) -> BTreeSet<u64> {
        self.note_truncation(lookup.incomplete);
        self.notices.extend(lookup.notices);
        lookup.values
    }

    async fn resolve_relation(&mut self, relation: Relation) -> Result<Match, Error> {
        resolve(Match::Relation(Box::new(relation)), self).await
    }

    /// Ids of the objects that the caller may list and whose manifests match.
    async fn examine(&mut self, matches: &Match) -> Result<IdSet, Error> {
        let without_paths = matches.without_paths();
        let candidates = self.sources.engine.ids(&self.sources.context, &without_paths).await?;
        let candidates = self.take_values(candidates);
        let examiner = self.sources.examiner();
        let Examination { ids, is_truncated } =
            examiner.examine(candidates, matches, self.sources.context.deadline).await?;
        self.note_truncation(is_truncated);
        Ok(ids)
    }
}

#[async_trait]
impl RelatedObjectLookup for ConditionResolver {
    async fn keys(&mut self, matches: &Match, columns: &[Key]) -> Result<BTreeSet<u64>, Error> {
        let lookup = self.sources.engine.keys(&self.sources.context, matches, columns).await?;
        Ok(self.take_values(lookup))
    }

    async fn closure_ids(
        &mut self,
        matches: &Match,
        direction: DependencyDirection,
        depth: u8,
    ) -> Result<BTreeSet<u64>, Error> {
        let roots = self.sources.engine.ids(&self.sources.context, matches).await?;
        let roots = self.take_values(roots);
        // Kept until the graph is dropped. Inner conditions have been resolved, so no search holds two permits.
        let _permit = self.sources.dependency_permits.acquire(self.sources.context.requested_at).await;
        let mut graph = FleetGraph::new(self.sources.clone(), Arc::default());
        // Only ids are returned.
        graph.max_records = 0;
        let found = closure(&mut graph, roots, direction, depth, &PathLimits::default()).await?;
        self.note_truncation(!found.limits_reached.is_empty() || !graph.limits_reached.is_empty());
        self.notices.extend(found.limits_reached.iter().map(|limit| (*limit).to_owned()));
        self.notices.extend(graph.notices.into_iter().chain(graph.limits_reached));
        Ok(found.reached.into_iter().map(|reached| reached.id).collect())
    }
}

/// Objects with the documents from which reasons are derived, by record id and, for earlier versions, the change that ended the
/// version.
pub(crate) type HydratedObjects = BTreeMap<(u64, Option<Seq>), (Object, Option<VersionEnd>, Document)>;
