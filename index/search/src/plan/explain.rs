//! Explains a query: its canonical form, its plan, and the hits and duration of each part.

use crate::collect::TopHitsRequest;
use crate::execute::{SearchResults, find};
use crate::plan::predicate::{Match, Test};
use crate::plan::{Plan, TimeScope};
use crate::{Notice, PlannedSearch, SearchRequest, Searcher, SkippedCluster};
use crowsnest_query::{Limits, Query, parse};
use crowsnest_store::Error;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Maximum number of parts that are counted separately.
const MAX_COUNTED_PARTS: usize = 64;
/// Maximum length of a described test in characters.
const MAX_SHOWN_CHARS: usize = 200;

/// Number of hits of a query.
#[derive(Debug, Clone)]
pub struct HitCount {
    pub total: u64,
    /// The total is a lower bound.
    pub incomplete: bool,
    pub notices: Vec<Notice>,
    pub skipped: Vec<SkippedCluster>,
}

/// An explained query.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueryExplanation {
    /// Canonical form of the query.
    pub query: String,
    /// Its syntax tree.
    pub ast: Query,
    /// The objects that are searched.
    #[serde(rename = "asked")]
    pub searched_objects: String,
    pub plan: PlanStep,
    pub notices: Vec<Notice>,
    pub took_ms: f64,
}

/// A part of a plan.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanStep {
    #[serde(rename = "what")]
    pub description: String,
    /// Number of current objects that this part alone matches and the caller may see; None if it was not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hits: Option<u64>,
    pub took_ms: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PlanStep>,
}

impl Searcher {
    /// Explains a query. Parts are counted within the caller's permissions.
    pub async fn explain(&self, request: &SearchRequest) -> Result<QueryExplanation, Error> {
        let started_at = Instant::now();
        let (planned, sources) = self.plan_search(request).await;
        let query = parse(&request.query, &Limits::default()).unwrap_or_default();
        let searched_objects = match planned.plan.scope {
            TimeScope::Now => "current objects".to_owned(),
            TimeScope::Deleted => "current objects, and deleted ones in their last state".to_owned(),
            TimeScope::At(at) => format!("objects in their state at {}", format_time(at)),
            TimeScope::During(from, until) => {
                format!("objects in any state from {} to {}", format_time(from), format_time(until))
            }
        };
        let mut remaining = MAX_COUNTED_PARTS;
        let plan = count_parts(&sources, planned.plan.matches, &mut remaining).await?;
        let took_ms = milliseconds(started_at.elapsed());
        Ok(QueryExplanation {
            query: query.to_string(),
            ast: query,
            searched_objects,
            plan,
            notices: planned.notices,
            took_ms,
        })
    }

    /// Counts the hits of a query.
    pub async fn count(&self, request: &SearchRequest) -> Result<HitCount, Error> {
        let (PlannedSearch { plan, mut notices, .. }, sources) = self.plan_search(request).await;
        let SearchResults { top, notices: limit_notices, .. } =
            find(&sources, plan, TopHitsRequest::total_only()).await?;
        notices.extend(limit_notices.into_iter().map(|message| Notice { start: 0, end: 0, message }));
        let skipped = crate::hydrate::skipped_clusters::list_skipped(self, &sources.context.permissions.lock());
        Ok(HitCount { total: top.total, incomplete: top.incomplete, notices, skipped })
    }
}

fn milliseconds(took: Duration) -> f64 {
    (took.as_secs_f64() * 100_000.0).round() / 100.0
}

fn format_time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "an unbounded time".to_owned(), |time| time.to_string())
}

type CountFuture<'c> = std::pin::Pin<Box<dyn Future<Output = Result<PlanStep, Error>> + Send + 'c>>;

/// Describes a condition and, recursively, its parts. Counts the hits of each until `remaining` counts are used up or the
/// deadline has passed.
fn count_parts<'c>(sources: &'c crate::execute::Sources, matches: Match, remaining: &'c mut usize) -> CountFuture<'c> {
    Box::pin(async move {
        let started_at = Instant::now();
        let mut step = PlanStep { description: describe(&matches), hits: None, took_ms: 0.0, parts: Vec::new() };
        if *remaining > 0 && Instant::now() < sources.context.deadline {
            *remaining -= 1;
            let plan = Plan { matches: matches.clone(), scope: TimeScope::Now, notices: Vec::new() };
            let found = find(sources, plan, TopHitsRequest::total_only()).await?;
            step.hits = Some(found.top.total);
        }
        step.took_ms = milliseconds(started_at.elapsed());
        let parts = match matches {
            Match::And(parts) | Match::Or(parts) => parts,
            Match::Not(inner) | Match::WithReason(_, _, inner) => vec![*inner],
            Match::Relation(relation) => vec![relation.inner().clone()],
            _ => Vec::new(),
        };
        for part in parts {
            step.parts.push(count_parts(sources, part, remaining).await?);
        }
        Ok(step)
    })
}

fn describe_test(test: &Test) -> String {
    let text = match test {
        Test::Equals(text) => format!("is {text:?}"),
        Test::Contains(text) => format!("contains {text:?}"),
        Test::Regex(pattern) => format!("matches /{pattern}/"),
        Test::Fuzzy(word, distance, false) => format!("is within an edit distance of {distance} from {word:?}"),
        Test::Fuzzy(word, distance, true) => format!("begins within an edit distance of {distance} from {word:?}"),
    };
    text.chars().take(MAX_SHOWN_CHARS).collect()
}

fn describe(matches: &Match) -> String {
    match matches {
        Match::All => "everything".to_owned(),
        Match::None => "nothing".to_owned(),
        Match::And(_) => "all of".to_owned(),
        Match::Or(_) => "any of".to_owned(),
        Match::Not(_) => "none of".to_owned(),
        Match::Keyword(keyword, test) => format!("{} {}", keyword.name(), describe_test(test)),
        Match::Exact(keyword, value) => format!("{} is exactly {value:?}", keyword.name()),
        Match::Number(number, from, to) => {
            let bound = |bound: &Option<i64>| bound.map(|bound| bound.to_string()).unwrap_or_default();
            format!("{} {}..{}", number.name(), bound(from), bound(to))
        }
        Match::Content(words) => format!("the manifest contains words that begin with {words:?}"),
        Match::Message(words) => format!("a message contains {:?}", words.join(" ")),
        Match::Bare(word) => format!("{word:?} anywhere"),
        Match::BareRegex(pattern) => format!("/{pattern}/ anywhere"),
        Match::Fuzzy(word, distance) => format!("within an edit distance of {distance} from {word:?}"),
        Match::Clusters(names) => format!("one of {} clusters", names.len()),
        Match::Path(path) => format!("value at .{}, read from manifests", path.path()),
        Match::Relation(relation) => {
            let (field, condition) = relation.label();
            format!("{field}: {condition}, resolved over relations")
        }
        Match::Changed(path) => format!("a change of {path} in the history, read from old versions"),
        Match::Keys(_, keys) => format!("one of {} keys", keys.len()),
        Match::Ids(ids) => format!("one of {} objects", ids.len()),
        Match::WithReason(field, value, _) => format!("{field}: {value}"),
    }
}
