//! Columns that `get` adds to the servers' tables (labels, adoption), and the sort order of rows. Has no side effects.

use std::cmp::Ordering;

use crowsnest_api::constants::label::MANAGED;
use crowsnest_apimachinery::jsonpath::JsonPath;
use crowsnest_apimachinery::quantity::Quantity;
use serde_json::Value;

use super::CONTROL_PLANE;
use crate::output::parse_relaxed_path;

const NONE: &str = "<none>";

#[derive(Debug, Clone, Default)]
pub(super) struct ExtraColumns {
    /// Labels shown as columns.
    pub(super) labels: Vec<String>,
    pub(super) shows_all_labels: bool,
    /// Show the column ADOPTION: whether the control plane propagated the object, as karmadactl shows it.
    pub(super) shows_adoption: bool,
    pub(super) sort: Option<SortBy>,
}

impl ExtraColumns {
    pub(super) fn headers(&self) -> Vec<String> {
        let adoption = self.shows_adoption.then(|| "ADOPTION".to_owned());
        // The header is the last segment of a label key such as `app.kubernetes.io/name`.
        let labels = self.labels.iter().map(|label| label.rsplit('/').next().unwrap_or(label).to_uppercase());
        adoption.into_iter().chain(labels).chain(self.shows_all_labels.then(|| "LABELS".to_owned())).collect()
    }

    pub(super) fn sort_key(&self, object: &Value) -> SortKey {
        self.sort.as_ref().map(|sort| sort.sort_key(object)).unwrap_or_default()
    }

    pub(super) fn cells(&self, object: &Value, cluster: &str) -> Vec<String> {
        let labels = &object["metadata"]["labels"];
        let adoption_mark = || match labels[MANAGED] == "true" {
            _ if cluster == CONTROL_PLANE => "-",
            true => "Y",
            false => "N",
        };
        let label_value = |label: &String| labels[label.as_str()].as_str().unwrap_or(NONE).to_owned();
        let adoption = self.shows_adoption.then(|| adoption_mark().to_owned());
        adoption
            .into_iter()
            .chain(self.labels.iter().map(label_value))
            .chain(self.shows_all_labels.then(|| format_labels(labels)))
            .collect()
    }
}

fn format_labels(labels: &Value) -> String {
    let pairs = labels.as_object().into_iter().flatten();
    let mut pairs: Vec<String> =
        pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    pairs.sort();
    if pairs.is_empty() { NONE.to_owned() } else { pairs.join(",") }
}

/// The JSONPath expression of `--sort-by`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SortBy(JsonPath);

impl SortBy {
    /// Parses `.metadata.name`, with or without braces.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        parse_relaxed_path(text).map(Self)
    }

    fn sort_key(&self, object: &Value) -> SortKey {
        SortKey(self.0.find(object).first().filter(|found| !found.is_null()).map(|found| (*found).clone()))
    }
}

/// Sort key: the value found in an object. A missing value sorts first.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SortKey(Option<Value>);

impl SortKey {
    pub(super) fn cmp_values(&self, other: &Self) -> Ordering {
        match (&self.0, &other.0) {
            (Some(Value::Number(left)), Some(Value::Number(right))) => {
                left.as_f64().partial_cmp(&right.as_f64()).unwrap_or(Ordering::Equal)
            }
            (Some(Value::String(left)), Some(Value::String(right))) => cmp_texts(left, right),
            (Some(left), Some(right)) => left.to_string().cmp(&right.to_string()),
            (left, right) => left.is_some().cmp(&right.is_some()),
        }
    }
}

/// Compares quantities by value, and other strings with embedded numbers numerically: `web-2` sorts before `web-10`.
fn cmp_texts(left: &str, right: &str) -> Ordering {
    match (Quantity::parse(left), Quantity::parse(right)) {
        (Ok(left), Ok(right)) => left.cmp(&right),
        _ => split_numbers(left).cmp(&split_numbers(right)),
    }
}

/// Splits a string into text and number parts; a number is its length without leading zeros, and its digits.
fn split_numbers(text: &str) -> Vec<(usize, &str)> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_number = first.is_ascii_digit();
        let end = rest.find(|character: char| character.is_ascii_digit() != is_number).unwrap_or(rest.len());
        let (piece, after) = rest.split_at(end);
        let digits = piece.trim_start_matches('0');
        pieces.push(if is_number { (digits.len(), digits) } else { (0, piece) });
        rest = after;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_become_columns() {
        let labels = vec!["app.kubernetes.io/name".to_owned(), "tier".to_owned()];
        let extra_columns = ExtraColumns { labels, shows_all_labels: true, shows_adoption: true, sort: None };
        assert_eq!(extra_columns.headers(), ["ADOPTION", "NAME", "TIER", "LABELS"]);
        let object = json!({"metadata": {"labels": {"tier": "front", "karmada.io/managed": "true"}}});
        assert_eq!(extra_columns.cells(&object, "m1"), ["Y", "<none>", "front", "karmada.io/managed=true,tier=front"]);
        assert_eq!(extra_columns.cells(&json!({}), "m1"), ["N", "<none>", "<none>", "<none>"]);
        assert_eq!(extra_columns.cells(&object, "Karmada")[0], "-");
        assert_eq!(ExtraColumns::default().cells(&object, "m1"), Vec::<String>::new());
    }

    #[rstest::rstest]
    #[case(json!(2), json!(10), Ordering::Less)]
    #[case(json!("web-2"), json!("web-10"), Ordering::Less)]
    #[case(json!("web-02"), json!("web-2"), Ordering::Equal)]
    #[case(json!("1Gi"), json!("900Mi"), Ordering::Greater)]
    #[case(json!("2026-01-01T00:00:00Z"), json!("2025-12-31T00:00:00Z"), Ordering::Greater)]
    #[case(json!(null), json!("a"), Ordering::Less)]
    fn values_are_compared(#[case] left: Value, #[case] right: Value, #[case] expected: Ordering) {
        let sort = SortBy::parse(".spec.x").unwrap();
        let key = |value: Value| sort.sort_key(&json!({"spec": {"x": value}}));
        assert_eq!(key(left).cmp_values(&key(right)), expected);
    }

    #[test]
    fn missing_values_sort_first() {
        let sort = SortBy::parse("{.spec.x}").unwrap();
        let present = sort.sort_key(&json!({"spec": {"x": 0}}));
        assert_eq!(sort.sort_key(&json!({})).cmp_values(&present), Ordering::Less);
        assert!(SortBy::parse(".spec[").is_err());
    }
}
