//! One look at documents that a search has to take before it can answer: keys they hold, and their ids.

use super::block::Block;
use super::compile::compile;
use super::matches::Match;
use super::permitted::Permitted;
use super::relations::Objects;
use crate::Error;
use crate::rights::CallerRights;
use crate::text::TextIndex;
use crate::text::columns::Key;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use tantivy::collector::{Collector, SegmentCollector};
use tantivy::columnar::Column;
use tantivy::index::InvertedIndexReader;
use tantivy::schema::{Field, IndexRecordOption};
use tantivy::{BitSet, DocId, Score, SegmentOrdinal, SegmentReader};

/// Numbers one look may find: relations of more objects are followed in part, and the answer says so.
pub const MOST: usize = 200_000;

/// The text index, as one caller may look at it.
pub struct Looking<'t> {
    pub text: &'t TextIndex,
    pub rights: Arc<Mutex<CallerRights>>,
    pub deadline: Instant,
    /// A look found more than it may, or came too late.
    pub cut: bool,
    /// Patterns that could not be taken.
    pub refused: Vec<String>,
}

impl Looking<'_> {
    /// Ids of the readable objects that match.
    pub fn ids(&mut self, matches: &Match) -> Result<BTreeSet<u64>, Error> {
        self.numbers(matches, &["id"])
    }

    /// Terms of a column that begin so, each with how many readable objects that match have it; those nobody has are left
    /// out.
    pub fn terms(&mut self, matches: &Match, field: Field, prefix: &str) -> Result<BTreeMap<String, u64>, Error> {
        let compiled = compile(matches, self.text);
        let (rights, prefix) = (Arc::clone(&self.rights), prefix.to_owned());
        let count = Count { rights, field, prefix, deadline: self.deadline };
        let searcher = self.text.searcher();
        searcher.search(&compiled.query, &count).map_err(|e| Error::text("cannot be searched", e))
    }

    fn numbers(&mut self, matches: &Match, columns: &[&'static str]) -> Result<BTreeSet<u64>, Error> {
        let compiled = compile(matches, self.text);
        self.refused.extend(compiled.refused);
        let look = Look { rights: Arc::clone(&self.rights), columns: columns.to_vec(), deadline: self.deadline };
        let searcher = self.text.searcher();
        let seen = searcher.search(&compiled.query, &look).map_err(|e| Error::text("cannot be searched", e))?;
        self.cut |= seen.cut;
        Ok(seen.numbers)
    }
}

impl Objects for Looking<'_> {
    fn keys(&mut self, matches: &Match, columns: &[Key]) -> Result<BTreeSet<u64>, Error> {
        self.numbers(matches, &columns.iter().map(|key| key.name()).collect::<Vec<_>>())
    }
}

struct Look {
    rights: Arc<Mutex<CallerRights>>,
    columns: Vec<&'static str>,
    deadline: Instant,
}

#[derive(Default)]
struct Seen {
    numbers: BTreeSet<u64>,
    cut: bool,
}

struct SegmentLook {
    permitted: Permitted,
    columns: Vec<Column<u64>>,
    block: Block,
    deadline: Instant,
    seen: Seen,
}

impl Collector for Look {
    type Fruit = Seen;
    type Child = SegmentLook;

    fn for_segment(&self, _: SegmentOrdinal, segment: &SegmentReader) -> tantivy::Result<SegmentLook> {
        let columns = self.columns.iter().map(|name| segment.fast_fields().u64(name));
        Ok(SegmentLook {
            permitted: Permitted::new(segment, &self.rights)?,
            columns: columns.collect::<tantivy::Result<_>>()?,
            block: Block::default(),
            deadline: self.deadline,
            seen: Seen::default(),
        })
    }

    fn requires_scoring(&self) -> bool {
        false
    }

    fn merge_fruits(&self, segments: Vec<Seen>) -> tantivy::Result<Seen> {
        let mut all = Seen::default();
        for segment in segments {
            all.numbers.extend(segment.numbers);
            all.cut |= segment.cut;
        }
        Ok(all)
    }
}

impl SegmentLook {
    fn look(&mut self) {
        self.seen.cut |= self.seen.numbers.len() >= MOST || Instant::now() > self.deadline;
        if !self.seen.cut {
            self.permitted.retain(&mut self.block);
            for column in &self.columns {
                self.seen.numbers.extend(self.block.numbers(column));
            }
        }
        self.block.clear();
    }
}

impl SegmentCollector for SegmentLook {
    type Fruit = Seen;

    fn collect(&mut self, doc: DocId, score: Score) {
        if self.block.add(doc, score) {
            self.look();
        }
    }

    fn harvest(mut self) -> Seen {
        self.look();
        self.seen
    }
}

/// Terms of one segment that are counted at most.
const MOST_TERMS: u64 = 5_000;

struct Count {
    rights: Arc<Mutex<CallerRights>>,
    field: Field,
    prefix: String,
    deadline: Instant,
}

struct SegmentCount {
    permitted: Permitted,
    terms: Arc<InvertedIndexReader>,
    prefix: String,
    block: Block,
    found: BitSet,
    deadline: Instant,
}

impl Collector for Count {
    type Fruit = BTreeMap<String, u64>;
    type Child = SegmentCount;

    fn for_segment(&self, _: SegmentOrdinal, segment: &SegmentReader) -> tantivy::Result<SegmentCount> {
        Ok(SegmentCount {
            permitted: Permitted::new(segment, &self.rights)?,
            terms: segment.inverted_index(self.field)?,
            prefix: self.prefix.clone(),
            block: Block::default(),
            found: BitSet::with_max_value(segment.max_doc()),
            deadline: self.deadline,
        })
    }

    fn requires_scoring(&self) -> bool {
        false
    }

    fn merge_fruits(&self, segments: Vec<tantivy::Result<Self::Fruit>>) -> tantivy::Result<Self::Fruit> {
        let mut all = BTreeMap::new();
        for segment in segments {
            segment?.into_iter().for_each(|(term, count)| *all.entry(term).or_default() += count);
        }
        Ok(all)
    }
}

impl SegmentCount {
    fn look(&mut self) {
        if Instant::now() > self.deadline {
            return self.block.clear();
        }
        self.permitted.retain(&mut self.block);
        for (doc, _) in self.block.met() {
            self.found.insert(*doc);
        }
        self.block.clear();
    }
}

impl SegmentCollector for SegmentCount {
    type Fruit = tantivy::Result<BTreeMap<String, u64>>;

    fn collect(&mut self, doc: DocId, score: Score) {
        if self.block.add(doc, score) {
            self.look();
        }
    }

    fn harvest(mut self) -> Self::Fruit {
        self.look();
        let mut counts = BTreeMap::new();
        let (from, to) = (self.prefix.as_str(), format!("{}\u{10ffff}", self.prefix));
        let range = self.terms.terms().range().ge(from).lt(to).limit(MOST_TERMS);
        let mut stream = range.into_stream()?;
        while stream.advance() {
            if Instant::now() > self.deadline {
                break;
            }
            let mut postings =
                self.terms.read_block_postings_from_terminfo(stream.value(), IndexRecordOption::Basic)?;
            let mut count = 0;
            while !postings.docs().is_empty() {
                count += postings.docs().iter().filter(|doc| self.found.contains(**doc)).count() as u64;
                postings.advance();
            }
            if count > 0 {
                counts.insert(String::from_utf8_lossy(stream.key()).into_owned(), count);
            }
        }
        Ok(counts)
    }
}
