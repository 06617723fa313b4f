//! Finds documents of a segment by terms: exact, prefix, substring, and pattern.
//!
//! The result for a segment never changes, so it is cached: a search repeated after a commit, such as a live
//! search, only evaluates new segments. Filters cached for merged segments are evaluated on the merged one before
//! searches use it ([`crate::tantivy::reader::warm_up`]).

use crate::tantivy::doc_set::{DocSet, DocSetBuilder};
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

/// Idle time after which cached results are evicted.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum number of terms whose documents are read together.
const READ_BATCH: usize = 65_536;
/// Number of consecutive terms between checks of the deadline.
const DEADLINE_CHECK_TERMS: usize = 64;
/// Number of consecutive dictionary bytes between checks of the deadline.
const DEADLINE_CHECK_BYTES: usize = 65_536;

/// A condition on terms, in lower case like the dictionary.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TermPredicate {
    Is(String),
    Begins(String),
    /// Prefix in a column of running text.
    BeginsInText(String),
    Contains(String),
    /// Must match the complete term.
    Matches(String),
    /// Within this edit distance. If the flag is set, only a prefix of the term has to be within it.
    Fuzzy(String, u8, bool),
}

impl TermPredicate {
    fn text(&self) -> &str {
        let (Self::Is(text)
        | Self::Begins(text)
        | Self::BeginsInText(text)
        | Self::Contains(text)
        | Self::Matches(text)
        | Self::Fuzzy(text, ..)) = self;
        text
    }
}

/// A condition on documents of a segment, and its cache key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum FilterKey {
    Terms(Field, TermPredicate),
    /// Numbers in a range, inclusive.
    Between(Field, Option<i64>, Option<i64>),
    /// Terms in sequence; the last one is a prefix unless it is short.
    Phrase(Field, Vec<String>),
}

impl FilterKey {
    /// Bytes of the key's strings, for the size of the cache.
    fn len(&self) -> usize {
        match self {
            Self::Terms(_, predicate) => predicate.text().len(),
            Self::Phrase(_, words) => words.iter().map(String::len).sum(),
            Self::Between(..) => 0,
        }
    }
}

/// Reason why a condition was not evaluated.
#[derive(Debug)]
pub enum EvaluationError {
    /// The deadline was exceeded.
    DeadlineExceeded,
    Failed(tantivy::TantivyError),
}

impl From<tantivy::TantivyError> for EvaluationError {
    fn from(error: tantivy::TantivyError) -> Self {
        Self::Failed(error)
    }
}

impl From<std::io::Error> for EvaluationError {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// Cache of matching documents by segment and condition.
pub struct FilterCache {
    docs: Cache<(SegmentId, FilterKey), Arc<CachedFilter>>,
    queries: AtomicU64,
}

/// The cached result for one segment.
struct CachedFilter {
    docs: DocSet,
    /// The last query that used it; 0 if only the query that created it did.
    last_query: AtomicU64,
}

impl FilterCache {
    pub fn new(bytes: u64) -> Self {
        let size = |(_, key): &(SegmentId, FilterKey), cached: &Arc<CachedFilter>| {
            u32::try_from(256 + cached.docs.bytes() + key.len()).unwrap_or(u32::MAX)
        };
        let docs = Cache::builder().max_capacity(bytes).weigher(size);
        let docs = docs.eviction_policy(EvictionPolicy::lru()).time_to_idle(IDLE_TIMEOUT).build();
        Self { docs, queries: AtomicU64::default() }
    }

    /// A new query number.
    pub fn next_query_number(&self) -> u64 {
        1 + self.queries.fetch_add(1, Ordering::Relaxed)
    }

    pub fn get(&self, query: u64, key: &(SegmentId, FilterKey)) -> Option<DocSet> {
        let cached = self.docs.get(key)?;
        cached.last_query.fetch_max(query, Ordering::Relaxed);
        Some(cached.docs.clone())
    }

    pub fn insert(&self, key: (SegmentId, FilterKey), docs: DocSet) {
        self.docs.insert(key, Arc::new(CachedFilter { docs, last_query: AtomicU64::default() }));
    }

    /// Evicts segments that no longer exist. Returns their conditions that were reused, most recently used first.
    pub fn evict(&self, segments: &HashSet<SegmentId>) -> Vec<FilterKey> {
        let mut reused: HashMap<FilterKey, u64> = HashMap::new();
        for (key, kept) in self.docs.iter().filter(|(key, _)| segments.contains(&key.0)) {
            let by = kept.last_query.load(Ordering::Relaxed);
            if by > 0 {
                let last = reused.entry(key.1.clone()).or_default();
                *last = by.max(*last);
            }
            self.docs.invalidate(&*key);
        }
        let mut reused: Vec<(FilterKey, u64)> = reused.into_iter().collect();
        reused.sort_unstable_by_key(|(_, last)| std::cmp::Reverse(*last));
        reused.into_iter().map(|(key, _)| key).collect()
    }
}

/// A segment's documents with any of the matching terms; `regex` is the pattern of [`TermPredicate::Matches`].
pub fn with_terms(
    reader: &SegmentReader,
    field: Field,
    predicate: &TermPredicate,
    regex: Option<&Regex>,
    deadline: Instant,
) -> Result<DocSet, EvaluationError> {
    let terms = reader.inverted_index(field)?;
    let dictionary = terms.terms();
    let mut found = TermDocs { terms: &terms, max_doc: reader.max_doc(), infos: Vec::new(), builder: None, deadline };
    let between = |from: &str, to: &str| dictionary.range().ge(from).lt(to).without_keys().into_stream();
    match predicate {
        TermPredicate::Is(text) => found.infos.extend(terms.get_term_info(&Term::from_field_text(field, text))?),
        TermPredicate::BeginsInText(word) if !word.is_empty() && word.chars().all(char::is_alphanumeric) => {
            // The first word of every term is a term itself and covers all continuations other than letters and
            // digits.
            found.take(between(word, &format!("{word}\0"))?)?;
            for (from, to) in [("0", ":"), ("a", "{"), ("\u{80}", "\u{10ffff}")] {
                found.take(between(&format!("{word}{from}"), &format!("{word}{to}"))?)?;
            }
        }
        TermPredicate::Begins(start) | TermPredicate::BeginsInText(start) => {
            found.take(between(start, &format!("{start}\u{10ffff}"))?)?
        }
        TermPredicate::Contains(part) => found.take_accepted(ContainsAutomaton::new(part))?,
        TermPredicate::Matches(_) => {
            let Some(regex) = regex else { return Ok(DocSet::empty()) };
            found.take_accepted(regex)?;
        }
        TermPredicate::Fuzzy(word, distance, is_prefix) => {
            let term = Term::from_field_text(field, word);
            let make = if *is_prefix { FuzzyTermQuery::new_prefix } else { FuzzyTermQuery::new };
            found.take_accepted(make(term, *distance, true).automaton()?)?;
        }
    }
    found.docs()
}

/// Collects the documents of terms.
struct TermDocs<'t> {
    terms: &'t InvertedIndexReader,
    max_doc: DocId,
    /// Terms whose documents are not read yet.
    infos: Vec<TermInfo>,
    builder: Option<DocSetBuilder>,
    deadline: Instant,
}

impl TermDocs<'_> {
    /// Adds the terms that an automaton accepts.
    fn take_accepted<A: Automaton>(&mut self, automaton: A) -> Result<(), EvaluationError>
    where
        A::State: Clone,
    {
        let timed = DeadlineAutomaton::new(automaton, self.deadline);
        let dictionary = self.terms.terms();
        self.take(dictionary.search(&timed).without_keys().into_stream()?)?;
        timed.check_deadline()
    }

    fn take<A: Automaton>(&mut self, mut stream: TermStreamer<'_, A, WithoutKeys>) -> Result<(), EvaluationError>
    where
        A::State: Clone,
    {
        while stream.advance() {
            self.infos.push(stream.value().clone());
            if self.infos.len() >= READ_BATCH {
                self.read()?;
            }
        }
        Ok(())
    }

    /// Reads frequent terms first: once all documents match, the others can be skipped.
    fn read(&mut self) -> Result<(), EvaluationError> {
        self.infos.sort_unstable_by_key(|info| std::cmp::Reverse(info.doc_freq));
        let expected: u64 = self.infos.iter().map(|info| u64::from(info.doc_freq)).sum();
        let builder = self.builder.get_or_insert_with(|| match self.infos.len() >= READ_BATCH {
            true => DocSetBuilder::new(self.max_doc, u64::MAX),
            false => DocSetBuilder::new(self.max_doc, expected),
        });
        for (nth, info) in self.infos.drain(..).enumerate() {
            if nth % DEADLINE_CHECK_TERMS == 0 {
                if Instant::now() > self.deadline {
                    return Err(EvaluationError::DeadlineExceeded);
                }
                if builder.is_complete() {
                    return Ok(());
                }
            }
            let mut postings = self.terms.read_block_postings_from_terminfo(&info, IndexRecordOption::Basic)?;
            while !postings.docs().is_empty() {
                builder.add(postings.docs());
                postings.advance();
            }
        }
        Ok(())
    }

    fn docs(mut self) -> Result<DocSet, EvaluationError> {
        if self.infos.iter().any(|info| info.doc_freq >= self.max_doc) {
            return Ok(DocSet::All);
        }
        self.read()?;
        Ok(self.builder.map_or_else(DocSet::empty, DocSetBuilder::build))
    }
}

/// Checks the deadline while the dictionary is read; after it, nothing matches.
struct DeadlineAutomaton<A> {
    automaton: A,
    deadline: Instant,
    steps: AtomicUsize,
    late: AtomicBool,
}

impl<A> DeadlineAutomaton<A> {
    fn new(automaton: A, deadline: Instant) -> Self {
        Self { automaton, deadline, steps: AtomicUsize::new(0), late: AtomicBool::new(false) }
    }

    /// Fails if the deadline was exceeded.
    fn check_deadline(&self) -> Result<(), EvaluationError> {
        if self.late.load(Ordering::Relaxed) { Err(EvaluationError::DeadlineExceeded) } else { Ok(()) }
    }
}

impl<A: Automaton> Automaton for DeadlineAutomaton<A> {
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
        if self.steps.fetch_add(1, Ordering::Relaxed).is_multiple_of(DEADLINE_CHECK_BYTES)
            && Instant::now() > self.deadline
        {
            self.late.store(true, Ordering::Relaxed);
        }
        self.automaton.accept(state, byte)
    }
}

/// Automaton for strings that contain another (Knuth-Morris-Pratt), built in linear time.
struct ContainsAutomaton {
    part: Vec<u8>,
    /// By matched length: the length that is still matched after a different next byte.
    shorter: Vec<usize>,
}

impl ContainsAutomaton {
    fn new(part: &str) -> Self {
        let part = part.as_bytes().to_vec();
        let mut shorter = vec![0; part.len()];
        let mut matched = 0;
        for at in 1..part.len() {
            while matched > 0 && part[at] != part[matched] {
                matched = shorter[matched - 1];
            }
            matched += usize::from(part[at] == part[matched]);
            shorter[at] = matched;
        }
        Self { part, shorter }
    }
}

impl Automaton for ContainsAutomaton {
    /// Length of the matched part; the maximum once the part was found.
    type State = usize;

    fn start(&self) -> usize {
        0
    }

    fn is_match(&self, matched: &usize) -> bool {
        *matched == self.part.len()
    }

    fn will_always_match(&self, matched: &usize) -> bool {
        self.is_match(matched)
    }

    fn accept(&self, matched: &usize, byte: u8) -> usize {
        if self.is_match(matched) {
            return *matched;
        }
        let mut matched = *matched;
        while matched > 0 && self.part[matched] != byte {
            matched = self.shorter[matched - 1];
        }
        matched + usize::from(self.part[matched] == byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_automaton_equals_str_contains(text in "[ab]{0,12}é?[ab]{0,3}", part in "[ab]{0,4}é?") {
            let automaton = ContainsAutomaton::new(&part);
            let end = text.bytes().fold(automaton.start(), |matched, byte| automaton.accept(&matched, byte));
            prop_assert_eq!(automaton.is_match(&end), text.contains(&part));
        }
    }
}
