//! The most frequent terms of a column within a set of documents.
//!
//! In segments with very many terms, only the most frequent ones are considered. A term that is frequent overall is
//! frequent in at least one segment, unless terms are spread very evenly; then any selection is equally good.

mod segment;

use crate::collect::terms::{TermCounts, TermsRequest};
use crate::engine::SearchContext;
use crate::plan::predicate::Match;
use crate::tantivy::reader::lookup::SegmentLookup;
use crowsnest_store::Error;
use segment::{Candidates, TermCounter, find_candidates};
use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use tantivy::postings::TermInfo;

/// Maximum number of candidates of all segments, if some segments contributed only a part of their terms.
const MAX_TERMS_IN_ALL: usize = 256;
/// Maximum number of postings that are read.
const MAX_POSTINGS: u64 = 4_000_000;

impl SegmentLookup<'_> {
    /// Terms of the matching objects that the caller may read.
    pub(crate) fn terms(mut self, matches: &Match, terms_request: &TermsRequest) -> Result<TermCounts, Error> {
        let context = self.context.clone();
        let field = self.text.columns.keyword(terms_request.keyword);
        let matching_segments = self.map_matching(matches, |segment, docs| {
            if docs.is_empty() {
                return Ok(None);
            }
            let terms = segment.data.reader.inverted_index(field)?;
            let found = Candidates::read(&terms, terms_request, &context)?;
            Ok(Some((TermCounter::new(segment, docs, terms, &terms_request.sums)?, found)))
        })?;
        let (mut counters, mut found) = (Vec::new(), HashMap::<String, Term>::new());
        let mut incomplete_segments = Vec::new();
        for (segment, terms) in matching_segments.into_iter().flatten() {
            self.truncated |= terms.truncated;
            for (text, info) in terms.all {
                found.entry(text).or_default().add_occurrence(counters.len(), info);
            }
            if terms.left_out {
                incomplete_segments.push(counters.len());
            }
            counters.push(segment);
        }
        let fail = |error| Error::text("cannot be searched", error);
        let mut found = sort_by_frequency(found);
        if !incomplete_segments.is_empty() {
            found.truncate(MAX_TERMS_IN_ALL);
            let occurrences = self.text.map_parts(incomplete_segments.iter(), |at| {
                find_candidates(&counters[*at].terms, &terms_request.prefix, &found)
            });
            let occurrences = occurrences.map_err(fail)?;
            for (at, segment_occurrences) in incomplete_segments.into_iter().zip(occurrences) {
                for (term, info) in segment_occurrences {
                    found[term].1.add_occurrence(at, info);
                }
            }
            found.sort_unstable_by(by_frequency);
        }
        let mut counts = count_most_frequent(&mut counters, found, terms_request, &context).map_err(fail)?;
        counts.incomplete |= self.truncated;
        Ok(counts)
    }
}

/// A term in all segments.
#[derive(Default)]
struct Term {
    /// Number of documents with the term, including deleted and unreadable ones; an upper bound.
    frequency: u64,
    /// Position by segment.
    positions: Vec<(usize, TermInfo)>,
}

impl Term {
    /// Adds the term's occurrence in a segment, unless it is already known.
    fn add_occurrence(&mut self, segment: usize, info: TermInfo) {
        if self.positions.iter().any(|(existing, _)| *existing == segment) {
            return;
        }
        self.frequency += u64::from(info.doc_freq);
        self.positions.push((segment, info));
    }
}

fn by_frequency((a, x): &(String, Term), (b, y): &(String, Term)) -> Ordering {
    y.frequency.cmp(&x.frequency).then_with(|| a.cmp(b))
}

/// Terms by descending number of documents.
fn sort_by_frequency(found: HashMap<String, Term>) -> Vec<(String, Term)> {
    let mut terms: Vec<(String, Term)> = found.into_iter().collect();
    terms.sort_unstable_by(by_frequency);
    terms
}

/// Counts terms in descending order of their upper bounds, until no other can be among the most frequent. The result is
/// incomplete if candidates were omitted.
fn count_most_frequent(
    counters: &mut [TermCounter],
    terms: Vec<(String, Term)>,
    terms_request: &TermsRequest,
    context: &SearchContext,
) -> tantivy::Result<TermCounts> {
    let (mut top, mut checked, mut incomplete) = (TopTerms::new(terms_request.limit), 0, false);
    for (text, term) in terms {
        if !top.accepts(term.frequency, &text) {
            break;
        }
        // At least one term is counted, even if the request is over.
        if checked > MAX_POSTINGS || !top.terms.is_empty() && context.is_over() {
            incomplete = true;
            break;
        }
        checked += term.frequency;
        let (mut count, mut sums) = (0, vec![0; terms_request.sums.len()]);
        for (segment, info) in &term.positions {
            count += counters[*segment].count(info, &mut sums)?;
        }
        top.add(text, count, sums);
    }
    Ok(TermCounts { incomplete, ..top.into_counts() })
}

/// A counted term with its sums. The most frequent terms are the smallest.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RankedTerm {
    count: Reverse<u64>,
    text: String,
    sums: Vec<i64>,
}

/// The most frequent terms among those added, with their sums.
struct TopTerms {
    /// Maximum number of terms; None keeps all.
    limit: Option<usize>,
    /// In ascending order if there is a limit.
    terms: Vec<RankedTerm>,
}

impl TopTerms {
    fn new(limit: Option<usize>) -> Self {
        Self { limit, terms: Vec::new() }
    }

    /// False if a term with at most this count cannot be among the most frequent.
    fn accepts(&self, max_count: u64, text: &str) -> bool {
        let is_full = self.limit.is_some_and(|limit| self.terms.len() >= limit);
        let rank = (Reverse(max_count), text);
        !is_full || self.terms.last().is_some_and(|worst| rank < (worst.count, worst.text.as_str()))
    }

    /// Adds a term, unless its count is 0, and removes the least frequent one beyond the limit.
    fn add(&mut self, text: String, count: u64, sums: Vec<i64>) {
        if count == 0 {
            return;
        }
        let term = RankedTerm { count: Reverse(count), text, sums };
        match self.limit {
            None => self.terms.push(term),
            Some(limit) => {
                let at = self.terms.partition_point(|other| *other < term);
                self.terms.insert(at, term);
                self.terms.truncate(limit);
            }
        }
    }

    fn into_counts(self) -> TermCounts {
        let mut found = TermCounts::default();
        for RankedTerm { count: Reverse(count), text, sums } in self.terms {
            if !sums.is_empty() {
                found.sums.insert(text.clone(), sums);
            }
            found.counts.push((text, count));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorization::RbacRules;
    use crate::collect::terms::{CountedTerms, TermSums};
    use crate::document::Document;
    use crate::document::columns::{Keyword, Number};
    use crate::tantivy::TextIndex;
    use crowsnest_apimachinery::user::UserInfo;
    use crowsnest_store::fixtures::stored;
    use rstest::rstest;
    use serde_json::json;
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    /// Values of a label: smaller numbers are more frequent, and each segment has more values than are considered.
    fn values() -> Vec<usize> {
        let values = (0..400).flat_map(|value| std::iter::repeat_n(value, 1 + 800 / (value + 20)));
        let mut values: Vec<usize> = values.collect();
        // Shuffled reproducibly.
        let mut at = 0_usize;
        values.sort_by_cached_key(|_| {
            at += 1;
            at * 7919 % 4_001
        });
        values
    }

    /// Each term has its count as its sum.
    #[rstest]
    #[case::all(None, &[("b", 2), ("a", 2), ("c", 7)])]
    #[case::the_most_frequent(Some(2), &[("c", 7), ("a", 2)])]
    #[case::none(Some(0), &[])]
    fn terms_beyond_the_limit_are_removed(#[case] limit: Option<usize>, #[case] expected: &[(&str, u64)]) {
        let mut top = TopTerms::new(limit);
        for (text, count) in [("b", 2), ("a", 2), ("c", 7), ("d", 0)] {
            top.add(text.to_owned(), count, vec![count as i64]);
        }
        let TermCounts { counts, sums, .. } = top.into_counts();
        let expected: CountedTerms = expected.iter().map(|(text, count)| ((*text).to_owned(), *count)).collect();
        assert_eq!(counts, expected);
        assert_eq!(sums, expected.into_iter().map(|(text, count)| (text, vec![count as i64])).collect());
    }

    #[rstest]
    #[case::no_limit(None, 0, "z", true)]
    #[case::room(Some(3), 1, "z", true)]
    #[case::more_frequent(Some(2), 3, "z", true)]
    #[case::as_frequent_and_earlier(Some(2), 2, "a", true)]
    #[case::as_frequent_and_later(Some(2), 2, "c", false)]
    #[case::less_frequent(Some(2), 1, "a", false)]
    #[case::nothing_requested(Some(0), 9, "a", false)]
    fn terms_that_cannot_be_frequent_are_skipped(
        #[case] limit: Option<usize>,
        #[case] max_count: u64,
        #[case] text: &str,
        #[case] expected: bool,
    ) {
        let mut top = TopTerms::new(limit);
        top.add("b".to_owned(), 2, Vec::new());
        top.add("x".to_owned(), 5, Vec::new());
        assert_eq!(top.accepts(max_count, text), expected);
    }

    #[rstest]
    #[case::the_most_frequent("app=v", "", Some(20))]
    #[case::by_substring("app=v", "9", Some(20))]
    #[case::few_terms_are_all_counted("app=v39", "", Some(20))]
    #[case::all_terms("app=v", "", None)]
    fn counts_equal_a_full_count(#[case] prefix: &str, #[case] part: &str, #[case] max_terms: Option<usize>) {
        let text = TextIndex::in_memory().unwrap();
        let mut writer: tantivy::IndexWriter = text.writer(15_000_000).unwrap();
        writer.set_merge_policy(Box::new(tantivy::indexer::NoMergePolicy));
        let values = values();
        for (nth, value) in values.iter().enumerate() {
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata":
                {"namespace": "x", "name": format!("web-{nth}"), "labels": {"app": format!("v{value}")}},
                "spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": format!("{nth}m")}}}]}});
            let document = Document::from_object(&stored("member1", nth as u64 + 1, &pod)).unwrap();
            writer.add_document(document.to_tantivy(&text.columns)).unwrap();
            if nth % 700 == 699 {
                writer.commit().unwrap();
            }
        }
        writer.commit().unwrap();
        text.reload(crowsnest_store::Seq(0), &|_, _, _| {}).unwrap();
        let permissions = Arc::new(RbacRules::default()).for_caller(&UserInfo::system());
        let context = SearchContext::new(permissions, Instant::now(), Duration::from_secs(60));
        let terms_request = TermsRequest {
            keyword: Keyword::Label,
            prefix: prefix.to_owned(),
            substring: part.to_owned(),
            limit: max_terms,
            sums: vec![Number::CpuRequest, Number::Restarts],
        };
        let TermCounts { counts: found, sums, incomplete, .. } =
            SegmentLookup::new(&text, &context).terms(&Match::All, &terms_request).unwrap();
        assert!(!incomplete);

        let (mut counts, mut amounts) = (BTreeMap::<String, u64>::new(), BTreeMap::<String, i64>::new());
        for (nth, value) in values.iter().enumerate() {
            *counts.entry(format!("app=v{value}")).or_default() += 1;
            *amounts.entry(format!("app=v{value}")).or_default() += nth as i64;
        }
        let summed: TermSums = found.iter().map(|(text, _)| (text.clone(), vec![amounts[text], 0])).collect();
        assert_eq!(sums, summed, "only the returned terms have sums");
        let mut expected: CountedTerms =
            counts.into_iter().filter(|(text, _)| text.starts_with(prefix) && text.contains(part)).collect();
        match max_terms {
            Some(max_terms) => {
                expected.sort_by(|(a, x), (b, y)| y.cmp(x).then_with(|| a.cmp(b)));
                expected.truncate(max_terms);
                assert_eq!(found, expected);
            }
            None => assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected.into_iter().collect()),
        }
    }
}
