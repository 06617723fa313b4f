//! `LimitRanger` admission: default requests and limits, and bounds, from a namespace's LimitRanges.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;

use async_trait::async_trait;
use crowsnest_apimachinery::quantity::Quantity;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_registry::Registry;
use crowsnest_registry::admission::{Admission, Attributes, Mutation, Operation, Validation};
use crowsnest_registry::storage::ResourceKey;
use serde_json::{Map, Value, json};

/// Annotation of pods with the requests and limits that this plugin has set.
const DEFAULTS_ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// The admission plugin.
pub struct LimitRanger(pub Weak<Registry>);

impl LimitRanger {
    fn limit_ranges(&self, namespace: &str) -> Vec<Value> {
        let Some(registry) = self.0.upgrade() else { return Vec::new() };
        registry.store.objects(&ResourceKey::new("", "limitranges"), namespace)
    }
}

/// True for writes that LimitRanges apply to: creates of pods and claims, and updates of claims, which can expand them.
fn is_limited(a: &Attributes<'_>) -> bool {
    if !a.resource.gvr.group.is_empty() || !a.ctx.subresource.is_empty() {
        return false;
    }
    match &*a.resource.gvr.resource {
        "pods" => a.operation == Operation::Create,
        "persistentvolumeclaims" => matches!(a.operation, Operation::Create | Operation::Update),
        _ => false,
    }
}

#[async_trait]
impl Admission for LimitRanger {
    async fn mutate(&self, Mutation { attributes: a, object, .. }: Mutation<'_>) -> ApiResult<()> {
        if let Some(object) = object
            && is_limited(a)
            && &*a.resource.gvr.resource == "pods"
        {
            for range in self.limit_ranges(&a.ctx.namespace) {
                set_container_defaults(&range, object);
            }
        }
        Ok(())
    }

    async fn validate(&self, Validation { attributes: a, object, .. }: Validation<'_>) -> ApiResult<()> {
        let Some(object) = object.filter(|_| is_limited(a)) else { return Ok(()) };
        for range in self.limit_ranges(&a.ctx.namespace) {
            let mut violations = match &*a.resource.gvr.resource {
                "pods" => check_pod(&range, object),
                _ => check_claim(&range, object),
            };
            // Violations of several containers with the same message are reported once.
            let mut seen = BTreeSet::new();
            violations.retain(|violation| seen.insert(violation.clone()));
            let reason = match violations.as_slice() {
                [] => continue,
                [violation] => violation.clone(),
                violations => format!("[{}]", violations.join(", ")),
            };
            return Err(ApiError::forbidden("", &a.resource.gvr.resource, a.name, reason));
        }
        Ok(())
    }
}

/// Quantities by resource name, such as `cpu`.
pub(crate) type Amounts = BTreeMap<String, Quantity>;

/// Parses a `ResourceList`; invalid quantities are omitted.
pub(crate) fn parse_amounts(list: Option<&Value>) -> Amounts {
    let entries = list.and_then(Value::as_object).into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), parse_quantity(value)?))).collect()
}

fn parse_quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Quantity::parse(text).ok(),
        Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
        _ => None,
    }
}

/// Default limits and requests of containers: `default` and `defaultRequest`, completed from `max` and `min`.
fn container_defaults(range: &Value) -> (Map<String, Value>, Map<String, Value>) {
    let (mut limits, mut requests) = (Map::new(), Map::new());
    // Quantities are not parsed, so that they keep their notation.
    let list = |item: &Value, name: &str| item[name].as_object().cloned().unwrap_or_default();
    for item in range.pointer("/spec/limits").and_then(Value::as_array).into_iter().flatten() {
        if item["type"] != "Container" {
            continue;
        }
        let mut own_limits = list(item, "max");
        own_limits.extend(list(item, "default"));
        let mut own_requests = list(item, "min");
        own_requests.extend(own_limits.clone());
        own_requests.extend(list(item, "defaultRequest"));
        limits.extend(own_limits);
        requests.extend(own_requests);
    }
    (limits, requests)
}

/// Sets missing requests and limits of all containers and lists them in an annotation.
fn set_container_defaults(range: &Value, pod: &mut Value) {
    let (limits, requests) = container_defaults(range);
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    let mut notes = Vec::new();
    for (list, container_type) in [("containers", "container"), ("initContainers", "init container")] {
        let Some(containers) = pod.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut) else {
            continue;
        };
        for container in containers {
            let name = container["name"].as_str().unwrap_or("").to_owned();
            for (kind, defaults) in [("requests", &requests), ("limits", &limits)] {
                let added = add_missing(container, kind, defaults).join(", ");
                if !added.is_empty() {
                    notes.push(format!("{added} {} for {container_type} {name}", kind.trim_end_matches('s')));
                }
            }
        }
    }
    if !notes.is_empty() {
        let annotations = &mut pod["metadata"]["annotations"];
        if !annotations.is_object() {
            *annotations = json!({});
        }
        annotations[DEFAULTS_ANNOTATION] = json!(format!("LimitRanger plugin set: {}", notes.join("; ")));
    }
}

/// Adds defaults for missing `requests` or `limits` of a container; returns the names of the added resources.
fn add_missing(container: &mut Value, kind: &str, defaults: &Map<String, Value>) -> Vec<String> {
    let mut added = Vec::new();
    // The defaulting of pods uses a container's limit as its request, so such a request is not missing.
    let own_limits = container.pointer("/resources/limits").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut current: Map<String, Value> =
        container.pointer(&format!("/resources/{kind}")).and_then(Value::as_object).cloned().unwrap_or_default();
    for (name, amount) in defaults {
        if current.contains_key(name) || (kind == "requests" && own_limits.contains_key(name)) {
            continue;
        }
        current.insert(name.clone(), amount.clone());
        added.push(name.clone());
    }
    if !added.is_empty() {
        container["resources"][kind] = Value::Object(current);
    }
    added
}

/// Messages of violated bounds.
fn check_pod(range: &Value, pod: &Value) -> Vec<String> {
    let mut violations = Vec::new();
    let containers = |list: &str| pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array).into_iter().flatten();
    let resources = |container: &Value, kind: &str| parse_amounts(container.pointer(&format!("/resources/{kind}")));
    for item in range.pointer("/spec/limits").and_then(Value::as_array).into_iter().flatten() {
        match item["type"].as_str().unwrap_or("") {
            "Container" => {
                for container in containers("containers").chain(containers("initContainers")) {
                    let (requests, limits) = (resources(container, "requests"), resources(container, "limits"));
                    check_bounds(item, "Container", &requests, &limits, &mut violations);
                }
            }
            "Pod" => {
                let total = |kind: &str| {
                    let mut sum = Amounts::new();
                    for container in containers("containers") {
                        add_amounts(&mut sum, &resources(container, kind));
                    }
                    for container in containers("initContainers") {
                        for (name, amount) in resources(container, kind) {
                            let total = sum.entry(name).or_insert_with(|| amount);
                            *total = (*total).max(amount);
                        }
                    }
                    sum
                };
                check_bounds(item, "Pod", &total("requests"), &total("limits"), &mut violations);
            }
            _ => {}
        }
    }
    violations
}

fn check_claim(range: &Value, claim: &Value) -> Vec<String> {
    let mut violations = Vec::new();
    let requests = parse_amounts(claim.pointer("/spec/resources/requests"));
    for item in range.pointer("/spec/limits").and_then(Value::as_array).into_iter().flatten() {
        if item["type"] == "PersistentVolumeClaim" {
            check_bounds(item, "PersistentVolumeClaim", &requests, &requests, &mut violations);
        }
    }
    violations
}

pub(crate) fn add_amounts(sum: &mut Amounts, addends: &Amounts) {
    for (name, amount) in addends {
        match sum.get_mut(name) {
            Some(total) => *total += *amount,
            None => {
                sum.insert(name.clone(), *amount);
            }
        }
    }
}

/// Adds messages for amounts outside of the bounds of an item of a LimitRange.
fn check_bounds(item: &Value, kind: &str, requests: &Amounts, limits: &Amounts, violations: &mut Vec<String>) {
    for (name, min) in parse_amounts(item.get("min")) {
        let head = format!("minimum {name} usage per {kind} is {min}");
        match (requests.get(&name), limits.get(&name)) {
            (None, _) => violations.push(format!("{head}.  No request is specified")),
            (Some(request), _) if *request < min => violations.push(format!("{head}, but request is {request}")),
            (_, Some(limit)) if *limit < min => violations.push(format!("{head}, but limit is {limit}")),
            _ => {}
        }
    }
    // Claims have requests only.
    let bounded = if kind == "PersistentVolumeClaim" { "request" } else { "limit" };
    for (name, max) in parse_amounts(item.get("max")) {
        let head = format!("maximum {name} usage per {kind} is {max}");
        match (limits.get(&name), requests.get(&name)) {
            (None, _) => violations.push(format!("{head}.  No {bounded} is specified")),
            (Some(limit), _) if *limit > max => violations.push(format!("{head}, but {bounded} is {limit}")),
            (_, Some(request)) if *request > max => violations.push(format!("{head}, but request is {request}")),
            _ => {}
        }
    }
    for (name, ratio) in parse_amounts(item.get("maxLimitRequestRatio")) {
        let head = format!("{name} max limit to request ratio per {kind} is {ratio}");
        let value = |amounts: &Amounts| amounts.get(&name).map_or(0.0, Quantity::as_f64);
        let (request, limit) = (value(requests), value(limits));
        if request == 0.0 {
            violations.push(format!("{head}, but no request is specified or request is 0"));
        } else if limit == 0.0 {
            violations.push(format!("{head}, but no limit is specified or limit is 0"));
        } else if limit / request > ratio.as_f64() {
            violations.push(format!("{head}, but provided ratio is {:.6}", limit / request));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_set_and_bounds_checked() {
        let range = json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "default": {"cpu": "1"}, "min": {"memory": "1Mi"}}]}});
        let mut pod = json!({"metadata": {}, "spec": {"containers": [{"name": "c"}, {"name": "d", "resources": {"limits": {"cpu": "3"}, "requests": {"cpu": "3", "memory": "1Ki"}}}]}});
        set_container_defaults(&range, &mut pod);
        insta::assert_json_snapshot!(pod);
        insta::assert_json_snapshot!(check_pod(&range, &pod));
    }
}
