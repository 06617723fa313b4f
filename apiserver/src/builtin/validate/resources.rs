//! Amounts of resources: container requests and limits.

use crowsnest_api::quantity::Quantity;

use super::{Errors, Value, at, fields, items, json, qualified_name};

const STANDARD: [&str; 12] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "storage",
    "requests.storage",
];
const OBJECT_COUNTS: [&str; 9] = [
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
    "count/pods",
];

pub(super) fn amount(value: &Value) -> Option<Quantity> {
    Quantity::parse(value.as_str()?).ok()
}

/// `validateResourceName`.
pub(super) fn resource_name(e: &mut Errors, name: &str, path: &str) {
    let why = qualified_name(name);
    let wrong = !why.is_empty();
    e.names(path, name, why);
    let standard = STANDARD.contains(&name) || OBJECT_COUNTS.contains(&name) || name.starts_with("hugepages-");
    if !wrong && !name.contains('/') && !standard {
        e.invalid(path, &json!(name), "must be a standard resource type or fully qualified");
    }
}

fn container_resource_name(e: &mut Errors, name: &str, path: &str) {
    resource_name(e, name, path);
    let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-");
    if !name.contains('/') && !standard {
        e.invalid(path, &json!(name), "must be a standard resource for containers");
    } else if let Some((prefix, _)) = name.split_once('/')
        && !prefix.ends_with("kubernetes.io")
        && prefix.starts_with("requests.")
    {
        e.invalid(path, &json!(name), "doesn't follow extended resource name standard");
    }
}

/// Integers only for what cannot be divided.
pub(super) fn resource_value(e: &mut Errors, name: &str, value: &Value, path: &str) {
    let Some(quantity) = amount(value) else { return };
    if quantity.sign() < 0 {
        e.invalid(path, value, "must be greater than or equal to 0");
    }
    let whole = OBJECT_COUNTS.contains(&name) || name == "pods" || name.contains('/');
    if whole && quantity.milli_value() % 1000 != 0 {
        e.invalid(path, value, "must be an integer");
    }
}

/// `ValidateContainerResourceRequirements`.
pub(super) fn requirements(e: &mut Errors, resources: &Value, path: &str) {
    let limits = fields(resources, "limits");
    let requests = fields(resources, "requests");
    for (name, value) in limits {
        let field = format!("{path}.limits[{name}]");
        container_resource_name(e, name, &field);
        resource_value(e, name, value, &field);
    }
    for (name, value) in requests {
        let field = format!("{path}.requests[{name}]");
        container_resource_name(e, name, &field);
        resource_value(e, name, value, &field);
        let overcommit = !name.contains('/') && !name.starts_with("hugepages-");
        match (limits.get(name), amount(value)) {
            (Some(limit), Some(request)) => {
                let Some(bound) = amount(limit) else { continue };
                if !overcommit && request != bound {
                    e.invalid(format!("{path}.requests"), value, format!("must be equal to {name} limit of {bound}"));
                } else if overcommit && request > bound {
                    e.invalid(
                        format!("{path}.requests"),
                        value,
                        format!("must be less than or equal to {name} limit of {bound}"),
                    );
                }
            }
            (None, Some(_)) if !overcommit => {
                e.required(format!("{path}.limits"), "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
    }
    let mut seen: Vec<&Value> = Vec::new();
    for (index, claim) in items(resources, "claims").iter().enumerate() {
        let name = at(claim, "name");
        if seen.contains(&name) {
            e.duplicate(format!("{path}.claims[{index}]"), name);
        }
        seen.push(name);
    }
}
