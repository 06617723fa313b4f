//! Conditions of a plan as queries of an engine.
//!
//! Each leaf of a [`Match`] finds the documents that the text index finds ([`crate::tantivy::reader::doc_sets`]) and scores them the
//! same, by sums of constants ([`crate::plan::score`]). Measured on OpenSearch 2.19.6 and 3.9.0 and on Elasticsearch 7.17.28.

mod leaves;
pub mod query;

use super::fields::ID;
use super::model::{IdSet, Match};
use super::paths::path_query;
use super::template::MAX_TERMS;
use query::Query;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum number of clauses of a translated condition.
pub const MAX_CLAUSES: usize = 900;
/// Maximum number of clauses of a request, including permissions and sort order. OpenSearch accepts 1,024 and responds with
/// HTTP 500 above that (2.19).
pub const MAX_REQUEST_CLAUSES: usize = 1_000;
/// Maximum nesting of `bool` queries. Elasticsearch accepts 20; the rest is reserved for permissions and sort order.
pub const MAX_DEPTH: usize = 18;

/// A query that exceeds the limits of the supported engines.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DslError {
    #[error("the expanded query has {0} conditions; the search engine accepts at most {MAX_CLAUSES}; split it")]
    Clauses(usize),
    #[error(
        "the query, the caller's permissions and the sort order have {0} conditions in total; the search engine accepts \
         at most {MAX_REQUEST_CLAUSES}"
    )]
    Request(usize),
    #[error("the expanded query is nested {0} levels deep; the search engine accepts at most {MAX_DEPTH}")]
    Depth(usize),
    #[error("the query needs {0} values at once; the search engine accepts at most {MAX_TERMS}; narrow it")]
    Terms(usize),
}

/// Facts found by earlier requests, which a translation depends on.
#[derive(Debug, Clone, Default)]
pub struct TranslationInputs {
    /// Last words of phrases that are prefixes of more than [`query::MAX_EXPANSIONS`] terms: see [`phrase_ends`].
    pub broad_phrase_ends: BTreeSet<String>,
    /// Records of [`Translation::candidates`] whose manifests were read and meet the condition.
    pub examined: Option<IdSet>,
}

/// A translated condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Translation {
    pub query: Query,
    /// Records whose manifests must be read, because their indexed path terms do not decide the condition. The query matches
    /// only those that are in [`TranslationInputs::examined`].
    pub candidates: Option<Query>,
    /// Notices about the response: unsupported patterns, phrases for which more messages match.
    pub notices: BTreeSet<String>,
}

/// Translates a condition whose relations and changes have been resolved. Unresolved ones match every document.
pub fn translate(matches: &Match, inputs: &TranslationInputs) -> Result<Translation, DslError> {
    let mut translator = Translator { inputs, notices: BTreeSet::new(), max_terms: 0 };
    let (query, candidates) = translator.query_with_paths(matches);
    let checked = [Some(&query), candidates.as_ref()];
    for query in checked.into_iter().flatten() {
        if query.clauses() > MAX_CLAUSES {
            return Err(DslError::Clauses(query.clauses()));
        }
        if query.depth() > MAX_DEPTH {
            return Err(DslError::Depth(query.depth()));
        }
    }
    if translator.max_terms > MAX_TERMS {
        return Err(DslError::Terms(translator.max_terms));
    }
    Ok(Translation { query, candidates, notices: translator.notices })
}

/// True if path terms evaluate the condition exactly, except for the objects of [`Translation::candidates`], and the
/// query is within the engine's limits.
pub fn evaluates_paths(matches: &Match) -> bool {
    let inputs = TranslationInputs { examined: Some(Arc::new(BTreeSet::from([0]))), ..TranslationInputs::default() };
    undecided_query(matches).is_some() && translate(matches, &inputs).is_ok()
}

/// Last words of the phrases in a condition, as terms of the field `message`. Those that are prefixes of too many terms
/// belong in [`TranslationInputs::broad_phrase_ends`].
pub fn phrase_ends(matches: &Match) -> BTreeSet<String> {
    let ends = std::cell::RefCell::new(BTreeSet::new());
    matches.contains(&|part| {
        ends.borrow_mut().extend(leaves::phrase_end(part));
        false
    });
    ends.into_inner()
}

struct Translator<'k> {
    inputs: &'k TranslationInputs,
    notices: BTreeSet<String>,
    /// Number of values in the largest `terms` query of ids or keys.
    max_terms: usize,
}

impl Translator<'_> {
    /// The query, and the candidates whose manifests must be read for it. Conditions on paths do not contribute to the
    /// score, as in engines for which they are resolved in advance.
    fn query_with_paths(&mut self, matches: &Match) -> (Query, Option<Query>) {
        if !matches.needs_bodies() {
            return (self.query(matches), None);
        }
        let without_paths = self.query(&matches.without_paths());
        let Some(undecided) = undecided_query(matches) else {
            // The path terms do not decide the condition for any document.
            let found = query::all(vec![without_paths.clone(), self.examined_records()]);
            return (found, Some(without_paths));
        };
        let decided = query::all(vec![self.query(matches), query::not(undecided.clone())]);
        let candidates = query::all(vec![without_paths.clone(), undecided]);
        let found = query::without_scores(query::any(vec![decided, self.examined_records()]));
        match without_paths.score_is_zero() {
            true => (found, Some(candidates)),
            false => (query::all(vec![without_paths, found]), Some(candidates)),
        }
    }

    fn examined_records(&mut self) -> Query {
        match &self.inputs.examined {
            Some(ids) => self.ids(ID, ids),
            None => Query::None,
        }
    }

    fn query(&mut self, matches: &Match) -> Query {
        match matches {
            Match::All => Query::All,
            Match::None => Query::None,
            Match::And(parts) => query::all(parts.iter().map(|part| self.query(part)).collect()),
            Match::Or(parts) => self.any(parts),
            Match::Not(inner) => query::not(self.query(inner)),
            Match::WithReason(_, _, inner) => self.query(inner),
            // Resolved before the translation. An unresolved one must not exclude documents.
            Match::Relation(_) | Match::Changed(_) => Query::All,
            Match::Path(path) => path_query(path).map_or(Query::All, |path| path.query),
            leaf => self.leaf(leaf),
        }
    }

    /// Combines alternative values of one column into a single clause.
    fn any(&mut self, parts: &[Match]) -> Query {
        let mut fields: Vec<(String, Vec<Value>)> = Vec::new();
        let mut rest = Vec::new();
        for part in parts {
            match leaves::field_value(part) {
                Some((field, value)) => match fields.iter_mut().find(|(existing, _)| *existing == field) {
                    Some((_, values)) => values.push(value.into()),
                    None => fields.push((field, vec![value.into()])),
                },
                None => rest.push(self.query(part)),
            }
        }
        let fields = fields.into_iter().map(|(field, values)| match values.as_slice() {
            [Value::String(one)] => query::term(&field, one),
            _ => query::terms(&field, values),
        });
        query::any(fields.chain(rest).collect())
    }

    fn ids(&mut self, field: &str, numbers: &IdSet) -> Query {
        self.max_terms = self.max_terms.max(numbers.len());
        query::terms(field, numbers.iter().map(|number| to_signed(*number).into()).collect())
    }
}

/// A record id or key as a signed number, because Elasticsearch 7.17 has unsigned ones only in a licensed module.
pub fn to_signed(number: u64) -> i64 {
    number.cast_signed()
}

/// Query for objects whose indexed path terms are incomplete; `None` if a path cannot be decided by terms at all.
fn undecided_query(matches: &Match) -> Option<Query> {
    let (queries, can_decide) = (std::cell::RefCell::new(Vec::new()), std::cell::Cell::new(true));
    matches.contains(&|part| {
        if let Match::Path(path) = part {
            match path_query(path) {
                Some(path) => queries.borrow_mut().extend(path.undecided),
                None => can_decide.set(false),
            }
        }
        false
    });
    let mut queries = queries.into_inner();
    let mut seen = Vec::new();
    queries.retain(|query| {
        let is_new = !seen.contains(query);
        if is_new {
            seen.push(query.clone());
        }
        is_new
    });
    can_decide.get().then(|| query::any(queries))
}
