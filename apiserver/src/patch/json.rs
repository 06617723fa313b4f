//! JSON patch with the leniencies of the library kube-apiserver uses.

use serde_json::Value;

use crate::patch::rejected;
use crate::status::{ApiError, ApiResult};

/// Operations more than this are refused.
const MAX_OPERATIONS: usize = 10_000;

/// Decodes a patch body; anything but an array of operations is 400.
pub fn parse_json_patch(body: &[u8]) -> ApiResult<Value> {
    let refuse = |why: String| ApiError::bad_request(format!("error decoding patch: {why}"));
    let patch = crate::schema::decode::parse_json(body).map_err(refuse)?;
    let Value::Array(operations) = &patch else {
        return Err(refuse(format!(
            "json: cannot unmarshal {} into Go value of type []handlers.jsonPatchOp",
            kind(&patch)
        )));
    };
    if operations.len() > MAX_OPERATIONS {
        let message =
            format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}", operations.len());
        return Err(ApiError::new(crate::status::Reason::RequestEntityTooLarge, message));
    }
    Ok(patch)
}

/// Go's word for a JSON value's kind.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "object",
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
        Value::Null => "null",
    }
}

/// The object as the patch library leaves it: top level by name, metadata in the order of Go's struct.
pub(super) fn as_go_prints(object: &Value) -> String {
    let Value::Object(fields) = object else { return object.to_string() };
    let parts: Vec<String> = fields
        .iter()
        .map(|(key, value)| match value {
            Value::Object(metadata) if key == "metadata" => {
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
                let member = |key: &str| metadata.get(key).map(|value| format!("{key:?}:{value}"));
                format!("\"metadata\":{{{}}}", ORDER.iter().filter_map(|key| member(key)).collect::<Vec<_>>().join(","))
            }
            value => format!("{key:?}:{value}"),
        })
        .collect();
    format!("{{{}}}", parts.join(","))
}

/// Applies a JSON patch. `replace` of an absent member of an object adds it, as kube-apiserver does.
pub fn json_patch(doc: &Value, patch: &Value) -> ApiResult<Value> {
    let mut out = doc.clone();
    for operation in patch.as_array().into_iter().flatten() {
        apply(&mut out, operation).ok_or_else(rejected)?;
    }
    Ok(out)
}

fn apply(doc: &mut Value, operation: &Value) -> Option<()> {
    let text = |key: &str| operation.get(key).and_then(Value::as_str);
    let path = pointer(text("path")?)?;
    match text("op")? {
        "add" => add(doc, &path, operation.get("value")?.clone()),
        "remove" => remove(doc, &path).map(drop),
        "replace" => replace(doc, &path, operation.get("value")?.clone()),
        "move" => {
            let value = remove(doc, &pointer(text("from")?)?)?;
            add(doc, &path, value)
        }
        "copy" => {
            let value = get(doc, &pointer(text("from")?)?)?.clone();
            add(doc, &path, value)
        }
        "test" => {
            let expected = operation.get("value").unwrap_or(&Value::Null);
            let found = get(doc, &path).unwrap_or(&Value::Null);
            (found == expected).then_some(())
        }
        _ => None,
    }
}

fn pointer(path: &str) -> Option<Vec<String>> {
    if path.is_empty() {
        return Some(Vec::new());
    }
    let rest = path.strip_prefix('/')?;
    Some(rest.split('/').map(|token| token.replace("~1", "/").replace("~0", "~")).collect())
}

fn index(token: &str, len: usize) -> Option<usize> {
    match token.strip_prefix('-') {
        // Negative indices count from the end.
        Some(back) => len.checked_sub(back.parse::<usize>().ok().filter(|n| *n > 0)?),
        None => token.parse().ok(),
    }
}

fn get<'a>(doc: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(doc, |node, token| match node {
        Value::Object(fields) => fields.get(token),
        Value::Array(items) => items.get(index(token, items.len())?),
        _ => None,
    })
}

fn parent<'a>(doc: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(doc, |node, token| match node {
        Value::Object(fields) => fields.get_mut(token),
        Value::Array(items) => {
            let at = index(token, items.len())?;
            items.get_mut(at)
        }
        _ => None,
    })
}

fn add(doc: &mut Value, path: &[String], value: Value) -> Option<()> {
    let Some((last, up)) = path.split_last() else {
        *doc = value;
        return Some(());
    };
    match parent(doc, up)? {
        Value::Object(fields) => {
            fields.insert(last.clone(), value);
        }
        Value::Array(items) if last == "-" => items.push(value),
        Value::Array(items) => {
            let at = index(last, items.len() + 1).filter(|at| *at <= items.len())?;
            items.insert(at, value);
        }
        _ => return None,
    }
    Some(())
}

fn replace(doc: &mut Value, path: &[String], value: Value) -> Option<()> {
    let Some((last, up)) = path.split_last() else {
        *doc = value;
        return Some(());
    };
    match parent(doc, up)? {
        Value::Object(fields) => {
            fields.insert(last.clone(), value);
        }
        Value::Array(items) => {
            let at = index(last, items.len())?;
            *items.get_mut(at)? = value;
        }
        _ => return None,
    }
    Some(())
}

fn remove(doc: &mut Value, path: &[String]) -> Option<Value> {
    let (last, up) = path.split_last()?;
    match parent(doc, up)? {
        Value::Object(fields) => fields.remove(last),
        Value::Array(items) => {
            let at = index(last, items.len()).filter(|at| *at < items.len())?;
            Some(items.remove(at))
        }
        _ => None,
    }
}
