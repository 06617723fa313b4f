//! JSON patches of mutating webhooks: parsing, application, and decoding of the result. Pure.
//!
//! Errors have the wording of kube-apiserver's patch library.

use base64::Engine;
use crowsnest_apimachinery::json_patch::{self, CopiedBytes};
use crowsnest_schema::decode::{self, Expected};
use crowsnest_schema::patch::go_kind;
use crowsnest_schema::set::SchemaSet;
use serde_json::Value;

/// Parses the operations of a patch.
pub fn read(patch: &[u8]) -> Result<Vec<Value>, String> {
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
pub fn bytes(text: &str) -> Result<Vec<u8>, String> {
    base64::engine::general_purpose::STANDARD.decode(text).map_err(|error| {
        let at = match error {
            base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
            _ => text.len(),
        };
        format!("illegal base64 data at input byte {at}")
    })
}

/// Applies operations in order; an error names the failed one.
pub fn apply(object: &Value, operations: &[Value]) -> Result<Value, String> {
    let (mut current, mut copied) = (object.clone(), CopiedBytes::default());
    operations.iter().try_for_each(|operation| step(&mut current, operation, &mut copied))?;
    Ok(current)
}

/// Applies one operation; `copied` counts copied bytes of the whole patch.
pub fn step(object: &mut Value, operation: &Value, copied: &mut CopiedBytes) -> Result<(), String> {
    // A failed move has already removed its value.
    let before = (operation["op"] == "move").then(|| object.clone());
    json_patch::apply(object, operation, copied).ok_or_else(|| failure(before.as_ref().unwrap_or(object), operation))
}

/// A location in a document, as named by an operation.
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

    /// Error for a location whose parent exists but cannot have or lacks the key.
    fn unfit(&self) -> String {
        match self.parent {
            Some(Value::Array(_)) => match self.key.parse::<i64>() {
                Ok(index) => format!("Unable to access invalid index: {index}: invalid index referenced"),
                Err(_) => format!("strconv.Atoi: parsing {:?}: invalid syntax", self.key),
            },
            _ => format!("Unable to remove nonexistent key: {}: missing value", self.key),
        }
    }
}

fn failure(object: &Value, operation: &Value) -> String {
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
            let why = to.unfit();
            format!("error in add for path: '{path}': value was not a proper array index: '{}': {why}", to.key)
        }
        "add" | "remove" => format!("error in {op} for path: '{path}': {}", to.unfit()),
        "replace" if to.parent.is_none() => {
            format!("replace operation does not apply: doc is missing path: {path}: missing value")
        }
        "replace" => format!("replace operation does not apply: doc is missing key: {path}: missing value"),
        "test" if to.parent.is_none() => {
            format!("test operation does not apply: is missing path: {path}: missing value")
        }
        "test" => format!("testing value {path} failed: test failed"),
        "move" | "copy" => carried(object, op, text("from"), &to),
        other => format!("Unexpected kind: {other}"),
    }
}

/// Error for a failed move or copy.
fn carried(object: &Value, op: &str, from: Option<&str>, to: &DocumentLocation<'_>) -> String {
    let Some(from) = from else {
        return format!("{op} operation failed to decode from: operation, missing from field: missing value");
    };
    let from = DocumentLocation::new(object, from);
    if from.parent.is_none() {
        return format!("{op} operation does not apply: doc is missing from path: {}: missing value", from.path);
    }
    if object.pointer(from.path).is_none() {
        return match op {
            "move" => format!("error in move for path: '{}': {}", from.key, from.unfit()),
            _ => format!("error in copy for from: '{}': {}", from.path, from.unfit()),
        };
    }
    if to.parent.is_none() {
        return format!("{op} operation does not apply: doc is missing destination path: {}: missing value", to.path);
    }
    match op {
        "move" => format!("error in move for path: '{}': {}", to.path, to.unfit()),
        _ => format!("error while adding value during copy: {}", to.unfit()),
    }
}

/// Decodes a changed built-in object: drops unknown fields, rejects wrong types and a different kind.
pub fn read_again(before: &Value, mut changed: Value) -> Result<Value, String> {
    let text = |object: &Value, key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text(before, "apiVersion"), text(before, "kind"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let builtin = SchemaSet::builtin();
    let schema = builtin.kind(group, version, &kind);
    for (key, known) in [("apiVersion", &api_version), ("kind", &kind)] {
        if text(&changed, key).is_empty() && changed.is_object() {
            changed[key] = known.as_str().into();
        }
    }
    let (claimed_version, claimed) = (text(&changed, "apiVersion"), text(&changed, "kind"));
    let expected = Expected { group, version, kind: &kind, schema: schema.as_deref() };
    let other = decode::kind_mismatch(&claimed_version, &claimed, &expected);
    let (claimed_group, claimed_version) = claimed_version.split_once('/').unwrap_or(("", &claimed_version));
    let Some(schema) = builtin.kind(claimed_group, claimed_version, &claimed) else {
        return other.map_or(Ok(changed), Err);
    };
    let decoded = decode::decode_value(changed, &schema);
    match decoded.type_error.or(other) {
        Some(why) => Err(why),
        None => Ok(decoded.object),
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
    fn patches_are_parsed(#[case] patch: &str, #[case] read_as: Result<usize, &str>) {
        assert_eq!(read(patch.as_bytes()).map(|all| all.len()), read_as.map_err(str::to_owned));
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
    fn failures(#[case] operation: Value, #[case] why: &str) {
        let object = json!({"data": {"a": "1"}, "list": ["a"]});
        assert_eq!(apply(&object, &[operation]), Err(why.to_owned()));
    }

    #[rstest]
    #[case(json!({"kind": "ConfigMap", "data": {"a": "b"}, "nope": 1}), Ok(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}})))]
    #[case(json!({"data": "text"}), Err("json: cannot unmarshal string into Go struct field ConfigMap.data of type map[string]string"))]
    #[case(json!({"kind": "Secret"}), Err("converting (v1.Secret) to (core.ConfigMap): unknown conversion"))]
    #[case(json!({"apiVersion": "v2"}), Err("no kind \"ConfigMap\" is registered for version \"v2\" in scheme \"k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30\""))]
    fn changed_objects_are_decoded(#[case] changed: Value, #[case] read: Result<Value, &str>) {
        let before = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        let mut found = read_again(&before, changed);
        if let Ok(object) = &mut found {
            object.as_object_mut().unwrap().remove("metadata");
        }
        assert_eq!(found, read.map_err(str::to_owned));
    }
}
