//! Queries for the documents that hold any of many terms: what begins so, what contains so, what matches a pattern.
//!
//! Which documents of a segment those are never changes, so it is remembered: a search asked again after a commit, as
//! live ones are, looks only into segments it has not seen.

use std::sync::Arc;
use std::time::Duration;
use tantivy::index::{InvertedIndexReader, SegmentId};
use tantivy::query::{BitSetDocSet, ConstScorer, EmptyScorer, EnableScoring, Explanation, Query, Scorer, Weight};
use tantivy::schema::{Field, IndexRecordOption};
use tantivy::termdict::{TermStreamer, WithoutKeys};
use tantivy::{BitSet, DocId, DocSet, Score, SegmentReader, TantivyError};
use tantivy_fst::{Automaton, Regex};

/// Nobody asks again what was not asked for so long.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// Terms by how they look, in lower case as the dictionary has them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Looks {
    Begins(String),
    /// Begins so, in a column of running text.
    BeginsInText(String),
    Contains(String),
    /// From end to end.
    Matches(String),
}

impl Looks {
    pub fn text(&self) -> &str {
        let (Self::Begins(text) | Self::BeginsInText(text) | Self::Contains(text) | Self::Matches(text)) = self;
        text
    }
}

/// Documents of segments, by what was asked.
pub type Remembered = moka::sync::Cache<(SegmentId, Field, Looks), Arc<BitSet>>;

pub(super) fn remembered(bytes: u64) -> Remembered {
    let size = |(_, _, looks): &(SegmentId, Field, Looks), docs: &Arc<BitSet>| {
        256 + docs.max_value() / 8 + u32::try_from(looks.text().len()).unwrap_or(u32::MAX / 2)
    };
    Remembered::builder().max_capacity(bytes).weigher(size).time_to_idle(REMEMBERED_FOR).build()
}

/// A query for documents by their terms' looks.
#[derive(Clone)]
pub struct Terms {
    field: Field,
    looks: Looks,
    /// Of [`Looks::Matches`].
    regex: Option<Arc<Regex>>,
    remembered: Remembered,
}

impl std::fmt::Debug for Terms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Terms").field(&self.field).field(&self.looks).finish()
    }
}

impl Terms {
    /// Says why a pattern cannot be taken.
    pub fn new(field: Field, looks: Looks, remembered: &Remembered) -> Result<Self, String> {
        let regex = match &looks {
            Looks::Matches(pattern) => Some(Arc::new(Regex::new(pattern).map_err(|error| error.to_string())?)),
            _ => None,
        };
        Ok(Self { field, looks, regex, remembered: remembered.clone() })
    }

    fn find(&self, reader: &SegmentReader) -> tantivy::Result<BitSet> {
        let terms = reader.inverted_index(self.field)?;
        let dictionary = terms.terms();
        let mut docs = BitSet::with_max_value(reader.max_doc());
        let mut between = |from: &str, to: &str| -> tantivy::Result<()> {
            take(&terms, dictionary.range().ge(from).lt(to).without_keys().into_stream()?, &mut docs)
        };
        match (&self.looks, &self.regex) {
            (Looks::BeginsInText(word), _) if !word.is_empty() && word.chars().all(char::is_alphanumeric) => {
                // Every term's first word is a term: that one stands for all in which no letter or digit follows.
                between(word, &format!("{word}\0"))?;
                for (from, to) in [("0", ":"), ("a", "{"), ("\u{80}", "\u{10ffff}")] {
                    between(&format!("{word}{from}"), &format!("{word}{to}"))?;
                }
            }
            (Looks::Begins(start) | Looks::BeginsInText(start), _) => between(start, &format!("{start}\u{10ffff}"))?,
            (Looks::Contains(part), _) => {
                let automaton = Contains::new(part);
                take(&terms, dictionary.search(&automaton).without_keys().into_stream()?, &mut docs)?;
            }
            (Looks::Matches(_), Some(regex)) => {
                take(&terms, dictionary.search(&**regex).without_keys().into_stream()?, &mut docs)?;
            }
            (Looks::Matches(_), None) => {}
        }
        Ok(docs)
    }
}

/// Marks the documents of all terms of the stream.
fn take<A: Automaton>(
    terms: &InvertedIndexReader,
    mut stream: TermStreamer<'_, A, WithoutKeys>,
    docs: &mut BitSet,
) -> tantivy::Result<()>
where
    A::State: Clone,
{
    while stream.advance() {
        let mut postings = terms.read_block_postings_from_terminfo(stream.value(), IndexRecordOption::Basic)?;
        while !postings.docs().is_empty() {
            for doc in postings.docs() {
                docs.insert(*doc);
            }
            postings.advance();
        }
    }
    Ok(())
}

impl Query for Terms {
    fn weight(&self, _: EnableScoring<'_>) -> tantivy::Result<Box<dyn Weight>> {
        Ok(Box::new(self.clone()))
    }
}

impl Weight for Terms {
    fn scorer(&self, reader: &SegmentReader, boost: Score) -> tantivy::Result<Box<dyn Scorer>> {
        let key = (reader.segment_id(), self.field, self.looks.clone());
        let found = self.remembered.try_get_with(key, || self.find(reader).map(Arc::new));
        let docs = found.map_err(|error: Arc<TantivyError>| TantivyError::clone(&error))?;
        if docs.len() == 0 {
            return Ok(Box::new(EmptyScorer));
        }
        Ok(Box::new(ConstScorer::new(BitSetDocSet::from(BitSet::clone(&docs)), boost)))
    }

    fn explain(&self, reader: &SegmentReader, doc: DocId) -> tantivy::Result<Explanation> {
        match self.scorer(reader, 1.0)?.seek(doc) == doc {
            true => Ok(Explanation::new("Terms", 1.0)),
            false => Err(TantivyError::InvalidArgument(format!("document {doc} holds no such term"))),
        }
    }
}

/// Strings that contain another (Knuth, Morris, Pratt): made at once, whatever it is.
struct Contains {
    part: Vec<u8>,
    /// By how much of the part was met: how much of it is met still when the next byte is another.
    shorter: Vec<usize>,
}

impl Contains {
    fn new(part: &str) -> Self {
        let part = part.as_bytes().to_vec();
        let mut shorter = vec![0; part.len()];
        let mut met = 0;
        for at in 1..part.len() {
            while met > 0 && part[at] != part[met] {
                met = shorter[met - 1];
            }
            met += usize::from(part[at] == part[met]);
            shorter[at] = met;
        }
        Self { part, shorter }
    }
}

impl Automaton for Contains {
    /// How much of the part was met last; all of it, once it was.
    type State = usize;

    fn start(&self) -> usize {
        0
    }

    fn is_match(&self, met: &usize) -> bool {
        *met == self.part.len()
    }

    fn will_always_match(&self, met: &usize) -> bool {
        self.is_match(met)
    }

    fn accept(&self, met: &usize, byte: u8) -> usize {
        if self.is_match(met) {
            return *met;
        }
        let mut met = *met;
        while met > 0 && self.part[met] != byte {
            met = self.shorter[met - 1];
        }
        met + usize::from(self.part[met] == byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_automaton_finds_what_str_finds(text in "[ab]{0,12}é?[ab]{0,3}", part in "[ab]{0,4}é?") {
            let automaton = Contains::new(&part);
            let end = text.bytes().fold(automaton.start(), |met, byte| automaton.accept(&met, byte));
            prop_assert_eq!(automaton.is_match(&end), text.contains(&part));
        }
    }
}
