//! The RBAC authorizer: an immutable snapshot of roles and bindings that decides and says why.
//!
//! Written anew by whoever watches the four RBAC kinds; read by the authorisation layer, access reviews and escalation checks.
//! Decisions and their reasons follow kube-apiserver's RBAC authorizer.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::rules::{Action, PolicyRule};
use crate::registry::strategy::UserInfo;

/// A snapshot of one cluster's RBAC objects.
#[derive(Debug, Default)]
pub struct Rbac {
    cluster_roles: HashMap<String, Arc<[PolicyRule]>>,
    /// By namespace and name.
    roles: HashMap<(String, String), Arc<[PolicyRule]>>,
    cluster_bindings: Vec<Binding>,
    bindings: HashMap<String, Vec<Binding>>,
}

#[derive(Debug, Clone)]
struct Binding {
    name: String,
    /// Empty for ClusterRoleBindings.
    namespace: String,
    role: RoleRef,
    subjects: Vec<Subject>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleRef {
    pub kind: String,
    pub name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Subject {
    kind: String,
    name: String,
    namespace: String,
}

/// What RBAC says of an action. There is no deny: what no rule allows is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allowed {
        reason: String,
    },
    /// `reason` names roles that bindings refer to and that do not exist.
    NoOpinion {
        reason: String,
    },
}

impl Rbac {
    /// Builds the snapshot from whole objects. Objects that can't be read grant nothing.
    pub fn new<'a>(
        cluster_roles: impl IntoIterator<Item = &'a Value>,
        roles: impl IntoIterator<Item = &'a Value>,
        cluster_role_bindings: impl IntoIterator<Item = &'a Value>,
        role_bindings: impl IntoIterator<Item = &'a Value>,
    ) -> Self {
        let mut rbac = Self::default();
        for role in cluster_roles {
            rbac.cluster_roles.insert(text(role, "/metadata/name"), rules(role));
        }
        for role in roles {
            rbac.roles.insert((text(role, "/metadata/namespace"), text(role, "/metadata/name")), rules(role));
        }
        rbac.cluster_bindings = cluster_role_bindings.into_iter().map(binding).collect();
        // kube-apiserver walks bindings in storage order, which decides the reason that is printed.
        rbac.cluster_bindings.sort_by(|a, b| a.name.cmp(&b.name));
        for object in role_bindings {
            let binding = binding(object);
            rbac.bindings.entry(binding.namespace.clone()).or_default().push(binding);
        }
        for bindings in rbac.bindings.values_mut() {
            bindings.sort_by(|a, b| a.name.cmp(&b.name));
        }
        rbac
    }

    /// Decides one action.
    pub fn authorize(&self, user: &UserInfo, action: &Action) -> Decision {
        let mut missing = Vec::new();
        let mut allowed = None;
        self.visit(user, namespace_of(action), &mut |binding, subject, rules| match rules {
            Err(problem) => {
                missing.push(problem);
                true
            }
            Ok(rules) if rules.iter().any(|rule| rule.allows(action)) => {
                allowed = Some(reason(binding, subject));
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

    /// All rules a user has in a namespace (empty: only cluster-wide ones), and what could not be resolved.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> (Vec<PolicyRule>, Vec<String>) {
        let mut found = Vec::new();
        let mut missing = Vec::new();
        self.visit(user, namespace, &mut |_, _, rules| {
            match rules {
                Ok(rules) => found.extend(rules.iter().cloned()),
                Err(problem) => missing.push(problem),
            }
            true
        });
        (found, missing)
    }

    /// The rules of the role a binding in `namespace` refers to.
    pub fn role_rules(&self, role: &RoleRef, namespace: &str) -> Result<&Arc<[PolicyRule]>, String> {
        let found = match role.kind.as_str() {
            "ClusterRole" => self.cluster_roles.get(&role.name),
            _ => self.roles.get(&(namespace.to_owned(), role.name.clone())),
        };
        found.ok_or_else(|| match role.kind.as_str() {
            "ClusterRole" => format!("clusterrole.rbac.authorization.k8s.io {:?} not found", role.name),
            _ => format!("role.rbac.authorization.k8s.io {:?} not found", role.name),
        })
    }

    /// Walks the bindings that name `user`; `see` returns false to stop.
    fn visit(
        &self,
        user: &UserInfo,
        namespace: &str,
        see: &mut dyn FnMut(&Binding, &Subject, Result<&[PolicyRule], String>) -> bool,
    ) {
        let local = self.bindings.get(namespace).filter(|_| !namespace.is_empty());
        for binding in self.cluster_bindings.iter().chain(local.into_iter().flatten()) {
            let Some(subject) = binding.subjects.iter().find(|s| s.is(user, &binding.namespace)) else { continue };
            let rules = self.role_rules(&binding.role, &binding.namespace).map(AsRef::as_ref);
            if !see(binding, subject, rules) {
                return;
            }
        }
    }
}

impl Subject {
    fn is(&self, user: &UserInfo, binding_namespace: &str) -> bool {
        match self.kind.as_str() {
            "User" => user.name == self.name,
            "Group" => user.groups.contains(&self.name),
            "ServiceAccount" => {
                let namespace = if self.namespace.is_empty() { binding_namespace } else { &self.namespace };
                let account = user.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
                !namespace.is_empty() && account == Some((namespace, self.name.as_str()))
            }
            _ => false,
        }
    }

    fn describe(&self) -> String {
        match self.kind.as_str() {
            "ServiceAccount" => format!("ServiceAccount {:?}", format!("{}/{}", self.name, self.namespace)),
            kind => format!("{kind} {:?}", self.name),
        }
    }
}

fn reason(binding: &Binding, subject: &Subject) -> String {
    let (kind, name) = match binding.namespace.as_str() {
        "" => ("ClusterRoleBinding", binding.name.clone()),
        namespace => ("RoleBinding", format!("{}/{namespace}", binding.name)),
    };
    let role = &binding.role;
    format!("RBAC: allowed by {kind} {name:?} of {} {:?} to {}", role.kind, role.name, subject.describe())
}

fn aggregate(problems: &[String]) -> String {
    match problems {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

fn namespace_of(action: &Action) -> &str {
    match action {
        Action::Resource { namespace, .. } => namespace,
        Action::Path { .. } => "",
    }
}

fn text(object: &Value, pointer: &str) -> String {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn rules(role: &Value) -> Arc<[PolicyRule]> {
    let rules = role.get("rules").and_then(Value::as_array);
    rules.into_iter().flatten().filter_map(|rule| PolicyRule::deserialize(rule).ok()).collect()
}

fn binding(object: &Value) -> Binding {
    let subjects = object.get("subjects").and_then(Value::as_array);
    Binding {
        name: text(object, "/metadata/name"),
        namespace: text(object, "/metadata/namespace"),
        role: object.get("roleRef").and_then(|r| RoleRef::deserialize(r).ok()).unwrap_or_default(),
        subjects: subjects.into_iter().flatten().filter_map(|s| Subject::deserialize(s).ok()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn snapshot() -> Rbac {
        let all =
            json!({"metadata": {"name": "all"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
        let read = json!({"metadata": {"name": "read", "namespace": "a"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]});
        let masters = json!({"metadata": {"name": "masters"}, "roleRef": {"kind": "ClusterRole", "name": "all"}, "subjects": [{"kind": "Group", "name": "system:masters"}]});
        let bound = json!({"metadata": {"name": "b", "namespace": "a"}, "roleRef": {"kind": "Role", "name": "read"},
            "subjects": [{"kind": "User", "name": "alice"}, {"kind": "ServiceAccount", "name": "sa", "namespace": "a"}]});
        let dangling = json!({"metadata": {"name": "d", "namespace": "a"}, "roleRef": {"kind": "Role", "name": "gone"}, "subjects": [{"kind": "User", "name": "bob"}]});
        Rbac::new([&all], [&read], [&masters], [&bound, &dangling])
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
    fn decisions_say_why() {
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
}
