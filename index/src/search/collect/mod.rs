//! What is told of the matching documents: the best hits, the total and the facets.
//!
//! Rights come first (invariant I9): a document the caller may not read is not counted anywhere.

pub(crate) mod did_you_mean;
pub(crate) mod facets;
pub(crate) mod suggest;

use crate::Error;
use crate::rights::CallerRights;
use crate::search::execute::Sources;
use crate::search::plan::World;
use crate::search::plan::predicate::Match;
use crate::search::plan::sort::{Place, Ranked, Sort, compare};
use crate::search::tantivy::TextIndex;
use crate::search::tantivy::reader::doc_sets::{Matching, Question};
use crate::search::tantivy::reader::facet_counts::{Tally, Tallying, summed};
use crate::search::tantivy::reader::frequent_terms::Wanted;
use crate::search::tantivy::reader::top_hits::Best;
use crate::search::tantivy::segments::Segment;
use crate::search::tantivy::terms::Unfound;
use crate::search::tantivy::values::Values;
use crate::text::columns::Facet;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// What to gather.
#[derive(Clone)]
pub struct Gather {
    pub rights: Arc<Mutex<CallerRights>>,
    /// At most [`crate::search::plan::sort::MOST_COLUMNS`].
    pub sort: Vec<Sort>,
    /// Hits up to here were shown before.
    pub after: Option<Place>,
    /// Hits to keep.
    pub keep: usize,
    pub facets: Vec<Facet>,
    /// Terms that are counted of what was; those of what is are counted by whoever wants them ([`crate::search::tantivy::reader::frequent_terms`]).
    pub terms: Vec<Wanted>,
    /// For orders by what clusters have.
    pub world: Arc<World>,
    pub deadline: Instant,
}

/// What was gathered, from a segment or from all.
#[derive(Debug, Default, PartialEq)]
pub struct Gathered {
    /// Best first.
    pub hits: Vec<Ranked>,
    pub total: u64,
    /// Hits behind those that were shown before.
    pub left: u64,
    pub facets: Vec<Vec<(Arc<str>, u64)>>,
    /// Given up at the deadline: totals are at least what they say.
    pub incomplete: bool,
}

impl Gather {
    /// Nothing but the total.
    pub fn counting(sources: &Sources) -> Self {
        Self {
            rights: Arc::clone(&sources.rights),
            sort: vec![Sort::RELEVANCE],
            after: None,
            keep: 0,
            facets: Vec::new(),
            terms: Vec::new(),
            world: Arc::default(),
            deadline: sources.deadline,
        }
    }

    /// Parts as one.
    pub fn merged(&self, parts: impl IntoIterator<Item = Gathered>) -> Gathered {
        let mut all = Gathered::default();
        for part in parts {
            all.total += part.total;
            all.left += part.left;
            all.incomplete |= part.incomplete;
            all.hits.extend(part.hits);
            if all.facets.is_empty() {
                all.facets = part.facets;
                continue;
            }
            for (into, from) in all.facets.iter_mut().zip(part.facets) {
                add(into, from);
            }
        }
        all.hits.sort_by(|a, b| compare(&a.place, &b.place, &self.sort));
        all.hits.truncate(self.keep);
        all
    }

    /// Asks the text index; returns what is to be said of the answer too.
    pub fn of(&self, text: &TextIndex, matches: &Match) -> Result<(Gathered, BTreeSet<String>), Error> {
        let (snapshot, question) = (text.snapshot(), Question::new(matches, text, self.deadline));
        let parts = text.each(&snapshot, |segment| self.of_segment(segment, &snapshot.values, &question));
        let parts = parts.map_err(|error| Error::text("cannot be searched", error))?;
        let of_facet = |(nth, facet): (usize, &Facet)| {
            summed(parts.iter().filter_map(|(_, facets)| facets.get(nth)), &snapshot.values.of(*facet))
        };
        let facets = self.facets.iter().enumerate().map(of_facet).collect();
        let gathered = self.merged(parts.into_iter().map(|(gathered, _)| gathered));
        Ok((Gathered { facets, ..gathered }, question.notices()))
    }

    fn of_segment(&self, segment: &Segment, values: &Values, question: &Question<'_>) -> tantivy::Result<OfSegment> {
        let late = || Ok((Gathered { incomplete: true, ..Gathered::default() }, Vec::new()));
        let Matching { docs, permitted, scored } = match question.ask(segment, values, &self.rights) {
            Ok(matching) => matching,
            Err(Unfound::Late) => return late(),
            Err(Unfound::Failed(error)) => return Err(error),
        };
        if docs.is_none() {
            return Ok((Gathered::default(), Vec::new()));
        }
        let total = docs.len(segment.parts.max_doc());
        let tallying =
            Tallying { segment, values, facets: &self.facets, rights: &self.rights, deadline: self.deadline };
        let facets = tallying.of(&docs, &permitted);
        let mut gathered = Gathered { total, left: total, incomplete: facets.is_none(), ..Gathered::default() };
        if self.keep > 0 || self.after.is_some() {
            let mut best = Best::new(&segment.parts, values, self)?;
            gathered.incomplete |= !best.offer_all(&docs, &scored, self.deadline);
            // Without a place to go on from, those that were no candidates are left too.
            if self.after.is_some() {
                gathered.left = best.left();
            }
            gathered.hits = best.ranked()?;
        }
        Ok((gathered, facets.unwrap_or_default()))
    }
}

/// Values that are in both are there once.
fn add(into: &mut Vec<(Arc<str>, u64)>, from: Vec<(Arc<str>, u64)>) {
    if into.is_empty() || from.is_empty() {
        into.extend(from);
        return;
    }
    let mut counts: HashMap<Arc<str>, u64> = into.drain(..).collect();
    from.into_iter().for_each(|(value, count)| *counts.entry(value).or_default() += count);
    into.extend(counts);
}

/// What was gathered of a segment, and of its facets how often which value was met.
type OfSegment = (Gathered, Vec<Tally>);
