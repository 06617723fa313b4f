//! Label and field selectors: read from their string form and from objects, matched, printed.

mod field;
mod label;
mod parse;
#[cfg(test)]
mod properties;

pub use field::{FieldRequirement, FieldSelector};
pub use label::{Operator, Requirement, Selector, expression_matches, label_selector_matches};

use crate::field::FieldError;

/// Reason why a selector is invalid. The messages are those of API servers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error("unable to parse requirement: {0}")]
    Requirement(String),
    #[error("{0}")]
    Syntax(String),
    #[error("{}", crate::field::aggregate(.0))]
    Invalid(Vec<FieldError>),
    #[error("{0:?} is not a valid label selector operator")]
    Operator(String),
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    Field { selector: String, term: String },
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    #[error("invalid field selector: unescaped character in value: {}", u32::from(*.0))]
    Unescaped(char),
}
