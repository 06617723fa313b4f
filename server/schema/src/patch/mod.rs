//! Patch formats: JSON patch (RFC 6902), merge patch (RFC 7386), strategic merge patch.
//!
//! Pure. Called by the registry within a write; server-side apply is in `apply/`.

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_apimachinery::status::{ApiError, ApiResult, Details, Reason};
use serde_json::Value;

use crate::Schema;

mod convert;
mod golang;
mod json;
mod strategic;

pub use golang::{go_type, go_value};
pub use json::kind as go_kind;
pub use json::{json_patch, read_json_patch};

/// A patch body with its strict findings: `duplicate field "data.x"`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Body {
    pub value: Value,
    pub strict: Vec<String>,
}

/// Applies a merge patch: objects are merged, null deletes, other values replace. As in Go's library, objects in new
/// lists lose their nulls, but not those in a list that replaces an object.
pub fn merge_patch(doc: &Value, patch: &Value) -> ApiResult<Value> {
    let mut out = doc.clone();
    merge(&mut out, patch);
    Ok(out)
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = target else {
        *target = without_nulls(patch);
        return;
    };
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    for (key, change) in changes {
        if change.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.as_str()).or_insert(Value::Null), change);
        }
    }
}

/// The value without nulls in objects, at any depth. Nulls in lists stay.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}

/// Applies a strategic merge patch to a built-in kind. The patch is consumed: errors about the result print what is
/// left of it.
pub fn strategic_merge(schema: &Schema, doc: &Value, patch: &mut Value) -> ApiResult<Value> {
    strategic::strategic(schema, doc, patch)
}

fn object_body(body: &[u8]) -> Result<Body, String> {
    let (value, strict) = crate::decode::read_json(body)?;
    match &value {
        Value::Object(_) | Value::Null => Ok(Body { value, strict }),
        other => {
            let kind = json::kind(other);
            Err(format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"))
        }
    }
}

/// Decodes a merge patch body: a JSON object, otherwise a 400 error with Go's message.
pub fn read_merge_patch(body: &[u8]) -> ApiResult<Body> {
    let read = object_body(body).map_err(|why| ApiError::bad_request(format!("error decoding patch: {why}")))?;
    if read.value.is_null() { Err(ApiError::bad_request("Invalid JSON Patch")) } else { Ok(read) }
}

/// Decodes a strategic merge patch body: a JSON object, or null, which changes nothing.
pub fn read_strategic_patch(body: &[u8]) -> ApiResult<Body> {
    let mut read = object_body(body).map_err(ApiError::bad_request)?;
    if read.value.is_null() {
        read.value = Value::Object(serde_json::Map::new());
    }
    Ok(read)
}

/// Decodes the value of a merge patch body.
pub fn parse_merge_patch(body: &[u8]) -> ApiResult<Value> {
    read_merge_patch(body).map(|read| read.value)
}

/// How a patched object is decoded.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    /// Object in error messages; `None` prints the patched object.
    pub shown: Option<&'a str>,
    /// Strict findings are errors.
    pub strict: bool,
    /// Strict findings of the patch itself.
    pub found: &'a [String],
}

/// Decodes a patched object: types, unknown fields, normalization. A wrong type is a 422 error at `patch`. Returns
/// the object and the strict findings.
pub fn decode_patched(schema: &Schema, patched: Value, reading: Reading<'_>) -> ApiResult<(Value, Vec<String>)> {
    if schema.name.is_none() {
        return check_custom(schema, patched, reading);
    }
    // The undecoded object is needed for error messages only.
    let as_it_was = (reading.strict || !crate::decode::fits(schema, &patched)).then(|| patched.clone());
    let decoded = crate::decode::decode_value(patched, schema);
    let findings = [reading.found, decoded.strict.as_slice()].concat();
    match refused(decoded.type_error, &findings, reading) {
        None => Ok((decoded.object, findings)),
        Some(why) => {
            let shown = || json::as_go_prints(as_it_was.as_ref().unwrap_or(&decoded.object));
            Err(unreadable(reading.shown.map_or_else(shown, str::to_owned), why))
        }
    }
}

/// Custom resources are kept unchanged here; their own schema prunes and validates them.
fn check_custom(schema: &Schema, mut patched: Value, reading: Reading<'_>) -> ApiResult<(Value, Vec<String>)> {
    let unknown = crate::check(schema, &patched).unknown;
    let findings = [reading.found, unknown.as_slice()].concat();
    match refused(crate::decode::metadata_error(&patched), &findings, reading) {
        None => {
            crate::decode::normalize_metadata(&mut patched);
            Ok((patched, findings))
        }
        Some(why) => Err(unreadable(reading.shown.map_or_else(|| json::as_go_prints(&patched), str::to_owned), why)),
    }
}

/// Reason for which a patched object is rejected.
fn refused(wrong: Option<String>, findings: &[String], reading: Reading<'_>) -> Option<String> {
    let strict = || format!("strict decoding error: {}", findings.join(", "));
    wrong.or_else(|| (reading.strict && !findings.is_empty()).then(strict))
}

/// The 422 error at `patch` for an invalid result.
fn unreadable(shown: String, why: String) -> ApiError {
    let shown = Value::String(shown).to_string();
    ApiError::invalid("", "", "", vec![FieldError::new(FieldErrorKind::Invalid, "patch", Some(shown), why)])
}

/// Rejects a patched object of another kind.
pub fn refuse_kind(patched: &Value, expected: &crate::decode::Expected<'_>) -> ApiResult<()> {
    let text = |key: &str| patched.get(key).and_then(Value::as_str).unwrap_or_default();
    match crate::decode::kind_mismatch(text("apiVersion"), text("kind"), expected) {
        None => Ok(()),
        Some(why) => Err(unreadable(json::as_go_prints(patched), why)),
    }
}

/// Converts the result of a strategic merge patch, which is merged as a Go value instead of decoded from JSON: type
/// errors have other messages, and numbers are converted.
pub fn convert_strategic(schema: &Schema, patched: &mut Value, patch: &Value) -> ApiResult<()> {
    match convert::convert(schema, patched) {
        None => Ok(()),
        Some(why) => Err(unreadable(go_value(patch), why)),
    }
}

/// The 422 error of `errors.NewGenericServerResponse` for a patch that cannot be applied.
pub(crate) fn rejected() -> ApiError {
    ApiError::new(Reason::Invalid, "the server rejected our request due to an error in our request")
        .with_details(Details::default())
}
