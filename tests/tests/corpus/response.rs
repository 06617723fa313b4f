//! Response to a query of the corpus from any interface, and its comparison with the expected result.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::fixtures::{ExpectedHits, QueryCase, name_of};

#[derive(Debug, Deserialize)]
pub struct QueryResponse {
    /// `cluster/Kind/namespace/name` or `cluster/Kind/name`, in the order of the response.
    pub hits: Vec<String>,
    pub total: u64,
    pub notices: Vec<String>,
    /// Number of hits per group, if the interface reports it.
    #[serde(default)]
    pub groups: Option<BTreeMap<String, u64>>,
    /// Sums of numeric columns, by column and group, if the interface reports them.
    #[serde(default)]
    pub sums: Option<BTreeMap<String, BTreeMap<String, i64>>>,
}

impl QueryResponse {
    /// Parses a response of the API.
    pub fn parse(response: &Value) -> Result<Self> {
        let list = |field: &str| response[field].as_array().with_context(|| format!("no {field} in {response}"));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = |hit: &Value| {
            let object = serde_json::json!({"kind": hit["kind"], "metadata": hit});
            format!("{}/{}", text(&hit["cluster"]), name_of(&object))
        };
        let values = response["groups"]["values"].as_array().into_iter().flatten();
        let groups = values.clone().filter_map(|group| Some((text(&group["value"]), group["count"].as_u64()?)));
        let mut sums: BTreeMap<String, BTreeMap<String, i64>> = BTreeMap::new();
        for group in values {
            for (column, sum) in group["sums"].as_object().into_iter().flatten() {
                let sum = sum.as_i64().with_context(|| format!("{column} is not an integer in {group}"))?;
                sums.entry(column.clone()).or_default().insert(text(&group["value"]), sum);
            }
        }
        Ok(Self {
            groups: Some(groups.collect()),
            sums: Some(sums),
            hits: list("hits")?.iter().map(name).collect(),
            total: response["total"].as_u64().with_context(|| format!("no total in {response}"))?,
            notices: list("notices")?.iter().map(|notice| text(&notice["message"])).collect(),
        })
    }

    /// Differences from the expected result.
    pub fn differences(&self, case: &QueryCase) -> Vec<String> {
        let QueryCase { query, hits: expected_hits, first, ordered, notice, .. } = case;
        let Self { hits, total, notices, groups, sums } = self;
        let mut differences = Vec::new();
        match expected_hits {
            ExpectedHits::Count(number) if number != total => {
                differences.push(format!("{total} hits (expected {number})"))
            }
            ExpectedHits::Count(_) => {}
            ExpectedHits::Names(expected) => {
                let mut sorted = hits.clone();
                sorted.sort();
                let compared = if *ordered { hits } else { &sorted };
                if compared != expected {
                    let missing: Vec<_> = expected.iter().filter(|hit| !hits.contains(hit)).collect();
                    let unexpected: Vec<_> = hits.iter().filter(|hit| !expected.contains(hit)).collect();
                    differences.push(format!(
                        "missing hits {missing:?}, unexpected hits {unexpected:?}; all hits: {compared:?}"
                    ));
                }
                if *total < hits.len() as u64 {
                    differences.push(format!("{} hits but a total of {total}", hits.len()));
                }
            }
        }
        if first.is_some() && first.as_ref() != hits.first() {
            differences.push(format!("the first hit is {:?}", hits.first()));
        }
        if case.groups.is_some() && groups.is_some() && groups != &case.groups {
            differences.push(format!("groups {groups:?}"));
        }
        if sums.as_ref().is_some_and(|sums| *sums != case.sums) {
            differences.push(format!("sums {sums:?}"));
        }
        // The history of the cache begins when the test starts, so queries without a start time have one more notice
        // than in the tests of the search engine.
        let has_no_start = query.contains("during:..");
        let (on_history, notices): (Vec<_>, Vec<_>) = notices.iter().partition(|notice| notice.contains("are unknown"));
        if on_history.len() != usize::from(has_no_start) {
            differences.push(format!("notices about the history: {on_history:?}"));
        }
        let has_notice = notice.as_ref().is_none_or(|text| notices.iter().any(|notice| notice.contains(text)));
        if !has_notice || notice.is_none() && !notices.is_empty() {
            differences.push(format!("notices {notices:?}"));
        }
        differences
    }
}
