//! Patch formats: JSON patch (RFC 6902), merge patch (RFC 7386), strategic merge patch.
//!
//! Has no side effects. The registry calls it within a write. Server-side apply is in `apply/`.

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind, go_json};
use crowsnest_apimachinery::status::{ApiError, ApiResult, Details, Reason};
use serde_json::Value;

use crate::Schema;

mod convert;
mod golang;
mod json;
mod strategic;

pub use golang::{go_type, go_value};
pub use json::go_kind;
pub use json::{decode_json_patch, json_patch};

/// A patch body with its strict decoding errors: `duplicate field "data.x"`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PatchBody {
    pub value: Value,
    pub strict_errors: Vec<String>,
}

/// Applies a merge patch: objects are merged, null deletes, other values replace. As in evanphx/json-patch, objects in new
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

/// Applies a strategic merge patch to a built-in kind. The patch is consumed: as in Kubernetes, errors about the
/// result print what is left of it.
pub fn strategic_merge(schema: &Schema, doc: &Value, patch: &mut Value) -> ApiResult<Value> {
    strategic::apply(schema, doc, patch)
}

fn decode_object_body(body: &[u8]) -> Result<PatchBody, String> {
    let (value, strict_errors) = crate::decode::parse_json_strict(body)?;
    match &value {
        Value::Object(_) | Value::Null => Ok(PatchBody { value, strict_errors }),
        other => {
            let kind = json::go_kind(other);
            Err(format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"))
        }
    }
}

/// Decodes a merge patch body: a JSON object, otherwise a 400 error with Go's message.
pub fn decode_merge_patch(body: &[u8]) -> ApiResult<PatchBody> {
    let body =
        decode_object_body(body).map_err(|reason| ApiError::bad_request(format!("error decoding patch: {reason}")))?;
    if body.value.is_null() { Err(ApiError::bad_request("Invalid JSON Patch")) } else { Ok(body) }
}

/// Decodes a strategic merge patch body: a JSON object, or null, which changes nothing.
pub fn decode_strategic_patch(body: &[u8]) -> ApiResult<PatchBody> {
    let mut body = decode_object_body(body).map_err(ApiError::bad_request)?;
    if body.value.is_null() {
        body.value = Value::Object(serde_json::Map::new());
    }
    Ok(body)
}

/// Like [`decode_merge_patch`], without strict decoding errors.
pub fn parse_merge_patch(body: &[u8]) -> ApiResult<Value> {
    decode_merge_patch(body).map(|body| body.value)
}

/// Options for decoding a patched object.
#[derive(Debug, Clone, Copy)]
pub struct PatchDecoding<'a> {
    /// Text of the object in error messages; `None` prints the patched object.
    pub displayed_object: Option<&'a str>,
    /// Strict decoding errors refuse the request (`fieldValidation=Strict`).
    pub is_strict: bool,
    /// Strict decoding errors of the patch itself.
    pub patch_errors: &'a [String],
}

/// Decodes a patched object: types, unknown fields, normalization. A wrong type is a 422 error at `patch`. Returns
/// the object and the strict decoding errors.
pub fn decode_patched(schema: &Schema, patched: Value, options: PatchDecoding<'_>) -> ApiResult<(Value, Vec<String>)> {
    if schema.name.is_none() {
        return check_custom(schema, patched, options);
    }
    // The undecoded object is needed for error messages only.
    let original = (options.is_strict || !crate::decode::has_valid_types(schema, &patched)).then(|| patched.clone());
    let decoded = crate::decode::decode_value(patched, schema);
    let strict_errors = [options.patch_errors, decoded.strict_errors.as_slice()].concat();
    match rejection_reason(decoded.type_error, &strict_errors, options) {
        None => Ok((decoded.object, strict_errors)),
        Some(reason) => {
            let encoded = || json::encode_like_go(original.as_ref().unwrap_or(&decoded.object));
            Err(invalid_patch_error(options.displayed_object.map_or_else(encoded, str::to_owned), reason))
        }
    }
}

/// Checks a patched custom resource, which is not decoded here: its own schema prunes and validates it.
fn check_custom(schema: &Schema, mut patched: Value, options: PatchDecoding<'_>) -> ApiResult<(Value, Vec<String>)> {
    let unknown = crate::find_decoding_errors(schema, &patched).unknown_fields;
    let strict_errors = [options.patch_errors, unknown.as_slice()].concat();
    match rejection_reason(crate::decode::metadata_error(&patched), &strict_errors, options) {
        None => {
            crate::decode::normalize_metadata(&mut patched);
            Ok((patched, strict_errors))
        }
        Some(reason) => {
            Err(invalid_patch_error(options.displayed_object.map_or_else(|| go_json(&patched), str::to_owned), reason))
        }
    }
}

/// Rejects a patched custom resource whose kind or API version cannot be read.
pub fn check_custom_type(patched: &Value) -> ApiResult<()> {
    let text = |key: &str| patched.get(key).and_then(Value::as_str).unwrap_or_default();
    if text("apiVersion").matches('/').count() > 1 {
        return Err(invalid_custom_patch(patched, format!("unexpected GroupVersion string: {}", text("apiVersion"))));
    }
    if text("kind").is_empty() {
        return Err(invalid_custom_patch(patched, format!("Object 'Kind' is missing in '{}'", go_json(patched))));
    }
    Ok(())
}

/// The 422 error at `patch` for a patched custom resource that cannot be decoded.
pub fn invalid_custom_patch(patched: &Value, reason: String) -> ApiError {
    invalid_patch_error(go_json(patched), reason)
}

/// Reason why a patched object is rejected.
fn rejection_reason(
    type_error: Option<String>,
    strict_errors: &[String],
    options: PatchDecoding<'_>,
) -> Option<String> {
    let strict = || format!("strict decoding error: {}", strict_errors.join(", "));
    type_error.or_else(|| (options.is_strict && !strict_errors.is_empty()).then(strict))
}

/// The 422 error at `patch` for an invalid result.
fn invalid_patch_error(object: String, reason: String) -> ApiError {
    let value = Value::String(object).to_string();
    ApiError::invalid("", "", "", vec![FieldError::new(FieldErrorKind::Invalid, "patch", Some(value), reason)])
}

/// Rejects a patched object of another kind with a 422 error at `patch`.
pub fn check_patched_kind(patched: &Value, expected: &crate::decode::ExpectedKind<'_>) -> ApiResult<()> {
    let text = |key: &str| patched.get(key).and_then(Value::as_str).unwrap_or_default();
    match crate::decode::kind_mismatch(text("apiVersion"), text("kind"), expected) {
        None => Ok(()),
        Some(reason) => Err(invalid_patch_error(json::encode_like_go(patched), reason)),
    }
}

/// Converts the result of a strategic merge patch, which is merged as a Go value instead of decoded from JSON: type
/// errors have other messages, and numbers are converted.
pub fn convert_strategic(schema: &Schema, patched: &mut Value, patch: &Value) -> ApiResult<()> {
    match convert::convert(schema, patched) {
        None => Ok(()),
        Some(reason) => Err(invalid_patch_error(go_value(patch), reason)),
    }
}

/// The 422 error of `errors.NewGenericServerResponse` for a patch that cannot be applied.
pub(crate) fn rejection() -> ApiError {
    ApiError::new(Reason::Invalid, "the server rejected our request due to an error in our request")
        .with_details(Details::default())
}
