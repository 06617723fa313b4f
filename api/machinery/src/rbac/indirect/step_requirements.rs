//! The kinds of steps that lead to a subject or an action, with the permissions that each of them needs.

use std::collections::BTreeSet;

use super::grants::steps_to_grant;
use super::{Permission, ProvedPermissions, RuleSource, SearchedRules, Step, StepKind};
use crate::rbac::access::Scope;
use crate::rbac::{Action, Subject, SubjectKind};
use crate::user::{ANONYMOUS, AUTHENTICATED, MASTERS, UNAUTHENTICATED};

const CERTIFICATES_GROUP: &str = "certificates.k8s.io";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// Group and resource of the kinds whose controllers create Pods.
const WORKLOADS: [(&str, &str); 7] = [
    ("apps", "deployments"),
    ("apps", "daemonsets"),
    ("apps", "statefulsets"),
    ("apps", "replicasets"),
    ("", "replicationcontrollers"),
    ("batch", "jobs"),
    ("batch", "cronjobs"),
];
const POLICY_GROUP: &str = "policy.karmada.io";
pub(super) const WRITE_VERBS: [&str; 3] = ["create", "update", "patch"];
pub(super) const UPDATE_VERBS: [&str; 2] = ["update", "patch"];
pub(super) const READ_VERBS: [&str; 3] = ["get", "list", "watch"];
/// Maximum number of namespaces in which steps are searched.
pub(super) const MAX_NAMESPACES: usize = 100;

/// A kind of step with the permissions that it needs: all needs must be satisfied, each by one of its permissions.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct StepRequirements {
    pub kind: StepKind,
    pub needs: Vec<Vec<Permission>>,
    /// The only subject that can take this step. `None` for any.
    pub only_subject: Option<Subject>,
    /// Kind of the step that follows, for a step that grants the permission for it. `None` for others.
    pub then: Option<StepKind>,
}

impl StepRequirements {
    /// Kind of the step, or of the one that follows.
    pub fn last_kind(&self) -> StepKind {
        self.then.unwrap_or(self.kind)
    }

    pub fn step_count(&self) -> usize {
        1 + usize::from(self.then.is_some())
    }

    /// The step with these permissions, and the one that follows, which needs no others.
    pub fn steps<'r>(&self, reaches: Option<&Subject>, permissions: ProvedPermissions<'r>) -> Vec<Step<'r>> {
        let step = Step { kind: self.kind, reaches: reaches.cloned(), permissions };
        let next = self.then.map(|kind| Step { kind, reaches: None, permissions: Vec::new() });
        std::iter::once(step).chain(next).collect()
    }

    /// The cluster whose rules must grant the permissions.
    pub fn source(&self) -> RuleSource {
        self.needs.iter().flatten().next().map_or(RuleSource::Cluster, |permission| permission.source)
    }
}

/// Builds permissions for resources of one namespace in one cluster.
#[derive(Clone, Copy)]
pub(super) struct PermissionBuilder<'a> {
    pub source: RuleSource,
    /// Empty for cluster-scoped resources.
    pub namespace: &'a str,
}

impl PermissionBuilder<'_> {
    pub fn permission(self, verb: &str, group: &str, resource: &str, name: &str) -> Permission {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let action = Action::Resource {
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: self.namespace.to_owned(),
            name: name.to_owned(),
        };
        Permission { action, source: self.source }
    }

    pub fn permissions(self, verbs: &[&str], group: &str, resource: &str) -> Vec<Permission> {
        verbs.iter().map(|verb| self.permission(verb, group, resource, "")).collect()
    }

    /// Steps that start a container as any service account of the namespace, with any of its Secrets.
    fn steps_to_start_pods(self) -> [StepRequirements; 2] {
        let workloads = WORKLOADS.iter().flat_map(|(group, resource)| self.permissions(&WRITE_VERBS, group, resource));
        [
            requirements(StepKind::CreatePod, [self.permissions(&["create"], "", "pods")]),
            requirements(StepKind::CreateWorkload, [workloads.collect()]),
        ]
    }

    /// Steps that enter a running container of the namespace.
    fn steps_to_enter_pods(self) -> [StepRequirements; 3] {
        [
            requirements(StepKind::ExecInPod, [self.permissions(&["create", "get"], "", "pods/exec")]),
            requirements(StepKind::AttachToPod, [self.permissions(&["create", "get"], "", "pods/attach")]),
            requirements(
                StepKind::EphemeralContainer,
                [self.permissions(&UPDATE_VERBS, "", "pods/ephemeralcontainers")],
            ),
        ]
    }

    /// Step that sends requests to kubelets through the API server.
    fn step_to_use_node_proxy(self) -> StepRequirements {
        let cluster = PermissionBuilder { namespace: "", ..self };
        requirements(StepKind::NodeProxy, [cluster.permissions(&["create", "get"], "", "nodes/proxy")])
    }

    /// Step that requests and approves a client certificate (signer `kubernetes.io/kube-apiserver-client`, which never issues
    /// one for `system:masters`).
    fn step_to_approve_certificate(self) -> StepRequirements {
        let needs = [
            self.permissions(&["create"], CERTIFICATES_GROUP, "certificatesigningrequests"),
            self.permissions(&UPDATE_VERBS, CERTIFICATES_GROUP, "certificatesigningrequests/approval"),
            vec![self.permission("approve", CERTIFICATES_GROUP, "signers", CLIENT_SIGNER)],
        ];
        requirements(StepKind::ApproveCertificate, needs)
    }
}

/// A step with these needs that any subject can take.
pub(super) fn requirements<const N: usize>(kind: StepKind, needs: [Vec<Permission>; N]) -> StepRequirements {
    StepRequirements { kind, needs: needs.into(), only_subject: None, then: None }
}

/// Steps by which another subject becomes `subject` in the cluster of `source`.
pub(super) fn steps_to_become(
    rules: &SearchedRules<'_>,
    source: RuleSource,
    subject: &Subject,
) -> Vec<StepRequirements> {
    let cluster = PermissionBuilder { source, namespace: "" };
    let mut steps = match subject.kind {
        SubjectKind::Unknown => return Vec::new(),
        SubjectKind::ServiceAccount => {
            let mut steps =
                steps_to_become_account(PermissionBuilder { source, namespace: &subject.namespace }, &subject.name);
            if source == RuleSource::Cluster && rules.control_plane.is_some() {
                steps.push(step_to_propagate_workload(&subject.namespace));
            }
            steps
        }
        SubjectKind::User if &*subject.name == ANONYMOUS => return Vec::new(),
        SubjectKind::User => {
            let impersonate = requirements(
                StepKind::Impersonate,
                [vec![cluster.permission("impersonate", "", "users", &subject.name)]],
            );
            vec![impersonate, cluster.step_to_approve_certificate()]
        }
        SubjectKind::Group => {
            if matches!(&*subject.name, AUTHENTICATED | UNAUTHENTICATED) {
                return Vec::new();
            }
            let group = vec![cluster.permission("impersonate", "", "groups", &subject.name)];
            let user = vec![cluster.permission("impersonate", "", "users", "")];
            let mut steps = vec![requirements(StepKind::Impersonate, [group, user])];
            if &*subject.name != MASTERS {
                steps.push(cluster.step_to_approve_certificate());
            }
            if let Some(namespace) = subject.service_account_group_namespace().filter(|namespace| !namespace.is_empty())
            {
                steps.extend(steps_to_become_account(PermissionBuilder { source, namespace }, ""));
            }
            steps
        }
    };
    if let (RuleSource::Cluster, Some(control_plane)) = (source, rules.control_plane) {
        let builder = PermissionBuilder { source: RuleSource::ControlPlane, namespace: "" };
        let proxy = ["get", "create"]
            .map(|verb| builder.permission(verb, "cluster.karmada.io", "clusters/proxy", control_plane.cluster));
        steps.push(StepRequirements {
            only_subject: Some(subject.clone()),
            ..requirements(StepKind::ClusterProxy, [proxy.into()])
        });
    }
    steps
}

/// Steps by which another subject becomes a service account; without a name, any service account of the namespace.
fn steps_to_become_account(builder: PermissionBuilder<'_>, name: &str) -> Vec<StepRequirements> {
    let mut steps = Vec::from(builder.steps_to_start_pods());
    steps.extend(builder.steps_to_enter_pods());
    steps.push(requirements(
        StepKind::RequestToken,
        [vec![builder.permission("create", "", "serviceaccounts/token", name)]],
    ));
    steps.push(requirements(StepKind::ReadSecrets, [builder.permissions(&READ_VERBS, "", "secrets")]));
    steps.push(requirements(
        StepKind::Impersonate,
        [vec![builder.permission("impersonate", "", "serviceaccounts", name)]],
    ));
    steps.push(builder.step_to_use_node_proxy());
    steps
}

/// Step that creates a workload and a policy that propagates it in the control plane.
fn step_to_propagate_workload(namespace: &str) -> StepRequirements {
    let builder = PermissionBuilder { source: RuleSource::ControlPlane, namespace };
    let cluster = PermissionBuilder { namespace: "", ..builder };
    let templates = WORKLOADS.iter().flat_map(|(group, resource)| builder.permissions(&WRITE_VERBS, group, resource));
    let pods = builder.permissions(&["create"], "", "pods");
    let mut policies = builder.permissions(&WRITE_VERBS, POLICY_GROUP, "propagationpolicies");
    policies.extend(cluster.permissions(&WRITE_VERBS, POLICY_GROUP, "clusterpropagationpolicies"));
    requirements(StepKind::Propagate, [templates.chain(pods).collect(), policies])
}

/// Namespaces in which an action can be granted: those of the scope, or those with visible roles or
/// bindings for [`Scope::All`].
pub(super) fn namespaces<'n>(rules: &SearchedRules<'n>, action: &Action, scope: &'n Scope) -> BTreeSet<&'n str> {
    match (action, scope) {
        (Action::Path { .. }, _) => BTreeSet::new(),
        (Action::Resource { .. }, Scope::Namespaces(namespaces)) => namespaces.iter().map(String::as_str).collect(),
        (Action::Resource { .. }, Scope::All) => rules.cluster.namespaces(),
    }
}

/// Steps that allow the action itself in one of the namespaces, or in the cluster.
pub(super) fn steps_to_perform(
    rules: &SearchedRules<'_>,
    action: &Action,
    scope: &Scope,
    namespaces: &BTreeSet<&str>,
) -> Vec<StepRequirements> {
    let mut steps = Vec::new();
    let cluster = PermissionBuilder { source: RuleSource::Cluster, namespace: "" };
    steps.extend(steps_to_grant(rules.cluster, cluster, action));
    if *scope == Scope::All {
        // Permissions in every namespace, including those that the caller cannot see.
        steps.extend(steps_to_read_secrets(cluster, action));
    }
    for &namespace in namespaces.iter().take(MAX_NAMESPACES) {
        let builder = PermissionBuilder { namespace, ..cluster };
        steps.extend(steps_to_grant(rules.cluster, builder, action));
        steps.extend(steps_to_read_secrets(builder, action));
    }
    if let Action::Resource { group, resource, subresource, .. } = action
        && (group.as_str(), resource.as_str()) == ("", "pods")
        && matches!(subresource.as_str(), "exec" | "attach" | "log" | "portforward")
    {
        steps.push(cluster.step_to_use_node_proxy());
    }
    if let Some(control_plane) = rules.control_plane {
        steps.extend(control_plane.steps_into_cluster());
    }
    steps
}

/// Steps that read Secrets without `get`: a list contains their values, and a Pod can mount them.
fn steps_to_read_secrets(builder: PermissionBuilder<'_>, action: &Action) -> Vec<StepRequirements> {
    let Action::Resource { verb, group, resource, subresource, .. } = action else { return Vec::new() };
    let is_read = READ_VERBS.contains(&verb.as_str());
    if !is_read || (group.as_str(), resource.as_str(), subresource.as_str()) != ("", "secrets", "") {
        return Vec::new();
    }
    let mut steps = Vec::from(builder.steps_to_start_pods());
    if verb == "get" {
        steps.push(requirements(StepKind::ReadSecrets, [builder.permissions(&READ_VERBS[1..], "", "secrets")]));
    }
    steps
}
