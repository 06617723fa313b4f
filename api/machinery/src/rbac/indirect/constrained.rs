//! Constrained impersonation (KEP-5284, beta in Kubernetes 1.36): permissions to act as a subject for one kind of request only.
//! Other steps cannot use the permissions of that subject, so only the requested action is searched.

use std::collections::BTreeSet;

use super::step_requirements::{MAX_NAMESPACES, StepRequirements, requirements};
use super::{Permission, RuleSource, StepKind};
use crate::rbac::access::{Proof, Scope};
use crate::rbac::{Action, Subject, SubjectKind};
use crate::user::{ANONYMOUS, AUTHENTICATED, MASTERS, UNAUTHENTICATED};

const AUTHENTICATION: &str = "authentication.k8s.io";
const NODE_USER_PREFIX: &str = "system:node:";
const USER_INFO: &str = "user-info";

/// The step by which another subject performs the action as the subject of `proof`: first the permission to impersonate for this
/// action, then those to impersonate the subject. `None` for subjects that cannot be impersonated in this way.
/// For [`Scope::All`], `visible_namespaces` are those in which the permission may be granted.
pub(super) fn step_to_impersonate_for_action(
    action: &Action,
    scope: &Scope,
    visible_namespaces: &BTreeSet<&str>,
    proof: &Proof<'_>,
) -> Option<StepRequirements> {
    let (mode, name_permissions) = impersonation_of(&proof.subject)?;
    let namespaces: BTreeSet<&str> = match (action, proof.binding.namespace, scope) {
        (Action::Path { .. }, ..) => BTreeSet::from([""]),
        (_, "", Scope::All) => {
            std::iter::once("").chain(visible_namespaces.iter().copied().take(MAX_NAMESPACES)).collect()
        }
        // Without a namespace, the request is cluster-scoped.
        (_, "", Scope::Namespaces(namespaces)) if namespaces.is_empty() => BTreeSet::from([""]),
        (_, "", Scope::Namespaces(namespaces)) => namespaces.iter().map(String::as_str).collect(),
        (_, namespace, _) => BTreeSet::from([namespace]),
    };
    let request_permissions =
        namespaces.into_iter().map(|namespace| request_permission(action, mode, namespace)).collect();
    let mut step = requirements(StepKind::Impersonate, [request_permissions]);
    step.needs.extend(name_permissions.into_iter().map(|permission| vec![permission]));
    Some(step)
}

/// Mode in which a subject is impersonated, and the permissions to impersonate its name.
fn impersonation_of(subject: &Subject) -> Option<(&'static str, Vec<Permission>)> {
    let name_permission = |mode: &'static str, resource: &str, namespace: &str, name: &str| {
        let action = Action::Resource {
            verb: format!("impersonate:{mode}"),
            group: AUTHENTICATION.to_owned(),
            resource: resource.to_owned(),
            subresource: String::new(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        Permission { action, source: RuleSource::Cluster }
    };
    let name = &*subject.name;
    match subject.kind {
        SubjectKind::ServiceAccount => {
            let mode = "serviceaccount";
            Some((mode, vec![name_permission(mode, "serviceaccounts", &subject.namespace, name)]))
        }
        SubjectKind::User if name != ANONYMOUS => match name.strip_prefix(NODE_USER_PREFIX) {
            Some(node) => {
                let mode = "arbitrary-node";
                Some((mode, vec![name_permission(mode, "nodes", "", node)]))
            }
            None => Some((USER_INFO, vec![name_permission(USER_INFO, "users", "", name)])),
        },
        // Groups are impersonated together with a user.
        SubjectKind::Group if !matches!(name, "" | AUTHENTICATED | UNAUTHENTICATED | MASTERS) => Some((
            USER_INFO,
            vec![name_permission(USER_INFO, "groups", "", name), name_permission(USER_INFO, "users", "", "")],
        )),
        _ => None,
    }
}

/// The permission to perform the action in a namespace as another subject.
fn request_permission(action: &Action, mode: &str, namespace: &str) -> Permission {
    let mut action = action.clone();
    match &mut action {
        Action::Resource { verb, namespace: action_namespace, .. } => {
            *verb = format!("impersonate-on:{mode}:{verb}");
            namespace.clone_into(action_namespace);
        }
        Action::Path { verb, .. } => *verb = format!("impersonate-on:{mode}:{verb}"),
    }
    Permission { action, source: RuleSource::Cluster }
}
