//! The result of a query from any interface, compared with the corpus.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::fixtures::{Hits, Question, name_of};

#[derive(Debug, Deserialize)]
pub struct Answer {
    /// `cluster/Kind/namespace/name` or `cluster/Kind/name`, in order.
    pub hits: Vec<String>,
    pub total: u64,
    pub remarks: Vec<String>,
    /// Number of hits per group, if the interface reports it.
    #[serde(default)]
    pub groups: Option<BTreeMap<String, u64>>,
}

impl Answer {
    /// Parses the API's JSON.
    pub fn of(response: &Value) -> Result<Self> {
        let list = |field: &str| response[field].as_array().with_context(|| format!("no {field} in {response}"));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = |hit: &Value| {
            let object = serde_json::json!({"kind": hit["kind"], "metadata": hit});
            format!("{}/{}", text(&hit["cluster"]), name_of(&object))
        };
        let groups = response["groups"]["values"].as_array().into_iter().flatten();
        let groups = Some(groups.filter_map(|group| Some((text(&group["value"]), group["count"].as_u64()?))).collect());
        Ok(Self {
            groups,
            hits: list("hits")?.iter().map(name).collect(),
            total: response["total"].as_u64().with_context(|| format!("no total in {response}"))?,
            remarks: list("notices")?.iter().map(|notice| text(&notice["message"])).collect(),
        })
    }

    /// Differences from the expected result.
    pub fn faults(&self, question: &Question) -> Vec<String> {
        let Question { query, hits, first, ordered, notice, .. } = question;
        let Self { hits: found, total, remarks, groups } = self;
        let mut faults = Vec::new();
        match hits {
            Hits::Number(number) if number != total => faults.push(format!("{total} hits, not {number}")),
            Hits::Number(_) => {}
            Hits::Named(expected) => {
                let mut sorted = found.clone();
                sorted.sort();
                let shown = if *ordered { found } else { &sorted };
                if shown != expected {
                    let lacks: Vec<_> = expected.iter().filter(|hit| !found.contains(hit)).collect();
                    let more: Vec<_> = found.iter().filter(|hit| !expected.contains(hit)).collect();
                    faults.push(format!("lacks {lacks:?}, has {more:?} more, in the order {shown:?}"));
                }
                if *total < found.len() as u64 {
                    faults.push(format!("{} hits of {total}", found.len()));
                }
            }
        }
        if first.is_some() && first.as_ref() != found.first() {
            faults.push(format!("first is {:?}", found.first()));
        }
        if question.groups.is_some() && groups.is_some() && groups != &question.groups {
            faults.push(format!("groups {groups:?}"));
        }
        // The engine's own tests have the whole history; here the cache is filled when the test starts.
        let reaches_back = query.contains("during:..");
        let (known, remarks): (Vec<_>, Vec<_>) = remarks.iter().partition(|remark| remark.contains("are unknown"));
        if known.len() != usize::from(reaches_back) {
            faults.push(format!("remarks {known:?} on what is known"));
        }
        let remarked = notice.as_ref().is_none_or(|words| remarks.iter().any(|remark| remark.contains(words)));
        if !remarked || notice.is_none() && !remarks.is_empty() {
            faults.push(format!("remarks {remarks:?}"));
        }
        faults
    }
}
