//! Suggestions when nothing was found: similar names, and the query without one of its terms.

use crate::collect::TopHitsRequest;
use crate::collect::similar_values::max_edits;
use crate::document::columns::Keyword;
use crate::execute::{Sources, find};
use crate::plan::predicate::{Match, Test};
use crate::plan::{PlanningContext, plan};
use crowsnest_query::{Expr, Query};
use crowsnest_store::Error;
use serde::Serialize;
use std::time::{Duration, Instant};

const SIMILAR_NAMES_TIMEOUT: Duration = Duration::from_millis(200);
const RELAXATION_TIMEOUT: Duration = Duration::from_millis(300);
/// Maximum number of terms that are left out, one at a time.
const MAX_TERMS_TRIED: usize = 8;
/// Maximum number of relaxed queries in a response.
const MAX_RELAXED_QUERIES: usize = 3;

/// A relaxed query with hits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RelaxedQuery {
    pub query: String,
    /// Number of its hits.
    pub total: u64,
}

/// Queries that leave out one term of `query` and then have hits. Those with the fewest hits come first, because they are
/// closest to the query.
pub async fn relax_query(
    sources: &Sources,
    query: &Query,
    planning_context: &PlanningContext,
) -> Result<Vec<RelaxedQuery>, Error> {
    let Expr::And(parts) = &query.filter else { return Ok(Vec::new()) };
    let limited_sources = sources.with_deadline(Instant::now() + RELAXATION_TIMEOUT);
    let mut found = Vec::new();
    for left_out in 0..parts.len().min(MAX_TERMS_TRIED) {
        let rest = parts.iter().enumerate().filter(|(nth, _)| *nth != left_out).map(|(_, part)| part.clone());
        let filter = Expr::and(rest.collect());
        let relaxed = Query { filter, output: query.output.clone(), notices: Vec::new() };
        if Instant::now() > limited_sources.context.deadline {
            break;
        }
        let total =
            find(&limited_sources, plan(&relaxed, planning_context), TopHitsRequest::total_only()).await?.top.total;
        if total > 0 {
            found.push(RelaxedQuery { query: relaxed.to_string(), total });
        }
    }
    found.sort_by_key(|relaxed| relaxed.total);
    found.truncate(MAX_RELAXED_QUERIES);
    Ok(found)
}

/// Names of objects that are similar to the bare words and `name:` values of a query without hits.
pub async fn similar_names(sources: &Sources, query: &Query) -> Result<Vec<String>, Error> {
    let mut words = Vec::new();
    query.filter.for_each_term(&mut |term| {
        use crowsnest_query::{Field, Pattern, TermKind, Value};
        match &term.kind {
            TermKind::Text(Pattern::Word(word)) => words.push(word.to_lowercase()),
            TermKind::Field { field: Field::Definition(field), values, .. } if field.name == "name" => {
                let names = values.any.iter().filter_map(|value| match value {
                    Value::Pattern(Pattern::Word(word)) => Some(word.to_lowercase()),
                    _ => None,
                });
                words.extend(names);
            }
            _ => {}
        }
    });
    let request = TopHitsRequest { max_hits: 3, ..TopHitsRequest::total_only() };
    let Sources { engine, context, .. } = sources.with_deadline(Instant::now() + SIMILAR_NAMES_TIMEOUT);
    let mut near_names = Vec::new();
    for (word, distance) in words.into_iter().filter_map(|word| max_edits(&word).map(|edits| (word, edits))).take(3) {
        let has_similar_name = Match::Keyword(Keyword::Name, Test::Fuzzy(word, distance, true));
        let found = engine.top_hits(&context, &has_similar_name, &request).await?;
        near_names.extend(found.hits.into_iter().map(|hit| hit.position.name));
    }
    near_names.dedup();
    near_names.truncate(5);
    Ok(near_names)
}
