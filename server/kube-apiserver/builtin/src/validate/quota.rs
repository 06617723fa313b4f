//! Validation of resource quotas and limit ranges.

use crowsnest_apimachinery::quantity::Quantity;

use super::resources::{
    allows_overcommit, amount, validate_container_resource_name, validate_resource_name, validate_resource_value,
};
use super::{Errors, FieldError, FieldErrorKind, Value, fields, items, json, text, validate_qualified_name};

const SCOPES: [&str; 7] = [
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

pub(super) fn validate_resource_quota(e: &mut Errors, object: &Value) {
    validate_quantities(e, object, "spec.hard");
    validate_quota_status(e, object);
    let scopes = items(object, "spec.scopes");
    let names: Vec<&str> = scopes.iter().filter_map(Value::as_str).collect();
    for scope in &names {
        if !SCOPES.contains(scope) {
            e.invalid("spec.scopes", &json!(scopes), "unsupported scope");
        }
        for _ in unsupported_resources(object, scope) {
            e.invalid("spec.scopes", &json!(scopes), "unsupported scope applied to resource");
        }
    }
    validate_conflicting_scopes(e, &names, "spec.scopes", scopes);
    validate_scope_selector(e, object, scopes);
}

/// Validates the status of a quota.
pub(super) fn validate_quota_status(e: &mut Errors, object: &Value) {
    ["status.hard", "status.used"].iter().for_each(|list| validate_quantities(e, object, list));
}

fn validate_quantities(e: &mut Errors, object: &Value, list: &str) {
    for (name, value) in fields(object, list) {
        let path = format!("{list}[{name}]");
        validate_resource_name(e, name.strip_prefix("requests.").filter(|n| n.contains('/')).unwrap_or(name), &path);
        if !name.contains('/') && !is_quota_resource(name) {
            e.invalid(&path, &json!(name), "must be a standard resource for quota");
        }
        validate_resource_value(e, name, value, &path);
    }
}

/// Resources that a scope does not support.
fn unsupported_resources<'a>(object: &'a Value, scope: &'a str) -> impl Iterator<Item = &'a String> {
    const COMPUTE: [&str; 7] =
        ["cpu", "memory", "limits.cpu", "limits.memory", "pods", "requests.cpu", "requests.memory"];
    let fits = move |name: &str| match scope {
        "BestEffort" => name == "pods",
        "VolumeAttributesClass" => matches!(name, "persistentvolumeclaims" | "requests.storage"),
        scope if SCOPES.contains(&scope) => COMPUTE.contains(&name),
        _ => true,
    };
    fields(object, "spec.hard").keys().filter(move |name| is_quota_resource(name) && !fits(name))
}

fn validate_conflicting_scopes(e: &mut Errors, names: &[&str], field: &str, scopes: &[Value]) {
    for (first, second) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if names.contains(&first) && names.contains(&second) {
            e.invalid(field, &json!(scopes), "conflicting scopes");
        }
    }
}

fn validate_scope_selector(e: &mut Errors, object: &Value, scopes: &[Value]) {
    const PATH: &str = "spec.scopeSelector.matchExpressions";
    let expressions = items(object, PATH);
    let mut names = Vec::new();
    for expression in expressions {
        let (scope, operator) = (text(expression, "scopeName"), text(expression, "operator"));
        let values = items(expression, "values");
        if !SCOPES.contains(&scope) {
            e.invalid(format!("{PATH}.scopeName"), &json!(scope), "unsupported scope");
        }
        for _ in unsupported_resources(object, scope) {
            let selector = super::at(object, "spec.scopeSelector");
            let reason = "unsupported scope applied to resource";
            e.push(super::go::invalid_struct(PATH, selector, "core.ScopeSelector", reason));
        }
        let has_values = matches!(scope, "PriorityClass" | "VolumeAttributesClass") || !SCOPES.contains(&scope);
        if !has_values && operator != "Exists" {
            let reason = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            e.invalid(format!("{PATH}.operator"), &json!(operator), reason);
        }
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let reason = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                e.required(format!("{PATH}.values"), reason);
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let reason = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                e.invalid(format!("{PATH}.values"), &json!(values), reason);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => e.invalid(format!("{PATH}.operator"), &json!(other), "not a valid selector operator"),
        }
        names.push(scope);
    }
    validate_conflicting_scopes(e, &names, PATH, scopes);
}

/// The scopes of a quota are immutable.
pub(super) fn validate_quota_update(e: &mut Errors, old: &Value, new: &Value) {
    let (before, after) = (items(old, "spec.scopes"), items(new, "spec.scopes"));
    let is_unchanged =
        before.iter().all(|scope| after.contains(scope)) && after.iter().all(|scope| before.contains(scope));
    if !is_unchanged {
        e.invalid("spec.scopes", super::at(new, "spec.scopes"), "field is immutable");
    }
}

pub(super) fn validate_limit_range(e: &mut Errors, object: &Value) {
    let mut kinds: Vec<&str> = Vec::new();
    for (index, limit) in items(object, "spec.limits").iter().enumerate() {
        let path = format!("spec.limits[{index}]");
        let kind = text(limit, "type");
        let reasons = validate_qualified_name(kind);
        let is_standard = matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim") || kind.contains('/');
        if !reasons.is_empty() {
            e.push_name_errors(&format!("{path}.type"), kind, reasons);
        } else if !is_standard {
            e.invalid(format!("{path}.type"), &json!(kind), "must be a standard limit type or fully qualified");
        }
        if kinds.contains(&kind) {
            e.push(FieldError::new(
                FieldErrorKind::Duplicate,
                format!("{path}.type"),
                Some(json!(kind).to_string()),
                "",
            ));
        }
        kinds.push(kind);
        validate_resource_names(e, limit, kind, &path);
        validate_bounds(e, limit, &path);
    }
}

/// Validates resource names in a limit; those for pods and containers are restricted to compute resources.
fn validate_resource_names(e: &mut Errors, limit: &Value, kind: &str, path: &str) {
    let is_compute = matches!(kind, "Pod" | "Container");
    for field in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        let names = fields(limit, field);
        if field == "maxLimitRequestRatio" && kind == "PersistentVolumeClaim" {
            validate_storage_bounds(e, limit, path);
        }
        if kind == "Pod" && field.starts_with("default") {
            if !names.is_empty() {
                e.forbidden(format!("{path}.{field}"), "may not be specified when `type` is 'Pod'");
            }
            continue;
        }
        for name in names.keys() {
            let field = format!("{path}.{field}[{name}]");
            if is_compute {
                validate_container_resource_name(e, name, &field);
            } else {
                validate_resource_name(e, name, &field);
            }
        }
    }
}

fn validate_storage_bounds(e: &mut Errors, limit: &Value, path: &str) {
    if !fields(limit, "min").contains_key("storage") && !fields(limit, "max").contains_key("storage") {
        let reason = "either minimum or maximum storage value is required, but neither was provided";
        e.required(format!("{path}.limits"), reason);
    }
}

fn validate_bounds(e: &mut Errors, limit: &Value, path: &str) {
    let is_pod = text(limit, "type") == "Pod";
    let lists = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];
    let is_applicable = |field: &&str| !(is_pod && field.starts_with("default"));
    let mut names: Vec<&String> =
        lists.iter().copied().filter(is_applicable).flat_map(|field| fields(limit, field).keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let value =
            |field: &str| fields(limit, field).get(name.as_str()).and_then(amount).filter(|_| is_applicable(&field));
        // Lower bound, upper bound, field to report, and the field whose value is reported. Order and choice are those
        // of kube-apiserver.
        for (low, high, field, value_field) in [
            ("min", "max", "min", "min"),
            ("min", "defaultRequest", "defaultRequest", "defaultRequest"),
            ("defaultRequest", "max", "defaultRequest", "defaultRequest"),
            ("defaultRequest", "default", "defaultRequest", "defaultRequest"),
            ("min", "default", "default", "min"),
            ("default", "max", "default", "max"),
        ] {
            let (Some(a), Some(b)) = (value(low), value(high)) else { continue };
            if a > b {
                let high =
                    if (low, high) == ("defaultRequest", "default") { "default limit" } else { bound_name(high) };
                let reason = format!("{} value {a} is greater than {high} value {b}", bound_name(low));
                let reported_value = value(value_field).map(|amount| amount.to_string());
                e.invalid(format!("{path}.{field}[{name}]"), &json!(reported_value), reason);
            }
        }
        if let Some(ratio) = value("maxLimitRequestRatio") {
            let field = format!("{path}.maxLimitRequestRatio[{name}]");
            validate_ratio(e, &ratio, value("min").zip(value("max")), &field);
        }
        if let Some((limit, request)) = value("default").zip(value("defaultRequest"))
            && !allows_overcommit(name)
            && limit != request
        {
            let reason = format!("default value {limit} must equal to defaultRequest value {request} in {name}");
            e.invalid(format!("{path}.defaultRequest[{name}]"), &json!(request.to_string()), reason);
        }
    }
}

fn validate_ratio(e: &mut Errors, ratio: &Quantity, bounds: Option<(Quantity, Quantity)>, field: &str) {
    let value = json!(ratio.to_string());
    if ratio.milli_value() < 1000 {
        e.invalid(field, &value, format!("ratio {ratio} is less than 1"));
    }
    let Some((low, high)) = bounds else { return };
    let max_ratio = high.as_f64() / low.as_f64();
    if ratio.as_f64() > max_ratio {
        e.invalid(field, &value, format!("ratio {ratio} is greater than max/min = {max_ratio:.6}"));
    }
}

fn is_quota_resource(name: &str) -> bool {
    const NAMES: [&str; 19] = [
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.storage",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "persistentvolumeclaims",
        "configmaps",
        "services.nodeports",
        "services.loadbalancers",
    ];
    NAMES.contains(&name) || name.starts_with("hugepages-") || name.starts_with("requests.hugepages-")
}

fn bound_name(field: &str) -> &'static str {
    match field {
        "defaultRequest" => "default request",
        "default" => "default",
        "min" => "min",
        _ => "max",
    }
}
