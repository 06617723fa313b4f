//! The query language of search: one parser for API, UI and CLI. Pure: text in, tree out; engines compile the tree.
//!
//! Bare words are ANDed and searched everywhere; `field:value` asks a field; `,` is OR inside a field; `-`, `!` and `NOT` negate;
//! `OR` and parentheses group. docs/QUERY.md is the user's page.

mod ast;
mod fields;
mod lex;
mod literal;
mod parse;
mod print;
mod selector;
#[cfg(test)]
mod tests;

pub use ast::{
    Compare, Expr, Field, FieldKind, KnownField, LabelMatch, LabelOp, Literal, Moment, Notice, Output, Pattern, Query,
    Scalar, SortKey, Span, Term, TermKind, Value, Values,
};
pub use fields::{FACETS, FIELDS, STATES, lookup};
pub use literal::instant;
pub use parse::{TooMuch, parse};

/// What one query may cost to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of text.
    pub length: usize,
    pub terms: usize,
    /// Nested parentheses and negations.
    pub depth: usize,
    /// Bytes of one regular expression.
    pub regex: usize,
    /// Regular expressions: each is compiled.
    pub regexes: usize,
}

/// Bytes of a compiled regular expression.
pub const MAX_COMPILED: usize = 1 << 18;

impl Default for Limits {
    fn default() -> Self {
        Self { length: 4096, terms: 256, depth: 32, regex: 512, regexes: 32 }
    }
}
