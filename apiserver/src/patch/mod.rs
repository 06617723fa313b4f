//! The patch formats: JSON patch (RFC 6902), merge patch (RFC 7386), strategic merge patch.
//!
//! Pure. Called by `registry/` inside the write; server-side apply is in `apply/`.

use serde_json::Value;

use crate::schema::Schema;
use crate::status::{ApiError, ApiResult, Details, Reason};

mod json;

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
pub fn strategic_merge(_schema: &Schema, doc: &Value, patch: &Value) -> ApiResult<Value> {
    merge_patch(doc, patch)
}

/// 422 as `errors.NewGenericServerResponse` words a patch that does not apply.
pub(crate) fn rejected() -> ApiError {
    ApiError::new(Reason::Invalid, "the server rejected our request due to an error in our request")
        .with_details(Details::default())
}
