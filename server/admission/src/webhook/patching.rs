//! JSON patches of mutating webhooks and policies: parsing, application, and decoding of the patched object. Has no
//! side effects.
//!
//! Errors have the wording of kube-apiserver's patch library.

use base64::Engine;
use crowsnest_apimachinery::field::go_json;
use crowsnest_apimachinery::json_patch::{self, CopiedBytes};
use crowsnest_schema::decode::{self, ExpectedKind};
use crowsnest_schema::patch::go_kind;
use crowsnest_schema::schema_set::SchemaSet;
use serde_json::Value;

/// Parses the operations of a patch.
pub fn parse_patch(patch: &[u8]) -> Result<Vec<Value>, String> {
    let value = decode::parse_json(patch)?;
    let operations = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(operations) => operations,
        other => {
            let kind = go_kind(&other);
            return Err(format!("json: cannot unmarshal {kind} into Go value of type jsonpatch.Patch"));
        }
    };
    match operations.iter().enumerate().find(|(_, operation)| !operation.is_object() && !operation.is_null()) {
        Some((index, wrong)) => {
            let kind = go_kind(wrong);
            Err(format!("json: cannot unmarshal {kind} into Patch.{index} of type jsonpatch.Operation"))
        }
        None => Ok(operations),
    }
}

/// Decodes base64; errors name the position as Go does.
pub fn decode_base64(text: &str) -> Result<Vec<u8>, String> {
    base64::engine::general_purpose::STANDARD.decode(text).map_err(|error| {
        let offset = match error {
            base64::DecodeError::InvalidByte(offset, _) | base64::DecodeError::InvalidLastSymbol(offset, _) => offset,
            _ => text.len(),
        };
        format!("illegal base64 data at input byte {offset}")
    })
}

/// Applies operations in order; an error names the failed one.
pub fn apply_patch(object: &Value, operations: &[Value]) -> Result<Value, String> {
    let (mut current, mut copied) = (object.clone(), CopiedBytes::default());
    operations.iter().try_for_each(|operation| apply_operation(&mut current, operation, &mut copied))?;
    Ok(current)
}

/// Applies one operation; `copied` counts the bytes that all operations of the patch have copied.
pub fn apply_operation(object: &mut Value, operation: &Value, copied: &mut CopiedBytes) -> Result<(), String> {
    // A failed move has already removed its value, but the error describes the object before it.
    let before = (operation["op"] == "move").then(|| object.clone());
    json_patch::apply(object, operation, copied)
        .ok_or_else(|| operation_error(before.as_ref().unwrap_or(object), operation))
}

/// A location in a document, as an operation names it.
struct DocumentLocation<'a> {
    path: &'a str,
    key: &'a str,
    parent: Option<&'a Value>,
}

impl<'a> DocumentLocation<'a> {
    fn new(object: &'a Value, path: &'a str) -> Self {
        let (parent, key) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = object.pointer(parent).filter(|parent| parent.is_object() || parent.is_array());
        Self { path, key, parent }
    }

    /// Error for a key that the parent lacks or cannot have.
    fn key_error(&self) -> String {
        match self.parent {
            Some(Value::Array(_)) => match self.key.parse::<i64>() {
                Ok(index) => format!("Unable to access invalid index: {index}: invalid index referenced"),
                Err(_) => format!("strconv.Atoi: parsing {:?}: invalid syntax", self.key),
            },
            _ => format!("Unable to remove nonexistent key: {}: missing value", self.key),
        }
    }
}

/// Error of an operation that cannot be applied to `object`.
fn operation_error(object: &Value, operation: &Value) -> String {
    let text = |key: &str| operation.get(key).and_then(Value::as_str);
    let op = text("op").unwrap_or("unknown");
    let Some(path) = text("path") else {
        return match op {
            "add" | "remove" => format!("{op} operation failed to decode path: missing value"),
            "replace" | "move" | "copy" | "test" => {
                format!("{op} operation failed to decode path: operation missing path field: missing value")
            }
            other => format!("Unexpected kind: {other}"),
        };
    };
    let to = DocumentLocation::new(object, path);
    match op {
        "add" | "remove" if to.parent.is_none() => {
            format!("{op} operation does not apply: doc is missing path: \"{path}\": missing value")
        }
        "add" if matches!(to.parent, Some(Value::Array(_))) && to.key.parse::<i64>().is_err() => {
            let reason = to.key_error();
            format!("error in add for path: '{path}': value was not a proper array index: '{}': {reason}", to.key)
        }
        "add" | "remove" => format!("error in {op} for path: '{path}': {}", to.key_error()),
        "replace" if to.parent.is_none() => {
            format!("replace operation does not apply: doc is missing path: {path}: missing value")
        }
        "replace" => format!("replace operation does not apply: doc is missing key: {path}: missing value"),
        "test" if to.parent.is_none() => {
            format!("test operation does not apply: is missing path: {path}: missing value")
        }
        "test" => format!("testing value {path} failed: test failed"),
        "move" | "copy" => transfer_error(object, op, text("from"), &to),
        other => format!("Unexpected kind: {other}"),
    }
}

/// Error of a failed move or copy.
fn transfer_error(object: &Value, op: &str, from: Option<&str>, to: &DocumentLocation<'_>) -> String {
    let Some(from) = from else {
        return format!("{op} operation failed to decode from: operation, missing from field: missing value");
    };
    let from = DocumentLocation::new(object, from);
    if from.parent.is_none() {
        return format!("{op} operation does not apply: doc is missing from path: {}: missing value", from.path);
    }
    if object.pointer(from.path).is_none() {
        return match op {
            "move" => format!("error in move for path: '{}': {}", from.key, from.key_error()),
            _ => format!("error in copy for from: '{}': {}", from.path, from.key_error()),
        };
    }
    if to.parent.is_none() {
        return format!("{op} operation does not apply: doc is missing destination path: {}: missing value", to.path);
    }
    match op {
        "move" => format!("error in move for path: '{}': {}", to.path, to.key_error()),
        _ => format!("error while adding value during copy: {}", to.key_error()),
    }
}

/// Decodes a patched object of a built-in kind: drops unknown fields, rejects wrong types and a different kind.
pub fn decode_patched(before: &Value, mut patched: Value) -> Result<Value, String> {
    let text = |object: &Value, key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text(before, "apiVersion"), text(before, "kind"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let builtin = SchemaSet::builtin();
    let schema = builtin.kind(group, version, &kind);
    for (key, default) in [("apiVersion", &api_version), ("kind", &kind)] {
        if text(&patched, key).is_empty() && patched.is_object() {
            patched[key] = default.as_str().into();
        }
    }
    let (patched_api_version, patched_kind) = (text(&patched, "apiVersion"), text(&patched, "kind"));
    let expected = ExpectedKind { group, version, kind: &kind, schema: schema.as_deref() };
    let mismatch = decode::kind_mismatch(&patched_api_version, &patched_kind, &expected);
    let (patched_group, patched_version) = patched_api_version.split_once('/').unwrap_or(("", &patched_api_version));
    let Some(schema) = builtin.kind(patched_group, patched_version, &patched_kind) else {
        return mismatch.map_or(Ok(patched), Err);
    };
    let decoded = decode::decode_value(patched, &schema);
    match decoded.type_error.or(mismatch) {
        Some(reason) => Err(reason),
        None => Ok(decoded.object),
    }
}

/// Requires a kind in a patched custom resource.
pub fn check_kind(patched: &Value) -> Result<(), String> {
    match patched.get("kind").and_then(Value::as_str) {
        Some(kind) if !kind.is_empty() => Ok(()),
        _ => Err(format!("Object 'Kind' is missing in '{}'", go_json(patched))),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case("null", Ok(0))]
    #[case("[null]", Ok(1))]
    #[case("nope", Err("invalid character 'o' in literal null (expecting 'u')"))]
    #[case("{}", Err("json: cannot unmarshal object into Go value of type jsonpatch.Patch"))]
    #[case(r#"["x"]"#, Err("json: cannot unmarshal string into Patch.0 of type jsonpatch.Operation"))]
    fn patches_are_parsed(#[case] patch: &str, #[case] operation_count: Result<usize, &str>) {
        let operations = parse_patch(patch.as_bytes());
        assert_eq!(operations.map(|operations| operations.len()), operation_count.map_err(str::to_owned));
    }

    #[rstest]
    #[case(json!({"op": "merge", "path": "/data/x"}), "Unexpected kind: merge")]
    #[case(json!({"path": "/data/x"}), "Unexpected kind: unknown")]
    #[case(json!({"op": "add"}), "add operation failed to decode path: missing value")]
    #[case(json!({"op": "add", "path": "/spec/x"}), "add operation does not apply: doc is missing path: \"/spec/x\": missing value")]
    #[case(json!({"op": "add", "path": "/list/7"}), "error in add for path: '/list/7': Unable to access invalid index: 7: invalid index referenced")]
    #[case(json!({"op": "remove", "path": "/data/z"}), "error in remove for path: '/data/z': Unable to remove nonexistent key: z: missing value")]
    #[case(json!({"op": "replace", "path": "/spec/z"}), "replace operation does not apply: doc is missing path: /spec/z: missing value")]
    #[case(json!({"op": "test", "path": "/data/a", "value": 2}), "testing value /data/a failed: test failed")]
    #[case(json!({"op": "move", "from": "/data/z", "path": "/data/b"}), "error in move for path: 'z': Unable to remove nonexistent key: z: missing value")]
    #[case(json!({"op": "copy", "from": "/spec/z", "path": "/data/b"}), "copy operation does not apply: doc is missing from path: /spec/z: missing value")]
    fn errors_describe_the_failed_operation(#[case] operation: Value, #[case] expected: &str) {
        let object = json!({"data": {"a": "1"}, "list": ["a"]});
        assert_eq!(apply_patch(&object, &[operation]), Err(expected.to_owned()));
    }

    #[rstest]
    #[case(json!({"kind": "ConfigMap", "data": {"a": "b"}, "nope": 1}), Ok(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}})))]
    #[case(json!({"data": "text"}), Err("json: cannot unmarshal string into Go struct field ConfigMap.data of type map[string]string"))]
    #[case(json!({"kind": "Secret"}), Err("converting (v1.Secret) to (core.ConfigMap): unknown conversion"))]
    #[case(json!({"apiVersion": "v2"}), Err("no kind \"ConfigMap\" is registered for version \"v2\" in scheme \"k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30\""))]
    fn patched_objects_are_decoded(#[case] patched: Value, #[case] expected: Result<Value, &str>) {
        let before = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        let mut decoded = decode_patched(&before, patched);
        if let Ok(object) = &mut decoded {
            object.as_object_mut().unwrap().remove("metadata");
        }
        assert_eq!(decoded, expected.map_err(str::to_owned));
    }

    #[rstest]
    #[case(json!({"kind": "Car"}), Ok(()))]
    #[case(json!({"kind": "", "spec": {"a": "<"}}), Err("Object 'Kind' is missing in '{\"kind\":\"\",\"spec\":{\"a\":\"\\u003c\"}}'"))]
    #[case(json!({"kind": 5}), Err("Object 'Kind' is missing in '{\"kind\":5}'"))]
    #[case(json!([]), Err("Object 'Kind' is missing in '[]'"))]
    fn custom_resources_need_a_kind(#[case] patched: Value, #[case] expected: Result<(), &str>) {
        assert_eq!(check_kind(&patched), expected.map_err(str::to_owned));
    }
}
