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

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// The admission plugin.
pub struct LimitRanger(pub Weak<Registry>);

impl LimitRanger {
    fn ranges(&self, namespace: &str) -> Vec<Value> {
        let Some(registry) = self.0.upgrade() else { return Vec::new() };
        registry.store.objects(&ResourceKey::new("", "limitranges"), namespace)
    }
}

/// True for writes that LimitRanges apply to: pods on create, claims also on update, when they are expanded.
fn limited(a: &Attributes<'_>) -> bool {
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
            && limited(a)
            && &*a.resource.gvr.resource == "pods"
        {
            for range in self.ranges(&a.ctx.namespace) {
                fill(&range, object);
            }
        }
        Ok(())
    }

    async fn validate(&self, Validation { attributes: a, object, .. }: Validation<'_>) -> ApiResult<()> {
        let Some(object) = object.filter(|_| limited(a)) else { return Ok(()) };
        for range in self.ranges(&a.ctx.namespace) {
            let mut violations = match &*a.resource.gvr.resource {
                "pods" => check_pod(&range, object),
                _ => check_claim(&range, object),
            };
            // Violations of several containers with the same message are reported once.
            let mut seen = BTreeSet::new();
            violations.retain(|violation| seen.insert(violation.clone()));
            let why = match violations.as_slice() {
                [] => continue,
                [one] => one.clone(),
                many => format!("[{}]", many.join(", ")),
            };
            return Err(ApiError::forbidden("", &a.resource.gvr.resource, a.name, why));
        }
        Ok(())
    }
}

type Amounts = BTreeMap<String, Quantity>;

pub(crate) fn amounts(list: Option<&Value>) -> Amounts {
    let entries = list.and_then(Value::as_object).into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), parse(value)?))).collect()
}

pub(super) fn parse(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Quantity::parse(text).ok(),
        Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
        _ => None,
    }
}

/// `default` and `defaultRequest` for containers, completed from `max` and `min`.
fn defaults(range: &Value) -> (Map<String, Value>, Map<String, Value>) {
    let (mut limits, mut requests) = (Map::new(), Map::new());
    // Quantities keep their notation.
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
fn fill(range: &Value, pod: &mut Value) {
    let (limits, requests) = defaults(range);
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    let mut notes = Vec::new();
    for (list, word) in [("containers", "container"), ("initContainers", "init container")] {
        let Some(containers) = pod.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut) else {
            continue;
        };
        for container in containers {
            let name = container["name"].as_str().unwrap_or("").to_owned();
            for (kind, wanted) in [("requests", &requests), ("limits", &limits)] {
                let set = merge(container, kind, wanted);
                if !set.is_empty() {
                    notes.push(format!("{} {} for {word} {name}", set.join(", "), kind.trim_end_matches('s')));
                }
            }
        }
    }
    if !notes.is_empty() {
        let annotations = &mut pod["metadata"]["annotations"];
        if !annotations.is_object() {
            *annotations = json!({});
        }
        annotations[ANNOTATION] = json!(format!("LimitRanger plugin set: {}", notes.join("; ")));
    }
}

fn merge(container: &mut Value, kind: &str, wanted: &Map<String, Value>) -> Vec<String> {
    let mut set = Vec::new();
    // The limit of a container is the default of its request (defaulting of the kind itself).
    let own_limits = container.pointer("/resources/limits").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut current: Map<String, Value> =
        container.pointer(&format!("/resources/{kind}")).and_then(Value::as_object).cloned().unwrap_or_default();
    for (name, amount) in wanted {
        if current.contains_key(name) || (kind == "requests" && own_limits.contains_key(name)) {
            continue;
        }
        current.insert(name.clone(), amount.clone());
        set.push(name.clone());
    }
    if !set.is_empty() {
        container["resources"][kind] = Value::Object(current);
    }
    set
}

fn check_pod(range: &Value, pod: &Value) -> Vec<String> {
    let mut violations = Vec::new();
    let containers = |list: &str| pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array).into_iter().flatten();
    let of = |container: &Value, kind: &str| amounts(container.pointer(&format!("/resources/{kind}")));
    for item in range.pointer("/spec/limits").and_then(Value::as_array).into_iter().flatten() {
        match item["type"].as_str().unwrap_or("") {
            "Container" => {
                for container in containers("containers").chain(containers("initContainers")) {
                    bounds(item, "Container", &of(container, "requests"), &of(container, "limits"), &mut violations);
                }
            }
            "Pod" => {
                let total = |kind: &str| {
                    let mut sum = Amounts::new();
                    for container in containers("containers") {
                        add(&mut sum, &of(container, kind));
                    }
                    for container in containers("initContainers") {
                        for (name, amount) in of(container, kind) {
                            let slot = sum.entry(name).or_insert_with(|| amount);
                            *slot = (*slot).max(amount);
                        }
                    }
                    sum
                };
                bounds(item, "Pod", &total("requests"), &total("limits"), &mut violations);
            }
            _ => {}
        }
    }
    violations
}

fn check_claim(range: &Value, claim: &Value) -> Vec<String> {
    let mut violations = Vec::new();
    let requests = amounts(claim.pointer("/spec/resources/requests"));
    for item in range.pointer("/spec/limits").and_then(Value::as_array).into_iter().flatten() {
        if item["type"] == "PersistentVolumeClaim" {
            bounds(item, "PersistentVolumeClaim", &requests, &requests, &mut violations);
        }
    }
    violations
}

pub(crate) fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        match sum.get_mut(name) {
            Some(total) => *total += *amount,
            None => {
                sum.insert(name.clone(), *amount);
            }
        }
    }
}

fn bounds(item: &Value, kind: &str, requests: &Amounts, limits: &Amounts, violations: &mut Vec<String>) {
    for (name, min) in amounts(item.get("min")) {
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
    for (name, max) in amounts(item.get("max")) {
        let head = format!("maximum {name} usage per {kind} is {max}");
        match (limits.get(&name), requests.get(&name)) {
            (None, _) => violations.push(format!("{head}.  No {bounded} is specified")),
            (Some(limit), _) if *limit > max => violations.push(format!("{head}, but {bounded} is {limit}")),
            (_, Some(request)) if *request > max => violations.push(format!("{head}, but request is {request}")),
            _ => {}
        }
    }
    for (name, ratio) in amounts(item.get("maxLimitRequestRatio")) {
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
    fn fills_and_checks() {
        let range = json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "default": {"cpu": "1"}, "min": {"memory": "1Mi"}}]}});
        let mut pod = json!({"metadata": {}, "spec": {"containers": [{"name": "c"}, {"name": "d", "resources": {"limits": {"cpu": "3"}, "requests": {"cpu": "3", "memory": "1Ki"}}}]}});
        fill(&range, &mut pod);
        insta::assert_json_snapshot!(pod);
        insta::assert_json_snapshot!(check_pod(&range, &pod));
    }
}
