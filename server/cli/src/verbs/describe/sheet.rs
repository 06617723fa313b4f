//! The text layout of descriptions: labels with values, indented blocks and tables. Values of consecutive lines are
//! aligned in one column, as in `kubectl describe`. Has no side effects.

use serde_json::Value;

pub(super) const NONE: &str = "<none>";

/// A line: indentation in spaces, label and value.
struct Line {
    indent: usize,
    label: String,
    value: Option<String>,
}

/// A description in progress.
#[derive(Default)]
pub(super) struct Sheet {
    lines: Vec<Line>,
}

impl Sheet {
    pub(super) fn add_field(&mut self, indent: usize, label: &str, value: impl Into<String>) {
        self.lines.push(Line { indent, label: label.to_owned(), value: Some(value.into()) });
    }

    /// Adds a label with a value, unless the value is empty.
    pub(super) fn add_field_if_set(&mut self, indent: usize, label: &str, value: &Value) {
        if !is_empty(value) {
            self.add_field(indent, label, to_text(value));
        }
    }

    /// Adds the heading of an indented block.
    pub(super) fn add_heading(&mut self, indent: usize, label: &str) {
        self.lines.push(Line { indent, label: label.to_owned(), value: None });
    }

    /// Adds a line without a label.
    pub(super) fn add_line(&mut self, indent: usize, value: impl Into<String>) {
        self.lines.push(Line { indent, label: String::new(), value: Some(value.into()) });
    }

    /// Adds a label with several values, one per line.
    pub(super) fn add_list(&mut self, indent: usize, label: &str, value: &[String]) {
        self.add_field(indent, label, if value.is_empty() { NONE.to_owned() } else { value.join("\n") });
    }

    /// Adds key-value pairs, one per line, with the label before the first.
    pub(super) fn add_pairs(&mut self, indent: usize, label: &str, object: &Value, between: &str) {
        let mut pairs: Vec<String> = object
            .as_object()
            .into_iter()
            .flatten()
            // kubectl's annotation repeats the whole object.
            .filter(|(key, _)| *key != "kubectl.kubernetes.io/last-applied-configuration")
            .map(|(key, value)| format!("{key}{between}{}", to_text(value)))
            .collect();
        pairs.sort();
        self.add_list(indent, label, &pairs);
    }

    /// Adds a table.
    pub(super) fn add_table(&mut self, indent: usize, headers: &[&str], rows: &[Vec<String>]) {
        let ruler: Vec<String> = headers.iter().map(|head| "-".repeat(head.len())).collect();
        let all: Vec<Vec<String>> =
            [headers.iter().map(|head| (*head).to_owned()).collect(), ruler].into_iter().chain(rows.to_vec()).collect();
        for row in align_columns(&all) {
            self.add_line(indent, row);
        }
    }

    /// Renders the sheet; values of consecutive lines are aligned.
    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        let mut rest = self.lines.as_slice();
        while let Some(first) = rest.first() {
            let is_standalone = |line: &Line| line.value.is_none() || line.label.is_empty();
            let together = rest.iter().take_while(|line| !is_standalone(line)).count().max(1);
            let (block, after) = rest.split_at(together);
            rest = after;
            if is_standalone(first) {
                text.push_str(&first.render());
                continue;
            }
            let width = block.iter().map(|line| line.indent + line.label.chars().count() + 1).max().unwrap_or_default();
            for line in block {
                let begin = format!("{}{}:", " ".repeat(line.indent), line.label);
                let below = format!("\n{}", " ".repeat(width + 2));
                let value = line.value.as_deref().unwrap_or_default().trim_end().replace('\n', &below);
                text.push_str(format!("{begin:<width$}  {value}").trim_end());
                text.push('\n');
            }
        }
        text
    }
}

impl Line {
    fn render(&self) -> String {
        let indent = " ".repeat(self.indent);
        match &self.value {
            None => format!("{indent}{}:\n", self.label),
            Some(value) => {
                format!("{indent}{value}").replace('\n', &format!("\n{indent}")).trim_end().to_owned() + "\n"
            }
        }
    }
}

/// Aligns cells in columns separated by two spaces.
fn align_columns(rows: &[Vec<String>]) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|at| width(at).unwrap_or_default()).collect();
    let line = |row: &Vec<String>| {
        let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

pub(super) fn to_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => NONE.to_owned(),
        other => other.to_string(),
    }
}

/// The value, or `<none>`.
pub(super) fn or_none(value: &Value) -> String {
    if is_empty(value) { NONE.to_owned() } else { to_text(value) }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Fields sorted by name.
pub(super) fn sorted_fields(object: &Value) -> Vec<(&String, &Value)> {
    let mut fields: Vec<(&String, &Value)> = object.as_object().into_iter().flatten().collect();
    fields.sort_by_key(|(name, _)| *name);
    fields
}

/// Joined values, or `<none>`.
pub(super) fn join_or_none(value: &Value, between: &str) -> String {
    let texts: Vec<String> = list(value).iter().map(to_text).collect();
    if texts.is_empty() { NONE.to_owned() } else { texts.join(between) }
}

/// The value as a number; 0 if it is missing.
pub(super) fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_default()
}

/// A timestamp in kubectl's format, `Mon, 02 Jan 2006 15:04:05 +0000`.
pub(super) fn time(value: &Value) -> String {
    match value.as_str().map(str::parse::<jiff::Timestamp>) {
        Some(Ok(time)) => time.strftime("%a, %d %b %Y %H:%M:%S %z").to_string(),
        _ => or_none(value),
    }
}

/// A label selector in query syntax.
pub(super) fn selector(selector: &Value) -> String {
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let mut parts: Vec<String> = labels.map(|(key, value)| format!("{key}={}", to_text(value))).collect();
    parts.sort();
    parts.extend(list(&selector["matchExpressions"]).iter().map(|expression| {
        let (key, values) = (
            to_text(&expression["key"]),
            list(&expression["values"]).iter().map(to_text).collect::<Vec<_>>().join(","),
        );
        match expression["operator"].as_str() {
            Some("In") => format!("{key} in ({values})"),
            Some("NotIn") => format!("{key} notin ({values})"),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key,
        }
    }));
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn consecutive_lines_are_aligned() {
        let mut sheet = Sheet::default();
        sheet.add_field(0, "Name", "web");
        sheet.add_pairs(0, "Labels", &json!({"b": "2", "a": "1"}), "=");
        sheet.add_heading(0, "Containers");
        sheet.add_heading(2, "web");
        sheet.add_field(4, "State", "Running");
        sheet.add_field(6, "Started", "now");
        sheet.add_field_if_set(4, "Nothing", &json!(""));
        sheet.add_table(2, &["Type", "Status"], &[vec!["Ready".to_owned(), "True".to_owned()]]);
        let expected = "Name:    web\nLabels:  a=1\n         b=2\nContainers:\n  web:\n    State:      Running\n      Started:  now\n  Type   Status\n  ----   ------\n  Ready  True\n";
        assert_eq!(sheet.render(), expected);
    }

    #[rstest::rstest]
    #[case(json!({}), "")]
    #[case(json!({"matchLabels": {"b": "2", "a": "1"}}), "a=1,b=2")]
    #[case(json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["x", "y"]}, {"key": "b", "operator": "Exists"},
        {"key": "c", "operator": "DoesNotExist"}]}), "a in (x,y),b,!c")]
    fn selectors_use_query_syntax(#[case] json: Value, #[case] expected: &str) {
        assert_eq!(selector(&json), expected);
    }

    #[test]
    fn times_use_the_kubectl_format() {
        assert_eq!(time(&json!("2026-01-01T00:05:00Z")), "Thu, 01 Jan 2026 00:05:00 +0000");
        assert_eq!(
            (time(&Value::Null), number(&json!(3)), join_or_none(&json!(["a", 1]), ", ")),
            (NONE.to_owned(), 3, "a, 1".to_owned())
        );
    }
}
