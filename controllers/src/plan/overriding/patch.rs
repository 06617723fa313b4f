//! RFC 6902 patches made of override entries: plaintext overriders on the object, sub-path entries on a field's text.

use crowsnest_api::policy::OverriderOperator;
use serde_json::{Value, json};

use super::OverrideError;

/// One entry of a patch.
pub struct Operation<'a> {
    pub operator: &'a OverriderOperator,
    pub path: &'a str,
    pub value: Option<&'a Value>,
}

/// Applies the entries as one patch: all of them or, on an error, none.
pub fn apply<'a>(document: &mut Value, operations: impl Iterator<Item = Operation<'a>>) -> Result<(), OverrideError> {
    let entries: Vec<Value> = operations
        .map(|operation| match operation.operator {
            OverriderOperator::Remove => json!({"op": "remove", "path": operation.path}),
            operator => json!({"op": operator.as_str(), "path": operation.path, "value": operation.value}),
        })
        .collect();
    if entries.is_empty() {
        return Ok(());
    }
    let failed = |operator: &str, path: &str, reason: String| OverrideError::Patch {
        operator: operator.to_owned(),
        path: path.to_owned(),
        reason,
    };
    let patch: json_patch::Patch =
        serde_json::from_value(Value::Array(entries)).map_err(|error| failed("patch", "", error.to_string()))?;
    json_patch::patch(document, &patch)
        .map_err(|error| failed("patch", &error.path.to_string(), error.kind.to_string()))
}
