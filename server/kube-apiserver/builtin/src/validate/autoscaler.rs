//! Validation of horizontal pod autoscalers in terms of `autoscaling/v2`. Has no side effects.

use super::resources::{amount, validate_container_resource_name};
use super::{Errors, Value, at, is_set, items, json, number, text, validate_dns1123_label, validate_path_segment};
use crate::convert::convert;

/// Metric types and the fields that describe them, in the order of validation.
const SOURCES: [(&str, &str); 5] = [
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];
const KINDS: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];

/// Validates a new or changed autoscaler; both versions are converted to `autoscaling/v2`.
pub(super) fn validate_autoscaler(e: &mut Errors, old: Option<&Value>, object: &Value) {
    let to_v2 = |object: &Value| convert(object.clone(), "autoscaling/v2");
    let (old, object) = (old.map(to_v2), to_v2(object));
    let (before, spec) = (old.as_ref().map(|old| at(old, "spec")), at(&object, "spec"));
    let minimum = number(spec, "minReplicas");
    let min_allowed = if before.is_some_and(|before| number(before, "minReplicas") == Some(0)) { 0 } else { 1 };
    if let Some(count) = minimum.filter(|n| *n < min_allowed) {
        e.invalid("spec.minReplicas", &json!(count), format!("must be greater than or equal to {min_allowed}"));
    }
    let maximum = number(spec, "maxReplicas").unwrap_or(0);
    if maximum == 0 {
        e.required("spec.maxReplicas", "must be set and greater than 0");
    } else if maximum < 0 {
        e.invalid("spec.maxReplicas", &json!(maximum), "must be greater than or equal to 1");
    }
    if minimum.is_some_and(|minimum| maximum < minimum) {
        e.invalid("spec.maxReplicas", &json!(maximum), "must be greater than or equal to `minReplicas`");
    }
    let (target, path) = (at(spec, "scaleTargetRef"), "spec.scaleTargetRef");
    validate_object_reference(e, target, path);
    let same =
        |field: &str| before.is_some_and(|before| text(at(before, "scaleTargetRef"), field) == text(target, field));
    if !(same("apiVersion") && same("kind")) {
        let is_core = text(target, "kind") == "ReplicationController";
        validate_api_version(e, target, path, is_core);
    }
    // Metrics whose object reference was invalid before may stay invalid.
    let is_invalid =
        |metric: &Value| api_version_error(text(metric, "object.describedObject.apiVersion"), true).is_some();
    let lenient =
        before.is_some_and(|before| items(before, "metrics").iter().any(|m| is_set(m, "object") && is_invalid(m)));
    let metrics = items(spec, "metrics");
    for (index, metric) in metrics.iter().enumerate() {
        validate_metric(e, metric, &format!("spec.metrics[{index}]"), lenient);
    }
    let scales_to_zero = |metric: &Value| matches!(text(metric, "type"), "Object" | "External");
    if minimum == Some(0) && !metrics.iter().any(scales_to_zero) {
        let reason = "must specify at least one Object or External metric to support scaling to zero replicas";
        e.forbidden("spec.metrics", reason);
    }
    for direction in ["scaleUp", "scaleDown"] {
        let rules = at(spec, &format!("behavior.{direction}"));
        if !rules.is_null() {
            validate_scaling_rules(e, rules, &format!("spec.behavior.{direction}"));
        }
    }
}

fn validate_object_reference(e: &mut Errors, reference: &Value, path: &str) {
    for field in ["kind", "name"] {
        let value = text(reference, field);
        if value.is_empty() {
            e.required(format!("{path}.{field}"), "");
        } else {
            e.push_name_errors(&format!("{path}.{field}"), value, validate_path_segment(value, false));
        }
    }
}

/// Error in the API version of a reference; `is_core` is true if its kind may be of the core group.
fn api_version_error(version: &str, is_core: bool) -> Option<String> {
    match version.matches('/').count() {
        2.. => Some(format!("unexpected GroupVersion string: {version}")),
        1 if !version.starts_with('/') => None,
        _ if is_core => None,
        _ => Some("apiVersion must specify API group".to_owned()),
    }
}

fn validate_api_version(e: &mut Errors, reference: &Value, path: &str, is_core: bool) {
    let version = text(reference, "apiVersion");
    if let Some(reason) = api_version_error(version, is_core) {
        e.invalid(format!("{path}.apiVersion"), &json!(version), reason);
    }
}

fn validate_scaling_rules(e: &mut Errors, rules: &Value, path: &str) {
    let window = number(rules, "stabilizationWindowSeconds").unwrap_or(0);
    let window_path = format!("{path}.stabilizationWindowSeconds");
    if window < 0 {
        e.invalid(&window_path, &json!(window), "must be greater than or equal to zero");
    }
    if window > 3600 {
        e.invalid(window_path, &json!(window), "must be less than or equal to 3600");
    }
    let select = at(rules, "selectPolicy");
    if !select.is_null() && select != "Max" && select != "Min" && select != "Disabled" {
        e.unsupported(format!("{path}.selectPolicy"), select, &["Disabled", "Max", "Min"]);
    }
    let policies = items(rules, "policies");
    if policies.is_empty() {
        e.required(format!("{path}.policies"), "must specify at least one Policy");
    }
    for (index, policy) in policies.iter().enumerate() {
        let path = format!("{path}.policies[{index}]");
        let kind = text(policy, "type");
        if kind != "Pods" && kind != "Percent" {
            e.unsupported(format!("{path}.type"), &json!(kind), &["Percent", "Pods"]);
        }
        for (field, max) in [("value", i64::MAX), ("periodSeconds", 1800)] {
            let value = number(policy, field).unwrap_or(0);
            if value <= 0 {
                e.invalid(format!("{path}.{field}"), &json!(value), "must be greater than zero");
            }
            if value > max {
                e.invalid(format!("{path}.{field}"), &json!(value), format!("must be less than or equal to {max}"));
            }
        }
    }
    if let Some(tolerance) = amount(at(rules, "tolerance")).filter(|tolerance| tolerance.sign() < 0) {
        let reason = "must be greater than or equal to 0";
        e.invalid(format!("{path}.tolerance"), &json!(tolerance.to_string()), reason);
    }
}

fn validate_metric(e: &mut Errors, metric: &Value, path: &str, lenient: bool) {
    let kind = text(metric, "type");
    if kind.is_empty() {
        e.required(format!("{path}.type"), "must specify a metric source type");
    }
    let expected = SOURCES.iter().find(|(name, _)| *name == kind).map(|(_, field)| *field);
    if expected.is_none() {
        e.unsupported(format!("{path}.type"), &json!(kind), &KINDS);
    }
    let present: Vec<&str> = SOURCES.iter().map(|(_, field)| *field).filter(|field| is_set(metric, field)).collect();
    if let Some(first) = present.first() {
        validate_metric_source(e, first, at(metric, first), &format!("{path}.{first}"), lenient);
    }
    match expected {
        Some(field) if !is_set(metric, field) => {
            e.required(format!("{path}.{field}"), "must populate information for the given metric source");
        }
        Some(_) => {}
        None => e.unsupported(format!("{path}.type"), &json!(kind), &KINDS),
    }
    if present.len() > 1 {
        for field in present.into_iter().filter(|field| Some(*field) != expected) {
            e.forbidden(format!("{path}.{field}"), "must populate the given metric source only");
        }
    }
}

fn validate_metric_source(e: &mut Errors, kind: &str, source: &Value, path: &str, lenient: bool) {
    let (target, target_path) = (at(source, "target"), format!("{path}.target"));
    let has = |field: &str| is_set(target, field);
    match kind {
        "object" | "external" | "pods" => {
            if kind == "object" {
                let (described, path) = (at(source, "describedObject"), format!("{path}.describedObject"));
                validate_object_reference(e, described, &path);
                if !lenient {
                    validate_api_version(e, described, &path, true);
                }
            }
            validate_metric_identifier(e, at(source, "metric"), &format!("{path}.metric"));
            validate_metric_target(e, target, &target_path);
            let reason = match kind {
                "object" => "must set either a target value or averageValue",
                "external" => "must set either a target value for metric or a per-pod target",
                _ => "must specify a positive target averageValue",
            };
            if !has("averageValue") && (kind == "pods" || !has("value")) {
                e.required(format!("{target_path}.averageValue"), reason);
            }
            if kind == "external" && has("averageValue") && has("value") {
                let reason = "may not set both a target value for metric and a per-pod target";
                e.forbidden(format!("{target_path}.value"), reason);
            }
        }
        _ => {
            validate_resource_metric(e, kind, source, path);
            validate_metric_target(e, target, &target_path);
            if !has("averageUtilization") && !has("averageValue") {
                let reason = "must set either a target raw value or a target utilization";
                e.required(format!("{target_path}.averageUtilization"), reason);
            }
            if has("averageUtilization") && has("averageValue") {
                let reason = "may not set both a target raw value and a target utilization";
                e.forbidden(format!("{target_path}.averageValue"), reason);
            }
        }
    }
}

fn validate_resource_metric(e: &mut Errors, kind: &str, source: &Value, path: &str) {
    let (name, container) = (text(source, "name"), text(source, "container"));
    if name.is_empty() {
        e.required(format!("{path}.name"), "must specify a resource name");
    }
    if kind == "resource" {
        return;
    }
    if !name.is_empty() {
        validate_container_resource_name(e, name, &format!("{path}.name"));
    }
    if container.is_empty() {
        e.required(format!("{path}.container"), "must specify a container");
    } else {
        e.push_name_errors(&format!("{path}.container"), container, validate_dns1123_label(container));
    }
}

fn validate_metric_identifier(e: &mut Errors, metric: &Value, path: &str) {
    let name = text(metric, "name");
    if name.is_empty() {
        e.required(format!("{path}.name"), "must specify a metric name");
    } else {
        e.push_name_errors(&format!("{path}.name"), name, validate_path_segment(name, false));
    }
}

fn validate_metric_target(e: &mut Errors, target: &Value, path: &str) {
    let kind = text(target, "type");
    if kind.is_empty() {
        e.required(format!("{path}.type"), "must specify a metric target type");
    }
    if !matches!(kind, "AverageValue" | "Utilization" | "Value") {
        e.invalid(format!("{path}.type"), &json!(kind), "must be either Utilization, Value, or AverageValue");
    }
    for field in ["value", "averageValue"] {
        if let Some(value) = amount(at(target, field)).filter(|value| value.sign() <= 0) {
            e.invalid(format!("{path}.{field}"), &json!(value.to_string()), "must be positive");
        }
    }
    if let Some(percent) = number(target, "averageUtilization").filter(|percent| *percent < 1) {
        e.invalid(format!("{path}.averageUtilization"), &json!(percent), "must be greater than 0");
    }
}
