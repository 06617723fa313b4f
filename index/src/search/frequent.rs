//! The terms of a column that most of some documents have.

use super::look::Looking;
use super::matches::Match;
use crate::Error;
use crate::text::columns::Word;
use crate::text::segments::Segment;
use crate::text::sets::Docs;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use tantivy::index::InvertedIndexReader;
use tantivy::postings::TermInfo;
use tantivy::schema::IndexRecordOption;
use tantivy::{BitSet, DocId};

/// Terms of one segment that are looked at, at most.
const MOST_TERMS: usize = 20_000;
/// Documents of terms that are looked at, at most.
const MOST_POSTINGS: u64 = 4_000_000;
/// Looking a document up in bits is so many times faster than in a set, and making the bits costs about a step for each.
const FASTER: u64 = 16;

/// Terms, each with how many of the documents have it.
pub(super) type Counted = Vec<(String, u64)>;

/// Which terms are wanted.
pub(super) struct Wanted<'w> {
    pub word: Word,
    /// They begin so,
    pub prefix: &'w str,
    /// and this is somewhere in them.
    pub part: &'w str,
    /// The most frequent ones, so many; else all, in their order.
    pub most: Option<usize>,
}

impl Looking<'_> {
    /// Terms that readable objects which match have. Some may be left out, which is noted as cut.
    pub(super) fn terms(&mut self, matches: &Match, wanted: &Wanted<'_>) -> Result<Counted, Error> {
        let deadline = self.deadline;
        let field = self.text.columns.word(wanted.word);
        let met = self.each(matches, |segment, docs| {
            if docs.is_none() {
                return Ok(None);
            }
            let terms = segment.parts.reader.inverted_index(field)?;
            let found = Terms::of(&terms, wanted, deadline)?;
            Ok(Some((Among::new(segment, docs, terms), found)))
        })?;
        let (mut among, mut found) = (Vec::new(), HashMap::<String, Term>::new());
        for (segment, terms) in met.into_iter().flatten() {
            self.cut |= terms.cut;
            for (text, info) in terms.all {
                let term = found.entry(text).or_default();
                term.frequency += u64::from(info.doc_freq);
                term.places.push((among.len(), info));
            }
            among.push(segment);
        }
        let (counted, cut) = counted(&mut among, found, wanted.most, deadline);
        self.cut |= cut;
        counted.map_err(|error| Error::text("cannot be searched", error))
    }
}

/// A term in all segments.
#[derive(Default)]
struct Term {
    /// Documents that have it, deleted and unreadable ones among them: no fewer than are wanted.
    frequency: u64,
    /// By segment.
    places: Vec<(usize, TermInfo)>,
}

/// Counts terms, those of most documents first: once no other can be among the most frequent, the rest is left alone.
/// Whether some were left out though they might have been.
fn counted(
    among: &mut [Among],
    found: HashMap<String, Term>,
    most: Option<usize>,
    deadline: Instant,
) -> (tantivy::Result<Counted>, bool) {
    let mut terms: Vec<(String, Term)> = found.into_iter().collect();
    terms.sort_unstable_by(|(a, x), (b, y)| y.frequency.cmp(&x.frequency).then_with(|| a.cmp(b)));
    let (mut best, mut looked_at, mut cut) = (Vec::<(Reverse<u64>, String)>::new(), 0, false);
    for (text, term) in terms {
        let rank = (Reverse(term.frequency), text);
        if most.is_some_and(|most| best.len() >= most && best.last().is_none_or(|worst| *worst <= rank)) {
            break;
        }
        if looked_at > MOST_POSTINGS || Instant::now() > deadline {
            cut = true;
            break;
        }
        looked_at += term.frequency;
        let mut count = 0;
        for (segment, info) in &term.places {
            count += match among[*segment].count(info) {
                Ok(count) => count,
                Err(error) => return (Err(error), cut),
            };
        }
        if count == 0 {
            continue;
        }
        let rank = (Reverse(count), rank.1);
        if let Some(most) = most {
            let at = best.partition_point(|other| *other < rank);
            best.insert(at, rank);
            best.truncate(most);
        } else {
            best.push(rank);
        }
    }
    (Ok(best.into_iter().map(|(Reverse(count), text)| (text, count)).collect()), cut)
}

/// Terms of a segment.
struct Terms {
    all: Vec<(String, TermInfo)>,
    cut: bool,
}

impl Terms {
    fn of(terms: &InvertedIndexReader, wanted: &Wanted<'_>, deadline: Instant) -> tantivy::Result<Self> {
        let (from, to) = (wanted.prefix, format!("{}\u{10ffff}", wanted.prefix));
        let mut stream = terms.terms().range().ge(from).lt(to).into_stream()?;
        let mut all = Vec::new();
        while stream.advance() {
            if all.len() >= MOST_TERMS || Instant::now() > deadline {
                return Ok(Self { all, cut: true });
            }
            let text = String::from_utf8_lossy(stream.key());
            if text.contains(wanted.part) {
                all.push((text.into_owned(), stream.value().clone()));
            }
        }
        Ok(Self { all, cut: false })
    }
}

/// Documents of a segment, among which those of terms are counted.
struct Among {
    terms: Arc<InvertedIndexReader>,
    docs: Docs,
    max_doc: DocId,
    bits: Option<BitSet>,
    looked_up: u64,
}

impl Among {
    fn new(segment: &Segment, docs: &Docs, terms: Arc<InvertedIndexReader>) -> Self {
        Self { terms, docs: docs.clone(), max_doc: segment.parts.max_doc(), bits: None, looked_up: 0 }
    }

    fn count(&mut self, term: &TermInfo) -> tantivy::Result<u64> {
        let Docs::Some(docs) = &self.docs else { return Ok(term.doc_freq.into()) };
        self.looked_up += u64::from(term.doc_freq);
        if self.bits.is_none() && self.looked_up > docs.len() / FASTER {
            let mut bits = BitSet::with_max_value(self.max_doc);
            for doc in docs.iter() {
                bits.insert(doc);
            }
            self.bits = Some(bits);
        }
        let has = |doc: &&DocId| self.bits.as_ref().map_or_else(|| docs.contains(**doc), |bits| bits.contains(**doc));
        let mut postings = self.terms.read_block_postings_from_terminfo(term, IndexRecordOption::Basic)?;
        let mut count = 0;
        while !postings.docs().is_empty() {
            count += postings.docs().iter().filter(has).count() as u64;
            postings.advance();
        }
        Ok(count)
    }
}
