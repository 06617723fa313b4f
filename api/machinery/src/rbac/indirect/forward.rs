//! Subjects that a user can become by the rights of the user, step by step.

use std::collections::BTreeSet;

use super::step_requirements::{StepRequirements, steps_to_become};
use super::{MAX_STEPS, MAX_SUBJECTS, Path, Paths, Right, RuleSource, SearchedRules, Step, StepKind};
use crate::rbac::access::{HeldRole, Proof, Scope, VisibleRbac};
use crate::rbac::{Action, Binding, Subject, SubjectKind};
use crate::user::{UserInfo, service_account_user};

/// An identity that was reached, with the steps to it.
type Reached<'r> = (UserInfo, Vec<Step<'r>>);

/// Rights with the proofs that a subject has them.
type ProvedRights<'r> = Vec<(Right, Proof<'r>)>;

impl<'r> VisibleRbac<'r> {
    /// The subjects of visible bindings that a user is not, but can become within the cluster. For each subject, one
    /// path is returned; the proofs of its first step are those of the user.
    pub fn paths_from(self, user: &UserInfo) -> Paths<'r> {
        let searched = SearchedRules { cluster: self, control_plane: None };
        let mut unreached: Vec<Subject> =
            self.subjects().into_iter().filter(|subject| !subject.matches_user(user, "")).collect();
        let mut found = Paths::default();
        let mut frontier: Vec<Reached<'r>> = vec![(user.clone(), Vec::new())];
        for _ in 0..MAX_STEPS {
            let held: Vec<Vec<HeldRole<'r>>> =
                frontier.iter().map(|(identity, _)| self.roles_of(identity, &Scope::All).0).collect();
            let mut steps = Vec::new();
            unreached.retain(|subject| {
                let candidates = steps_to_become(&searched, RuleSource::Cluster, subject);
                let step =
                    held.iter().enumerate().find_map(|(nth, held)| Some((nth, find_first_step(held, &candidates)?)));
                let Some((nth, (kind, rights))) = step else { return true };
                steps.push((nth, subject.clone(), Step { kind, reaches: Some(subject.clone()), rights }));
                false
            });
            steps.sort_by_key(|(nth, ..)| *nth);
            let mut next = Vec::new();
            for (nth, subject, step) in steps {
                if found.paths.len() >= MAX_SUBJECTS {
                    found.truncated = true;
                    return found;
                }
                let before = frontier.get(nth).map(|(_, steps)| steps.as_slice()).unwrap_or_default();
                let steps: Vec<Step<'r>> = before.iter().cloned().chain([step]).collect();
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

    /// Subjects of visible bindings.
    fn subjects(&self) -> BTreeSet<Subject> {
        let bindings = self.bindings(&Scope::All);
        let visible =
            bindings.filter(|(namespace, name, binding)| self.is_binding_visible(namespace, name, &binding.role));
        let of_binding = |(namespace, _, binding): (&'r str, &'r str, &'r Binding)| {
            binding.subjects.iter().filter_map(move |subject| subject.resolve(namespace))
        };
        visible.flat_map(of_binding).collect()
    }
}

/// The user with only the identity and the implied groups of the subject.
pub(super) fn identity_of(subject: &Subject) -> UserInfo {
    let groups = super::implied_groups(subject).into_iter().map(|group| group.name.to_string());
    let (name, own) = match subject.kind {
        SubjectKind::ServiceAccount => (service_account_user(&subject.namespace, &subject.name), None),
        SubjectKind::Group => (String::new(), Some(subject.name.to_string())),
        _ => (subject.name.to_string(), None),
    };
    UserInfo::new(name, own.into_iter().chain(groups))
}

/// The first step whose rights the roles grant, with the proofs.
fn find_first_step<'r>(held: &[HeldRole<'r>], candidates: &[StepRequirements]) -> Option<(StepKind, ProvedRights<'r>)> {
    candidates.iter().find_map(|requirements| Some((requirements.kind, prove_rights(held, requirements)?)))
}

/// Proofs of all rights that a step needs.
fn prove_rights<'r>(held: &[HeldRole<'r>], requirements: &StepRequirements) -> Option<ProvedRights<'r>> {
    let of_need = |need: &Vec<Right>| need.iter().find_map(|right| Some((right.clone(), prove_right(held, right)?)));
    requirements.needs.iter().map(of_need).collect()
}

/// The first role that grants a right.
fn prove_right<'r>(held: &[HeldRole<'r>], right: &Right) -> Option<Proof<'r>> {
    let is_in_scope = |held: &&HeldRole<'r>| {
        held.namespace.is_empty()
            || matches!(&right.action, Action::Resource { namespace, .. } if namespace == held.namespace)
    };
    held.iter().filter(is_in_scope).find_map(|held| {
        let rule = held.rules.iter().find(|rule| rule.allows(&right.action))?;
        let HeldRole { namespace, binding, role, .. } = *held;
        Some(Proof { subject: held.subject.clone(), namespace, binding, role, rule })
    })
}
