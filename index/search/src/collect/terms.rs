//! Frequent terms of a column, counted over current objects and earlier versions together.

use crate::document::Document;
use crate::document::columns::Keyword;
use crate::execute::Sources;
use crate::plan::predicate::Match;
use crowsnest_store::Error;
use std::collections::{BTreeSet, HashMap};

/// Terms, each with the number of documents that contain it.
pub(crate) type CountedTerms = Vec<(String, u64)>;

/// Number of earlier versions that contain each term.
pub(crate) type HistoryTermCounts = HashMap<String, u64>;

/// A request for terms of a column.
#[derive(Debug, Clone)]
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
}

/// Terms counted by an engine.
#[derive(Debug, Default)]
pub struct TermCounts {
    /// With a `limit`: by frequency, then by term. Otherwise unordered.
    pub counts: CountedTerms,
    /// Some terms were not counted.
    pub incomplete: bool,
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

/// Counts the terms of current objects that match, together with those of earlier versions.
pub(crate) async fn count_terms(
    sources: &Sources,
    current_matches: &Match,
    before: Option<&HistoryTermCounts>,
    terms_request: &TermsRequest,
) -> Result<TermCounts, Error> {
    let Some(before) = before.filter(|before| !before.is_empty()) else {
        return sources.engine.terms(&sources.context, current_matches, terms_request).await;
    };
    // All terms are counted, because a term may be among the most frequent only by the sum of both counts.
    let all = TermsRequest { limit: None, ..terms_request.clone() };
    let TermCounts { counts: current, incomplete } =
        sources.engine.terms(&sources.context, current_matches, &all).await?;
    let mut counts = before.clone();
    current.into_iter().for_each(|(text, count)| *counts.entry(text).or_default() += count);
    let mut counts: CountedTerms = counts.into_iter().collect();
    counts.sort_unstable_by(|(a, x), (b, y)| y.cmp(x).then_with(|| a.cmp(b)));
    counts.truncate(terms_request.limit.unwrap_or(usize::MAX));
    Ok(TermCounts { counts, incomplete })
}
