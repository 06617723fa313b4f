//! Forward search: from a user to the subjects that the user can become, directly or through other subjects.

use std::collections::BTreeSet;

use super::step_requirements::{StepRequirements, steps_to_become};
use super::{MAX_STEPS, MAX_SUBJECTS, Path, Paths, Permission, RuleSource, SearchedRules, Step, StepKind};
use crate::rbac::access::{BoundRole, Proof, Scope, VisibleRbac};
use crate::rbac::{Action, Binding, Subject, SubjectKind};
use crate::user::{UserInfo, service_account_user};

/// An identity that the user can become, with the steps to it.
type ReachableIdentity<'r> = (UserInfo, Vec<Step<'r>>);

/// Permissions, each with a proof that an identity has it.
type ProvedPermissions<'r> = Vec<(Permission, Proof<'r>)>;

impl<'r> VisibleRbac<'r> {
    /// Paths from the user to the subjects of visible bindings that the user can become with the rules of this cluster.
    /// Subjects that already match the user are omitted. A breadth-first search finds one shortest path per subject;
    /// the first step is proved by permissions of the user, each further step by permissions of the subject reached before it.
    pub fn paths_from(self, user: &UserInfo) -> Paths<'r> {
        let searched = SearchedRules { cluster: self, control_plane: None };
        let mut unreached: Vec<Subject> =
            self.subjects().into_iter().filter(|subject| !subject.matches_user(user, "")).collect();
        let mut found = Paths::default();
        let mut frontier: Vec<ReachableIdentity<'r>> = vec![(user.clone(), Vec::new())];
        for _ in 0..MAX_STEPS {
            let roles: Vec<Vec<BoundRole<'r>>> =
                frontier.iter().map(|(identity, _)| self.roles_of(identity, &Scope::All).0).collect();
            let mut steps = Vec::new();
            unreached.retain(|subject| {
                let candidates = steps_to_become(&searched, RuleSource::Cluster, subject);
                let step = roles
                    .iter()
                    .enumerate()
                    .find_map(|(nth, roles_of_identity)| Some((nth, find_first_step(roles_of_identity, &candidates)?)));
                let Some((nth, (kind, permissions))) = step else { return true };
                steps.push((nth, subject.clone(), Step { kind, reaches: Some(subject.clone()), permissions }));
                false
            });
            steps.sort_by_key(|(nth, ..)| *nth);
            let mut next = Vec::new();
            for (nth, subject, step) in steps {
                if found.paths.len() >= MAX_SUBJECTS {
                    found.is_truncated = true;
                    return found;
                }
                let previous = frontier.get(nth).map(|(_, steps)| steps.as_slice()).unwrap_or_default();
                let steps: Vec<Step<'r>> = previous.iter().cloned().chain([step]).collect();
                next.push((identity_of(&subject), steps.clone()));
                found.paths.push(Path { source: RuleSource::Cluster, subject, steps, proof: None });
            }
            if next.is_empty() {
                break;
            }
            frontier = next;
        }
        found
    }

    /// Subjects of visible bindings. A service account without a namespace is in the namespace of its binding.
    fn subjects(&self) -> BTreeSet<Subject> {
        let bindings = self.bindings(&Scope::All);
        let visible =
            bindings.filter(|(namespace, name, binding)| self.is_binding_visible(namespace, name, &binding.role));
        let subjects_of = |(namespace, _, binding): (&'r str, &'r str, &'r Binding)| {
            binding.subjects.iter().filter_map(move |subject| subject.resolve(namespace))
        };
        visible.flat_map(subjects_of).collect()
    }
}

/// A user that has only the identity of the subject and the groups that it implies.
pub(super) fn identity_of(subject: &Subject) -> UserInfo {
    let groups = super::implied_groups(subject).into_iter().map(|group| group.name.to_string());
    let (name, own_group) = match subject.kind {
        SubjectKind::ServiceAccount => (service_account_user(&subject.namespace, &subject.name), None),
        SubjectKind::Group => (String::new(), Some(subject.name.to_string())),
        _ => (subject.name.to_string(), None),
    };
    UserInfo::new(name, own_group.into_iter().chain(groups))
}

/// Kind of the first candidate step whose permissions the roles grant, with the proved permissions. `None` if there is none.
fn find_first_step<'r>(
    roles: &[BoundRole<'r>],
    candidates: &[StepRequirements],
) -> Option<(StepKind, ProvedPermissions<'r>)> {
    candidates.iter().find_map(|requirements| Some((requirements.kind, prove_permissions(roles, requirements)?)))
}

/// For each need of a step, the first of its permissions that the roles grant, with the proof. `None` if a need is not
/// satisfied.
fn prove_permissions<'r>(roles: &[BoundRole<'r>], requirements: &StepRequirements) -> Option<ProvedPermissions<'r>> {
    let prove_need = |need: &Vec<Permission>| {
        need.iter().find_map(|permission| Some((permission.clone(), prove_permission(roles, permission)?)))
    };
    requirements.needs.iter().map(prove_need).collect()
}

/// Proof of a permission by the first role that grants it.
fn prove_permission<'r>(roles: &[BoundRole<'r>], permission: &Permission) -> Option<Proof<'r>> {
    let is_in_scope = |role: &&BoundRole<'r>| {
        let scope = role.binding.namespace;
        scope.is_empty() || matches!(&permission.action, Action::Resource { namespace, .. } if namespace == scope)
    };
    roles.iter().filter(is_in_scope).find_map(|role| {
        let rule = role.rules.iter().find(|rule| rule.allows(&permission.action))?;
        Some(Proof { subject: role.subject.clone(), binding: role.binding, rule })
    })
}
