//! Steps and the rights that they need.

use std::collections::BTreeSet;

use super::grants::ways_to_grant;
use super::{Places, Right, RuleSource, StepKind};
use crate::rbac::access::Scope;
use crate::rbac::{Action, Subject, SubjectKind};
use crate::user::{ANONYMOUS, AUTHENTICATED, MASTERS, UNAUTHENTICATED};

const CERTIFICATES: &str = "certificates.k8s.io";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// Objects that make Pods, by group.
const WORKLOADS: [(&str, &str); 7] = [
    ("apps", "deployments"),
    ("apps", "daemonsets"),
    ("apps", "statefulsets"),
    ("apps", "replicasets"),
    ("", "replicationcontrollers"),
    ("batch", "jobs"),
    ("batch", "cronjobs"),
];
const POLICIES: &str = "policy.karmada.io";
pub(super) const WRITE: [&str; 3] = ["create", "update", "patch"];
pub(super) const CHANGE: [&str; 2] = ["update", "patch"];
const READ: [&str; 3] = ["get", "list", "watch"];
/// Maximum number of namespaces that are followed.
pub(super) const MAX_NAMESPACES: usize = 100;

/// A step: all needs must be satisfied, each by one of its rights.
pub(super) struct Way {
    pub kind: StepKind,
    pub needs: Vec<Vec<Right>>,
    /// The only subject for which it is a step.
    pub only: Option<Subject>,
}

impl Way {
    /// The place in which the subject has the rights.
    pub fn source(&self) -> RuleSource {
        self.needs.iter().flatten().next().map_or(RuleSource::Cluster, |right| right.source)
    }
}

/// Makes rights to resources of a namespace in one place.
#[derive(Clone, Copy)]
pub(super) struct RightBuilder<'a> {
    pub source: RuleSource,
    /// Empty: the cluster.
    pub namespace: &'a str,
}

impl RightBuilder<'_> {
    pub fn right(self, verb: &str, group: &str, resource: &str, name: &str) -> Right {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let action = Action::Resource {
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: self.namespace.to_owned(),
            name: name.to_owned(),
        };
        Right { action, source: self.source }
    }

    pub fn rights(self, verbs: &[&str], group: &str, resource: &str) -> Vec<Right> {
        verbs.iter().map(|verb| self.right(verb, group, resource, "")).collect()
    }

    /// Steps that start a container as any service account of the namespace, with any of its Secrets.
    fn start_pods(self) -> [Way; 2] {
        let workloads = WORKLOADS.iter().flat_map(|(group, resource)| self.rights(&WRITE, group, resource));
        [
            way(StepKind::CreatePod, [self.rights(&["create"], "", "pods")]),
            way(StepKind::CreateWorkload, [workloads.collect()]),
        ]
    }

    /// Steps into a running container of the namespace.
    fn enter_pods(self) -> [Way; 3] {
        [
            way(StepKind::ExecInPod, [self.rights(&["create", "get"], "", "pods/exec")]),
            way(StepKind::AttachToPod, [self.rights(&["create", "get"], "", "pods/attach")]),
            way(StepKind::EphemeralContainer, [self.rights(&CHANGE, "", "pods/ephemeralcontainers")]),
        ]
    }

    fn node_proxy(self) -> Way {
        let cluster = RightBuilder { namespace: "", ..self };
        way(StepKind::NodeProxy, [cluster.rights(&["create", "get"], "", "nodes/proxy")])
    }

    /// Needs an approved certificate of the signer of clients, which never issues one for `system:masters`.
    fn approve_certificate(self) -> Way {
        let needs = [
            self.rights(&["create"], CERTIFICATES, "certificatesigningrequests"),
            self.rights(&CHANGE, CERTIFICATES, "certificatesigningrequests/approval"),
            vec![self.right("approve", CERTIFICATES, "signers", CLIENT_SIGNER)],
        ];
        way(StepKind::ApproveCertificate, needs)
    }
}

pub(super) fn way<const N: usize>(kind: StepKind, needs: [Vec<Right>; N]) -> Way {
    Way { kind, needs: needs.into(), only: None }
}

/// Steps by which someone else becomes the subject in a place.
pub(super) fn ways_to_be(places: &Places<'_>, source: RuleSource, subject: &Subject) -> Vec<Way> {
    let cluster = RightBuilder { source, namespace: "" };
    let mut ways = match subject.kind {
        SubjectKind::Unknown => return Vec::new(),
        SubjectKind::ServiceAccount => {
            let mut ways = ways_to_account(RightBuilder { source, namespace: &subject.namespace }, &subject.name);
            if source == RuleSource::Cluster && places.control_plane.is_some() {
                ways.push(propagate(&subject.namespace));
            }
            ways
        }
        SubjectKind::User if &*subject.name == ANONYMOUS => return Vec::new(),
        SubjectKind::User => {
            let impersonate =
                way(StepKind::Impersonate, [vec![cluster.right("impersonate", "", "users", &subject.name)]]);
            vec![impersonate, cluster.approve_certificate()]
        }
        SubjectKind::Group => {
            if matches!(&*subject.name, AUTHENTICATED | UNAUTHENTICATED) {
                return Vec::new();
            }
            let group = vec![cluster.right("impersonate", "", "groups", &subject.name)];
            let user = vec![cluster.right("impersonate", "", "users", "")];
            let mut ways = vec![way(StepKind::Impersonate, [group, user])];
            if &*subject.name != MASTERS {
                ways.push(cluster.approve_certificate());
            }
            if let Some(namespace) = subject.accounts_group().filter(|namespace| !namespace.is_empty()) {
                ways.extend(ways_to_account(RightBuilder { source, namespace }, ""));
            }
            ways
        }
    };
    if let (RuleSource::Cluster, Some(control_plane)) = (source, places.control_plane) {
        let here = RightBuilder { source: RuleSource::ControlPlane, namespace: "" };
        let proxy = ["get", "create"]
            .map(|verb| here.right(verb, "cluster.karmada.io", "clusters/proxy", control_plane.cluster));
        ways.push(Way { only: Some(subject.clone()), ..way(StepKind::ClusterProxy, [proxy.into()]) });
    }
    ways
}

/// Steps to a service account; without a name, to any of the namespace.
fn ways_to_account(own: RightBuilder<'_>, name: &str) -> Vec<Way> {
    let mut ways = Vec::from(own.start_pods());
    ways.extend(own.enter_pods());
    ways.push(way(StepKind::RequestToken, [vec![own.right("create", "", "serviceaccounts/token", name)]]));
    ways.push(way(StepKind::ReadSecrets, [own.rights(&READ, "", "secrets")]));
    ways.push(way(StepKind::Impersonate, [vec![own.right("impersonate", "", "serviceaccounts", name)]]));
    ways.push(own.node_proxy());
    ways
}

/// Creates a workload as a template, and a policy that propagates it, in the control plane.
fn propagate(namespace: &str) -> Way {
    let here = RightBuilder { source: RuleSource::ControlPlane, namespace };
    let everywhere = RightBuilder { namespace: "", ..here };
    let templates = WORKLOADS.iter().flat_map(|(group, resource)| here.rights(&WRITE, group, resource));
    let pods = here.rights(&["create"], "", "pods");
    let mut policies = here.rights(&WRITE, POLICIES, "propagationpolicies");
    policies.extend(everywhere.rights(&WRITE, POLICIES, "clusterpropagationpolicies"));
    way(StepKind::Propagate, [templates.chain(pods).collect(), policies])
}

/// Namespaces in which an action can be granted: those of the scope; for all, those that have roles or bindings.
pub(super) fn namespaces<'n>(places: &Places<'n>, action: &Action, scope: &'n Scope) -> BTreeSet<&'n str> {
    match (action, scope) {
        (Action::Path { .. }, _) => BTreeSet::new(),
        (Action::Resource { .. }, Scope::Namespaces(namespaces)) => namespaces.iter().map(String::as_str).collect(),
        (Action::Resource { .. }, Scope::All) => places.cluster.namespaces(),
    }
}

/// Steps that allow the action itself in one of the namespaces, or in the cluster.
pub(super) fn ways_to_do(places: &Places<'_>, action: &Action, namespaces: &BTreeSet<&str>) -> Vec<Way> {
    let mut ways = Vec::new();
    let cluster = RightBuilder { source: RuleSource::Cluster, namespace: "" };
    ways.extend(ways_to_grant(places.cluster, cluster, action));
    for &namespace in namespaces.iter().take(MAX_NAMESPACES) {
        let own = RightBuilder { namespace, ..cluster };
        ways.extend(ways_to_grant(places.cluster, own, action));
        ways.extend(ways_to_read_secrets(own, action));
    }
    if let Action::Resource { group, resource, subresource, .. } = action
        && (group.as_str(), resource.as_str()) == ("", "pods")
        && matches!(subresource.as_str(), "exec" | "attach" | "log" | "portforward")
    {
        ways.push(cluster.node_proxy());
    }
    if let Some(control_plane) = places.control_plane {
        let mut credentials = Vec::new();
        for (namespace, name) in control_plane.credentials {
            let own = RightBuilder { source: RuleSource::ControlPlane, namespace };
            credentials.push(own.right("get", "", "secrets", name));
            credentials.extend(own.rights(&READ[1..], "", "secrets"));
        }
        if !credentials.is_empty() {
            ways.push(way(StepKind::ReadClusterCredentials, [credentials]));
        }
        let works = RightBuilder { source: RuleSource::ControlPlane, namespace: control_plane.execution_namespace };
        ways.push(way(StepKind::WriteWork, [works.rights(&WRITE, "work.karmada.io", "works")]));
    }
    ways
}

/// A list of Secrets contains their values, and a Pod can mount them.
fn ways_to_read_secrets(own: RightBuilder<'_>, action: &Action) -> Vec<Way> {
    let Action::Resource { verb, group, resource, subresource, .. } = action else { return Vec::new() };
    let is_read = READ.contains(&verb.as_str());
    if !is_read || (group.as_str(), resource.as_str(), subresource.as_str()) != ("", "secrets", "") {
        return Vec::new();
    }
    let mut ways = Vec::from(own.start_pods());
    if verb == "get" {
        ways.push(way(StepKind::ReadSecrets, [own.rights(&READ[1..], "", "secrets")]));
    }
    ways
}
