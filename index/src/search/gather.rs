//! What is told of the matching documents: the best hits, the total and the facets.
//!
//! Rights come first (invariant I9): a document the caller may not read is not counted anywhere.

use super::answer::Sources;
use super::best::Best;
use super::docs::{Matching, Question};
use super::matches::Match;
use super::order::{Place, Ranked, Sort, compare};
use crate::Error;
use crate::rights::CallerRights;
use crate::text::TextIndex;
use crate::text::columns::Facet;
use crate::text::segments::{Ordinals, Segment, Values};
use crate::text::terms::{Docs, Unfound};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;
use tantivy::DocId;

/// Documents looked at together.
const BLOCK: usize = 1_024;

/// What to gather.
#[derive(Clone)]
pub struct Gather {
    pub rights: Arc<Mutex<CallerRights>>,
    /// At most [`super::order::MOST_COLUMNS`].
    pub sort: Vec<Sort>,
    /// Hits up to here were shown before.
    pub after: Option<Place>,
    /// Hits to keep.
    pub keep: usize,
    pub facets: Vec<Facet>,
    pub deadline: Instant,
}

/// What was gathered, from a segment or from all.
#[derive(Debug, Default)]
pub struct Gathered {
    /// Best first.
    pub hits: Vec<Ranked>,
    pub total: u64,
    /// Hits behind those that were shown before.
    pub left: u64,
    pub facets: Vec<HashMap<Arc<str>, u64>>,
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
                from.into_iter().for_each(|(value, count)| *into.entry(value).or_default() += count);
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
        let mut facets = Vec::with_capacity(self.facets.len());
        for (nth, facet) in self.facets.iter().enumerate() {
            let texts = snapshot.values.of(*facet);
            let mut counts = vec![0; texts.end()];
            for (value, count) in parts.iter().filter_map(|(_, facets)| facets.get(nth)).flatten() {
                if let Some(all) = counts.get_mut(*value as usize) {
                    *all += u64::from(*count);
                }
            }
            let counted = (0..).zip(counts).filter(|(_, count)| *count > 0);
            facets.push(counted.filter_map(|(value, count)| Some((Arc::clone(texts.text(value)?), count))).collect());
        }
        let gathered = self.merged(parts.into_iter().map(|(gathered, _)| gathered));
        Ok((Gathered { facets, ..gathered }, question.notices()))
    }

    fn of_segment(&self, segment: &Segment, values: &Values, question: &Question<'_>) -> tantivy::Result<OfSegment> {
        let late = || Ok((Gathered { incomplete: true, ..Gathered::default() }, Vec::new()));
        let Matching { docs, scored } = match question.ask(&segment.parts, values, &self.rights) {
            Ok(matching) => matching,
            Err(Unfound::Late) => return late(),
            Err(Unfound::Failed(error)) => return Err(error),
        };
        if docs.is_none() {
            return Ok((Gathered::default(), Vec::new()));
        }
        let mut facets: Vec<Counts<'_>> =
            self.facets.iter().map(|facet| Counts::new(*facet, segment, values, &docs)).collect();
        let (mut total, mut in_time) = (0, true);
        in_blocks(segment, &docs, |block| {
            total += block.len() as u64;
            facets.iter_mut().for_each(|facet| facet.count(block));
            in_time = Instant::now() <= self.deadline;
            in_time
        });
        let mut gathered = Gathered { total, left: total, incomplete: !in_time, ..Gathered::default() };
        if total > 0 && (self.keep > 0 || self.after.is_some()) {
            let mut best = Best::new(&segment.parts, self)?;
            gathered.incomplete |= !best.offer_all(segment, &docs, &scored, self.deadline);
            // Without a place to go on from, those that were no candidates are left too.
            if self.after.is_some() {
                gathered.left = best.left();
            }
            gathered.hits = best.ranked()?;
        }
        Ok((gathered, facets.into_iter().map(Counts::counted).collect()))
    }
}

/// What was gathered of a segment, and of its facets how often which value was met.
type OfSegment = (Gathered, Vec<Vec<(u32, u32)>>);

/// The living ones among the documents, some at a time, until enough was seen.
pub(super) fn in_blocks(segment: &Segment, docs: &Docs, mut see: impl FnMut(&[DocId]) -> bool) {
    let mut block = [0; BLOCK];
    let mut living = Vec::with_capacity(BLOCK);
    let mut more = |met: &[DocId]| {
        living.clear();
        living.extend(met.iter().copied().filter(|doc| segment.is_alive(*doc)));
        living.is_empty() || see(&living)
    };
    match docs {
        Docs::Some(docs) => {
            let mut docs = docs.iter();
            loop {
                let met = docs.next_many(&mut block);
                if met.is_empty() || !more(met) {
                    return;
                }
            }
        }
        Docs::All => {
            let mut next = 0;
            while next < segment.parts.reader.max_doc() {
                let met = segment.parts.reader.max_doc().min(next + BLOCK as DocId) - next;
                let block = &mut block[..met as usize];
                block.iter_mut().zip(next..).for_each(|(into, doc)| *into = doc);
                if !more(block) {
                    return;
                }
                next += met;
            }
        }
    }
}

/// How often values of a column are met.
struct Counts<'s> {
    column: &'s Ordinals,
    met: Met,
}

enum Met {
    /// One after another: fewer than there are values.
    Few(Vec<u32>),
    /// By value.
    Many(Vec<u32>),
}

impl<'s> Counts<'s> {
    fn new(facet: Facet, segment: &'s Segment, values: &Values, docs: &Docs) -> Self {
        let (all, values) = (segment.parts.reader.max_doc().into(), values.of(facet).end());
        let docs = if let Docs::Some(docs) = docs { docs.len() } else { all };
        let met = if docs < values as u64 / 8 { Met::Few(Vec::new()) } else { Met::Many(vec![0; values]) };
        Self { column: segment.parts.column(facet), met }
    }

    fn count(&mut self, docs: &[DocId]) {
        match (&mut self.met, self.column) {
            (_, Ordinals::Nowhere) => {}
            (Met::Few(met), column) => docs.iter().for_each(|doc| met.extend_from_slice(column.of_doc(*doc))),
            (Met::Many(counts), Ordinals::One(values)) => {
                for doc in docs {
                    let value = values.get(*doc as usize).and_then(|value| counts.get_mut(*value as usize));
                    if let Some(count) = value {
                        *count += 1;
                    }
                }
            }
            (Met::Many(counts), column) => {
                for value in docs.iter().flat_map(|doc| column.of_doc(*doc)) {
                    if let Some(count) = counts.get_mut(*value as usize) {
                        *count += 1;
                    }
                }
            }
        }
    }

    fn counted(self) -> Vec<(u32, u32)> {
        match self.met {
            Met::Few(mut met) => {
                met.sort_unstable();
                let runs = met.chunk_by(|a, b| a == b);
                runs.filter_map(|run| Some((*run.first()?, u32::try_from(run.len()).unwrap_or(u32::MAX)))).collect()
            }
            Met::Many(counts) => (0..).zip(counts).filter(|(_, count)| *count > 0).collect(),
        }
    }
}
