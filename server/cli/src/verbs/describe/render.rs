//! Renders the description of an object with its events: by its kind (`kinds`), or all fields for unknown kinds. Has no
//! side effects.

use crowsnest_apimachinery::printers::human_duration;
use serde_json::{Map, Value};

use super::kinds::{self, RelatedObjects};
use super::sheet::{NONE, Sheet, to_text};
use crate::object::text;

/// Renders the description of an object. Without a `cluster`, it is an object of the control plane.
pub(super) fn render_description(
    object: &Value,
    cluster: Option<&str>,
    related: &RelatedObjects,
    events: Option<&Result<Vec<Value>, String>>,
    now: jiff::Timestamp,
) -> String {
    let mut sheet = Sheet::default();
    sheet.add_field(0, "Name", text(object, "/metadata/name"));
    sheet.add_field_if_set(0, "Namespace", &object["metadata"]["namespace"]);
    sheet.add_field(0, "Cluster", cluster.unwrap_or("<control plane>"));
    if !kinds::describe_kind(&mut sheet, object, related, now) {
        add_unknown_kind(&mut sheet, object);
    }
    if let Some(events) = events {
        add_events(&mut sheet, events, now);
    }
    sheet.render()
}

/// Adds labels and annotations of an object.
pub(super) fn add_labels_and_annotations(sheet: &mut Sheet, object: &Value) {
    sheet.add_pairs(0, "Labels", &object["metadata"]["labels"], "=");
    sheet.add_pairs(0, "Annotations", &object["metadata"]["annotations"], ": ");
}

/// Adds labels and annotations of a template; annotations only if there are any.
pub(super) fn add_template_labels_and_annotations(sheet: &mut Sheet, indent: usize, metadata: &Value) {
    sheet.add_pairs(indent, "Labels", &metadata["labels"], "=");
    if metadata["annotations"].as_object().is_some_and(|annotations| !annotations.is_empty()) {
        sheet.add_pairs(indent, "Annotations", &metadata["annotations"], ": ");
    }
}

/// Adds all fields of an unknown kind.
fn add_unknown_kind(sheet: &mut Sheet, object: &Value) {
    add_labels_and_annotations(sheet, object);
    sheet.add_field(0, "API Version", text(object, "/apiVersion"));
    sheet.add_field(0, "Kind", text(object, "/kind"));
    if let Value::Object(fields) = remaining_fields(object) {
        add_nested_fields(sheet, 0, &fields);
    }
}

/// The fields of an object without those that descriptions show first: name, namespace, labels, annotations, kind and
/// apiVersion. managedFields are omitted.
fn remaining_fields(object: &Value) -> Value {
    let mut remaining = object.clone();
    if let Some(fields) = remaining.as_object_mut() {
        fields.remove("apiVersion");
        fields.remove("kind");
        if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["managedFields", "name", "namespace", "labels", "annotations"] {
                metadata.remove(field);
            }
            if metadata.is_empty() {
                fields.remove("metadata");
            }
        }
    }
    remaining
}

/// Adds fields as labels with values; nested fields are indented by two spaces.
pub(super) fn add_nested_fields(sheet: &mut Sheet, indent: usize, fields: &Map<String, Value>) {
    let mut names: Vec<&String> = fields.keys().collect();
    names.sort();
    for name in names {
        let label = label(name);
        match &fields[name] {
            Value::Object(inner) => {
                sheet.add_heading(indent, &label);
                add_nested_fields(sheet, indent + 2, inner);
            }
            Value::Array(items) => {
                sheet.add_heading(indent, &label);
                for item in items {
                    match item {
                        Value::Object(inner) => add_nested_fields(sheet, indent + 2, inner),
                        item => sheet.add_line(indent + 2, to_text(item)),
                    }
                }
            }
            value => sheet.add_field(indent, &label, to_text(value)),
        }
    }
}

/// Splits a field name into words: `creationTimestamp` becomes Creation Timestamp, `podIPs` Pod IPs. Names with other
/// characters stay as they are.
fn label(name: &str) -> String {
    if name.contains(|character: char| !character.is_ascii_alphanumeric()) {
        return name.to_owned();
    }
    let letters: Vec<char> = name.chars().collect();
    let mut label = String::new();
    for (at, letter) in letters.iter().enumerate() {
        let begins_word = at > 0
            && letter.is_ascii_uppercase()
            && (letters[at - 1].is_ascii_lowercase()
                || letters[at - 1].is_ascii_digit()
                || letters.get(at + 1).is_some_and(|next| next.is_ascii_lowercase() && *next != 's'));
        if begins_word {
            label.push(' ');
        }
        label.push(if at == 0 { letter.to_ascii_uppercase() } else { *letter });
    }
    match label.as_str() {
        "Uid" | "Ip" | "Api" | "Url" | "Id" => label.to_uppercase(),
        _ => label,
    }
}

/// Time of an event's last occurrence.
pub(crate) fn last_seen(event: &Value) -> String {
    let times =
        ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/firstTimestamp", "/metadata/creationTimestamp"];
    times.iter().map(|path| text(event, path)).find(|time| !time.is_empty()).unwrap_or_default().to_owned()
}

/// `5m (x3 over 10m)`: age of the last occurrence, count and age of the first one.
pub(crate) fn age(event: &Value, now: jiff::Timestamp) -> String {
    let age_since =
        |time: &str| time.parse::<jiff::Timestamp>().ok().map(|at| human_duration(now.as_second() - at.as_second()));
    let Some(last) = age_since(&last_seen(event)) else { return "<unknown>".to_owned() };
    let count = event.get("count").or_else(|| event.pointer("/series/count")).and_then(Value::as_i64).unwrap_or(1);
    match age_since(text(event, "/firstTimestamp")) {
        Some(first) if count > 1 => format!("{last} (x{count} over {first})"),
        _ => last,
    }
}

fn add_events(sheet: &mut Sheet, events: &Result<Vec<Value>, String>, now: jiff::Timestamp) {
    let events = match events {
        Ok(events) if events.is_empty() => return sheet.add_field(0, "Events", NONE),
        Ok(events) => events,
        Err(reason) => return sheet.add_field(0, "Events", format!("<unknown: {reason}>")),
    };
    let row = |event: &Value| {
        let from = [text(event, "/source/component"), text(event, "/reportingComponent")];
        let from = from.into_iter().find(|from| !from.is_empty()).unwrap_or(NONE);
        let message = text(event, "/message").trim().replace('\n', " ");
        [text(event, "/type"), text(event, "/reason"), &age(event, now), from, &message].map(str::to_owned).to_vec()
    };
    sheet.add_heading(0, "Events");
    sheet.add_table(2, &["Type", "Reason", "Age", "From", "Message"], &events.iter().map(row).collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unknown_kinds_show_all_fields() {
        let object: Value = serde_saphyr::from_str(include_str!("unknown.yaml")).unwrap();
        let events = Ok(vec![
            json!({"type": "Warning", "reason": "BackOff", "source": {"component": "kubelet"}, "count": 3,
                "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:05:00Z", "message": "Back-off\n"}),
        ]);
        let now = "2026-01-01T00:10:00Z".parse().unwrap();
        let output = render_description(&object, Some("member1"), &RelatedObjects::new(), Some(&events), now);
        assert_eq!(output, include_str!("unknown.txt"));
    }

    #[rstest::rstest]
    #[case("creationTimestamp", "Creation Timestamp")]
    #[case("podIP", "Pod IP")]
    #[case("podIPs", "Pod IPs")]
    #[case("hostIPC", "Host IPC")]
    #[case("uid", "UID")]
    #[case("clusterIPAddress", "Cluster IP Address")]
    #[case("app.kubernetes.io/name", "app.kubernetes.io/name")]
    fn field_names_are_split_into_words(#[case] name: &str, #[case] expected: &str) {
        assert_eq!(label(name), expected);
    }
}
