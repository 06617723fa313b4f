//! Resource quotas and limit ranges.

use super::resources::{amount, resource_name, resource_value};
use super::{Errors, FieldError, FieldErrorKind, Value, fields, items, json, text};

const SCOPES: [&str; 7] = [
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

pub(super) fn resource_quota(e: &mut Errors, object: &Value) {
    for list in ["spec.hard", "status.hard", "status.used"] {
        for (name, value) in fields(object, list) {
            let path = format!("{list}[{name}]");
            resource_name(e, name.strip_prefix("requests.").filter(|n| n.contains('/')).unwrap_or(name), &path);
            if !name.contains('/') && !is_quota_resource(name) {
                e.invalid(&path, &json!(name), "must be a standard resource for quotas");
            }
            resource_value(e, name, value, &path);
        }
    }
    let scopes = items(object, "spec.scopes");
    for _ in scopes.iter().filter(|scope| !SCOPES.iter().any(|known| scope == known)) {
        e.invalid("spec.scopes", &json!(scopes), "unsupported scope");
    }
    for (first, second) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if scopes.iter().any(|s| s == first) && scopes.iter().any(|s| s == second) {
            e.invalid("spec.scopes", &json!(scopes), "conflicting scopes");
        }
    }
}

pub(super) fn limit_range(e: &mut Errors, object: &Value) {
    let mut kinds: Vec<&str> = Vec::new();
    for (index, limit) in items(object, "spec.limits").iter().enumerate() {
        let path = format!("spec.limits[{index}]");
        let kind = text(limit, "type");
        if !matches!(kind, "Pod" | "Container" | "PersistentVolumeClaim") && !kind.contains('/') {
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
        if kind == "Pod" {
            for field in ["default", "defaultRequest"] {
                if !fields(limit, field).is_empty() {
                    e.forbidden(format!("{path}.{field}"), "may not be specified when `type` is 'Pod'");
                }
            }
        }
        if kind == "PersistentVolumeClaim"
            && !fields(limit, "min").contains_key("storage")
            && !fields(limit, "max").contains_key("storage")
        {
            e.required(
                format!("{path}.limits"),
                "either minimum or maximum storage value is required, but neither was provided",
            );
        }
        bounds(e, limit, &path);
    }
}

fn bounds(e: &mut Errors, limit: &Value, path: &str) {
    let mut names: Vec<&String> = Vec::new();
    for field in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        for name in fields(limit, field).keys() {
            resource_name(e, name, &format!("{path}.{field}[{name}]"));
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    names.sort();
    for name in names {
        let value = |field: &str| fields(limit, field).get(name.as_str()).and_then(amount);
        // (smaller, larger, field at fault, its value): the order and the choice of fields are kube-apiserver's.
        for (low, high, field, shown) in [
            ("min", "max", "min", "min"),
            ("min", "defaultRequest", "defaultRequest", "defaultRequest"),
            ("defaultRequest", "max", "defaultRequest", "defaultRequest"),
            ("defaultRequest", "default", "defaultRequest", "defaultRequest"),
            ("min", "default", "default", "min"),
            ("default", "max", "default", "max"),
        ] {
            let (Some(a), Some(b)) = (value(low), value(high)) else { continue };
            if a > b {
                let high = if (low, high) == ("defaultRequest", "default") { "default limit" } else { label(high) };
                let why = format!("{} value {a} is greater than {high} value {b}", label(low));
                let shown = value(shown).map(|amount| amount.to_string());
                e.invalid(format!("{path}.{field}[{name}]"), &json!(shown), why);
            }
        }
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

fn label(field: &str) -> &'static str {
    match field {
        "defaultRequest" => "default request",
        "default" => "default",
        "min" => "min",
        _ => "max",
    }
}
