//! Queries of an engine as values, and their JSON.

use serde_json::{Value, json};

/// Maximum number of states of a determinized automaton. The default, 10,000, is too low for two edits of a long word.
const MAX_STATES: u32 = 1_000_000;

/// Maximum number of terms to which the last word of a phrase expands. An engine uses 50 by default and silently omits others;
/// 4,096 took up to 120 ms, 16,384 up to 6 s.
pub const MAX_EXPANSIONS: usize = 4_096;

/// Maximum length of a prefix in bytes. Lucene rejects automata deeper than 1,000 states (400 `input automaton is too large`); no
/// term that is searched by prefix is that long.
pub const MAX_PREFIX_BYTES: usize = 900;

/// A bound of a range of strings.
#[derive(Debug, Clone, PartialEq)]
pub enum Bound {
    Included(String),
    Excluded(String),
}

/// A query in a form that can be combined and simplified before it is serialized.
#[derive(Debug, Clone, PartialEq)]
pub enum Query {
    All,
    None,
    /// A query of one field or of several terms, and the number of clauses that an engine counts for it.
    Leaf(Value, usize),
    /// All of `filter` and of `scored` match, and none of `excluded`. Only those in `scored` score.
    And {
        scored: Vec<Query>,
        filter: Vec<Query>,
        excluded: Vec<Query>,
    },
    /// At least one condition must match.
    Or(Vec<Query>),
    /// A constant score for matching documents.
    ConstantScore(Box<Query>, f32),
}

pub fn term(field: &str, value: &str) -> Query {
    Query::Leaf(json!({"term": {field: value}}), 1)
}

/// Matches any of the values. Counts as one clause, regardless of their number.
pub fn terms(field: &str, values: Vec<Value>) -> Query {
    match values.is_empty() {
        true => Query::None,
        false => Query::Leaf(json!({"terms": {field: values}}), 1),
    }
}

/// Documents with any value in the field.
pub fn exists(field: &str) -> Query {
    Query::Leaf(json!({"exists": {"field": field}}), 1)
}

pub fn prefix(field: &str, value: &str) -> Query {
    match value.len() > MAX_PREFIX_BYTES {
        true => Query::None,
        false => Query::Leaf(json!({"prefix": {field: value}}), 1),
    }
}

pub fn wildcard(field: &str, pattern: &str) -> Query {
    Query::Leaf(json!({"wildcard": {field: {"value": pattern}}}), 1)
}

/// `pattern` is in Lucene's dialect without its optional operators.
pub fn regexp(field: &str, pattern: &str) -> Query {
    let regexp = json!({"value": pattern, "flags": "NONE", "max_determinized_states": MAX_STATES});
    Query::Leaf(json!({"regexp": {field: regexp}}), 1)
}

/// Matches all terms within the distance. By default, an engine silently uses only 50 of them.
pub fn fuzzy(field: &str, word: &str, distance: u8) -> Query {
    let fuzzy = json!({"value": word, "fuzziness": distance, "rewrite": "constant_score"});
    Query::Leaf(json!({"fuzzy": {field: fuzzy}}), 1)
}

pub fn range(field: &str, from: Bound, to: Bound) -> Query {
    let (Bound::Included(low) | Bound::Excluded(low)) = &from;
    let (Bound::Included(high) | Bound::Excluded(high)) = &to;
    let lower_operator = if matches!(from, Bound::Included(_)) { "gte" } else { "gt" };
    let upper_operator = if matches!(to, Bound::Included(_)) { "lte" } else { "lt" };
    Query::Leaf(json!({"range": {field: {lower_operator: low, upper_operator: high}}}), 1)
}

pub fn numbers(field: &str, from: Option<i64>, to: Option<i64>) -> Query {
    let ends =
        [("gte", from), ("lte", to)].into_iter().filter_map(|(end, value)| Some((end.to_owned(), value?.into())));
    let ends: serde_json::Map<String, Value> = ends.collect();
    Query::Leaf(json!({"range": {field: ends}}), 1)
}

/// Consecutive terms; `text` has the form that the field's analyzer splits.
pub fn phrase(field: &str, text: &str) -> Query {
    Query::Leaf(json!({"match_phrase": {field: text}}), 1)
}

/// Like [`phrase`], but the last of the `words` terms is a prefix.
pub fn phrase_prefix(field: &str, text: &str, words: usize) -> Query {
    let phrase = json!({"query": text, "max_expansions": MAX_EXPANSIONS});
    Query::Leaf(json!({"match_phrase_prefix": {field: phrase}}), words)
}

pub fn none() -> Query {
    Query::None
}

pub fn any(mut queries: Vec<Query>) -> Query {
    queries.retain(|query| *query != Query::None);
    if queries.contains(&Query::All) && queries.iter().all(|query| query.score_is_zero()) {
        return Query::All;
    }
    match queries.len() {
        0 => Query::None,
        1 => queries.remove(0),
        _ => Query::Or(queries),
    }
}

/// All conditions must match; their scores are summed.
pub fn all(queries: Vec<Query>) -> Query {
    let (mut scored, mut filter, mut excluded) = (Vec::new(), Vec::new(), Vec::new());
    for query in queries {
        match query {
            Query::All => {}
            Query::None => return Query::None,
            Query::And { scored: inner, filter: filters, excluded: without } => {
                scored.extend(inner);
                filter.extend(filters);
                excluded.extend(without);
            }
            query if query.score_is_zero() => filter.push(query),
            query => scored.push(query),
        }
    }
    match (scored.len(), filter.len(), excluded.len()) {
        (0, 0, 0) => Query::All,
        (1, 0, 0) => scored.remove(0),
        (0, 1, 0) => filter.remove(0),
        _ => Query::And { scored, filter, excluded },
    }
}

pub fn not(query: Query) -> Query {
    match query {
        Query::All => Query::None,
        Query::None => Query::All,
        Query::And { scored, filter, mut excluded }
            if scored.is_empty() && filter.is_empty() && excluded.len() == 1 =>
        {
            without_scores(excluded.remove(0))
        }
        query => Query::And { scored: Vec::new(), filter: Vec::new(), excluded: vec![query] },
    }
}

/// Finds the documents of a query without scores.
pub fn without_scores(query: Query) -> Query {
    match query.score_is_zero() {
        true => query,
        false => Query::And { scored: Vec::new(), filter: vec![query], excluded: Vec::new() },
    }
}

pub fn constant_score(query: Query, score: f32) -> Query {
    if query == Query::None { query } else { Query::ConstantScore(Box::new(query), score) }
}

impl Query {
    /// True if hits of this query have the score 0.
    pub fn score_is_zero(&self) -> bool {
        match self {
            Self::ConstantScore(..) => false,
            Self::Or(parts) => parts.iter().all(Self::score_is_zero),
            Self::And { scored, .. } => scored.is_empty(),
            Self::All | Self::None | Self::Leaf(..) => true,
        }
    }

    /// Number of clauses that an engine counts.
    pub fn clauses(&self) -> usize {
        match self {
            Self::All | Self::None => 1,
            Self::Leaf(_, clauses) => *clauses,
            Self::ConstantScore(inner, _) => inner.clauses(),
            Self::Or(parts) => parts.iter().map(Self::clauses).sum(),
            Self::And { scored, filter, excluded } => {
                scored.iter().chain(filter).chain(excluded).map(Self::clauses).sum()
            }
        }
    }

    /// Nesting depth of `bool` queries.
    pub fn depth(&self) -> usize {
        let deepest = |parts: &mut dyn Iterator<Item = &Self>| 1 + parts.map(Self::depth).max().unwrap_or_default();
        match self {
            Self::All | Self::None | Self::Leaf(..) => 0,
            Self::ConstantScore(inner, _) => inner.depth(),
            Self::Or(parts) => deepest(&mut parts.iter()),
            Self::And { scored, filter, excluded } => deepest(&mut scored.iter().chain(filter).chain(excluded)),
        }
    }

    /// JSON of the query with constant scores for its [`Query::ConstantScore`] parts; other parts score 0.
    pub fn to_scored_json(&self) -> Value {
        match self {
            Self::ConstantScore(inner, score) => json!({"constant_score": {"filter": inner.filter(), "boost": score}}),
            _ if self.score_is_zero() => json!({"constant_score": {"filter": self.filter(), "boost": 0.0}}),
            Self::Or(parts) => json!({"bool": {"should": list(parts, Self::to_scored_json)}}),
            Self::And { scored, filter, excluded } => conjunction(list(scored, Self::to_scored_json), filter, excluded),
            Self::All | Self::None | Self::Leaf(..) => self.filter(),
        }
    }

    /// JSON of the query without scores, for filter context.
    pub fn filter(&self) -> Value {
        match self {
            Self::All => json!({"match_all": {}}),
            Self::None => json!({"match_none": {}}),
            Self::Leaf(leaf, _) => leaf.clone(),
            Self::ConstantScore(inner, _) => inner.filter(),
            Self::Or(parts) => json!({"bool": {"should": list(parts, Self::filter)}}),
            Self::And { scored, filter, excluded } => {
                let filter: Vec<Self> = scored.iter().chain(filter).cloned().collect();
                conjunction(Vec::new(), &filter, excluded)
            }
        }
    }
}

fn list(queries: &[Query], json: fn(&Query) -> Value) -> Vec<Value> {
    queries.iter().map(json).collect()
}

fn conjunction(scored: Vec<Value>, filter: &[Query], excluded: &[Query]) -> Value {
    let parts =
        [("must", scored), ("filter", list(filter, Query::filter)), ("must_not", list(excluded, Query::filter))];
    let parts = parts.into_iter().filter(|(_, parts)| !parts.is_empty());
    let parts: serde_json::Map<String, Value> = parts.map(|(name, parts)| (name.to_owned(), parts.into())).collect();
    json!({"bool": parts})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_score_nothing_add_nothing() {
        let mixed = any(vec![constant_score(term("a", "1"), 40.0), term("b", "2")]);
        let scored = mixed.to_scored_json();
        assert_eq!(scored["bool"]["should"][1]["constant_score"]["boost"], 0.0);
        let all = all(vec![mixed, not(term("c", "3")), term("d", "4"), Query::All]);
        assert_eq!((all.clauses(), all.depth()), (4, 2));
        assert_eq!(all.to_scored_json()["bool"]["must_not"][0], json!({"term": {"c": "3"}}));
        assert_eq!(all.to_scored_json()["bool"]["filter"][0], json!({"term": {"d": "4"}}));
    }

    #[test]
    fn constants_are_folded() {
        let leaf = || term("a", "1");
        assert_eq!(any(vec![Query::None, leaf()]), leaf());
        assert_eq!(any(vec![Query::All, leaf()]), Query::All);
        assert_eq!(all(vec![Query::All, leaf()]), leaf());
        assert_eq!(all(vec![Query::None, leaf()]), Query::None);
        assert_eq!(not(not(leaf())), leaf());
        assert!(not(not(constant_score(leaf(), 1.0))).score_is_zero(), "nothing scores inside of a negation");
        assert_eq!(all(Vec::new()), Query::All);
        assert!(matches!(any(vec![Query::All, constant_score(leaf(), 1.0)]), Query::Or(_)));
    }
}
