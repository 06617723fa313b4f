//! Manifest paths: `.spec.containers[0].image`, `.metadata.labels[app.kubernetes.io/name]`.
//!
//! Lists are traversed implicitly. Paths are evaluated on bodies, which are read only for candidates: objects whose
//! manifest text contains the last field of the path and the searched word.

use crate::plan::patterns::{Test, pattern_test};
use crowsnest_apimachinery::quantity::Quantity;
use crowsnest_query::{ComparisonOperator, Literal, Pattern, Scalar, Value as QueryValue};
use serde_json::Value;

/// Maximum length of a word in bytes; longer ones are not terms of the text index.
const MAX_WORD: usize = 100;

/// A step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Field(String),
    /// An item of a list, from 0.
    Nth(usize),
    /// All items of a list, or all fields of an object.
    Any,
}

/// A path and the condition on its values.
#[derive(Debug, Clone, PartialEq)]
pub struct PathTest {
    text: String,
    pub(crate) steps: Vec<Step>,
    pub(crate) condition: PathCondition,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PathCondition {
    Exists,
    /// The value in lower case passes the test.
    Test(Test),
    /// The value equals this one, case-sensitively.
    Exactly(String),
    Compare(ComparisonOperator, f64),
    Between(Option<f64>, Option<f64>),
}

/// A path without a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestPath(Vec<Step>);

impl ManifestPath {
    /// Parses `.spec.replicas`; None if it is not a path.
    pub fn new(text: &str) -> Option<Self> {
        parse_steps(text.strip_prefix('.')?).map(Self)
    }

    /// The scalar values at the path, as text.
    pub fn values(&self, manifest: &Value) -> Vec<String> {
        let mut values = Vec::new();
        walk(manifest, &self.0, &mut |value| {
            if !matches!(value, Value::Object(_) | Value::Array(_) | Value::Null) {
                values.push(scalar_text(value));
            }
        });
        values
    }
}

fn parse_steps(path: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let (index_text, after) = inner.split_once(']')?;
            steps.push(match index_text.parse() {
                _ if index_text == "*" => Step::Any,
                Ok(nth) => Step::Nth(nth),
                Err(_) => Step::Field(index_text.trim_matches(['"', '\'']).to_owned()),
            });
            rest = after.strip_prefix('.').unwrap_or(after);
            continue;
        }
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        if end == 0 {
            return None;
        }
        steps.push(Step::Field(rest[..end].to_owned()));
        rest = rest[end..].strip_prefix('.').unwrap_or(&rest[end..]);
    }
    (!steps.is_empty()).then_some(steps)
}

/// A literal as a number: quantities in base units, durations and times in seconds.
fn literal_number(literal: &Literal, now: i64) -> f64 {
    match &literal.value {
        Scalar::Number(number) | Scalar::Duration(number) => *number,
        Scalar::Moment(moment) => moment.seconds(jiff::Timestamp::from_second(now).unwrap_or_default()),
    }
}

impl PathTest {
    /// None if the path is invalid, or the value is not supported for paths.
    pub fn new(path: &str, exact: bool, value: &QueryValue, now: i64) -> Option<Self> {
        let condition = match value {
            QueryValue::Exists => PathCondition::Exists,
            QueryValue::Pattern(Pattern::Word(word) | Pattern::Phrase(word)) if exact => {
                PathCondition::Exactly(word.clone())
            }
            QueryValue::Pattern(pattern) => PathCondition::Test(pattern_test(pattern, false)),
            QueryValue::Compare(operator, literal) => PathCondition::Compare(*operator, literal_number(literal, now)),
            QueryValue::Range(from, to) => PathCondition::Between(
                from.as_ref().map(|l| literal_number(l, now)),
                to.as_ref().map(|l| literal_number(l, now)),
            ),
            QueryValue::Label(_) | QueryValue::Selector(_) => return None,
        };
        Some(Self { text: path.to_owned(), steps: parse_steps(path)?, condition })
    }

    pub fn path(&self) -> &str {
        &self.text
    }

    /// Words that every matching manifest contains.
    pub fn words(&self) -> Vec<String> {
        let field = self.steps.iter().rev().find_map(|step| match step {
            Step::Field(field) => Some(field.to_lowercase()),
            _ => None,
        });
        let value = match &self.condition {
            // Booleans are not part of the text, and numbers may be written differently.
            PathCondition::Test(Test::Equals(word)) if !matches!(word.as_str(), "true" | "false") => Some(word.clone()),
            _ => None,
        };
        let value = value.filter(|word| word.parse::<f64>().is_err());
        field.into_iter().chain(value).filter(|word| word.len() <= MAX_WORD).collect()
    }

    /// The first value that matches, as text.
    pub fn first_match(&self, manifest: &Value) -> Option<String> {
        let regex = match &self.condition {
            PathCondition::Test(test) => test.regex(),
            _ => None,
        };
        let mut found = None;
        walk(manifest, &self.steps, &mut |value| {
            if found.is_none() && self.passes(value, regex.as_ref()) {
                found = Some(scalar_text(value));
            }
        });
        found
    }

    fn passes(&self, value: &Value, regex: Option<&regex::Regex>) -> bool {
        let is_scalar = !matches!(value, Value::Object(_) | Value::Array(_) | Value::Null);
        match &self.condition {
            PathCondition::Exists => !value.is_null(),
            PathCondition::Test(test) => is_scalar && test.passes(&scalar_text(value).to_lowercase(), regex),
            PathCondition::Exactly(expected) => is_scalar && scalar_text(value) == *expected,
            PathCondition::Compare(operator, expected) => numeric_value(value).is_some_and(|number| match operator {
                ComparisonOperator::Less => number < *expected,
                ComparisonOperator::LessOrEqual => number <= *expected,
                ComparisonOperator::Greater => number > *expected,
                ComparisonOperator::GreaterOrEqual => number >= *expected,
                ComparisonOperator::Equal => number == *expected,
                ComparisonOperator::NotEqual => number != *expected,
            }),
            PathCondition::Between(from, to) => numeric_value(value)
                .is_some_and(|number| from.is_none_or(|from| number >= from) && to.is_none_or(|to| number <= to)),
        }
    }
}

/// Calls `visit` with each value at the path; lists are traversed unless a step has an index.
fn walk(value: &Value, steps: &[Step], visit: &mut dyn FnMut(&Value)) {
    match (steps, value) {
        ([Step::Nth(nth), rest @ ..], Value::Array(items)) => {
            if let Some(item) = items.get(*nth) {
                walk(item, rest, visit);
            }
        }
        ([Step::Any, rest @ ..], Value::Array(items)) => items.iter().for_each(|item| walk(item, rest, visit)),
        ([Step::Any, rest @ ..], Value::Object(fields)) => fields.values().for_each(|item| walk(item, rest, visit)),
        ([], Value::Array(items)) => {
            visit(value);
            items.iter().for_each(|item| walk(item, &[], visit));
        }
        (steps, Value::Array(items)) => items.iter().for_each(|item| walk(item, steps, visit)),
        ([], value) => visit(value),
        ([Step::Field(field), rest @ ..], Value::Object(fields)) => {
            let exact = fields.get(field);
            let found = exact.or_else(|| fields.iter().find(|(name, _)| name.eq_ignore_ascii_case(field)).map(|f| f.1));
            if let Some(inner) = found {
                walk(inner, rest, visit);
            }
        }
        _ => {}
    }
}

pub(crate) fn scalar_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(_) | Value::Array(_) => String::new(),
        other => other.to_string(),
    }
}

/// Numbers, quantities and times (in seconds).
pub(crate) fn numeric_value(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => {
            let quantity = text.parse::<Quantity>().ok().map(|quantity| quantity.as_f64());
            quantity.or_else(|| text.parse::<jiff::Timestamp>().ok().map(|time| time.as_second() as f64))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_query::{Expr, Limits, TermKind, parse};
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(".spec.replicas:>2", Some("3"))]
    #[case(".spec.replicas:3", Some("3"))]
    #[case(".spec.replicas:1..2", None)]
    #[case(".spec.Paused:TRUE", Some("true"))]
    #[case(".spec.none:*", None)]
    #[case(".spec.nothing:*", None)]
    #[case(".spec.template.containers.image:nginx*", Some("nginx:1"))]
    #[case(".spec.template.containers[1].image:nginx*", None)]
    #[case(".spec.template.containers[*].image:/redis/", Some("redis:7"))]
    #[case(".spec.template.containers.memory:>=1Gi", Some("2Gi"))]
    #[case(".metadata.labels[app.kubernetes.io/name]:web", Some("Web"))]
    #[case(".metadata.labels[app.kubernetes.io/name]:=web", None)]
    #[case(".metadata.finalizers:b", Some("b"))]
    #[case(".metadata.created:<2026-02-01", Some("2026-01-01T00:00:00Z"))]
    fn paths_lead_to_values(#[case] query: &str, #[case] expected: Option<&str>) {
        let manifest = json!({"spec": {"replicas": 3, "paused": true, "nothing": null, "template": {"containers":
            [{"image": "nginx:1", "memory": "64Mi"}, {"image": "redis:7", "memory": "2Gi"}]}},
            "metadata": {"labels": {"app.kubernetes.io/name": "Web"}, "finalizers": ["a", "b"], "created": "2026-01-01T00:00:00Z"}});
        let parsed = parse(query, &Limits::default()).unwrap();
        let Expr::Term(term) = parsed.filter else { panic!("{query} is not a term") };
        let TermKind::Field { field: crowsnest_query::Field::Path(path), exact, values } = term.kind else {
            panic!("{query} is not a path")
        };
        let path = PathTest::new(&path, exact, &values.any[0], 0).unwrap();
        assert_eq!(path.first_match(&manifest).as_deref(), expected, "{query}");
    }

    #[rstest]
    #[case(".spec.replicas", Some(&["3"][..]))]
    #[case(".spec.containers.image", Some(&["nginx:1", "redis:7"][..]))]
    #[case(".spec.containers[1].image", Some(&["redis:7"][..]))]
    #[case(".metadata.labels[app.kubernetes.io/name]", Some(&["web"][..]))]
    #[case(".metadata.finalizers", Some(&["a", "b"][..]))]
    #[case(".spec", Some(&[][..]))]
    #[case(".nothing", Some(&[][..]))]
    #[case("spec", None)]
    #[case(".", None)]
    #[case(".spec[", None)]
    fn paths_have_values(#[case] path: &str, #[case] expected: Option<&[&str]>) {
        let manifest = json!({"spec": {"replicas": 3, "containers": [{"image": "nginx:1"}, {"image": "redis:7"}]},
            "metadata": {"labels": {"app.kubernetes.io/name": "web"}, "finalizers": ["a", "b"]}});
        let values = ManifestPath::new(path).map(|path| path.values(&manifest));
        let expected = expected.map(|expected| expected.iter().map(|value| value.to_string()).collect::<Vec<_>>());
        assert_eq!(values, expected, "{path}");
    }
}
