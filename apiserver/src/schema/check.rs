//! What is wrong with a parsed object, in the words of Go's JSON decoder.

use serde_json::Value;

use super::{Schema, prune};

/// Findings of [`check`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// `unknown field "spec.replica"`.
    pub unknown: Vec<String>,
    /// `json: cannot unmarshal string into Go struct field …`.
    pub wrong: Option<String>,
}

/// Looks for unknown fields and values of a wrong type.
pub fn check(schema: &Schema, object: &Value) -> Checked {
    let mut copy = object.clone();
    let unknown = prune(schema, &mut copy).into_iter().map(|path| format!("unknown field {path:?}")).collect();
    Checked { unknown, wrong: None }
}
