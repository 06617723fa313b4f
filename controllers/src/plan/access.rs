//! Unified auth: whom the control plane may impersonate in a member - everybody whose role in the control plane gives
//! access to that member's proxy (or to the fleet-wide one).

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Subject};
use serde_json::{Value, json};

pub const IMPERSONATOR: &str = "karmada-impersonator";

/// Whether a role lets its subjects reach the cluster's proxy. Verbs are not looked at.
pub fn grants_proxy(role: &ClusterRole, cluster: &str) -> bool {
    role.rules.iter().flatten().any(|rule| {
        let named = |names: &[String]| names.is_empty() || names.iter().any(|name| name == cluster);
        let cluster_proxy = covers(rule, "cluster.karmada.io", "clusters/proxy")
            && named(rule.resource_names.as_deref().unwrap_or_default());
        cluster_proxy || covers(rule, "search.karmada.io", "proxying/proxy")
    })
}

fn covers(rule: &PolicyRule, group: &str, resource: &str) -> bool {
    let has = |list: Option<&Vec<String>>, wanted: &str| {
        list.into_iter().flatten().any(|entry| entry == wanted || entry == "*")
    };
    has(rule.api_groups.as_ref(), group) && has(rule.resources.as_ref(), resource)
}

/// The role and its binding that a member gets, with every subject of the roles that grant access.
pub fn plan(
    cluster: &str,
    roles: &[ClusterRole],
    bindings: &[ClusterRoleBinding],
    impersonator_namespace: &str,
) -> (Value, Value) {
    let granting: BTreeSet<&str> = roles
        .iter()
        .filter(|role| grants_proxy(role, cluster))
        .filter_map(|role| role.metadata.name.as_deref())
        .collect();
    let subjects: Vec<&Subject> = bindings
        .iter()
        .filter(|binding| binding.role_ref.kind == "ClusterRole" && granting.contains(binding.role_ref.name.as_str()))
        .flat_map(|binding| binding.subjects.iter().flatten())
        .collect();
    (role(&subjects), binding(impersonator_namespace))
}

fn role(subjects: &[&Subject]) -> Value {
    let names = |kind: &str| -> BTreeSet<&str> {
        subjects.iter().filter(|subject| subject.kind == kind).map(|subject| subject.name.as_str()).collect()
    };
    let rules: Vec<Value> = [("User", "users"), ("ServiceAccount", "serviceaccounts"), ("Group", "groups")]
        .into_iter()
        .map(|(kind, resource)| (resource, names(kind)))
        .filter(|(_, names)| !names.is_empty())
        .map(|(resource, names)| {
            json!({"verbs": ["impersonate"], "apiGroups": [""], "resources": [resource], "resourceNames": names})
        })
        .collect();
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": IMPERSONATOR, "labels": {"karmada.io/system": "true"}},
        "rules": rules,
    })
}

fn binding(namespace: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": IMPERSONATOR, "labels": {"karmada.io/system": "true"}},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": IMPERSONATOR},
        "subjects": [{"kind": "ServiceAccount", "name": IMPERSONATOR, "namespace": namespace}],
    })
}
