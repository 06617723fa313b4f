//! The order of hits, and cursors into it.
//!
//! Regions, zones and providers are not part of documents, so hits are sorted by them through the score: each cluster scores
//! its rank. Combined with relevance, such ranks are the higher digits of one number. Scores are 32-bit floats, exact up to
//! [`MAX_SCORE`].

use super::dsl::query::{self, Query};
use super::dsl::to_signed;
use super::fields::{self, ID};
use super::model::{ClusterProperty, Facet, Keyword, PlanningContext, Rank, RankedHit, Sort, SortBy, SortPosition};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Largest number up to which all whole numbers are exact in a 32-bit float.
const MAX_SCORE: u64 = 1 << 24;
/// Radix of the relevance: no sum of the scores of [`super::dsl::MAX_CLAUSES`] clauses reaches it.
const RELEVANCE_RADIX: u64 = 1 << 15;

/// An order that cannot be expressed for an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    #[error("relevance, region, zone and provider must be adjacent in a sort")]
    NotAdjacent,
    #[error("there are too many regions, zones and providers to sort by all of these at once")]
    TooManyValues,
}

/// A hit that an engine returned in another form than was requested.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HitError {
    #[error("a hit has {found} sort values, not {expected}")]
    Length { found: usize, expected: usize },
    #[error("a hit has {0} as a sort value")]
    Value(String),
}

/// A column of the order.
#[derive(Debug, Clone, PartialEq)]
enum Column {
    Relevance { weight: u64 },
    Cluster { weight: u64, cluster_ranks: ClusterRanks },
    Number { field: String, descending: bool },
    Text { field: String, descending: bool },
}

/// Regions, zones or providers of clusters, in order.
#[derive(Debug, Clone, PartialEq)]
struct ClusterRanks {
    /// Clusters by their region, zone or provider.
    clusters: BTreeMap<String, Vec<String>>,
    descending: bool,
}

impl ClusterRanks {
    fn new(property: ClusterProperty, descending: bool, planning_context: &PlanningContext) -> Self {
        let mut clusters: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for cluster in &planning_context.clusters {
            if let Some(text) = property.value_of(cluster) {
                clusters.entry(text.to_owned()).or_default().push(cluster.name.clone());
            }
        }
        Self { clusters, descending }
    }

    /// Score of a value: the first value of the order has the highest score; clusters without a value score 0. A value
    /// that no cluster has anymore lies between its neighbours.
    fn rank_score(&self, text: &str) -> f64 {
        let before = self.clusters.keys().take_while(|other| other.as_str() < text).count();
        let score = if self.descending { before + 1 } else { self.clusters.len() - before };
        match (self.clusters.contains_key(text), self.descending) {
            (true, _) => score as f64,
            (false, true) => score as f64 - 0.5,
            (false, false) => score as f64 + 0.5,
        }
    }

    /// The value with a score; None for 0.
    fn text(&self, digit: u64) -> Option<String> {
        let digit = usize::try_from(digit).ok()?;
        let nth = if self.descending { digit.checked_sub(1)? } else { self.clusters.len().checked_sub(digit)? };
        self.clusters.keys().nth(nth).cloned()
    }

    /// Number of different digits: one for each value, and 0.
    fn radix(&self) -> u64 {
        self.clusters.len() as u64 + 1
    }
}

/// An order in the form that an engine requires.
#[derive(Debug, Clone, PartialEq)]
pub struct Order {
    columns: Vec<Column>,
}

impl Order {
    pub fn new(sort: &[Sort], planning_context: &PlanningContext) -> Result<Self, OrderError> {
        let column = |sort: &Sort| match sort.by {
            SortBy::Relevance => Column::Relevance { weight: 1 },
            SortBy::Cluster(property) => Column::Cluster {
                weight: 1,
                cluster_ranks: ClusterRanks::new(property, sort.descending, planning_context),
            },
            SortBy::Number(number) => {
                Column::Number { field: fields::sort_number(number), descending: sort.descending }
            }
            SortBy::Text(facet) => Column::Text { field: fields::sort_facet(facet), descending: sort.descending },
        };
        let mut order = Self { columns: sort.iter().map(column).collect() };
        order.assign_weights()?;
        Ok(order)
    }

    /// Assigns digits of one number to the columns that are scores, the lowest to the last column.
    fn assign_weights(&mut self) -> Result<(), OrderError> {
        let is_score: Vec<bool> = self.columns.iter().map(Column::is_score).collect();
        if is_score.chunk_by(|a, b| a == b).filter(|run| run.contains(&true)).count() > 1 {
            return Err(OrderError::NotAdjacent);
        }
        let mut next = 1_u64;
        for column in self.columns.iter_mut().rev() {
            let (weight, radix) = match column {
                Column::Relevance { weight } => (weight, RELEVANCE_RADIX),
                Column::Cluster { weight, cluster_ranks } => (weight, cluster_ranks.radix()),
                Column::Number { .. } | Column::Text { .. } => continue,
            };
            *weight = next;
            next = next.saturating_mul(radix);
        }
        let has_cluster_column = self.columns.iter().any(|column| matches!(column, Column::Cluster { .. }));
        if has_cluster_column && next > MAX_SCORE { Err(OrderError::TooManyValues) } else { Ok(()) }
    }

    /// Clauses that the order adds to a query.
    pub fn clauses(&self) -> usize {
        self.clusters().map(|(_, cluster_ranks)| cluster_ranks.clusters.len()).sum()
    }

    fn has_relevance(&self) -> bool {
        self.columns.iter().any(|column| matches!(column, Column::Relevance { .. }))
    }

    fn clusters(&self) -> impl Iterator<Item = (u64, &ClusterRanks)> {
        self.columns.iter().filter_map(|column| match column {
            Column::Cluster { weight, cluster_ranks } => Some((*weight, cluster_ranks)),
            _ => None,
        })
    }

    /// Query for the hits within the permissions, with the scores by which they are ordered.
    pub fn query(&self, matches: &Query, permissions: Option<&Query>) -> Value {
        let mut filter: Vec<Value> = permissions.map(Query::filter).into_iter().collect();
        let relevance = self.columns.iter().find_map(|column| match column {
            Column::Relevance { weight } => Some(*weight),
            _ => None,
        });
        let has_cluster_ranks = self.clusters().next().is_some();
        let mut scored = Vec::new();
        match relevance {
            _ if matches.score_is_zero() => filter.push(matches.filter()),
            // Only ranks of clusters: the score of a word would precede the next column.
            None if has_cluster_ranks => filter.push(matches.filter()),
            None | Some(1) => scored.push(matches.to_scored_json()),
            Some(weight) => scored.push(json!({"bool": {"must": [matches.to_scored_json()], "boost": weight}})),
        }
        let mut parts = json!({"filter": filter});
        if !scored.is_empty() {
            parts["must"] = scored.into();
        }
        if has_cluster_ranks {
            parts["should"] =
                self.clusters().flat_map(|(weight, cluster_ranks)| score_clauses(weight, cluster_ranks)).collect();
        }
        json!({"bool": parts})
    }

    /// The request's `sort`: the columns, then name and id, which make the order total.
    pub fn sort(&self) -> Value {
        let mut sort = Vec::new();
        for column in &self.columns {
            match column {
                Column::Relevance { .. } | Column::Cluster { .. } => {
                    let by_score = json!({"_score": {"order": "desc"}});
                    if sort.last() != Some(&by_score) {
                        sort.push(by_score);
                    }
                }
                Column::Number { field, descending } | Column::Text { field, descending } => {
                    let order = if *descending { "desc" } else { "asc" };
                    sort.push(json!({field: {"order": order, "missing": "_last"}}));
                }
            }
        }
        sort.push(json!({fields::facet(Facet::Name): {"order": "asc", "missing": "_last"}}));
        sort.push(json!({ID: {"order": "asc"}}));
        sort.into()
    }

    /// The sort values of a cursor: the next page begins after them.
    pub fn search_after(&self, position: &SortPosition) -> Value {
        let mut values = Vec::new();
        let mut score: Option<(usize, f64)> = None;
        for (nth, column) in self.columns.iter().enumerate() {
            let rank = position.ranks.get(nth);
            let digits = match (column, rank) {
                (Column::Relevance { weight }, Some(Rank::Score(score))) => f64::from(*score) * *weight as f64,
                (Column::Cluster { weight, cluster_ranks }, Some(Rank::Text(Some(text)))) => {
                    cluster_ranks.rank_score(text) * *weight as f64
                }
                (Column::Relevance { .. } | Column::Cluster { .. }, _) => 0.0,
                (Column::Number { .. }, Some(Rank::Number(Some(number)))) => {
                    values.push((*number).into());
                    continue;
                }
                (Column::Number { descending, .. }, _) => {
                    values.push(missing_value(*descending).into());
                    continue;
                }
                (Column::Text { .. }, Some(Rank::Text(Some(text)))) => {
                    values.push(text.as_str().into());
                    continue;
                }
                (Column::Text { .. }, _) => {
                    values.push(Value::Null);
                    continue;
                }
            };
            match &mut score {
                Some((_, sum)) => *sum += digits,
                None => {
                    score = Some((values.len(), digits));
                    values.push(Value::Null);
                }
            }
        }
        if let Some((at, sum)) = score
            && let Some(value) = values.get_mut(at)
        {
            *value = sum.into();
        }
        values.push(if position.name.is_empty() { Value::Null } else { position.name.as_str().into() });
        values.push(to_signed(position.id).into());
        values.into()
    }

    /// Parses a hit from its score and its sort values.
    pub fn parse_hit(&self, score: Option<f32>, values: &[Value]) -> Result<RankedHit, HitError> {
        let scores = usize::from(self.columns.iter().any(Column::is_score));
        let others = self.columns.iter().filter(|column| !column.is_score()).count();
        let [columns @ .., name, id] = values else {
            return Err(HitError::Length { found: values.len(), expected: scores + others + 2 });
        };
        if columns.len() != scores + others {
            return Err(HitError::Length { found: values.len(), expected: scores + others + 2 });
        }
        let (mut ranks, mut rest, mut sum) = (Vec::new(), columns.iter(), None);
        for column in &self.columns {
            let value = match (column.is_score(), sum) {
                (true, Some(sum)) => sum,
                _ => rest.next().unwrap_or(&Value::Null),
            };
            if column.is_score() {
                sum = Some(value);
            }
            ranks.push(column.rank(value)?);
        }
        let id = id.as_i64().ok_or_else(|| HitError::Value(id.to_string()))?;
        let by_relevance = ranks.iter().find_map(|rank| match rank {
            Rank::Score(score) => Some(*score),
            _ => None,
        });
        let score = match by_relevance {
            Some(score) => score,
            None if self.clusters().next().is_some() => 0.0,
            None => score.unwrap_or_default(),
        };
        let name = name.as_str().unwrap_or_default().to_owned();
        Ok(RankedHit { position: SortPosition { ranks, name, id: id.cast_unsigned() }, score, ended_by: None })
    }

    /// True if the engine returns the relevance of hits; otherwise their scores are 0 and are computed for the returned hits.
    pub fn returns_relevance(&self) -> bool {
        self.has_relevance() || self.clusters().next().is_none()
    }
}

impl Column {
    fn is_score(&self) -> bool {
        matches!(self, Self::Relevance { .. } | Self::Cluster { .. })
    }

    fn rank(&self, value: &Value) -> Result<Rank, HitError> {
        let invalid_value = || HitError::Value(value.to_string());
        let digits = || value.as_f64().map(|score| score.round() as u64).ok_or_else(invalid_value);
        Ok(match self {
            Self::Relevance { weight } => Rank::Score((digits()? / weight % RELEVANCE_RADIX) as f32),
            Self::Cluster { weight, cluster_ranks } => {
                Rank::Text(cluster_ranks.text(digits()? / weight % cluster_ranks.radix()))
            }
            Self::Number { descending, .. } => {
                let number = value.as_i64().ok_or_else(invalid_value)?;
                Rank::Number((number != missing_value(*descending)).then_some(number))
            }
            Self::Text { .. } if value.is_null() => Rank::Text(None),
            Self::Text { .. } => Rank::Text(Some(value.as_str().ok_or_else(invalid_value)?.to_owned())),
        })
    }
}

/// Sort value of a missing number, in responses and in cursors.
fn missing_value(descending: bool) -> i64 {
    if descending { i64::MIN } else { i64::MAX }
}

fn score_clauses(weight: u64, cluster_ranks: &ClusterRanks) -> Vec<Value> {
    let clause = |(text, clusters): (&String, &Vec<String>)| {
        let names = clusters.iter().map(|name| super::terms::lower_term(name).into()).collect();
        let score = cluster_ranks.rank_score(text) * weight as f64;
        query::constant_score(query::terms(&fields::keyword(Keyword::Cluster), names), score as f32).to_scored_json()
    };
    cluster_ranks.clusters.iter().map(clause).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opensearch::model::Number;
    use crate::plan::ClusterProperties;
    use rstest::rstest;

    fn planning_context() -> PlanningContext {
        let regions = [("m1", "eu"), ("m2", "us"), ("m3", "eu"), ("m4", ""), ("m5", "asia")];
        let cluster = |(name, region): (&str, &str)| ClusterProperties {
            name: name.into(),
            region: region.into(),
            provider: "acme".into(),
            ..ClusterProperties::default()
        };
        PlanningContext { clusters: regions.map(cluster).into(), ..PlanningContext::default() }
    }

    fn sort(text: &str) -> Vec<Sort> {
        let sort_by = |column: &str| match column.strip_prefix('-') {
            Some(column) => Sort::by_field(column, true).unwrap(),
            None => Sort::by_field(column, false).unwrap(),
        };
        text.split_whitespace().map(sort_by).collect()
    }

    #[rstest]
    #[case::relevance("relevance", vec![json!(154.0)], vec![Rank::Score(154.0)])]
    #[case::missing_number("restarts", vec![json!(i64::MAX)], vec![Rank::Number(None)])]
    #[case::missing_number_down("-restarts image", vec![json!(i64::MIN), json!(null)], vec![Rank::Number(None), Rank::Text(None)])]
    #[case::region("region", vec![json!(2.0)], vec![Rank::Text(Some("eu".into()))])]
    #[case::region_down("-region", vec![json!(3.0)], vec![Rank::Text(Some("us".into()))])]
    #[case::no_region("region name", vec![json!(0.0), json!("a")], vec![Rank::Text(None), Rank::Text(Some("a".into()))])]
    #[case::region_and_relevance("region relevance ready", vec![json!(3.0 * 32_768.0 + 41.0), json!(7)],
        vec![Rank::Text(Some("asia".into())), Rank::Score(41.0), Rank::Number(Some(7))])]
    #[case::relevance_and_region("relevance -region", vec![json!(41.0 * 4.0 + 1.0)], vec![Rank::Score(41.0), Rank::Text(Some("asia".into()))])]
    fn cursors_round_trip(#[case] columns: &str, #[case] values: Vec<Value>, #[case] ranks: Vec<Rank>) {
        let order = Order::new(&sort(columns), &planning_context()).unwrap();
        let values = [values, vec![json!("web"), json!(-1)]].concat();
        let hit = order.parse_hit(Some(1.5), &values).unwrap();
        assert_eq!(hit.position, SortPosition { ranks, name: "web".into(), id: u64::MAX });
        assert_eq!(order.search_after(&hit.position), Value::from(values.clone()));
        assert_eq!(order.sort().as_array().unwrap().len(), values.len());
        assert!(matches!(order.parse_hit(None, &values[1..]), Err(HitError::Length { .. })));
    }

    #[test]
    fn an_unknown_region_is_ordered_between_its_neighbours() {
        for (columns, expected) in [("region", 1.5), ("-region", 2.5)] {
            let order = Order::new(&sort(columns), &planning_context()).unwrap();
            let position = SortPosition { ranks: vec![Rank::Text(Some("mars".into()))], name: "web".into(), id: 1 };
            assert_eq!(order.search_after(&position)[0], expected);
        }
    }

    #[test]
    fn cluster_ranks_become_scores() {
        let order = Order::new(&sort("region relevance"), &planning_context()).unwrap();
        let word = query::constant_score(query::term("w.name", "web"), 100.0);
        insta::assert_yaml_snapshot!("by_region_and_relevance", order.query(&word, Some(&query::term("scope", "m1"))));
        let order = Order::new(&sort("-region restarts"), &planning_context()).unwrap();
        insta::assert_yaml_snapshot!("by_region", (order.query(&word, None), order.sort(), order.returns_relevance()));
    }

    #[test]
    fn some_orders_are_refused() {
        assert_eq!(Order::new(&sort("region name relevance"), &planning_context()), Err(OrderError::NotAdjacent));
        let cluster = |nth: usize| ClusterProperties {
            name: format!("m{nth}"),
            region: format!("r{nth}"),
            ..ClusterProperties::default()
        };
        let many = PlanningContext { clusters: (0..600).map(cluster).collect(), ..PlanningContext::default() };
        assert_eq!(Order::new(&sort("region relevance"), &many), Err(OrderError::TooManyValues));
        assert!(Order::new(&sort("region"), &many).is_ok());
        assert!(Order::new(&[Sort { by: SortBy::Number(Number::Exit), descending: false }], &many).is_ok());
    }
}
