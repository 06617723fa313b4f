//! Order of hits, and cursors into it.

use crate::document::columns::{Facet, Number};
use crate::plan::ClusterProperties;
use crate::plan::ranges::number_column;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use crowsnest_store::Seq;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// Maximum number of sort columns; ties are sorted by name.
pub const MAX_COLUMNS: usize = 3;
/// Maximum length of a cursor in bytes.
const MAX_CURSOR: usize = 4096;

/// Sort criterion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortBy {
    Relevance,
    Number(Number),
    Text(Facet),
    /// A property of the hit's cluster.
    Cluster(ClusterProperty),
}

/// Properties of clusters for sorting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterProperty {
    Region,
    /// The first one if there are several.
    Zone,
    Provider,
}

impl ClusterProperty {
    pub fn value_of(self, cluster: &ClusterProperties) -> Option<&str> {
        let text = match self {
            Self::Region => Some(&cluster.region),
            Self::Zone => cluster.zones.iter().min(),
            Self::Provider => Some(&cluster.provider),
        };
        text.map(String::as_str).filter(|text| !text.is_empty())
    }
}

/// A sort column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sort {
    pub by: SortBy,
    pub descending: bool,
}

impl Sort {
    pub const RELEVANCE: Self = Self { by: SortBy::Relevance, descending: true };

    /// Sorts by a field of the query language; None if hits cannot be sorted by it.
    pub fn by_field(field: &str, descending: bool) -> Option<Self> {
        let by = match field {
            "relevance" => return Some(Self::RELEVANCE),
            "ns" => Some(SortBy::Text(Facet::Namespace)),
            "region" => Some(SortBy::Cluster(ClusterProperty::Region)),
            "zone" => Some(SortBy::Cluster(ClusterProperty::Zone)),
            "provider" => Some(SortBy::Cluster(ClusterProperty::Provider)),
            _ => Facet::ALL.iter().find(|facet| facet.field() == field).map(|facet| SortBy::Text(*facet)),
        };
        let by = by.or_else(|| number_column(field).map(SortBy::Number))?;
        // The oldest object was created first.
        Some(Self { by, descending: descending != (field == "age") })
    }
}

/// Value of a hit in a sort column. Missing values are last in either direction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Rank {
    #[serde(rename = "s")]
    Score(f32),
    #[serde(rename = "n")]
    Number(Option<i64>),
    #[serde(rename = "t")]
    Text(Option<String>),
}

/// Position in the order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SortPosition {
    #[serde(rename = "r")]
    pub ranks: Vec<Rank>,
    #[serde(rename = "n")]
    pub name: String,
    #[serde(rename = "i")]
    pub id: u64,
}

/// A hit with its position.
#[derive(Debug, Clone, PartialEq)]
pub struct RankedHit {
    pub position: SortPosition,
    pub score: f32,
    /// The change that ended this version; None: the current state.
    pub ended_by: Option<Seq>,
}

/// Compares positions.
pub fn compare(a: &SortPosition, b: &SortPosition, sort: &[Sort]) -> Ordering {
    fn compare_missing_last<T: Ord>(a: &Option<T>, b: &Option<T>, descending: bool) -> Ordering {
        match (a, b) {
            (Some(a), Some(b)) if descending => b.cmp(a),
            (Some(a), Some(b)) => a.cmp(b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        }
    }
    let column = |((a, b), sort): ((&Rank, &Rank), &Sort)| match (a, b) {
        (Rank::Number(a), Rank::Number(b)) => compare_missing_last(a, b, sort.descending),
        (Rank::Text(a), Rank::Text(b)) => compare_missing_last(a, b, sort.descending),
        (Rank::Score(a), Rank::Score(b)) => b.total_cmp(a),
        _ => Ordering::Equal,
    };
    let columns = a.ranks.iter().zip(&b.ranks).zip(sort).map(column);
    let by_columns = columns.fold(Ordering::Equal, Ordering::then);
    by_columns.then_with(|| a.name.cmp(&b.name)).then_with(|| a.id.cmp(&b.id))
}

/// A position in the form that clients pass from page to page.
#[derive(Debug, Clone, PartialEq)]
pub struct Cursor(pub SortPosition);

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_vec(&self.0).map_err(|_| fmt::Error)?;
        f.write_str(&URL_SAFE_NO_PAD.encode(text))
    }
}

/// The text is not a valid cursor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the cursor is invalid; repeat the search without it")]
pub struct InvalidCursor;

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        if text.len() > MAX_CURSOR {
            return Err(InvalidCursor);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| InvalidCursor)?;
        serde_json::from_slice(&bytes).map(Cursor).map_err(|_| InvalidCursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_round_trip() {
        let ranks = vec![Rank::Score(151.5), Rank::Number(None), Rank::Text(Some("é".to_owned()))];
        let cursor = Cursor(SortPosition { ranks, name: "web-0".to_owned(), id: u64::MAX });
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        assert_eq!("50".parse::<Cursor>(), Err(InvalidCursor));
    }
}
