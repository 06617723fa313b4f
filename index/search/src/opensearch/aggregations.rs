//! Facet counts and sums: aggregations of a request, and their results in the response.

use super::dsl::query::MAX_EXPANSIONS;
use super::fields::{self, MESSAGE};
use super::model::{Facet, Number, SumsRequest, ValueAmounts};
use super::regex::escape_literal;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Maximum number of values returned for one facet.
pub const MAX_VALUES: usize = 1_000;
/// Maximum number of values that each shard returns. Counts over several shards are exact if no shard has more.
const MAX_SHARD_VALUES: usize = 20_000;
/// Maximum number of words counted by one request, so that it stays below the engine's 65,535 buckets.
const WORDS_PER_REQUEST: usize = 12;
/// Limit of exact sums, 2^53: an engine sums floating-point numbers, so sums of integers are exact only below it.
const MAX_EXACT_SUM: f64 = 9_007_199_254_740_992.0;

/// A field whose values are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CountedField {
    Facet(Facet),
    /// A facet with sums of numbers for each of its values.
    FacetWithSums(SumsRequest),
    /// Values of the label of this key.
    Label(String),
}

/// Counts of the values of a field, most frequent first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ValueCounts {
    pub values: Vec<(Arc<str>, u64)>,
    /// For each number of [`CountedField::FacetWithSums`], the sums for the values.
    pub sums: Vec<ValueAmounts<i64>>,
    /// The numbers with a sum that the engine may have rounded, by position.
    pub rounded_sums: BTreeSet<usize>,
    /// Maximum amount by which each count is too low because shards omitted values (`doc_count_error_upper_bound`); 0
    /// with one shard.
    pub error_bound: u64,
    /// Sum of the counts of the values that are not returned (`sum_other_doc_count`).
    pub other_count: u64,
}

/// The aggregations of a request, named by their positions in `counts`.
pub fn aggregations(counts: &[CountedField]) -> Value {
    let aggregations_by_name = counts.iter().enumerate().map(|(nth, count)| (nth.to_string(), aggregation(count)));
    Value::Object(aggregations_by_name.collect())
}

fn aggregation(count: &CountedField) -> Value {
    let mut terms = json!({
        "size": MAX_VALUES,
        "shard_size": MAX_SHARD_VALUES,
        "order": [{"_count": "desc"}, {"_key": "asc"}],
    });
    let mut summed_numbers: &[Number] = &[];
    match count {
        CountedField::Facet(facet) => terms["field"] = fields::facet(*facet).into(),
        CountedField::FacetWithSums(SumsRequest { facet, numbers }) => {
            terms["field"] = fields::facet(*facet).into();
            summed_numbers = numbers;
        }
        CountedField::Label(key) => {
            terms["field"] = fields::labels().into();
            terms["include"] = format!("{}.*", escape_literal(&format!("{key}="))).into();
        }
    }
    with_sums(terms, summed_numbers)
}

/// The aggregation of `terms`, with the sums of these numbers for each term.
fn with_sums(terms: Value, numbers: &[Number]) -> Value {
    if numbers.is_empty() {
        return json!({"terms": terms});
    }
    let sum = |(nth, number)| (sum_name(nth), json!({"sum": {"field": fields::number(number)}}));
    let sums: Map<String, Value> = numbers.iter().copied().enumerate().map(sum).collect();
    json!({"terms": terms, "aggs": sums})
}

/// Name of the aggregation of a sum.
fn sum_name(nth: usize) -> String {
    format!("sum{nth}")
}

/// One aggregation in a response.
#[derive(Debug, Deserialize)]
pub(super) struct Buckets {
    #[serde(default)]
    doc_count_error_upper_bound: i64,
    #[serde(default)]
    sum_other_doc_count: u64,
    buckets: Vec<Bucket>,
}

#[derive(Debug, Deserialize)]
struct Bucket {
    key: String,
    doc_count: u64,
    /// Results of the aggregations of sums, by [`sum_name`].
    #[serde(flatten)]
    sums: BTreeMap<String, Value>,
}

impl Bucket {
    /// A sum; None if the response lacks it.
    fn sum(&self, nth: usize) -> Option<f64> {
        self.sums.get(&sum_name(nth))?["value"].as_f64()
    }
}

/// An aggregation that counts the terms of a field which begin with `prefix` and contain `part`; all of them if both are empty.
/// It sums these numbers for each term.
///
/// With a prefix, the part is not checked: the caller has to filter the results by it.
pub(super) fn count_terms(field: &str, prefix: &str, part: &str, size: usize, numbers: &[Number]) -> Value {
    let mut terms = json!({
        "field": field,
        "size": size,
        "shard_size": size.max(MAX_SHARD_VALUES),
        "order": [{"_count": "desc"}, {"_key": "asc"}],
    });
    if !prefix.is_empty() {
        terms["include"] = format!("{}.*", escape_literal(prefix)).into();
    } else if !part.is_empty() {
        terms["include"] = format!(".*{}.*", escape_literal(part)).into();
    }
    json!({ "terms": with_sums(terms, numbers) })
}

/// Sums of the terms of an aggregation.
#[derive(Debug, Default, PartialEq)]
pub(super) struct BucketSums {
    /// For each number, the sums of the terms.
    pub by_number: Vec<ValueAmounts<i64>>,
    /// The numbers with a sum that the engine may have rounded, by position.
    pub rounded: BTreeSet<usize>,
}

impl Buckets {
    /// The terms with their counts, and true if some were left out or counted too low.
    pub fn terms(self) -> (Vec<(String, u64)>, bool) {
        let incomplete = self.sum_other_doc_count > 0 || self.doc_count_error_upper_bound != 0;
        (self.buckets.into_iter().map(|bucket| (bucket.key, bucket.doc_count)).collect(), incomplete)
    }

    /// The sums of the first `numbers` numbers of the request; None if a sum is missing.
    pub fn sums(&self, numbers: usize) -> Option<BucketSums> {
        let mut sums = BucketSums::default();
        for nth in 0..numbers {
            let mut by_term = Vec::with_capacity(self.buckets.len());
            for bucket in &self.buckets {
                let sum = bucket.sum(nth)?;
                if sum.abs() >= MAX_EXACT_SUM {
                    sums.rounded.insert(nth);
                }
                // The conversion saturates at the bounds of `i64`.
                by_term.push((Arc::from(bucket.key.as_str()), sum as i64));
            }
            sums.by_number.push(by_term);
        }
        Some(sums)
    }

    /// The counts and sums of a field; None if a sum is missing.
    pub fn counts(self, count: &CountedField) -> Option<ValueCounts> {
        let (prefix, numbers) = match count {
            CountedField::Facet(_) => (String::new(), 0),
            CountedField::FacetWithSums(request) => (String::new(), request.numbers.len()),
            CountedField::Label(key) => (format!("{key}="), 0),
        };
        let BucketSums { by_number: sums, rounded: rounded_sums } = self.sums(numbers)?;
        let value = |bucket: Bucket| Some((Arc::from(bucket.key.strip_prefix(&prefix)?), bucket.doc_count));
        Some(ValueCounts {
            values: self.buckets.into_iter().filter_map(value).collect(),
            sums,
            rounded_sums,
            // The engine sends -1 if it does not know the bound.
            error_bound: u64::try_from(self.doc_count_error_upper_bound).unwrap_or(u64::MAX),
            other_count: self.sum_other_doc_count,
        })
    }
}

/// Searches that count the terms that begin with the last words of phrases ([`super::dsl::phrase_ends`]). Returns each
/// search with its words.
pub fn phrase_end_searches(ends: &BTreeSet<String>) -> Vec<(Vec<String>, Value)> {
    let ends: Vec<&String> = ends.iter().collect();
    let search = |ends: &[&String]| {
        let aggregation = |(nth, end): (usize, &&String)| {
            let terms = json!({"terms": {"field": MESSAGE, "include": format!("{}.*", escape_literal(end)),
                "size": MAX_EXPANSIONS + 1, "shard_size": MAX_EXPANSIONS + 1}});
            (nth.to_string(), json!({"filter": {"prefix": {MESSAGE: end}}, "aggs": {"terms": terms}}))
        };
        let aggregations: Map<String, Value> = ends.iter().enumerate().map(aggregation).collect();
        let body = json!({"size": 0, "track_total_hits": false, "aggs": aggregations});
        (ends.iter().map(|end| (*end).clone()).collect(), body)
    };
    ends.chunks(WORDS_PER_REQUEST).map(search).collect()
}

/// The last words of phrases that are prefixes of more than [`MAX_EXPANSIONS`] terms. Words that the engine did not count
/// are included.
pub fn find_broad_phrase_ends(ends: &[String], response: &Value) -> BTreeSet<String> {
    let buckets_of =
        |nth: usize| response.pointer(&format!("/aggregations/{nth}/terms/buckets")).and_then(Value::as_array);
    let has_too_many_terms = |nth: usize| buckets_of(nth).is_none_or(|buckets| buckets.len() > MAX_EXPANSIONS);
    ends.iter().enumerate().filter(|(nth, _)| has_too_many_terms(*nth)).map(|(_, end)| end.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn counts_are_requested_by_position() {
        let ends = BTreeSet::from(["ngin".to_owned(), "op.e".to_owned()]);
        let fields = [
            CountedField::Facet(Facet::Image),
            CountedField::Label("acme.io/app".into()),
            CountedField::FacetWithSums(SumsRequest { facet: Facet::Node, numbers: vec![Number::CpuRequest] }),
        ];
        let aggregations_json = (aggregations(&fields), phrase_end_searches(&ends));
        insta::assert_yaml_snapshot!("aggregations", aggregations_json);
    }

    #[rstest]
    #[case::integers("2.5E2", "0.0", Some((250, 0, false)))]
    #[case::exact("9.007199254740991E15", "1.0", Some((9_007_199_254_740_991, 1, false)))]
    #[case::rounded("1.0", "9.007199254740992E15", Some((1, 9_007_199_254_740_992, true)))]
    #[case::missing("1.0", "null", None)]
    fn sums_are_read(#[case] cpu: &str, #[case] memory: &str, #[case] expected: Option<(i64, i64, bool)>) {
        let numbers = vec![Number::CpuRequest, Number::MemoryRequest];
        let field = CountedField::FacetWithSums(SumsRequest { facet: Facet::Node, numbers });
        let response = format!(
            r#"{{"buckets": [{{"key": "n1", "doc_count": 3, "sum0": {{"value": {cpu}}}, "sum1": {{"value": {memory}}}}}]}}"#
        );
        let counts = serde_json::from_str::<Buckets>(&response).unwrap().counts(&field);
        let sum = |counts: &ValueCounts, nth: usize| counts.sums[nth][0].1;
        let read = counts.map(|counts| {
            assert_eq!(counts.values.iter().map(|(value, count)| (&**value, *count)).collect::<Vec<_>>(), [("n1", 3)]);
            assert!(counts.rounded_sums.iter().all(|nth| *nth == 1));
            (sum(&counts, 0), sum(&counts, 1), !counts.rounded_sums.is_empty())
        });
        assert_eq!(read, expected);
    }

    #[test]
    fn terms_are_summed() {
        let aggregation = count_terms("labels", "app=", "", 5, &[Number::CpuRequest, Number::Restarts]);
        let sums = json!({
            "sum0": {"sum": {"field": fields::number(Number::CpuRequest)}},
            "sum1": {"sum": {"field": fields::number(Number::Restarts)}},
        });
        assert_eq!(aggregation["terms"]["aggs"], sums);
        assert_eq!(count_terms("labels", "app=", "", 5, &[])["terms"].get("aggs"), None);

        let buckets = json!({"buckets": [
            {"key": "app=web", "doc_count": 3, "sum0": {"value": 2.5e2}, "sum1": {"value": 1.0}},
            {"key": "app=db", "doc_count": 1, "sum0": {"value": MAX_EXACT_SUM}, "sum1": {"value": 0.0}},
        ]});
        let buckets: Buckets = serde_json::from_value(buckets).unwrap();
        let expected = [[("app=web", 250), ("app=db", 9_007_199_254_740_992)], [("app=web", 1), ("app=db", 0)]];
        let by_number = expected.map(|sums| sums.map(|(term, sum)| (Arc::<str>::from(term), sum)).to_vec()).to_vec();
        assert_eq!(buckets.sums(2), Some(BucketSums { by_number, rounded: [0].into() }));
        assert_eq!(buckets.sums(3), None);
    }

    #[test]
    fn broad_phrase_ends_are_found() {
        let ends = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
        let buckets = |count: usize| json!({"terms": {"buckets": vec![json!({}); count]}});
        let response = json!({"aggregations": {"0": buckets(MAX_EXPANSIONS), "1": buckets(MAX_EXPANSIONS + 1)}});
        assert_eq!(find_broad_phrase_ends(&ends, &response), ends[1..].iter().cloned().collect());
    }

    #[test]
    fn many_ends_are_counted_by_several_requests() {
        let ends: BTreeSet<String> = (0..30).map(|nth| format!("end{nth:02}")).collect();
        let searches = phrase_end_searches(&ends);
        assert_eq!(searches.len(), 3);
        assert_eq!(searches.into_iter().flat_map(|(ends, _)| ends).collect::<BTreeSet<_>>(), ends);
    }
}
