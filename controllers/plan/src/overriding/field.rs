//! fieldOverrider: patches a string field that contains JSON or YAML.
//!
//! The output is byte-identical to Karmada's, so that fields written by Karmada are not rewritten.

use crowsnest_api::policy::{FieldOverrider, FieldPatchOperation};
use serde_json::Value;

use super::patch::{NotANumber, Operation, atoi, unescape};
use super::{OverrideError, json, yaml};

/// JSON pointer error, with the messages of the Go library that Karmada uses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PointerError {
    #[error("JSON pointer must be empty or start with a \"/\"\nJSON pointer error")]
    Start,
    #[error("object has no key {0:?}: JSON pointer error")]
    NoKey(String),
    #[error("nil value has no field {0:?}: JSON pointer error")]
    Null(String),
    #[error("{0}\nJSON pointer error")]
    NotANumber(#[from] NotANumber),
    #[error("index out of bounds array[0,{last}] index '{index}': JSON pointer error")]
    OutOfBounds { last: i64, index: i64 },
    #[error("cannot resolve \"-\" token on get: the \"-\" array token cannot be resolved here: JSON pointer error")]
    Dash,
    #[error("invalid token reference {0:?}: JSON pointer error")]
    Scalar(String),
}

/// Patches the string at the overrider's path. Errors if there is none, or if it is not valid JSON or YAML.
pub fn apply(manifest: &mut Value, overrider: &FieldOverrider) -> Result<(), OverrideError> {
    let path = &overrider.field_path;
    let Value::String(text) = resolve_pointer(manifest, path)? else {
        return Err(OverrideError::NotText(path.clone()));
    };
    *text = match (overrider.yaml.as_slice(), overrider.json.as_slice()) {
        // Admission rejects an overrider without either; Karmada then empties the field.
        ([], []) => String::new(),
        ([], entries) => json::edit(text, operations(entries))?,
        (entries, _) => yaml::edit(text, operations(entries))?,
    };
    Ok(())
}

fn operations(entries: &[FieldPatchOperation]) -> impl Iterator<Item = Operation<'_>> {
    entries.iter().map(|entry| Operation {
        operator: &entry.operator,
        path: &entry.sub_path,
        value: entry.value.as_ref().map(|value| &value.0),
    })
}

/// Resolves a JSON pointer. Indexes count from the start only.
fn resolve_pointer<'a>(manifest: &'a mut Value, path: &str) -> Result<&'a mut Value, PointerError> {
    if path.is_empty() {
        return Ok(manifest);
    }
    let steps = path.strip_prefix('/').ok_or(PointerError::Start)?;
    steps.split('/').map(unescape).try_fold(manifest, |node, step| match node {
        Value::Object(fields) => fields.get_mut(&step).ok_or(PointerError::NoKey(step)),
        Value::Array(_) if step == "-" => Err(PointerError::Dash),
        Value::Array(list) => {
            let index = atoi(&step)?;
            let last = i64::try_from(list.len()).unwrap_or(i64::MAX) - 1;
            let item = usize::try_from(index).ok().and_then(|index| list.get_mut(index));
            item.ok_or(PointerError::OutOfBounds { last, index })
        }
        Value::Null => Err(PointerError::Null(step)),
        _ => Err(PointerError::Scalar(step)),
    })
}
