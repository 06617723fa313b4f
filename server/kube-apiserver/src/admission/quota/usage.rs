//! Usage of objects in terms of quotas, and scopes of quotas. Has no side effects; used by admission and by the quota
//! controller.

use crowsnest_apimachinery::quantity::{Format, Quantity};
use serde_json::Value;

pub(crate) use crate::admission::limits::Amounts;
use crate::admission::limits::{add_amounts, parse_amounts};

/// True if an object is in all scopes of a quota. Only pods and, by class, claims have scopes.
pub(crate) fn is_in_scope(quota: &Value, group: &str, resource: &str, object: &Value) -> bool {
    let scopes =
        quota.pointer("/spec/scopes").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let selector = quota.pointer("/spec/scopeSelector/matchExpressions").and_then(Value::as_array);
    let expressions: Vec<(&str, &str, Vec<&str>)> = scopes
        .map(|scope| (scope, "Exists", Vec::new()))
        .chain(selector.into_iter().flatten().map(|e| {
            let values = e["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            (e["scopeName"].as_str().unwrap_or(""), e["operator"].as_str().unwrap_or("Exists"), values)
        }))
        .collect();
    if expressions.is_empty() {
        return true;
    }
    let matches = match (group, resource) {
        ("", "pods") => pod_scope_matches,
        ("", "persistentvolumeclaims") => claim_scope_matches,
        _ => return false,
    };
    expressions.iter().all(|(scope, operator, values)| matches(scope, operator, values, object))
}

fn pod_scope_matches(scope: &str, operator: &str, values: &[&str], pod: &Value) -> bool {
    let is_terminating = pod.pointer("/spec/activeDeadlineSeconds").and_then(Value::as_i64).is_some_and(|s| s >= 0);
    match scope {
        "Terminating" => is_terminating,
        "NotTerminating" => !is_terminating,
        "BestEffort" => is_best_effort(pod),
        "NotBestEffort" => !is_best_effort(pod),
        "PriorityClass" => class_matches(operator, values, pod.pointer("/spec/priorityClassName")),
        "CrossNamespacePodAffinity" => has_cross_namespace_affinity(pod),
        _ => false,
    }
}

/// Claims support only the scope `VolumeAttributesClass`.
fn claim_scope_matches(scope: &str, operator: &str, values: &[&str], claim: &Value) -> bool {
    scope == "VolumeAttributesClass"
        && class_matches(operator, values, claim.pointer("/spec/volumeAttributesClassName"))
}

fn class_matches(operator: &str, values: &[&str], class: Option<&Value>) -> bool {
    let class = class.and_then(Value::as_str).unwrap_or("");
    match operator {
        "In" => values.contains(&class),
        "NotIn" => !values.contains(&class),
        "DoesNotExist" => class.is_empty(),
        _ => !class.is_empty(),
    }
}

pub(super) fn containers<'a>(pod: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array).into_iter().flatten()
}

/// True if no container and no pod-level resource requests cpu or memory.
fn is_best_effort(pod: &Value) -> bool {
    let has_requests = |resources: Option<&Value>| {
        ["requests", "limits"].iter().any(|kind| {
            let requested = parse_amounts(resources.and_then(|resources| resources.get(*kind)));
            ["cpu", "memory"].iter().any(|name| requested.get(*name).is_some_and(|amount| amount.sign() > 0))
        })
    };
    let mut all_containers = containers(pod, "containers").chain(containers(pod, "initContainers"));
    !has_requests(pod.pointer("/spec/resources"))
        && !all_containers.any(|container| has_requests(container.get("resources")))
}

/// True if a term of the pod's affinities refers to other namespaces.
fn has_cross_namespace_affinity(pod: &Value) -> bool {
    let terms = |affinity: &str, list: &str| {
        let terms = pod.pointer(&format!("/spec/affinity/{affinity}/{list}DuringSchedulingIgnoredDuringExecution"));
        terms.and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let is_cross_namespace = |term: &Value| {
        let has_namespaces = term.get("namespaces").and_then(Value::as_array).is_some_and(|names| !names.is_empty());
        has_namespaces || term.get("namespaceSelector").is_some_and(|selector| !selector.is_null())
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|affinity| {
        terms(affinity, "required").iter().any(is_cross_namespace)
            || terms(affinity, "preferred").iter().any(|weighted| is_cross_namespace(&weighted["podAffinityTerm"]))
    })
}

/// Usage of one object by quota resource name.
pub(crate) fn usage(group: &str, resource: &str, object: &Value) -> Amounts {
    let one_object = || Quantity::new(1, Format::DecimalSI);
    let mut used = Amounts::new();
    let count_name = if group.is_empty() { format!("count/{resource}") } else { format!("count/{resource}.{group}") };
    used.insert(count_name, one_object());
    if !group.is_empty() {
        return used;
    }
    match resource {
        "pods" => {
            let phase = object.pointer("/status/phase").and_then(Value::as_str).unwrap_or("");
            if !matches!(phase, "Succeeded" | "Failed") {
                used.extend(pod_usage(object));
            }
        }
        "services" => service_usage(object, &mut used),
        "persistentvolumeclaims" => claim_usage(object, &mut used),
        "configmaps" | "secrets" | "replicationcontrollers" | "resourcequotas" => {
            used.insert(resource.to_owned(), one_object());
        }
        _ => {}
    }
    used
}

/// Usage of a pod as the scheduler computes it: the resources of concurrent containers are added.
fn pod_usage(pod: &Value) -> Amounts {
    let mut used = Amounts::from([("pods".to_owned(), Quantity::new(1, Format::DecimalSI))]);
    for kind in ["requests", "limits"] {
        for (name, amount) in pod_resources(pod, kind) {
            let has_short_name =
                matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") || is_huge_page_resource(&name);
            if kind == "requests" && has_short_name {
                used.insert(name.clone(), amount);
            }
            used.insert(format!("{kind}.{name}"), amount);
        }
    }
    used
}

fn is_huge_page_resource(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// The `requests` or `limits` of a pod, as computed by `PodRequests` and `PodLimits` of Kubernetes' resource helpers.
fn pod_resources(pod: &Value, kind: &str) -> Amounts {
    let resources = |container: &Value| parse_amounts(container.pointer(&format!("/resources/{kind}")));
    let raise_to = |amounts: &mut Amounts, minimums: &Amounts| {
        for (name, minimum) in minimums {
            let amount = amounts.entry(name.clone()).or_insert(*minimum);
            *amount = (*amount).max(*minimum);
        }
    };
    let mut sum = Amounts::new();
    containers(pod, "containers").for_each(|container| add_amounts(&mut sum, &resources(container)));
    // Sidecars keep running; other init containers run one at a time, next to the sidecars that precede them.
    let (mut sidecars, mut max_during_start) = (Amounts::new(), Amounts::new());
    for container in containers(pod, "initContainers") {
        let container_resources = resources(container);
        let mut concurrent = sidecars.clone();
        add_amounts(&mut concurrent, &container_resources);
        if container["restartPolicy"] == "Always" {
            add_amounts(&mut sum, &container_resources);
            sidecars.clone_from(&concurrent);
        }
        raise_to(&mut max_during_start, &concurrent);
    }
    raise_to(&mut sum, &max_during_start);
    for (name, amount) in parse_amounts(pod.pointer(&format!("/spec/resources/{kind}"))) {
        if matches!(name.as_str(), "cpu" | "memory") || is_huge_page_resource(&name) {
            sum.insert(name, amount);
        }
    }
    // The overhead is added to a limit only if there is one.
    let mut overhead = parse_amounts(pod.pointer("/spec/overhead"));
    overhead.retain(|name, _| kind == "requests" || sum.contains_key(name));
    add_amounts(&mut sum, &overhead);
    sum
}

fn service_usage(service: &Value, used: &mut Amounts) {
    let count = |n: usize| Quantity::new(i64::try_from(n).unwrap_or(i64::MAX), Format::DecimalSI);
    let kind = service.pointer("/spec/type").and_then(Value::as_str).unwrap_or("ClusterIP");
    let ports = service.pointer("/spec/ports").and_then(Value::as_array).map_or(0, Vec::len);
    let allocates_node_ports = service.pointer("/spec/allocateLoadBalancerNodePorts") != Some(&Value::Bool(false));
    let node_ports = if kind == "NodePort" || (kind == "LoadBalancer" && allocates_node_ports) { ports } else { 0 };
    used.insert("services".into(), count(1));
    used.insert("services.nodeports".into(), count(node_ports));
    used.insert("services.loadbalancers".into(), count(usize::from(kind == "LoadBalancer")));
}

fn claim_usage(claim: &Value, used: &mut Amounts) {
    let one_claim = Quantity::new(1, Format::DecimalSI);
    let class = claim.pointer("/spec/storageClassName").and_then(Value::as_str).unwrap_or("");
    used.insert("persistentvolumeclaims".into(), one_claim);
    let storage = parse_amounts(claim.pointer("/spec/resources/requests")).remove("storage");
    if !class.is_empty() {
        used.insert(format!("{class}.storageclass.storage.k8s.io/persistentvolumeclaims"), one_claim);
        if let Some(storage) = &storage {
            used.insert(format!("{class}.storageclass.storage.k8s.io/requests.storage"), *storage);
        }
    }
    used.extend(storage.map(|amount| ("requests.storage".to_owned(), amount)));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with_cpu_request(cpu: &str) -> Value {
        json!({"resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}})
    }

    fn sidecar(cpu: &str) -> Value {
        let mut container = with_cpu_request(cpu);
        container["restartPolicy"] = "Always".into();
        container
    }

    #[test]
    fn resources_of_concurrent_containers_are_added() {
        // Name, pod spec, requests and limits of cpu.
        let cases = [
            (
                "init containers run before the containers",
                json!({"containers": [with_cpu_request("1"), with_cpu_request("2")], "initContainers": [with_cpu_request("5")]}),
                "5",
                Some("5"),
            ),
            (
                "sidecars keep running",
                json!({"containers": [with_cpu_request("1")], "initContainers": [sidecar("2")]}),
                "3",
                Some("3"),
            ),
            (
                "init containers run next to the preceding sidecars",
                json!({"containers": [with_cpu_request("1")], "initContainers": [with_cpu_request("4"), sidecar("2"), with_cpu_request("3")]}),
                "5",
                Some("5"),
            ),
            (
                "pod-level resources replace the sum",
                json!({"containers": [with_cpu_request("1")], "resources": {"requests": {"cpu": "7"}, "limits": {"cpu": "8"}}}),
                "7",
                Some("8"),
            ),
            (
                "overhead is added to requests and existing limits",
                json!({"containers": [{"resources": {"requests": {"cpu": "1"}}}], "overhead": {"cpu": "250m"}}),
                "1250m",
                None,
            ),
        ];
        for (case, spec, requests, limits) in cases {
            let used = usage("", "pods", &json!({"spec": spec}));
            let amount = |name: &str| used.get(name).map(ToString::to_string);
            assert_eq!(amount("requests.cpu").as_deref(), Some(requests), "{case}");
            assert_eq!(amount("cpu"), amount("requests.cpu"), "{case}");
            assert_eq!(amount("limits.cpu").as_deref(), limits, "{case}");
        }
    }

    #[test]
    fn scopes_match_pods_and_claims() {
        let cross_namespace = json!({"spec": {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "namespaceSelector": {}}}]}}}});
        let same_namespace = json!({"spec": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "zone"}]}}}});
        let sidecar = json!({"spec": {"containers": [{}], "initContainers": [with_cpu_request("1")]}});
        let claim = json!({"spec": {"volumeAttributesClassName": "gold"}});
        let gold = json!([{"scopeName": "VolumeAttributesClass", "operator": "In", "values": ["gold"]}]);
        let exists = |scope: &str| json!([{"scopeName": scope, "operator": "Exists"}]);
        let cases = [
            ("pods", &cross_namespace, exists("CrossNamespacePodAffinity"), true),
            ("pods", &same_namespace, exists("CrossNamespacePodAffinity"), false),
            ("pods", &same_namespace, exists("BestEffort"), true),
            ("pods", &sidecar, exists("BestEffort"), false),
            ("pods", &sidecar, exists("NotTerminating"), true),
            ("persistentvolumeclaims", &claim, gold.clone(), true),
            ("persistentvolumeclaims", &claim, exists("BestEffort"), false),
            ("pods", &claim, gold, false),
            ("services", &claim, exists("NotTerminating"), false),
        ];
        for (resource, object, expressions, expected) in cases {
            let quota = json!({"spec": {"scopeSelector": {"matchExpressions": expressions}}});
            assert_eq!(is_in_scope(&quota, "", resource, object), expected, "{resource} {quota}");
        }
    }
}
