//! Responses to a search, and the reasons why they may be incomplete.
//!
//! If a shard has no available copy, an engine still responds with HTTP 200 and fewer hits, OpenSearch even with
//! `failed: 0`. Therefore the number of successful shards is compared with the total.

use super::aggregations::{Buckets, ValueCounts};
use super::model::RankedHit;
use super::order::HitError;
use super::request::Search;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// Maximum number of reasons of failed shards that are kept.
const MAX_REASONS: usize = 3;

/// A response that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ResponseError {
    #[error("cannot read the response of the search engine")]
    Json(#[from] serde_json::Error),
    #[error("cannot read a hit of the search engine")]
    Hit(#[from] HitError),
    #[error("the response of the search engine lacks {0}")]
    Missing(&'static str),
}

/// Reason why a response may lack hits or count too few.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartialReason {
    /// The engine stopped at the timeout.
    TimedOut,
    /// The engine stopped after some number of hits.
    Terminated,
    /// Shards did not respond.
    Shards { responded: u64, total: u64, reasons: Vec<String> },
    /// There are more hits than were counted.
    Total,
}

impl fmt::Display for PartialReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => f.write_str("the search engine ran out of time"),
            Self::Terminated => f.write_str("the search engine stopped early"),
            Self::Shards { responded, total, reasons } => {
                write!(f, "{responded} of {total} shards of the search engine responded")?;
                if reasons.is_empty() { Ok(()) } else { write!(f, ": {}", reasons.join("; ")) }
            }
            Self::Total => f.write_str("the search engine did not count all hits"),
        }
    }
}

/// A decoded response to a search.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchResponse {
    /// Best first.
    pub hits: Vec<RankedHit>,
    /// Number of all hits, including those of previous pages.
    pub total: u64,
    /// There are more hits after these.
    pub has_more: bool,
    /// In the order of [`Search::counts`].
    pub counts: Vec<ValueCounts>,
    /// Empty for a complete response.
    pub partial: Vec<PartialReason>,
}

/// Hits as the engine sends them, for reads page by page.
#[derive(Debug)]
pub(super) struct Page {
    pub hits: Vec<EngineHit>,
    /// Empty for a complete response.
    pub partial: Vec<PartialReason>,
    /// Id of the point in time for the next page.
    pub point_in_time: Option<String>,
}

#[derive(Deserialize)]
struct RawResponse {
    timed_out: bool,
    #[serde(default)]
    terminated_early: bool,
    #[serde(rename = "_shards")]
    shards: Shards,
    hits: Hits,
    #[serde(default)]
    aggregations: BTreeMap<String, Buckets>,
    pit_id: Option<String>,
}

#[derive(Default, Deserialize)]
struct Shards {
    total: u64,
    successful: u64,
    #[serde(default)]
    failures: Vec<ShardFailure>,
}

#[derive(Deserialize)]
struct ShardFailure {
    #[serde(default)]
    reason: Value,
}

#[derive(Deserialize)]
struct Hits {
    total: Option<Total>,
    #[serde(default)]
    hits: Vec<EngineHit>,
}

#[derive(Deserialize)]
struct Total {
    value: u64,
    relation: String,
}

/// A hit as the engine sends it.
#[derive(Debug, Deserialize)]
pub(super) struct EngineHit {
    #[serde(rename = "_score")]
    pub score: Option<f32>,
    #[serde(default)]
    pub sort: Vec<Value>,
    /// Values of the requested fields.
    #[serde(default)]
    pub fields: BTreeMap<String, Vec<i64>>,
}

impl SearchResponse {
    /// Reads the response to a search.
    pub fn parse(search: &Search<'_>, body: &[u8]) -> Result<Self, ResponseError> {
        let mut response: RawResponse = serde_json::from_slice(body)?;
        let mut partial = response.partial_reasons(search.max_hits > 0);
        let RawResponse { hits, mut aggregations, .. } = response;
        let total = hits.total.ok_or(ResponseError::Missing("the number of hits"))?;
        partial.extend((total.relation != "eq").then_some(PartialReason::Total));
        let counts = search.counts.iter().enumerate().map(|(nth, count)| {
            let buckets = aggregations.remove(&nth.to_string()).ok_or(ResponseError::Missing("a facet"))?;
            buckets.counts(count).ok_or(ResponseError::Missing("a sum"))
        });
        let counts = counts.collect::<Result<_, ResponseError>>()?;
        let found = hits.hits.len();
        let hits = hits.hits.iter().take(search.max_hits).map(|hit| search.order.parse_hit(hit.score, &hit.sort));
        let hits = hits.collect::<Result<Vec<_>, _>>()?;
        // A page of the maximum size may be the last one; the next page is then empty.
        let has_more = if search.max_hits == 0 {
            total.value > 0
        } else {
            found > hits.len() || found == super::request::MAX_PAGE
        };
        Ok(Self { hits, total: total.value, has_more, counts, partial })
    }
}

impl Page {
    /// Reads the response to a search without a total.
    pub fn parse(body: &[u8]) -> Result<Self, ResponseError> {
        let mut response: RawResponse = serde_json::from_slice(body)?;
        Ok(Self { partial: response.partial_reasons(true), hits: response.hits.hits, point_in_time: response.pit_id })
    }
}

/// Parses the only aggregation of a response, with the reasons why it may be incomplete.
pub(super) fn parse_buckets(body: &[u8]) -> Result<(Buckets, Vec<PartialReason>), ResponseError> {
    let mut response: RawResponse = serde_json::from_slice(body)?;
    let partial = response.partial_reasons(false);
    let buckets = response.aggregations.into_values().next();
    Ok((buckets.ok_or(ResponseError::Missing("a facet"))?, partial))
}

impl RawResponse {
    /// Reasons why the response may be incomplete. `terminated_early` is ignored if no hits were requested (`has_hits`
    /// is false), because OpenSearch 3 sets it for such searches although it counts all hits.
    fn partial_reasons(&mut self, has_hits: bool) -> Vec<PartialReason> {
        let mut partial = Vec::new();
        partial.extend(self.timed_out.then_some(PartialReason::TimedOut));
        partial.extend((self.terminated_early && has_hits).then_some(PartialReason::Terminated));
        partial.extend(std::mem::take(&mut self.shards).partial_reason());
        partial
    }
}

impl Shards {
    fn partial_reason(self) -> Option<PartialReason> {
        if self.successful == self.total && self.failures.is_empty() {
            return None;
        }
        let mut reasons: Vec<String> = self.failures.iter().map(ShardFailure::text).collect();
        reasons.sort_unstable();
        reasons.dedup();
        reasons.truncate(MAX_REASONS);
        Some(PartialReason::Shards { responded: self.successful, total: self.total, reasons })
    }
}

impl ShardFailure {
    fn text(&self) -> String {
        let part = |name: &str| self.reason[name].as_str().unwrap_or_default();
        match (part("type"), part("reason")) {
            ("", "") => "no reason was given".to_owned(),
            (kind, "") => kind.to_owned(),
            (kind, reason) => format!("{kind}: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opensearch::aggregations::CountedField;
    use crate::opensearch::dsl::query::Query;
    use crate::opensearch::model::{Facet, PlanningContext, Sort};
    use crate::opensearch::order::Order;
    use rstest::rstest;
    use serde_json::json;
    use std::time::Duration;

    fn response() -> Value {
        let hit = |name: &str, id: i64| json!({"_index": "ix", "_score": 41.0, "sort": [41.0, name, id]});
        json!({"took": 5, "timed_out": false, "_shards": {"total": 2, "successful": 2, "skipped": 0, "failed": 0},
            "hits": {"total": {"value": 3, "relation": "eq"}, "max_score": 41.0, "hits": [hit("a", 1), hit("b", -1), hit("c", 3)]},
            "aggregations": {"0": {"doc_count_error_upper_bound": 2, "sum_other_doc_count": 7,
                "buckets": [{"key": "Pod", "doc_count": 3}]}}})
    }

    fn read(response: &Value, max_hits: usize) -> Result<SearchResponse, ResponseError> {
        let order = Order::new(&[Sort::RELEVANCE], &PlanningContext::default()).unwrap();
        let search = Search {
            matches: &Query::All,
            permissions: None,
            order: &order,
            after: None,
            max_hits,
            counts: &[CountedField::Facet(Facet::Kind)],
            timeout: Duration::from_secs(1),
        };
        SearchResponse::parse(&search, response.to_string().as_bytes())
    }

    #[test]
    fn responses_are_parsed() {
        let read = read(&response(), 2).unwrap();
        let hits: Vec<_> =
            read.hits.iter().map(|hit| (hit.position.name.as_str(), hit.position.id, hit.score)).collect();
        assert_eq!(hits, [("a", 1, 41.0), ("b", u64::MAX, 41.0)]);
        assert_eq!((read.total, read.has_more, read.partial.as_slice()), (3, true, [].as_slice()));
        let expected =
            ValueCounts { values: vec![("Pod".into(), 3)], error_bound: 2, other_count: 7, ..ValueCounts::default() };
        assert_eq!(read.counts, [expected]);
    }

    #[test]
    fn a_search_for_no_hits_may_end_early() {
        let mut response = response();
        response["terminated_early"] = true.into();
        let partial = |max_hits| read(&response, max_hits).unwrap().partial;
        assert_eq!((partial(0), partial(2)), (vec![], vec![PartialReason::Terminated]));
    }

    #[rstest]
    #[case("/timed_out", json!(true), Some("the search engine ran out of time"))]
    #[case("/_shards/successful", json!(1), Some("1 of 2 shards of the search engine responded"))]
    #[case("/_shards", json!({"total": 2, "successful": 1, "failed": 1, "failures": [{"shard": 0, "reason": {"type": "a", "reason": "b"}}]}),
        Some("1 of 2 shards of the search engine responded: a: b"))]
    #[case("/hits/total/relation", json!("gte"), Some("the search engine did not count all hits"))]
    #[case("/hits/total", json!(null), None)]
    #[case("/hits/hits/0/sort", json!([1]), None)]
    #[case("/aggregations", json!({}), None)]
    fn missing_results_are_reported(#[case] pointer: &str, #[case] value: Value, #[case] expected: Option<&str>) {
        let mut response = response();
        *response.pointer_mut(pointer).unwrap() = value;
        let read = read(&response, 10).map(|read| read.partial.iter().map(ToString::to_string).collect::<Vec<_>>());
        match expected {
            Some(expected) => assert_eq!(read.unwrap(), [expected]),
            None => assert!(read.is_err()),
        }
    }
}
