//! Unified auth: RBAC objects in a member that let the control plane impersonate every subject whose role grants
//! access to that member's proxy or to the fleet-wide proxy.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Subject};
use serde_json::{Value, json};

/// Karmada's name of the ClusterRole, its binding and the ServiceAccount that impersonates.
pub const IMPERSONATOR: &str = "karmada-impersonator";
/// ClusterRole that additionally allows impersonating UID and extra fields. Crowsnest's own, next to Karmada's
/// [`IMPERSONATOR`].
pub const FULL_IMPERSONATOR: &str = "crowsnest-impersonator";

/// True if a ClusterRole grants access to the cluster's proxy or to the fleet-wide proxy. As in Karmada, verbs are
/// ignored.
pub fn grants_proxy(role: &ClusterRole, cluster: &str) -> bool {
    role.rules.iter().flatten().any(|rule| {
        let named = |names: &[String]| names.is_empty() || names.iter().any(|name| name == cluster);
        let cluster_proxy = covers(rule, "cluster.karmada.io", "clusters/proxy")
            && named(rule.resource_names.as_deref().unwrap_or_default());
        cluster_proxy || covers(rule, "search.karmada.io", "proxying/proxy")
    })
}

fn covers(rule: &PolicyRule, group: &str, resource: &str) -> bool {
    let has = |list: Option<&Vec<String>>, value: &str| {
        list.into_iter().flatten().any(|entry| entry == value || entry == "*")
    };
    has(rule.api_groups.as_ref(), group) && has(rule.resources.as_ref(), resource)
}

/// The ClusterRole and ClusterRoleBinding for a member: impersonation of every subject of the roles that grant proxy
/// access.
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
    (role(&subjects), binding(IMPERSONATOR, impersonator_namespace))
}

/// The ClusterRole and ClusterRoleBinding that allow impersonating UID and extra fields. RBAC names the key of an
/// extra field as a subresource and has no wildcard for the subresources of one resource, so the rule covers the
/// API group, which contains nothing else that can be impersonated.
pub fn full_impersonation(impersonator_namespace: &str) -> (Value, Value) {
    let rules = json!([{"verbs": ["impersonate"], "apiGroups": ["authentication.k8s.io"], "resources": ["*"]}]);
    (cluster_role(FULL_IMPERSONATOR, &rules), binding(FULL_IMPERSONATOR, impersonator_namespace))
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
    cluster_role(IMPERSONATOR, &json!(rules))
}

fn cluster_role(name: &str, rules: &Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {"karmada.io/system": "true"}},
        "rules": rules,
    })
}

fn binding(role: &str, namespace: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": role, "labels": {"karmada.io/system": "true"}},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": IMPERSONATOR, "namespace": namespace}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn role_of(name: &str, group: &str, resource: &str, names: &[&str]) -> ClusterRole {
        let rule = json!({"apiGroups": [group], "resources": [resource], "resourceNames": names, "verbs": ["get"]});
        serde_json::from_value(json!({"metadata": {"name": name}, "rules": [rule]})).unwrap()
    }

    fn binding_of(role: &str, kind: &str, subjects: &[(&str, &str)]) -> ClusterRoleBinding {
        let subjects: Vec<Value> =
            subjects.iter().map(|(kind, name)| json!({"kind": kind, "name": name, "namespace": "ops"})).collect();
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role});
        serde_json::from_value(json!({"metadata": {"name": "b"}, "roleRef": role, "subjects": subjects})).unwrap()
    }

    #[rstest]
    #[case("cluster.karmada.io", "clusters/proxy", &[], true)]
    #[case("cluster.karmada.io", "clusters/proxy", &["m1"], true)]
    #[case("cluster.karmada.io", "clusters/proxy", &["m2"], false)]
    #[case("cluster.karmada.io", "clusters", &[], false)]
    #[case("cluster.karmada.io", "*", &[], true)]
    #[case("cluster.karmada.io", "*/proxy", &[], false)]
    #[case("*", "*", &[], true)]
    #[case("*", "pods", &[], false)]
    #[case("search.karmada.io", "proxying/proxy", &[], true)]
    #[case("search.karmada.io", "proxying/proxy", &["m2"], true)]
    #[case("search.karmada.io", "proxying", &[], false)]
    fn roles_that_grant_proxy_access(
        #[case] group: &str,
        #[case] resource: &str,
        #[case] names: &[&str],
        #[case] expected: bool,
    ) {
        assert_eq!(grants_proxy(&role_of("r", group, resource, names), "m1"), expected);
    }

    #[test]
    fn subjects_with_proxy_access_can_be_impersonated() {
        let roles = [
            role_of("cluster-admin", "*", "*", &[]),
            role_of("proxy-m1", "cluster.karmada.io", "clusters/proxy", &["m1"]),
            role_of("proxy-m2", "cluster.karmada.io", "clusters/proxy", &["m2"]),
        ];
        let bindings = [
            binding_of("cluster-admin", "ClusterRole", &[("Group", "system:masters")]),
            binding_of("proxy-m1", "ClusterRole", &[("User", "zoe"), ("User", "alice"), ("ServiceAccount", "robot")]),
            binding_of("proxy-m1", "ClusterRole", &[("User", "alice"), ("Group", "dev")]),
            binding_of("proxy-m2", "ClusterRole", &[("User", "bob")]),
            binding_of("proxy-m1", "Role", &[("User", "carol")]),
        ];
        insta::assert_yaml_snapshot!("granted_subjects", plan("m1", &roles, &bindings, "karmada-cluster"));
    }

    #[test]
    fn no_subject_can_be_impersonated_without_proxy_access() {
        insta::assert_yaml_snapshot!("no_subjects", plan("m1", &[], &[], "karmada-cluster"));
    }

    #[test]
    fn uid_and_extra_are_granted_by_a_separate_role() {
        insta::assert_yaml_snapshot!("whole", full_impersonation("karmada-cluster"));
    }
}
