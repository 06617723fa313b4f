//! How often which value of a column is met among documents of a segment.
//!
//! Of documents that are most of what a caller may read, those that are missing are counted instead, and taken from what
//! is remembered of all the caller may read: whatever is found, at most half is looked at.

use crate::authorization::CallerRights;
use crate::document::columns::Facet;
use crate::tantivy::doc_set::{Docs, without};
use crate::tantivy::reader::memory::PermittedMemory;
use crate::tantivy::reader::permitted::Permitted;
use crate::tantivy::segments::Segment;
use crate::tantivy::values::{NONE, Ordinals, Texts, Values};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;
use tantivy::DocId;

/// Numbers of values, in ascending order, each with how often it was met.
pub type Tally = Arc<[(u32, u32)]>;

/// What is counted of one segment.
pub(crate) struct Tallying<'s> {
    pub segment: &'s Segment,
    pub values: &'s Values,
    pub facets: &'s [Facet],
    pub rights: &'s Mutex<CallerRights>,
    pub memory: &'s PermittedMemory,
    pub deadline: Instant,
}

impl Tallying<'_> {
    /// Of each facet; `docs` are living ones, all among those that are `permitted`. None when it is too late.
    pub fn of(&self, docs: &Docs, permitted: &Arc<Permitted>) -> Option<Vec<Tally>> {
        let max_doc = self.segment.parts.max_doc();
        if 2 * docs.len(max_doc) <= permitted.docs.len(max_doc) {
            return self.counted(self.facets, docs);
        }
        let all = self.of_permitted(permitted)?;
        let missing = without(permitted.docs.clone(), docs, max_doc);
        if missing.is_none() {
            return Some(all);
        }
        let missing = self.counted(self.facets, &missing)?;
        Some(all.iter().zip(missing).map(|(all, missing)| less(all, &missing)).collect())
    }

    /// Of everything the caller may read, deleted or not.
    pub fn of_permitted(&self, permitted: &Arc<Permitted>) -> Option<Vec<Tally>> {
        let known = permitted.tallies(self.facets);
        let unknown = self.facets.iter().zip(&known).filter(|(_, tally)| tally.is_none()).map(|(facet, _)| *facet);
        let unknown: Vec<Facet> = unknown.collect();
        if unknown.is_empty() {
            return known.into_iter().collect();
        }
        let counted = self.counted(&unknown, &permitted.docs)?;
        permitted.counted(unknown.into_iter().zip(counted));
        // It takes more memory than before.
        self.memory.insert(&self.rights.lock(), self.segment.parts.id(), permitted);
        permitted.tallies(self.facets).into_iter().collect()
    }

    fn counted(&self, facets: &[Facet], docs: &Docs) -> Option<Vec<Tally>> {
        let max_doc = self.segment.parts.max_doc();
        let many = docs.len(max_doc);
        let counts = facets
            .iter()
            .map(|facet| Counted::new(self.segment.parts.column(*facet), self.values.of(*facet).end(), many));
        let mut counts: Vec<Counted<'_>> = counts.collect();
        let mut in_time = true;
        docs.in_blocks(max_doc, |block| {
            counts.iter_mut().for_each(|facet| facet.count(block));
            in_time = Instant::now() <= self.deadline;
            in_time
        });
        in_time.then(|| counts.into_iter().map(Counted::tally).collect())
    }
}

/// One tally without another, whose values are all in it.
fn less(all: &Tally, missing: &Tally) -> Tally {
    let mut missing = missing.iter().peekable();
    let left = all.iter().map(|(value, count)| {
        let gone = missing.next_if(|(other, _)| other == value).map_or(0, |(_, gone)| *gone);
        (*value, count.saturating_sub(gone))
    });
    left.filter(|(_, count)| *count > 0).collect()
}

/// Tallies of segments as one, by their values' texts.
pub(crate) fn summed<'t>(tallies: impl Iterator<Item = &'t Tally>, texts: &Texts) -> Vec<(Arc<str>, u64)> {
    let mut counts = vec![0; texts.end()];
    for (value, count) in tallies.flat_map(|tally| tally.iter()) {
        if let Some(all) = counts.get_mut(*value as usize) {
            *all += u64::from(*count);
        }
    }
    let counted = (0..).zip(counts).filter(|(_, count)| *count > 0);
    counted.filter_map(|(value, count)| Some((Arc::clone(texts.text(value)?), count))).collect()
}

/// While values of a column are met.
struct Counted<'s> {
    column: &'s Ordinals,
    met: Met,
}

enum Met {
    /// One after another: fewer than there are values.
    Few(Vec<u32>),
    /// By value.
    Many(Vec<u32>),
}

impl<'s> Counted<'s> {
    fn new(column: &'s Ordinals, values: usize, docs: u64) -> Self {
        let few = docs < values as u64 / 8;
        Self { column, met: if few { Met::Few(Vec::new()) } else { Met::Many(vec![0; values]) } }
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

    fn tally(self) -> Tally {
        match self.met {
            Met::Few(mut met) => {
                met.retain(|value| *value != NONE);
                met.sort_unstable();
                let runs = met.chunk_by(|a, b| a == b);
                runs.filter_map(|run| Some((*run.first()?, u32::try_from(run.len()).unwrap_or(u32::MAX)))).collect()
            }
            Met::Many(counts) => (0..).zip(counts).filter(|(_, count)| *count > 0).collect(),
        }
    }
}
