//! What searches keep in memory of the text index's segments: the values of countable columns as small numbers, and the
//! readers of terms. A segment never changes but for its deletions, so this is made once, by whoever commits; read by
//! [`crate::search`].

use super::columns::{Facet, ID};
use super::sets::{Docs, Marks, without};
use memchr::memmem;
use parking_lot::{RwLock, RwLockReadGuard};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;
use tantivy::columnar::{Column, StrColumn};
use tantivy::index::SegmentId;
use tantivy::{DocId, Searcher, SegmentReader};

/// So many values are kept whether anybody has them still or not.
pub const KEPT: usize = 100_000;

/// The text index at a commit.
pub struct Snapshot {
    pub searcher: Searcher,
    pub segments: Vec<Segment>,
    pub values: Arc<Values>,
    /// Values that were somebody's when they were counted last.
    used: usize,
}

/// Documents written together.
pub struct Segment {
    pub parts: Arc<Parts>,
    /// Deleted since.
    dead: Docs,
}

/// Of a segment, what does not change.
pub struct Parts {
    /// As the segment was first seen: its deletions are those of then.
    pub reader: SegmentReader,
    columns: Vec<Ordinals>,
    pub names: Names,
    pub ids: Column<u64>,
    /// Of [`Values`], whose numbers these columns hold.
    generation: u32,
}

/// A segment while its values have the same numbers.
pub type PartsId = (SegmentId, u32);

/// The names of a segment's documents, in their order: each hit is ranked by its name at last.
#[derive(Default)]
pub struct Names {
    ends: Vec<u32>,
    text: String,
    /// Those that are not in lower case, as they would be.
    lowered: Vec<(u32, String)>,
    /// Where the documents of each begin, among all by name.
    starts: Vec<u32>,
    by_name: Vec<DocId>,
}

/// A column's values by document. Those of [`Facet::Name`] are in the order of the names and hold in the segment alone;
/// all others are numbers of [`Values`].
#[derive(Debug, PartialEq, Eq)]
pub enum Ordinals {
    Nowhere,
    /// [`NONE`] where there is none.
    One(Vec<u32>),
    /// From where to where each document's are.
    Many(Vec<u32>, Vec<u32>),
}

/// No value.
pub const NONE: u32 = u32::MAX;

/// Every value of the countable columns, each under one number in all segments.
#[derive(Default)]
pub struct Values {
    facets: Vec<RwLock<Texts>>,
    /// Another one when all are numbered anew.
    generation: u32,
}

/// The values of one column.
#[derive(Default)]
pub struct Texts {
    numbers: HashMap<Arc<str>, u32>,
    texts: Vec<Arc<str>>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let (text, number) = (Arc::<str>::from(text), u32::try_from(self.texts.len()).unwrap_or(NONE));
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        number
    }

    pub fn text(&self, number: u32) -> Option<&Arc<str>> {
        self.texts.get(number as usize)
    }

    /// Numbers are below this.
    pub fn end(&self) -> usize {
        self.texts.len()
    }
}

impl Values {
    fn new(generation: u32) -> Self {
        Self { facets: Facet::ALL.iter().map(|_| RwLock::default()).collect(), generation }
    }

    pub fn of(&self, facet: Facet) -> RwLockReadGuard<'_, Texts> {
        self.facets[facet as usize].read()
    }

    fn number(&self) -> usize {
        self.facets.iter().map(|texts| texts.read().end()).sum()
    }
}

fn until(values: &[u32]) -> u32 {
    u32::try_from(values.len()).unwrap_or(NONE)
}

impl Ordinals {
    fn of(column: &StrColumn, docs: DocId, mut number: impl FnMut(u64) -> u32) -> Self {
        let (ords, mut starts, mut values) = (column.ords(), Vec::new(), Vec::with_capacity(docs as usize));
        for doc in 0..docs {
            let mut all = ords.values_for_doc(doc).map(&mut number);
            if !starts.is_empty() {
                values.extend(all);
                starts.push(until(&values));
                continue;
            }
            let (first, second) = (all.next(), all.next());
            if second.is_none() {
                values.push(first.unwrap_or(NONE));
                continue;
            }
            // The first document with several values: those before it have one or none.
            starts.reserve_exact(docs as usize + 1);
            starts.push(0);
            starts.extend(values.iter().scan(0, |until, value| {
                *until += u32::from(*value != NONE);
                Some(*until)
            }));
            values.retain(|value| *value != NONE);
            values.extend(first.into_iter().chain(second).chain(all));
            starts.push(until(&values));
        }
        if starts.is_empty() { Self::One(values) } else { Self::Many(starts, values) }
    }

    /// The first one of a document.
    pub fn first(&self, doc: DocId) -> u32 {
        self.of_doc(doc).first().copied().unwrap_or(NONE)
    }

    /// May hold [`NONE`].
    pub fn of_doc(&self, doc: DocId) -> &[u32] {
        let doc = doc as usize;
        match self {
            Self::Nowhere => &[],
            Self::One(values) => values.get(doc..=doc).unwrap_or_default(),
            Self::Many(starts, values) => match starts.get(doc..doc + 2) {
                Some([from, to]) => values.get(*from as usize..*to as usize).unwrap_or_default(),
                _ => &[],
            },
        }
    }
}

impl Names {
    fn of(column: &StrColumn) -> tantivy::Result<Self> {
        let mut names = Self::default();
        let mut terms = column.dictionary().stream()?;
        while terms.advance() {
            let name = String::from_utf8_lossy(terms.key());
            let lower = name.to_lowercase();
            if lower != name {
                names.lowered.push((until(&names.ends), lower));
            }
            names.text.push_str(&name);
            names.ends.push(u32::try_from(names.text.len()).unwrap_or(u32::MAX));
        }
        names.text.shrink_to_fit();
        Ok(names)
    }

    /// Sorts the documents, by counting.
    fn sort(&mut self, column: &Ordinals, docs: DocId) {
        let place = |doc: DocId| self.ends.len().min(column.first(doc) as usize);
        let mut starts = vec![0_u32; self.ends.len() + 2];
        (0..docs).for_each(|doc| starts[place(doc) + 1] += 1);
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        let (mut next, mut by_name) = (starts.clone(), vec![0; docs as usize]);
        for doc in 0..docs {
            let at = &mut next[place(doc)];
            by_name[*at as usize] = doc;
            *at += 1;
        }
        (self.starts, self.by_name) = (starts, by_name);
    }

    /// Every document, in the order of their names; those without one last.
    pub fn sorted(&self) -> &[DocId] {
        &self.by_name
    }

    fn docs(&self, ordinal: u32) -> &[DocId] {
        match self.starts.get(ordinal as usize..ordinal as usize + 2) {
            Some([from, to]) => self.by_name.get(*from as usize..*to as usize).unwrap_or_default(),
            _ => &[],
        }
    }

    /// Documents whose names, in lower case, hold this.
    pub fn containing(&self, part: &str) -> Docs {
        if part.is_empty() {
            return Docs::All;
        }
        let mut ordinals = Vec::new();
        let (finder, text) = (memmem::Finder::new(part), self.text.as_bytes());
        let (mut from, mut ordinal) = (0, 0);
        while let Some(at) = finder.find(&text[from..]).map(|at| from + at) {
            // Matches come in order, and most names have one.
            ordinal += self.ends[ordinal..].partition_point(|end| *end as usize <= at);
            let end = self.ends[ordinal] as usize;
            if at + part.len() <= end {
                ordinals.push(ordinal as u32);
                from = end;
            } else {
                from = at + 1;
            }
        }
        ordinals.extend(self.lowered.iter().filter(|(_, name)| name.contains(part)).map(|(ordinal, _)| *ordinal));
        let docs = |ordinals: &[u32]| ordinals.iter().map(|ordinal| self.docs(*ordinal).len() as u64).sum();
        let mut marks = Marks::new(until(&self.by_name), docs(&ordinals));
        ordinals.iter().for_each(|ordinal| marks.add(self.docs(*ordinal)));
        marks.done()
    }

    pub fn get(&self, ordinal: u32) -> Option<&str> {
        let end = *self.ends.get(ordinal as usize)?;
        let start = ordinal.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        self.text.get(start as usize..end as usize)
    }

    /// Where a name is, or would be.
    pub fn search(&self, name: &str) -> Result<u32, u32> {
        let (mut from, mut to) = (0, u32::try_from(self.ends.len()).unwrap_or(u32::MAX));
        while from < to {
            let middle = from + (to - from) / 2;
            match self.get(middle).unwrap_or_default().cmp(name) {
                Ordering::Less => from = middle + 1,
                Ordering::Greater => to = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(from)
    }
}

impl Parts {
    fn new(reader: &SegmentReader, values: &Values) -> tantivy::Result<Arc<Self>> {
        let (mut columns, mut names) = (Vec::with_capacity(Facet::ALL.len()), Names::default());
        for (facet, texts) in Facet::ALL.iter().zip(&values.facets) {
            let Some(column) = reader.fast_fields().str(facet.column())? else {
                columns.push(Ordinals::Nowhere);
                continue;
            };
            columns.push(match facet {
                Facet::Name => {
                    names = Names::of(&column)?;
                    Ordinals::of(&column, reader.max_doc(), |ordinal| u32::try_from(ordinal).unwrap_or(NONE))
                }
                _ => {
                    let numbers = numbers(&column, &mut texts.write())?;
                    let number = |ordinal: u64| numbers.get(ordinal as usize).copied().unwrap_or(NONE);
                    Ordinals::of(&column, reader.max_doc(), number)
                }
            });
        }
        names.sort(&columns[Facet::Name as usize], reader.max_doc());
        let (reader, ids, generation) = (reader.clone(), reader.fast_fields().u64(ID)?, values.generation);
        Ok(Arc::new(Self { reader, columns, names, ids, generation }))
    }

    pub fn id(&self) -> PartsId {
        (self.reader.segment_id(), self.generation)
    }

    pub fn max_doc(&self) -> DocId {
        self.reader.max_doc()
    }

    pub fn column(&self, facet: Facet) -> &Ordinals {
        &self.columns[facet as usize]
    }
}

/// By the column's own ordinals.
fn numbers(column: &StrColumn, texts: &mut Texts) -> tantivy::Result<Vec<u32>> {
    let mut numbers = Vec::with_capacity(column.num_terms());
    let mut terms = column.dictionary().stream()?;
    while terms.advance() {
        numbers.push(texts.number(&String::from_utf8_lossy(terms.key())));
    }
    Ok(numbers)
}

impl Segment {
    fn new(parts: Arc<Parts>, reader: &SegmentReader, before: Option<&Segment>) -> Self {
        let known =
            before.map(|before| &before.dead).filter(|dead| dead.len(0) == u64::from(reader.num_deleted_docs()));
        let dead = match (known, reader.alive_bitset()) {
            (Some(dead), _) => dead.clone(),
            (None, None) => Docs::none(),
            (None, Some(alive)) => {
                let mut dead = Marks::new(reader.max_doc(), u64::from(reader.num_deleted_docs()));
                (0..reader.max_doc()).filter(|doc| alive.is_deleted(*doc)).for_each(|doc| dead.add(&[doc]));
                dead.done()
            }
        };
        Self { parts, dead }
    }

    /// Those of the documents that are not deleted.
    pub fn living(&self, docs: Docs) -> Docs {
        without(docs, &self.dead, self.parts.max_doc())
    }
}

impl Snapshot {
    /// What is in memory already of `before` is taken from there; values nobody has any more are forgotten when there are
    /// more of them than of the others, and more than `kept` in all.
    pub fn new(searcher: Searcher, before: Option<&Snapshot>, kept: usize) -> tantivy::Result<Self> {
        if let Some(before) = before {
            let values = Arc::clone(&before.values);
            let next = Self { used: before.used, ..Self::with(searcher.clone(), values, &before.segments)? };
            let all = next.values.number();
            if all <= kept.max(2 * before.used) {
                return Ok(next);
            }
            let used = next.used();
            if all <= kept.max(2 * used) {
                return Ok(Self { used, ..next });
            }
        }
        let generation = before.map_or(0, |before| before.values.generation.wrapping_add(1));
        Self::with(searcher, Arc::new(Values::new(generation)), &[])
    }

    fn with(searcher: Searcher, values: Arc<Values>, before: &[Segment]) -> tantivy::Result<Self> {
        let known: HashMap<SegmentId, &Segment> =
            before.iter().map(|segment| (segment.parts.reader.segment_id(), segment)).collect();
        let mut segments = Vec::with_capacity(searcher.segment_readers().len());
        for reader in searcher.segment_readers() {
            let before = known.get(&reader.segment_id()).copied();
            let parts = match before {
                Some(before) => Arc::clone(&before.parts),
                None => Parts::new(reader, &values)?,
            };
            segments.push(Segment::new(parts, reader, before));
        }
        Ok(Self { searcher, segments, values, used: 0 })
    }

    /// Values that some document has.
    fn used(&self) -> usize {
        let of = |facet: &Facet| {
            let mut used = vec![false; self.values.of(*facet).end()];
            for segment in &self.segments {
                let (Ordinals::One(values) | Ordinals::Many(_, values)) = segment.parts.column(*facet) else {
                    continue;
                };
                for value in values {
                    if let Some(used) = used.get_mut(*value as usize) {
                        *used = true;
                    }
                }
            }
            used.into_iter().filter(|used| *used).count()
        };
        Facet::ALL.iter().filter(|facet| **facet != Facet::Name).map(of).sum()
    }

    /// Documents, with those that are deleted.
    pub fn docs(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.parts.max_doc())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::stored;
    use crate::text::TextIndex;
    use crate::text::document::Document;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use tantivy::{IndexWriter, Term};

    fn values(snapshot: &Snapshot, facet: Facet) -> Vec<Vec<String>> {
        let texts = snapshot.values.of(facet);
        let of = |segment: &Segment, doc: DocId| -> Vec<String> {
            let values = segment.parts.column(facet).of_doc(doc).iter();
            values.filter(|value| **value != NONE).map(|value| texts.text(*value).unwrap().to_string()).collect()
        };
        let living = |segment: &Segment| -> Vec<Vec<String>> {
            (0..segment.parts.reader.max_doc())
                .filter(|doc| segment.living(Docs::All).has(*doc))
                .map(|doc| of(segment, doc))
                .collect()
        };
        let mut all: Vec<Vec<String>> = snapshot.segments.iter().flat_map(living).collect();
        all.sort();
        all
    }

    fn pod(id: u64, images: usize) -> Value {
        let containers: Vec<Value> = (0..images).map(|nth| json!({"image": format!("image-{id}-{nth}")})).collect();
        json!({"kind": "Pod", "metadata": {"name": format!("pod-{id}"), "namespace": format!("team-{id}")},
            "spec": {"containers": containers}})
    }

    #[test]
    fn values_are_those_of_the_documents_while_others_go_and_are_forgotten() {
        let text = TextIndex::in_memory().unwrap();
        let mut writer: IndexWriter = text.writer(15_000_000).unwrap();
        writer.set_merge_policy(Box::new(tantivy::indexer::NoMergePolicy));
        let mut before: Option<Snapshot> = None;
        let mut forgot = 0;
        for round in 0..12_u64 {
            // None, one and several values, in every order.
            let ids = round * 4..round * 4 + 4;
            for id in ids.clone() {
                let document = Document::of(&stored("member1", id, &pod(id, [2, 0, 1, 3][(id + round) as usize % 4])));
                writer.add_document(document.unwrap().to_tantivy(&text.columns)).unwrap();
            }
            if let Some(old) = ids.start.checked_sub(4) {
                for id in old..ids.start {
                    writer.delete_term(Term::from_field_u64(text.columns.id, id));
                }
            }
            writer.commit().unwrap();
            text.reload(&|_, _, _| {}).unwrap();
            let snapshot = Snapshot::new(text.searcher(), before.as_ref(), 10).unwrap();
            let images =
                |id: u64| (0..[2, 0, 1, 3][(id + round) as usize % 4]).map(move |nth| format!("image-{id}-{nth}"));
            let mut expected: Vec<Vec<String>> = ids.clone().map(|id| images(id).collect()).collect();
            expected.sort();
            assert_eq!(values(&snapshot, Facet::Image), expected, "round {round}");
            let mut expected: Vec<Vec<String>> = ids.map(|id| vec![format!("team-{id}")]).collect();
            expected.sort();
            assert_eq!(values(&snapshot, Facet::Namespace), expected, "round {round}");
            forgot += usize::from(before.is_some_and(|before| before.values.number() > snapshot.values.number()));
            before = Some(snapshot);
        }
        assert!(forgot > 0, "nothing was forgotten");
    }

    proptest! {
        #[test]
        fn names_are_found_by_any_part(names in vec("[abA-]{1,6}", 1..40), part in "[ab-]{1,3}") {
            let text = TextIndex::in_memory().unwrap();
            let mut writer: IndexWriter = text.writer(15_000_000).unwrap();
            for (id, name) in (0..).zip(&names) {
                let pod = json!({"kind": "Pod", "metadata": {"name": name, "namespace": "a"}});
                let document = Document::of(&stored("member1", id, &pod)).unwrap();
                writer.add_document(document.to_tantivy(&text.columns)).unwrap();
            }
            writer.commit().unwrap();
            text.reload(&|_, _, _| {}).unwrap();
            let snapshot = text.snapshot();
            let mut found = Vec::new();
            let mut sorted = Vec::new();
            for segment in &snapshot.segments {
                let name = |doc: &DocId| names[segment.parts.ids.first(*doc).unwrap() as usize].clone();
                let docs = segment.parts.names.containing(&part);
                docs.in_blocks(segment.parts.max_doc(), |block| {
                    found.extend(block.iter().map(name));
                    true
                });
                sorted.push(segment.parts.names.sorted().iter().map(name).collect::<Vec<_>>());
            }
            let mut expected: Vec<String> = names.iter().filter(|n| n.to_lowercase().contains(&part)).cloned().collect();
            expected.sort();
            found.sort();
            prop_assert_eq!(found, expected);
            prop_assert!(sorted.iter().all(|names| names.is_sorted()));
            prop_assert_eq!(sorted.iter().flatten().count(), names.len());
        }
    }
}
