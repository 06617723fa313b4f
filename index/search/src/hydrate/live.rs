//! An answer that goes on: after the hits that are there, the changes of what matches, as they come.
//!
//! Follows the tail, so a change is told without waiting for the text index. What is looked up for a plan (relations, ages,
//! rights) is looked up anew every [`ANEW`], and the counts with it.

use crate::authorization::decision::permits;
use crate::collect::TopHitsRequest;
use crate::collect::facets::Counts;
use crate::document::Document;
use crate::document::columns::Facet;
use crate::execute::evaluate::Evaluated;
use crate::execute::{find_with_terms, looked_up};
use crate::hydrate::Stage;
use crate::plan::Asked;
use crate::plan::predicate::Match;
use crate::{FacetCounts, Hit, Planned, SearchEvent, SearchRequest, Searcher};
use crowsnest_apimachinery::rbac::Reading;
use crowsnest_store::record::Happened;
use crowsnest_store::{Change, Error, Follower, Object};
use futures::Stream;
use futures::stream::try_unfold;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks at everything while something changes.
const ANEW: Duration = Duration::from_secs(2);
/// Hits whose leaving is told.
const MOST_FOLLOWED: usize = 10_000;
/// Whoever goes on asks anew after that: who somebody is, and whether they may ask, is looked at when they ask.
const LONGEST: Duration = Duration::from_secs(600);

/// A piece of an answer that goes on.
#[derive(Debug, Clone)]
pub enum LiveEvent {
    /// Of the answer at the beginning.
    Answer(SearchEvent),
    /// A hit that is new or has changed.
    Changed(Box<Hit>),
    /// A hit that is none any more: it was deleted, does not match, or may not be read. Nothing but its name is to be shown.
    Left(Object),
    /// Counts, after changes.
    Counts { total: u64, facets: Vec<FacetCounts>, groups: Option<FacetCounts> },
    /// Too much changed to be told one by one: whoever follows asks anew.
    FellBehind,
}

impl Searcher {
    /// Answers, and goes on with what changes. Ends after the answer when the question is about another time.
    pub fn live(&self, request: SearchRequest) -> impl Stream<Item = Result<LiveEvent, Error>> + Send + 'static {
        // From what the answer knows at least: nothing in between is missed.
        let follower = self.inner.tail.follow(*self.inner.engine.searchable().borrow());
        let stage = Stage::Asked(Box::new((self.clone(), request.clone())));
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
    /// When the plan was looked up last.
    looked: Option<Instant>,
    /// Something changed since.
    changed: bool,
    hits: BTreeSet<u64>,
    ends: tokio::time::Instant,
}

impl Following {
    async fn goes_on(&self) -> bool {
        matches!(self.searcher.planned(&self.request).await.0.plan.asked, Asked::Now)
    }

    /// What comes next; None when the cache stops.
    async fn more(&mut self) -> Result<Option<Vec<LiveEvent>>, Error> {
        if self.looked.is_none() {
            self.look().await?;
        }
        let anew = self.looked.map_or(ANEW, |looked| ANEW.saturating_sub(looked.elapsed()));
        let changes = tokio::select! {
            changes = self.follower.next() => changes,
            () = tokio::time::sleep_until(self.ends) => return Ok(None),
            () = tokio::time::sleep(anew), if self.changed => return self.counts().await.map(Some),
        };
        match changes {
            None => Ok(None),
            Some(Ok(changes)) => {
                let mut events = self.told(&changes).await?;
                // What changed may be what others are related to.
                self.changed |= !changes.is_empty();
                if self.changed && self.looked.is_none_or(|looked| looked.elapsed() >= ANEW) {
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
        self.matches = looked_up(&sources, planned.plan.matches).await?;
        self.looked = Some(Instant::now());
        Ok(())
    }

    async fn counts(&mut self) -> Result<Vec<LiveEvent>, Error> {
        self.look().await?;
        self.changed = false;
        let (Planned { plan, counting, world, .. }, sources) = self.searcher.planned(&self.request).await;
        let request = TopHitsRequest { facets: counting.columns(), ..TopHitsRequest::total() };
        let found = find_with_terms(&sources, plan, request, &counting.terms()).await?;
        let Counts { facets, groups, .. } = counting.counts(&sources, &world, &found).await?;
        Ok(vec![LiveEvent::Counts { total: found.top.total, facets, groups }])
    }

    /// What these changes mean to the answer; rights are those of now.
    async fn told(&mut self, changes: &[Arc<Change>]) -> Result<Vec<LiveEvent>, Error> {
        let deadline = Instant::now() + self.request.deadline;
        let mut rights = self.searcher.rights_of(&self.request.caller, deadline).await;
        let mut events = Vec::new();
        for change in changes {
            let (object, id) = (&change.object, change.object.record.id);
            let document = Document::of(object)?;
            let scope = document.facets.iter().find(|(facet, _)| *facet == Facet::Scope);
            let scope = scope.map(|(_, scope)| scope.as_str()).unwrap_or_default();
            let there = change.happened != Happened::Deleted;
            let readable = there && permits(&mut rights, Reading::Listing, scope, &object.record.key.name);
            let mut evaluated = Evaluated::new(&document);
            if readable && evaluated.holds(&self.matches) {
                if self.hits.len() < MOST_FOLLOWED {
                    self.hits.insert(id);
                }
                let (score, reasons) = (evaluated.score(&self.matches), evaluated.reasons(&self.matches));
                let hit = Hit { object: object.clone(), was: None, score, reasons };
                events.push(LiveEvent::Changed(Box::new(hit)));
            } else if self.hits.remove(&id) {
                events.push(LiveEvent::Left(object.clone()));
            }
        }
        Ok(events)
    }
}
