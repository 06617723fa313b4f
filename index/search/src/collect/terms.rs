//! Frequent terms of a column, counted over current objects and earlier versions together, and sums of the numbers of the
//! objects that have a term.

use crate::collect::sums::amount_of;
use crate::document::Document;
use crate::document::columns::{Keyword, Number};
use crate::execute::Sources;
use crate::plan::predicate::Match;
use crowsnest_store::Error;
use std::collections::{BTreeSet, HashMap};

/// Terms, each with the number of documents that contain it.
pub(crate) type CountedTerms = Vec<(String, u64)>;

/// Sums by term, one for each requested number.
pub(crate) type TermSums = HashMap<String, Vec<i64>>;

/// Terms of earlier versions, by their requests.
pub(crate) type HistoryTerms = HashMap<TermsRequest, HistoryTermCounts>;

/// Requested terms of earlier versions.
#[derive(Debug, Clone, Default)]
pub(crate) struct HistoryTermCounts {
    /// Number of earlier versions that contain each term.
    pub counts: HashMap<String, u64>,
    /// Sums over these versions; empty if no numbers are requested.
    pub sums: TermSums,
}

/// A request for terms of a column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TermsRequest {
    /// Column of the terms. Terms of [`Keyword::Exact`] are `column=Value` with their case kept; terms of other columns are
    /// lower-case values.
    pub keyword: Keyword,
    /// Only terms that begin with this text.
    pub prefix: String,
    /// Only terms that contain this text.
    pub substring: String,
    /// Number of the most frequent terms to return; None returns all.
    pub limit: Option<usize>,
    /// Amounts ([`Number::is_amount`]) to sum for each term.
    pub sums: Vec<Number>,
}

/// Terms counted by an engine.
#[derive(Debug, Default)]
pub struct TermCounts {
    /// With a `limit`: by frequency, then by term. Otherwise unordered.
    pub counts: CountedTerms,
    /// Sums over the documents that contain each of these terms; empty if no numbers are requested.
    pub sums: TermSums,
    /// Some terms were not counted.
    pub incomplete: bool,
    /// Notices for the caller, a sentence each.
    pub notices: BTreeSet<String>,
}

impl TermsRequest {
    /// The requested terms of a document, equal to those in the index of an engine.
    pub fn terms_of(&self, document: &Document) -> BTreeSet<String> {
        let requested_term = |(keyword, value): &(Keyword, String)| match self.keyword {
            Keyword::Exact => {
                let (name, prefix) = (keyword.name(), self.prefix.as_str());
                let may_match = name.starts_with(prefix) || prefix.starts_with(name);
                (may_match && *keyword != Keyword::Qualified).then(|| format!("{name}={value}"))
            }
            column => (*keyword == column).then(|| value.to_lowercase()),
        };
        let terms = document.keywords.iter().filter_map(requested_term);
        terms.filter(|term| term.starts_with(&self.prefix) && term.contains(&self.substring)).collect()
    }
}

impl HistoryTermCounts {
    /// Counts the requested terms of a document, and adds its numbers.
    pub fn add_document(&mut self, document: &Document, terms_request: &TermsRequest) {
        let amounts: Vec<i64> = terms_request.sums.iter().map(|number| amount_of(document, *number)).collect();
        for term in terms_request.terms_of(document) {
            if !amounts.is_empty() {
                add_amounts(self.sums.entry(term.clone()).or_default(), &amounts);
            }
            *self.counts.entry(term).or_default() += 1;
        }
    }
}

/// Adds each amount to the sum of the same number. `sums` may be empty: a missing sum is 0.
fn add_amounts(sums: &mut Vec<i64>, amounts: &[i64]) {
    sums.resize(amounts.len(), 0);
    for (sum, amount) in sums.iter_mut().zip(amounts) {
        *sum = sum.saturating_add(*amount);
    }
}

/// Counts the terms of current objects that match, together with those of earlier versions.
pub(crate) async fn count_terms(
    sources: &Sources,
    current_matches: &Match,
    history_counts: Option<&HistoryTermCounts>,
    terms_request: &TermsRequest,
) -> Result<TermCounts, Error> {
    let Some(history_counts) = history_counts.filter(|history| !history.counts.is_empty()) else {
        return sources.engine.terms(&sources.context, current_matches, terms_request).await;
    };
    // All terms are counted, because a term may be among the most frequent only by the sum of both counts.
    let all = TermsRequest { limit: None, ..terms_request.clone() };
    let current = sources.engine.terms(&sources.context, current_matches, &all).await?;
    Ok(add_history(current, history_counts, terms_request.limit))
}

/// Adds the counts and sums of earlier versions, and removes all but the most frequent terms.
fn add_history(current: TermCounts, history_counts: &HistoryTermCounts, limit: Option<usize>) -> TermCounts {
    let TermCounts { counts: current, mut sums, incomplete, notices } = current;
    for (text, amounts) in &history_counts.sums {
        add_amounts(sums.entry(text.clone()).or_default(), amounts);
    }
    let mut counts = history_counts.counts.clone();
    current.into_iter().for_each(|(text, count)| *counts.entry(text).or_default() += count);
    let mut counts: CountedTerms = counts.into_iter().collect();
    counts.sort_unstable_by(|(a, x), (b, y)| y.cmp(x).then_with(|| a.cmp(b)));
    for (text, _) in counts.drain(limit.unwrap_or(usize::MAX).min(counts.len())..) {
        sums.remove(&text);
    }
    TermCounts { counts, sums, incomplete, notices }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::all(None, &[("b", 5, 50), ("a", 4, 40), ("c", 1, 10)])]
    #[case::the_most_frequent(Some(2), &[("b", 5, 50), ("a", 4, 40)])]
    #[case::fewer_than_the_limit(Some(9), &[("b", 5, 50), ("a", 4, 40), ("c", 1, 10)])]
    fn terms_of_versions_are_added(#[case] limit: Option<usize>, #[case] expected: &[(&str, u64, i64)]) {
        let counts = |terms: &[(&str, u64, i64)]| -> CountedTerms {
            terms.iter().map(|(text, count, _)| ((*text).to_owned(), *count)).collect()
        };
        let sums = |terms: &[(&str, u64, i64)]| -> TermSums {
            terms.iter().map(|(text, _, sum)| ((*text).to_owned(), vec![*sum])).collect()
        };
        let (current, before) = ([("a", 4, 40), ("b", 2, 20)], [("b", 3, 30), ("c", 1, 10)]);
        let history = HistoryTermCounts { counts: counts(&before).into_iter().collect(), sums: sums(&before) };
        let current =
            TermCounts { counts: counts(&current), sums: sums(&current), incomplete: true, ..TermCounts::default() };
        let found = add_history(current, &history, limit);
        assert_eq!((found.counts, found.sums, found.incomplete), (counts(expected), sums(expected), true));
    }

    #[test]
    fn terms_of_versions_have_sums() {
        let document = |labels: &[&str], cpu: Option<i64>| {
            let mut document = Document::default();
            document.keywords.extend(labels.iter().map(|label| (Keyword::Label, (*label).to_owned())));
            document.numbers.extend(cpu.map(|cpu| (Number::CpuRequest, cpu)));
            document
        };
        let request = |sums: &[Number]| TermsRequest {
            keyword: Keyword::Exact,
            prefix: "label=app=".to_owned(),
            substring: String::new(),
            limit: None,
            sums: sums.to_vec(),
        };
        let count = |sums: &[Number]| {
            let mut found = HistoryTermCounts::default();
            for document in [
                document(&["app=Web", "tier=x"], Some(250)),
                document(&["app=Web"], Some(500)),
                document(&["app=db"], None),
            ] {
                found.add_document(&document, &request(sums));
            }
            found
        };
        let (web, db) = ("label=app=Web".to_owned(), "label=app=db".to_owned());
        let HistoryTermCounts { counts, sums } = count(&[Number::Restarts, Number::CpuRequest]);
        assert_eq!(counts, HashMap::from([(web.clone(), 2), (db.clone(), 1)]));
        assert_eq!(sums, HashMap::from([(web, vec![0, 750]), (db, vec![0, 0])]));
        assert_eq!(count(&[]).sums, HashMap::new());
    }
}
