//! Validation of resource requests and limits.

use crowsnest_apimachinery::quantity::Quantity;

use super::{Errors, Value, at, fields, items, json, text, validate_dns1123_label, validate_qualified_name};

const STANDARD_RESOURCES: [&str; 12] = [
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
pub(super) fn validate_resource_name(e: &mut Errors, name: &str, path: &str) -> bool {
    let before = e.0.len();
    let reasons = validate_qualified_name(name);
    let is_malformed = !reasons.is_empty();
    e.push_name_errors(path, name, reasons);
    let is_standard = STANDARD_RESOURCES.contains(&name)
        || OBJECT_COUNTS.contains(&name)
        || is_hugepages(name)
        || is_hugepages_request(name);
    if !is_malformed && !name.contains('/') && !is_standard {
        e.invalid(path, &json!(name), "must be a standard resource type or fully qualified");
    }
    e.0.len() == before
}

pub(super) fn is_hugepages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn is_hugepages_request(name: &str) -> bool {
    name.starts_with("requests.hugepages-")
}

/// True for resources of Kubernetes itself, as opposed to extended resources (`IsNativeResource`).
pub(super) fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

pub(super) fn allows_overcommit(name: &str) -> bool {
    is_native(name) && !is_hugepages(name)
}

/// `IsExtendedResourceName`.
fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && validate_qualified_name(&format!("requests.{name}")).is_empty()
}

pub(super) fn validate_container_resource_name(e: &mut Errors, name: &str, path: &str) {
    validate_resource_name(e, name, path);
    let is_standard = matches!(name, "cpu" | "memory" | "ephemeral-storage") || is_hugepages(name);
    if !name.contains('/') {
        if !is_standard {
            e.invalid(path, &json!(name), "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        e.invalid(path, &json!(name), "doesn't follow extended resource name standard");
    }
}

/// `validatePodResourceName`: resources that are supported at pod level.
fn validate_pod_resource_name(e: &mut Errors, name: &str, path: &str) {
    let is_supported = matches!(name, "cpu" | "memory") || is_hugepages(name);
    if validate_resource_name(e, name, path) && !is_supported {
        e.unsupported(path, &json!(name), &["cpu", "hugepages-", "memory"]);
    }
}

/// Validates a quantity, which must be an integer for countable resources.
pub(super) fn validate_resource_value(e: &mut Errors, name: &str, value: &Value, path: &str) {
    let Some(quantity) = amount(value) else { return };
    if quantity.sign() < 0 {
        e.invalid(path, value, "must be greater than or equal to 0");
    }
    let is_countable = OBJECT_COUNTS.contains(&name) || name == "pods" || is_extended(name);
    if is_countable && quantity.milli_value() % 1000 != 0 {
        e.invalid(path, value, "must be an integer");
    }
}

/// Huge pages must be requested in multiples of the page size.
fn validate_hugepages_value(e: &mut Errors, name: &str, value: &Value, path: &str) {
    let (Some(page), Some(quantity)) = (name.strip_prefix("hugepages-"), amount(value)) else { return };
    let Ok(page) = Quantity::parse(page) else { return };
    if page.value() > 0 && quantity.value() % page.value() != 0 {
        let reason = format!("{} is not positive integer multiple of {name}", value.as_str().unwrap_or_default());
        e.invalid(path, value, reason);
    }
}

/// `ValidateContainerResourceRequirements`; `pod` is the spec whose claims the container can reference.
pub(super) fn validate_requirements(e: &mut Errors, resources: &Value, pod: Option<&Value>, path: &str) {
    validate_lists(e, resources, validate_container_resource_name, path);
    validate_claims(e, resources, pod, path);
}

/// `validatePodResources`.
pub(super) fn validate_pod_resources(e: &mut Errors, spec: &Value, path: &str) {
    let resources = at(spec, "resources");
    if resources.is_null() {
        return;
    }
    if !items(resources, "claims").is_empty() {
        e.forbidden(format!("{path}.claims"), "claims cannot be set for Resources at pod-level");
    }
    validate_lists(e, resources, validate_pod_resource_name, path);
    validate_claims(e, resources, Some(spec), path);
    for (index, container) in items(spec, "containers").iter().enumerate() {
        for (name, limit) in fields(container, "resources.limits") {
            let bound = fields(resources, "limits").get(name).and_then(amount);
            if let (Some(limit), Some(bound)) = (amount(limit), bound)
                && limit > bound
            {
                let field = format!("{path}.containers[{index}][{name}].limits");
                let reason = format!("must be less than or equal to pod limits of {bound}");
                e.invalid(field, &json!(limit.to_string()), reason);
            }
        }
    }
}

fn validate_lists(e: &mut Errors, resources: &Value, validate_name: fn(&mut Errors, &str, &str), path: &str) {
    let limits = fields(resources, "limits");
    let requests = fields(resources, "requests");
    for (name, value) in limits {
        let field = format!("{path}.limits[{name}]");
        validate_name(e, name, &field);
        validate_resource_value(e, name, value, &field);
        validate_hugepages_value(e, name, value, &field);
    }
    for (name, value) in requests {
        let field = format!("{path}.requests[{name}]");
        validate_name(e, name, &field);
        validate_resource_value(e, name, value, &field);
        let bound = limits.get(name).and_then(amount);
        match (bound, amount(value)) {
            (Some(bound), Some(request)) => {
                let reason = if !allows_overcommit(name) && request != bound {
                    format!("must be equal to {name} limit of {bound}")
                } else if request > bound {
                    format!("must be less than or equal to {name} limit of {bound}")
                } else {
                    String::new()
                };
                if !reason.is_empty() {
                    e.invalid(format!("{path}.requests"), &json!(request.to_string()), reason);
                }
            }
            (None, Some(_)) if !allows_overcommit(name) => {
                e.required(format!("{path}.limits"), "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
        validate_hugepages_value(e, name, value, &field);
    }
    let all = || limits.keys().chain(requests.keys());
    if all().any(|name| is_hugepages(name)) && !all().any(|name| name == "cpu" || name == "memory") {
        e.forbidden(path, "HugePages require cpu or memory");
    }
}

fn validate_claims(e: &mut Errors, resources: &Value, pod: Option<&Value>, path: &str) {
    let declared: std::collections::BTreeSet<&str> = pod
        .map(|pod| items(pod, "resourceClaims").iter().map(|claim| text(claim, "name")).collect())
        .unwrap_or_default();
    let mut seen: Vec<String> = Vec::new();
    for (index, claim) in items(resources, "claims").iter().enumerate() {
        let (name, request, path) = (text(claim, "name"), text(claim, "request"), format!("{path}.claims[{index}]"));
        if name.is_empty() {
            e.required(path, "");
            continue;
        }
        let key = if request.is_empty() { name.to_owned() } else { format!("{name}/{request}") };
        if seen.iter().any(|other| other == name) {
            e.duplicate(&path, &json!(name));
        } else {
            if !request.is_empty() {
                e.push_name_errors(&format!("{path}.request"), request, validate_dns1123_label(request));
            }
            let prefix = format!("{name}/");
            if seen.contains(&key) {
                e.duplicate(&path, &json!(key));
            } else if request.is_empty() && seen.iter().any(|other| other.starts_with(&prefix)) {
                e.duplicate(&path, &json!(name));
            }
            seen.push(key);
        }
        if !declared.contains(name) {
            let mut reason = "must be one of the names in pod.spec.resourceClaims".to_owned();
            let names: Vec<&str> = declared.iter().copied().collect();
            reason += &if names.is_empty() { " which is empty".to_owned() } else { format!(": {}", names.join(", ")) };
            e.push(super::FieldError::not_found(path, &json!(name)).with_detail(reason));
        }
    }
}
