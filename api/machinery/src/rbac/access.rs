//! Subjects that may perform an action, with the proof: the binding, its role and the rule. The inverse of
//! [`Rbac::authorize`].
//!
//! Only RBAC objects that the caller may list count, so that the result reveals no others.

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use super::{Action, Binding, ObjectKind, PolicyRule, Rbac, RoleRef, Subject};
use crate::user::UserInfo;

/// Namespaces in which access is evaluated. ClusterRoleBindings apply in all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// These namespaces. If there are none, only ClusterRoleBindings apply, as for cluster-scoped requests and lists
    /// over all namespaces.
    Namespaces(BTreeSet<String>),
    /// All namespaces, each evaluated separately.
    All,
}

/// The RBAC objects of a cluster that the caller may list.
#[derive(Clone, Copy)]
pub struct VisibleRbac<'r> {
    pub rbac: &'r Rbac,
    /// True if the caller may list the object with this kind, namespace and name.
    pub is_visible: &'r (dyn Fn(ObjectKind, &str, &str) -> bool + Sync),
}

/// A binding and the role that it references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoleBinding<'r> {
    /// Namespace in which the permissions apply; empty for a ClusterRoleBinding, whose permissions apply in all namespaces.
    pub namespace: &'r str,
    pub name: &'r str,
    pub role: &'r RoleRef,
}

/// A subject that may perform an action, with the objects that allow it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof<'r> {
    pub subject: Subject,
    pub binding: RoleBinding<'r>,
    /// The first rule of the role that allows the action.
    pub rule: &'r PolicyRule,
}

/// Proofs in the order of bindings and their subjects, and the bindings that could not be evaluated.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AccessProofs<'r> {
    pub proofs: Vec<Proof<'r>>,
    /// Bindings whose role does not exist; they grant nothing.
    pub missing_roles: Vec<RoleBinding<'r>>,
}

/// A role that a binding grants to a user, and the subject by which the binding names the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundRole<'r> {
    pub subject: Subject,
    pub binding: RoleBinding<'r>,
    pub rules: &'r [PolicyRule],
}

/// A binding with its namespace and name.
type NamedBinding<'r> = (&'r str, &'r str, &'r Binding);

/// Result of evaluating a role for an action.
#[derive(Clone, Copy)]
enum Evaluation<'r> {
    Allows(&'r PolicyRule),
    NoMatch,
    Missing,
}

impl Scope {
    /// The cluster scope.
    pub fn cluster() -> Self {
        Self::Namespaces(BTreeSet::new())
    }

    /// One namespace, or the cluster scope if it is empty.
    pub fn from_namespace(namespace: &str) -> Self {
        Self::Namespaces(Some(namespace.to_owned()).filter(|name| !name.is_empty()).into_iter().collect())
    }

    /// True if the scope is that of a single request: one namespace, or the cluster scope.
    pub fn is_single(&self) -> bool {
        matches!(self, Self::Namespaces(namespaces) if namespaces.len() <= 1)
    }
}

impl<'r> VisibleRbac<'r> {
    /// All subjects that may perform an action in the scope because of a visible binding. The action's namespace is not
    /// used. Members of `system:masters` need no binding, so they are not included.
    pub fn who_can(&self, action: &Action, scope: &Scope) -> AccessProofs<'r> {
        let mut roles = HashMap::new();
        let mut result = AccessProofs::default();
        let cluster = Scope::cluster();
        let scope = if matches!(action, Action::Path { .. }) { &cluster } else { scope };
        for (namespace, name, binding) in self.bindings(scope) {
            let key = (binding.role.namespace(namespace), binding.role.name.as_str());
            let evaluation = *roles.entry(key).or_insert_with(|| self.evaluate(&binding.role, namespace, action));
            if matches!(evaluation, Evaluation::NoMatch) || !self.is_binding_visible(namespace, name, &binding.role) {
                continue;
            }
            let role_binding = RoleBinding { namespace, name, role: &binding.role };
            match evaluation {
                Evaluation::NoMatch => {}
                Evaluation::Missing => result.missing_roles.push(role_binding),
                Evaluation::Allows(rule) => {
                    let resolved = binding.subjects.iter().filter_map(|subject| subject.resolve(namespace));
                    let proof = |subject| Proof { subject, binding: role_binding, rule };
                    result.proofs.extend(resolved.map(proof));
                }
            }
        }
        result
    }

    /// The roles of a user in the scope, in the order of their bindings, and the bindings of the user whose role is
    /// missing.
    pub fn roles_of(&self, user: &UserInfo, scope: &Scope) -> (Vec<BoundRole<'r>>, Vec<RoleBinding<'r>>) {
        let (mut roles, mut missing) = (Vec::new(), Vec::new());
        for (namespace, name, binding) in self.bindings(scope) {
            let Some(subject) = binding.subjects.iter().find(|subject| subject.matches_user(user, namespace)) else {
                continue;
            };
            if !self.is_binding_visible(namespace, name, &binding.role) {
                continue;
            }
            let (Some(subject), role) = (subject.resolve(namespace), &*binding.role) else { continue };
            let binding = RoleBinding { namespace, name, role };
            match self.rbac.role(role, namespace) {
                Some(found) => roles.push(BoundRole { subject, binding, rules: &found.rules }),
                None => missing.push(binding),
            }
        }
        (roles, missing)
    }

    /// Names of the visible ClusterRoles that contribute a rule to an aggregated ClusterRole.
    pub fn sources(&self, role: &RoleRef, rule: &PolicyRule) -> Vec<&'r str> {
        if role.kind != "ClusterRole" {
            return Vec::new();
        }
        let mut sources = self.rbac.sources(&role.name, rule);
        sources.retain(|name| (self.is_visible)(ObjectKind::ClusterRole, "", name));
        sources
    }

    /// The `resourceNames` of rules with one of the verbs on a resource, in visible ClusterRoles and in visible Roles of
    /// the namespace (empty: ClusterRoles only).
    pub(super) fn names_in_rules(
        &self,
        namespace: &str,
        verbs: &[&str],
        group: &str,
        resource: &str,
    ) -> BTreeSet<&'r str> {
        let VisibleRbac { rbac, is_visible } = *self;
        let namespace_scope = (!namespace.is_empty()).then_some(namespace);
        let scopes = std::iter::once("").chain(namespace_scope).filter_map(|scope| rbac.roles.get_key_value(scope));
        let roles = scopes.flat_map(|(scope, roles)| roles.iter().map(move |(name, role)| (scope, name, role)));
        let visible = roles.filter(|(scope, name, _)| is_visible(kind_of_role(scope), scope, name));
        let rules = visible.flat_map(|(_, _, role)| role.rules.iter());
        rules.flat_map(|rule| rule.restricted_names(verbs, group, resource)).map(String::as_str).collect()
    }

    /// Namespaces with a visible role or binding. Others are left out, so that the result does not reveal their names.
    pub(super) fn namespaces(&self) -> BTreeSet<&'r str> {
        let VisibleRbac { rbac, is_visible } = *self;
        let roles = rbac
            .roles
            .iter()
            .filter(|(namespace, roles)| roles.keys().any(|name| is_visible(ObjectKind::Role, namespace, name)));
        let bindings = rbac.bindings.iter().filter(|(namespace, bindings)| {
            bindings.keys().any(|name| is_visible(ObjectKind::RoleBinding, namespace, name))
        });
        let all = roles.map(|(namespace, _)| namespace).chain(bindings.map(|(namespace, _)| namespace));
        all.map(String::as_str).filter(|namespace| !namespace.is_empty()).collect()
    }

    /// True if a visible ClusterRole has an `aggregationRule`.
    pub(super) fn has_aggregated_roles(&self) -> bool {
        self.rbac.roles.get("").into_iter().flatten().any(|(name, role)| {
            role.aggregation.as_ref().is_some_and(|aggregation| !aggregation.selectors.is_empty())
                && (self.is_visible)(ObjectKind::ClusterRole, "", name)
        })
    }

    /// The rules of a visible role; the namespace of a ClusterRole is empty.
    pub(super) fn role_rules(&self, namespace: &str, name: &str) -> Option<&'r [PolicyRule]> {
        let role = self.rbac.roles.get(namespace)?.get(name)?;
        (self.is_visible)(kind_of_role(namespace), namespace, name).then_some(&*role.rules)
    }

    /// The role of a visible binding; the namespace of a ClusterRoleBinding is empty.
    pub(super) fn bound_role(&self, namespace: &str, name: &str) -> Option<&'r RoleRef> {
        let binding = self.rbac.bindings.get(namespace)?.get(name)?;
        self.is_binding_visible(namespace, name, &binding.role).then_some(&*binding.role)
    }

    /// True if the caller may list a binding and its role.
    pub(super) fn is_binding_visible(&self, namespace: &str, name: &str, role: &RoleRef) -> bool {
        let kind = if namespace.is_empty() { ObjectKind::ClusterRoleBinding } else { ObjectKind::RoleBinding };
        let role_namespace = role.namespace(namespace);
        (self.is_visible)(kind, namespace, name)
            && (self.is_visible)(kind_of_role(role_namespace), role_namespace, &role.name)
    }

    fn evaluate(&self, role: &RoleRef, namespace: &str, action: &Action) -> Evaluation<'r> {
        match self.rbac.role(role, namespace) {
            None => Evaluation::Missing,
            Some(role) => {
                role.rules.iter().find(|rule| rule.allows(action)).map_or(Evaluation::NoMatch, Evaluation::Allows)
            }
        }
    }

    /// The bindings of the scope, ClusterRoleBindings first.
    pub(super) fn bindings(&self, scope: &Scope) -> impl Iterator<Item = NamedBinding<'r>> + use<'r> {
        let all = &self.rbac.bindings;
        let scopes: Vec<_> = match scope {
            Scope::All => all.iter().collect(),
            Scope::Namespaces(namespaces) => {
                let named = namespaces.iter().map(String::as_str).filter(|namespace| !namespace.is_empty());
                std::iter::once("").chain(named).filter_map(|namespace| all.get_key_value(namespace)).collect()
            }
        };
        scopes.into_iter().flat_map(|(namespace, bindings)| {
            bindings.iter().map(move |(name, binding)| (namespace.as_str(), &**name, binding))
        })
    }
}

/// Role, or ClusterRole if the namespace is empty.
fn kind_of_role(namespace: &str) -> ObjectKind {
    if namespace.is_empty() { ObjectKind::ClusterRole } else { ObjectKind::Role }
}
