//! The patch formats: JSON patch (RFC 6902), merge patch (RFC 7386), strategic merge patch.
//!
//! Pure. Called by `registry/` inside the write; server-side apply is in `apply/`.

use crowsnest_api::field::{FieldError, FieldErrorKind};
use serde_json::Value;

use crate::schema::Schema;
use crate::status::{ApiError, ApiResult, Details, Reason};

mod json;
mod strategic;

pub use json::{json_patch, parse_json_patch};

/// Merge patch: objects merge, null deletes, the rest replaces.
pub fn merge_patch(doc: &Value, patch: &Value) -> ApiResult<Value> {
    let mut out = doc.clone();
    merge(&mut out, patch);
    Ok(out)
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(fields) = target else { return };
    for (key, change) in changes {
        if change.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.as_str()).or_insert(Value::Null), change);
        }
    }
}

/// Strategic merge patch of a built-in kind.
pub fn strategic_merge(schema: &Schema, doc: &Value, patch: &Value) -> ApiResult<Value> {
    strategic::strategic(schema, doc, patch)
}

/// A merge or strategic merge patch body: a JSON object, else 400 in Go's words.
pub fn parse_merge_patch(body: &[u8]) -> ApiResult<Value> {
    let patch = crate::schema::decode::parse_json(body)
        .map_err(|why| ApiError::bad_request(format!("error decoding patch: {why}")))?;
    if patch.is_object() {
        return Ok(patch);
    }
    Err(ApiError::bad_request(format!(
        "error decoding patch: json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
        json::kind(&patch)
    )))
}

/// Reads a patched object again: types, unknown fields, canonical form. A wrong type is 422 at `patch`.
/// The second part are the strict findings.
pub fn decode_patched(schema: &Schema, patched: Value, strict: bool) -> ApiResult<(Value, Vec<String>)> {
    let shown = || serde_json::Value::String(json::as_go_prints(&patched)).to_string();
    let mut decoded = crate::schema::decode::decode_value(patched.clone(), schema);
    if schema.name.is_none() {
        // Custom resources are checked and pruned by their own schema.
        decoded.strict = crate::schema::check(schema, &patched).unknown;
    }
    let why = match &decoded.wrong {
        Some(wrong) => wrong.clone(),
        None if strict && !decoded.strict.is_empty() => format!("strict decoding error: {}", decoded.strict.join(", ")),
        None => return Ok((decoded.object, decoded.strict)),
    };
    let error = FieldError::new(FieldErrorKind::Invalid, "patch", Some(shown()), why);
    Err(ApiError::invalid("", "", "", vec![error]))
}

/// 422 as `errors.NewGenericServerResponse` words a patch that does not apply.
pub(crate) fn rejected() -> ApiError {
    ApiError::new(Reason::Invalid, "the server rejected our request due to an error in our request")
        .with_details(Details::default())
}
