//! Live search: after the current hits, sends changes of matching objects.
//!
//! Follows the tail, so changes are sent without waiting for the text index. Lookups of the plan (relations, ages,
//! permissions) and the counts are refreshed every [`REFRESH_INTERVAL`].

use crate::authorization::decision::permits;
use crate::collect::TopHitsRequest;
use crate::collect::facets::Counts;
use crate::document::Document;
use crate::document::columns::Facet;
use crate::execute::evaluate::DocumentEvaluator;
use crate::execute::{find_with_terms, resolve_relations};
use crate::hydrate::Stage;
use crate::plan::TimeScope;
use crate::plan::predicate::Match;
use crate::{FacetCounts, Hit, Planned, SearchEvent, SearchRequest, Searcher};
use crowsnest_apimachinery::rbac::Reading;
use crowsnest_store::ingest::without_secret_values;
use crowsnest_store::record::ChangeKind;
use crowsnest_store::{Change, Error, Follower, Object};
use futures::Stream;
use futures::stream::try_unfold;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Minimum interval between refreshes while objects change.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of hits whose removal is reported.
const MOST_FOLLOWED: usize = 10_000;
/// Maximum duration. Then the client has to authenticate and be authorized again.
const LONGEST: Duration = Duration::from_secs(600);

/// An event of a live search.
#[derive(Debug, Clone)]
pub enum LiveEvent {
    /// An event of the initial answer.
    Answer(SearchEvent),
    /// A new or changed hit.
    Changed(Box<Hit>),
    /// An object that is no longer a hit: it was deleted, no longer matches, or may no longer be read. Only its
    /// name may be shown.
    Left(Object),
    /// Updated counts.
    Counts { total: u64, facets: Vec<FacetCounts>, groups: Option<FacetCounts> },
    /// Too many changes to send them individually; the client has to search again.
    FellBehind,
}

impl Searcher {
    /// Answers a search and then sends changes. Ends after the answer if the query is about another time.
    pub fn live(&self, request: SearchRequest) -> impl Stream<Item = Result<LiveEvent, Error>> + Send + 'static {
        // Starts at the state of the text index, so that no change is missed.
        let follower = self.inner.tail.follow(*self.inner.engine.searchable().borrow());
        let stage = Stage::Requested(Box::new((self.clone(), request.clone())));
        let following = Following {
            searcher: self.clone(),
            request,
            follower,
            matches: Match::None,
            looked: None,
            changed: false,
            hits: BTreeSet::new(),
            ends: tokio::time::Instant::now() + LONGEST,
        };
        try_unfold((Some(stage), following, VecDeque::new()), next)
    }
}

type State = (Option<Stage>, Following, VecDeque<LiveEvent>);

async fn next((stage, mut following, mut waiting): State) -> Result<Option<(LiveEvent, State)>, Error> {
    if let Some(stage) = stage {
        if let Some((event, stage)) = stage.next().await? {
            if let SearchEvent::Hits(hits) = &event {
                following.hits.extend(hits.iter().map(|hit| hit.object.record.id));
            }
            return Ok(Some((LiveEvent::Answer(event), (Some(stage), following, waiting))));
        }
        if !following.goes_on().await {
            return Ok(None);
        }
    }
    while waiting.is_empty() {
        match following.more().await? {
            Some(events) => waiting.extend(events),
            None => return Ok(None),
        }
    }
    Ok(waiting.pop_front().map(|event| (event, (None, following, waiting))))
}

struct Following {
    searcher: Searcher,
    request: SearchRequest,
    follower: Follower,
    matches: Match,
    /// Time of the last plan lookup.
    looked: Option<Instant>,
    /// Objects have changed since.
    changed: bool,
    hits: BTreeSet<u64>,
    ends: tokio::time::Instant,
}

impl Following {
    async fn goes_on(&self) -> bool {
        matches!(self.searcher.planned(&self.request).await.0.plan.scope, TimeScope::Now)
    }

    /// The next events; None when the cache stops.
    async fn more(&mut self) -> Result<Option<Vec<LiveEvent>>, Error> {
        if self.looked.is_none() {
            self.look().await?;
        }
        let anew = self.looked.map_or(REFRESH_INTERVAL, |looked| REFRESH_INTERVAL.saturating_sub(looked.elapsed()));
        let changes = tokio::select! {
            changes = self.follower.next() => changes,
            () = tokio::time::sleep_until(self.ends) => return Ok(None),
            () = tokio::time::sleep(anew), if self.changed => return self.counts().await.map(Some),
        };
        match changes {
            None => Ok(None),
            Some(Ok(changes)) => {
                let mut events = self.convert_changes(&changes).await?;
                // A changed object may affect relations of others.
                self.changed |= !changes.is_empty();
                if self.changed && self.looked.is_none_or(|looked| looked.elapsed() >= REFRESH_INTERVAL) {
                    events.extend(self.counts().await?);
                }
                Ok(Some(events))
            }
            Some(Err(_)) => {
                self.follower.skip_to(self.searcher.latest());
                self.looked = None;
                Ok(Some(vec![LiveEvent::FellBehind]))
            }
        }
    }

    async fn look(&mut self) -> Result<(), Error> {
        let (planned, sources) = self.searcher.planned(&self.request).await;
        self.matches = resolve_relations(&sources, planned.plan.matches).await?;
        self.looked = Some(Instant::now());
        Ok(())
    }

    async fn counts(&mut self) -> Result<Vec<LiveEvent>, Error> {
        self.look().await?;
        self.changed = false;
        let (Planned { plan, facet_request, world, .. }, sources) = self.searcher.planned(&self.request).await;
        let request = TopHitsRequest { facets: facet_request.columns(), ..TopHitsRequest::total() };
        let found = find_with_terms(&sources, plan, request, &facet_request.terms()).await?;
        let Counts { facets, groups, .. } = facet_request.counts(&sources, &world, &found).await?;
        Ok(vec![LiveEvent::Counts { total: found.top.total, facets, groups }])
    }

    /// Converts changes to events, with current permissions.
    async fn convert_changes(&mut self, changes: &[Arc<Change>]) -> Result<Vec<LiveEvent>, Error> {
        let deadline = Instant::now() + self.request.deadline;
        let mut rights = self.searcher.rights_of(&self.request.caller, deadline).await;
        let mut events = Vec::new();
        for change in changes {
            let (object, id) = (&change.object, change.object.record.id);
            let document = Document::of(object)?;
            let scope = document.facets.iter().find(|(facet, _)| *facet == Facet::Scope);
            let scope = scope.map(|(_, scope)| scope.as_str()).unwrap_or_default();
            let there = change.kind != ChangeKind::Deleted;
            let readable = there && permits(&mut rights, Reading::Listing, scope, &object.record.key.name);
            let mut evaluated = DocumentEvaluator::new(&document);
            if readable && evaluated.holds(&self.matches) {
                if self.hits.len() < MOST_FOLLOWED {
                    self.hits.insert(id);
                }
                let (score, reasons) = (evaluated.score(&self.matches), evaluated.reasons(&self.matches));
                let object = without_secret_values(object)?.into_owned();
                let hit = Hit { object, was: None, score, reasons };
                events.push(LiveEvent::Changed(Box::new(hit)));
            } else if self.hits.remove(&id) {
                events.push(LiveEvent::Left(object.clone()));
            }
        }
        Ok(events)
    }
}
