//! The most frequent terms of a column within a set of documents.
//!
//! In segments with very many terms, only the most frequent ones are considered. A term that is frequent overall is
//! frequent in at least one segment, unless terms are spread very evenly; then any selection is equally good.

mod segment;

use crate::collect::terms::{TermCounts, TermSums, TermsRequest};
use crate::plan::predicate::Match;
use crate::tantivy::reader::lookup::SegmentLookup;
use crowsnest_store::Error;
use segment::{Candidates, TermCounter, find_candidates};
use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::time::Instant;
use tantivy::postings::TermInfo;

/// Maximum number of candidates of all segments, if some segments contributed only a part of their terms.
const MAX_TERMS_IN_ALL: usize = 256;
/// Maximum number of postings that are read.
const MAX_POSTINGS: u64 = 4_000_000;

impl SegmentLookup<'_> {
    /// Terms of the matching objects that the caller may read.
    pub(crate) fn terms(mut self, matches: &Match, terms_request: &TermsRequest) -> Result<TermCounts, Error> {
        let deadline = self.deadline;
        let field = self.text.columns.keyword(terms_request.keyword);
        let matching_segments = self.map_matching(matches, |segment, docs| {
            if docs.is_empty() {
                return Ok(None);
            }
            let terms = segment.data.reader.inverted_index(field)?;
            let found = Candidates::read(&terms, terms_request, deadline)?;
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
        let mut counts = count_most_frequent(&mut counters, found, terms_request, deadline).map_err(fail)?;
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
    deadline: Instant,
) -> tantivy::Result<TermCounts> {
    let (limit, number_count) = (terms_request.limit, terms_request.sums.len());
    let (mut best, mut checked, mut incomplete) = (Vec::<(Reverse<u64>, String)>::new(), 0, false);
    let mut sums = TermSums::new();
    for (text, term) in terms {
        let rank = (Reverse(term.frequency), text);
        if limit.is_some_and(|limit| best.len() >= limit && best.last().is_none_or(|worst| *worst <= rank)) {
            break;
        }
        // At least one term is counted, even after the deadline.
        if checked > MAX_POSTINGS || !best.is_empty() && Instant::now() > deadline {
            incomplete = true;
            break;
        }
        checked += term.frequency;
        let (mut count, mut amounts) = (0, vec![0; number_count]);
        for (segment, info) in &term.positions {
            count += counters[*segment].count(info, &mut amounts)?;
        }
        if count == 0 {
            continue;
        }
        if number_count > 0 {
            sums.insert(rank.1.clone(), amounts);
        }
        let rank = (Reverse(count), rank.1);
        if let Some(limit) = limit {
            let at = best.partition_point(|other| *other < rank);
            best.insert(at, rank);
            best.truncate(limit);
        } else {
            best.push(rank);
        }
    }
    let counts = best.into_iter().map(|(Reverse(count), text)| (text, count)).collect();
    Ok(TermCounts { counts, sums, incomplete, ..TermCounts::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorization::RbacRules;
    use crate::collect::terms::CountedTerms;
    use crate::document::Document;
    use crate::document::columns::{Keyword, Number};
    use crate::engine::SearchContext;
    use crate::tantivy::TextIndex;
    use crowsnest_apimachinery::user::UserInfo;
    use crowsnest_store::fixtures::stored;
    use parking_lot::Mutex;
    use rstest::rstest;
    use serde_json::json;
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;
    use std::time::Duration;

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
        let permissions = Arc::new(Mutex::new(Arc::new(RbacRules::default()).for_caller(&UserInfo::system())));
        let deadline = Instant::now() + Duration::from_secs(60);
        let context = SearchContext { permissions, requested_at: Instant::now(), deadline };
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
        for (text, _) in &found {
            assert_eq!(sums[text], [amounts[text], 0], "{text}");
        }
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
