//! Conversion between the served versions of a resource: horizontal pod autoscalers and events have two.

use serde_json::{Map, Value, json};

use super::object::{at, inside, items, number, put, take, text};
use crate::schema::{normalise, set::SchemaSet};

/// Annotations that carry what autoscaling/v1 has no field for.
const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";

/// core/v1 name, events.k8s.io/v1 name.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

pub(super) fn convert(mut object: Value, to: &str) -> Value {
    if text(&object, "apiVersion") == to {
        return object;
    }
    match (text(&object, "kind"), to) {
        ("HorizontalPodAutoscaler", "autoscaling/v1") => autoscaler_to_v1(&mut object),
        ("HorizontalPodAutoscaler", "autoscaling/v2") => autoscaler_to_v2(&mut object),
        ("Event", "events.k8s.io/v1") => {
            EVENT_FIELDS.iter().for_each(|(core, events)| rename(&mut object, core, events))
        }
        ("Event", "v1") => EVENT_FIELDS.iter().for_each(|(core, events)| rename(&mut object, events, core)),
        _ => {}
    }
    put(&mut object, "apiVersion", to);
    let (group, version) = to.split_once('/').unwrap_or(("", to));
    if let Some(schema) = SchemaSet::builtin().kind(group, version, text(&object, "kind")) {
        normalise(&schema, &mut object);
    }
    object
}

fn rename(object: &mut Value, from: &str, to: &str) {
    if let Some(value) = take(object, from) {
        put(object, to, value);
    }
}

fn is_cpu_utilization(metric: &Value) -> bool {
    text(metric, "type") == "Resource"
        && text(metric, "resource.name") == "cpu"
        && !at(metric, "resource.target.averageUtilization").is_null()
}

fn annotate(object: &mut Value, key: &str, value: Option<Value>) {
    let Some(value) = value.filter(|v| !v.is_null() && v.as_array().is_none_or(|list| !list.is_empty())) else {
        return;
    };
    if let Some(metadata) = inside(object, "metadata") {
        if at(metadata, "annotations").is_null() {
            put(metadata, "annotations", Map::new());
        }
        put(&mut metadata["annotations"], key, value.to_string());
    }
}

fn annotated(object: &mut Value, key: &str) -> Option<Value> {
    let text = take(inside(object, "metadata.annotations")?, key)?;
    serde_json::from_str(text.as_str()?).ok()
}

fn autoscaler_to_v1(object: &mut Value) {
    let metrics = items(object, "spec.metrics").to_vec();
    let (cpu, others): (Vec<Value>, Vec<Value>) = metrics.into_iter().partition(is_cpu_utilization);
    let behavior = inside(object, "spec").and_then(|spec| {
        take(spec, "metrics");
        if let Some(metric) = cpu.first() {
            put(spec, "targetCPUUtilizationPercentage", at(metric, "resource.target.averageUtilization").clone());
        }
        take(spec, "behavior")
    });
    annotate(object, METRICS, Some(Value::Array(others)));
    annotate(object, BEHAVIOR, behavior);
    let Some(status) = inside(object, "status") else { return };
    let conditions = take(status, "conditions");
    let current = match take(status, "currentMetrics") {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    };
    let utilization = current
        .iter()
        .find(|m| text(m, "resource.name") == "cpu")
        .and_then(|metric| number(metric, "resource.current.averageUtilization"));
    if let Some(percent) = utilization {
        put(status, "currentCPUUtilizationPercentage", percent);
    }
    annotate(object, CURRENT_METRICS, Some(Value::Array(current)));
    annotate(object, CONDITIONS, conditions);
}

fn autoscaler_to_v2(object: &mut Value) {
    let mut metrics = match annotated(object, METRICS) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    };
    let behavior = annotated(object, BEHAVIOR);
    let conditions = annotated(object, CONDITIONS);
    let current = annotated(object, CURRENT_METRICS);
    if let Some(spec) = inside(object, "spec") {
        if let Some(percent) = take(spec, "targetCPUUtilizationPercentage") {
            let target = json!({"type": "Utilization", "averageUtilization": percent});
            metrics.push(json!({"type": "Resource", "resource": {"name": "cpu", "target": target}}));
        }
        put(spec, "metrics", metrics);
        if let Some(behavior) = behavior {
            put(spec, "behavior", behavior);
        }
    }
    if let Some(status) = inside(object, "status") {
        take(status, "currentCPUUtilizationPercentage");
        for (field, value) in [("conditions", conditions), ("currentMetrics", current)] {
            if let Some(value) = value {
                put(status, field, value);
            }
        }
    }
}
