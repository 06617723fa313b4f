//! Kubernetes' RBAC: evaluates the bindings of a user, the rules of their roles, and the reasons of decisions.
//!
//! An [`Rbac`] per cluster is updated with the objects of the four RBAC kinds; the API server authorizes
//! requests with it, the cache determines what a caller may read in a member, and access reviews list who may perform an
//! action ([`access`], [`indirect`]). Decisions and reasons follow kube-apiserver's RBAC authorizer.

pub mod access;
pub mod indirect;
mod reading;
mod removal;
mod rules;
pub mod selectors;
mod subject;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::{Deserialize, Serialize};

pub use reading::{Grant, ReadKind, ReadableNames, ReadableObjects};
pub use removal::{ObjectKind, ObjectName};
pub use rules::{Action, PolicyRule};
pub use subject::{Subject, SubjectKind};

use crate::user::UserInfo;

/// Resources that only RBAC rules name, for example to impersonate users; no API server serves them.
pub const VIRTUAL_RESOURCES: [&str; 5] = ["groups", "signers", "uids", "userextras", "users"];

/// The roles and bindings of one cluster.
#[derive(Debug, Clone, Default)]
pub struct Rbac {
    /// By namespace and name; the namespace of ClusterRoles is empty.
    roles: HashMap<String, HashMap<String, StoredRole>>,
    /// By namespace (empty for ClusterRoleBindings) and name. kube-apiserver visits them in this order, which
    /// determines the reason of a decision.
    bindings: BTreeMap<String, BTreeMap<Box<str>, Binding>>,
    /// Role references of the bindings, each stored once: a cluster has many more bindings than roles.
    role_refs: HashSet<Arc<RoleRef>>,
}

#[derive(Debug, Clone)]
struct Binding {
    role: Arc<RoleRef>,
    subjects: Box<[Subject]>,
}

#[derive(Debug, Clone)]
struct StoredRole {
    rules: Arc<[PolicyRule]>,
    /// `None` for Roles, and for ClusterRoles without labels and selectors.
    aggregation: Option<Arc<Aggregation>>,
}

/// The parts of a ClusterRole that matter for the aggregation of ClusterRoles.
#[derive(Debug, Default)]
struct Aggregation {
    /// Labels by which aggregated ClusterRoles select this one.
    labels: BTreeMap<String, String>,
    /// `aggregationRule`: selectors of the ClusterRoles whose rules this one has; empty for a role with rules of its own.
    selectors: Vec<LabelSelector>,
}

/// Reference of a binding to its role.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleRef {
    pub kind: String,
    pub name: String,
}

/// A stored Role or ClusterRole.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Role {
    #[serde(default)]
    metadata: RoleMetadata,
    #[serde(default)]
    rules: Option<Vec<PolicyRule>>,
    #[serde(default)]
    aggregation_rule: Option<AggregationRule>,
}

#[derive(Debug, Default, Deserialize)]
struct RoleMetadata {
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AggregationRule {
    #[serde(default)]
    cluster_role_selectors: Option<Vec<LabelSelector>>,
}

/// A stored RoleBinding or ClusterRoleBinding.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleBinding {
    #[serde(default)]
    role_ref: RoleRef,
    #[serde(default)]
    subjects: Option<Vec<Subject>>,
}

/// Location of a binding.
#[derive(Clone, Copy)]
struct BindingLocation<'a> {
    namespace: &'a str,
    name: &'a str,
}

/// Decision about an action. RBAC has no deny rules: an action without an allowing rule is denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allowed {
        reason: String,
    },
    /// `reason` names missing roles that are referenced by bindings.
    NoOpinion {
        reason: String,
    },
}

/// Visits a binding of the user, with the rules of its role or the error; returns false to stop.
type BindingVisitor<'v> =
    dyn FnMut(BindingLocation<'_>, &Binding, &Subject, Result<&Arc<[PolicyRule]>, String>) -> bool + 'v;

impl Rbac {
    /// Adds or replaces a role; the namespace of a ClusterRole is empty.
    pub fn put_role(&mut self, namespace: &str, name: &str, role: Role) {
        let labels = role.metadata.labels.unwrap_or_default();
        let selectors = role.aggregation_rule.and_then(|rule| rule.cluster_role_selectors).unwrap_or_default();
        let has_aggregation = namespace.is_empty() && !(labels.is_empty() && selectors.is_empty());
        let aggregation = has_aggregation.then(|| Arc::new(Aggregation { labels, selectors }));
        let role = StoredRole { rules: role.rules.unwrap_or_default().into(), aggregation };
        self.roles.entry(namespace.to_owned()).or_default().insert(name.to_owned(), role);
    }

    pub fn remove_role(&mut self, namespace: &str, name: &str) {
        if let Some(roles) = self.roles.get_mut(namespace) {
            roles.remove(name);
        }
    }

    /// Adds or replaces a binding; the namespace of a ClusterRoleBinding is empty.
    pub fn put_binding(&mut self, namespace: &str, name: &str, binding: RoleBinding) {
        let subjects = binding.subjects.unwrap_or_default().into();
        let binding = Binding { role: self.intern(binding.role_ref), subjects };
        self.bindings.entry(namespace.to_owned()).or_default().insert(name.into(), binding);
    }

    /// The stored reference that equals `role`, which is added if there is none.
    fn intern(&mut self, role: RoleRef) -> Arc<RoleRef> {
        if let Some(stored) = self.role_refs.get(&role) {
            return Arc::clone(stored);
        }
        if self.role_refs.len() == self.role_refs.capacity() {
            // Before the set grows, references of removed bindings are dropped.
            self.role_refs.retain(|stored| Arc::strong_count(stored) > 1);
        }
        let role = Arc::new(role);
        self.role_refs.insert(Arc::clone(&role));
        role
    }

    pub fn remove_binding(&mut self, namespace: &str, name: &str) {
        if let Some(bindings) = self.bindings.get_mut(namespace) {
            bindings.remove(name);
        }
    }

    /// Authorizes one action.
    pub fn authorize(&self, user: &UserInfo, action: &Action) -> Decision {
        let mut missing = Vec::new();
        let mut allowed = None;
        self.visit(user, namespace_of(action), &mut |at, binding, subject, rules| match rules {
            Err(problem) => {
                missing.push(problem);
                true
            }
            Ok(rules) if rules.iter().any(|rule| rule.allows(action)) => {
                allowed = Some(reason(at, binding, subject));
                false
            }
            Ok(_) => true,
        });
        match allowed {
            Some(reason) => Decision::Allowed { reason },
            None if missing.is_empty() => Decision::NoOpinion { reason: String::new() },
            None => Decision::NoOpinion { reason: format!("RBAC: {}", aggregate(&missing)) },
        }
    }

    /// All rules of a user in a namespace (empty: only cluster-wide ones), and the errors.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> (Vec<PolicyRule>, Vec<String>) {
        let mut found = Vec::new();
        let mut missing = Vec::new();
        self.visit(user, namespace, &mut |_, _, _, rules| {
            match rules {
                Ok(rules) => found.extend(rules.iter().cloned()),
                Err(problem) => missing.push(problem),
            }
            true
        });
        (found, missing)
    }

    /// The rules of the role that a binding in `namespace` references.
    pub fn role_rules(&self, role: &RoleRef, namespace: &str) -> Result<&Arc<[PolicyRule]>, String> {
        let found = self.role(role, namespace).map(|role| &role.rules);
        found.ok_or_else(|| match role.kind.as_str() {
            "ClusterRole" => format!("clusterrole.rbac.authorization.k8s.io {:?} not found", role.name),
            _ => format!("role.rbac.authorization.k8s.io {:?} not found", role.name),
        })
    }

    /// The role that a binding in `namespace` references.
    fn role(&self, role: &RoleRef, namespace: &str) -> Option<&StoredRole> {
        self.roles.get(role.namespace(namespace))?.get(&role.name)
    }

    /// Visits the bindings whose subjects include the user; `visitor` returns false to stop.
    fn visit(&self, user: &UserInfo, namespace: &str, visitor: &mut BindingVisitor<'_>) {
        let scopes = if namespace.is_empty() { &[""][..] } else { &["", namespace] };
        for scope in scopes {
            for (name, binding) in self.bindings.get(*scope).into_iter().flatten() {
                let Some(subject) = binding.subjects.iter().find(|s| s.matches_user(user, scope)) else { continue };
                let at = BindingLocation { namespace: scope, name };
                if !visitor(at, binding, subject, self.role_rules(&binding.role, scope)) {
                    return;
                }
            }
        }
    }
}

impl RoleRef {
    /// The namespace of the role, referenced from a binding in `binding_namespace`; empty for ClusterRoles.
    fn namespace<'n>(&self, binding_namespace: &'n str) -> &'n str {
        if self.kind == "ClusterRole" { "" } else { binding_namespace }
    }
}

fn reason(at: BindingLocation<'_>, binding: &Binding, subject: &Subject) -> String {
    let (kind, name) = match at.namespace {
        "" => ("ClusterRoleBinding", at.name.to_owned()),
        namespace => ("RoleBinding", format!("{}/{namespace}", at.name)),
    };
    let role = &binding.role;
    format!("RBAC: allowed by {kind} {name:?} of {} {:?} to {}", role.kind, role.name, subject.describe())
}

fn aggregate(problems: &[String]) -> String {
    match problems {
        [problem] => problem.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

fn namespace_of(action: &Action) -> &str {
    match action {
        Action::Resource { namespace, .. } => namespace,
        Action::Path { .. } => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn snapshot() -> Rbac {
        let mut rbac = Rbac::default();
        let mut role = |namespace, name, rules| {
            let role = serde_json::from_value(json!({"rules": rules})).expect("a role");
            rbac.put_role(namespace, name, role);
        };
        role("", "all", json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]));
        role("a", "read", json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]));
        let mut bind = |namespace, name, kind, role, subjects| {
            let binding = json!({"roleRef": {"kind": kind, "name": role}, "subjects": subjects});
            rbac.put_binding(namespace, name, serde_json::from_value(binding).expect("a binding"));
        };
        bind("", "masters", "ClusterRole", "all", json!([{"kind": "Group", "name": "system:masters"}]));
        let subjects =
            json!([{"kind": "User", "name": "alice"}, {"kind": "ServiceAccount", "name": "sa", "namespace": "a"}]);
        bind("a", "b", "Role", "read", subjects);
        bind("a", "d", "Role", "gone", json!([{"kind": "User", "name": "bob"}]));
        rbac
    }

    fn get(namespace: &str) -> Action {
        Action::Resource {
            verb: "get".into(),
            group: String::new(),
            resource: "configmaps".into(),
            subresource: String::new(),
            namespace: namespace.into(),
            name: "x".into(),
        }
    }

    fn user(name: &str, groups: &[&str]) -> UserInfo {
        UserInfo { name: name.into(), groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..UserInfo::default() }
    }

    #[test]
    fn decisions_name_the_binding() {
        let rbac = snapshot();
        let allowed = |reason: &str| Decision::Allowed { reason: reason.into() };
        let refused = |reason: &str| Decision::NoOpinion { reason: reason.into() };
        let cases = [
            (
                user("alice", &[]),
                "a",
                allowed("RBAC: allowed by RoleBinding \"b/a\" of Role \"read\" to User \"alice\""),
            ),
            (user("alice", &[]), "b", refused("")),
            (user("alice", &[]), "", refused("")),
            (
                user("system:serviceaccount:a:sa", &[]),
                "a",
                allowed("RBAC: allowed by RoleBinding \"b/a\" of Role \"read\" to ServiceAccount \"sa/a\""),
            ),
            (user("system:serviceaccount:b:sa", &[]), "a", refused("")),
            (
                user("root", &["system:masters"]),
                "",
                allowed(
                    "RBAC: allowed by ClusterRoleBinding \"masters\" of ClusterRole \"all\" to Group \"system:masters\"",
                ),
            ),
            (user("bob", &[]), "a", refused("RBAC: role.rbac.authorization.k8s.io \"gone\" not found")),
        ];
        for (user, namespace, expected) in cases {
            assert_eq!(rbac.authorize(&user, &get(namespace)), expected, "{} in {namespace:?}", user.name);
        }
    }

    #[test]
    fn references_to_a_role_are_stored_once_and_dropped_with_their_bindings() {
        let mut rbac = Rbac::default();
        let binding = |role: &str| {
            let binding = json!({"roleRef": {"kind": "ClusterRole", "name": role}});
            serde_json::from_value::<RoleBinding>(binding).expect("a binding")
        };
        for name in ["one", "two"] {
            rbac.put_binding("shop", name, binding("view"));
        }
        assert!(Arc::ptr_eq(&rbac.bindings["shop"]["one"].role, &rbac.bindings["shop"]["two"].role));
        for nth in 0..1000 {
            rbac.put_binding("shop", "changing", binding(&format!("role{nth}")));
        }
        assert!(rbac.role_refs.len() < 20, "{}", rbac.role_refs.len());
        let stored: Vec<&str> = rbac.bindings["shop"].values().map(|binding| binding.role.name.as_str()).collect();
        assert_eq!(stored, ["role999", "view", "view"]);
    }
}
