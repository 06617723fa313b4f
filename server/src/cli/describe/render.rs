//! An object as text: labelled fields below one another, as `kubectl describe` prints kinds it does not know. Pure.

use crowsnest_api::print::human_duration;
use serde_json::{Map, Value};

use crate::cli::columns;
use crate::cli::object::text;

const NONE: &str = "<none>";
/// Of ConfigMaps and Secrets.
const DATA: [&str; 3] = ["binaryData", "data", "stringData"];

/// A line of a description: how deep, what it is called, what it says.
struct Line {
    depth: usize,
    label: String,
    said: Option<String>,
}

pub(super) fn description(
    object: &Value,
    cluster: Option<&str>,
    events: Option<&Result<Vec<Value>, String>>,
    now: jiff::Timestamp,
) -> String {
    let mut lines = Vec::new();
    let mut line = |label: &str, said: &str| {
        lines.push(Line { depth: 0, label: label.to_owned(), said: Some(said.to_owned()) });
    };
    line("Name", text(object, "/metadata/name"));
    line("Namespace", text(object, "/metadata/namespace"));
    line("Cluster", cluster.unwrap_or("<control plane>"));
    pairs(&mut lines, "Labels", &object["metadata"]["labels"], "=");
    pairs(&mut lines, "Annotations", &object["metadata"]["annotations"], ": ");
    for (label, path) in [("API Version", "/apiVersion"), ("Kind", "/kind")] {
        lines.push(Line { depth: 0, label: label.to_owned(), said: Some(text(object, path).to_owned()) });
    }
    if let Value::Object(mut fields) = shown(object) {
        // What their data is called, nobody but their writer has named.
        for name in DATA.into_iter().filter(|_| holds_data(object)) {
            if let Some(Value::Object(data)) = fields.remove(name) {
                lines.push(Line { depth: 0, label: label(name), said: None });
                content(&mut lines, 1, &data, &str::to_owned);
            }
        }
        content(&mut lines, 0, &fields, &label);
    }
    let mut written = aligned(&lines);
    if let Some(events) = events {
        written.push_str(&told(events, now));
    }
    written
}

/// What was not said yet; a Secret's values are told by their length.
fn shown(object: &Value) -> Value {
    let mut shown = object.clone();
    let is_secret = text(object, "/kind") == "Secret" && holds_data(object);
    if let Some(fields) = shown.as_object_mut() {
        fields.remove("apiVersion");
        fields.remove("kind");
        for field in DATA.into_iter().filter(|_| is_secret) {
            let values = fields.get_mut(field).and_then(Value::as_object_mut).into_iter().flatten();
            values.for_each(|(_, value)| *value = bytes(value).into());
        }
        if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["managedFields", "name", "namespace", "labels", "annotations"] {
                metadata.remove(field);
            }
            if metadata.is_empty() {
                fields.remove("metadata");
            }
        }
    }
    shown
}

/// Whether it is a ConfigMap or a Secret.
fn holds_data(object: &Value) -> bool {
    text(object, "/apiVersion") == "v1" && matches!(text(object, "/kind"), "ConfigMap" | "Secret")
}

/// How long what base64 stands for is.
fn bytes(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    let padding = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    format!("{} bytes", (text.len() / 4 * 3).saturating_sub(padding))
}

/// One pair a line, the label before the first.
fn pairs(lines: &mut Vec<Line>, label: &str, of: &Value, between: &str) {
    let pairs: Vec<String> = of
        .as_object()
        .into_iter()
        .flatten()
        // What kubectl keeps there is the object once more.
        .filter(|(key, _)| *key != "kubectl.kubernetes.io/last-applied-configuration")
        .map(|(key, value)| format!("{key}{between}{}", plain(value)))
        .collect();
    let said = if pairs.is_empty() { NONE.to_owned() } else { pairs.join("\n") };
    lines.push(Line { depth: 0, label: label.to_owned(), said: Some(said) });
}

/// `word` is what a field is called.
fn content(lines: &mut Vec<Line>, depth: usize, fields: &Map<String, Value>, word: &dyn Fn(&str) -> String) {
    let mut names: Vec<&String> = fields.keys().collect();
    names.sort();
    for name in names {
        let label = word(name);
        let head = |label: String| Line { depth, label, said: None };
        match &fields[name] {
            Value::Object(inner) => {
                lines.push(head(label));
                content(lines, depth + 1, inner, word);
            }
            Value::Array(items) => {
                lines.push(head(label));
                for item in items {
                    match item {
                        Value::Object(inner) => content(lines, depth + 1, inner, word),
                        item => lines.push(Line { depth: depth + 1, label: String::new(), said: Some(plain(item)) }),
                    }
                }
            }
            value => lines.push(Line { depth, label, said: Some(plain(value)) }),
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => NONE.to_owned(),
        other => other.to_string(),
    }
}

/// `creationTimestamp` is a Creation Timestamp, `podIPs` are Pod IPs; what is no word of Kubernetes' stays as it is.
fn label(name: &str) -> String {
    if name.contains(|one: char| !one.is_ascii_alphanumeric()) {
        return name.to_owned();
    }
    let letters: Vec<char> = name.chars().collect();
    let mut label = String::new();
    for (at, letter) in letters.iter().enumerate() {
        let begins = at > 0
            && letter.is_ascii_uppercase()
            && (letters[at - 1].is_ascii_lowercase()
                || letters[at - 1].is_ascii_digit()
                || letters.get(at + 1).is_some_and(|next| next.is_ascii_lowercase() && *next != 's'));
        if begins {
            label.push(' ');
        }
        label.push(if at == 0 { letter.to_ascii_uppercase() } else { *letter });
    }
    match label.as_str() {
        "Uid" | "Ip" | "Api" | "Url" | "Id" => label.to_uppercase(),
        _ => label,
    }
}

/// What is said stands in one column, for lines that follow each other.
fn aligned(lines: &[Line]) -> String {
    let mut written = String::new();
    let mut rest = lines;
    while let Some(first) = rest.first() {
        let is_alone = |line: &Line| line.said.is_none() || line.label.is_empty();
        let together = rest.iter().take_while(|line| !is_alone(line)).count().max(1);
        let (block, after) = rest.split_at(together);
        rest = after;
        if is_alone(first) {
            let indent = "  ".repeat(first.depth);
            match &first.said {
                None => written.push_str(&format!("{indent}{}:\n", first.label)),
                Some(said) => written.push_str(&format!("{indent}{}\n", said.replace('\n', &format!("\n{indent}")))),
            }
            continue;
        }
        let width = block.iter().map(|line| line.depth * 2 + line.label.chars().count() + 1).max().unwrap_or_default();
        for line in block {
            let begin = format!("{}{}:", "  ".repeat(line.depth), line.label);
            let said = line
                .said
                .as_deref()
                .unwrap_or_default()
                .trim_end()
                .replace('\n', &format!("\n{}", " ".repeat(width + 2)));
            written.push_str(format!("{begin:<width$}  {said}").trim_end());
            written.push('\n');
        }
    }
    written
}

/// When an event was last seen, as it says itself.
pub(in crate::cli) fn seen(event: &Value) -> String {
    let times =
        ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/firstTimestamp", "/metadata/creationTimestamp"];
    times.iter().map(|path| text(event, path)).find(|time| !time.is_empty()).unwrap_or_default().to_owned()
}

/// `5m (x3 over 10m)`: how long ago, how often and since when.
pub(in crate::cli) fn age(event: &Value, now: jiff::Timestamp) -> String {
    let since =
        |time: &str| time.parse::<jiff::Timestamp>().ok().map(|at| human_duration(now.as_second() - at.as_second()));
    let Some(last) = since(&seen(event)) else { return "<unknown>".to_owned() };
    let count = event.get("count").or_else(|| event.pointer("/series/count")).and_then(Value::as_i64).unwrap_or(1);
    match since(text(event, "/firstTimestamp")) {
        Some(first) if count > 1 => format!("{last} (x{count} over {first})"),
        _ => last,
    }
}

fn told(events: &Result<Vec<Value>, String>, now: jiff::Timestamp) -> String {
    let events = match events {
        Ok(events) if events.is_empty() => return format!("Events:  {NONE}\n"),
        Ok(events) => events,
        Err(why) => return format!("Events:  <unknown: {why}>\n"),
    };
    let row = |event: &Value| {
        let from = [text(event, "/source/component"), text(event, "/reportingComponent")];
        let from = from.into_iter().find(|from| !from.is_empty()).unwrap_or(NONE);
        let message = text(event, "/message").trim().replace('\n', " ");
        let cells = [text(event, "/type"), text(event, "/reason"), &age(event, now), from, &message];
        std::iter::once(String::new()).chain(cells.map(str::to_owned)).collect::<Vec<_>>()
    };
    let head = ["", "Type", "Reason", "Age", "From", "Message"].map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(events.iter().map(row)).collect();
    let mut table = Vec::new();
    // A buffer takes all that is written.
    let written = columns::write(&mut table, &rows).map(|()| String::from_utf8_lossy(&table).into_owned());
    format!("Events:\n{}", written.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_are_described() {
        let object: Value = serde_saphyr::from_str(include_str!("pod.yaml")).unwrap();
        let events = Ok(vec![
            json!({"type": "Warning", "reason": "BackOff", "source": {"component": "kubelet"}, "count": 3,
                "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:05:00Z", "message": "Back-off\n"}),
        ]);
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        assert_eq!(description(&object, Some("member1"), Some(&events), now), include_str!("pod.txt"));
    }

    #[test]
    fn secrets_stay_secret() {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db"}, "data": {"password": "aHVudGVyMg=="}});
        let told = description(&secret, None, Some(&Ok(Vec::new())), jiff::Timestamp::UNIX_EPOCH);
        assert!(told.contains("password:  7 bytes") && !told.contains("aHVudGVyMg"), "{told}");
        assert!(told.contains("Cluster:      <control plane>\n") && told.ends_with("Events:  <none>\n"), "{told}");
    }

    #[rstest::rstest]
    #[case("creationTimestamp", "Creation Timestamp")]
    #[case("podIP", "Pod IP")]
    #[case("podIPs", "Pod IPs")]
    #[case("hostIPC", "Host IPC")]
    #[case("uid", "UID")]
    #[case("clusterIPAddress", "Cluster IP Address")]
    #[case("app.kubernetes.io/name", "app.kubernetes.io/name")]
    fn fields_are_words(#[case] name: &str, #[case] expected: &str) {
        assert_eq!(label(name), expected);
    }
}
