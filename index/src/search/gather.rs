//! One pass over the matching documents: rights, the best hits, the total and the facets.
//!
//! Rights come first (invariant I9): a document the caller may not read is not counted anywhere. They are decided once
//! per distinct (cluster, resource, namespace) of a segment, not per document.

use super::SortBy;
use super::block::Block;
use crate::rights::CallerRights;
use crate::text::columns::{Facet, Number, SCOPE_SEPARATOR};
use crowsnest_api::names::ClusterName;
use crowsnest_api::rbac::Readable;
use parking_lot::Mutex;
use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Instant;
use tantivy::collector::{Collector, SegmentCollector};
use tantivy::columnar::{Column, StrColumn};
use tantivy::{DocId, Score, SegmentOrdinal, SegmentReader};

/// Scopes of a segment read at once: of more, a search meets few, and reads those.
pub(super) const SCOPES_AT_ONCE: usize = 4096;

/// A facet's column, and how often each of its ordinals was met.
type FacetColumn = (Option<StrColumn>, Vec<u64>);

/// What to gather.
pub struct Gather {
    pub rights: Arc<Mutex<CallerRights>>,
    pub sort: SortBy,
    pub descending: bool,
    /// Hits to keep, skipped ones included.
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
    pub facets: Vec<HashMap<String, u64>>,
    /// Given up at the deadline: totals are at least what they say.
    pub incomplete: bool,
}

/// A hit with what it was ranked by.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranked {
    pub id: u64,
    pub score: f32,
    pub key: Key,
    pub name: String,
}

/// Missing values come last, whatever the direction.
#[derive(Debug, Clone, PartialEq)]
pub enum Key {
    Score,
    Number(Option<i64>),
    Text(Option<String>),
}

impl Collector for Gather {
    type Fruit = Gathered;
    type Child = SegmentGather;

    fn for_segment(&self, _: SegmentOrdinal, segment: &SegmentReader) -> tantivy::Result<SegmentGather> {
        let fast = segment.fast_fields();
        let text = |facet: Facet| fast.str(facet.column());
        let unlimited = self.rights.lock().is_unlimited();
        let scope = if unlimited { None } else { text(Facet::Scope)? };
        let number = scope.as_ref().map_or(0, |column| column.num_terms());
        let scopes = match &scope {
            Some(column) if number <= SCOPES_AT_ONCE => texts_of(column, &(0..number as u64).collect::<Vec<_>>())?,
            _ => Vec::new(),
        };
        let sort = match self.sort {
            SortBy::Relevance => SortColumn::Score,
            SortBy::Number(number) => SortColumn::Number(fast.i64(number.name())?),
            SortBy::Text(facet) => SortColumn::Text(text(facet)?),
        };
        let facets = self.facets.iter().map(|facet| {
            let column = text(*facet)?;
            let counts = vec![0; column.as_ref().map_or(0, |column| column.num_terms())];
            Ok((column, counts))
        });
        Ok(SegmentGather {
            rights: Arc::clone(&self.rights),
            unlimited,
            scope,
            verdicts: vec![None; number],
            scopes,
            ids: fast.u64("id")?,
            names: text(Facet::Name)?,
            sort,
            descending: self.descending,
            most: self.keep,
            best: BinaryHeap::new(),
            facets: facets.collect::<tantivy::Result<_>>()?,
            block: Block::default(),
            total: 0,
            deadline: self.deadline,
            incomplete: false,
        })
    }

    fn requires_scoring(&self) -> bool {
        self.sort == SortBy::Relevance
    }

    fn merge_fruits(&self, segments: Vec<tantivy::Result<Gathered>>) -> tantivy::Result<Gathered> {
        let mut all = Gathered { facets: vec![HashMap::new(); self.facets.len()], ..Gathered::default() };
        for segment in segments {
            let segment = segment?;
            all.total += segment.total;
            all.incomplete |= segment.incomplete;
            all.hits.extend(segment.hits);
            for (into, from) in all.facets.iter_mut().zip(segment.facets) {
                from.into_iter().for_each(|(value, count)| *into.entry(value).or_default() += count);
            }
        }
        all.hits.sort_by(|a, b| compare(a, b, self.descending));
        all.hits.truncate(self.keep);
        Ok(all)
    }
}

fn compare(a: &Ranked, b: &Ranked, descending: bool) -> Ordering {
    fn last<T: Ord>(a: &Option<T>, b: &Option<T>, descending: bool) -> Ordering {
        match (a, b) {
            (Some(a), Some(b)) if descending => b.cmp(a),
            (Some(a), Some(b)) => a.cmp(b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        }
    }
    let by_key = match (&a.key, &b.key) {
        (Key::Number(a), Key::Number(b)) => last(a, b, descending),
        (Key::Text(a), Key::Text(b)) => last(a, b, descending),
        _ => b.score.total_cmp(&a.score),
    };
    by_key.then_with(|| a.name.cmp(&b.name)).then_with(|| a.id.cmp(&b.id))
}

enum SortColumn {
    Score,
    Number(Column<i64>),
    Text(Option<StrColumn>),
}

/// A candidate inside a segment; smaller is better, so the heap's top is the worst kept.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: (bool, u64),
    name: u64,
    id: u64,
    doc: DocId,
    score: u32,
}

/// Gathers one segment.
pub struct SegmentGather {
    rights: Arc<Mutex<CallerRights>>,
    unlimited: bool,
    scope: Option<StrColumn>,
    /// By ordinal of the column, where it has few enough to read them all.
    scopes: Vec<String>,
    /// By ordinal of the column.
    verdicts: Vec<Option<Decided>>,
    ids: Column<u64>,
    names: Option<StrColumn>,
    sort: SortColumn,
    descending: bool,
    /// Hits to keep.
    most: usize,
    best: BinaryHeap<Candidate>,
    facets: Vec<FacetColumn>,
    block: Block,
    total: u64,
    deadline: Instant,
    incomplete: bool,
}

#[derive(Debug, Clone)]
enum Decided {
    Yes,
    No,
    Named(Arc<BTreeSet<String>>),
}

/// Floats in the order of their values, as integers.
fn ordered(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

fn unordered(bits: u32) -> f32 {
    f32::from_bits(if bits >> 31 == 1 { bits & !(1 << 31) } else { !bits })
}

/// The strings of ordinals in ascending order. One by one, each would unpack the block it lies in.
fn texts_of(column: &StrColumn, ordinals: &[u64]) -> std::io::Result<Vec<String>> {
    let mut texts = Vec::with_capacity(ordinals.len());
    let text = |bytes: &[u8]| texts.push(String::from_utf8_lossy(bytes).into_owned());
    column.dictionary().sorted_ords_to_term_cb(ordinals, text)?;
    Ok(texts)
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

impl SegmentGather {
    /// By the ordinal of the document's scope.
    fn may_read(&mut self, scopes: &StrColumn, doc: DocId, scope: Option<u64>) -> bool {
        let Some(ordinal) = scope else { return false };
        let at = ordinal as usize;
        let Some(verdict) = self.verdicts.get_mut(at) else { return false };
        let decided = || match self.scopes.get(at) {
            Some(scope) => decide(&mut self.rights.lock(), scope),
            None => match texts_of(scopes, &[ordinal]).as_deref() {
                Ok([scope]) => decide(&mut self.rights.lock(), scope),
                // What cannot be read is nobody's to see.
                _ => Decided::No,
            },
        };
        match verdict.get_or_insert_with(decided) {
            Decided::Yes => true,
            Decided::No => false,
            Decided::Named(names) => {
                let mut name = String::new();
                let ordinal = first(self.names.as_ref(), doc);
                let column = self.names.as_ref().zip(ordinal);
                let read = column.map(|(column, ordinal)| column.ord_to_str(ordinal, &mut name));
                matches!(read, Some(Ok(true))) && names.contains(&name)
            }
        }
    }

    /// Takes in the documents of the block.
    fn gather(&mut self) {
        let mut block = std::mem::take(&mut self.block);
        if self.incomplete {
            return;
        }
        // What has been found already is told: late is only what comes after it.
        self.incomplete = Instant::now() > self.deadline;
        if !self.unlimited {
            match self.scope.take() {
                Some(scope) => {
                    block.retain(&scope, |doc, ordinal| self.may_read(&scope, doc, ordinal));
                    self.scope = Some(scope);
                }
                None => block.clear(),
            }
        }
        self.total += block.met().len() as u64;
        for (column, counts) in &mut self.facets {
            if let Some(column) = column {
                block.count(column, counts);
            }
        }
        block.met().iter().for_each(|(doc, score)| self.keep(*doc, *score));
        block.clear();
        self.block = block;
    }

    /// Keeps a document while it is among the best.
    fn keep(&mut self, doc: DocId, score: Score) {
        let rank = self.rank(doc, score);
        let full = self.best.len() >= self.most;
        if full && self.best.peek().is_none_or(|worst| rank > worst.rank) {
            return;
        }
        let Some(id) = self.ids.first(doc) else { return };
        let name = first(self.names.as_ref(), doc).unwrap_or(u64::MAX);
        let candidate = Candidate { rank, name, id, doc, score: ordered(score) };
        if !full {
            self.best.push(candidate);
        } else if self.best.peek().is_some_and(|worst| candidate < *worst) {
            self.best.pop();
            self.best.push(candidate);
        }
    }

    fn rank(&self, doc: DocId, score: Score) -> (bool, u64) {
        let directed = |value: u64| if self.descending { !value } else { value };
        match &self.sort {
            // Best first is descending.
            SortColumn::Score => (false, u64::from(!ordered(score))),
            SortColumn::Number(column) => match column.first(doc) {
                Some(value) => (false, directed((value as u64) ^ (1 << 63))),
                None => (true, 0),
            },
            SortColumn::Text(column) => match first(column.as_ref(), doc) {
                Some(ordinal) => (false, directed(ordinal)),
                None => (true, 0),
            },
        }
    }
}

fn decide(rights: &mut CallerRights, scope: &str) -> Decided {
    let mut parts = scope.split(SCOPE_SEPARATOR);
    let (Some(cluster), Some(resource), Some(namespace)) = (parts.next(), parts.next(), parts.next()) else {
        return Decided::No;
    };
    let (Ok(cluster), Some((group, resource))) = (ClusterName::parse(cluster), resource.split_once('/')) else {
        return Decided::No;
    };
    match rights.verdict(&cluster, group, resource, namespace) {
        Readable::All => Decided::Yes,
        Readable::Nothing => Decided::No,
        Readable::Named(names) => Decided::Named(Arc::new(names)),
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
        let Self { best, sort, names, facets, total, incomplete, .. } = self;
        let mut names = first_texts(names.as_ref(), best.iter().map(|candidate| candidate.doc))?;
        let mut keys = match &sort {
            SortColumn::Text(column) => first_texts(column.as_ref(), best.iter().map(|candidate| candidate.doc))?,
            _ => HashMap::new(),
        };
        let hits = best.into_iter().map(|candidate| Ranked {
            id: candidate.id,
            score: unordered(candidate.score),
            name: names.remove(&candidate.doc).unwrap_or_default(),
            key: match &sort {
                SortColumn::Score => Key::Score,
                SortColumn::Number(column) => Key::Number(column.first(candidate.doc)),
                SortColumn::Text(_) => Key::Text(keys.remove(&candidate.doc)),
            },
        });
        let hits = hits.collect();
        let facets = facets.into_iter().map(|(column, counts)| {
            let Some(column) = column else { return Ok(HashMap::new()) };
            let counted = counts.into_iter().enumerate().filter(|(_, count)| *count > 0);
            let (ordinals, counts): (Vec<u64>, Vec<u64>) = counted.map(|(at, count)| (at as u64, count)).unzip();
            Ok(texts_of(&column, &ordinals)?.into_iter().zip(counts).collect())
        });
        Ok(Gathered { hits, total, facets: facets.collect::<std::io::Result<_>>()?, incomplete })
    }
}

/// Numbers hits can be sorted by.
pub fn number_named(field: &str) -> Option<Number> {
    let name = match field {
        "age" | "created" => "created",
        other => other,
    };
    Number::ALL.iter().copied().find(|number| number.name() == name)
}
