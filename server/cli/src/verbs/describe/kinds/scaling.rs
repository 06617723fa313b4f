//! Describes HorizontalPodAutoscalers. Has no side effects.

use serde_json::Value;

use super::{CONDITIONS, add_conditions, add_creation_timestamp};
use crate::verbs::describe::render::{add_labels_and_annotations, add_nested_fields};
use crate::verbs::describe::sheet::{Sheet, list, number, or_none, selector, to_text};

const UNKNOWN: &str = "<unknown>";

pub(super) fn describe_autoscaler(sheet: &mut Sheet, autoscaler: &Value) {
    let (spec, status) = (&autoscaler["spec"], &autoscaler["status"]);
    add_labels_and_annotations(sheet, autoscaler);
    add_creation_timestamp(sheet, autoscaler);
    let target = &spec["scaleTargetRef"];
    sheet.add_field(0, "Reference", format!("{}/{}", to_text(&target["kind"]), to_text(&target["name"])));
    sheet.add_heading(0, "Metrics");
    sheet.add_line(2, "( current / target )");
    for (at, metric) in list(&spec["metrics"]).iter().enumerate() {
        let (description, target) = describe_metric(metric);
        let current = list(&status["currentMetrics"]).get(at).map_or_else(|| UNKNOWN.to_owned(), format_current);
        sheet.add_field(2, &description, format!("{current} / {target}"));
    }
    sheet.add_field(
        0,
        "Min replicas",
        spec["minReplicas"].as_i64().map_or_else(|| "<unset>".to_owned(), |min| min.to_string()),
    );
    sheet.add_field(0, "Max replicas", or_none(&spec["maxReplicas"]));
    if let Some(behavior) = spec["behavior"].as_object() {
        sheet.add_heading(0, "Behavior");
        add_nested_fields(sheet, 2, behavior);
    }
    let counts =
        format!("{} current / {} desired", number(&status["currentReplicas"]), number(&status["desiredReplicas"]));
    sheet.add_field(0, &format!("{} pods", to_text(&target["kind"])), counts);
    add_conditions(sheet, autoscaler, &CONDITIONS);
}

/// The metric's source field, by its type.
fn metric_source(metric: &Value) -> &Value {
    let field = match metric["type"].as_str() {
        Some("Resource") => "resource",
        Some("ContainerResource") => "containerResource",
        Some("Pods") => "pods",
        Some("Object") => "object",
        _ => "external",
    };
    &metric[field]
}

/// Description of a metric and its target value.
fn describe_metric(metric: &Value) -> (String, String) {
    let source = metric_source(metric);
    let target = &source["target"];
    let amount = |field: &str| target[field].as_str().map(str::to_owned);
    let percent = target["averageUtilization"].as_i64().map(|percent| format!("{percent}%"));
    let average = amount("averageValue").map(|value| (value, " (target average value)"));
    let target_value =
        percent.clone().or_else(|| average.as_ref().map(|(value, _)| value.clone())).or_else(|| amount("value"));
    let description = match metric["type"].as_str() {
        Some("Resource") => {
            let pods = if percent.is_some() { "  (as a percentage of request)" } else { "" };
            format!("resource {} on pods{pods}", to_text(&source["name"]))
        }
        Some("ContainerResource") => {
            let request = if percent.is_some() { "  (as a percentage of request)" } else { "" };
            format!(
                "resource {} of container {} on pods{request}",
                to_text(&source["name"]),
                to_text(&source["container"])
            )
        }
        Some("Pods") => format!("{:?} on pods", to_text(&source["metric"]["name"])),
        Some("Object") => {
            let object = &source["describedObject"];
            let (kind, name) = (to_text(&object["kind"]), to_text(&object["name"]));
            format!("{:?} on {kind}/{name}", to_text(&source["metric"]["name"]))
        }
        _ => {
            let selector = selector(&source["metric"]["selector"]);
            let selector_suffix = if selector.is_empty() { String::new() } else { format!(" of {selector}") };
            format!("{:?} (external){selector_suffix}", to_text(&source["metric"]["name"]))
        }
    };
    let average = average.filter(|_| metric["type"] != "Resource").map_or("", |(_, average)| average);
    (format!("{description}{average}"), target_value.unwrap_or_else(|| "<auto>".to_owned()))
}

/// Current value of a metric.
fn format_current(metric: &Value) -> String {
    let current = &metric_source(metric)["current"];
    let amount = |field: &str| current[field].as_str().filter(|value| !value.is_empty()).map(str::to_owned);
    match (current["averageUtilization"].as_i64(), amount("averageValue"), amount("value")) {
        (Some(percent), Some(value), _) => format!("{percent}% ({value})"),
        (Some(percent), None, _) => format!("{percent}%"),
        (None, Some(value), _) | (None, None, Some(value)) => value,
        (None, None, None) => UNKNOWN.to_owned(),
    }
}
