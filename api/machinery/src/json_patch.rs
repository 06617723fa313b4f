//! JSON patch (RFC 6902) with the leniencies of `evanphx/json-patch`, which kube-apiserver and Karmada use. It applies
//! the patches of requests, admission webhooks, policies and interpreter webhooks. The depth of the result and the
//! number of copied bytes are limited.

use serde_json::Value;

use crate::nesting;

/// Maximum number of bytes that the operations of a patch may copy, as in kube-apiserver.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// Number of bytes copied by the operations of a patch.
#[derive(Debug, Default)]
pub struct CopiedBytes(usize);

/// Applies one operation. `None` if it fails or exceeds the limits of copied bytes or of depth; `doc` may then lack the
/// value of a `move`. `copied` is the counter of the whole patch.
pub fn apply(doc: &mut Value, operation: &Value, copied: &mut CopiedBytes) -> Option<()> {
    let text = |key: &str| operation.get(key).and_then(Value::as_str);
    let path = parse_pointer(text("path")?)?;
    // A missing value is null.
    let value = || operation.get("value").cloned().unwrap_or_default();
    match text("op")? {
        "add" => add(doc, &path, value()),
        "remove" => remove(doc, &path).map(drop),
        "replace" => replace(doc, &path, value()),
        "move" => {
            let value = remove(doc, &parse_pointer(text("from")?)?)?;
            add(doc, &path, value)
        }
        "copy" => {
            let from = parse_pointer(text("from")?)?;
            let (last, parent) = from.split_last()?;
            let value = match get(doc, parent)? {
                Value::Object(fields) => fields.get(last).cloned().unwrap_or_default(),
                items => get(items, std::slice::from_ref(last))?.clone(),
            };
            // Repeated copies of an object into itself would exhaust the memory.
            copied.0 += value.to_string().len();
            if copied.0 > MAX_COPIED_BYTES {
                return None;
            }
            add(doc, &path, value)
        }
        "test" => {
            let expected = operation.get("value").unwrap_or(&Value::Null);
            let found = match path.split_last() {
                // A missing member of an object is null; its parent must exist.
                Some((last, parent)) => match get(doc, parent)? {
                    Value::Object(fields) => fields.get(last).unwrap_or(&Value::Null),
                    items => get(items, std::slice::from_ref(last))?,
                },
                None => &*doc,
            };
            (found == expected).then_some(())
        }
        _ => None,
    }
}

fn parse_pointer(path: &str) -> Option<Vec<String>> {
    if path.is_empty() {
        return Some(Vec::new());
    }
    // Text before the first slash is ignored.
    let (_, rest) = path.split_once('/')?;
    Some(rest.split('/').map(|token| token.replace("~1", "/").replace("~0", "~")).collect())
}

/// The index that a token of a pointer denotes in a list of this length.
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

fn get_mut<'a>(doc: &'a mut Value, path: &[String]) -> Option<&'a mut Value> {
    path.iter().try_fold(doc, |node, token| match node {
        Value::Object(fields) => fields.get_mut(token),
        Value::Array(items) => {
            let at = index(token, items.len())?;
            items.get_mut(at)
        }
        _ => None,
    })
}

/// Adds a value. `None` if the path has no parent, or if the document would nest too deeply: an object that is copied
/// into itself doubles its depth each time.
fn add(doc: &mut Value, path: &[String], value: Value) -> Option<()> {
    let (last, parent) = path.split_last()?;
    check_depth(path, &value)?;
    match get_mut(doc, parent)? {
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

/// `None` if a value at this path would nest too deeply.
fn check_depth(path: &[String], value: &Value) -> Option<()> {
    let remaining_depth = nesting::MAX_DEPTH.checked_sub(path.len())?;
    (!nesting::exceeds_depth(value, remaining_depth)).then_some(())
}

fn replace(doc: &mut Value, path: &[String], value: Value) -> Option<()> {
    check_depth(path, &value)?;
    let Some((last, parent)) = path.split_last() else {
        // Only an object or a list can replace the whole document.
        *doc = Some(value).filter(|value| value.is_object() || value.is_array())?;
        return Some(());
    };
    match get_mut(doc, parent)? {
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
    let (last, parent) = path.split_last()?;
    match get_mut(doc, parent)? {
        Value::Object(fields) => fields.remove(last),
        Value::Array(items) => {
            let at = index(last, items.len()).filter(|at| *at < items.len())?;
            Some(items.remove(at))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn apply_all(doc: Value, operations: &Value) -> Option<Value> {
        let (mut doc, mut copied) = (doc, CopiedBytes::default());
        operations.as_array()?.iter().try_for_each(|operation| apply(&mut doc, operation, &mut copied))?;
        Some(doc)
    }

    #[test]
    fn depth_is_bounded() {
        let doubling = |times: usize| {
            let mut operations = vec![json!({"op": "add", "path": "/z", "value": {"a": {}}})];
            let mut depth = 1;
            for _ in 0..times {
                operations.push(json!({"op": "copy", "from": "/z", "path": format!("/z{}/a", "/a".repeat(depth))}));
                depth = 2 * depth + 1;
            }
            json!(operations)
        };
        assert!(apply_all(json!({}), &doubling(5)).is_some());
        assert!(apply_all(json!({}), &doubling(6)).is_none());
    }

    #[rstest]
    #[case::add("add")]
    #[case::replace("replace")]
    fn no_operation_exceeds_the_maximum_depth(#[case] op: &str) {
        let deep = (0..100).fold(json!(0), |inner, _| json!({"a": inner}));
        let patch = |depth: usize| json!([{"op": op, "path": "/a".repeat(depth), "value": deep}]);
        assert!(apply_all(deep.clone(), &patch(20)).is_some());
        assert!(apply_all(deep.clone(), &patch(21)).is_none());
    }

    #[rstest]
    #[case::member("/a/b", json!(1), true)]
    #[case::missing_member("/a/none", Value::Null, true)]
    #[case::missing_parent("/none/b", Value::Null, false)]
    #[case::scalar_parent("/a/b/c", Value::Null, false)]
    #[case::item("/list/0", Value::Null, true)]
    #[case::missing_item("/list/1", Value::Null, false)]
    fn test_operations_need_a_parent(#[case] path: &str, #[case] value: Value, #[case] expected: bool) {
        let doc = json!({"a": {"b": 1}, "list": [null]});
        let patch = json!([{"op": "test", "path": path, "value": value}]);
        assert_eq!(apply_all(doc, &patch).is_some(), expected);
    }

    #[rstest]
    #[case::few(2, true)]
    #[case::many(4, false)]
    fn copies_are_counted_over_the_whole_patch(#[case] copies: usize, #[case] expected: bool) {
        let doc = json!({"a": "x".repeat(1_000_000)});
        let operations: Vec<Value> =
            (0..copies).map(|nth| json!({"op": "copy", "from": "/a", "path": format!("/b{nth}")})).collect();
        assert_eq!(apply_all(doc, &json!(operations)).is_some(), expected);
    }
}
