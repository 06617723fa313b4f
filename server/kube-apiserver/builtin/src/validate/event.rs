//! Validation of events in both of their API groups. Has no side effects.

use super::{Errors, Value, are_equal, at, go, is_unset, json, text, validate_qualified_name};

/// Maximum lengths of the texts of an event.
const MAX_FIELD_BYTES: usize = 128;
const MAX_MESSAGE_BYTES: usize = 1024;
const EVENTS_GROUP: &str = "events.k8s.io";
/// Immutable fields in the newer group, with their names in messages, in the order of validation.
const IMMUTABLE_FIELDS: [(&str, &str); 14] = [
    ("regarding", "involvedObject"),
    ("reason", "reason"),
    ("note", "message"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("reason", "reason"),
    ("type", "type"),
    ("eventTime", "eventTime"),
    ("action", "action"),
    ("related", "related"),
    ("reportingController", "reportingController"),
    ("reportingInstance", "reportingInstance"),
];

/// The first non-empty field of two that have different names in the groups.
fn first_non_empty<'a>(object: &'a Value, names: [&str; 2]) -> &'a str {
    let first = text(object, names[0]);
    if first.is_empty() { text(object, names[1]) } else { first }
}

pub(super) fn validate_event(e: &mut Errors, group: &str, namespace: &str, object: &Value) {
    validate_legacy_rules(e, group, namespace, object);
    if group == EVENTS_GROUP {
        validate_events_group_rules(e, object, !is_unset(object, "eventTime"));
    }
}

/// Validates an update. Events of the older group can be changed freely; in the newer group, only `series` can.
pub(super) fn validate_update(e: &mut Errors, group: &str, namespace: &str, (old, new): (&Value, &Value)) {
    validate_legacy_rules(e, group, namespace, new);
    if group != EVENTS_GROUP {
        return;
    }
    if !are_equal(at(old, "series"), at(new, "series")) {
        validate_series(e, at(new, "series"));
    }
    for (field, reported_field) in IMMUTABLE_FIELDS {
        let (before, after) = (at(old, field), at(new, field));
        if !are_equal(before, after) {
            let reason = "field is immutable";
            match field {
                "regarding" => e.push(go::invalid_struct(reported_field, after, "core.ObjectReference", reason)),
                "related" => e.push(go::invalid_struct(reported_field, after, "*core.ObjectReference", reason)),
                _ if after.is_null() && before.is_string() => e.invalid(reported_field, &json!(""), reason),
                _ => e.invalid(reported_field, after, reason),
            }
        }
    }
}

fn validate_legacy_rules(e: &mut Errors, group: &str, namespace: &str, object: &Value) {
    const FIELD: &str = "involvedObject.namespace";
    let involved = first_non_empty(object, [FIELD, "regarding.namespace"]);
    let has_event_time = !is_unset(object, "eventTime");
    let is_mismatch = match (involved.is_empty(), has_event_time) {
        (true, true) => !matches!(namespace, "default" | "kube-system"),
        (true, false) => !matches!(namespace, "default" | ""),
        (false, true) => false,
        (false, false) => involved != namespace,
    };
    if is_mismatch {
        e.invalid(FIELD, &json!(involved), "does not match event.namespace");
    }
    if has_event_time {
        validate_reporter(e, group, object);
    }
}

fn validate_reporter(e: &mut Errors, group: &str, object: &Value) {
    let field = if group == EVENTS_GROUP { "reportingController" } else { "reportingComponent" };
    let controller = first_non_empty(object, ["reportingComponent", "reportingController"]);
    if controller.is_empty() {
        e.required(field, "");
    }
    e.push_name_errors(field, controller, validate_qualified_name(controller));
    for field in ["reportingInstance", "action", "reason"] {
        let value = text(object, field);
        if value.is_empty() {
            e.required(field, "");
        }
        if value.len() > MAX_FIELD_BYTES {
            e.invalid(field, &json!(""), format!("can have at most {MAX_FIELD_BYTES} characters"));
        }
    }
    if first_non_empty(object, ["message", "note"]).len() > MAX_MESSAGE_BYTES {
        e.invalid("message", &json!(""), format!("can have at most {MAX_MESSAGE_BYTES} characters"));
    }
}

fn validate_series(e: &mut Errors, series: &Value) {
    if series.is_null() {
        return;
    }
    if at(series, "count").as_i64().unwrap_or(0) < 2 {
        e.invalid("series.count", &json!(""), "should be at least 2");
    }
    if is_unset(series, "lastObservedTime") {
        e.required("series.lastObservedTime", "");
    }
}

/// Rules of the newer group, `events.k8s.io`, in addition to those of both groups.
fn validate_events_group_rules(e: &mut Errors, object: &Value, has_event_time: bool) {
    validate_series(e, at(object, "series"));
    if !has_event_time {
        e.required("eventTime", "");
    }
    let kind = text(object, "type");
    if !matches!(kind, "Normal" | "Warning") {
        e.invalid("type", &json!(""), format!("has invalid value: {kind}"));
    }
    for (field, reported_field) in [
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
        ("deprecatedSource", "source"),
    ] {
        let value = at(object, field);
        let empty = value.is_null() || value == 0 || value.as_object().is_some_and(serde_json::Map::is_empty);
        if !empty {
            e.invalid(reported_field, &json!(""), "needs to be unset");
        }
    }
}
