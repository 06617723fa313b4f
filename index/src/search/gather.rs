//! One pass over the matching documents: rights, the best hits, the total and the facets.
//!
//! Rights come first (invariant I9): a document the caller may not read is not counted anywhere.

use super::answer::Sources;
use super::block::Block;
use super::order::{MOST_COLUMNS, Place, Rank, Ranked, Sort, SortBy, compare};
use super::permitted::{Permitted, texts_of};
use crate::rights::CallerRights;
use crate::text::columns::Facet;
use parking_lot::Mutex;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;
use tantivy::collector::{Collector, SegmentCollector};
use tantivy::columnar::{Column, StrColumn};
use tantivy::{DocId, Score, SegmentOrdinal, SegmentReader};

/// A facet's column, and how often each of its ordinals was met.
type FacetColumn = (Option<StrColumn>, Vec<u64>);

/// What to gather.
#[derive(Clone)]
pub struct Gather {
    pub rights: Arc<Mutex<CallerRights>>,
    /// At most [`MOST_COLUMNS`].
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
    pub facets: Vec<HashMap<String, u64>>,
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
        let mut all = Gathered { facets: vec![HashMap::new(); self.facets.len()], ..Gathered::default() };
        for part in parts {
            all.total += part.total;
            all.left += part.left;
            all.incomplete |= part.incomplete;
            all.hits.extend(part.hits);
            for (into, from) in all.facets.iter_mut().zip(part.facets) {
                from.into_iter().for_each(|(value, count)| *into.entry(value).or_default() += count);
            }
        }
        all.hits.sort_by(|a, b| compare(&a.place, &b.place, &self.sort));
        all.hits.truncate(self.keep);
        all
    }
}

impl Collector for Gather {
    type Fruit = Gathered;
    type Child = SegmentGather;

    fn for_segment(&self, _: SegmentOrdinal, segment: &SegmentReader) -> tantivy::Result<SegmentGather> {
        let fast = segment.fast_fields();
        let text = |facet: Facet| fast.str(facet.column());
        let sort = self.sort.iter().take(MOST_COLUMNS).map(|sort| {
            let column = match sort.by {
                SortBy::Relevance => SortColumn::Score,
                SortBy::Number(number) => SortColumn::Number(fast.i64(number.name())?),
                SortBy::Text(facet) => SortColumn::Text(text(facet)?),
            };
            Ok((column, sort.descending))
        });
        let facets = self.facets.iter().map(|facet| {
            let column = text(*facet)?;
            let counts = vec![0; column.as_ref().map_or(0, |column| column.num_terms())];
            Ok((column, counts))
        });
        let mut gather = SegmentGather {
            permitted: Permitted::new(segment, &self.rights)?,
            ids: fast.u64("id")?,
            names: text(Facet::Name)?,
            sort: sort.collect::<tantivy::Result<_>>()?,
            after: None,
            most: self.keep,
            best: BinaryHeap::new(),
            facets: facets.collect::<tantivy::Result<_>>()?,
            block: Block::default(),
            block_names: Vec::new(),
            total: 0,
            left: 0,
            deadline: self.deadline,
            incomplete: false,
        };
        gather.after = self.after.as_ref().map(|after| gather.bound(after)).transpose()?;
        Ok(gather)
    }

    fn requires_scoring(&self) -> bool {
        self.sort.iter().any(|sort| sort.by == SortBy::Relevance)
    }

    fn merge_fruits(&self, segments: Vec<tantivy::Result<Gathered>>) -> tantivy::Result<Gathered> {
        Ok(self.merged(segments.into_iter().collect::<tantivy::Result<Vec<_>>>()?))
    }
}

enum SortColumn {
    Score,
    Number(Column<i64>),
    Text(Option<StrColumn>),
}

/// Of one column: missing ones last, then what is smaller.
type Inside = (bool, u64);

/// A place inside a segment; smaller is better, so the heap's top is the worst kept. Ordinals are doubled: what is not in
/// the segment lies between two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: [Inside; MOST_COLUMNS],
    name: u64,
    id: u64,
    doc: DocId,
    score: u32,
}

/// Gathers one segment.
pub struct SegmentGather {
    permitted: Permitted,
    ids: Column<u64>,
    names: Option<StrColumn>,
    sort: Vec<(SortColumn, bool)>,
    after: Option<Candidate>,
    /// Hits to keep.
    most: usize,
    best: BinaryHeap<Candidate>,
    facets: Vec<FacetColumn>,
    block: Block,
    block_names: Vec<Option<u64>>,
    total: u64,
    left: u64,
    deadline: Instant,
    incomplete: bool,
}

/// Floats in the order of their values, as integers.
fn ordered(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

fn unordered(bits: u32) -> f32 {
    f32::from_bits(if bits >> 31 == 1 { bits & !(1 << 31) } else { !bits })
}

fn numbered(value: i64) -> u64 {
    (value as u64) ^ (1 << 63)
}

/// Where an ordinal lies among those doubled.
fn doubled(ordinal: u64) -> u64 {
    2 * ordinal + 1
}

/// Where a string lies among the doubled ordinals of a column.
fn position(column: Option<&StrColumn>, text: &str) -> tantivy::Result<u64> {
    let Some(column) = column else { return Ok(0) };
    let dictionary = column.dictionary();
    if let Some(ordinal) = dictionary.term_ord(text)? {
        return Ok(doubled(ordinal));
    }
    let next = dictionary.term_bounds_to_ord(Bound::Included(text), Bound::Unbounded)?;
    Ok(match next.0 {
        Bound::Included(ordinal) | Bound::Excluded(ordinal) => ordinal.saturating_mul(2),
        Bound::Unbounded => u64::MAX,
    })
}

/// The first string of each document.
fn first_texts(
    column: Option<&StrColumn>,
    docs: impl Iterator<Item = DocId>,
) -> std::io::Result<HashMap<DocId, String>> {
    let Some(column) = column else { return Ok(HashMap::new()) };
    let mut found: Vec<(u64, DocId)> = docs.filter_map(|doc| Some((first(Some(column), doc)?, doc))).collect();
    found.sort_unstable();
    let mut ordinals: Vec<u64> = found.iter().map(|(ordinal, _)| *ordinal).collect();
    ordinals.dedup();
    let texts = texts_of(column, &ordinals)?;
    let text = |ordinal: u64| ordinals.binary_search(&ordinal).ok().and_then(|at| texts.get(at).cloned());
    Ok(found.into_iter().filter_map(|(ordinal, doc)| Some((doc, text(ordinal)?))).collect())
}

fn first(column: Option<&StrColumn>, doc: DocId) -> Option<u64> {
    column.and_then(|column| column.ords().first(doc))
}

fn directed(value: u64, descending: bool) -> Inside {
    (false, if descending { !value } else { value })
}

impl SegmentGather {
    /// A place of the whole order, as a bound in this segment.
    fn bound(&self, place: &Place) -> tantivy::Result<Candidate> {
        let mut rank = [(false, 0); MOST_COLUMNS];
        for ((into, (column, descending)), value) in rank.iter_mut().zip(&self.sort).zip(&place.ranks) {
            *into = match (column, value) {
                (SortColumn::Score, Rank::Score(score)) => (false, u64::from(!ordered(*score))),
                (SortColumn::Number(_), Rank::Number(Some(number))) => directed(numbered(*number), *descending),
                (SortColumn::Text(column), Rank::Text(Some(text))) => {
                    directed(position(column.as_ref(), text)?, *descending)
                }
                _ => (true, 0),
            };
        }
        let name = position(self.names.as_ref(), &place.name)?;
        Ok(Candidate { rank, name, id: place.id, doc: DocId::MAX, score: u32::MAX })
    }

    /// Takes in the documents of the block.
    fn gather(&mut self) {
        let mut block = std::mem::take(&mut self.block);
        if self.incomplete {
            return;
        }
        // What has been found already is told: late is only what comes after it.
        self.incomplete = Instant::now() > self.deadline;
        self.permitted.retain(&mut block);
        self.total += block.met().len() as u64;
        for (column, counts) in &mut self.facets {
            if let Some(column) = column {
                block.count(column, counts);
            }
        }
        if self.most > 0 || self.after.is_some() {
            let mut names = std::mem::take(&mut self.block_names);
            match &self.names {
                Some(column) => block.firsts(column.ords(), &mut names),
                None => names.clear(),
            }
            for (nth, (doc, score)) in block.met().iter().enumerate() {
                let name = names.get(nth).copied().flatten();
                self.keep(*doc, *score, name.map_or(u64::MAX, doubled));
            }
            self.block_names = names;
        }
        block.clear();
        self.block = block;
    }

    /// Keeps a document while it is among the best.
    fn keep(&mut self, doc: DocId, score: Score, name: u64) {
        let rank = self.rank(doc, score);
        let full = self.best.len() >= self.most;
        let worse = |worst: &Candidate| (rank, name) > (worst.rank, worst.name);
        if self.after.is_none() && full && self.best.peek().is_none_or(worse) {
            return;
        }
        let Some(id) = self.ids.first(doc) else { return };
        let candidate = Candidate { rank, name, id, doc, score: ordered(score) };
        if self.after.is_some_and(|after| candidate <= after) {
            return;
        }
        self.left += 1;
        if !full {
            self.best.push(candidate);
        } else if self.best.peek().is_some_and(|worst| candidate < *worst) {
            self.best.pop();
            self.best.push(candidate);
        }
    }

    fn rank(&self, doc: DocId, score: Score) -> [Inside; MOST_COLUMNS] {
        let mut rank = [(false, 0); MOST_COLUMNS];
        for (into, (column, descending)) in rank.iter_mut().zip(&self.sort) {
            let value = match column {
                // Best first is descending.
                SortColumn::Score => Some((false, u64::from(!ordered(score)))),
                SortColumn::Number(column) => column.first(doc).map(|value| directed(numbered(value), *descending)),
                SortColumn::Text(column) => {
                    first(column.as_ref(), doc).map(|ordinal| directed(doubled(ordinal), *descending))
                }
            };
            *into = value.unwrap_or((true, 0));
        }
        rank
    }

    /// The kept hits with their places in the whole order.
    fn ranked(&mut self) -> std::io::Result<Vec<Ranked>> {
        let best = std::mem::take(&mut self.best).into_vec();
        let docs = || best.iter().map(|candidate| candidate.doc);
        let mut names = first_texts(self.names.as_ref(), docs())?;
        let texts = self.sort.iter().map(|(column, _)| match column {
            SortColumn::Text(column) => first_texts(column.as_ref(), docs()),
            _ => Ok(HashMap::new()),
        });
        let texts = texts.collect::<std::io::Result<Vec<_>>>()?;
        let hit = |candidate: &Candidate| {
            let ranks = self.sort.iter().zip(&texts).map(|((column, _), texts)| match column {
                SortColumn::Score => Rank::Score(unordered(candidate.score)),
                SortColumn::Number(column) => Rank::Number(column.first(candidate.doc)),
                SortColumn::Text(_) => Rank::Text(texts.get(&candidate.doc).cloned()),
            });
            let name = names.remove(&candidate.doc).unwrap_or_default();
            let place = Place { ranks: ranks.collect(), name, id: candidate.id };
            Ranked { place, score: unordered(candidate.score), past: None }
        };
        Ok(best.iter().map(hit).collect())
    }
}

impl SegmentCollector for SegmentGather {
    type Fruit = tantivy::Result<Gathered>;

    fn collect(&mut self, doc: DocId, score: Score) {
        if self.block.add(doc, score) {
            self.gather();
        }
    }

    fn harvest(mut self) -> Self::Fruit {
        self.gather();
        // Without a place to go on from, those that were no candidates are left too.
        let left = if self.after.is_some() { self.left } else { self.total };
        let hits = self.ranked()?;
        let facets = self.facets.into_iter().map(|(column, counts)| {
            let Some(column) = column else { return Ok(HashMap::new()) };
            let counted = counts.into_iter().enumerate().filter(|(_, count)| *count > 0);
            let (ordinals, counts): (Vec<u64>, Vec<u64>) = counted.map(|(at, count)| (at as u64, count)).unzip();
            Ok(texts_of(&column, &ordinals)?.into_iter().zip(counts).collect())
        });
        let facets = facets.collect::<std::io::Result<_>>()?;
        Ok(Gathered { hits, total: self.total, left, facets, incomplete: self.incomplete })
    }
}

/// Parts of an order inside a segment.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_ordered_as_integers() {
        let scores = [-1.5, 0.0, 1.0, 40.0, 154.0];
        assert!(scores.windows(2).all(|pair| ordered(pair[0]).cmp(&ordered(pair[1])) == std::cmp::Ordering::Less));
        assert!(scores.iter().all(|score| unordered(ordered(*score)) == *score));
    }
}
