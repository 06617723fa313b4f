//! APIServices of the groups that this server serves itself: desired state and plan of changes. Has no side effects.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// Label of APIServices that this server registers: `onstart` for built-in groups, `true` for groups of CRDs.
pub(super) const AUTOMANAGED_LABEL: &str = "kube-aggregator.kubernetes.io/automanaged";

/// `groupPriorityMinimum` of built-in groups, which determines the order of discovery.
const PRIORITIES: &[(&str, i64)] = &[
    ("", 18000),
    ("apps", 17800),
    ("events.k8s.io", 17750),
    ("authentication.k8s.io", 17700),
    ("authorization.k8s.io", 17600),
    ("autoscaling", 17500),
    ("batch", 17400),
    ("certificates.k8s.io", 17300),
    ("networking.k8s.io", 17200),
    ("policy", 17100),
    ("rbac.authorization.k8s.io", 17000),
    ("storage.k8s.io", 16800),
    ("admissionregistration.k8s.io", 16700),
    ("apiextensions.k8s.io", 16700),
    ("scheduling.k8s.io", 16600),
    ("coordination.k8s.io", 16500),
    ("node.k8s.io", 16300),
    ("discovery.k8s.io", 16200),
    ("flowcontrol.apiserver.k8s.io", 16100),
    ("internal.apiserver.k8s.io", 16000),
    ("resource.k8s.io", 15900),
    ("storagemigration.k8s.io", 15800),
];

fn version_priority(group: &str, version: &str) -> i64 {
    match (group, version) {
        ("", _) => 1,
        ("autoscaling", "v2") => 30,
        ("flowcontrol.apiserver.k8s.io", "v1") => 21,
        (_, version) if version.contains("alpha") => 1,
        (_, version) if version.contains("beta") => 9,
        _ => 15,
    }
}

/// Desired APIServices by name for the served groups and versions; `crd_groups` are the groups of CRDs. The group of
/// APIServices itself is not registered.
pub(super) fn desired_services<'a>(
    served: impl Iterator<Item = (&'a str, &'a str)>,
    crd_groups: &BTreeSet<String>,
) -> BTreeMap<String, Value> {
    let mut services = BTreeMap::new();
    for (group, version) in served.filter(|(group, _)| *group != super::service::GROUP) {
        let builtin = PRIORITIES.iter().find(|(name, _)| *name == group);
        let is_crd_group = builtin.is_none() && crd_groups.contains(group);
        let (group_priority, priority, managed) = match builtin {
            Some((_, priority)) => (*priority, version_priority(group, version), "onstart"),
            None => (1000, 100, if is_crd_group { "true" } else { "onstart" }),
        };
        let name = format!("{version}.{group}");
        let mut spec = json!({"version": version, "groupPriorityMinimum": group_priority, "versionPriority": priority});
        if !group.is_empty() {
            spec["group"] = group.into();
        }
        let object = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": name, "labels": {AUTOMANAGED_LABEL: managed}}, "spec": spec,
        });
        services.insert(name, object);
    }
    services
}

/// APIServices to create, restore and delete.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Plan {
    pub create: Vec<Value>,
    /// APIServices whose spec a client has changed, with the desired spec.
    pub restore: Vec<Value>,
    pub delete: Vec<String>,
}

/// Compares the desired APIServices with the existing ones. Only managed ones are changed or deleted. Those of built-in
/// groups are created at the start of the server and not modified later.
pub(super) fn plan(desired: &BTreeMap<String, Value>, existing: &[Value], is_start: bool) -> Plan {
    let name = |object: &Value| object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("").to_owned();
    let names: BTreeSet<String> = existing.iter().map(name).collect();
    let label = |object: &Value| object["metadata"]["labels"][AUTOMANAGED_LABEL].as_str().map(str::to_owned);
    let is_managed = |object: &&Value| label(object).is_some();
    let is_for_crd = |object: &Value| label(object).as_deref() == Some("true");
    let is_missing = |(name, object): &(&String, &Value)| !names.contains(*name) && (is_start || is_for_crd(object));
    let restored = existing.iter().filter(|object| is_for_crd(object)).filter_map(|object| {
        let spec = &desired.get(&name(object))?["spec"];
        (object["spec"] != *spec).then(|| {
            let mut restored = object.clone();
            restored["spec"] = spec.clone();
            restored
        })
    });
    Plan {
        create: desired.iter().filter(is_missing).map(|(_, object)| object.clone()).collect(),
        restore: restored.collect(),
        delete: existing.iter().filter(is_managed).map(name).filter(|name| !desired.contains_key(name)).collect(),
    }
}
