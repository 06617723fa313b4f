//! KYAML (KEP-5295): YAML in flow style with quoted strings, independent of whitespace. Has no side effects.

use serde_json::Value;

/// Plain scalars that YAML parsers may read as something other than a string.
const AMBIGUOUS: [&str; 10] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan"];

/// Renders a document with its `---` marker.
pub(super) fn render(document: &Value) -> String {
    let mut text = "---\n".to_owned();
    write(&mut text, document, 0);
    text.push('\n');
    text
}

fn write(text: &mut String, value: &Value, indent: usize) {
    let deeper = " ".repeat(indent + 2);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            text.push_str("{\n");
            for (name, field) in fields {
                text.push_str(&format!("{deeper}{}: ", quote_key(name)));
                write(text, field, indent + 2);
                text.push_str(",\n");
            }
            text.push_str(&format!("{}}}", " ".repeat(indent)));
        }
        // Nested lists and objects open on the line of the list.
        Value::Array(items) if !items.is_empty() && items.iter().all(|item| item.is_object() || item.is_array()) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                text.push_str(if at > 0 { ", " } else { "" });
                write(text, item, indent);
            }
            text.push(']');
        }
        Value::Array(items) if !items.is_empty() => {
            text.push_str("[\n");
            for item in items {
                text.push_str(&deeper);
                write(text, item, indent + 2);
                text.push_str(",\n");
            }
            text.push_str(&format!("{}]", " ".repeat(indent)));
        }
        plain => text.push_str(&plain.to_string()),
    }
}

/// Quotes keys that could be read as something other than a string.
fn quote_key(name: &str) -> String {
    let begins_with_letter = name.chars().next().is_some_and(|first| first.is_ascii_alphabetic());
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/'));
    match begins_with_letter && is_plain && !AMBIGUOUS.contains(&name.to_ascii_lowercase().as_str()) {
        true => name.to_owned(),
        false => Value::from(name).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn documents_are_unambiguous() {
        let document = json!({"kind": "Service", "apiVersion": "v1", "metadata": {"name": "no", "labels": {}, "annotations": {"on": "a\nb", "x.y/z": "1"}},
            "spec": {"clusterIPs": ["10.0.0.1"], "ports": [{"port": 80}, {"port": 443}], "tries": [], "ready": true}});
        let expected = "---\n{\n  apiVersion: \"v1\",\n  kind: \"Service\",\n  metadata: {\n    annotations: {\n      \"on\": \"a\\nb\",\n      x.y/z: \"1\",\n    },\n    \
            labels: {},\n    name: \"no\",\n  },\n  spec: {\n    clusterIPs: [\n      \"10.0.0.1\",\n    ],\n    ports: [{\n      port: 80,\n    }, {\n      port: 443,\n    }],\n    \
            ready: true,\n    tries: [],\n  },\n}\n";
        let output = render(&document);
        assert_eq!(output, expected, "{output}");
        assert_eq!(serde_saphyr::from_str::<Value>(&output).unwrap(), document);
    }
}
