//! Evaluates a plan on a segment as operations on sets of documents. The sets of conditions are cached
//! ([`crate::tantivy::terms`]).

use crate::authorization::CallerPermissions;
use crate::document::columns::{Keyword, Number};
use crate::document::tokens::{MAX_CHUNK_BYTES, chunks, matches_by_prefix};
use crate::plan::patterns::MAX_EDITS;
use crate::plan::predicate::{IdSet, Match, Test};
use crate::plan::score::{ANY_COLUMN, CONTENT, MESSAGE, NAME_EXACT, NAME_PREFIX};
use crate::tantivy::TextIndex;
use crate::tantivy::doc_set::{DocSet, DocSetBuilder, difference, intersection, union};
use crate::tantivy::number_filter::NumberFilters;
use crate::tantivy::reader::permitted::{PermittedDocs, resolve_permitted};
use crate::tantivy::reader::permitted_cache::PermittedCache;
use crate::tantivy::schema::Columns;
use crate::tantivy::segments::{Segment, SegmentData};
use crate::tantivy::terms::{EvaluationError, FilterCache, FilterKey, TermPredicate, with_terms};
use crate::tantivy::values::FacetValues;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;
use tantivy::query::{EnableScoring, PhraseQuery, Query, RangeQuery, RegexPhraseQuery, TermSetQuery};
use tantivy::schema::{Field, IndexRecordOption};
use tantivy::{COLLECT_BLOCK_BUFFER_LEN, TantivyError, Term};
use tantivy_fst::Regex;

/// Maximum number of terms that the last word of a phrase may expand to.
const MAX_EXPANSIONS: u32 = 1 << 14;
/// Maximum count of numbers that are looked up one by one in a segment. More are found faster in one pass over the
/// terms.
const MAX_LOOKUPS: usize = 100;

/// A plan prepared for evaluation on segments.
pub struct PreparedQuery<'q> {
    matches: &'q Match,
    columns: &'q Columns,
    filters: &'q FilterCache,
    number_filters: &'q NumberFilters,
    permitted: &'q PermittedCache,
    /// Number of this query in the filter cache.
    number: u64,
    patterns: BTreeMap<String, Regex>,
    deadline: Instant,
    /// Notices: unsupported patterns, and phrases that were matched more broadly.
    notices: Mutex<BTreeSet<String>>,
}

/// The documents of a segment that match and may be read, with the sets that add to their scores; only bare words
/// score.
pub struct SegmentMatches {
    /// Without deleted documents.
    pub docs: DocSet,
    /// All documents that may be read.
    pub permitted: Arc<PermittedDocs>,
    pub scored: Vec<(DocSet, f32)>,
}

impl<'q> PreparedQuery<'q> {
    pub fn new(matches: &'q Match, text: &'q TextIndex, deadline: Instant) -> Self {
        let all = RefCell::new(BTreeSet::new());
        matches.contains(&|part| {
            if let Match::Keyword(_, Test::Regex(pattern)) | Match::BareRegex(pattern) = part {
                all.borrow_mut().insert(pattern.clone());
            }
            false
        });
        Self::with_patterns(matches, all.into_inner(), text, deadline)
    }

    /// Compiles these patterns instead of those of `matches`.
    pub fn with_patterns(matches: &'q Match, all: BTreeSet<String>, text: &'q TextIndex, deadline: Instant) -> Self {
        let (mut patterns, mut notices) = (BTreeMap::new(), BTreeSet::new());
        for pattern in all {
            match Regex::new(&pattern) {
                Ok(regex) => {
                    patterns.insert(pattern, regex);
                }
                Err(error) => {
                    notices.insert(format!("cannot match {pattern}: {error}"));
                }
            }
        }
        Self {
            matches,
            columns: &text.columns,
            filters: &text.filters,
            number_filters: &text.number_filters,
            permitted: &text.permitted,
            number: text.filters.next_query_number(),
            patterns,
            deadline,
            notices: Mutex::new(notices),
        }
    }

    pub fn notices(self) -> BTreeSet<String> {
        self.notices.into_inner()
    }

    /// Evaluates the plan on a segment; returns only documents that the caller may read.
    pub fn evaluate(
        &self,
        segment: &Segment,
        values: &FacetValues,
        permissions: &Mutex<CallerPermissions>,
    ) -> Result<SegmentMatches, EvaluationError> {
        let data = &segment.data;
        let mut evaluator = self.evaluator(data);
        let docs = evaluator.docs(self.matches)?;
        if docs.is_empty() {
            return Ok(SegmentMatches { permitted: PermittedDocs::empty(), docs, scored: Vec::new() });
        }
        let permitted = resolve_permitted(data, values, permissions, self.permitted);
        let docs = segment.without_deleted(intersection(&[docs, permitted.docs.clone()]));
        Ok(SegmentMatches { docs, permitted, scored: evaluator.scored })
    }

    /// Evaluates one condition to cache its result.
    pub fn cache_filter(&self, data: &SegmentData, filter: FilterKey) -> Result<(), EvaluationError> {
        self.evaluator(data).cached_filter(filter).map(drop)
    }

    fn evaluator<'a>(&'a self, data: &'a SegmentData) -> SegmentEvaluator<'a> {
        SegmentEvaluator { query: self, data, scored: Vec::new(), is_negated: false }
    }
}

/// Evaluation of a query on one segment.
struct SegmentEvaluator<'a> {
    query: &'a PreparedQuery<'a>,
    data: &'a SegmentData,
    scored: Vec<(DocSet, f32)>,
    /// True within a negation, where nothing scores.
    is_negated: bool,
}

impl SegmentEvaluator<'_> {
    fn docs(&mut self, matches: &Match) -> Result<DocSet, EvaluationError> {
        let columns = self.query.columns;
        match matches {
            Match::All => Ok(DocSet::All),
            Match::None => Ok(DocSet::empty()),
            Match::And(parts) => self.all_of(parts),
            Match::Or(parts) => {
                let parts = parts.iter().map(|part| self.docs(part)).collect::<Result<Vec<_>, _>>()?;
                Ok(union(&parts))
            }
            Match::Not(_) => self.all_of(std::slice::from_ref(matches)),
            Match::Keyword(keyword, test) => self.test(columns.keyword(*keyword), test),
            Match::Exact(keyword, value) => {
                self.terms(columns.keyword(Keyword::Exact), TermPredicate::Is(format!("{}={value}", keyword.name())))
            }
            Match::Number(number, from, to) => self.range(*number, *from, *to),
            Match::Content(chunks) => self.prefixes(columns.content, chunks),
            Match::Message(chunks) => self.messages_with(chunks),
            Match::Bare(word) => self.bare(word),
            Match::BareRegex(pattern) => {
                let predicate = || TermPredicate::Matches(pattern.clone());
                let in_values =
                    [Keyword::Name, Keyword::Anything].map(|keyword| self.terms(columns.keyword(keyword), predicate()));
                let mut in_values = in_values.into_iter().collect::<Result<Vec<_>, _>>()?;
                if pattern.contains('/') {
                    in_values.push(self.terms(columns.keyword(Keyword::Qualified), predicate())?);
                }
                let in_content = self.terms(columns.content, predicate())?;
                Ok(self.union_with_scores([(union(&in_values), ANY_COLUMN), (in_content, CONTENT)]))
            }
            Match::Fuzzy(word, distance) => {
                let fuzzy_name = || TermPredicate::Fuzzy(word.clone(), (*distance).min(MAX_EDITS), true);
                let name = self.terms(columns.keyword(Keyword::Name), fuzzy_name())?;
                let in_content = self.terms(columns.content, fuzzy_name())?;
                Ok(self.union_with_scores([(name, NAME_PREFIX), (in_content, CONTENT)]))
            }
            Match::Keys(keys, numbers) => {
                let found = keys.iter().map(|key| self.numbers(columns.key(*key), numbers));
                Ok(union(&found.collect::<Result<Vec<_>, _>>()?))
            }
            Match::Ids(ids) => self.numbers(columns.id, ids),
            Match::WithReason(_, _, inner) => self.docs(inner),
            // Resolved before; without resolution, the condition must not exclude documents.
            Match::Path(_) | Match::Relation(_) | Match::Changed(_) => Ok(DocSet::All),
            Match::Clusters(names) => {
                let field = columns.keyword(Keyword::Cluster);
                let found = names.iter().map(|name| self.terms(field, TermPredicate::Is(name.clone())));
                Ok(union(&found.collect::<Result<Vec<_>, _>>()?))
            }
        }
    }

    /// Documents that match all parts. Parts after the first one without documents are not evaluated.
    fn all_of(&mut self, parts: &[Match]) -> Result<DocSet, EvaluationError> {
        let (mut found, mut negated, scored) = (Vec::with_capacity(parts.len()), Vec::new(), self.scored.len());
        for part in parts {
            match part {
                Match::Not(inner) => {
                    let before = std::mem::replace(&mut self.is_negated, true);
                    let docs = self.docs(inner);
                    self.is_negated = before;
                    negated.push(docs?);
                }
                part => {
                    let docs = self.docs(part)?;
                    if docs.is_empty() {
                        self.scored.truncate(scored);
                        return Ok(docs);
                    }
                    found.push(docs);
                }
            }
        }
        let found = intersection(&found);
        let max_doc = self.data.reader.max_doc();
        let docs = negated.iter().fold(found, |found, negated| difference(found, negated, max_doc));
        // Documents that only match some of the parts do not score.
        for (set, _) in self.scored.iter_mut().skip(scored) {
            *set = intersection(&[set.clone(), docs.clone()]);
        }
        Ok(docs)
    }

    /// Union of the sets. The weight of each set is added to the scores of its documents.
    fn union_with_scores<const N: usize>(&mut self, parts: [(DocSet, f32); N]) -> DocSet {
        let docs = union(&parts.iter().map(|(docs, _)| docs.clone()).collect::<Vec<_>>());
        if !self.is_negated {
            self.scored.extend(parts.into_iter().filter(|(docs, _)| !docs.is_empty()));
        }
        docs
    }

    fn bare(&mut self, word: &str) -> Result<DocSet, EvaluationError> {
        let columns = self.query.columns;
        let name = columns.keyword(Keyword::Name);
        let contains = || TermPredicate::Contains(word.to_owned());
        let mut anything =
            vec![self.terms(name, contains())?, self.terms(columns.keyword(Keyword::Anything), contains())?];
        if word.contains('/') {
            anything.push(self.terms(columns.keyword(Keyword::Qualified), contains())?);
        }
        let chunks: Vec<String> = chunks(word).map(str::to_owned).collect();
        let parts = [
            (self.terms(name, TermPredicate::Is(word.to_lowercase()))?, NAME_EXACT),
            (self.terms(name, TermPredicate::Begins(word.to_owned()))?, NAME_PREFIX),
            (union(&anything), ANY_COLUMN),
            (self.messages_with(&chunks)?, MESSAGE),
            (self.prefixes(columns.content, &chunks)?, CONTENT),
        ];
        Ok(self.union_with_scores(parts))
    }

    fn test(&self, field: Field, test: &Test) -> Result<DocSet, EvaluationError> {
        match test {
            Test::Equals(text) => self.terms(field, TermPredicate::Is(text.to_lowercase())),
            Test::Contains(text) => self.terms(field, TermPredicate::Contains(text.clone())),
            Test::Regex(pattern) => self.terms(field, TermPredicate::Matches(pattern.clone())),
            Test::Fuzzy(word, distance, is_prefix) => {
                self.terms(field, TermPredicate::Fuzzy(word.clone(), *distance, *is_prefix))
            }
        }
    }

    /// Every chunk is the prefix of a term; a very short chunk must equal a term.
    fn prefixes(&self, field: Field, chunks: &[String]) -> Result<DocSet, EvaluationError> {
        if chunks.is_empty() {
            return Ok(DocSet::empty());
        }
        let found = chunks.iter().map(|chunk| match matches_by_prefix(chunk) {
            true => self.terms(field, TermPredicate::BeginsInText(chunk.clone())),
            false => self.terms(field, TermPredicate::Is(chunk.to_lowercase())),
        });
        Ok(intersection(&found.collect::<Result<Vec<_>, _>>()?))
    }

    /// Chunks in sequence in a message; the last one is a prefix unless it is very short.
    fn messages_with(&self, chunks: &[String]) -> Result<DocSet, EvaluationError> {
        let field = self.query.columns.message;
        match chunks {
            // Terms are never longer than a chunk may be.
            [_, _, ..] if chunks.iter().any(|chunk| chunk.len() > MAX_CHUNK_BYTES) => Ok(DocSet::empty()),
            [_, _, ..] => match self.cached_filter(FilterKey::Phrase(field, chunks.to_vec())) {
                // If the prefix has too many expansions, only the presence of all chunks is checked.
                Err(EvaluationError::Failed(TantivyError::InvalidArgument(_))) => {
                    let reason = format!("the last word of {:?} is the prefix of too many words", chunks.join(" "));
                    let effect = "messages with all words of the phrase in any order are returned";
                    self.query.notices.lock().insert(format!("{reason}: {effect}"));
                    self.prefixes(field, chunks)
                }
                found => found,
            },
            _ => self.prefixes(field, chunks),
        }
    }

    fn range(&self, number: Number, from: Option<i64>, to: Option<i64>) -> Result<DocSet, EvaluationError> {
        match (from, to) {
            (Some(from), Some(to)) if from > to => Ok(DocSet::empty()),
            (None, None) => {
                self.terms(self.query.columns.keyword(Keyword::Has), TermPredicate::Is(number.name().to_owned()))
            }
            (from, to) => {
                let filter = FilterKey::Between(self.query.columns.number(number), from, to);
                match number {
                    // Ranges relative to the current time are not cached.
                    Number::Created | Number::Changed | Number::LastSeen | Number::Deleted => self.find(&filter),
                    _ => self.cached_filter(filter),
                }
            }
        }
    }

    fn terms(&self, field: Field, predicate: TermPredicate) -> Result<DocSet, EvaluationError> {
        self.cached_filter(FilterKey::Terms(field, predicate))
    }

    fn cached_filter(&self, filter: FilterKey) -> Result<DocSet, EvaluationError> {
        let key = (self.data.reader.segment_id(), filter);
        if let Some(docs) = self.query.filters.get(self.query.number, &key) {
            return Ok(docs);
        }
        let docs = self.find(&key.1)?;
        self.query.filters.insert(key, docs.clone());
        Ok(docs)
    }

    fn find(&self, filter: &FilterKey) -> Result<DocSet, EvaluationError> {
        match filter {
            FilterKey::Terms(field, TermPredicate::Contains(part))
                if *field == self.query.columns.keyword(Keyword::Name) =>
            {
                Ok(self.data.names.docs_containing(part))
            }
            FilterKey::Terms(field, predicate) => {
                let regex = if let TermPredicate::Matches(pattern) = predicate {
                    self.query.patterns.get(pattern)
                } else {
                    None
                };
                with_terms(&self.data.reader, *field, predicate, regex, self.query.deadline)
            }
            FilterKey::Between(field, from, to) => {
                let bound = |value: Option<i64>| match value {
                    Some(value) => Bound::Included(Term::from_field_i64(*field, value)),
                    None => Bound::Unbounded,
                };
                self.scan(&RangeQuery::new(bound(*from), bound(*to)), u64::MAX)
            }
            FilterKey::Phrase(field, chunks) => match chunks.last().is_some_and(|last| matches_by_prefix(last)) {
                true => {
                    // tantivy's PhrasePrefixQuery stops after some terms and reads each of them completely.
                    let mut terms: Vec<String> = chunks.iter().map(|chunk| term_regex(chunk)).collect();
                    terms.iter_mut().last().into_iter().for_each(|last| last.push_str(".*"));
                    let mut query = RegexPhraseQuery::new(*field, terms);
                    query.set_max_expansions(MAX_EXPANSIONS);
                    self.scan(&query, u64::MAX)
                }
                false => {
                    let terms = chunks.iter().map(|chunk| Term::from_field_text(*field, chunk)).collect();
                    self.scan(&PhraseQuery::new(terms), u64::MAX)
                }
            },
        }
    }

    /// Documents with one of the numbers. Not cached, because there are many such sets and they are rarely reused.
    fn numbers(&self, field: Field, numbers: &IdSet) -> Result<DocSet, EvaluationError> {
        let filter = self.query.number_filters.get(&self.data.reader, field)?;
        let may_occur = |number: u64| filter.as_ref().is_none_or(|filter| filter.may_contain(number));
        let numbers = numbers.iter().filter(|number| may_occur(**number));
        let terms: Vec<Term> = numbers.map(|number| Term::from_field_u64(field, *number)).collect();
        if terms.len() > MAX_LOOKUPS {
            let expected = terms.len() as u64;
            return self.scan(&TermSetQuery::new(terms), expected);
        }
        let index = self.data.reader.inverted_index(field)?;
        let mut builder = DocSetBuilder::new(self.data.reader.max_doc(), terms.len() as u64);
        for term in terms {
            if Instant::now() > self.query.deadline {
                return Err(EvaluationError::DeadlineExceeded);
            }
            let Some(info) = index.get_term_info(&term)? else { continue };
            let mut postings = index.read_block_postings_from_terminfo(&info, IndexRecordOption::Basic)?;
            while !postings.docs().is_empty() {
                builder.add(postings.docs());
                postings.advance();
            }
        }
        Ok(builder.build())
    }

    /// Documents that match a query; `expected` is their approximate number.
    fn scan(&self, query: &dyn Query, expected: u64) -> Result<DocSet, EvaluationError> {
        let weight = query.weight(EnableScoring::disabled_from_schema(self.data.reader.schema()))?;
        let mut builder = DocSetBuilder::new(self.data.reader.max_doc(), expected);
        let mut scorer = weight.scorer(&self.data.reader, 1.0)?;
        let mut block = [0; COLLECT_BLOCK_BUFFER_LEN];
        loop {
            if Instant::now() > self.query.deadline {
                return Err(EvaluationError::DeadlineExceeded);
            }
            let count = scorer.fill_buffer(&mut block);
            builder.add(&block[..count]);
            if count < block.len() {
                return Ok(builder.build());
            }
        }
    }
}

/// Escapes a term for the engine's regexes, which support fewer escapes.
fn term_regex(term: &str) -> String {
    let mut pattern = String::with_capacity(term.len());
    for c in term.chars() {
        if matches!(c, '\\' | '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::columns::Key;
    use crowsnest_store::Seq;
    use rstest::rstest;
    use std::time::Duration;
    use tantivy::indexer::NoMergePolicy;
    use tantivy::{IndexWriter, TantivyDocument};

    /// Number of documents per segment, more than a block of postings has.
    const DOCS: u64 = 200;
    /// Key of all documents of the first segment.
    const COMMON: u64 = 9_999;

    /// Keys of a document. Those of the second segment have none.
    fn keys(id: u64) -> Vec<u64> {
        if id <= DOCS { vec![id / 2, 1_000 + id, COMMON] } else { Vec::new() }
    }

    /// An index with two segments.
    fn index() -> Arc<TextIndex> {
        let text = TextIndex::in_memory().unwrap();
        let mut writer: IndexWriter = text.writer(15_000_000).unwrap();
        writer.set_merge_policy(Box::new(NoMergePolicy));
        for id in 1..=2 * DOCS {
            let mut document = TantivyDocument::new();
            document.add_u64(text.columns.id, id);
            keys(id).into_iter().for_each(|key| document.add_u64(text.columns.key(Key::Uses), key));
            writer.add_document(document).unwrap();
            if id % DOCS == 0 {
                writer.commit().unwrap();
            }
        }
        text.reload(Seq(0), &|_, _, _| {}).unwrap();
        assert_eq!(text.snapshot().segments.len(), 2);
        text
    }

    /// Ids of the matching documents.
    fn find(text: &TextIndex, matches: &Match) -> Vec<u64> {
        let query = PreparedQuery::new(matches, text, Instant::now() + Duration::from_secs(60));
        let mut found = Vec::new();
        for segment in &text.snapshot().segments {
            let docs = query.evaluator(&segment.data).docs(matches).unwrap();
            docs.for_each_block(segment.data.max_doc(), |block| {
                found.extend(block.iter().filter_map(|doc| segment.data.ids.first(*doc)));
                true
            });
        }
        found.sort_unstable();
        found
    }

    #[rstest]
    #[case::only_absent(0)]
    #[case::looked_up(MAX_LOOKUPS as u64 / 2)]
    #[case::scanned(MAX_LOOKUPS as u64 + 50)]
    fn documents_are_found_by_their_numbers(#[case] count: u64) {
        let text = index();
        let numbers: IdSet = Arc::new((1..=count).chain([20_000, u64::MAX]).collect());
        let ids: Vec<u64> = (1..=2 * DOCS).filter(|id| numbers.contains(id)).collect();
        assert_eq!(find(&text, &Match::Ids(Arc::clone(&numbers))), ids);
        let with_key = |id: &u64| keys(*id).iter().any(|key| numbers.contains(key));
        let by_key: Vec<u64> = (1..=2 * DOCS).filter(with_key).collect();
        assert_eq!(find(&text, &Match::Keys(vec![Key::Uses, Key::Owner], numbers)), by_key);
    }

    #[test]
    fn all_documents_with_a_number_are_found() {
        let matches = Match::Keys(vec![Key::Uses], Arc::new([COMMON].into()));
        assert_eq!(find(&index(), &matches), (1..=DOCS).collect::<Vec<_>>());
    }
}
