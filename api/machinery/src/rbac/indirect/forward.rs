//! Subjects that a user can become by the rights of the user, step by step.

use std::collections::{BTreeSet, HashSet, VecDeque};

use super::ways::{Way, ways_to_be};
use super::{MAX_STEPS, MAX_SUBJECTS, Path, Paths, Places, Right, RuleSource, Step};
use crate::rbac::access::{HeldRole, Proof, Scope, View};
use crate::rbac::{Action, Binding, Subject, SubjectKind};
use crate::user::UserInfo;

impl<'r> View<'r> {
    /// The subjects of visible bindings that a user is not, but can become within the cluster. Each path has one way; the
    /// proofs of its first step are those of the user.
    pub fn paths_from(self, user: &UserInfo) -> Paths<'r> {
        let places = Places { cluster: self, control_plane: None };
        let known = self.subjects();
        let mut found = Paths::default();
        let mut reached: HashSet<&Subject> = HashSet::new();
        let mut queue = VecDeque::from([(user.clone(), Vec::new())]);
        while let Some((identity, steps)) = queue.pop_front() {
            if steps.len() >= MAX_STEPS {
                continue;
            }
            let held = self.roles_of(&identity, &Scope::All).0;
            for subject in known.iter().filter(|subject| !subject.is(user, "")) {
                if reached.contains(subject) {
                    continue;
                }
                let ways = ways_to_be(&places, RuleSource::Cluster, subject);
                let step = ways.iter().find_map(|way| Some((way.kind, satisfied(&held, way)?)));
                let Some((kind, rights)) = step else { continue };
                if reached.len() >= MAX_SUBJECTS {
                    found.truncated = true;
                    return found;
                }
                reached.insert(subject);
                let mut steps: Vec<Step<'r>> = steps.clone();
                steps.push(Step { kind, reaches: Some(subject.clone()), rights });
                let path =
                    Path { source: RuleSource::Cluster, subject: subject.clone(), steps: steps.clone(), proof: None };
                found.paths.push(path);
                queue.push_back((identity_of(subject), steps));
            }
        }
        found
    }

    /// Subjects of visible bindings.
    fn subjects(&self) -> BTreeSet<Subject> {
        let bindings = self.bindings(&Scope::All);
        let visible = bindings.filter(|(namespace, name, binding)| self.shows(namespace, name, &binding.role));
        let of_binding = |(namespace, _, binding): (&'r str, &'r str, &'r Binding)| {
            binding.subjects.iter().filter_map(move |subject| subject.resolved(namespace))
        };
        visible.flat_map(of_binding).collect()
    }
}

/// A user who is nothing but the subject.
pub(super) fn identity_of(subject: &Subject) -> UserInfo {
    let groups = super::implied_groups(subject).into_iter().map(|group| group.name.to_string());
    let (name, own) = match subject.kind {
        SubjectKind::ServiceAccount => (format!("system:serviceaccount:{}:{}", subject.namespace, subject.name), None),
        SubjectKind::Group => (String::new(), Some(subject.name.to_string())),
        _ => (subject.name.to_string(), None),
    };
    UserInfo::new(name, own.into_iter().chain(groups))
}

/// Proofs of all rights that a step needs.
fn satisfied<'r>(held: &[HeldRole<'r>], way: &Way) -> Option<Vec<(Right, Proof<'r>)>> {
    let of_need = |need: &Vec<Right>| need.iter().find_map(|right| Some((right.clone(), proof(held, right)?)));
    way.needs.iter().map(of_need).collect()
}

/// The first role that grants a right.
fn proof<'r>(held: &[HeldRole<'r>], right: &Right) -> Option<Proof<'r>> {
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
