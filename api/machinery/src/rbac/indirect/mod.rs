//! Indirect rights: subjects that are not allowed an action, but can become a subject that is, or can grant it to
//! themselves. Each step names the rights that it needs, with their proof.
//!
//! Rights are not sufficient for every step: a container can only be entered if it runs, and a changed role grants nothing
//! without a binding. Rules that name objects (`resourceNames`) count only where the name is known.

mod constrained;
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
use constrained::step_to_impersonate_for;
use grants::has_too_many_new_bindings;
use step_requirements::{MAX_NAMESPACES, StepRequirements, namespaces, steps_to_become, steps_to_perform};

/// Maximum number of steps.
pub const MAX_STEPS: usize = 4;
/// Maximum number of subjects per cluster that are followed.
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
    /// Changes a role to contain rights that the subject does not have.
    Escalate,
    /// Binds a role with rights that the subject does not have.
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
    /// Sends requests to the cluster through its proxy, with the same name.
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

/// A right that a step needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Right {
    /// The action; its namespace is the one in which the right is needed.
    pub action: Action,
    pub source: RuleSource,
}

/// A step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step<'r> {
    pub kind: StepKind,
    /// The subject that the step makes available; `None` for a step that allows the action itself.
    pub reaches: Option<Subject>,
    pub rights: Vec<(Right, Proof<'r>)>,
}

/// A subject with an indirect right, and the steps by which it gets the action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path<'r> {
    pub source: RuleSource,
    pub subject: Subject,
    /// At most [`MAX_STEPS`].
    pub steps: Vec<Step<'r>>,
    /// Proof of the right of the subject that the last step reaches. `None` if that step allows the action itself, or
    /// reaches `system:masters`.
    pub proof: Option<Proof<'r>>,
}

/// Paths, the shortest first.
#[derive(Debug, Default)]
pub struct Paths<'r> {
    pub paths: Vec<Path<'r>>,
    /// True if subjects or namespaces were not followed because there are too many.
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
    /// The first step, and the node that it leads to. `None` for subjects that are allowed the action.
    step: Option<(Step<'r>, Option<usize>)>,
    depth: usize,
}

/// A subject whose rights satisfy a step, with their proofs.
type SatisfyingSubject<'r> = (Subject, Vec<(Right, Proof<'r>)>);

/// A breadth-first search from the action back to the subjects that can get it.
struct Search<'r> {
    searched: SearchedRules<'r>,
    holders: HashMap<Right, Arc<[Proof<'r>]>>,
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

    /// Subjects without a direct right to the action that can get it. `direct` are the proofs of those that have it.
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
        for requirements in steps_to_perform(&self, action, scope, &namespaces) {
            search.follow(&requirements, None, None, 1);
        }
        for proof in direct {
            search.follow_constrained_impersonation(action, scope, &namespaces, proof);
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

    fn visit(&mut self, source: RuleSource, subject: Subject, step: Option<(Step<'r>, Option<usize>)>, depth: usize) {
        if self.visited.contains(&(source, subject.clone())) {
            return;
        }
        if self.nodes.len() >= MAX_SUBJECTS {
            self.is_truncated = true;
            return;
        }
        self.visited.insert((source, subject.clone()));
        self.nodes.push(Node { source, subject, step, depth });
    }

    /// Adds the subjects whose rights satisfy a step, which leads to the node `next`.
    fn follow(
        &mut self,
        requirements: &StepRequirements,
        reaches: Option<&Subject>,
        next: Option<usize>,
        depth: usize,
    ) {
        for (subject, rights) in self.find_satisfying_subjects(requirements) {
            let step = Step { kind: requirements.kind, reaches: reaches.cloned(), rights };
            self.visit(requirements.source(), subject, Some((step, next)), depth);
        }
    }

    /// Adds the subjects that may perform the action as the subject of a direct proof.
    fn follow_constrained_impersonation(
        &mut self,
        action: &Action,
        scope: &Scope,
        namespaces: &BTreeSet<&str>,
        proof: &Proof<'r>,
    ) {
        let Some(requirements) = step_to_impersonate_for(action, scope, namespaces, proof) else { return };
        let is_reached = |node: &Node<'_>| node.source == RuleSource::Cluster && node.subject == proof.subject;
        let Some(reached) = self.nodes.iter().position(is_reached) else { return };
        // Administrators have the right for the action too. They are allowed the action itself, so no step is needed.
        let request_rights = requirements.needs.first().map(Vec::as_slice).unwrap_or_default();
        let holders: Vec<_> = request_rights.iter().map(|right| self.find_holders(right)).collect();
        let is_new = |proof: &Proof<'_>| !self.visited.contains(&(RuleSource::Cluster, proof.subject.clone()));
        if holders.iter().flat_map(|proofs| proofs.iter()).any(is_new) {
            self.follow(&requirements, Some(&proof.subject), Some(reached), 1);
        }
    }

    /// Subjects with all rights that a step needs. Rights of one person by several groups are not combined, because the
    /// groups of users are not known.
    fn find_satisfying_subjects(&mut self, requirements: &StepRequirements) -> Vec<SatisfyingSubject<'r>> {
        let needs: Vec<HashMap<Subject, (Right, Proof<'r>)>> =
            requirements.needs.iter().map(|need| self.find_subjects_with_any(need)).collect();
        let candidates: BTreeSet<Subject> = match &requirements.only_subject {
            Some(only) => BTreeSet::from([only.clone()]),
            None => needs.iter().flat_map(HashMap::keys).cloned().collect(),
        };
        let rights = |subject: Subject| {
            let find_right = |need: &HashMap<Subject, (Right, Proof<'r>)>| {
                std::iter::once(subject.clone())
                    .chain(implied_groups(&subject))
                    .find_map(|identity| need.get(&identity).cloned())
            };
            let rights: Option<Vec<_>> = needs.iter().map(find_right).collect();
            rights.map(|rights| (subject, rights))
        };
        candidates.into_iter().filter_map(rights).collect()
    }

    /// The subjects that have one of the rights.
    fn find_subjects_with_any(&mut self, alternatives: &[Right]) -> HashMap<Subject, (Right, Proof<'r>)> {
        let mut subjects = HashMap::new();
        for right in alternatives {
            for proof in self.find_holders(right).iter() {
                subjects.entry(proof.subject.clone()).or_insert_with(|| (right.clone(), proof.clone()));
            }
        }
        subjects
    }

    fn find_holders(&mut self, right: &Right) -> Arc<[Proof<'r>]> {
        if let Some(cached) = self.holders.get(right) {
            return Arc::clone(cached);
        }
        let found = self.searched.view(right.source).who_can(&right.action, &right.scope()).proofs;
        let found: Arc<[Proof<'r>]> = found.into();
        self.holders.insert(right.clone(), Arc::clone(&found));
        found
    }

    fn into_paths(self, direct: &[Proof<'r>]) -> Paths<'r> {
        let mut paths = Vec::new();
        for node in self.nodes.iter().filter(|node| node.step.is_some()) {
            // Users and groups have one identity in the control plane and in members, so they are listed once. Service
            // accounts of the same name are different in each cluster.
            let is_listed = node.source == RuleSource::ControlPlane
                && node.subject.kind != SubjectKind::ServiceAccount
                && self.visited.contains(&(RuleSource::Cluster, node.subject.clone()));
            if is_listed {
                continue;
            }
            let (mut steps, mut at, mut last) = (Vec::new(), Some(node), &node.subject);
            while let Some((step, next)) = at.and_then(|node| node.step.as_ref()) {
                steps.push(step.clone());
                at = next.and_then(|next| self.nodes.get(next));
                last = at.map_or(last, |node| &node.subject);
            }
            let allows_itself = steps.last().is_none_or(|step| step.reaches.is_none());
            let proof = direct.iter().find(|proof| !allows_itself && proof.subject == *last).cloned();
            paths.push(Path { source: node.source, subject: node.subject.clone(), steps, proof });
        }
        Paths { paths, is_truncated: self.is_truncated }
    }
}

impl Right {
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
