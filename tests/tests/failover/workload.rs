//! Workloads of the fleet: Deployments with a policy each, and their invariants.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::crash::write::Write;

pub const NAMESPACE: &str = "failover";

/// Behaviour of a workload when its cluster fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Moves to its spare; the original copy stays until the replacement is healthy.
    Gentle,
    /// Moves to its spare, but never runs in both: its policy purges directly.
    Single,
    /// The same by annotation, with the default purge mode.
    Exclusive,
    /// Has no other cluster, so its copy is never evicted.
    Pinned,
    /// A copy in every member that accepts one.
    Wide,
}

#[derive(Debug, Clone)]
pub struct Workload {
    pub name: String,
    pub kind: Kind,
    pub replicas: i64,
    /// In order of preference.
    pub clusters: Vec<&'static str>,
}

impl Workload {
    /// The workload of a member, named after it.
    pub fn of(kind: Kind, home: &'static str, spare: &'static str) -> Self {
        let name = format!("{kind:?}-{home}").to_lowercase();
        let replicas = if kind == Kind::Gentle { 2 } else { 1 };
        let clusters = if kind == Kind::Pinned { vec![home] } else { vec![home, spare] };
        Workload { name, kind, replicas, clusters }
    }

    pub fn wide(members: Vec<&'static str>) -> Self {
        Workload { name: "wide".to_owned(), kind: Kind::Wide, replicas: 1, clusters: members }
    }

    /// True if two copies must not run at once; all others must always have a healthy one.
    pub fn is_exclusive(&self) -> bool {
        matches!(self.kind, Kind::Single | Kind::Exclusive)
    }

    /// True if the clusters are valid in the idle state.
    pub fn may_be_in(&self, clusters: &BTreeSet<&str>) -> bool {
        match self.kind {
            Kind::Wide | Kind::Pinned => *clusters == self.clusters.iter().copied().collect(),
            _ => clusters.len() == 1 && clusters.iter().all(|cluster| self.clusters.contains(cluster)),
        }
    }

    /// The requests that create it.
    pub fn writes(&self) -> Vec<Write> {
        let (deployments, policies) = (
            format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{}", self.name),
            format!("/apis/policy.karmada.io/v1alpha1/namespaces/{NAMESPACE}/propagationpolicies/{}", self.name),
        );
        vec![
            Write { path: deployments, body: Some(self.template()) },
            Write { path: policies, body: Some(self.policy()) },
        ]
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
            Kind::Wide => json!({"clusterAffinity": {"clusterNames": self.clusters}}),
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
        if self.kind == Kind::Single {
            policy["spec"]["failover"] = json!({"cluster": {"purgeMode": "Directly"}});
        }
        policy
    }
}
