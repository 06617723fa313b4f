//! From a plan to the hits: what has to be looked up first (relations, paths, changed fields), those that are there, and
//! those that were.

pub(crate) mod evaluate;
pub(crate) mod history;
pub(crate) mod permits;

use crate::rights::CallerRights;
use crate::search::Was;
use crate::search::collect::{Gather, Gathered};
use crate::search::execute::evaluate::Evaluated;
use crate::search::execute::permits::SearchPermits;
use crate::search::plan::predicate::{Match, Numbers, Test};
use crate::search::plan::relations::{Reach, resolve};
use crate::search::plan::{Asked, Plan};
use crate::search::tantivy::TextIndex;
use crate::search::tantivy::reader::frequent_terms::Before;
use crate::search::tantivy::reader::lookup::Looking;
use crate::search::tantivy::reader::scan::Pass;
use crate::store::{Manifests, Store};
use crate::text::columns::{Number, Word};
use crate::text::document::Document;
use crate::{Error, Object, Seq};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

/// Bodies one search reads to look for a path, and old versions it reads.
pub const MOST_EXAMINED: usize = 50_000;
/// Bodies read at once.
pub(crate) const EXAMINED_AT_ONCE: usize = 500;

const CUT: &str = "not everything was looked at: narrow the query, for instance by kind: or ns:";

/// Everything a search reads, as one caller may.
#[derive(Clone)]
pub(crate) struct Sources {
    pub text: Arc<TextIndex>,
    pub permits: Arc<SearchPermits>,
    pub store: Arc<dyn Store>,
    pub rights: Arc<Mutex<CallerRights>>,
    /// When: whose turn it is depends on it.
    pub asked: Instant,
    pub deadline: Instant,
}

/// What was found.
pub(crate) struct Found {
    pub gathered: Gathered,
    /// The plan with everything looked up, to say why something matched.
    pub matches: Match,
    /// What the engine was asked of what is there.
    pub now: Match,
    /// Of what was, how many have each of the terms that were wanted; nothing where nobody asked for it.
    pub terms: Vec<Before>,
    pub notices: Vec<String>,
}

/// Answers a plan.
pub(crate) async fn find(sources: &Sources, plan: Plan, gather: Gather) -> Result<Found, Error> {
    let Looked { mut search, matches, now, before } = looked_into(sources, plan, &gather).await?;
    let (mut parts, mut terms) = (Vec::new(), Vec::new());
    if let Some(before) = before {
        parts.push(before.gathered);
        terms = before.terms;
    }
    parts.push(search.gathered(now.clone(), gather.clone()).await?);
    let mut gathered = gather.merged(parts);
    gathered.incomplete |= search.notices.contains(CUT);
    Ok(Found { gathered, matches, now, terms, notices: search.notices.into_iter().collect() })
}

/// Begins to tell everything a plan finds, in its order. Nobody is told a part of it: where a bound is met, it fails.
pub(crate) async fn begin(sources: &Sources, plan: Plan, gather: Gather) -> Result<Pass, Error> {
    let Looked { search, now, before, .. } = looked_into(sources, plan, &gather).await?;
    let (text, was) = (Arc::clone(&sources.text), before.map(|before| before.gathered));
    let pass = sources.permits.run(sources.asked, move || Pass::begin(&text, &now, gather, was)).await?;
    if search.notices.contains(CUT) { Err(Error::Incomplete) } else { Ok(pass) }
}

/// A plan with everything looked up, and what it finds of what was.
struct Looked {
    search: Search,
    matches: Match,
    /// What the engine is to be asked of what is there.
    now: Match,
    before: Option<history::Found>,
}

async fn looked_into(sources: &Sources, plan: Plan, gather: &Gather) -> Result<Looked, Error> {
    let mut search = Search { sources: sources.clone(), notices: BTreeSet::new() };
    let matches = search.settled(plan.matches).await?;
    let held = match plan.asked {
        Asked::During(from, _) if from > i64::MIN => happened_since(matches.clone(), from),
        _ => matches.clone(),
    };
    let mut now = search.askable(held.clone()).await?;
    if let Asked::At(at) = plan.asked {
        now = now.and(Match::Number(Number::Changed, None, Some(at)));
    }
    if let Asked::During(_, until) = plan.asked {
        now = now.and(Match::Number(Number::Changed, None, Some(until)));
    }
    let mut before = None;
    if plan.asked != Asked::Now {
        let found = history::found(sources, plan.asked, &held, &now, gather).await?;
        search.cut(found.cut);
        // The text index may not have heard of it yet: nothing is there and deleted.
        now = now.and(Match::Ids(Arc::new(found.ids.clone())).negated());
        before = Some(found);
    }
    Ok(Looked { search, matches, now, before })
}

/// What an event tells was so when it happened, not for as long as the event is kept.
pub(crate) fn happened_since(matches: Match, from: i64) -> Match {
    let event = Match::Word(Word::Kind, Test::Equals("event".to_owned()));
    matches.and(Match::Or(vec![event.negated(), Match::Number(Number::LastSeen, Some(from), None)]))
}

/// A plan with relations and changes looked up, as one object can be asked.
pub(crate) async fn looked_up(sources: &Sources, matches: Match) -> Result<Match, Error> {
    Search { sources: sources.clone(), notices: BTreeSet::new() }.settled(matches).await
}

/// A plan with everything looked up, as an engine can be asked.
pub(crate) async fn settled(sources: &Sources, matches: Match) -> Result<Match, Error> {
    let mut search = Search { sources: sources.clone(), notices: BTreeSet::new() };
    let matches = search.settled(matches).await?;
    search.askable(matches).await
}

struct Search {
    sources: Sources,
    notices: BTreeSet<String>,
}

type Settled<'s> = Pin<Box<dyn Future<Output = Result<Match, Error>> + Send + 's>>;

impl Search {
    fn cut(&mut self, cut: bool) {
        if cut {
            self.notices.insert(CUT.to_owned());
        }
    }

    /// With relations and changed fields looked up, innermost first.
    fn settled(&mut self, matches: Match) -> Settled<'_> {
        Box::pin(async move {
            Ok(match matches {
                Match::And(parts) => Match::And(self.all_settled(parts).await?),
                Match::Or(parts) => Match::Or(self.all_settled(parts).await?),
                Match::Not(inner) => self.settled(*inner).await?.negated(),
                Match::Changed(path) => {
                    let (ids, cut) = history::changed(&self.sources, &path).await?;
                    self.cut(cut);
                    Match::Because("changed.field".to_owned(), path, Box::new(Match::Ids(Arc::new(ids))))
                }
                Match::Reach(reach) => {
                    let mut inner = self.settled(reach.inner().clone()).await?;
                    if inner.needs_bodies() {
                        inner = Match::Ids(self.examined(&inner).await?);
                    }
                    self.followed(reach.with_inner(inner)).await?
                }
                leaf => leaf,
            })
        })
    }

    /// With paths looked up in bodies, as the text index can be asked.
    async fn askable(&mut self, matches: Match) -> Result<Match, Error> {
        Ok(match matches.needs_bodies() {
            true => matches.loosened().and(Match::Ids(self.examined(&matches).await?)),
            false => matches,
        })
    }

    async fn all_settled(&mut self, parts: Vec<Match>) -> Result<Vec<Match>, Error> {
        let mut settled = Vec::with_capacity(parts.len());
        for part in parts {
            settled.push(self.settled(part).await?);
        }
        Ok(settled)
    }

    /// Takes a look in the text index.
    async fn look<T: Send + 'static>(
        &mut self,
        look: impl FnOnce(&mut Looking<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let Sources { text, permits, rights, asked, deadline, .. } = self.sources.clone();
        let (seen, cut, notices) = permits
            .run(asked, move || {
                let mut looking = Looking { text: &text, rights, deadline, cut: false, notices: BTreeSet::new() };
                let seen = look(&mut looking)?;
                Ok((seen, looking.cut, looking.notices))
            })
            .await?;
        self.cut(cut);
        self.notices.extend(notices);
        Ok(seen)
    }

    async fn followed(&mut self, reach: Reach) -> Result<Match, Error> {
        self.look(move |looking| resolve(Match::Reach(Box::new(reach)), looking)).await
    }

    /// Ids of the readable objects whose bodies match, read one after another.
    async fn examined(&mut self, matches: &Match) -> Result<Numbers, Error> {
        let loosened = matches.loosened();
        let candidates = self.look(move |looking| looking.ids(&loosened)).await?;
        let mut ids: Vec<u64> = candidates.into_iter().collect();
        self.cut(ids.len() > MOST_EXAMINED);
        ids.truncate(MOST_EXAMINED);
        let matches = Arc::new(matches.clone());
        let mut found = BTreeSet::new();
        for some in ids.chunks(EXAMINED_AT_ONCE) {
            if Instant::now() > self.sources.deadline {
                self.cut(true);
                break;
            }
            let objects = self.sources.store.by_ids(some, Manifests::Read).await?;
            let matches = Arc::clone(&matches);
            found.extend(self.sources.permits.run(Instant::now(), move || holding(&objects, &matches)).await?);
        }
        Ok(Arc::new(found))
    }

    async fn gathered(&mut self, matches: Match, gather: Gather) -> Result<Gathered, Error> {
        let text = Arc::clone(&self.sources.text);
        let work = move || gather.of(&text, &matches);
        let (gathered, notices) = self.sources.permits.run(self.sources.asked, work).await?;
        self.notices.extend(notices);
        Ok(gathered)
    }
}

fn holding(objects: &[Object], matches: &Match) -> Result<Vec<u64>, Error> {
    let mut ids = Vec::new();
    for object in objects {
        let document = Document::of(object)?;
        if Evaluated::new(&document).holds(matches) {
            ids.push(document.id);
        }
    }
    Ok(ids)
}

/// Objects by id and what ended them, with what to say of them.
pub(crate) type Shown = BTreeMap<(u64, Option<Seq>), (Object, Option<Was>, Document)>;
