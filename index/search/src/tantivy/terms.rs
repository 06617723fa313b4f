//! Documents of a segment by the terms they hold: one, what begins so, what contains so, what matches a pattern.
//!
//! Which documents of a segment those are never changes, so it is remembered: a search asked again after a commit, as
//! live ones are, looks only into segments it has not seen. What was asked of segments that were merged is asked of the
//! merged one before searches see it ([`crate::prepare`]).

use crate::tantivy::doc_set::{Docs, Marks};
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tantivy::index::{InvertedIndexReader, SegmentId};
use tantivy::postings::TermInfo;
use tantivy::query::FuzzyTermQuery;
use tantivy::schema::{Field, IndexRecordOption};
use tantivy::termdict::{TermStreamer, WithoutKeys};
use tantivy::{DocId, SegmentReader, Term};
use tantivy_fst::{Automaton, Regex};

/// Nobody asks again what was not asked for so long.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);
/// Terms whose documents are read together.
const TOGETHER: usize = 65_536;
/// Of so many terms in a row nobody looks at the clock.
const TIMED: usize = 64;
/// Nor for so many bytes of a dictionary.
const STEPS: usize = 65_536;

/// Terms by how they look, in lower case as the dictionary has them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Looks {
    Is(String),
    Begins(String),
    /// Begins so, in a column of running text.
    BeginsInText(String),
    Contains(String),
    /// From end to end.
    Matches(String),
    /// Is, or begins, within so many edits.
    Near(String, u8, bool),
}

impl Looks {
    fn text(&self) -> &str {
        let (Self::Is(text)
        | Self::Begins(text)
        | Self::BeginsInText(text)
        | Self::Contains(text)
        | Self::Matches(text)
        | Self::Near(text, ..)) = self;
        text
    }
}

/// What documents of a segment are asked for, and remembered by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Asked {
    Terms(Field, Looks),
    /// Numbers from and to, ends included.
    Between(Field, Option<i64>, Option<i64>),
    /// Terms one behind the other; the last, unless it is short, begins one.
    Said(Field, Vec<String>),
}

impl Asked {
    fn len(&self) -> usize {
        match self {
            Self::Terms(_, looks) => looks.text().len(),
            Self::Said(_, words) => words.iter().map(String::len).sum(),
            Self::Between(..) => 0,
        }
    }
}

/// Why documents are not found.
#[derive(Debug)]
pub enum Unfound {
    /// The deadline came before everything was looked at.
    Late,
    Failed(tantivy::TantivyError),
}

impl From<tantivy::TantivyError> for Unfound {
    fn from(error: tantivy::TantivyError) -> Self {
        Self::Failed(error)
    }
}

impl From<std::io::Error> for Unfound {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// Documents of segments, by what was asked.
pub struct Remembered {
    docs: Cache<(SegmentId, Asked), Arc<Kept>>,
    questions: AtomicU64,
}

/// What one segment has for something asked.
struct Kept {
    docs: Docs,
    /// The last question that asked it; none when only the one did that it was found for.
    asked_by: AtomicU64,
}

impl Remembered {
    pub fn new(bytes: u64) -> Self {
        let size = |(_, asked): &(SegmentId, Asked), kept: &Arc<Kept>| {
            u32::try_from(256 + kept.docs.bytes() + asked.len()).unwrap_or(u32::MAX)
        };
        let docs = Cache::builder().max_capacity(bytes).weigher(size);
        let docs = docs.eviction_policy(EvictionPolicy::lru()).time_to_idle(REMEMBERED_FOR).build();
        Self { docs, questions: AtomicU64::default() }
    }

    /// Another question.
    pub fn question(&self) -> u64 {
        1 + self.questions.fetch_add(1, Ordering::Relaxed)
    }

    pub fn get(&self, question: u64, key: &(SegmentId, Asked)) -> Option<Docs> {
        let kept = self.docs.get(key)?;
        kept.asked_by.fetch_max(question, Ordering::Relaxed);
        Some(kept.docs.clone())
    }

    pub fn insert(&self, key: (SegmentId, Asked), docs: Docs) {
        self.docs.insert(key, Arc::new(Kept { docs, asked_by: AtomicU64::default() }));
    }

    /// Forgets segments that are gone; what was asked of them again, the last that was asked first.
    pub fn forget(&self, gone: &HashSet<SegmentId>) -> Vec<Asked> {
        let mut asked: HashMap<Asked, u64> = HashMap::new();
        for (key, kept) in self.docs.iter().filter(|(key, _)| gone.contains(&key.0)) {
            let by = kept.asked_by.load(Ordering::Relaxed);
            if by > 0 {
                let last = asked.entry(key.1.clone()).or_default();
                *last = by.max(*last);
            }
            self.docs.invalidate(&*key);
        }
        let mut asked: Vec<(Asked, u64)> = asked.into_iter().collect();
        asked.sort_unstable_by_key(|(_, last)| std::cmp::Reverse(*last));
        asked.into_iter().map(|(asked, _)| asked).collect()
    }
}

/// A segment's documents with any of the terms that look so; `regex` is the pattern of [`Looks::Matches`].
pub fn with_terms(
    reader: &SegmentReader,
    field: Field,
    looks: &Looks,
    regex: Option<&Regex>,
    deadline: Instant,
) -> Result<Docs, Unfound> {
    let terms = reader.inverted_index(field)?;
    let dictionary = terms.terms();
    let mut found = Found { terms: &terms, max_doc: reader.max_doc(), infos: Vec::new(), marks: None, deadline };
    let between = |from: &str, to: &str| dictionary.range().ge(from).lt(to).without_keys().into_stream();
    match looks {
        Looks::Is(text) => found.infos.extend(terms.get_term_info(&Term::from_field_text(field, text))?),
        Looks::BeginsInText(word) if !word.is_empty() && word.chars().all(char::is_alphanumeric) => {
            // Every term's first word is a term: that one stands for all in which no letter or digit follows.
            found.take(between(word, &format!("{word}\0"))?)?;
            for (from, to) in [("0", ":"), ("a", "{"), ("\u{80}", "\u{10ffff}")] {
                found.take(between(&format!("{word}{from}"), &format!("{word}{to}"))?)?;
            }
        }
        Looks::Begins(start) | Looks::BeginsInText(start) => {
            found.take(between(start, &format!("{start}\u{10ffff}"))?)?
        }
        Looks::Contains(part) => found.accepted(Contains::new(part))?,
        Looks::Matches(_) => {
            let Some(regex) = regex else { return Ok(Docs::none()) };
            found.accepted(regex)?;
        }
        Looks::Near(word, distance, begins) => {
            let term = Term::from_field_text(field, word);
            let make = if *begins { FuzzyTermQuery::new_prefix } else { FuzzyTermQuery::new };
            found.accepted(make(term, *distance, true).automaton()?)?;
        }
    }
    found.docs()
}

/// Documents of terms, while the terms are met.
struct Found<'t> {
    terms: &'t InvertedIndexReader,
    max_doc: DocId,
    /// Of terms whose documents were not read yet.
    infos: Vec<TermInfo>,
    marks: Option<Marks>,
    deadline: Instant,
}

impl Found<'_> {
    /// Terms an automaton accepts.
    fn accepted<A: Automaton>(&mut self, automaton: A) -> Result<(), Unfound>
    where
        A::State: Clone,
    {
        let timed = Timed::new(automaton, self.deadline);
        let dictionary = self.terms.terms();
        self.take(dictionary.search(&timed).without_keys().into_stream()?)?;
        timed.in_time()
    }

    fn take<A: Automaton>(&mut self, mut stream: TermStreamer<'_, A, WithoutKeys>) -> Result<(), Unfound>
    where
        A::State: Clone,
    {
        while stream.advance() {
            self.infos.push(stream.value().clone());
            if self.infos.len() >= TOGETHER {
                self.read()?;
            }
        }
        Ok(())
    }

    /// Frequent terms come first: once every document is met, the others are of no matter.
    fn read(&mut self) -> Result<(), Unfound> {
        self.infos.sort_unstable_by_key(|info| std::cmp::Reverse(info.doc_freq));
        let expected: u64 = self.infos.iter().map(|info| u64::from(info.doc_freq)).sum();
        let marks = self.marks.get_or_insert_with(|| match self.infos.len() >= TOGETHER {
            true => Marks::new(self.max_doc, u64::MAX),
            false => Marks::new(self.max_doc, expected),
        });
        for (nth, info) in self.infos.drain(..).enumerate() {
            if nth % TIMED == 0 {
                if Instant::now() > self.deadline {
                    return Err(Unfound::Late);
                }
                if marks.are_all() {
                    return Ok(());
                }
            }
            let mut postings = self.terms.read_block_postings_from_terminfo(&info, IndexRecordOption::Basic)?;
            while !postings.docs().is_empty() {
                marks.add(postings.docs());
                postings.advance();
            }
        }
        Ok(())
    }

    fn docs(mut self) -> Result<Docs, Unfound> {
        if self.infos.iter().any(|info| info.doc_freq >= self.max_doc) {
            return Ok(Docs::All);
        }
        self.read()?;
        Ok(self.marks.map_or_else(Docs::none, Marks::done))
    }
}

/// Looks at the clock while a dictionary is read: when it is late, nothing matches any more.
struct Timed<A> {
    automaton: A,
    deadline: Instant,
    steps: AtomicUsize,
    late: AtomicBool,
}

impl<A> Timed<A> {
    fn new(automaton: A, deadline: Instant) -> Self {
        Self { automaton, deadline, steps: AtomicUsize::new(0), late: AtomicBool::new(false) }
    }

    fn in_time(&self) -> Result<(), Unfound> {
        if self.late.load(Ordering::Relaxed) { Err(Unfound::Late) } else { Ok(()) }
    }
}

impl<A: Automaton> Automaton for Timed<A> {
    type State = A::State;

    fn start(&self) -> A::State {
        self.automaton.start()
    }

    fn is_match(&self, state: &A::State) -> bool {
        self.automaton.is_match(state)
    }

    fn can_match(&self, state: &A::State) -> bool {
        !self.late.load(Ordering::Relaxed) && self.automaton.can_match(state)
    }

    fn will_always_match(&self, state: &A::State) -> bool {
        self.automaton.will_always_match(state)
    }

    fn accept(&self, state: &A::State, byte: u8) -> A::State {
        if self.steps.fetch_add(1, Ordering::Relaxed).is_multiple_of(STEPS) && Instant::now() > self.deadline {
            self.late.store(true, Ordering::Relaxed);
        }
        self.automaton.accept(state, byte)
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
