//! Parts of answers that several tools have.

use crowsnest_apimachinery::unstructured::{list, text};
use serde_json::Value;

use crate::output::{Row, row};

/// Strings without quotes, other values as JSON; empty if it is null.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The values of these fields.
pub(super) fn cells<const N: usize>(value: &Value, fields: [&str; N]) -> Row {
    fields.map(|field| plain(&value[field])).to_vec()
}

/// `Deployment shop/web`; kinds of groups other than Kubernetes' and Karmada's have the group.
pub(super) fn reference(reference: &Value) -> String {
    let (kind, namespace, name) = (text(reference, "/kind"), text(reference, "/namespace"), text(reference, "/name"));
    let group = text(reference, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
    let is_own = !group.contains('.') || [".k8s.io", ".karmada.io"].iter().any(|known| group.ends_with(known));
    let dot = if is_own { String::new() } else { format!(".{group}") };
    let slash = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
    format!("{kind}{dot} {slash}{name}").trim().to_owned()
}

/// Lines for skipped clusters and notices of a search.
pub(super) fn notes(answer: &Value) -> Vec<Row> {
    let skipped = list(answer, "skipped").iter().map(|one| {
        let age = one["ageSeconds"].as_f64().map(|age| format!("data is {age} s old")).unwrap_or_default();
        let missing = if one["missing"] == true { "its objects are missing" } else { "" };
        row(["skipped", text(one, "cluster"), text(one, "reason"), &age, missing])
    });
    let notices = list(answer, "notices").iter().map(|one| row(["notice", text(one, "message")]));
    skipped.chain(notices).collect()
}

/// `kind=Pod:12,Service:3`: the largest counts of each facet.
pub(super) fn facets(answer: &Value, most: usize) -> Vec<Row> {
    let facets = answer["facets"].as_object();
    let counted = facets.into_iter().flatten().filter_map(|(field, values)| {
        let values = values.as_array().filter(|values| !values.is_empty())?;
        let counts: Vec<String> =
            values.iter().take(most).map(|one| format!("{}:{}", plain(&one["value"]), plain(&one["count"]))).collect();
        let more = if values.len() > most { ", …" } else { "" };
        Some(row(["facet", field, &format!("{}{more}", counts.join(", "))]))
    });
    counted.collect()
}

/// The total of a search, with `or more` if a limit was reached.
pub(super) fn total(answer: &Value) -> Row {
    let more = if text(answer, "totalRelation") == "gte" { " or more" } else { "" };
    row(["total", &format!("{}{more}", plain(&answer["total"]))])
}

/// The leaves of a value with their paths in the query language, such as `.spec.containers[0].image`.
pub(crate) fn leaves(path: &str, value: &Value, rows: &mut Vec<Row>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
                let path = if is_plain { format!("{path}.{name}") } else { format!("{path}[{name}]") };
                leaves(&path, value, rows);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (nth, value) in items.iter().enumerate() {
                leaves(&format!("{path}[{nth}]"), value, rows);
            }
        }
        leaf => rows.push(row([path, &plain(leaf)])),
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
        leaves("", &value, &mut rows);
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
        assert_eq!(reference(&value), expected);
    }
}
