//! Syntax tree of a query, independent of any engine. The module `parse` creates it, `print` prints it, and search
//! backends compile it.

use serde::{Serialize, Serializer};
use std::fmt;

/// Byte range in the query text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    pub start: usize,
    pub end: usize,
}

/// A hint about a part of the query that was ignored or searched as text. The query is executed nevertheless.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    pub span: Span,
    pub message: String,
}

/// A complete query: the filter and the output options.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Query {
    pub filter: Expr,
    pub output: Output,
    pub notices: Vec<Notice>,
}

/// Terms that control the output instead of filtering.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Sort columns in order of significance.
    pub sort: Vec<SortKey>,
    /// Facet field to group by.
    pub group: Option<String>,
    pub limit: Option<usize>,
    /// Timeout of the search in seconds.
    pub timeout: Option<f64>,
    /// Kind to show instead of the matched objects: objects of this kind that belong to them.
    pub select: Option<String>,
    /// Maximum number of steps that relation fields such as `related:` and `reaches:` follow.
    pub depth: Option<u8>,
    /// Point in time whose objects are searched.
    pub at: Option<Moment>,
    /// Period (from, until), each end optional: an object matches if one of its versions in the period does.
    pub during: Option<(Option<Moment>, Option<Moment>)>,
    /// Name of the saved search to which the query is restricted.
    pub scope: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SortKey {
    pub field: String,
    pub descending: bool,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Expr {
    /// Matches everything: the empty query.
    #[default]
    All,
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    Term(Term),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Term {
    pub span: Span,
    pub kind: TermKind,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TermKind {
    /// A bare word, matched in all searched fields: name, labels, image, message and manifest.
    Text(Pattern),
    /// `field:values`
    Field { field: Field, exact: bool, values: Values },
    /// `has.event(…)`: an object that a matching event refers to. `what` is the word after `has.`.
    Has { what: String, inner: Box<Expr> },
}

/// A field of the query language.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// One of [`super::FIELDS`].
    Definition(&'static FieldDefinition),
    /// `.spec.replicas`: a manifest path without the leading dot.
    Path(String),
}

/// Serialized in the query syntax.
impl Serialize for Field {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Definition of a field with a fixed name.
#[derive(Debug, PartialEq, Eq)]
pub struct FieldDefinition {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub kind: FieldKind,
    /// Description for suggestions.
    pub description: &'static str,
}

/// Type of a field's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FieldKind {
    Word,
    /// `key=value`, `key!=value`, `key`, `!key`, or a quoted selector.
    Label,
    /// `Type=Status`
    Condition,
    Number,
    Quantity,
    /// Seconds since a point in time: `age:<1h`.
    Age,
    /// A point in time: `created:>2026-08-01`.
    Time,
    /// `kind/name` or `kind/namespace/name`
    Reference,
    /// Controls the output.
    Output,
}

/// Values of a field, separated by commas: at least one must match, or none if `negated` (`!`).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Values {
    pub negated: bool,
    pub any: Vec<Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Value {
    /// `*`: the field exists.
    Exists,
    Pattern(Pattern),
    Compare(ComparisonOperator, Literal),
    Range(Option<Literal>, Option<Literal>),
    Label(LabelMatch),
    /// A quoted Kubernetes selector; all requirements must match.
    Selector(Vec<LabelMatch>),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelMatch {
    pub key: Pattern,
    pub op: LabelOp,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum LabelOp {
    Exists,
    Absent,
    In(Vec<Pattern>),
    /// An object without the key matches, as in Kubernetes.
    NotIn(Vec<Pattern>),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Pattern {
    Word(String),
    /// Quoted: literal, including whitespace.
    Phrase(String),
    /// `*` matches any characters, `?` one character.
    Glob(String),
    /// RE2 syntax, unanchored.
    Regex {
        source: String,
        ignore_case: bool,
    },
    Fuzzy {
        word: String,
        distance: u8,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ComparisonOperator {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
}

/// A typed literal with its source text.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Literal {
    pub text: String,
    pub value: Scalar,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Scalar {
    /// Numbers, quantities (in base units) and percentages.
    Number(f64),
    /// Seconds.
    Duration(f64),
    Moment(Moment),
}

/// A point in time, possibly relative to the time of the query.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Moment {
    Absolute(jiff::Timestamp),
    /// Seconds before now.
    Ago(f64),
    /// The most recent occurrence of a time of day, given in seconds since midnight UTC.
    Daily(u32),
}

impl Moment {
    /// Unix time in seconds.
    pub fn seconds(&self, now: jiff::Timestamp) -> f64 {
        match self {
            Moment::Absolute(time) => time.as_second() as f64,
            Moment::Ago(seconds) => now.as_second() as f64 - seconds,
            Moment::Daily(second_of_day) => {
                let second_of_day = i64::from(*second_of_day);
                (now.as_second() - (now.as_second() - second_of_day).rem_euclid(24 * 3600)) as f64
            }
        }
    }
}

impl Expr {
    /// Joins expressions with AND without unnecessary nesting.
    pub fn and(mut parts: Vec<Expr>) -> Expr {
        parts.retain(|p| *p != Expr::All);
        match parts.len() {
            0 => Expr::All,
            1 => parts.remove(0),
            _ => Expr::And(parts),
        }
    }

    /// Visits every term in order.
    pub fn for_each_term<'a>(&'a self, visit: &mut dyn FnMut(&'a Term)) {
        match self {
            Expr::All => {}
            Expr::And(parts) | Expr::Or(parts) => parts.iter().for_each(|p| p.for_each_term(visit)),
            Expr::Not(inner) => inner.for_each_term(visit),
            Expr::Term(term) => {
                visit(term);
                if let TermKind::Has { inner, .. } = &term.kind {
                    inner.for_each_term(visit);
                }
            }
        }
    }
}

impl fmt::Display for ComparisonOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ComparisonOperator::Less => "<",
            ComparisonOperator::LessOrEqual => "<=",
            ComparisonOperator::Greater => ">",
            ComparisonOperator::GreaterOrEqual => ">=",
            ComparisonOperator::Equal => "=",
            ComparisonOperator::NotEqual => "!=",
        })
    }
}
