//! Forward search: from a user to the subjects that the user can become in a cluster, directly or through other
//! subjects of the cluster and of its control plane, and to the credentials and Works of the cluster.

use std::collections::BTreeSet;

use super::step_requirements::{StepRequirements, steps_to_become};
use super::{
    ControlPlane, MAX_STEPS, MAX_SUBJECTS, Path, Paths, Permission, ProvedPermissions, RuleSource, SearchedRules, Step,
    StepKind,
};
use crate::rbac::access::{BoundRole, Proof, Scope, VisibleRbac};
use crate::rbac::{Action, Binding, Subject, SubjectKind};
use crate::user::{UserInfo, service_account_user};

/// The identities that a user can take in one cluster.
pub struct Identities<'r> {
    /// By the number of steps. The first level contains the user itself.
    levels: Vec<Vec<Identity<'r>>>,
    /// True if subjects were skipped because there are too many.
    is_truncated: bool,
}

/// An identity, with the steps by which the user takes it.
struct Identity<'r> {
    /// The cluster in which the identity has its roles.
    source: RuleSource,
    /// `None` for the user itself.
    subject: Option<Subject>,
    user: UserInfo,
    roles: Vec<BoundRole<'r>>,
    steps: Vec<Step<'r>>,
}

impl<'r> SearchedRules<'r> {
    /// Paths of a user to the subjects of visible bindings of the cluster that the user can become, and to the
    /// credentials and Works of the cluster; `control_plane_identities` are those of the same user in the control plane.
    /// Subjects that already match the user are omitted. There is one shortest path per subject: the first step is proved
    /// by permissions of the user, each further step by permissions of the subject reached before it.
    pub fn paths_from(&self, user: &UserInfo, control_plane_identities: Option<&Identities<'r>>) -> Paths<'r> {
        let outside = control_plane_identities.map(|identities| identities.levels.as_slice()).unwrap_or_default();
        let mut paths = Vec::new();
        let mut is_truncated = control_plane_identities.is_some_and(|identities| identities.is_truncated);
        if let Some(control_plane) = &self.control_plane {
            paths = paths_into_cluster(control_plane, outside);
            is_truncated |= control_plane.has_too_many_new_bindings();
        }
        let inside = Identities::search(self, RuleSource::Cluster, user, outside);
        is_truncated |= inside.is_truncated;
        paths.extend(inside.levels.into_iter().flatten().filter_map(Identity::into_path));
        paths.sort_by_key(|path| path.steps.len());
        Paths { paths, is_truncated }
    }
}

impl<'r> Identities<'r> {
    /// The identities that the user can take in the control plane with its visible rules. They are the same for all
    /// members.
    pub fn in_control_plane(view: VisibleRbac<'r>, user: &UserInfo) -> Self {
        let rules = SearchedRules { cluster: view, control_plane: None };
        Self::search(&rules, RuleSource::ControlPlane, user, &[])
    }

    /// A breadth-first search in the cluster of `source`. `outside` are the levels of identities in another cluster,
    /// which may lead to subjects of this one.
    fn search(rules: &SearchedRules<'r>, source: RuleSource, user: &UserInfo, outside: &[Vec<Identity<'r>>]) -> Self {
        let view = rules.view(source);
        let mut unreached: Vec<Subject> =
            view.subjects().into_iter().filter(|subject| !subject.matches_user(user, "")).collect();
        let roles = view.roles_of(user, &Scope::All).0;
        let start = Identity { source, subject: None, user: user.clone(), roles, steps: Vec::new() };
        let mut found = Self { levels: vec![vec![start]], is_truncated: false };
        let mut remaining = MAX_SUBJECTS;
        for depth in 0..MAX_STEPS {
            let levels = [found.levels.get(depth), outside.get(depth)];
            let frontier: Vec<&Identity<'r>> = levels.into_iter().flatten().flatten().collect();
            let mut reached = find_reached_subjects(rules, source, &frontier, &mut unreached);
            found.is_truncated = reached.len() > remaining;
            reached.truncate(remaining);
            remaining -= reached.len();
            let next =
                reached.into_iter().map(|(subject, steps)| Identity::new(view, source, subject, steps)).collect();
            found.levels.push(next);
            if found.is_truncated {
                break;
            }
        }
        found
    }
}

impl<'r> Identity<'r> {
    fn new(view: VisibleRbac<'r>, source: RuleSource, subject: Subject, steps: Vec<Step<'r>>) -> Self {
        let user = identity_of(&subject);
        // No step follows after the last one.
        let roles = if steps.len() < MAX_STEPS { view.roles_of(&user, &Scope::All).0 } else { Vec::new() };
        Self { source, subject: Some(subject), user, roles, steps }
    }

    /// The steps of this identity, and the step with these requirements. `None` if the identity does not satisfy them.
    fn take_step(&self, requirements: &StepRequirements, reaches: Option<&Subject>) -> Option<Vec<Step<'r>>> {
        let is_taken_by = |subject: &Subject| subject.matches_user(&self.user, "");
        if requirements.source() != self.source || !requirements.only_subject.as_ref().is_none_or(is_taken_by) {
            return None;
        }
        let permissions = prove_permissions(&self.roles, requirements)?;
        Some(self.steps.iter().cloned().chain(requirements.steps(reaches, permissions)).collect())
    }

    /// The path to this identity. `None` for the user itself.
    fn into_path(self) -> Option<Path<'r>> {
        Some(Path { source: self.source, subject: self.subject?, steps: self.steps, proof: None })
    }
}

/// Removes the subjects that the identities of the frontier can become from the unreached ones, and returns them with
/// their steps, in the order of the identities.
fn find_reached_subjects<'r>(
    rules: &SearchedRules<'r>,
    source: RuleSource,
    frontier: &[&Identity<'r>],
    unreached: &mut Vec<Subject>,
) -> Vec<(Subject, Vec<Step<'r>>)> {
    if frontier.is_empty() {
        return Vec::new();
    }
    let mut reached = Vec::new();
    unreached.retain(|subject| {
        let candidates = steps_to_become(rules, source, subject);
        let first_steps =
            |identity: &Identity<'r>| candidates.iter().find_map(|step| identity.take_step(step, Some(subject)));
        let found = frontier.iter().enumerate().find_map(|(nth, identity)| Some((nth, first_steps(identity)?)));
        let Some((nth, steps)) = found else { return true };
        reached.push((nth, subject.clone(), steps));
        false
    });
    reached.sort_by_key(|(nth, ..)| *nth);
    reached.into_iter().map(|(_, subject, steps)| (subject, steps)).collect()
}

/// One shortest path to the credentials, and one to the Works. Its subject is the one that takes the last step.
fn paths_into_cluster<'r>(control_plane: &ControlPlane<'r>, identities: &[Vec<Identity<'r>>]) -> Vec<Path<'r>> {
    let steps = control_plane.steps_into_cluster();
    let path_by = |kind: StepKind| {
        let steps: Vec<_> = steps.iter().filter(|step| step.last_kind() == kind).collect();
        let steps = find_shortest_steps(identities, &steps)?;
        let (_, proof) = steps.iter().rev().find_map(|step| step.permissions.first())?;
        Some(Path { source: RuleSource::ControlPlane, subject: proof.subject.clone(), steps, proof: None })
    };
    [StepKind::ReadClusterCredentials, StepKind::WriteWork].into_iter().filter_map(path_by).collect()
}

/// The steps of the first identity that satisfies one of the candidates with the fewest steps.
fn find_shortest_steps<'r>(
    identities: &[Vec<Identity<'r>>],
    candidates: &[&StepRequirements],
) -> Option<Vec<Step<'r>>> {
    (1..=MAX_STEPS).find_map(|length| {
        identities.iter().flatten().find_map(|identity| {
            let mut with_length = candidates.iter().filter(|step| identity.steps.len() + step.step_count() == length);
            with_length.find_map(|step| identity.take_step(step, None))
        })
    })
}

impl<'r> VisibleRbac<'r> {
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
