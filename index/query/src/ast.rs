//! What a query means, independent of any engine. Made by `parse`, printed by `print`, compiled by the engines.

use serde::{Serialize, Serializer};
use std::fmt;

/// Bytes of the query text a node came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    pub start: usize,
    pub end: usize,
}

/// Something the user should know; never an error that blanks the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    pub span: Span,
    pub message: String,
}

/// A whole query: what to find, and how to show it.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Query {
    pub filter: Expr,
    pub output: Output,
    pub notices: Vec<Notice>,
}

/// Terms that steer the answer instead of filtering it.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Columns in order of importance.
    pub sort: Vec<SortKey>,
    /// Facet field to group by.
    pub group: Option<String>,
    pub limit: Option<usize>,
    /// Seconds.
    pub timeout: Option<f64>,
    /// Kind to show instead of the matched objects.
    pub select: Option<String>,
    /// Steps of relation terms.
    pub depth: Option<u8>,
    /// View as of a moment.
    pub at: Option<Moment>,
    /// Anything that was true in a span of time.
    pub during: Option<(Option<Moment>, Option<Moment>)>,
    /// A saved scope's name.
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
    /// Everything: the empty query.
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
    /// A bare word: name, label, image, message, manifest.
    Text(Pattern),
    /// `field:values`
    Field { field: Field, exact: bool, values: Values },
    /// `has.event(…)`: an object about which something else holds.
    Has { what: String, inner: Box<Expr> },
}

/// A field as the language knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// One of [`super::FIELDS`], by its canonical name.
    Known(&'static KnownField),
    /// `.spec.replicas`: a path into the manifest, without the leading dot.
    Path(String),
}

/// As it is written.
impl Serialize for Field {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A row of the field table.
#[derive(Debug, PartialEq, Eq)]
pub struct KnownField {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub kind: FieldKind,
    /// What the field holds, for suggestions.
    pub about: &'static str,
}

/// How a field's values are read.
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
    /// Seconds since something happened: `age:<1h`.
    Age,
    /// A moment: `created:>2026-08-01`.
    Time,
    /// `kind/name` or `kind/namespace/name`
    Reference,
    /// Steers the answer.
    Output,
}

/// Alternatives: one of them must hold (or none, when negated by `!`).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Values {
    pub negated: bool,
    pub any: Vec<Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Value {
    /// `*`: the field is there.
    Exists,
    Pattern(Pattern),
    Compare(Compare, Literal),
    Range(Option<Literal>, Option<Literal>),
    Label(LabelMatch),
    /// A quoted Kubernetes selector: all of them.
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
    /// As in Kubernetes, an absent key satisfies it.
    NotIn(Vec<Pattern>),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Pattern {
    Word(String),
    /// Quoted: as it is, blanks included.
    Phrase(String),
    /// `*` any characters, `?` one.
    Glob(String),
    /// RE2-class; unanchored.
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
pub enum Compare {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
}

/// A typed literal with the text it came from.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Literal {
    pub text: String,
    pub value: Scalar,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Scalar {
    /// Numbers, quantities (in base units) and percents.
    Number(f64),
    /// Seconds.
    Duration(f64),
    Moment(Moment),
}

/// A point in time, possibly relative to the moment of asking.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Moment {
    Absolute(jiff::Timestamp),
    /// Seconds before now.
    Ago(f64),
    /// The last time it was so late, in seconds of the day (UTC).
    Daily(u32),
}

impl Moment {
    /// Seconds since the epoch.
    pub fn seconds(&self, now: jiff::Timestamp) -> f64 {
        match self {
            Moment::Absolute(time) => time.as_second() as f64,
            Moment::Ago(seconds) => now.as_second() as f64 - seconds,
            Moment::Daily(late) => {
                let late = i64::from(*late);
                (now.as_second() - (now.as_second() - late).rem_euclid(24 * 3600)) as f64
            }
        }
    }
}

impl Expr {
    /// Joins with AND, without needless nesting.
    pub fn and(mut parts: Vec<Expr>) -> Expr {
        parts.retain(|p| *p != Expr::All);
        match parts.len() {
            0 => Expr::All,
            1 => parts.remove(0),
            _ => Expr::And(parts),
        }
    }

    /// Every term, in order.
    pub fn terms<'a>(&'a self, see: &mut dyn FnMut(&'a Term)) {
        match self {
            Expr::All => {}
            Expr::And(parts) | Expr::Or(parts) => parts.iter().for_each(|p| p.terms(see)),
            Expr::Not(inner) => inner.terms(see),
            Expr::Term(term) => {
                see(term);
                if let TermKind::Has { inner, .. } = &term.kind {
                    inner.terms(see);
                }
            }
        }
    }
}

impl fmt::Display for Compare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compare::Less => "<",
            Compare::LessOrEqual => "<=",
            Compare::Greater => ">",
            Compare::GreaterOrEqual => ">=",
            Compare::Equal => "=",
            Compare::NotEqual => "!=",
        })
    }
}
