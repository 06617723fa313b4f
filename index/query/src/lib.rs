//! The query language of search: one parser for API, UI and CLI. It parses text into a syntax tree without I/O; search
//! backends compile the tree.
//!
//! Bare words are ANDed and match in all searched fields; `field:value` matches a field; `,` is OR within a field;
//! `-`, `!` and `NOT` negate; `OR` and parentheses group. docs/QUERY.md is the user documentation.

mod ast;
mod fields;
mod lex;
mod literal;
mod parse;
pub mod path;
mod print;
mod selector;
#[cfg(test)]
mod tests;

pub use ast::{
    ComparisonOperator, Expr, Field, FieldDefinition, FieldKind, LabelMatch, LabelOp, Literal, Moment, Notice, Output,
    Pattern, Query, Scalar, SortKey, Span, Term, TermKind, Value, Values,
};
pub use fields::{FACETS, FIELDS, STATES, find_field};
pub use literal::parse_time;
pub use parse::{LimitExceeded, parse};

/// Limits that [`parse()`] enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of the query text in bytes.
    pub length: usize,
    /// Maximum number of terms, and of values of one field.
    pub terms: usize,
    /// Maximum nesting of parentheses and negations.
    pub depth: usize,
    /// Maximum length of one regular expression in bytes.
    pub regex: usize,
    /// Maximum number of regular expressions; each of them is compiled.
    pub regexes: usize,
}

/// Maximum size of a compiled regular expression in bytes.
pub const MAX_COMPILED_REGEX_BYTES: usize = 1 << 18;

impl Default for Limits {
    fn default() -> Self {
        Self { length: 4096, terms: 256, depth: 32, regex: 512, regexes: 32 }
    }
}
