//! Steps that grant an action by writing a binding or a role.
//!
//! An API server lets a subject write a binding if the subject may `bind` the role or has all permissions of it, and write
//! a role if the subject may `escalate` the role or has all permissions of the new rules. Subjects that have all
//! permissions of a role that allows the action may perform the action already, so only the two verbs give further
//! permissions. `bind` and `escalate` are authorized with the name of the role, writes with the name of the written
//! object; `create` has a name only if an update or server-side apply creates the object. The role of a binding cannot be
//! changed.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use super::StepKind;
use super::step_requirements::{PermissionBuilder, StepRequirements, UPDATE_VERBS, WRITE_VERBS, requirements};
use crate::rbac::Action;
use crate::rbac::access::VisibleRbac;

const RBAC: &str = "rbac.authorization.k8s.io";

/// Maximum number of names of new bindings that are considered per namespace. Rules can contain any number of names,
/// including those of objects that do not exist.
const MAX_NEW_BINDINGS: usize = 100;

/// The Roles of a namespace, or all ClusterRoles.
#[derive(Clone, Copy)]
struct Roles<'a> {
    resource: &'static str,
    /// Empty for ClusterRoles.
    namespace: &'a str,
}

impl<'a> Roles<'a> {
    const CLUSTER: Self = Self { resource: "clusterroles", namespace: "" };

    /// The Roles of this namespace, or the ClusterRoles if it is empty.
    fn for_namespace(namespace: &'a str) -> Self {
        if namespace.is_empty() { Self::CLUSTER } else { Self { resource: "roles", namespace } }
    }

    fn role_allows(self, name: &str, view: VisibleRbac<'_>, action: &Action) -> bool {
        view.role_rules(self.namespace, name).is_some_and(|rules| rules.iter().any(|rule| rule.allows(action)))
    }
}

/// Steps that grant the action in the builder's namespace, or in the cluster if that is empty.
pub(super) fn steps_to_grant(
    view: VisibleRbac<'_>,
    builder: PermissionBuilder<'_>,
    action: &Action,
) -> Vec<StepRequirements> {
    let mut steps = steps_to_bind(view, builder, action);
    steps.extend(steps_to_escalate(view, builder));
    steps
}

/// True if a namespace has more than [`MAX_NEW_BINDINGS`] names of new bindings; the others are ignored.
pub(super) fn has_too_many_new_bindings(view: VisibleRbac<'_>, namespace: &str) -> bool {
    names_of_new_bindings(view, namespace).len() > MAX_NEW_BINDINGS
}

/// Names of bindings that visible rules allow to be created in a namespace (`resourceNames`).
fn names_of_new_bindings<'r>(view: VisibleRbac<'r>, namespace: &str) -> BTreeSet<&'r str> {
    view.names_in_rules(namespace, &["create"], RBAC, resource_of_bindings(namespace))
}

fn resource_of_bindings(namespace: &str) -> &'static str {
    if namespace.is_empty() { "clusterrolebindings" } else { "rolebindings" }
}

fn steps_to_bind(view: VisibleRbac<'_>, builder: PermissionBuilder<'_>, action: &Action) -> Vec<StepRequirements> {
    let bindings = resource_of_bindings(builder.namespace);
    let kinds = match builder.namespace {
        "" => vec![Roles::CLUSTER],
        namespace => vec![Roles::CLUSTER, Roles::for_namespace(namespace)],
    };
    let mut bind = Vec::new();
    for roles in kinds {
        bind.push(builder.permission("bind", RBAC, roles.resource, ""));
        let names = view.names_in_rules(builder.namespace, &["bind"], RBAC, roles.resource).into_iter();
        let names_of_allowing_roles = names.filter(|name| roles.role_allows(name, view, action));
        bind.extend(names_of_allowing_roles.map(|name| builder.permission("bind", RBAC, roles.resource, name)));
    }
    let change = |name: &str| UPDATE_VERBS.map(|verb| builder.permission(verb, RBAC, bindings, name)).to_vec();
    let mut steps =
        vec![requirements(StepKind::Bind, [bind.clone(), builder.permissions(&WRITE_VERBS, RBAC, bindings)])];
    for name in view.names_in_rules(builder.namespace, &UPDATE_VERBS, RBAC, bindings) {
        let Some(role) = view.bound_role(builder.namespace, name) else { continue };
        let roles = if role.kind == "ClusterRole" { Roles::CLUSTER } else { Roles::for_namespace(builder.namespace) };
        if roles.role_allows(&role.name, view, action) {
            let bind = vec![builder.permission("bind", RBAC, roles.resource, &role.name)];
            steps.push(requirements(StepKind::Bind, [bind, change(name)]));
        }
    }
    for name in names_of_new_bindings(view, builder.namespace).into_iter().take(MAX_NEW_BINDINGS) {
        let create = vec![builder.permission("create", RBAC, bindings, name)];
        steps.push(requirements(StepKind::Bind, [bind.clone(), create, change(name)]));
    }
    steps
}

fn steps_to_escalate(view: VisibleRbac<'_>, builder: PermissionBuilder<'_>) -> Vec<StepRequirements> {
    let roles = Roles::for_namespace(builder.namespace);
    let escalate = |name: &str| {
        let change = UPDATE_VERBS.map(|verb| builder.permission(verb, RBAC, roles.resource, name)).to_vec();
        requirements(StepKind::Escalate, [vec![builder.permission("escalate", RBAC, roles.resource, name)], change])
    };
    let verbs = ["escalate", "update", "patch"];
    let names = view.names_in_rules(builder.namespace, &verbs, RBAC, roles.resource).into_iter();
    let names_of_existing_roles = names.filter(|name| view.role_rules(roles.namespace, name).is_some());
    let mut steps: Vec<StepRequirements> = std::iter::once("").chain(names_of_existing_roles).map(escalate).collect();
    if builder.namespace.is_empty() && view.has_aggregated_roles() {
        // A new ClusterRole can be selected by an aggregated one, whose subjects then have its rules.
        let needs = ["escalate", "create"].map(|verb| builder.permissions(&[verb], RBAC, roles.resource));
        steps.push(requirements(StepKind::Escalate, needs));
    }
    steps
}
