//! Reads fields of untyped objects as cells. Absent fields and fields of another type count as empty or 0.

use serde_json::Value;

use crate::printers::{Cell, unix_seconds};

pub(super) use crate::unstructured::{flag, integer as maybe_int, list, text};

pub(super) const NONE: &str = "<none>";
pub(super) const UNSET: &str = "<unset>";

/// The text at a JSON pointer; `default` if it is empty.
pub(super) fn text_or(object: &Value, pointer: &str, default: &str) -> Cell {
    let found = text(object, pointer);
    Cell::from(if found.is_empty() { default } else { found })
}

pub(super) fn int(object: &Value, pointer: &str) -> i64 {
    maybe_int(object, pointer).unwrap_or_default()
}

/// Number of entries of a map or list; 0 for any other value.
pub(super) fn size(object: &Value, pointer: &str) -> usize {
    match object.pointer(pointer) {
        Some(Value::Object(map)) => map.len(),
        Some(Value::Array(items)) => items.len(),
        _ => 0,
    }
}

pub fn name(object: &Value) -> Cell {
    Cell::from(text(object, "/metadata/name"))
}

/// A time, as Unix seconds.
pub(super) fn time(object: &Value, pointer: &str) -> Option<i64> {
    unix_seconds(text(object, pointer))
}

/// Time since the creation of an object; `<unknown>` without a timestamp.
pub fn age(object: &Value) -> Cell {
    Cell::since(time(object, "/metadata/creationTimestamp"))
}

/// An IntOrString as text; `default` if absent.
pub(super) fn int_or_string(value: Option<&Value>, default: &str) -> Cell {
    match value {
        Some(Value::String(s)) => Cell::from(s.as_str()),
        Some(Value::Number(n)) => Cell::from(n.to_string()),
        _ => Cell::from(default),
    }
}

/// `a=b,c=d` sorted by key, `<none>` if empty.
pub(super) fn labels(value: Option<&Value>) -> Cell {
    let pairs: Vec<String> = value
        .and_then(Value::as_object)
        .map(|map| map.iter().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or(""))).collect())
        .unwrap_or_default();
    Cell::from(if pairs.is_empty() { NONE.to_owned() } else { pairs.join(",") })
}

/// A `LabelSelector` in string form: `a=b,c in (d,e),!f`. Empty for absent or empty selectors; `<error>` for an unknown
/// operator, like `metav1.FormatLabelSelector`.
pub(super) fn selector_text(selector: Option<&Value>) -> String {
    let Some(selector) = selector else { return String::new() };
    let mut terms: Vec<(String, String)> = Vec::new();
    if let Some(map) = selector.get("matchLabels").and_then(Value::as_object) {
        terms.extend(map.iter().map(|(k, v)| (k.clone(), format!("{k}={}", v.as_str().unwrap_or("")))));
    }
    for expression in list(selector, "/matchExpressions") {
        let key = text(expression, "/key");
        let mut values: Vec<&str> = list(expression, "/values").iter().filter_map(Value::as_str).collect();
        values.sort_unstable();
        let set = values.join(",");
        let term = match text(expression, "/operator") {
            "In" => format!("{key} in ({set})"),
            "NotIn" => format!("{key} notin ({set})"),
            "Exists" => key.to_owned(),
            "DoesNotExist" => format!("!{key}"),
            _ => return "<error>".to_owned(),
        };
        terms.push((key.to_owned(), term));
    }
    terms.sort_by(|a, b| a.0.cmp(&b.0));
    terms.into_iter().map(|(_, term)| term).collect::<Vec<_>>().join(",")
}

/// Like [`selector_text`], with `<none>` for absent or empty selectors.
pub(super) fn selector(selector: Option<&Value>) -> Cell {
    let found = selector_text(selector);
    Cell::from(if found.is_empty() { NONE.to_owned() } else { found })
}

/// Names and images of the containers under `pointer`, each comma separated.
pub(super) fn containers(object: &Value, pointer: &str) -> (Cell, Cell) {
    let all = list(object, pointer);
    let join = |field: &str| all.iter().map(|c| text(c, field)).collect::<Vec<_>>().join(",");
    (Cell::from(join("/name")), Cell::from(join("/image")))
}

/// Status of the condition with this type; empty if there is none.
pub(super) fn condition<'a>(object: &'a Value, condition_type: &str) -> &'a str {
    list(object, "/status/conditions")
        .iter()
        .find(|c| text(c, "/type") == condition_type)
        .map_or("", |c| text(c, "/status"))
}

/// A boolean as `True` or `False`; `<unset>` if absent or not a boolean.
pub(super) fn bool_text(value: Option<&Value>) -> Cell {
    Cell::from(match value.and_then(Value::as_bool) {
        Some(true) => "True",
        Some(false) => "False",
        None => UNSET,
    })
}
