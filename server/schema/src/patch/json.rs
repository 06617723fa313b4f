//! JSON patch (RFC 6902) as kube-apiserver applies it, with the deviations of the library evanphx/json-patch.

use crowsnest_apimachinery::field::go_json;
use crowsnest_apimachinery::json_patch::{CopiedBytes, apply};
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use serde_json::{Map, Value};

use crate::patch::{PatchBody, rejection};

/// Maximum number of operations.
const MAX_OPERATIONS: usize = 10_000;

/// Decodes a patch body; anything but an array of operations is a 400 error, and `null` means no operations.
pub fn decode_json_patch(body: &[u8]) -> ApiResult<PatchBody> {
    let bad_request = |reason: String| ApiError::bad_request(format!("error decoding patch: {reason}"));
    let (value, duplicates) = crate::decode::parse_json_strict(body).map_err(bad_request)?;
    let mut strict_errors: Vec<String> =
        duplicates.iter().map(|strict_error| format!("json patch {strict_error}")).collect();
    let operations = match &value {
        Value::Null => return Ok(PatchBody { value: Value::Array(Vec::new()), strict_errors }),
        Value::Array(operations) => operations,
        other => {
            let reason =
                format!("json: cannot unmarshal {} into Go value of type []handlers.jsonPatchOp", go_kind(other));
            return Err(bad_request(reason));
        }
    };
    for (index, operation) in operations.iter().enumerate() {
        strict_errors.extend(find_unknown_members(index, operation).map_err(bad_request)?);
    }
    if operations.len() > MAX_OPERATIONS {
        let message = format!(
            "Request entity too large: The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        );
        return Err(ApiError::new(crowsnest_apimachinery::status::Reason::RequestEntityTooLarge, message));
    }
    Ok(PatchBody { value, strict_errors })
}

/// Finds the unknown members of an operation. Fails if `op`, `path` or `from` is not a string.
fn find_unknown_members(index: usize, operation: &Value) -> Result<Vec<String>, String> {
    let Value::Object(members) = operation else {
        return match operation {
            Value::Null => Ok(Vec::new()),
            other => {
                Err(format!("json: cannot unmarshal {} into Go value of type handlers.jsonPatchOp", go_kind(other)))
            }
        };
    };
    let mut unknown = Vec::new();
    for (name, value) in members {
        match name.as_str() {
            "op" | "path" | "from" if value.is_string() || value.is_null() => {}
            "op" | "path" | "from" => {
                let kind = go_kind(value);
                return Err(format!(
                    "json: cannot unmarshal {kind} into Go struct field jsonPatchOp.{name} of type string"
                ));
            }
            "value" => {}
            other => unknown.push(format!("json patch unknown field \"[{index}].{other}\"")),
        }
    }
    Ok(unknown)
}

/// Go's name for the kind of a JSON value.
pub fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "object",
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
        Value::Null => "null",
    }
}

/// Encodes an object of a built-in kind as the patch library does: sorted fields, metadata in the order of Go's structs.
pub(super) fn encode_like_go(object: &Value) -> String {
    let Value::Object(fields) = object else { return object.to_string() };
    let parts: Vec<String> = fields
        .iter()
        .map(|(key, value)| match value {
            Value::Object(metadata) if key == "metadata" => format!("\"metadata\":{}", encode_metadata(metadata)),
            value => format!("{key:?}:{}", go_json(value)),
        })
        .collect();
    format!("{{{}}}", parts.join(","))
}

fn encode_metadata(metadata: &Map<String, Value>) -> String {
    const ORDER: [&str; 14] = [
        "name",
        "generateName",
        "namespace",
        "selfLink",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "labels",
        "annotations",
        "ownerReferences",
        "finalizers",
    ];
    let mut members = encode_members(metadata, &ORDER);
    if let Some(Value::Array(managers)) = metadata.get("managedFields") {
        let entries: Vec<String> = managers.iter().filter_map(Value::as_object).map(encode_manager).collect();
        members.push(format!("\"managedFields\":[{}]", entries.join(",")));
    }
    format!("{{{}}}", members.join(","))
}

fn encode_manager(entry: &Map<String, Value>) -> String {
    const ORDER: [&str; 7] = ["manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1", "subresource"];
    format!("{{{}}}", encode_members(entry, &ORDER).join(","))
}

/// Encodes the members of an object in the given order; members that are not listed are omitted.
fn encode_members(object: &Map<String, Value>, order: &[&str]) -> Vec<String> {
    order.iter().filter_map(|key| object.get(*key).map(|value| format!("{key:?}:{}", go_json(value)))).collect()
}

/// Applies a JSON patch. As in kube-apiserver, `replace` adds a missing member of an object.
pub fn json_patch(doc: &Value, patch: &Value) -> ApiResult<Value> {
    let (mut out, mut copied) = (doc.clone(), CopiedBytes::default());
    for operation in patch.as_array().into_iter().flatten() {
        apply(&mut out, operation, &mut copied).ok_or_else(rejection)?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn bodies_are_decoded_like_go() {
        for (body, strict_errors, error) in [
            ("null", &[][..], ""),
            (
                r#"[{"op":"add","path":"/a","path":"/b","x":1}]"#,
                &["json patch duplicate field \"[0].path\"", "json patch unknown field \"[0].x\""][..],
                "",
            ),
            ("[{", &[], "error decoding patch: unexpected end of JSON input"),
            (
                "[1]",
                &[],
                "error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp",
            ),
            (
                r#"[{"op":5}]"#,
                &[],
                "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string",
            ),
        ] {
            let decoded = decode_json_patch(body.as_bytes());
            assert_eq!(decoded.as_ref().err().map_or("", |e| e.message.as_str()), error, "{body}");
            assert_eq!(decoded.map(|b| b.strict_errors).unwrap_or_default(), strict_errors, "{body}");
        }
    }

    #[test]
    fn copied_bytes_are_limited() {
        let doc = json!({"data": {"x": "x".repeat(1000)}});
        let copies = |count: usize| -> Vec<Value> {
            (0..count).map(|n| json!({"op": "copy", "from": "/data", "path": format!("/data/{n}")})).collect()
        };
        // Each operation doubles the size: eleven make two megabytes, twelve four.
        assert!(json_patch(&doc, &json!(copies(11))).is_ok());
        assert_eq!(json_patch(&doc, &json!(copies(40))).unwrap_err().code, 422);
    }

    #[test]
    fn missing_values_are_null() {
        let doc = json!({"data": {"x": "1"}, "list": ["a"]});
        for (patch, expected) in [
            (json!([{"op": "add", "path": "/data/q"}]), Some(json!({"data": {"x": "1", "q": null}, "list": ["a"]}))),
            (
                json!([{"op": "copy", "from": "/data/no", "path": "/data/z"}]),
                Some(json!({"data": {"x": "1", "z": null}, "list": ["a"]})),
            ),
            (json!([{"op": "copy", "from": "/no/no", "path": "/data/z"}]), None),
            (json!([{"op": "copy", "from": "/list/7", "path": "/data/z"}]), None),
            (json!([{"op": "move", "from": "/data/no", "path": "/data/z"}]), None),
            (
                json!([{"op": "add", "path": "data/q", "value": 1}]),
                Some(json!({"data": {"x": "1"}, "list": ["a"], "q": 1})),
            ),
            (json!([{"op": "add", "path": "", "value": {}}]), None),
            (json!([{"op": "replace", "path": "", "value": {"a": "b"}}]), Some(json!({"a": "b"}))),
            (json!([{"op": "replace", "path": "", "value": [1]}]), Some(json!([1]))),
            (json!([{"op": "replace", "path": "", "value": "b"}]), None),
            (json!([{"op": "replace", "path": "", "value": null}]), None),
        ] {
            assert_eq!(json_patch(&doc, &patch).ok(), expected, "{patch}");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..3_i32).prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-c/~]{1,2}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// Random JSON pointers, many of which exist in the random documents.
    fn any_pointer() -> impl Strategy<Value = String> {
        prop::collection::vec("[a-c]|0|1|2|-|a~1|~0a|01|", 0..4)
            .prop_map(|parts| parts.iter().map(|part| format!("/{part}")).collect())
    }

    fn any_operation() -> impl Strategy<Value = Value> {
        let op = prop::sample::select(vec!["add", "remove", "replace", "move", "copy", "test"]);
        (op, any_pointer(), any_pointer(), any_json())
            .prop_map(|(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value}))
    }

    proptest! {
        /// Patches that the RFC 6902 library applies have the same result here.
        #[test]
        fn patches_agree_with_rfc_6902(doc in any_json(), operations in prop::collection::vec(any_operation(), 1..5)) {
            let patch = Value::Array(operations);
            let mut expected = doc.clone();
            let standard: json_patch::Patch = serde_json::from_value(patch.clone()).unwrap();
            if doc.is_object() && !addresses_root(&patch) && json_patch::patch(&mut expected, &standard).is_ok() {
                match json_patch(&doc, &patch) {
                    Ok(actual) => prop_assert_eq!(actual, expected),
                    Err(error) => prop_assert!(false, "{} of {}: {}", patch, doc, error.message),
                }
            }
        }

        #[test]
        fn no_patch_causes_a_panic(doc in any_json(), patch in any_json(), body in any::<String>()) {
            let _ = json_patch(&doc, &patch);
            let _ = decode_json_patch(body.as_bytes());
            let _ = decode_json_patch(patch.to_string().as_bytes());
        }
    }

    /// True if an operation addresses the whole document.
    fn addresses_root(patch: &Value) -> bool {
        let is_root = |operation: &Value, key: &str| operation[key] == "";
        patch.as_array().into_iter().flatten().any(|operation| is_root(operation, "path") || is_root(operation, "from"))
    }
}
