//! Workloads of the fleet: Deployments with a policy each, and their invariants.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::crash::write::Write;

pub const NAMESPACE: &str = "failover";

/// Behaviour of a workload when its cluster fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Moves to its spare; the original copy is deleted when the replacement is healthy (purge mode Gracefully).
    Graceful,
    /// Moves to its spare; the original copy is deleted first (purge mode Directly), so it never runs in both.
    Direct,
    /// Like `Direct`, by the annotation for exclusive workloads, with the default purge mode.
    Exclusive,
    /// Its policy allows one cluster only, so its copy is never evicted.
    Pinned,
    /// A copy in every member that accepts one.
    Duplicated,
}

#[derive(Debug, Clone)]
pub struct Workload {
    pub name: String,
    pub kind: Kind,
    pub replicas: i64,
    /// Allowed clusters in order of preference.
    pub clusters: Vec<&'static str>,
}

impl Workload {
    /// A workload of `primary`, named after its kind and `primary`.
    pub fn new(kind: Kind, primary: &'static str, spare: &'static str) -> Self {
        let name = format!("{kind:?}-{primary}").to_lowercase();
        let replicas = if kind == Kind::Graceful { 2 } else { 1 };
        let clusters = if kind == Kind::Pinned { vec![primary] } else { vec![primary, spare] };
        Workload { name, kind, replicas, clusters }
    }

    /// A workload with a copy in each of the members.
    pub fn with_copies(members: Vec<&'static str>) -> Self {
        Workload { name: "duplicated".to_owned(), kind: Kind::Duplicated, replicas: 1, clusters: members }
    }

    /// True if two copies must never run at the same time. Every other workload must always have a healthy copy.
    pub fn is_exclusive(&self) -> bool {
        matches!(self.kind, Kind::Direct | Kind::Exclusive)
    }

    /// True if the workload may be scheduled to exactly these clusters in the settled state.
    pub fn accepts_placement(&self, clusters: &BTreeSet<&str>) -> bool {
        match self.kind {
            Kind::Duplicated | Kind::Pinned => *clusters == self.clusters.iter().copied().collect(),
            _ => clusters.len() == 1 && clusters.iter().all(|cluster| self.clusters.contains(cluster)),
        }
    }

    /// Requests that create the workload and its policy.
    pub fn creation_requests(&self) -> Vec<Write> {
        let (deployment, policy) = (
            format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{}", self.name),
            format!("/apis/policy.karmada.io/v1alpha1/namespaces/{NAMESPACE}/propagationpolicies/{}", self.name),
        );
        vec![Write { path: deployment, body: Some(self.template()) }, Write { path: policy, body: Some(self.policy()) }]
    }

    fn template(&self) -> Value {
        let app = json!({"app": self.name});
        let mut template = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": self.name},
            "spec": {"replicas": self.replicas, "selector": {"matchLabels": app}, "template": {
                "metadata": {"labels": app}, "spec": {"containers": [{"name": "web", "image": "nginx:1.27"}]},
            }},
        });
        if self.kind == Kind::Exclusive {
            template["metadata"]["annotations"] = json!({"failover.crowsnest.io/exclusive": "true"});
        }
        template
    }

    fn policy(&self) -> Value {
        let placement = match self.kind {
            Kind::Duplicated => json!({"clusterAffinity": {"clusterNames": self.clusters}}),
            _ => {
                let term = |cluster: &&str| json!({"affinityName": cluster, "clusterNames": [cluster]});
                json!({"clusterAffinities": self.clusters.iter().map(term).collect::<Vec<Value>>()})
            }
        };
        let mut policy = json!({
            "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"name": self.name},
            "spec": {"placement": placement,
                "resourceSelectors": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": self.name}]},
        });
        if self.kind == Kind::Direct {
            policy["spec"]["failover"] = json!({"cluster": {"purgeMode": "Directly"}});
        }
        policy
    }
}
