//! Indirect permissions: subjects that lack the permission for an action, but can become a subject that has it, or can grant
//! it to themselves. Each step names the permissions that it needs, with their proof.
//!
//! Permissions are not sufficient for every step: a container can only be entered if it runs, and a changed role grants nothing
//! without a binding. Rules that name objects (`resourceNames`) count only where the name is known.

mod constrained;
mod control_plane;
mod forward;
mod grants;
mod step_requirements;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use serde::Serialize;

use super::access::{Proof, Scope, VisibleRbac};
use super::{Action, Subject, SubjectKind};
use crate::user::{AUTHENTICATED, MASTERS, service_account_groups};
use constrained::step_to_impersonate_for_action;
pub use forward::Identities;
use grants::has_too_many_new_bindings;
use step_requirements::{MAX_NAMESPACES, StepRequirements, namespaces, steps_to_become, steps_to_perform};

/// Maximum number of steps of a path.
pub const MAX_STEPS: usize = 4;
/// Maximum number of subjects that one search visits.
const MAX_SUBJECTS: usize = 1000;

/// Kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum StepKind {
    /// Creates a Pod, which can run as any service account of its namespace and mount its Secrets.
    CreatePod,
    /// Creates or changes an object whose controller creates Pods.
    CreateWorkload,
    /// Runs a command in a container.
    ExecInPod,
    /// Attaches to a container.
    AttachToPod,
    /// Adds a container to a running Pod.
    EphemeralContainer,
    /// Requests a token of a service account.
    RequestToken,
    /// Reads Secrets, which may be tokens of service accounts.
    ReadSecrets,
    /// Acts as another subject.
    Impersonate,
    /// Changes a role to contain permissions that the subject does not have.
    Escalate,
    /// Binds a role with permissions that the subject does not have.
    Bind,
    /// Sends requests to kubelets, which run commands in any container.
    NodeProxy,
    /// Approves a certificate for another user or group.
    ApproveCertificate,
    /// Reads the credentials of a cluster in the control plane.
    ReadClusterCredentials,
    /// Writes a Work, whose manifests are applied in the cluster.
    WriteWork,
    /// Creates a workload and a policy that propagates it to the cluster.
    Propagate,
    /// Sends requests to the cluster through its proxy, as the same subject.
    ClusterProxy,
}

/// Cluster whose rules allow a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RuleSource {
    /// The cluster in which the action is requested.
    Cluster,
    ControlPlane,
}

/// The control plane of a member, with the objects that give access to the member.
#[derive(Clone, Copy)]
pub struct ControlPlane<'r> {
    pub view: VisibleRbac<'r>,
    pub cluster: &'r str,
    /// Namespace of the Works of the cluster.
    pub execution_namespace: &'r str,
    /// Namespace and name of the Secrets with the cluster's credentials.
    pub credentials: &'r [(String, String)],
}

/// Permissions, each with a proof that a subject has it.
pub type ProvedPermissions<'r> = Vec<(Permission, Proof<'r>)>;

/// A permission that a step needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Permission {
    /// The action; its namespace is the one in which the permission is needed.
    pub action: Action,
    pub source: RuleSource,
}

/// A step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step<'r> {
    pub kind: StepKind,
    /// The subject whose permissions can be used after the step; `None` for a step that allows the action itself.
    pub reaches: Option<Subject>,
    /// Empty if the previous step grants the permission.
    pub permissions: ProvedPermissions<'r>,
}

/// A subject with an indirect permission, and the steps by which it gets the permission. In a search from a user, instead the
/// subject that the steps reach, or the subject that takes the last step if that reaches none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path<'r> {
    pub source: RuleSource,
    pub subject: Subject,
    /// At most [`MAX_STEPS`].
    pub steps: Vec<Step<'r>>,
    /// Proof of the permission of the subject that the last step reaches. `None` if that step allows the action itself, or
    /// reaches `system:masters`.
    pub proof: Option<Proof<'r>>,
}

/// Paths, the shortest first.
#[derive(Debug, Default)]
pub struct Paths<'r> {
    pub paths: Vec<Path<'r>>,
    /// True if subjects or namespaces were skipped because there are too many.
    pub is_truncated: bool,
}

/// The rules in which paths are searched: those of the cluster and of its control plane.
#[derive(Clone, Copy)]
pub struct SearchedRules<'r> {
    pub cluster: VisibleRbac<'r>,
    /// `None` if the cluster is the control plane itself.
    pub control_plane: Option<ControlPlane<'r>>,
}

/// A subject from which the action can be reached.
struct Node<'r> {
    source: RuleSource,
    subject: Subject,
    /// The first steps, and the node that they lead to. `None` for subjects that may perform the action.
    steps: Option<NextSteps<'r>>,
    depth: usize,
}

/// Steps, and the node that they lead to.
type NextSteps<'r> = (Vec<Step<'r>>, Option<usize>);

/// A subject whose permissions satisfy a step, with their proofs.
type SatisfyingSubject<'r> = (Subject, ProvedPermissions<'r>);

/// A breadth-first search from the action back to the subjects that can get a permission for it.
struct Search<'r> {
    searched: SearchedRules<'r>,
    holders: HashMap<Permission, Arc<[Proof<'r>]>>,
    nodes: Vec<Node<'r>>,
    visited: HashSet<(RuleSource, Subject)>,
    is_truncated: bool,
}

impl<'r> SearchedRules<'r> {
    fn view(&self, source: RuleSource) -> VisibleRbac<'r> {
        match (source, self.control_plane) {
            (RuleSource::ControlPlane, Some(control_plane)) => control_plane.view,
            _ => self.cluster,
        }
    }

    /// Paths of the subjects that lack the permission for the action, but can get it. `direct` are the proofs of the
    /// subjects that have it.
    pub fn paths_to(self, action: &Action, scope: &Scope, direct: &[Proof<'r>]) -> Paths<'r> {
        let mut search = Search::new(self);
        let masters = Subject::group(MASTERS);
        for subject in direct.iter().map(|proof| &proof.subject).chain([&masters]) {
            search.visit(RuleSource::Cluster, subject.clone(), None, 0);
        }
        let namespaces = namespaces(&self, action, scope);
        search.is_truncated |= namespaces.len() > MAX_NAMESPACES;
        let mut searched_namespaces = std::iter::once("").chain(namespaces.iter().copied().take(MAX_NAMESPACES));
        search.is_truncated |= searched_namespaces.any(|namespace| has_too_many_new_bindings(self.cluster, namespace));
        search.is_truncated |=
            self.control_plane.is_some_and(|control_plane| control_plane.has_too_many_new_bindings());
        let (granting, performing): (Vec<_>, Vec<_>) = steps_to_perform(&self, action, scope, &namespaces)
            .into_iter()
            .partition(|requirements| requirements.then.is_some());
        for requirements in &performing {
            search.follow(requirements, None, None, 1);
        }
        for proof in direct {
            search.follow_constrained_impersonation(action, scope, &namespaces, proof);
        }
        // Two steps each, so that they come after the subjects that need one.
        for requirements in &granting {
            search.follow(requirements, None, None, requirements.step_count());
        }
        let mut queue: VecDeque<usize> = (0..search.nodes.len()).collect();
        while let Some(at) = queue.pop_front() {
            let Some(node) = search.nodes.get(at).filter(|node| node.depth < MAX_STEPS) else { continue };
            let (source, subject, depth) = (node.source, node.subject.clone(), node.depth + 1);
            let before = search.nodes.len();
            for requirements in steps_to_become(&self, source, &subject) {
                search.follow(&requirements, Some(&subject), Some(at), depth);
            }
            queue.extend(before..search.nodes.len());
        }
        search.into_paths(direct)
    }
}

impl<'r> Search<'r> {
    fn new(searched: SearchedRules<'r>) -> Self {
        Self { searched, holders: HashMap::new(), nodes: Vec::new(), visited: HashSet::new(), is_truncated: false }
    }

    fn visit(&mut self, source: RuleSource, subject: Subject, steps: Option<NextSteps<'r>>, depth: usize) {
        if self.visited.contains(&(source, subject.clone())) {
            return;
        }
        if self.nodes.len() >= MAX_SUBJECTS {
            self.is_truncated = true;
            return;
        }
        self.visited.insert((source, subject.clone()));
        self.nodes.push(Node { source, subject, steps, depth });
    }

    /// Adds the subjects whose permissions satisfy a step, which leads to the node `next`. `depth` is their number of steps.
    fn follow(
        &mut self,
        requirements: &StepRequirements,
        reaches: Option<&Subject>,
        next: Option<usize>,
        depth: usize,
    ) {
        for (subject, permissions) in self.find_satisfying_subjects(requirements) {
            let steps = requirements.steps(reaches, permissions);
            self.visit(requirements.source(), subject, Some((steps, next)), depth);
        }
    }

    /// Adds the subjects that may impersonate the subject of a direct proof for this action only.
    fn follow_constrained_impersonation(
        &mut self,
        action: &Action,
        scope: &Scope,
        namespaces: &BTreeSet<&str>,
        proof: &Proof<'r>,
    ) {
        let Some(requirements) = step_to_impersonate_for_action(action, scope, namespaces, proof) else { return };
        let is_reached = |node: &Node<'_>| node.source == RuleSource::Cluster && node.subject == proof.subject;
        let Some(reached) = self.nodes.iter().position(is_reached) else { return };
        // The first need is the permission to perform the action as another subject (`impersonate-on:MODE:VERB`). If all of
        // its holders have been visited, the step adds no subject and is not searched. Administrators have always been
        // visited, because they may perform the action itself.
        let request_permissions = requirements.needs.first().map(Vec::as_slice).unwrap_or_default();
        let holders: Vec<_> = request_permissions.iter().map(|permission| self.find_holders(permission)).collect();
        let is_new = |proof: &Proof<'_>| !self.visited.contains(&(RuleSource::Cluster, proof.subject.clone()));
        if holders.iter().flat_map(|proofs| proofs.iter()).any(is_new) {
            self.follow(&requirements, Some(&proof.subject), Some(reached), 1);
        }
    }

    /// Subjects with all permissions that a step needs. Permissions that a user has through several groups are
    /// not combined, because the groups of users are not known.
    fn find_satisfying_subjects(&mut self, requirements: &StepRequirements) -> Vec<SatisfyingSubject<'r>> {
        let needs: Vec<HashMap<Subject, (Permission, Proof<'r>)>> =
            requirements.needs.iter().map(|need| self.find_subjects_with_any(need)).collect();
        let candidates: BTreeSet<Subject> = match &requirements.only_subject {
            Some(only) => BTreeSet::from([only.clone()]),
            None => needs.iter().flat_map(HashMap::keys).cloned().collect(),
        };
        let permissions = |subject: Subject| {
            let find_permission = |need: &HashMap<Subject, (Permission, Proof<'r>)>| {
                std::iter::once(subject.clone())
                    .chain(implied_groups(&subject))
                    .find_map(|identity| need.get(&identity).cloned())
            };
            let permissions: Option<Vec<_>> = needs.iter().map(find_permission).collect();
            permissions.map(|permissions| (subject, permissions))
        };
        candidates.into_iter().filter_map(permissions).collect()
    }

    /// The subjects that have one of the permissions.
    fn find_subjects_with_any(&mut self, alternatives: &[Permission]) -> HashMap<Subject, (Permission, Proof<'r>)> {
        let mut subjects = HashMap::new();
        for permission in alternatives {
            for proof in self.find_holders(permission).iter() {
                subjects.entry(proof.subject.clone()).or_insert_with(|| (permission.clone(), proof.clone()));
            }
        }
        subjects
    }

    fn find_holders(&mut self, permission: &Permission) -> Arc<[Proof<'r>]> {
        if let Some(cached) = self.holders.get(permission) {
            return Arc::clone(cached);
        }
        let found = self.searched.view(permission.source).who_can(&permission.action, &permission.scope()).proofs;
        let found: Arc<[Proof<'r>]> = found.into();
        self.holders.insert(permission.clone(), Arc::clone(&found));
        found
    }

    fn into_paths(self, direct: &[Proof<'r>]) -> Paths<'r> {
        let mut paths = Vec::new();
        for node in self.nodes.iter().filter(|node| node.steps.is_some()) {
            // Users and groups have one identity in the control plane and in members, so they are listed once. Service
            // accounts of the same name are different in each cluster.
            let is_duplicate = node.source == RuleSource::ControlPlane
                && node.subject.kind != SubjectKind::ServiceAccount
                && self.visited.contains(&(RuleSource::Cluster, node.subject.clone()));
            if is_duplicate {
                continue;
            }
            let (mut steps, mut at, mut last) = (Vec::new(), Some(node), &node.subject);
            while let Some((next_steps, next)) = at.and_then(|node| node.steps.as_ref()) {
                steps.extend(next_steps.iter().cloned());
                at = next.and_then(|next| self.nodes.get(next));
                last = at.map_or(last, |node| &node.subject);
            }
            let ends_at_subject = steps.last().is_some_and(|step| step.reaches.is_some());
            let proof = direct.iter().find(|proof| ends_at_subject && proof.subject == *last).cloned();
            paths.push(Path { source: node.source, subject: node.subject.clone(), steps, proof });
        }
        paths.sort_by_key(|path| path.steps.len());
        Paths { paths, is_truncated: self.is_truncated }
    }
}

impl Step<'_> {
    /// The cluster in which the permissions of the reached subject can be used.
    pub fn reached_source(&self) -> RuleSource {
        match self.kind {
            StepKind::ClusterProxy | StepKind::Propagate => RuleSource::Cluster,
            _ => self.permissions.first().map_or(RuleSource::Cluster, |(permission, _)| permission.source),
        }
    }
}

impl Permission {
    fn scope(&self) -> Scope {
        match &self.action {
            Action::Resource { namespace, .. } => Scope::from_namespace(namespace),
            Action::Path { .. } => Scope::cluster(),
        }
    }
}

/// Groups that API servers add to a subject.
fn implied_groups(subject: &Subject) -> Vec<Subject> {
    let authenticated = Subject::group(AUTHENTICATED);
    match subject.kind {
        SubjectKind::ServiceAccount => {
            let [all_service_accounts, service_accounts_of_namespace] =
                service_account_groups(&subject.namespace).map(|group| Subject::group(&group));
            vec![service_accounts_of_namespace, all_service_accounts, authenticated]
        }
        _ if authenticated.includes(subject) => vec![authenticated],
        _ => Vec::new(),
    }
}
