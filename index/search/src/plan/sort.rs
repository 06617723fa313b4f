//! The order of hits, and where in it an answer goes on.

use crate::document::columns::{Facet, Number};
use crate::plan::ClusterFacts;
use crate::plan::ranges::number_named;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use crowsnest_store::Seq;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// Columns hits are ordered by at most; then by name.
pub const MOST_COLUMNS: usize = 3;
/// A cursor's text is no longer.
const MAX_CURSOR: usize = 4096;

/// What hits are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortBy {
    Relevance,
    Number(Number),
    Text(Facet),
    /// What its cluster has.
    Cluster(OfCluster),
}

/// What hits of a cluster have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfCluster {
    Region,
    /// Of several the first.
    Zone,
    Provider,
}

impl OfCluster {
    pub fn of(self, cluster: &ClusterFacts) -> Option<&str> {
        let text = match self {
            Self::Region => Some(&cluster.region),
            Self::Zone => cluster.zones.iter().min(),
            Self::Provider => Some(&cluster.provider),
        };
        text.map(String::as_str).filter(|text| !text.is_empty())
    }
}

/// A column of the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sort {
    pub by: SortBy,
    pub descending: bool,
}

impl Sort {
    pub const RELEVANCE: Self = Self { by: SortBy::Relevance, descending: true };

    /// By a field of the query language; None when nothing can be ordered by it.
    pub fn named(field: &str, descending: bool) -> Option<Self> {
        let by = match field {
            "relevance" => return Some(Self::RELEVANCE),
            "ns" => Some(SortBy::Text(Facet::Namespace)),
            "region" => Some(SortBy::Cluster(OfCluster::Region)),
            "zone" => Some(SortBy::Cluster(OfCluster::Zone)),
            "provider" => Some(SortBy::Cluster(OfCluster::Provider)),
            _ => Facet::ALL.iter().find(|facet| facet.field() == field).map(|facet| SortBy::Text(*facet)),
        };
        let by = by.or_else(|| number_named(field).map(SortBy::Number))?;
        // The oldest was created first.
        Some(Self { by, descending: descending != (field == "age") })
    }
}

/// What a hit has in a column of the order. Missing values come last, whatever the direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Rank {
    #[serde(rename = "s")]
    Score(f32),
    #[serde(rename = "n")]
    Number(Option<i64>),
    #[serde(rename = "t")]
    Text(Option<String>),
}

/// A place in the order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Place {
    #[serde(rename = "r")]
    pub ranks: Vec<Rank>,
    #[serde(rename = "n")]
    pub name: String,
    #[serde(rename = "i")]
    pub id: u64,
}

/// A hit and its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranked {
    pub place: Place,
    pub score: f32,
    /// What it was until this change; None: what it is.
    pub past: Option<Seq>,
}

/// Whether a hit comes before another.
pub fn compare(a: &Place, b: &Place, sort: &[Sort]) -> Ordering {
    fn last<T: Ord>(a: &Option<T>, b: &Option<T>, descending: bool) -> Ordering {
        match (a, b) {
            (Some(a), Some(b)) if descending => b.cmp(a),
            (Some(a), Some(b)) => a.cmp(b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        }
    }
    let column = |((a, b), sort): ((&Rank, &Rank), &Sort)| match (a, b) {
        (Rank::Number(a), Rank::Number(b)) => last(a, b, sort.descending),
        (Rank::Text(a), Rank::Text(b)) => last(a, b, sort.descending),
        (Rank::Score(a), Rank::Score(b)) => b.total_cmp(a),
        _ => Ordering::Equal,
    };
    let columns = a.ranks.iter().zip(&b.ranks).zip(sort).map(column);
    let by_columns = columns.fold(Ordering::Equal, Ordering::then);
    by_columns.then_with(|| a.name.cmp(&b.name)).then_with(|| a.id.cmp(&b.id))
}

/// A place as callers carry it from page to page.
#[derive(Debug, Clone, PartialEq)]
pub struct Cursor(pub Place);

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_vec(&self.0).map_err(|_| fmt::Error)?;
        f.write_str(&URL_SAFE_NO_PAD.encode(text))
    }
}

/// No cursor that an answer gave.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the cursor is none that an answer gave; ask without it")]
pub struct NoCursor;

impl FromStr for Cursor {
    type Err = NoCursor;

    fn from_str(text: &str) -> Result<Self, NoCursor> {
        if text.len() > MAX_CURSOR {
            return Err(NoCursor);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| NoCursor)?;
        serde_json::from_slice(&bytes).map(Cursor).map_err(|_| NoCursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_carried() {
        let ranks = vec![Rank::Score(151.5), Rank::Number(None), Rank::Text(Some("é".to_owned()))];
        let cursor = Cursor(Place { ranks, name: "web-0".to_owned(), id: u64::MAX });
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        assert_eq!("50".parse::<Cursor>(), Err(NoCursor));
    }
}
