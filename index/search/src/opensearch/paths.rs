//! Values at paths of manifests as terms, and conditions on paths as queries of these terms.
//!
//! A term is `path␟value`, in lower case; lists are traversed. For numbers, quantities and times there is also
//! `path␞` with 16 hexadecimal digits in numeric order. A value that is too long is indexed as `path␝`, an object or list without
//! any value as its path alone. Keys with dots or brackets are written in brackets, as in the query language.

use super::dsl::query::{self, Bound, MAX_PREFIX_BYTES, Query};
use super::fields::{HAS, PATHS};
use super::model::{PathCondition, PathTest, Step, Test, numeric_value, scalar_text};
use super::regex::{escape_literal, escape_wildcard, to_lucene};
use super::terms::private_use_char;
use crowsnest_query::ComparisonOperator;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Separates a path from a value.
const VALUE: char = '\u{1f}';
/// Separates a path from a number.
const NUMBER: char = '\u{1e}';
/// Follows the path of a value that is too long.
const LONG: char = '\u{1d}';
/// Sorts after all of these separators and before any other character of a path.
const END: char = '\u{20}';

/// Maximum length of a value in bytes; longer ones are read from the manifest.
const MAX_VALUE: usize = 256;
/// Maximum length of a path in bytes.
const MAX_PATH: usize = 512;
/// Maximum size of all terms of an object in bytes.
const MAX_BYTES: usize = 512 << 10;

/// Value of [`HAS`] for objects whose terms are incomplete: some are omitted, or keys differ only in case.
pub const INCOMPLETE: &str = "paths.incomplete";

/// Terms of one manifest.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PathTerms {
    pub terms: BTreeSet<String>,
    /// See [`INCOMPLETE`].
    pub incomplete: bool,
    bytes: usize,
}

impl PathTerms {
    pub fn from_manifest(manifest: &Value) -> Self {
        let mut terms = Self::default();
        terms.visit(manifest, &mut String::new());
        terms
    }

    fn add(&mut self, term: String) {
        if self.bytes + term.len() > MAX_BYTES {
            self.incomplete = true;
            return;
        }
        self.bytes += term.len();
        self.terms.insert(term);
    }

    /// Adds the terms of a value and those below it. Returns false if there are none, which is only the case for null.
    fn visit(&mut self, value: &Value, path: &mut String) -> bool {
        if path.len() > MAX_PATH {
            self.incomplete = true;
            return true;
        }
        match value {
            Value::Null => false,
            Value::Object(fields) => self.visit_fields(fields, path),
            Value::Array(items) => {
                let mut found = false;
                for item in items {
                    found |= self.visit(item, path);
                }
                self.visit_empty(found, path)
            }
            scalar => {
                self.visit_scalar(scalar, path);
                true
            }
        }
    }

    fn visit_fields(&mut self, fields: &Map<String, Value>, path: &mut String) -> bool {
        let lower: BTreeSet<String> = fields.keys().map(|key| key.to_ascii_lowercase()).collect();
        self.incomplete |= lower.len() < fields.len();
        let (mut found, length) = (false, path.len());
        for (key, value) in fields {
            push_step(path, key);
            found |= self.visit(value, path);
            path.truncate(length);
        }
        self.visit_empty(found, path)
    }

    fn visit_empty(&mut self, found: bool, path: &str) -> bool {
        if !found && !path.is_empty() {
            self.add(path.to_owned());
        }
        true
    }

    fn visit_scalar(&mut self, value: &Value, path: &str) {
        let text = scalar_text(value).to_lowercase();
        match text.len() <= MAX_VALUE {
            true => self.add(format!("{path}{VALUE}{text}")),
            false => self.add(format!("{path}{LONG}")),
        }
        if let Some(number) = numeric_value(value) {
            self.add(number_term(path, number));
        }
    }
}

/// Appends a key to a path. ASCII letters become lower case, because keys are compared without regard to their case.
fn push_step(path: &mut String, key: &str) {
    let key: String =
        key.to_ascii_lowercase().chars().map(|c| if is_reserved(c) { private_use_char(c) } else { c }).collect();
    if key.is_empty() || key.contains(['.', '[']) {
        path.push('[');
        path.push_str(&key);
        path.push(']');
        return;
    }
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(&key);
}

/// True for characters that are replaced in keys: queries cannot express `]`, and the others are separators of terms.
fn is_reserved(c: char) -> bool {
    matches!(c, ']' | LONG | NUMBER | VALUE)
}

fn number_term(path: &str, number: f64) -> String {
    format!("{path}{NUMBER}{:016x}", order_bits(number))
}

/// A number as an integer of the same order; positive and negative zero are equal.
fn order_bits(number: f64) -> u64 {
    let bits = (number + 0.0).to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

/// A condition on a path as queries of an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct PathQuery {
    /// Finds objects that match by their terms.
    pub query: Query,
    /// Queries for objects with incomplete terms, whose manifests have to be read.
    pub undecided: Vec<Query>,
}

/// Translates a condition; `None` if terms cannot decide it and manifests have to be read.
pub fn path_query(test: &PathTest) -> Option<PathQuery> {
    let path = path_of(&test.steps)?;
    let mut undecided = vec![query::term(HAS, INCOMPLETE)];
    let query = match &test.condition {
        PathCondition::Exists => exists(&path),
        PathCondition::Test(test) => {
            undecided.push(query::term(PATHS, &format!("{path}{LONG}")));
            test_query(&path, test)?
        }
        PathCondition::Exactly(value) if has_no_case(value) => {
            undecided.push(query::term(PATHS, &format!("{path}{LONG}")));
            test_query(&path, &Test::Equals(value.clone()))?
        }
        // Terms are in lower case.
        PathCondition::Exactly(_) => return None,
        PathCondition::Compare(operator, number) => comparison_query(&path, *operator, *number),
        PathCondition::Between(from, to) => range_query(&path, *from, *to),
    };
    Some(PathQuery { query, undecided })
}

fn path_of(steps: &[Step]) -> Option<String> {
    let mut path = String::new();
    for step in steps {
        match step {
            Step::Field(field) => push_step(&mut path, field),
            // `[*]` may also step into fields.
            Step::Nth(_) | Step::Any => return None,
        }
    }
    Some(path)
}

fn has_no_case(text: &str) -> bool {
    text.to_lowercase() == text && text.to_uppercase() == text
}

fn exists(path: &str) -> Query {
    query::any(vec![
        query::term(PATHS, path),
        query::range(PATHS, Bound::Included(format!("{path}{LONG}")), Bound::Excluded(format!("{path}{END}"))),
        query::prefix(PATHS, &format!("{path}.")),
        query::prefix(PATHS, &format!("{path}[")),
    ])
}

fn test_query(path: &str, test: &Test) -> Option<Query> {
    let start = format!("{path}{VALUE}");
    Some(match test {
        Test::Equals(text) if text.len() > MAX_VALUE => query::none(),
        Test::Equals(text) => query::term(PATHS, &format!("{start}{text}")),
        Test::Contains(part) if part.len() > MAX_VALUE => return None,
        Test::Contains(part) => {
            query::wildcard(PATHS, &format!("{}*{}*", escape_wildcard(&start), escape_wildcard(part)))
        }
        Test::Regex(text) | Test::Fuzzy(text, ..) if start.len() + text.len() > MAX_PREFIX_BYTES => return None,
        Test::Regex(pattern) => {
            query::regexp(PATHS, &format!("{}({})", escape_literal(&start), to_lucene(pattern).ok()?))
        }
        Test::Fuzzy(word, distance, false) => {
            query::regexp(PATHS, &format!("{}{}", escape_literal(&start), super::edits::fuzzy_pattern(word, *distance)))
        }
        Test::Fuzzy(..) => return None,
    })
}

fn comparison_query(path: &str, operator: ComparisonOperator, number: f64) -> Query {
    let at = || number_term(path, number);
    let (start, end) = (Bound::Included(format!("{path}{NUMBER}")), Bound::Excluded(format!("{path}{VALUE}")));
    match operator {
        ComparisonOperator::Less => query::range(PATHS, start, Bound::Excluded(at())),
        ComparisonOperator::LessOrEqual => query::range(PATHS, start, Bound::Included(at())),
        ComparisonOperator::Greater => query::range(PATHS, Bound::Excluded(at()), end),
        ComparisonOperator::GreaterOrEqual => query::range(PATHS, Bound::Included(at()), end),
        ComparisonOperator::Equal => query::term(PATHS, &at()),
        ComparisonOperator::NotEqual => query::any(vec![
            query::range(PATHS, start, Bound::Excluded(at())),
            query::range(PATHS, Bound::Excluded(at()), end),
        ]),
    }
}

fn range_query(path: &str, from: Option<f64>, to: Option<f64>) -> Query {
    let start = from.map_or_else(|| format!("{path}{NUMBER}"), |from| number_term(path, from));
    let end = match to {
        Some(to) => Bound::Included(number_term(path, to)),
        None => Bound::Excluded(format!("{path}{VALUE}")),
    };
    query::range(PATHS, Bound::Included(start), end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn term_texts(terms: &PathTerms) -> Vec<String> {
        let show = |term: &String| term.replace(VALUE, "=").replace(NUMBER, "#").replace(LONG, "~");
        terms.terms.iter().map(show).collect()
    }

    #[test]
    fn values_are_terms_of_their_paths() {
        let manifest = json!({"metadata": {"labels": {"app.kubernetes.io/name": "Web"}, "finalizers": []},
            "spec": {"replicas": 3, "containers": [{"image": "nginx"}, {"image": "redis", "memory": "1Ki"}],
                "nothing": null, "long": "x".repeat(300), "a]b": true}});
        let terms = PathTerms::from_manifest(&manifest);
        assert_eq!(
            term_texts(&terms),
            [
                "metadata.finalizers",
                "metadata.labels[app.kubernetes.io/name]=web",
                "spec.a\u{F005D}b=true",
                "spec.containers.image=nginx",
                "spec.containers.image=redis",
                "spec.containers.memory#c090000000000000",
                "spec.containers.memory=1ki",
                "spec.long~",
                "spec.replicas#c008000000000000",
                "spec.replicas=3",
            ]
        );
        assert!(!terms.incomplete);
    }

    #[test]
    fn incomplete_terms_are_marked() {
        assert!(PathTerms::from_manifest(&json!({"data": {"README": "a", "readme": "b"}})).incomplete);
        let many: Vec<String> = (0..4_000).map(|nth| format!("{nth:0200}")).collect();
        assert!(PathTerms::from_manifest(&json!({ "data": many })).incomplete);
        assert!(PathTerms::from_manifest(&json!({"x".repeat(MAX_PATH + 1): {"b": 1}})).incomplete);
    }

    proptest! {
        #[test]
        fn numbers_keep_their_order(a in prop::num::f64::NORMAL | prop::num::f64::ZERO, b in prop::num::f64::NORMAL | prop::num::f64::ZERO) {
            prop_assert_eq!(Some(number_term("", a).cmp(&number_term("", b))), a.partial_cmp(&b));
        }
    }
}
