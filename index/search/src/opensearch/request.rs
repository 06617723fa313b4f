//! Assembles the body of a search request.

use super::aggregations::{CountedField, aggregations};
use super::dsl::query::Query;
use super::dsl::{DslError, MAX_REQUEST_CLAUSES};
use super::model::SortPosition;
use super::order::Order;
use serde_json::{Value, json};
use std::time::Duration;

/// Maximum number of hits per page that an engine accepts.
pub const MAX_PAGE: usize = 10_000;

/// Parts of a search.
#[derive(Debug, Clone, Copy)]
pub struct Search<'a> {
    pub matches: &'a Query,
    /// The documents that the caller may read; `None` for those who may read everything.
    pub permissions: Option<&'a Query>,
    pub order: &'a Order,
    /// The last hit of the previous page.
    pub after: Option<&'a SortPosition>,
    /// Maximum number of hits to return.
    pub max_hits: usize,
    pub counts: &'a [CountedField],
    /// Best effort: an engine checks it between segments, so the caller keeps a deadline of its own.
    pub timeout: Duration,
}

impl Search<'_> {
    /// Number of hits to request: one more than are returned, which shows whether there are more.
    pub fn size(&self) -> usize {
        if self.max_hits == 0 { 0 } else { (self.max_hits + 1).min(MAX_PAGE) }
    }

    /// The body of the request. Ids are read from the sort values, so no stored field is requested.
    pub fn body(&self) -> Result<Value, DslError> {
        let clauses = self.matches.clauses() + self.permissions.map_or(0, Query::clauses) + self.order.clauses();
        if clauses > MAX_REQUEST_CLAUSES {
            return Err(DslError::Request(clauses));
        }
        let mut body = json!({
            "query": self.order.query(self.matches, self.permissions),
            "sort": self.order.sort(),
            "size": self.size(),
            // Totals end at 10,000 otherwise.
            "track_total_hits": true,
            "track_scores": true,
            "_source": false,
            "stored_fields": "_none_",
            "timeout": format!("{}ms", self.timeout.as_millis().max(1)),
        });
        if let Some(after) = self.after {
            body["search_after"] = self.order.search_after(after);
        }
        if !self.counts.is_empty() {
            body["aggs"] = aggregations(self.counts);
        }
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opensearch::dsl::query::{any, constant_score, term};
    use crate::opensearch::model::{Facet, PlanningContext, Rank, Sort};

    #[test]
    fn a_search_is_assembled() {
        let (matches, permissions) = (constant_score(term("w.name", "web"), 100.0), term("scope", "m1"));
        let sort = [Sort::RELEVANCE, Sort::by_field("restarts", true).unwrap()];
        let order = Order::new(&sort, &PlanningContext::default()).unwrap();
        let after = SortPosition { ranks: vec![Rank::Score(100.0), Rank::Number(None)], name: "web".into(), id: 7 };
        let search = Search {
            matches: &matches,
            permissions: Some(&permissions),
            order: &order,
            after: Some(&after),
            max_hits: 50,
            counts: &[CountedField::Facet(Facet::Kind)],
            timeout: Duration::from_millis(1_500),
        };
        insta::assert_yaml_snapshot!("search", search.body().unwrap());
        assert_eq!(Search { max_hits: MAX_PAGE, ..search }.size(), MAX_PAGE);
    }

    #[test]
    fn conditions_and_permissions_are_counted_together() {
        let many = |count: usize| any((0..count).map(|nth| term("w.name", &nth.to_string())).collect());
        let (matches, permissions, order) =
            (many(900), many(101), Order::new(&[], &PlanningContext::default()).unwrap());
        let search = Search {
            matches: &matches,
            permissions: None,
            order: &order,
            after: None,
            max_hits: 0,
            counts: &[],
            timeout: Duration::ZERO,
        };
        assert!(search.body().is_ok());
        assert_eq!(Search { permissions: Some(&permissions), ..search }.body(), Err(DslError::Request(1_001)));
    }
}
