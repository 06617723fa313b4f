//! Live search: sends the current hits, then changes of matching objects.
//!
//! Follows the tail, so changes are sent before the text index contains them. While objects change, the plan (with its
//! relations, ages and permissions) and the counts are refreshed every [`REFRESH_INTERVAL`].

use crate::authorization::decision::allows_read;
use crate::collect::TopHitsRequest;
use crate::collect::facets::Counts;
use crate::document::columns::Facet;
use crate::document::{Document, RedactedObject};
use crate::execute::evaluate::DocumentEvaluator;
use crate::execute::{find_with_terms, resolve_relations};
use crate::hydrate::counting::Counting;
use crate::hydrate::{CountOrder, Stage};
use crate::plan::TimeScope;
use crate::plan::predicate::Match;
use crate::{FacetCounts, Hit, Notice, PlannedSearch, SearchEvent, SearchRequest, Searcher};
use crowsnest_apimachinery::rbac::ReadKind;
use crowsnest_store::record::ChangeKind;
use crowsnest_store::{Change, Error, Follower, Object};
use futures::Stream;
use futures::stream::try_unfold;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum interval between refreshes while objects change.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of hits that are remembered, to report their removal.
const MAX_FOLLOWED: usize = 10_000;
/// Maximum duration of a live search. After it, the client has to send the request again and is authenticated again.
const MAX_DURATION: Duration = Duration::from_secs(600);

/// An event of a live search.
#[derive(Debug, Clone)]
pub enum LiveEvent {
    /// An event of the initial response.
    Initial(SearchEvent),
    /// A new or changed hit.
    Changed(Box<Hit>),
    /// An object that is no longer a hit: it was deleted, no longer matches, or may no longer be read. Only its
    /// key may be shown.
    Removed(Object),
    Counts(LiveCounts),
    /// Changes were missed, because there were too many; the client has to search again.
    Lagged,
}

/// Updated counts of a live search.
#[derive(Debug, Clone)]
pub struct LiveCounts {
    pub total: u64,
    /// True if the deadline or a limit was reached: the total and the counts are lower bounds.
    pub incomplete: bool,
    pub facets: Vec<FacetCounts>,
    pub groups: Option<FacetCounts>,
    /// The notices of the query and of these counts. They replace all previous notices.
    pub notices: Vec<Notice>,
}

impl LiveCounts {
    /// The counts, with the notices of the query.
    fn new(total: u64, counts: Counts, mut notices: Vec<Notice>) -> Self {
        let Counts { facets, groups, incomplete, notices: count_notices } = counts;
        notices.extend(count_notices.into_iter().map(Notice::without_position));
        Self { total, incomplete, facets, groups, notices }
    }
}

impl Searcher {
    /// Responds to a search and then sends changes, for at most ten minutes. Ends after the response if the query is
    /// about a past time or about deleted objects.
    pub fn live(&self, request: SearchRequest) -> impl Stream<Item = Result<LiveEvent, Error>> + Send + 'static {
        // Starts at the state of the text index, so that no change is missed.
        let follower = self.inner.cache.tail.follow(*self.inner.engine.searchable().borrow());
        let stage = Stage::Requested(Box::new((self.clone(), request.clone(), CountOrder::AfterHits)));
        let search = LiveSearch {
            searcher: self.clone(),
            request,
            follower,
            matches: Match::None,
            planned_at: None,
            has_changes: false,
            hits: BTreeSet::new(),
            end: tokio::time::Instant::now() + MAX_DURATION,
        };
        try_unfold((Some(stage), search, VecDeque::new()), next)
    }
}

/// The rest of the response, the search that follows it, and events that are ready to be sent.
type State = (Option<Stage>, LiveSearch, VecDeque<LiveEvent>);

async fn next((stage, mut search, mut waiting): State) -> Result<Option<(LiveEvent, State)>, Error> {
    if let Some(stage) = stage {
        if let Some((event, stage)) = stage.next().await? {
            if let SearchEvent::Hits(hits) = &event {
                search.hits.extend(hits.iter().map(|hit| hit.object.record.id));
            }
            return Ok(Some((LiveEvent::Initial(event), (Some(stage), search, waiting))));
        }
        if !search.searches_current_objects().await {
            return Ok(None);
        }
    }
    while waiting.is_empty() {
        match search.next_events().await? {
            Some(events) => waiting.extend(events),
            None => return Ok(None),
        }
    }
    Ok(waiting.pop_front().map(|event| (event, (None, search, waiting))))
}

/// A search whose matching objects are followed.
struct LiveSearch {
    searcher: Searcher,
    request: SearchRequest,
    follower: Follower,
    matches: Match,
    /// Time at which the plan was last resolved; None if it must be resolved before the next event.
    planned_at: Option<Instant>,
    /// True if objects have changed since the counts were sent.
    has_changes: bool,
    /// Record ids of the hits that the client has, at most [`MAX_FOLLOWED`].
    hits: BTreeSet<u64>,
    end: tokio::time::Instant,
}

impl LiveSearch {
    async fn searches_current_objects(&self) -> bool {
        matches!(self.searcher.plan_search(&self.request).await.0.plan.scope, TimeScope::Now)
    }

    /// The next events; None when the cache stops or after [`MAX_DURATION`].
    async fn next_events(&mut self) -> Result<Option<Vec<LiveEvent>>, Error> {
        if self.planned_at.is_none() {
            self.refresh_plan().await?;
        }
        let until_refresh = self
            .planned_at
            .map_or(REFRESH_INTERVAL, |planned_at| REFRESH_INTERVAL.saturating_sub(planned_at.elapsed()));
        let changes = tokio::select! {
            changes = self.follower.next() => changes,
            () = tokio::time::sleep_until(self.end) => return Ok(None),
            () = tokio::time::sleep(until_refresh), if self.has_changes => return self.refresh_counts().await.map(Some),
        };
        match changes {
            None => Ok(None),
            Some(Ok(changes)) => {
                let mut events = self.convert_changes(&changes).await?;
                // A changed object may affect whether objects that are related to it match.
                self.has_changes |= !changes.is_empty();
                if self.has_changes && self.planned_at.is_none_or(|planned_at| planned_at.elapsed() >= REFRESH_INTERVAL)
                {
                    events.extend(self.refresh_counts().await?);
                }
                Ok(Some(events))
            }
            Some(Err(_)) => {
                self.follower.skip_to(self.searcher.latest());
                self.planned_at = None;
                Ok(Some(vec![LiveEvent::Lagged]))
            }
        }
    }

    async fn refresh_plan(&mut self) -> Result<(), Error> {
        let (planned, sources) = self.searcher.plan_search(&self.request).await;
        self.matches = resolve_relations(&sources, planned.plan.matches).await?;
        self.planned_at = Some(Instant::now());
        Ok(())
    }

    async fn refresh_counts(&mut self) -> Result<Vec<LiveEvent>, Error> {
        self.refresh_plan().await?;
        self.has_changes = false;
        let (PlannedSearch { plan, notices, facet_request, planning_context, .. }, sources) =
            self.searcher.plan_search(&self.request).await;
        let _cancel_on_drop = sources.context.cancellation.clone().drop_guard();
        let (facets, sums) = (facet_request.columns(), facet_request.sums_request());
        let request = TopHitsRequest { facets, sums, ..TopHitsRequest::total_only() };
        let found = find_with_terms(&sources, plan, request, &facet_request.terms_requests()).await?;
        let total = found.top.total;
        let counting = Counting { sources, facet_request, planning_context, found, pending: None };
        Ok(vec![LiveEvent::Counts(LiveCounts::new(total, counting.count().await?, notices))])
    }

    /// Converts changes to events, with current permissions.
    async fn convert_changes(&mut self, changes: &[Arc<Change>]) -> Result<Vec<LiveEvent>, Error> {
        let deadline = Instant::now() + self.request.deadline;
        let mut permissions = self.searcher.permissions_of(&self.request.caller, deadline).await;
        let mut events = Vec::new();
        for change in changes {
            let id = change.object.record.id;
            let object = RedactedObject::new(&change.object)?;
            let document = Document::from_redacted(&object)?;
            let scope = document.facets.iter().find(|(facet, _)| *facet == Facet::Scope);
            let scope = scope.map(|(_, scope)| scope.as_str()).unwrap_or_default();
            let exists = change.kind != ChangeKind::Deleted;
            let is_readable =
                exists && allows_read(&mut permissions, ReadKind::Listing, scope, &object.record.key.name);
            let mut evaluator = DocumentEvaluator::new(&document);
            if is_readable && evaluator.is_match(&self.matches) {
                if self.hits.len() < MAX_FOLLOWED {
                    self.hits.insert(id);
                }
                let (score, reasons) = (evaluator.score(&self.matches), evaluator.reasons(&self.matches));
                let hit = Hit { object: object.into_object(), version_end: None, score, reasons };
                events.push(LiveEvent::Changed(Box::new(hit)));
            } else if self.hits.remove(&id) {
                events.push(LiveEvent::Removed(object.into_object()));
            }
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::complete(false, &[], &["the query is odd"])]
    #[case::rounded(false, &["sums of cpu.req are rounded"], &["the query is odd", "sums of cpu.req are rounded"])]
    #[case::incomplete(true, &["a limit was reached"], &["the query is odd", "a limit was reached"])]
    fn counts_include_their_notices(#[case] incomplete: bool, #[case] notices: &[&str], #[case] expected: &[&str]) {
        let notices = notices.iter().map(|notice| (*notice).to_owned()).collect();
        let counts = Counts { incomplete, notices, ..Counts::default() };
        let query_notice = Notice { start: 2, end: 5, message: "the query is odd".to_owned() };
        let LiveCounts { total, incomplete: is_incomplete, notices, .. } =
            LiveCounts::new(7, counts, vec![query_notice.clone()]);
        assert_eq!((total, is_incomplete, notices.first()), (7, incomplete, Some(&query_notice)));
        assert_eq!(notices.iter().map(|notice| notice.message.as_str()).collect::<Vec<_>>(), expected);
    }
}
