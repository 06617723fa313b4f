//! What a query was taken for, what is done to answer it, and what each part of it finds and costs.

use crate::collect::TopHitsRequest;
use crate::execute::{Found, find};
use crate::plan::predicate::{Match, Test};
use crate::plan::{Asked, Plan};
use crate::{Planned, Remark, SearchRequest, Searcher, Skipped};
use crowsnest_query::{Limits, Query, parse};
use crowsnest_store::Error;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Parts that are counted by themselves.
const MOST_COUNTED: usize = 64;
/// Values of a test that are shown.
const MOST_SHOWN: usize = 200;

/// How much a query finds.
#[derive(Debug, Clone)]
pub struct Count {
    pub total: u64,
    /// There are at least so many.
    pub incomplete: bool,
    pub remarks: Vec<Remark>,
    pub skipped: Vec<Skipped>,
}

/// An explained query.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explained {
    /// As it was understood.
    pub query: String,
    /// Its tree.
    pub ast: Query,
    /// Of which objects it is asked.
    pub asked: String,
    pub plan: Step,
    pub notices: Vec<Remark>,
    pub took_ms: f64,
}

/// A part of a plan.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    pub what: String,
    /// What it finds by itself among the objects that are there and the caller may see; None when it was not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hits: Option<u64>,
    pub took_ms: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Step>,
}

impl Searcher {
    /// Explains a query to a caller: parts are counted within the caller's rights.
    pub async fn explain(&self, request: &SearchRequest) -> Result<Explained, Error> {
        let started = Instant::now();
        let (planned, sources) = self.planned(request).await;
        let query = parse(&request.query, &Limits::default()).unwrap_or_default();
        let asked = match planned.plan.asked {
            Asked::Now => "objects that are there".to_owned(),
            Asked::Deleted => "objects that are there, and deleted ones as they were last".to_owned(),
            Asked::At(at) => format!("objects as they were at {}", time(at)),
            Asked::During(from, until) => {
                format!("objects as they were at any moment from {} to {}", time(from), time(until))
            }
        };
        let mut left = MOST_COUNTED;
        let plan = counted(&sources, planned.plan.matches, &mut left).await?;
        let took_ms = milliseconds(started.elapsed());
        Ok(Explained { query: query.to_string(), ast: query, asked, plan, notices: planned.remarks, took_ms })
    }

    /// How many objects a query finds.
    pub async fn count(&self, request: &SearchRequest) -> Result<Count, Error> {
        let (Planned { plan, mut remarks, .. }, sources) = self.planned(request).await;
        let Found { top, notices, .. } = find(&sources, plan, TopHitsRequest::total()).await?;
        remarks.extend(notices.into_iter().map(|message| Remark { start: 0, end: 0, message }));
        let skipped = crate::hydrate::skipped_clusters::skipped(self, &sources.context.rights.lock());
        Ok(Count { total: top.total, incomplete: top.incomplete, remarks, skipped })
    }
}

fn milliseconds(took: Duration) -> f64 {
    (took.as_secs_f64() * 100_000.0).round() / 100.0
}

fn time(seconds: i64) -> String {
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "the beginning or end".to_owned(), |time| time.to_string())
}

type Counted<'c> = std::pin::Pin<Box<dyn Future<Output = Result<Step, Error>> + Send + 'c>>;

fn counted<'c>(sources: &'c crate::execute::Sources, matches: Match, left: &'c mut usize) -> Counted<'c> {
    Box::pin(async move {
        let started = Instant::now();
        let mut step = Step { what: what(&matches), hits: None, took_ms: 0.0, parts: Vec::new() };
        if *left > 0 && Instant::now() < sources.context.deadline {
            *left -= 1;
            let plan = Plan { matches: matches.clone(), asked: Asked::Now, notices: Vec::new() };
            let found = find(sources, plan, TopHitsRequest::total()).await?;
            step.hits = Some(found.top.total);
        }
        step.took_ms = milliseconds(started.elapsed());
        let parts = match matches {
            Match::And(parts) | Match::Or(parts) => parts,
            Match::Not(inner) | Match::Because(_, _, inner) => vec![*inner],
            Match::Reach(reach) => vec![reach.inner().clone()],
            _ => Vec::new(),
        };
        for part in parts {
            step.parts.push(counted(sources, part, left).await?);
        }
        Ok(step)
    })
}

fn shown(test: &Test) -> String {
    let text = match test {
        Test::Equals(text) => format!("is {text:?}"),
        Test::Contains(text) => format!("contains {text:?}"),
        Test::Regex(pattern) => format!("matches /{pattern}/"),
        Test::Near(word, distance, false) => format!("is within {distance} letters of {word:?}"),
        Test::Near(word, distance, true) => format!("begins within {distance} letters of {word:?}"),
    };
    text.chars().take(MOST_SHOWN).collect()
}

fn what(matches: &Match) -> String {
    match matches {
        Match::All => "everything".to_owned(),
        Match::None => "nothing".to_owned(),
        Match::And(_) => "all of".to_owned(),
        Match::Or(_) => "any of".to_owned(),
        Match::Not(_) => "none of".to_owned(),
        Match::Word(word, test) => format!("{} {}", word.name(), shown(test)),
        Match::Exact(word, value) => format!("{} is exactly {value:?}", word.name()),
        Match::Number(number, from, to) => {
            let bound = |bound: &Option<i64>| bound.map(|bound| bound.to_string()).unwrap_or_default();
            format!("{} {}..{}", number.name(), bound(from), bound(to))
        }
        Match::Content(words) => format!("the manifest has words that begin with {words:?}"),
        Match::Message(words) => format!("a message has {:?}", words.join(" ")),
        Match::Bare(word) => format!("{word:?} anywhere"),
        Match::BareRegex(pattern) => format!("/{pattern}/ anywhere"),
        Match::Fuzzy(word, distance) => format!("within {distance} letters of {word:?}"),
        Match::Clusters(names) => format!("one of {} clusters", names.len()),
        Match::Path(path) => format!("at .{}, read from manifests", path.path()),
        Match::Reach(reach) => {
            let (field, said) = reach.said();
            format!("{field}: {said}, followed over relations")
        }
        Match::Changed(path) => format!("a kept change of {path}, read from old versions"),
        Match::Keys(_, keys) => format!("one of {} keys", keys.len()),
        Match::Ids(ids) => format!("one of {} objects", ids.len()),
        Match::Because(field, value, _) => format!("{field}: {value}"),
    }
}
