//! Collects the top hits of a segment in the requested order.

use crate::collect::TopHitsRequest;
use crate::document::columns::Facet;
use crate::plan::sort::{ClusterProperty, MAX_COLUMNS, Rank, RankedHit, Sort, SortBy, SortPosition};
use crate::tantivy::doc_set::{DocSet, difference, intersection};
use crate::tantivy::segments::SegmentData;
use crate::tantivy::values::{FacetValues, NONE};
use std::collections::{BinaryHeap, HashMap};
use std::ops::Bound;
use std::time::Instant;
use tantivy::columnar::{Column, StrColumn};
use tantivy::{DocId, Score};

/// Maximum number of [`Classes`], which group documents of equal score.
const MAX_CLASSES: usize = 32;
/// Number of consecutive documents between checks of the deadline.
const DEADLINE_CHECK_BLOCK: usize = 1_024;

/// Source of a document's values in one sort column.
enum SortColumn {
    Score,
    Number(Column<i64>),
    Text(Option<StrColumn>),
    Cluster(ClusterRanking),
}

/// Order of clusters by one of their properties.
struct ClusterRanking {
    /// Distinct values of the property in ascending order.
    texts: Vec<String>,
    /// Index of each cluster's value in `texts`, by the cluster's number in [`FacetValues`].
    ordinals: Vec<Option<u64>>,
}

impl ClusterRanking {
    fn new(property: ClusterProperty, request: &TopHitsRequest, values: &FacetValues) -> Self {
        let clusters = request.planning_context.clusters.iter();
        let text_by_cluster: HashMap<&str, &str> =
            clusters.filter_map(|cluster| Some((cluster.name.as_str(), property.value_of(cluster)?))).collect();
        let mut texts: Vec<String> = text_by_cluster.values().map(|text| (*text).to_owned()).collect();
        texts.sort_unstable();
        texts.dedup();
        let names = values.column(Facet::Cluster);
        let ordinal = |number: u32| {
            let text = text_by_cluster.get(&**names.text(number)?)?;
            texts.iter().position(|other| other == text).map(|index| index as u64)
        };
        let ordinals = (0..u32::try_from(names.count()).unwrap_or(NONE)).map(ordinal).collect();
        Self { texts, ordinals }
    }

    fn ordinal(&self, cluster: u32) -> Option<u64> {
        self.ordinals.get(cluster as usize).copied().flatten()
    }
}

/// Sort key of one column: missing values last, then ascending.
type SortKey = (bool, u64);

/// A document with its position in the order of hits. Better hits are smaller, so the top of the heap is the worst kept
/// hit. Ordinals are doubled, so that values that do not occur in the segment fall between two of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: [SortKey; MAX_COLUMNS],
    /// Doubled ordinal of the name.
    name: u64,
    id: u64,
    doc: DocId,
    /// The score in the form of [`to_ordered_bits`].
    score_bits: u32,
}

/// Collects the best hits of one segment.
pub struct TopHitsCollector<'s> {
    data: &'s SegmentData,
    /// Sort columns; true: descending.
    sort: Vec<(SortColumn, bool)>,
    by_relevance: bool,
    /// Last hit of the previous page.
    after: Option<Candidate>,
    /// Number of hits to keep.
    limit: usize,
    best: BinaryHeap<Candidate>,
    remaining: u64,
}

/// Maps floats to integers of the same order.
fn to_ordered_bits(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

fn from_ordered_bits(bits: u32) -> f32 {
    f32::from_bits(if bits >> 31 == 1 { bits & !(1 << 31) } else { !bits })
}

fn to_ordered_integer(value: i64) -> u64 {
    (value as u64) ^ (1 << 63)
}

/// Doubles an ordinal: the even numbers are for values that lie between two ordinals.
fn double_ordinal(ordinal: u64) -> u64 {
    2 * ordinal + 1
}

/// Position of a string among the doubled ordinals of a column; between two of them if the column lacks it.
fn position(column: Option<&StrColumn>, text: &str) -> tantivy::Result<u64> {
    let Some(column) = column else { return Ok(0) };
    let dictionary = column.dictionary();
    if let Some(ordinal) = dictionary.term_ord(text)? {
        return Ok(double_ordinal(ordinal));
    }
    let next = dictionary.term_bounds_to_ord(Bound::Included(text), Bound::Unbounded)?;
    Ok(match next.0 {
        Bound::Included(ordinal) | Bound::Excluded(ordinal) => ordinal.saturating_mul(2),
        Bound::Unbounded => u64::MAX,
    })
}

/// Returns the first string of each document.
fn first_texts(
    column: Option<&StrColumn>,
    docs: impl Iterator<Item = DocId>,
) -> std::io::Result<HashMap<DocId, String>> {
    let Some(column) = column else { return Ok(HashMap::new()) };
    let mut found: Vec<(u64, DocId)> = docs.filter_map(|doc| Some((first_ordinal(Some(column), doc)?, doc))).collect();
    found.sort_unstable();
    let mut ordinals: Vec<u64> = found.iter().map(|(ordinal, _)| *ordinal).collect();
    ordinals.dedup();
    let texts = read_texts(column, &ordinals)?;
    let text = |ordinal: u64| ordinals.binary_search(&ordinal).ok().and_then(|at| texts.get(at).cloned());
    Ok(found.into_iter().filter_map(|(ordinal, doc)| Some((doc, text(ordinal)?))).collect())
}

/// Ordinal of a document's first string.
fn first_ordinal(column: Option<&StrColumn>, doc: DocId) -> Option<u64> {
    column.and_then(|column| column.ords().first(doc))
}

fn sort_key(value: u64, descending: bool) -> SortKey {
    (false, if descending { !value } else { value })
}

impl<'s> TopHitsCollector<'s> {
    pub fn new(data: &'s SegmentData, values: &FacetValues, request: &TopHitsRequest) -> tantivy::Result<Self> {
        let fast = data.reader.fast_fields();
        let column = |sort: &Sort| {
            let column = match sort.by {
                SortBy::Relevance => SortColumn::Score,
                SortBy::Number(number) => SortColumn::Number(fast.i64(number.name())?),
                SortBy::Text(facet) => SortColumn::Text(fast.str(facet.column())?),
                SortBy::Cluster(property) => SortColumn::Cluster(ClusterRanking::new(property, request, values)),
            };
            Ok((column, sort.descending))
        };
        let sort = request.sort.iter().take(MAX_COLUMNS).map(column).collect::<tantivy::Result<Vec<_>>>()?;
        let by_relevance = matches!(sort.as_slice(), [(SortColumn::Score, _)]);
        let best = BinaryHeap::new();
        let mut collector = Self { data, sort, by_relevance, after: None, limit: request.max_hits, best, remaining: 0 };
        collector.after = request.after.as_ref().map(|after| collector.bound(after)).transpose()?;
        Ok(collector)
    }

    /// Number of hits after the previous page. On the first page, documents that were skipped are not counted.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Offers documents with their scores. Returns false after the deadline.
    pub fn offer_all(&mut self, docs: &DocSet, scored: &[(DocSet, Score)], deadline: Instant) -> bool {
        let classes = Classes::new(docs, scored, self.data.max_doc());
        let in_time = || Instant::now() <= deadline;
        // Highest scores first, because lower ones can often be skipped.
        for (class, score) in &classes.all {
            if !self.accepts(score + classes.max_extra_score()) {
                continue;
            }
            let late = if self.should_walk_names(class, &classes) {
                !self.walk_names(class, *score, in_time)
            } else {
                let mut late = false;
                class.for_each_block(self.data.max_doc(), |block| {
                    block.iter().for_each(|doc| self.offer(*doc, score + classes.extra_score(*doc)));
                    late = !in_time();
                    !late
                });
                late
            };
            if late {
                return false;
            }
        }
        true
    }

    /// True if a hit with this score can still be among the best.
    fn accepts(&self, score: Score) -> bool {
        let better = |worst: &Candidate| to_ordered_bits(score) >= worst.score_bits;
        !self.by_relevance
            || self.after.is_some()
            || self.best.len() < self.limit
            || self.best.peek().is_some_and(better)
    }

    /// True if, for documents of equal score, walking in name order finds the best ones sooner than visiting all.
    fn should_walk_names(&self, class: &DocSet, classes: &Classes<'_>) -> bool {
        let (max_doc, all) = (u64::from(self.data.max_doc()), class.len(self.data.max_doc()));
        let expected = (self.limit as u64).saturating_mul(max_doc) / all.max(1);
        self.by_relevance && self.after.is_none() && classes.rest.is_empty() && expected.saturating_mul(4) < all
    }

    /// Offers documents in name order until no other can be among the best. Returns false after the deadline.
    fn walk_names(&mut self, class: &DocSet, score: Score, in_time: impl Fn() -> bool) -> bool {
        let mut last = None;
        for (nth, doc) in self.data.names.sorted().iter().enumerate() {
            if nth % DEADLINE_CHECK_BLOCK == DEADLINE_CHECK_BLOCK - 1 && !in_time() {
                return false;
            }
            if !class.contains(*doc) {
                continue;
            }
            let name = self.data.column(Facet::Name).first(*doc);
            // Several documents may have the same name.
            if last != Some(name)
                && self.best.len() >= self.limit
                && self.best.peek().is_none_or(|worst| {
                    (worst.score_bits, self.name_position(*doc)) > (to_ordered_bits(score), worst.name)
                })
            {
                return true;
            }
            last = Some(name);
            self.offer(*doc, score);
        }
        true
    }

    fn cluster(&self, doc: DocId) -> u32 {
        self.data.column(Facet::Cluster).first(doc)
    }

    /// Doubled ordinal of a document's name in the segment; the maximum for a document without a name.
    fn name_position(&self, doc: DocId) -> u64 {
        match self.data.column(Facet::Name).first(doc) {
            NONE => u64::MAX,
            ordinal => double_ordinal(ordinal.into()),
        }
    }

    /// Keeps a document if it is among the best.
    fn offer(&mut self, doc: DocId, score: Score) {
        let name = self.name_position(doc);
        let full = self.best.len() >= self.limit;
        if self.by_relevance && self.after.is_none() && full {
            let worse = |worst: &Candidate| (worst.score_bits, name) > (to_ordered_bits(score), worst.name);
            if self.best.peek().is_none_or(worse) {
                return;
            }
        }
        let rank = self.rank(doc, score);
        let worse = |worst: &Candidate| (rank, name) > (worst.rank, worst.name);
        if self.after.is_none() && full && self.best.peek().is_none_or(worse) {
            return;
        }
        let Some(id) = self.data.ids.first(doc) else { return };
        let candidate = Candidate { rank, name, id, doc, score_bits: to_ordered_bits(score) };
        if self.after.is_some_and(|after| candidate <= after) {
            return;
        }
        self.remaining += 1;
        if !full {
            self.best.push(candidate);
        } else if self.best.peek().is_some_and(|worst| candidate < *worst) {
            self.best.pop();
            self.best.push(candidate);
        }
    }

    /// Converts a position in the order of all segments to a bound in this segment.
    fn bound(&self, cursor: &SortPosition) -> tantivy::Result<Candidate> {
        let mut rank = [(false, 0); MAX_COLUMNS];
        for ((key, (column, descending)), value) in rank.iter_mut().zip(&self.sort).zip(&cursor.ranks) {
            *key = match (column, value) {
                (SortColumn::Score, Rank::Score(score)) => (false, u64::from(!to_ordered_bits(*score))),
                (SortColumn::Number(_), Rank::Number(Some(number))) => {
                    sort_key(to_ordered_integer(*number), *descending)
                }
                (SortColumn::Text(column), Rank::Text(Some(text))) => {
                    sort_key(position(column.as_ref(), text)?, *descending)
                }
                (SortColumn::Cluster(ranking), Rank::Text(Some(text))) => {
                    // A value that no cluster has any more lies between two others.
                    let bound = match ranking.texts.binary_search(text) {
                        Ok(index) => double_ordinal(index as u64),
                        Err(next) => 2 * next as u64,
                    };
                    sort_key(bound, *descending)
                }
                _ => (true, 0),
            };
        }
        let name = match self.data.names.search(&cursor.name) {
            Ok(ordinal) => double_ordinal(ordinal.into()),
            Err(next) => 2 * u64::from(next),
        };
        Ok(Candidate { rank, name, id: cursor.id, doc: DocId::MAX, score_bits: u32::MAX })
    }

    fn rank(&self, doc: DocId, score: Score) -> [SortKey; MAX_COLUMNS] {
        let mut rank = [(false, 0); MAX_COLUMNS];
        for (key, (column, descending)) in rank.iter_mut().zip(&self.sort) {
            let value = match column {
                // Higher scores are first in either direction.
                SortColumn::Score => Some((false, u64::from(!to_ordered_bits(score)))),
                SortColumn::Number(column) => {
                    column.first(doc).map(|value| sort_key(to_ordered_integer(value), *descending))
                }
                SortColumn::Text(column) => {
                    first_ordinal(column.as_ref(), doc).map(|ordinal| sort_key(double_ordinal(ordinal), *descending))
                }
                SortColumn::Cluster(ranking) => {
                    ranking.ordinal(self.cluster(doc)).map(|ordinal| sort_key(double_ordinal(ordinal), *descending))
                }
            };
            *key = value.unwrap_or((true, 0));
        }
        rank
    }

    /// Returns the kept hits, unsorted, with their positions in the order of all segments.
    pub fn into_hits(self) -> tantivy::Result<Vec<RankedHit>> {
        let hits = self.best.iter().map(|hit| (hit.doc, hit.id, from_ordered_bits(hit.score_bits)));
        self.to_hits(&hits.collect::<Vec<_>>())
    }

    /// Converts documents with their ids and scores to hits with positions in the order of all segments.
    fn to_hits(&self, docs: &[(DocId, u64, Score)]) -> tantivy::Result<Vec<RankedHit>> {
        let texts = self.sort.iter().map(|(column, _)| match column {
            SortColumn::Text(column) => first_texts(column.as_ref(), docs.iter().map(|(doc, ..)| *doc)),
            _ => Ok(HashMap::new()),
        });
        let texts = texts.collect::<std::io::Result<Vec<_>>>()?;
        let hit = |(doc, id, score): &(DocId, u64, Score)| {
            let ranks = self.sort.iter().zip(&texts).map(|((column, _), texts)| match column {
                SortColumn::Score => Rank::Score(*score),
                SortColumn::Number(column) => Rank::Number(column.first(*doc)),
                SortColumn::Text(_) => Rank::Text(texts.get(doc).cloned()),
                SortColumn::Cluster(ranking) => {
                    let ordinal = ranking.ordinal(self.cluster(*doc));
                    Rank::Text(ordinal.and_then(|ordinal| ranking.texts.get(ordinal as usize).cloned()))
                }
            });
            let name = self.data.names.get(self.data.column(Facet::Name).first(*doc));
            let position = SortPosition { ranks: ranks.collect(), name: name.unwrap_or_default().to_owned(), id: *id };
            RankedHit { position, score: *score, ended_by: None }
        };
        Ok(docs.iter().map(hit).collect())
    }

    /// Returns the documents after the previous page, sorted, up to the limit.
    pub fn sort(&self, docs: &[(DocId, Score)]) -> Vec<(DocId, Score)> {
        let candidate = |(doc, score): &(DocId, Score)| {
            let (rank, name, id) = (self.rank(*doc, *score), self.name_position(*doc), self.data.ids.first(*doc)?);
            Some(Candidate { rank, name, id, doc: *doc, score_bits: to_ordered_bits(*score) })
        };
        let is_after = |candidate: &Candidate| self.after.is_none_or(|after| *candidate > after);
        let mut all: Vec<Candidate> = docs.iter().filter_map(candidate).filter(is_after).collect();
        if (1..all.len()).contains(&self.limit) {
            all.select_nth_unstable(self.limit - 1);
        }
        all.truncate(self.limit);
        all.sort_unstable();
        all.into_iter().map(|candidate| (candidate.doc, from_ordered_bits(candidate.score_bits))).collect()
    }

    /// Converts documents to hits with positions in the order of all segments; keeps the order of the documents.
    pub fn hits_in_order(&self, docs: &[(DocId, Score)]) -> tantivy::Result<Vec<RankedHit>> {
        let with_id = docs.iter().filter_map(|(doc, score)| Some((*doc, self.data.ids.first(*doc)?, *score)));
        self.to_hits(&with_id.collect::<Vec<_>>())
    }
}

/// Returns the documents with their scores, unsorted.
pub fn with_scores(docs: &DocSet, scored: &[(DocSet, Score)], max_doc: DocId) -> Vec<(DocId, Score)> {
    let classes = Classes::new(docs, scored, max_doc);
    let mut all = Vec::with_capacity(docs.len(max_doc) as usize);
    for (class, score) in &classes.all {
        class.for_each_block(max_doc, |block| {
            all.extend(block.iter().map(|doc| (*doc, score + classes.extra_score(*doc))));
            true
        });
    }
    all
}

/// Reads the strings of ascending ordinals in one pass: individual lookups would each decompress a block.
fn read_texts(column: &StrColumn, ordinals: &[u64]) -> std::io::Result<Vec<String>> {
    let mut texts = Vec::with_capacity(ordinals.len());
    let text = |bytes: &[u8]| texts.push(String::from_utf8_lossy(bytes).into_owned());
    column.dictionary().sorted_ords_to_term_cb(ordinals, text)?;
    Ok(texts)
}

/// Documents grouped by their total score.
struct Classes<'q> {
    all: Vec<(DocSet, Score)>,
    /// Sets that would create too many classes; their scores are added for each document.
    rest: &'q [(DocSet, Score)],
}

impl<'q> Classes<'q> {
    fn new(docs: &DocSet, mut scored: &'q [(DocSet, Score)], max_doc: DocId) -> Self {
        let mut all = vec![(docs.clone(), 0.0)];
        while let [(set, weight), rest @ ..] = scored
            && all.len() < MAX_CLASSES
        {
            scored = rest;
            let mut parts = Vec::with_capacity(2 * all.len());
            for (class, score) in all {
                // Most sets contain all matching documents or few of them.
                if set.is_superset(&class) {
                    parts.push((class, score + weight));
                    continue;
                }
                let matching_docs = intersection(&[class.clone(), set.clone()]);
                if matching_docs.is_empty() {
                    parts.push((class, score));
                    continue;
                }
                parts.push((difference(class, set, max_doc), score));
                parts.push((matching_docs, score + weight));
            }
            all = parts;
        }
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        Self { all, rest: scored }
    }

    /// Additional score of a document beyond its class.
    fn extra_score(&self, doc: DocId) -> Score {
        self.rest.iter().filter(|(set, _)| set.contains(doc)).fold(0.0, |sum, (_, weight)| sum + weight)
    }

    fn max_extra_score(&self) -> Score {
        self.rest.iter().fold(0.0, |sum, (_, weight)| sum + weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_in_the_order_of_their_floats() {
        let scores = [-1.5, 0.0, 1.0, 40.0, 154.0];
        assert!(
            scores
                .windows(2)
                .all(|pair| to_ordered_bits(pair[0]).cmp(&to_ordered_bits(pair[1])) == std::cmp::Ordering::Less)
        );
        assert!(scores.iter().all(|score| from_ordered_bits(to_ordered_bits(*score)) == *score));
    }
}
