//! Conversion between served versions of a resource: horizontal pod autoscalers and events have two.

use std::borrow::Cow;

use crowsnest_schema::normalize;
use crowsnest_schema::schema_set::SchemaSet;
use serde_json::Value;

use super::autoscaler;
use super::object::{remove_field, set_field, text};

/// Field names in core/v1 and events.k8s.io/v1.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Converts an object to the version with all fields, from which tables and partial metadata are derived.
pub fn to_internal(object: &Value) -> Cow<'_, Value> {
    let (kind, version) = (text(object, "kind"), text(object, "apiVersion"));
    if kind == "HorizontalPodAutoscaler" && version == "autoscaling/v1" {
        return Cow::Owned(convert(object.clone(), "autoscaling/v2"));
    }
    Cow::Borrowed(object)
}

/// Converts an object to the API version `to`.
pub(super) fn convert(mut object: Value, to: &str) -> Value {
    if text(&object, "apiVersion") == to {
        return object;
    }
    match (text(&object, "kind"), to) {
        ("HorizontalPodAutoscaler", "autoscaling/v1") => autoscaler::to_v1(&mut object),
        ("HorizontalPodAutoscaler", "autoscaling/v2") => autoscaler::to_v2(&mut object),
        ("Event", "events.k8s.io/v1") => {
            EVENT_FIELDS.iter().for_each(|(core, events)| rename(&mut object, core, events))
        }
        ("Event", "v1") => EVENT_FIELDS.iter().for_each(|(core, events)| rename(&mut object, events, core)),
        _ => {}
    }
    set_field(&mut object, "apiVersion", to);
    let (group, version) = to.split_once('/').unwrap_or(("", to));
    if let Some(schema) = SchemaSet::builtin().kind(group, version, text(&object, "kind")) {
        normalize(&schema, &mut object);
    }
    object
}

fn rename(object: &mut Value, from: &str, to: &str) {
    if let Some(value) = remove_field(object, from) {
        set_field(object, to, value);
    }
}
