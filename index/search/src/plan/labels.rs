//! Label requirements, of objects and of clusters.

use crate::document::columns::Keyword;
use crate::plan::ClusterProperties;
use crate::plan::patterns::{label_part_regex, literal_word};
use crate::plan::predicate::{Match, Test};
use crowsnest_query::{LabelMatch, LabelOp, Pattern};

/// Clusters whose labels satisfy a requirement.
pub fn cluster_label_match(label: &LabelMatch, clusters: &[ClusterProperties]) -> Match {
    let key = Test::Regex(label_part_regex(&label.key, "."));
    let key_regex = key.regex();
    let has = |cluster: &ClusterProperties, values: &[Pattern]| {
        cluster.labels.iter().any(|(name, value)| {
            let right_key = key.passes(&name.to_lowercase(), key_regex.as_ref());
            right_key
                && (values.is_empty()
                    || values.iter().any(|pattern| {
                        let value_test = Test::Regex(label_part_regex(pattern, "."));
                        value_test.passes(&value.to_lowercase(), value_test.regex().as_ref())
                    }))
        })
    };
    let is_match = |cluster: &&ClusterProperties| match &label.op {
        LabelOp::Exists => has(cluster, &[]),
        LabelOp::Absent => !has(cluster, &[]),
        LabelOp::In(values) => has(cluster, values),
        LabelOp::NotIn(values) => !has(cluster, values),
    };
    Match::Clusters(clusters.iter().filter(is_match).map(|cluster| cluster.name.clone()).collect())
}

/// Objects whose labels (or annotations) satisfy a requirement.
pub fn label_match(label: &LabelMatch, pair: Keyword, key: Keyword, exact: bool) -> Match {
    let has_key = || match literal_word(&label.key) {
        Some(word) => Match::Keyword(key, Test::Equals(word.to_lowercase())),
        None => Match::Keyword(key, Test::Regex(label_part_regex(&label.key, "."))),
    };
    let has_value = |value: &Pattern| match (literal_word(&label.key), literal_word(value)) {
        (Some(name), Some(value)) if exact => Match::Exact(pair, format!("{name}={value}")),
        (Some(name), Some(value)) => Match::Keyword(pair, Test::Equals(format!("{name}={value}").to_lowercase())),
        _ => Match::Keyword(
            pair,
            Test::Regex(format!("{}={}", label_part_regex(&label.key, "[^=]"), label_part_regex(value, "."))),
        ),
    };
    match &label.op {
        LabelOp::Exists => has_key(),
        LabelOp::Absent => has_key().negated(),
        LabelOp::In(values) => Match::any_of(values.iter().map(has_value).collect()),
        LabelOp::NotIn(values) => Match::any_of(values.iter().map(has_value).collect()).negated(),
    }
}
