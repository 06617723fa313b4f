//! Formats JSON of the APIs as text and rows, for all tools.

use crowsnest_apimachinery::unstructured::{list, text};
use serde_json::Value;

use crate::output::{Row, row};

/// Text of a value: a string without quotes, another value as JSON, empty for null.
pub(super) fn value_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Texts of these fields of an object.
pub(super) fn field_texts<const N: usize>(value: &Value, fields: [&str; N]) -> Row {
    fields.map(|field| value_text(&value[field])).to_vec()
}

/// Text of a reference to an object, such as `Deployment shop/web`. The kind has its group unless it is a group of
/// Kubernetes or Karmada.
pub(super) fn reference_text(reference: &Value) -> String {
    let (kind, namespace, name) = (text(reference, "/kind"), text(reference, "/namespace"), text(reference, "/name"));
    let group = text(reference, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
    let is_well_known = !group.contains('.') || [".k8s.io", ".karmada.io"].iter().any(|suffix| group.ends_with(suffix));
    let dot = if is_well_known { String::new() } else { format!(".{group}") };
    let slash = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
    format!("{kind}{dot} {slash}{name}").trim().to_owned()
}

/// Rows for the skipped clusters and the notices of a search.
pub(super) fn note_rows(response: &Value) -> Vec<Row> {
    let skipped = list(response, "skipped").iter().map(|entry| {
        let age = entry["ageSeconds"].as_f64().map(|age| format!("data is {age} s old")).unwrap_or_default();
        let missing = if entry["missing"] == true { "its objects are missing" } else { "" };
        row(["skipped", text(entry, "cluster"), text(entry, "reason"), &age, missing])
    });
    let notices = list(response, "notices").iter().map(|entry| row(["notice", text(entry, "message")]));
    skipped.chain(notices).collect()
}

/// A row for each facet with its largest counts, such as `facet`, `kind`, `Pod:12, Service:3`.
pub(super) fn facet_rows(response: &Value, max_values: usize) -> Vec<Row> {
    let facets = response["facets"].as_object();
    let rows = facets.into_iter().flatten().filter_map(|(field, values)| {
        let values = values.as_array().filter(|values| !values.is_empty())?;
        let counts: Vec<String> = values
            .iter()
            .take(max_values)
            .map(|entry| format!("{}:{}", value_text(&entry["value"]), value_text(&entry["count"])))
            .collect();
        let ellipsis = if values.len() > max_values { ", …" } else { "" };
        Some(row(["facet", field, &format!("{}{ellipsis}", counts.join(", "))]))
    });
    rows.collect()
}

/// The total of a search, with `or more` if a limit was reached.
pub(super) fn total_row(response: &Value) -> Row {
    let suffix = if text(response, "totalRelation") == "gte" { " or more" } else { "" };
    row(["total", &format!("{}{suffix}", value_text(&response["total"]))])
}

/// Appends a row for each leaf of a value, with its path in the query language, such as `.spec.containers[0].image`.
pub(crate) fn push_leaves(path: &str, value: &Value, rows: &mut Vec<Row>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
                let path = if is_plain { format!("{path}.{name}") } else { format!("{path}[{name}]") };
                push_leaves(&path, value, rows);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (nth, value) in items.iter().enumerate() {
                push_leaves(&format!("{path}[{nth}]"), value, rows);
            }
        }
        leaf => rows.push(row([path, &value_text(leaf)])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn leaves_have_paths() {
        let mut rows = Vec::new();
        let value = json!({"metadata": {"labels": {"app.kubernetes.io/name": "web"}}, "spec": {"replicas": 3, "ports": [{"port": 80}], "empty": {}}});
        push_leaves("", &value, &mut rows);
        let lines: Vec<String> = rows.iter().map(|row| row.join(" ")).collect();
        let expected = [
            ".metadata.labels[app.kubernetes.io/name] web",
            ".spec.empty {}",
            ".spec.ports[0].port 80",
            ".spec.replicas 3",
        ];
        assert_eq!(lines, expected);
    }

    #[rstest::rstest]
    #[case(json!({"kind": "Deployment", "apiVersion": "apps/v1", "namespace": "shop", "name": "web"}), "Deployment shop/web")]
    #[case(json!({"kind": "Node", "name": "n"}), "Node n")]
    #[case(json!({"kind": "Widget", "apiVersion": "example.org/v1", "name": "w"}), "Widget.example.org w")]
    fn references_are_short(#[case] value: Value, #[case] expected: &str) {
        assert_eq!(reference_text(&value), expected);
    }
}
